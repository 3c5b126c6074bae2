"""Runs chapters as Colab does: alone in an empty folder, in an environment that lacks the package.

    python tools/colab_check.py                        # the first chapter of each part
    python tools/colab_check.py book/attention.ipynb   # only the named ones
    python tools/colab_check.py --all                  # every chapter

The first code cell must install the package from the address that it names. git is told to fetch that address
from this repository instead (`insteadOf`), so what is installed is the last commit. Everything else that the
chapter needs is lent by the environment that runs this program, as Colab brings its own torch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.notebook_source import chapters, config, parts  # noqa: E402

PACKAGE = "annotated_transformer"
LAST_LINES = 15
EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
nb = nbformat.read(sys.argv[1], as_version=4)
try:
    NotebookClient(nb, timeout=600, kernel_name="python3").execute()
except CellExecutionError as error:
    texts = [output.get("text", "") for cell in nb.cells for output in cell.get("outputs", [])]
    sys.exit("".join(texts) + f"{error.ename}: {error.evalue}")
"""
LOCATE = f"""
import importlib.util
spec = importlib.util.find_spec("{PACKAGE}")
print(spec.origin if spec else "")
"""


class CheckFailed(Exception):
    """Why a chapter did not run as on Colab."""


class FreshEnvironment:
    """A virtual environment that sees the packages of the running one, except this project's.

    Args:
        folder: where it is built.
        address: the address that git is told to replace.
        repository: what git fetches instead.
    """

    def __init__(self, folder: Path, address: str, repository: Path = ROOT):
        self.folder = folder.resolve()
        venv.create(self.folder, with_pip=False, symlinks=True)
        self.python = self.folder / "bin" / "python"
        self.variables = self._variables(address, repository)
        self._borrow_packages()
        self._register_kernel()

    def _variables(self, address: str, repository: Path) -> dict[str, str]:
        """This process's variables without its imports, and with git's replacement of the address."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "JUPYTER_PATH")}
        settings = {f"url.{repository.as_uri()}.insteadOf": address, "safe.directory": "*"}
        start = int(kept.get("GIT_CONFIG_COUNT", 0))
        for number, (key, value) in enumerate(settings.items(), start=start):
            kept |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return kept | {
            "GIT_CONFIG_COUNT": str(start + len(settings)),
            "JUPYTER_PREFER_ENV_PATH": "1",
            "PATH": os.pathsep.join([str(self.folder / "bin"), kept.get("PATH", "")]),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONNOUSERSITE": "1",
            "VIRTUAL_ENV": str(self.folder),
        }

    def _borrow_packages(self) -> None:
        """Links the installed packages into a folder of the environment's import path, without ours."""
        lent = self.folder / "lent"
        lent.mkdir()
        for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for entry in Path(site).iterdir():
                ours = entry.name.startswith((PACKAGE, "__editable__")) or entry.suffix == ".pth"
                if not ours and not (lent / entry.name).exists():
                    (lent / entry.name).symlink_to(entry)
        (self.site / "lent.pth").write_text(f"{lent}\n", encoding="utf-8")

    def _register_kernel(self) -> None:
        """Makes this environment's interpreter the kernel that notebooks get."""
        kernel = self.folder / "share" / "jupyter" / "kernels" / "python3"
        kernel.mkdir(parents=True)
        command = [
            str(self.python),
            "-m",
            "ipykernel_launcher",
            "--log-level=ERROR",
            "-f",
            "{connection_file}",
        ]
        specification = {"argv": command, "display_name": "Python 3", "language": "python"}
        (kernel / "kernel.json").write_text(json.dumps(specification), encoding="utf-8")

    @property
    def site(self) -> Path:
        """The folder into which pip installs."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / version / "site-packages"

    def run(self, code: str, folder: Path, *arguments: str) -> str:
        """Runs Python code in the environment and returns what it prints.

        Raises:
            CheckFailed: when the code fails, with the last lines of what it wrote.
        """
        command = [str(self.python), "-c", code, *arguments]
        done = subprocess.run(command, cwd=folder, env=self.variables, capture_output=True, text=True)
        if done.returncode:
            raise CheckFailed("\n".join((done.stdout + done.stderr).strip().split("\n")[-LAST_LINES:]))
        return done.stdout.strip()


def check(notebook: Path, address: str, repository: Path = ROOT) -> Path:
    """Runs one notebook as Colab does and returns where its first cell installed the package.

    Raises:
        CheckFailed: when the package is there before or missing after, or when a cell fails.
    """
    with tempfile.TemporaryDirectory(prefix="colab-") as scratch:
        fresh = FreshEnvironment(Path(scratch) / "env", address, repository)
        content = Path(scratch) / "content"
        content.mkdir()
        before = fresh.run(LOCATE, content)
        if before:
            raise CheckFailed(f"the package is there before the first cell ran: {before}")
        shutil.copy(notebook, content)
        fresh.run(EXECUTE, content, notebook.name)
        after = fresh.run(LOCATE, content)
        if not after or fresh.site not in Path(after).parents:
            raise CheckFailed(f"the first cell did not install the package: {after or 'nothing'} is found")
        return Path(after).relative_to(scratch)


def first_of_each_part() -> list[Path]:
    """The first chapter of each part that has chapters."""
    found = {path.stem: path for path in chapters()}
    lists = [[found[slug] for slug in slugs if slug in found] for slugs in parts().values()]
    return [paths[0] for paths in lists if paths]


def main(arguments: list[str] | None = None) -> int:
    """Checks the chosen chapters; returns 1 when one of them failed."""
    parser = argparse.ArgumentParser(description="Runs chapters in an empty folder and a fresh environment.")
    parser.add_argument(
        "notebooks", nargs="*", type=Path, help="what to run; without a name, one of each part"
    )
    parser.add_argument("--all", action="store_true", help="run every chapter")
    options = parser.parse_args(arguments)
    paths = options.notebooks or (chapters() if options.all else first_of_each_part())
    missing = [str(path) for path in paths if not path.is_file()]
    if missing or not paths:
        parser.error(f"notebooks ({', '.join(missing) or 'none'}) must exist")
    address = config()["repository"]["url"]
    failed = []
    for number, path in enumerate(paths, start=1):
        print(f"[{number}/{len(paths)}] {path.name} … ", end="", flush=True)
        start = time.perf_counter()
        try:
            place = check(path, address)
        except CheckFailed as error:
            failed.append(path.name)
            print(f"failed\n{error}", flush=True)
        else:
            print(f"{time.perf_counter() - start:.1f} s, installed as {place}", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
