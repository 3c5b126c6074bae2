"""Results of the benchmarks, as they were measured: JSON files beside this module, written by `benchmarks/`.

Times differ from machine to machine, so chapters never measure them. They plot these files, which name the
machine, the versions and the date.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent / "results"


def load_results(name: str) -> dict[str, Any]:
    """Return the saved results of a benchmark: its rows, and the machine they were measured on.

    Raises:
        FileNotFoundError: when there are none of that name.
    """
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.json"))) or "none"
        raise FileNotFoundError(f"name ({name!r}) must be a saved benchmark, got one not among: {known}")
    return json.loads(path.read_text(encoding="utf-8"))


def save_results(name: str, rows: list[dict[str, Any]], folder: Path = FOLDER) -> Path:
    """Write the rows of a benchmark with the machine, the versions and the date, and return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    result = {"machine": describe_machine(), "rows": rows}
    path.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return path


def describe_machine() -> dict[str, str | int]:
    """Name what a measured time depends on: processor, cores, threads, versions, date."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
