"""What notebooks need of the package: its source to read, and the errors that an executed notebook holds."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from typing import Any

PACKAGE = __name__.partition(".")[0]
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"


class Source:
    """The source of a function, class or method of this package, as text and as a Markdown fence.

    Raises:
        TypeError: when the object is not a function, class or method of this package.
    """

    def __init__(self, obj: Any):
        function = inspect.unwrap(getattr(obj, "__func__", obj)) if callable(obj) else obj
        module = getattr(function, "__module__", None) or ""
        ours = module.partition(".")[0] == PACKAGE and (
            inspect.isfunction(function) or inspect.isclass(function)
        )
        if not ours:
            kind = describe(obj)
            raise TypeError(f"obj ({obj!r:.60}) must be a function, class or method of {PACKAGE}, got {kind}")
        self.path = module.replace(".", "/") + ".py"
        self.code = textwrap.dedent(inspect.getsource(function)).rstrip()

    def __repr__(self) -> str:
        return f"# {self.path}\n{self.code}"

    def markdown(self) -> str:
        """A line that names the file, then the code in a fence longer than any inside it."""
        longest = max((len(ticks) for ticks in re.findall(r"`{3,}", self.code)), default=2)
        fence = "`" * (longest + 1)
        return f"`{self.path}`\n\n{fence}python\n{self.code}\n{fence}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/markdown": self.markdown()}


def describe(obj: Any) -> str:
    """Names the kind of an object, and the module of a class or function from elsewhere."""
    if inspect.isclass(obj) or inspect.isroutine(obj):
        return f"{obj.__qualname__} of {obj.__module__}"
    return type(obj).__name__


def show(obj: Any) -> None:
    """Shows the package's own source of a function, class or method in the notebook.

    Args:
        obj: a function, class or method of this package.

    Raises:
        TypeError: when the object is not a function, class or method of this package.
    """
    from IPython.display import display

    display(Source(obj))


def notebook_errors(nb: Mapping[str, Any]) -> list[str]:
    """Lists the errors that an executed notebook holds, in its cells and in the saved state of its widgets.

    An exception inside a widget's callback leaves the cell green: it is kept only as an output of an Output
    widget. Cells with the tag raises-exception are meant to fail, so their errors do not count.

    Args:
        nb: a notebook as nbformat or json reads it.

    Returns:
        One line for each error; an empty list for a notebook without errors.

    Raises:
        TypeError: when nb is not a notebook.
    """
    if not isinstance(nb, Mapping) or "cells" not in nb:
        raise TypeError(f"nb ({nb!r:.60}) must be a notebook, a mapping with cells, got {type(nb).__name__}")
    errors = []
    for number, cell in enumerate(nb["cells"], start=1):
        if "raises-exception" not in cell.get("metadata", {}).get("tags", []):
            errors += [f"cell {number}: {line}" for line in error_lines(cell.get("outputs", []))]
    widgets = nb.get("metadata", {}).get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    for model in widgets.values():
        name = model.get("model_name", "widget")
        errors += [f"{name}: {line}" for line in error_lines(model.get("state", {}).get("outputs", []))]
    return errors


def error_lines(outputs: list[Mapping[str, Any]]) -> list[str]:
    """The exceptions among the outputs of a cell or of an Output widget, each as its type and message."""
    return [f"{o['ename']}: {o['evalue']}" for o in outputs if o.get("output_type") == "error"]
