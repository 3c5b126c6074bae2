"""Chapters as readable text: turns a source in percent format into a plain notebook, and back.

    python tools/notebook_source.py chapter.py book/attention.ipynb     # text to notebook
    python tools/notebook_source.py book/attention.ipynb chapter.py     # notebook to text

The text holds what an author writes. What is the same in every chapter is added here: the link to Colab under
the title, the first code cell, the metadata that hides a cell in Jupyter and on Colab too, and the ids of the
cells, hashes of their contents. An existing notebook keeps the outputs of the cells that did not change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
HIDING_TAGS = {"hide-cell", "hide-input", "remove-cell", "remove-input"}
KEPT_METADATA = {"cellView", "jupyter", "mystnb", "tags"}
INSTALL = """\
#@title Installs the package where it is missing
import importlib.util

if importlib.util.find_spec("annotated_transformer") is None:
    %pip install --quiet git+{url}"""


def config() -> dict:
    """The book's configuration, `_config.yml`."""
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))


def parts() -> dict[str, list[str]]:
    """The pages of `_toc.yml` by part, in the book's order, without their folder and without subsections."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return {part["caption"]: [Path(page["file"]).name for page in part["chapters"]] for part in toc["parts"]}


def chapters(root: Path = ROOT) -> list[Path]:
    """The notebooks of the book in the order of `_toc.yml`, then those that it does not list."""
    order = [slug for slugs in parts().values() for slug in slugs]
    found = {path.stem: path for path in sorted((root / "book").glob("*.ipynb"))}
    return [found[slug] for slug in order if slug in found] + [p for s, p in found.items() if s not in order]


def colab_line(slug: str) -> str:
    """The line under a chapter's title that opens it on Colab."""
    repository = config()["repository"]
    path = repository["url"].removeprefix("https://github.com/")
    address = f"https://colab.research.google.com/github/{path}/blob/{repository['branch']}/book/{slug}.ipynb"
    return f"[Open in Colab]({address})"


def first_cell() -> NotebookNode:
    """The code cell that opens every chapter: it installs the package where it is missing."""
    source = INSTALL.format(url=config()["repository"]["url"])
    return nbformat.v4.new_code_cell(source, metadata=hidden({"tags": ["remove-cell"]}))


def hidden(metadata: dict) -> dict:
    """Adds to the book's tag what hides the same cell in Jupyter and on Colab."""
    if HIDING_TAGS & set(metadata.get("tags", [])):
        return {**metadata, "jupyter": {"source_hidden": True}, "cellView": "form"}
    return dict(metadata)


def solutions(nb: NotebookNode) -> list[str]:
    """The Python code inside the folded solutions of a notebook, one string a solution, in order."""
    text = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    folds = re.findall(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", text, re.DOTALL)
    bodies = [body for title, body in folds if title.strip().startswith("Solution")]
    blocks = [re.findall(r"^```python\n(.*?)^```", body, re.DOTALL | re.MULTILINE) for body in bodies]
    return ["\n".join(block) for block in blocks if block]


def set_ids(nb: NotebookNode) -> None:
    """Gives each cell an id made from its content, so that the same notebook always has the same ids."""
    seen: dict[str, int] = {}
    for cell in nb.cells:
        content = f"{cell.cell_type}\n{cell.source}"
        seen[content] = seen.get(content, 0) + 1
        cell.id = hashlib.sha256(f"{seen[content]}\n{content}".encode()).hexdigest()[:8]


def to_notebook(text: str, slug: str, old: NotebookNode | None = None) -> NotebookNode:
    """Builds the notebook of a chapter from its text; unchanged cells take their outputs from `old`."""
    import jupytext

    nb = jupytext.reads(text, fmt="py:percent")
    if not nb.cells or nb.cells[0].cell_type != "markdown" or not nb.cells[0].source.startswith("# "):
        raise ValueError(f"{slug} (text) must begin with a markdown cell whose first line is the title, # …")
    title, _, rest = nb.cells[0].source.partition("\n")
    nb.cells[0].source = f"{title}\n\n{colab_line(slug)}\n{rest}".rstrip()
    nb.cells.insert(1, first_cell())
    result = nbformat.v4.new_notebook(cells=nb.cells, metadata=KERNEL)
    for notebook in filter(None, (result, old)):
        set_ids(notebook)
    before = {cell.id: cell for cell in old.cells} if old else {}
    for cell in result.cells:
        kept = {key: value for key, value in cell.metadata.items() if key in KEPT_METADATA}
        cell.metadata = nbformat.from_dict(hidden(kept))
        if cell.cell_type == "code" and cell.id in before:
            same = before[cell.id]
            cell.outputs, cell.execution_count = same.outputs, same.execution_count
    return result


def to_text(nb: NotebookNode) -> str:
    """The text of a chapter's notebook, without the parts that `to_notebook` adds."""
    import jupytext

    first = first_cell().source
    cells = [nbformat.from_dict(cell) for cell in nb.cells if cell.source != first]
    cells[0].source = re.sub(r"\n\n\[Open in Colab\]\([^)]*\)\n?", "\n", cells[0].source, count=1)
    for cell in cells:
        implied = {"cellView", "jupyter"} if HIDING_TAGS & set(cell.metadata.get("tags", [])) else set()
        cell.metadata = nbformat.from_dict(
            {k: v for k, v in cell.metadata.items() if k in KEPT_METADATA - implied}
        )
    options = {"jupytext": {"notebook_metadata_filter": "-all", "cell_metadata_filter": "all"}}
    return jupytext.writes(nbformat.v4.new_notebook(cells=cells, metadata=options), fmt="py:percent")


def dumps(nb: NotebookNode) -> str:
    """The bytes in which notebooks are committed: sorted keys, one space of indentation, plain characters."""
    tree = json.loads(nbformat.writes(nb))
    return json.dumps(tree, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Converts one file into the other; the names say which is the notebook."""
    parser = argparse.ArgumentParser(
        description="Turns a chapter's text (.py) into a notebook (.ipynb), or back."
    )
    parser.add_argument("source", type=Path, help="the file to read")
    parser.add_argument("target", type=Path, help="the file to write; one of the two ends in .ipynb")
    options = parser.parse_args(arguments)
    if {options.source.suffix, options.target.suffix} != {".py", ".ipynb"}:
        parser.error(f"{options.source} and {options.target} must be one .py and one .ipynb")
    if options.target.suffix == ".py":
        options.target.write_text(to_text(nbformat.read(options.source, as_version=4)), encoding="utf-8")
        return 0
    old = nbformat.read(options.target, as_version=4) if options.target.exists() else None
    nb = to_notebook(options.source.read_text(encoding="utf-8"), options.target.stem, old)
    options.target.write_text(dumps(nb), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
