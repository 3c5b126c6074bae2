"""What all interactive figures share: an HTML fragment that holds everything it needs.

The fragment has a static fallback, the data as JSON, one style sheet and one inline ES module, so it works in
Jupyter, in Colab, in the built book and from a file, with the network cut; with scripting off the fallback
stays. It is the same on every machine: data is rounded, and the identifier is a hash of the content.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
IMPORT = re.compile(r'^import\s[^;]*?from\s+"\./([\w.]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class)\b)", re.MULTILINE)


class Interactive:
    """An interactive figure: shown by a notebook as the value of a cell's last expression.

    Args:
        name: the ES module `<name>.js` of this folder, which exports `render`.
        data: what it draws, as JSON takes it; call `rounded` on computed numbers first.
        labels: every text of the figure by name; "title" and "caption" are shown by all figures.
        fallback: HTML that shows the figure's first state without scripting, from the same data.

    Raises:
        FileNotFoundError: when there is no such module.
        ValueError: when title or caption is missing, or a number is not finite.
    """

    def __init__(self, name: str, data: Mapping[str, Any], labels: Mapping[str, str], fallback: str):
        missing = {"title", "caption"} - labels.keys()
        if missing:
            raise ValueError(f"labels must have a {' and a '.join(sorted(missing))}")
        self.name, self.labels, self.fallback = name, dict(labels), fallback
        self.script = bundle(name)
        try:
            state = {"data": data, "labels": self.labels}
            self.json = json.dumps(
                state, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
            )
        except ValueError as error:
            raise ValueError(f"data of the figure {name} must be finite numbers and texts: {error}") from None
        content = "\0".join([name, self.json, fallback, self.script])
        self.identifier = hashlib.sha256(content.encode()).hexdigest()[:12]

    def html(self) -> str:
        """The fragment: style, title, room for controls, drawing, status, caption, data, module."""
        title, caption = escape(self.labels["title"]), escape(self.labels["caption"])
        data = self.json.replace("<", "\\u003c")  # no text can end the script element
        return (
            f"<style>{style()}</style>\n"
            f'<figure class="at-figure" data-at="{self.identifier}" data-at-name="{self.name}">\n'
            f'<p class="at-title">{title}</p>\n'
            '<div class="at-controls" hidden></div>\n'
            f'<div class="at-drawing">\n{self.fallback}\n</div>\n'
            '<p class="at-status" role="status"></p>\n'
            f"<figcaption>{caption}</figcaption>\n"
            f'<script type="application/json">{data}</script>\n'
            "</figure>\n"
            f'<script type="module">\n{self.script}\nmountAll("{self.identifier}", render);\n</script>'
        )

    def page(self, theme: str = "light", copies: int = 1) -> str:
        """A whole HTML document with the figure, for a file of its own."""
        figures = "\n".join([self.html()] * copies)
        return (
            f'<!DOCTYPE html>\n<html lang="en" data-theme="{theme}"><head><meta charset="utf-8">'
            f"<title>{escape(self.labels['title'])}</title>"
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            "<style>body { margin: 1em; } "
            "html[data-theme='dark'] { background: #121212; color: #FFFFFF; }</style>"
            f"</head><body><main><h1>{escape(self.labels['title'])}</h1>\n{figures}\n</main></body></html>\n"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        plain = f"Interactive figure: {self.labels['title']}. {self.labels['caption']}"
        return {"text/plain": plain, "text/html": self.html()}


@lru_cache
def style() -> str:
    """The style sheet of all figures, without comments and indentation."""
    text = re.sub(r"/\*.*?\*/", "", (FOLDER / "figure.css").read_text(encoding="utf-8"), flags=re.DOTALL)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


@lru_cache
def bundle(name: str) -> str:
    """Join a figure's module and the modules that it imports into one script without imports."""
    parts: dict[str, str] = {}

    def add(file: str) -> None:
        source = (FOLDER / file).read_text(encoding="utf-8")
        for imported in IMPORT.findall(source):
            if imported not in parts:
                add(imported)
        parts[file] = EXPORT.sub("", IMPORT.sub("", source)).strip()

    add(f"{name}.js")
    return "\n\n".join(parts.values())


def texts(defaults: Mapping[str, str], labels: Mapping[str, str] | None) -> dict[str, str]:
    """Replace some of a figure's texts, as a translation does.

    Raises:
        ValueError: when a name is not among the figure's texts, or a placeholder differs.
    """
    labels = labels or {}
    unknown = sorted(labels.keys() - defaults.keys())
    if unknown:
        raise ValueError(f"labels ({', '.join(unknown)}) must be among {', '.join(sorted(defaults))}")
    for name, text in labels.items():
        wanted, got = (set(re.findall(r"{(\w+)}", each)) for each in (defaults[name], text))
        if not got <= wanted:
            raise ValueError(f"labels[{name!r}] must use placeholders of {sorted(wanted)}, got {sorted(got)}")
    return {**defaults, **labels}


def rounded(values: Any, digits: int = 4) -> Any:
    """Round numbers to `digits` significant digits, through lists, tuples, dicts and tensors.

    Raises:
        ValueError: when a number is not finite.
    """
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, Mapping):
        return {name: rounded(value, digits) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [rounded(value, digits) for value in values]
    if not isinstance(values, float):
        return values
    if not math.isfinite(values):
        raise ValueError(f"values ({values}) must be finite")
    return float(f"{values:.{digits}g}") + 0.0  # -0.0 and 0.0 would differ between machines


def table(
    values: Sequence[Sequence[float | str]],
    rows: Sequence[str],
    columns: Sequence[str],
    corner: str = "",
    digits: int = 2,
) -> str:
    """A plain table as a figure's fallback: numbers with `digits` decimals, texts as they are."""

    def cell(value: float | str) -> str:
        return escape(value) if isinstance(value, str) else f"{value:.{digits}f}"

    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th>' + "".join(f"<td>{cell(v)}</td>" for v in line) + "</tr>"
        for name, line in zip(rows, values, strict=True)
    )
    return (
        f'<div class="at-scroll" tabindex="0"><table class="at-fallback">\n'
        f"<thead><tr><td>{escape(corner)}</td>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )
