"""The interactive figures of the package, found by name: a module with an ES module beside it is a figure."""

from __future__ import annotations

import importlib

from annotated_transformer.interactive.base import FOLDER, Interactive

MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.with_suffix(".js").exists())


def maker(name: str):
    """The function that makes a figure: it has the name of its module."""
    return getattr(importlib.import_module(f"annotated_transformer.interactive.{name}"), name)


def example(name: str) -> Interactive:
    """The figure as it stands in the book, with its defaults."""
    return maker(name)()
