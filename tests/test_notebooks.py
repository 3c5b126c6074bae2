"""The laws of the book's notebooks, read from the committed files without executing them.

Each law is a function that lists the faults it finds in a notebook. A good sample has none, and for each law
there are samples that break it.
"""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

import annotated_transformer
from annotated_transformer.notebook import WIDGET_STATE, notebook_errors
from tools.notebook_source import (
    HIDING_TAGS,
    KEPT_METADATA,
    KERNEL,
    ROOT,
    chapters,
    colab_line,
    dumps,
    first_cell,
    solutions,
    to_notebook,
)

LINES, COMPARED, WORDS, BYTES = 15, 0.9, 200, 1_500_000
HEAD = "| reads in | runs in | needs | you will build |"
SECTIONS = ["What goes wrong", "Exercises", "Sources"]
NEXT = "In the next chapter"
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1[ \t]*$", re.DOTALL | re.MULTILINE)
MATH = re.compile(r"\$\$.*?\$\$|\$(?:[^$\n]|\n(?!\n))+\$", re.DOTALL)


def code_cells(nb):
    """The code cells that hold code."""
    return [cell for cell in nb.cells if cell.cell_type == "code" and cell.source.strip()]


def texts(nb):
    """The Markdown cells as text without fenced code."""
    return [FENCE.sub("", cell.source) for cell in nb.cells if cell.cell_type == "markdown"]


def prose(text):
    """Text without formulas and inline code."""
    return re.sub(r"`[^`\n]+`", "", MATH.sub("", text))


def headings(text):
    """The level and the words of each heading."""
    return [
        (len(marks), words.strip()) for marks, words in re.findall(r"^(#{1,6}) (.+)$", text, re.MULTILINE)
    ]


def anchor(words):
    """The anchor of a heading, as GitHub and the book make it."""
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


def python(source):
    """A cell's code without the lines that only IPython understands."""
    return re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)


def outputs(nb):
    """Each output with the number of its code cell."""
    return [(n, output) for n, cell in enumerate(code_cells(nb), start=1) for output in cell.outputs]


def is_ignored(cell):
    """Whether nbval is told not to compare a cell."""
    tags = set(cell.metadata.get("tags", []))
    marked = re.search(
        r"^\s*#\s*(NBVAL_IGNORE_OUTPUT|NBVAL_SKIP|PYTEST_VALIDATE_IGNORE_OUTPUT)", cell.source, re.M
    )
    return bool(marked or tags & {"nbval-ignore-output", "nbval-skip"})


def first_code_cell_installs_the_package(nb, slug):
    standard = first_cell()
    cells = [(cell.cell_type, cell.source, cell.metadata) for cell in nb.cells]
    right = len(cells) > 1 and cells[1] == ("code", standard.source, standard.metadata)
    faults = [] if right else ["the second cell is not the standard first code cell"]
    again = sum("pip install" in cell.source for cell in code_cells(nb)) - right
    return faults + ["another cell installs a package"] * (again > 0)


def title_is_followed_by_the_link_to_colab(nb, slug):
    lines = nb.cells[0].source.split("\n")
    links = sum(cell.source.count("[Open in Colab]") for cell in nb.cells)
    right = lines[0].startswith("# ") and lines[1:3] == ["", colab_line(slug)] and links == 1
    return [] if right else ["the title is not followed by this chapter's link to Colab"]


def head_table_is_complete(nb, slug):
    _, found, rest = nb.cells[0].source.partition(f"\n{HEAD}\n")
    rows = [line for line in rest.split("\n") if line.startswith("|")] if found else []
    if len(rows) != 2 or not re.fullmatch(r"\|( --- \|){4}", rows[0]):
        return ["the first cell has no head table with one row"]
    cells = [cell.strip() for cell in rows[1].strip("|").split("|")]
    return [] if len(cells) == 4 and all(cells) else ["the head table has an empty cell"]


def headings_have_an_order_without_gaps(nb, slug):
    levels = [level for text in texts(nb) for level, _ in headings(text)]
    faults = (
        [] if levels[:1] == [1] and levels.count(1) == 1 else ["there is not exactly one title, at the top"]
    )
    words = [words for text in texts(nb) for _, words in headings(text)]
    for before, after, name in zip(levels, levels[1:], words[1:], strict=False):
        if after > before + 1:
            faults.append(f"heading {name!r} skips a level")
    return faults


