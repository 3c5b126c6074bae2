"""The runner writes the same bytes twice and reports what failed; nbval runs the folded solutions too."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import nbformat
import pytest
from nbclient.output_widget import OutputWidget
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import run_notebooks
from tools.notebook_source import KERNEL, ROOT, chapters, dumps

SOLUTION = "<details>\n<summary>Solution</summary>\n\n```python\n{}\n```\n\n</details>"
EVERYTHING = [
    new_markdown_cell(SOLUTION.format("answer = x + 1\nassert answer == 4")),
    new_code_cell("import annotated_transformer.notebook as module\nmodule.__file__.split('/')[-2:]"),
    new_code_cell(
        "x = 3\nprint(x, flush=True)\nprint('twice')\nobject()", metadata={"execution": {"old": "2020"}}
    ),
    new_code_cell("1 / 0", metadata={"tags": ["raises-exception"], "collapsed": False}),
    new_code_cell("import ipywidgets\nipywidgets.interact(lambda k: print(k), k=(1, 5));"),
    new_code_cell("assert 'answer' not in globals()\nx = 3;"),
]


def write(path, cells):
    """Writes a notebook and returns its path."""
    path.write_text(dumps(new_notebook(cells=cells)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A notebook with everything that differs from run to run, executed once."""
    path = write(tmp_path_factory.mktemp("book") / "everything.ipynb", EVERYTHING)
    assert run_notebooks.main([str(path)]) == 0
    return path


def test_a_second_run_changes_no_byte_and_does_not_touch_the_file(executed, capsys):
    before, stamp = executed.read_bytes(), executed.stat().st_mtime_ns
    assert run_notebooks.main([str(executed)]) == 0
    assert executed.read_bytes() == before and executed.stat().st_mtime_ns == stamp
    assert capsys.readouterr().out.startswith("[1/1] everything.ipynb … ")


def test_what_differs_from_run_to_run_is_removed(executed):
    nb = nbformat.read(executed, as_version=4)
    assert nb.metadata == KERNEL
    imported, stream, error, widget, quiet = nb.cells[1:]
    assert imported.outputs[0].data["text/plain"] == "['annotated_transformer', 'notebook.py']"
    assert [output.get("text") for output in stream.outputs] == ["3\ntwice\n", None]
    assert stream.outputs[1].data == {"text/plain": "<object at 0x0>"} and stream.metadata == {}
    assert error.outputs[0].traceback == ["ZeroDivisionError: division by zero"]
    assert error.metadata == {"tags": ["raises-exception"]}
    assert list(widget.outputs[0].data) == ["text/plain"] and quiet.outputs == []
    assert [cell.execution_count for cell in nb.cells[1:]] == [1, 2, 3, 4, 5]


def test_addresses_are_hidden_and_other_hexadecimal_numbers_are_kept():
    text = "<function f at 0x7f5e1c2b9d30> 0x12345678 at 0x12"
    assert run_notebooks.hide_addresses(text) == "<function f at 0x0> 0x12345678 at 0x12"


@pytest.mark.parametrize(
    "cells, words",
    [
        ([new_code_cell("x = 1"), new_code_cell("1 / 0")], "cell 2: ZeroDivisionError: division by zero"),
        (
            [
                new_code_cell("import ipywidgets"),
                new_code_cell("def f(k):\n    raise ValueError(k)\nipywidgets.interact(f, k=(1, 5));"),
            ],
            "OutputModel: ValueError: 3",
        ),
        (
            [new_markdown_cell(SOLUTION.format(code)) for code in ("assert True", "assert x == 2, 'two'")]
            + [new_code_cell("x = 1")],
            "solution 2: AssertionError: two",
        ),
        ([new_code_cell("import os\nos._exit(1)")], "Kernel died"),
    ],
    ids=["cell", "widget", "solution", "kernel"],
)
def test_a_failure_is_reported_and_the_file_left_as_it_was(tmp_path, capsys, cells, words):
    path = write(tmp_path / "broken.ipynb", cells)
    before = path.read_bytes()
    assert run_notebooks.main([str(path)]) == 1
    assert path.read_bytes() == before
    out = capsys.readouterr().out
    assert words in out and out.endswith("failed: broken.ipynb\n")


