"""Set the project's address everywhere it stands: book, README, package metadata and notebooks.

    python tools/repository.py https://github.com/OWNER/NAME

The address in `_config.yml` is the one that counts; every other place is brought in line with it. Until it is
set, the owner is `-owner-`, a name that no account can have, so nobody else can publish under it.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.notebook_source import dumps, set_ids  # noqa: E402

HOLDERS = (
    "_config.yml",
    "pyproject.toml",
    "*.md",
    "annotated_transformer/**/*.py",
    "book/**/*.md",
    "book/**/*.html",
    "book/*.ipynb",
)
ADDRESS = re.compile(r"https://github\.com/([A-Za-z0-9_-]+/[A-Za-z0-9._-]+)")
COLAB = "https://colab.research.google.com/github/"


def slug(url: str) -> str:
    """The `OWNER/NAME` of a repository's address on GitHub, which is where Colab reads notebooks from.

    Raises:
        ValueError: when `url` is not such an address.
    """
    match = ADDRESS.fullmatch(url.strip().removesuffix("/").removesuffix(".git"))
    if not match:
        raise ValueError(f"url ({url}) must be https://github.com/OWNER/NAME")
    return match[1]


def current(root: Path = ROOT) -> str:
    """The `OWNER/NAME` that `_config.yml` holds."""
    line = re.search(r"^ *url: *(\S+)$", (root / "_config.yml").read_text(encoding="utf-8"), re.MULTILINE)
    if not line:
        raise ValueError(f"_config.yml ({root}) must hold a line url: https://github.com/OWNER/NAME")
    return slug(line[1])


def holders(root: Path = ROOT) -> list[Path]:
    """The files that may hold the address."""
    return sorted({path for pattern in HOLDERS for path in root.glob(pattern)})


def replace(text: str, old: str, new: str) -> str:
    """Put `new` for `old` in links to GitHub and to Colab; a longer name that begins like `old` stays."""
    prefix = f"https://github.com/|{re.escape(COLAB)}"
    return re.sub(rf"({prefix}){re.escape(old)}(?![\w-]|\.(?!git\b)\w)", rf"\g<1>{new}", text)


def set_address(url: str, root: Path = ROOT) -> list[Path]:
    """Write the new address into every file that holds the old one, and return those files."""
    old, new = current(root), slug(url)
    changed = []
    for path in holders(root):
        before = path.read_text(encoding="utf-8")
        after = replace(before, old, new)
        if after == before:
            continue
        if path.suffix == ".ipynb":  # the ids of its cells are made from their text
            notebook = nbformat.reads(after, as_version=4)
            set_ids(notebook)
            after = dumps(notebook)
        path.write_text(after, encoding="utf-8")
        changed.append(path)
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description="Set the project's address everywhere it stands.")
    parser.add_argument("url", help="https://github.com/OWNER/NAME")
    try:
        changed = set_address(parser.parse_args().url)
    except ValueError as error:
        sys.exit(f"tools/repository.py: {error}; as in make repository URL=https://github.com/OWNER/NAME")
    for path in changed:
        print(path.relative_to(ROOT))
    print(f"{len(changed)} files changed; the address is now https://github.com/{current()}")


if __name__ == "__main__":
    main()
