"""Lets the notebooks that nbval runs import this checkout, with stable figures, and runs their solutions."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parent
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ.setdefault("SOURCE_DATE_EPOCH", "0")  # dates inside SVG figures
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same sums of floats, one process or many

try:
    from nbval.kernel import RunningKernel
    from nbval.plugin import IPyNbCell, IPyNbFile
except ImportError:  # an environment without nbval still runs the tests of the package
    pass
else:
    import nbformat

    from tools.notebook_source import solutions

    collect_cells = IPyNbFile.collect

    def execute_with_history(self, source, allow_stdin=None):
        """nbval sends cells with store_history=False; IPython then ignores a trailing ";"."""
        return self.kc.execute(source, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)

    def collect_cells_and_solutions(self):
        """After the cells of a notebook, its folded solutions run in the same kernel; they must not raise."""
        count = 0
        for item in collect_cells(self):
            count += 1
            yield item
        for number, code in enumerate(solutions(self.nb), start=1):
            yield IPyNbCell.from_parent(
                self,
                name=f"Solution {number}",
                cell_num=count + number - 1,
                cell=nbformat.v4.new_code_cell(code),
                options={"check": False, "check_exception": False, "skip": False},
            )

    RunningKernel.execute_cell_input = execute_with_history
    IPyNbFile.collect = collect_cells_and_solutions
