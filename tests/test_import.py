"""Importing the package costs what importing torch costs, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {
    "IPython",
    "huggingface_hub",
    "ipywidgets",
    "matplotlib",
    "pandas",
    "safetensors",
    "seaborn",
    "tokenizers",
    "transformers",
}
OURS = "annotated_transformer"


def imported(code: str) -> set[str]:
    """The top-level modules that are there after a fresh interpreter has run `code`."""
    report = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", report], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_the_package_imports_nothing_beyond_torch_and_the_standard_library():
    extra = imported(f"import {OURS}") - imported("import torch")
    assert extra - set(sys.stdlib_module_names) == {OURS}


def test_the_core_modules_import_nothing_heavy():
    drawing = {"__init__", "notebook", "plots"}
    core = [f"{OURS}.{path.stem}" for path in (ROOT / OURS).glob("*.py") if path.stem not in drawing]
    core += [f"{OURS}.data.{path.stem}" for path in (ROOT / OURS / "data").glob("*.py")]
    assert f"{OURS}.attention" in core
    assert not imported("import " + ", ".join(core)) & HEAVY


def test_show_is_there_and_is_what_brings_ipython():
    assert "IPython" not in imported(f"from {OURS} import MultiHeadAttention")
    assert "IPython" in imported(f"import {OURS}; {OURS}.show({OURS}.causal_mask)")