def test_an_answer_that_comes_while_a_widget_is_told_something_is_not_lost(monkeypatch):
    """A message that arrives just before another is sent on its socket announces itself to nobody."""
    send = OutputWidget.send

    def late(widget, *args, **kwargs):
        time.sleep(0.5)  # the answer of the cell arrives meanwhile
        send(widget, *args, **kwargs)

    monkeypatch.setattr(OutputWidget, "send", late)
    body = "import ipywidgets\nfor k in range(6):\n    with ipywidgets.Output(): print(k)"
    nb = new_notebook(cells=[new_code_cell(body)])
    began = time.monotonic()
    run_notebooks.attentive_client(nb, 120).execute()
    assert time.monotonic() - began < 100


def test_a_cell_that_takes_too_long_fails(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run_notebooks, "CELL_TIMEOUT", 1)
    path = write(tmp_path / "slow.ipynb", [new_code_cell("import time\ntime.sleep(30)")])
    assert run_notebooks.main([str(path)]) == 1
    assert "timed out" in capsys.readouterr().out


def test_only_the_named_notebooks_run_and_one_failure_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
    ran = []

    def run(path):
        ran.append(path.name)
        if path.name == "b.ipynb":
            raise run_notebooks.NotebookFailed("cell 1: it broke")
        return 7.0

    monkeypatch.setattr(run_notebooks, "run", run)
    paths = [str(write(tmp_path / f"{name}.ipynb", [new_code_cell("1")])) for name in "abcd"]
    assert run_notebooks.main(paths[:3]) == 1
    assert ran == ["a.ipynb", "b.ipynb", "c.ipynb"]
    out = capsys.readouterr().out
    assert "[2/3] b.ipynb … failed\ncell 1: it broke\n[3/3]" in out and "together 14.0 s of 360 s" in out


def test_without_names_every_chapter_runs_in_the_books_order(capsys, monkeypatch):
    ran = []
    monkeypatch.setattr(run_notebooks, "run", lambda path: ran.append(path) or 1.0)
    assert run_notebooks.main([]) == 0
    assert ran == chapters() and ran


def test_a_notebook_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        run_notebooks.main(["book/no_such_chapter.ipynb"])
    assert "notebooks (book/no_such_chapter.ipynb) must exist" in capsys.readouterr().err


def test_a_notebook_that_trains_has_a_longer_limit(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run_notebooks, "run", lambda path: 75.0)
    cells = {"plain": "x = 1", "trains": "# NBVAL_IGNORE_OUTPUT\nx = 1"}
    paths = [str(write(tmp_path / f"{name}.ipynb", [new_code_cell(code)])) for name, code in cells.items()]
    run_notebooks.main(paths)
    lines = capsys.readouterr().out.split("\n")
    assert "75.0 s of 60 s OVER THE LIMIT" in lines[0] and "75.0 s of 90 s," in lines[1]


def nbval(path):
    """Runs nbval on a notebook elsewhere, with this project's conftest; returns the process."""
    options = [
        "--nbval",
        "--nbval-current-env",
        "--rootdir",
        path.parent,
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-rA", "--color=no", *map(str, options), str(path)]
    return subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True)


def test_nbval_runs_solutions_in_the_chapters_kernel_and_obeys_a_trailing_semicolon(tmp_path):
    three = new_output("execute_result", data={"text/plain": "3"}, execution_count=2)
    cells = [
        new_code_cell("x = 3\nx + 1;", execution_count=1),
        new_markdown_cell(SOLUTION.format("assert x == 3\nx = 4")),
        new_markdown_cell(SOLUTION.format("assert x == 5, 'five'")),
        new_code_cell("x", execution_count=2, outputs=[three]),
    ]
    result = nbval(write(tmp_path / "chapter.ipynb", cells))
    assert "1 failed, 3 passed" in result.stdout, result.stdout
    assert "FAILED chapter.ipynb::Solution 2" in result.stdout and "assert x == 5" in result.stdout
