"""The interactive figures of the package, found by name: a module with an ES module beside it is a figure."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from annotated_transformer.interactive.base import FOLDER, Interactive

# the node that pip brings, else that of the system
NODE = shutil.which("node", path=str(Path(sys.executable).parent)) or shutil.which("node")
# moves the slider number i of a page to a value: `page.evaluate(MOVE_SLIDER, [i, value])`
MOVE_SLIDER = """([i, value]) => {
  const input = document.querySelectorAll(".at-controls input[type=range]")[i];
  input.value = value;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}"""
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.with_suffix(".js").exists())


def maker(name: str):
    """The function that makes a figure: it has the name of its module."""
    return getattr(importlib.import_module(f"annotated_transformer.interactive.{name}"), name)


def example(name: str) -> Interactive:
    """The figure as it stands in the book, with its defaults."""
    return maker(name)()


def in_node(name: str, expression: str) -> Any:
    """Compute with a figure's own functions, as `module.function(…)`, in node."""
    script = f"import * as module from {json.dumps((FOLDER / f'{name}.js').as_uri())};\n"
    script += f"console.log(JSON.stringify({expression}));"
    command = [NODE, "--input-type=module"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
