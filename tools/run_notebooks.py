"""Executes the book's notebooks in place, so that a second run changes no byte.

    python tools/run_notebooks.py                        # every chapter, in the order of the book
    python tools/run_notebooks.py book/attention.ipynb   # only the named ones

A notebook is written only when its cells, its widgets' callbacks and its folded solutions raised nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from queue import Empty

import nbformat
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from traitlets import Type

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from annotated_transformer.notebook import notebook_errors  # noqa: E402
from tools.notebook_source import KEPT_METADATA, KERNEL, chapters, dumps, solutions  # noqa: E402

CELL_TIMEOUT = 600
SECONDS, SECONDS_TRAINING, SECONDS_TOGETHER = 60, 90, 360
VIEW = "application/vnd.jupyter.widget-view+json"


class NotebookFailed(Exception):
    """The errors of one notebook, a line each."""


class AttentiveChannel(AsyncZMQSocketChannel):
    """A channel that looks once a second whether a message is there, and does not only wait to be woken.

    Sending on a socket can use up the event that announces what has just arrived there. With widgets both
    happen at once, and the answer of a cell would lie unread until the time limit.
    """

    async def get_msg(self, timeout: float | None = None) -> dict:
        """Returns the next message; raises `queue.Empty` after `timeout` seconds without one."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 1.0 if end is None else end - time.monotonic()
            try:
                return await super().get_msg(max(0.0, min(1.0, left)))
            except Empty:
                if left <= 0:
                    raise


class AttentiveClient(AsyncKernelClient):
    """A client of a kernel whose answers come by an `AttentiveChannel`."""

    shell_channel_class = Type(AttentiveChannel)


class AttentiveManager(AsyncKernelManager):
    """Starts kernels for an `AttentiveClient`."""

    client_factory = Type(AttentiveClient)


def attentive_client(nb: NotebookNode, timeout: int, **options) -> NotebookClient:
    """Prepares the execution of a notebook, with `timeout` seconds for a cell and options of nbclient."""
    return NotebookClient(
        nb,
        timeout=timeout,
        kernel_name="python3",
        kernel_manager_class=AttentiveManager,
        extra_arguments=["--log-level=ERROR"],
        **options,
    )


def environment() -> dict[str, str]:
    """The variables under which a kernel computes the same outputs each time, from this checkout."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    fixed = {"SOURCE_DATE_EPOCH": "0", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **fixed, "PYTHONPATH": path}


def execute(nb: NotebookNode, folder: Path) -> None:
    """Runs all cells in a fresh kernel, and then the folded solutions, which leave no trace.

    Raises:
        NotebookFailed: when a cell, a solution or the callback of a widget raised.
    """
    answers = [nbformat.v4.new_code_cell(code) for code in solutions(nb)]
    trial = nbformat.from_dict({**nb, "cells": [*nb.cells, *answers]})
    client = attentive_client(
        trial,
        CELL_TIMEOUT,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    stopped = []
    try:
        client.execute(env=environment())
    except CellExecutionError:
        pass  # the cell holds the error as an output
    except (CellTimeoutError, DeadKernelError) as error:
        stopped = str(error).strip().split("\n")[:1]
    wrong = notebook_errors({"cells": trial.cells[len(nb.cells) :]})
    nb.cells, nb.metadata = trial.cells[: len(nb.cells)], trial.metadata
    errors = notebook_errors(nb) + [line.replace("cell", "solution", 1) for line in wrong]
    if errors or stopped:
        raise NotebookFailed("\n".join(stopped + errors))


def clean(nb: NotebookNode) -> None:
    """Removes what differs from run to run: counters, widget state, addresses, paths in tracebacks."""
    nb.metadata = nbformat.from_dict(KERNEL)
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    for cell in nb.cells:
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k in KEPT_METADATA})
    for count, cell in enumerate(code, start=1):
        cell.execution_count = count
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
            if output.output_type == "error":
                output.traceback = [f"{output.ename}: {output.evalue}"]
            if output.output_type == "stream":
                output.text = hide_addresses(output.text)
            data = output.get("data", {})
            data.pop(VIEW, None)
            for kind in {"text/plain", "text/html"} & set(data):
                data[kind] = hide_addresses(data[kind])


def hide_addresses(text: str) -> str:
    """Replaces the address in the default representation of an object, <… at 0x7f…>."""
    return re.sub(r" at 0x[0-9a-f]{6,16}\b", " at 0x0", text)


def trains(nb: NotebookNode) -> bool:
    """Whether a notebook trains: only what was just trained has outputs that nbval must ignore."""
    return any("NBVAL_IGNORE_OUTPUT" in cell.source for cell in nb.cells if cell.cell_type == "code")


def run(path: Path) -> float:
    """Executes a notebook in place and returns the seconds it took; one that fails is left as it was."""
    start = time.perf_counter()
    nb = nbformat.read(path, as_version=4)
    execute(nb, path.parent)
    clean(nb)
    text = dumps(nb)
    if text != path.read_text(encoding="utf-8"):
        path.write_text(text, encoding="utf-8")
    return time.perf_counter() - start


def verdict(seconds: float, limit: int) -> str:
    """A time beside its limit, marked when it is over."""
    return f"{seconds:.1f} s of {limit} s" + (" OVER THE LIMIT" if seconds > limit else "")


def main(arguments: list[str] | None = None) -> int:
    """Executes the named notebooks, or all; returns 1 when one of them failed."""
    parser = argparse.ArgumentParser(description="Executes the book's notebooks in place.")
    parser.add_argument("notebooks", nargs="*", type=Path, help="what to execute; without a name, all")
    paths = parser.parse_args(arguments).notebooks or chapters()
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        parser.error(f"notebooks ({', '.join(missing)}) must exist")
    total, failed = 0.0, []
    for number, path in enumerate(paths, start=1):
        print(f"[{number}/{len(paths)}] {path.name} … ", end="", flush=True)
        limit = SECONDS_TRAINING if trains(nbformat.read(path, as_version=4)) else SECONDS
        try:
            seconds = run(path)
        except NotebookFailed as error:
            failed.append(path.name)
            print(f"failed\n{error}", flush=True)
        else:
            total += seconds
            print(f"{verdict(seconds, limit)}, {path.stat().st_size / 1024:.0f} KiB", flush=True)
    print(f"together {verdict(total, SECONDS_TOGETHER)}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