def sections_end_in_order(nb, slug):
    names = [words for text in texts(nb) for level, words in headings(text) if level == 2]
    found = [name for name in names if name in SECTIONS]
    faults = [] if found == SECTIONS else [f"the sections {found} must be {SECTIONS}"]
    if names[-1:] not in (["Sources"], [NEXT]):
        faults.append(f"the last section is neither Sources nor {NEXT!r}")
    return faults


def sources_link_to_the_references(nb, slug):
    whole = "\n".join(texts(nb)).partition("\n## Sources")[2].partition("\n## ")[0]
    return [] if "](references.md#" in whole else ["the sources do not link to references.md"]


def three_exercises_have_solutions_that_prove_themselves(nb, slug):
    whole = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    section = whole.partition("\n## Exercises")[2].partition("\n## ")[0]
    numbers = re.findall(r"^### Exercise (\d+)", section, re.MULTILINE)
    faults = [] if numbers == ["1", "2", "3"] else [f"exercises {numbers} must be numbered 1, 2, 3"]
    codes = solutions(nb)
    if len(codes) != 3 or section.count("<summary>Solution") != 3:
        faults.append(f"{len(codes)} folded solutions with code, not 3")
    for number, code in enumerate(codes, start=1):
        try:
            nodes = list(ast.walk(ast.parse(python(code))))
        except SyntaxError as error:
            faults.append(f"solution {number} is not Python: {error.msg}")
        else:
            if not any(isinstance(node, ast.Assert) for node in nodes):
                faults.append(f"solution {number} asserts nothing")
    return faults


def no_myst_syntax(nb, slug):
    faults = []
    for cell in nb.cells:
        if cell.cell_type != "markdown":
            continue
        if re.search(r"^(`{3,}|~{3,})\{", cell.source, re.MULTILINE):
            faults.append("a directive")
        text = FENCE.sub("", cell.source)
        for what, pattern in {
            "a directive with colons": r"^:{3,}",
            "a role": r"\{[a-z][\w:.+-]*\}`",
            "a target": r"^\([^()\s]+\)=\s*$",
            "a comment": r"^% ",
            "a substitution": r"\{\{.*\}\}",
            "an attribute": r"[)`\]]\{[.#\w]",
        }.items():
            if re.search(pattern, MATH.sub("", text), re.MULTILINE):
                faults.append(what)
    return [f"{fault} of MyST" for fault in faults]


def no_html_but_folds(nb, slug):
    faults = []
    for text in (prose(text) for text in texts(nb)):
        tags = [
            tag
            for tag in re.findall(r"</?[a-zA-Z][^>]*>|<!--", text)
            if not re.match(r"<(https?|mailto):", tag)
        ]
        allowed = {"<details>", "</details>", "<summary>", "</summary>"}
        faults += [f"HTML: {tag}" for tag in tags if tag not in allowed]
        if tags.count("<details>") != tags.count("</details>") or text.count("<summary>") != tags.count(
            "<details>"
        ):
            faults.append("a fold is not closed, or has no summary")
    for cell in (cell for cell in nb.cells if cell.cell_type == "markdown"):
        if re.search(r"</summary>(?!\n\n)|(?<!\n\n)</details>|<details>(?!\n<summary>)", prose(cell.source)):
            faults.append("a fold without blank lines inside")
    return faults


def targets(path):
    """The anchors of a page of the book."""
    if path.suffix == ".ipynb":
        pages = texts(nbformat.read(path, as_version=4))
    else:
        pages = [FENCE.sub("", path.read_text(encoding="utf-8"))]
    names = {anchor(words) for page in pages for _, words in headings(page)}
    return names | {
        name for page in pages for name in re.findall(r"^\(([^()\s]+)\)=\s*$", page, re.MULTILINE)
    }


def links_lead_somewhere(nb, slug):
    faults = []
    here = {anchor(words) for text in texts(nb) for _, words in headings(text)}
    for text in texts(nb):
        if re.search(r"!\[[^\]]*\]\((?!attachment:)", prose(text)):
            faults.append("an image in Markdown: figures are drawn by code")
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]+`", "`", MATH.sub("", text))):
            path, _, name = target.partition("#")
            if re.match(r"https?:", target):
                continue
            page = ROOT / "book" / path if path else None
            if page and (path.startswith("/") or not page.is_file()):
                faults.append(f"link to {target}: no such page")
            elif name and name not in (targets(page) if page else here):
                faults.append(f"link to {target}: no such heading")
    return faults


