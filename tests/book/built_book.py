"""Where the built book lies, and which pages it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"


def pages() -> list[str]:
    """The pages of _toc.yml as paths below the folder of the built book, in reading order."""

    def walk(entry: dict) -> Iterator[str]:
        name = entry.get("file") or entry.get("root")
        if name:
            yield f"{name}.html"
        for key in ("parts", "chapters", "sections"):
            for child in entry.get(key, ()):
                yield from walk(child)

    return list(walk(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))))
