"""Chapters as text: nothing is lost on the way to a notebook and back; unchanged cells keep their outputs."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook, new_output

from tools import notebook_source
from tools.notebook_source import KERNEL, chapters, colab_line, dumps, first_cell, main, parts, solutions

TEXT = """\
# %% [markdown]
# # A title
#
# Text with $x_1$ and ä.
#
# $$
# a = b
# $$

# %%
x = 3

# %% [markdown]
# ## A section

# %% tags=["hide-input"]
#@title Prints
print(x)


def f():
    return x


# %% tags=["raises-exception"] lines_to_next_cell=2
# NBVAL_IGNORE_OUTPUT
1 / 0

# %%
x = 3
"""


@pytest.fixture
def pair(tmp_path):
    """A text and the notebook made from it."""
    text, notebook = tmp_path / "text.py", tmp_path / "chapter.ipynb"
    text.write_text(TEXT, encoding="utf-8")
    assert main([str(text), str(notebook)]) == 0
    return text, notebook


def read(path):
    return nbformat.read(path, as_version=4)


def test_a_notebook_becomes_the_same_text_again(pair):
    text, notebook = pair
    text.unlink()
    assert main([str(notebook), str(text)]) == 0
    assert text.read_text(encoding="utf-8") == TEXT.replace(" lines_to_next_cell=2", "")


def test_the_link_the_first_cell_and_the_kernel_are_added(pair):
    nb = read(pair[1])
    assert nb.cells[0].source.startswith(f"# A title\n\n{colab_line('chapter')}\n\nText with $x_1$ and ä.")
    assert nb.cells[1].source == first_cell().source and nb.cells[1].metadata.tags == ["remove-cell"]
    assert nb.metadata == KERNEL and "jupytext" not in pair[1].read_text(encoding="utf-8")
    nbformat.validate(nb)


def test_a_hidden_cell_is_hidden_in_jupyter_and_on_colab_too(pair):
    hidden, plain = (read(pair[1]).cells[i].metadata for i in (4, 2))
    assert hidden == {"tags": ["hide-input"], "jupyter": {"source_hidden": True}, "cellView": "form"}
    assert plain == {} and read(pair[1]).cells[5].metadata == {"tags": ["raises-exception"]}


def test_ids_are_unique_and_stay_when_other_cells_change(pair):
    text, notebook = pair
    before = [cell.id for cell in read(notebook).cells]
    assert len(set(before)) == len(before)
    text.write_text(TEXT.replace("## A section", "## Another section"), encoding="utf-8")
    main([str(text), str(notebook)])
    after = [cell.id for cell in read(notebook).cells]
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, True, True, False, True, True, True]


def test_cells_that_did_not_change_keep_their_outputs(pair):
    text, notebook = pair
    nb = read(notebook)
    for count, cell in enumerate((cell for cell in nb.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
        cell.outputs = [new_output("stream", name="stdout", text=f"{count}\n")]
    notebook.write_text(dumps(nb), encoding="utf-8")
    main([str(text), str(notebook)])
    assert notebook.read_text(encoding="utf-8") == dumps(nb)
    text.write_text(TEXT.replace("return x", "return 2 * x"), encoding="utf-8")
    main([str(text), str(notebook)])
    counts = [cell.get("execution_count") for cell in read(notebook).cells]
    assert counts == [None, 1, 2, None, None, 4, 5] and read(notebook).cells[4].outputs == []


@pytest.mark.parametrize("text", ["", "# %%\nx = 1\n", "# %% [markdown]\n# ## A section\n"])
def test_a_text_without_a_title_is_refused(text):
    with pytest.raises(
        ValueError, match=r"chapter \(text\) must begin with a markdown cell whose first line is"
    ):
        notebook_source.to_notebook(text, "chapter")


@pytest.mark.parametrize("names", [("a.py", "b.py"), ("a.ipynb", "b.ipynb"), ("a.md", "b.ipynb")])
def test_two_files_of_one_kind_are_refused(names, capsys):
    with pytest.raises(SystemExit):
        main(list(names))
    assert f"{names[0]} and {names[1]} must be one .py and one .ipynb" in capsys.readouterr().err


def test_solutions_are_the_python_code_of_folds_that_say_so():
    fold = "<details>\n<summary>{}</summary>\n\ntext\n\n```python\n{}\n```\n\nmore\n\n{}</details>"
    cells = [
        new_markdown_cell(fold.format("Solution", "a = 1\nb = '``'", "```python\nc = 2\n```\n\n")),
        new_markdown_cell(fold.format("Hint", "d = 1", "")),
        new_markdown_cell("```python\ne = 1\n```"),
        new_markdown_cell(fold.format("Solution 2", "f = 1", "```\ng = 1\n```\n\n")),
    ]
    assert solutions(new_notebook(cells=cells)) == ["a = 1\nb = '``'\n\nc = 2\n", "f = 1\n"]


def test_the_first_cell_is_the_address_of_the_configuration():
    address = notebook_source.config()["repository"]["url"]
    assert f"git+{address}" in first_cell().source and re.fullmatch(
        r"https://github\.com/[^/]+/[^/]+", address
    )
    assert colab_line("x").endswith(
        f"/github/{address.removeprefix('https://github.com/')}/blob/main/book/x.ipynb)"
    )


def test_chapters_come_in_the_order_of_the_contents(tmp_path):
    slugs = [slug for names in parts().values() for slug in names]
    (tmp_path / "book").mkdir()
    for name in ["unlisted", *sorted(slugs[:4])]:
        (tmp_path / "book" / f"{name}.ipynb").touch()
    assert [path.stem for path in chapters(tmp_path)] == [*slugs[:4], "unlisted"]