def code_cells_are_short(nb, slug):
    counts = [(n, len(cell.source.split("\n"))) for n, cell in enumerate(code_cells(nb), start=1)]
    return [f"code cell {n} has {count} lines" for n, count in counts if count > LINES]


def nine_of_ten_code_cells_are_compared(nb, slug):
    cells = code_cells(nb)
    faults = ["NBVAL_SKIP leaves a cell out"] * any("NBVAL_SKIP" in cell.source for cell in cells)
    ignored = sum(is_ignored(cell) for cell in cells)
    if ignored > (1 - COMPARED) * len(cells) + 1e-9:
        faults.append(f"{ignored} of {len(cells)} code cells are not compared")
    return faults


def ignored_cells_are_followed_by_asserted_thresholds(nb, slug):
    cells = [*code_cells(nb), None]
    pairs = [
        (n, after)
        for n, (cell, after) in enumerate(zip(cells, cells[1:], strict=False), 1)
        if is_ignored(cell)
    ]
    kept = {
        n for n, after in pairs if after is not None and not is_ignored(after) and "assert " in after.source
    }
    return [f"code cell {n} is ignored and no assertion follows" for n, _ in pairs if n not in kept]


def every_code_cell_was_executed(nb, slug):
    cells = [cell for cell in nb.cells if cell.cell_type == "code"]
    faults = []
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        faults.append("the code cells are not counted 1, 2, 3, …: the runner has not executed this version")
    for n, cell in enumerate(cells, start=1):
        if re.search(r"^(print|show|figure)\(", cell.source, re.MULTILINE) and not cell.outputs:
            faults.append(f"code cell {n} has no output")
    return faults


def outputs_are_free_of_errors(nb, slug):
    faults = notebook_errors(nb)
    stderr = [n for n, output in outputs(nb) if output.output_type == "stream" and output.name == "stderr"]
    return faults + [f"code cell {n} wrote to stderr" for n in stderr]


def nothing_differs_from_machine_to_machine(nb, slug):
    faults = (
        [] if nb.metadata == KERNEL else [f"metadata {sorted(nb.metadata)} must be those of the kernel alone"]
    )
    for cell in nb.cells:
        faults += [f"cell metadata {key!r}" for key in sorted(set(cell.metadata) - KEPT_METADATA)]
    for n, output in outputs(nb):
        found = nbformat.from_dict({**output, "metadata": {}})
        kinds = {key: "" for key in found.get("data", {}) if key.startswith("image/")}
        text = str({**found, "data": {**found.get("data", {}), **kinds}})
        if re.search(
            r"(?<![\w.])/(home|root|Users|usr|opt|tmp|var|work|content)/|site-packages|[A-Z]:\\\\", text
        ):
            faults.append(f"code cell {n} shows a path of a machine")
        if re.search(r" at 0x[0-9a-f]{6,}", text):
            faults.append(f"code cell {n} shows an address in memory")
        faults += [f"code cell {n} holds a live widget"] * ("widget-view" in text)
    for n, cell in enumerate(code_cells(nb), start=1):
        if re.search(
            r"^\s*%{1,2}time|\bperf_counter\(|\btime\.(time|monotonic)\(", cell.source, re.MULTILINE
        ):
            faults.append(f"code cell {n} measures a time")
    return faults


def images_have_alternative_text(nb, slug):
    faults = []
    for n, output in outputs(nb):
        for kind in (kind for kind in output.get("data", {}) if kind.startswith("image/")):
            alt = output.metadata.get(kind, {}).get("alt", "")
            if len(alt.split()) < 4 or output.data.get("text/plain") != alt:
                faults.append(f"code cell {n} shows a picture without alternative text")
    return faults


def hidden_cells_are_hidden_everywhere(nb, slug):
    faults = []
    for n, cell in enumerate(code_cells(nb), start=1):
        marks = [
            bool(HIDING_TAGS & set(cell.metadata.get("tags", []))),
            cell.metadata.get("jupyter", {}).get("source_hidden", False),
            cell.metadata.get("cellView") == "form",
            cell.source.startswith("#@title "),
        ]
        if any(marks) and not all(marks):
            faults.append(f"code cell {n} is hidden in one place and not in another")
    return faults


