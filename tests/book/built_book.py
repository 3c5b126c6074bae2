"""Where the built book lies, and which pages it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"


def pages(part: str | None = None) -> list[str]:
    """The pages of _toc.yml, or of one of its parts, as paths below the folder of the built book."""

    def walk(entry: dict) -> Iterator[str]:
        name = entry.get("file") or entry.get("root")
        if name:
            yield f"{name}.html"
        for key in ("parts", "chapters", "sections"):
            for child in entry.get(key, ()):
                yield from walk(child)

    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    entries = [contents] if part is None else [one for one in contents["parts"] if one["caption"] == part]
    return [page for entry in entries for page in walk(entry)]
