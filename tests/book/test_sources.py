"""Links in the sources work where no book is built: on GitHub, in Jupyter, in Colab."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from built_book import ROOT, pages

BOOK = ROOT / "book"
SOURCES = sorted([*BOOK.glob("*.md"), *BOOK.glob("*.ipynb")])
LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")


def markdown(path: Path) -> str:
    """The Markdown of a page, without its code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"^(```+|~~~+).*?^\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#{1,6} +(.+?) *#*$", markdown(path), re.MULTILINE)}


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Vaswani 2017", "vaswani-2017"),
        ("Masks, and what True means", "masks-and-what-true-means"),
        ("`make_model`", "make_model"),
    ],
)
def test_slugs_are_those_of_github(heading, anchor):
    assert slug(heading) == anchor


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_relative_links_lead_to_files_and_headings(path):
    wrong = []
    for link in LINK.findall(markdown(path)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert not wrong


def test_the_map_on_the_front_page_lists_every_chapter_in_order():
    text = (BOOK / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[[^\]]+\]\((\w+)\.ipynb\) \|", text, re.MULTILINE)
    names = [Path(page).stem for page in pages()]
    assert rows == [name for name in names if (BOOK / f"{name}.ipynb").exists()]


def test_papers_have_one_entry_each():
    headings = re.findall(r"^### (.+)$", (BOOK / "references.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert all(re.fullmatch(r"\w+ (19|20)\d\d", heading) for heading in headings)