def one_seed_is_set_once(nb, slug):
    code = "\n".join(cell.source for cell in code_cells(nb))
    faults = ["seed_everything is called more than once"] * (code.count("seed_everything(") > 1)
    if re.search(r"\b(torch\.manual_seed|np\.random\.seed)\(", code):
        faults.append("the global seed is set by torch or numpy")
    return faults


def nothing_of_the_package_is_defined_again(nb, slug):
    faults = []
    for n, cell in enumerate(code_cells(nb), start=1):
        try:
            tree = ast.parse(python(cell.source))
        except SyntaxError as error:
            if "raises-exception" not in cell.metadata.get("tags", []):
                faults.append(f"code cell {n} is not Python: {error.msg}")
            continue
        made = [node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        faults += [f"code cell {n} defines {name}" for name in made if name in annotated_transformer.__all__]
    return faults


def markdown_cells_are_short(nb, slug):
    cells = [
        cell.source for cell in nb.cells if cell.cell_type == "markdown" and "<details>" not in cell.source
    ]
    counts = [(source, len(MATH.sub("", FENCE.sub("", source)).split())) for source in cells]
    return [f"a cell of {count} words: {source[:40]!r}" for source, count in counts if count > WORDS]


def the_file_is_as_the_runner_writes_it(nb, slug):
    path = ROOT / "book" / f"{slug}.ipynb"
    nbformat.validate(nb)
    text = dumps(nb)
    faults = [f"{len(text)} bytes, more than {BYTES}"] * (len(text) > BYTES)
    same = not path.exists() or path.read_text(encoding="utf-8") == text
    return faults if same else [*faults, "keys or spaces are not as the runner writes them"]


LAWS = [
    first_code_cell_installs_the_package,
    title_is_followed_by_the_link_to_colab,
    head_table_is_complete,
    headings_have_an_order_without_gaps,
    sections_end_in_order,
    sources_link_to_the_references,
    three_exercises_have_solutions_that_prove_themselves,
    no_myst_syntax,
    no_html_but_folds,
    links_lead_somewhere,
    code_cells_are_short,
    nine_of_ten_code_cells_are_compared,
    ignored_cells_are_followed_by_asserted_thresholds,
    every_code_cell_was_executed,
    outputs_are_free_of_errors,
    nothing_differs_from_machine_to_machine,
    images_have_alternative_text,
    hidden_cells_are_hidden_everywhere,
    one_seed_is_set_once,
    nothing_of_the_package_is_defined_again,
    markdown_cells_are_short,
    the_file_is_as_the_runner_writes_it,
]


def test_the_book_has_notebooks():
    assert chapters()


@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_chapter(law, path):
    nb = nbformat.read(path, as_version=4)
    assert law(nb, path.stem) == []


EXERCISE = """
# %% [markdown]
# ### Exercise {n}: count
#
# How many are there?
#
# <details>
# <summary>Solution {n}</summary>
#
# Count them.
#
# ```python
# assert len([{n}]) == 1
# ```
#
# </details>
"""
TEXT = f"""\
# %% [markdown]
# # A sample
#
{"# " + HEAD}
# | --- | --- | --- | --- |
# | 2 minutes | 1 second | nothing | a number |
#
# The set $\\{{x_{{<t}} : x > 0\\}}$ is written `<details>`, and so on to [the end](#sources).

# %%
print(1 + 1)

# %% [markdown]
# ## What goes wrong
#
# ```python
# # not a heading
# ```

# %% tags=["remove-input"]
#@title Draws
figure(axes, "A grid of four cells", "All is well.")

# %% [markdown]
# ## Exercises
{"".join(EXERCISE.format(n=n) for n in (1, 2, 3))}
# %% [markdown]
# ## Sources
#
# [Somebody 2017](references.md#vaswani-2017), <https://example.org/page>
"""


def sample():
    """A notebook that breaks no law."""
    nb = to_notebook(TEXT, "sample")
    for count, cell in enumerate((cell for cell in nb.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
    cells = {cell.source.partition("(")[0]: cell for cell in nb.cells}
    cells["print"].outputs = [new_output("stream", name="stdout", text="2\n")]
    alt = "A grid of four cells"
    metadata = {"image/png": {"alt": alt}}
    picture = new_output("display_data", data={"image/png": "aGVsbG8=", "text/plain": alt}, metadata=metadata)
    cells["#@title Draws\nfigure"].outputs = [picture]
    return nb


def edit(old, new):
    """A change that replaces text in the cells; the text must be there."""

    def change(nb):
        assert any(old in cell.source for cell in nb.cells), old
        for cell in nb.cells:
            cell.source = cell.source.replace(old, new)

    return change


def add(source, **options):
    """A change that puts an executed code cell before the section What goes wrong."""

    def change(nb):
        nb.cells.insert(3, new_code_cell(source, **options))
        for count, cell in enumerate((cell for cell in nb.cells if cell.cell_type == "code"), start=1):
            cell.execution_count = count

    return change


def add_text(source):
    """A change that puts a Markdown cell before the section What goes wrong."""
    return lambda nb: nb.cells.insert(3, new_markdown_cell(source))


def add_output(output_type, **content):
    """A change that adds an output to the second code cell."""
    return lambda nb: nb.cells[2].outputs.append(new_output(output_type, **content))


def on_cell(number, **changes):
    """A change that sets attributes of one cell."""
    return lambda nb: nb.cells[number].update(changes)


IGNORED = "# NBVAL_IGNORE_OUTPUT\nx = 1"
BROKEN = {
    first_code_cell_installs_the_package: [
        lambda nb: nb.cells.pop(1),
        edit("pip install --quiet", "pip install"),
        on_cell(1, metadata={}),
        add("%pip install annotated_transformer"),
    ],
    title_is_followed_by_the_link_to_colab: [
        edit("/sample.ipynb", "/attention.ipynb"),
        edit("google.com/github/", "google.com/github/somebody-"),
        edit("# A sample\n", "A sample\n"),
        add_text("[Open in Colab](https://colab.research.google.com)"),
    ],
    head_table_is_complete: [
        edit("runs in", "takes"),
        edit("| nothing |", "|  |"),
        edit("| 2 minutes", "2 minutes"),
    ],
    headings_have_an_order_without_gaps: [
        edit("### Exercise 1", "#### Exercise 1"),
        edit("## What goes wrong", "### What goes wrong"),
        add_text("# Another title"),
        edit("# A sample", "## A sample"),
    ],
    sections_end_in_order: [
        edit("## What goes wrong", "## Faults"),
        edit("## Sources", "## Literature"),
        lambda nb: nb.cells.append(new_markdown_cell("## More")),
        lambda nb: nb.cells.append(nb.cells.pop(3)),
    ],
    sources_link_to_the_references: [
        edit("references.md#", "notation.md#"),
        edit("## Sources", "## Literature"),
    ],
    three_exercises_have_solutions_that_prove_themselves: [
        edit("Exercise 2", "Exercise 1"),
        edit("<summary>Solution 2", "<summary>Hint 2"),
        edit("assert len([2]) == 1", "len([2])"),
        edit("assert len([2]) == 1", "assert len([2] == 1"),
        lambda nb: nb.cells.pop(-2),
    ],
    no_myst_syntax: [
        add_text("```{note}\nx\n```"),
        add_text(":::{note}\nx\n:::"),
        add_text("see {ref}`x`"),
        add_text("(name)=\n\ntext"),
        add_text("% hidden"),
        add_text("{{ version }}"),
        add_text("[word]{.red}"),
    ],
    no_html_but_folds: [
        add_text("a<br>b"),
        add_text("<img src='x'>"),
        add_text("<!-- hidden -->"),
        add_text("<details open>\n<summary>x</summary>\n\ny\n\n</details>"),
        add_text("<details>\n<summary>x</summary>\ny\n\n</details>"),
        add_text("<details>\n<summary>x</summary>\n\ny\n</details>"),
        add_text("<details>\n<summary>x</summary>\n\ny"),
    ],
    links_lead_somewhere: [
        add_text("[x](missing.ipynb)"),
        add_text("[`x`](missing.md)"),
        add_text("[x](index.md#no-such-heading)"),
        add_text("[x](#no-such-heading)"),
        add_text("[x](/index.md)"),
        add_text("![picture](https://example.org/x.png)"),
    ],
    code_cells_are_short: [add("\n".join(["x = 1"] * 16))],
    nine_of_ten_code_cells_are_compared: [
        add(IGNORED),
        add("x = 1", metadata={"tags": ["nbval-ignore-output"]}),
    ],
    ignored_cells_are_followed_by_asserted_thresholds: [
        add(IGNORED),
        lambda nb: (add("assert x\n" + IGNORED)(nb), add(IGNORED)(nb)),
    ],
    every_code_cell_was_executed: [
        on_cell(2, execution_count=None),
        on_cell(2, execution_count=7),
        on_cell(2, outputs=[]),
        add("show(attention)"),
    ],
    outputs_are_free_of_errors: [
        add_output("error", ename="ValueError", evalue="no", traceback=[]),
        add_output("stream", name="stderr", text="a warning"),
        lambda nb: nb.metadata.update(
            widgets={
                WIDGET_STATE: {
                    "state": {
                        "a": {"state": {"outputs": [new_output("error", ename="E", evalue="", traceback=[])]}}
                    }
                }
            }
        ),
    ],
    nothing_differs_from_machine_to_machine: [
        lambda nb: nb.metadata.update(widgets={}),
        on_cell(2, metadata={"execution": {"iopub.execute_input": "2026-01-01T00:00:00"}}),
        add_output("stream", name="stdout", text="saved to /home/reader/model"),
        add_output("execute_result", data={"text/plain": "<object object at 0x7f0011223344>"}),
        add_output("display_data", data={"application/vnd.jupyter.widget-view+json": {"model_id": "a"}}),
        add("%timeit sum(range(9))"),
        add("start = time.perf_counter()"),
    ],
    images_have_alternative_text: [
        add_output("display_data", data={"image/png": "aGVsbG8=", "text/plain": "<Figure size 640x480>"}),
        add_output(
            "display_data",
            data={"image/png": "aGVsbG8=", "text/plain": "another text of four words"},
            metadata={"image/png": {"alt": "a text of four words"}},
        ),
        add_output("display_data", data={"image/svg+xml": "<svg/>"}),
    ],
    hidden_cells_are_hidden_everywhere: [
        on_cell(2, metadata={"tags": ["hide-input"]}),
        on_cell(2, metadata={"jupyter": {"source_hidden": True}}),
        edit("#@title Draws", "# Draws"),
    ],
    one_seed_is_set_once: [add("seed_everything(0)\nseed_everything(1)"), add("torch.manual_seed(0)")],
    nothing_of_the_package_is_defined_again: [
        add("def causal_mask(length):\n    return 1"),
        add("class Embeddings:\n    pass"),
        add("def f(:"),
    ],
    markdown_cells_are_short: [add_text("word " * 201)],
    the_file_is_as_the_runner_writes_it: [add("x = '" + "y" * BYTES + "'")],
}


def test_a_good_sample_keeps_every_law(monkeypatch):
    monkeypatch.setitem(globals(), "targets", lambda path: {"vaswani-2017"})
    nb = sample()
    assert {law.__name__: law(nb, "sample") for law in LAWS} == {law.__name__: [] for law in LAWS}


def test_every_law_has_a_sample_that_breaks_it():
    assert set(BROKEN) == set(LAWS)


@pytest.mark.parametrize(
    "law, change",
    [pytest.param(law, change, id=law.__name__) for law, changes in BROKEN.items() for change in changes],
)
def test_a_broken_sample_is_reported(law, change):
    nb = sample()
    before = law(copy.deepcopy(nb), "sample")
    change(nb)
    assert set(law(nb, "sample")) - set(before)


def test_ignored_cells_are_allowed_once_in_ten_when_asserted_thresholds_follow():
    nb = sample()
    for _ in range(6):
        add("y = 1")(nb)
    add("assert x < 2")(nb)
    add(IGNORED)(nb)
    assert nine_of_ten_code_cells_are_compared(nb, "sample") == []
    assert ignored_cells_are_followed_by_asserted_thresholds(nb, "sample") == []


def test_a_file_with_other_spaces_than_the_runners_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "book" / "sample.ipynb"
    path.parent.mkdir()
    nb = sample()
    for text, faults in ((dumps(nb), 0), (dumps(nb).replace("\n ", "\n  "), 1)):
        path.write_text(text, encoding="utf-8")
        assert len(the_file_is_as_the_runner_writes_it(nb, "sample")) == faults


def test_anchors_of_pages_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `name`, and more\n\n(other)=\n\n```\n# code\n```\n", encoding="utf-8")
    assert targets(page) == {"a-name-and-more", "other"}
    book = Path(tmp_path / "page.ipynb")
    book.write_text(dumps(sample()), encoding="utf-8")
    assert {"a-sample", "sources", "exercise-1-count"} <= targets(book)
