"""Write the README's list of chapters, between its two marks, from `_toc.yml` and the notebooks.

    python tools/chapters.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.notebook_source import colab_line, parts  # noqa: E402

BEGIN = "<!-- chapters: written by tools/chapters.py -->"
END = "<!-- end of chapters -->"
BADGE = "![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)"


def title(path: Path) -> str:
    """The heading of a chapter's notebook."""
    return nbformat.read(path, as_version=4).cells[0].source.partition("\n")[0].removeprefix("# ")


def table() -> str:
    """A table of the chapters that are notebooks, in the book's order, each with its badge for Colab."""
    rows = ["| part | chapter | run it |", "| --- | --- | --- |"]
    for part, slugs in parts().items():
        for slug in slugs:
            path = ROOT / "book" / f"{slug}.ipynb"
            if path.exists():
                badge = colab_line(slug).replace("[Open in Colab]", f"[{BADGE}]")
                rows.append(f"| {part} | [{title(path)}](book/{slug}.ipynb) | {badge} |")
    return "\n".join(rows)


def with_table(text: str) -> str:
    """A README's text with the list brought up to date.

    Raises:
        ValueError: when the text lacks one of the two marks.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"text (README.md) must hold {BEGIN} and, after it, {END}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")
