"""What Colab installs: a wheel built from the repository holds all of the package and nothing beside it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "annotated_transformer"
# Kinds of file that chapters add in time: one of each is planted, so that they are tested from the start.
PLANTED = ("checkpoints/planted.safetensors", "checkpoints/planted.md", "interactive/planted.js")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built without network from a copy of what a clone holds."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    for name in ("book", "tests", "tools"):  # they lie beside the package in a clone and must stay out
        (source / name).mkdir()
        (source / name / "__init__.py").touch()
    shutil.copytree(ROOT / PACKAGE, source / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    for name in PLANTED:
        path = source / PACKAGE / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("planted")
    command = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", target, source]
    done = subprocess.run([sys.executable, "-m", "pip", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(target.glob("*.whl"))


def test_the_wheel_holds_every_file_of_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = [path for path in (ROOT / PACKAGE).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    planted = {f"{PACKAGE}/{name}" for name in PLANTED}
    assert names == {path.relative_to(ROOT).as_posix() for path in files} | planted


def test_the_wheel_names_its_licences_and_its_python(wheel):
    with zipfile.ZipFile(wheel) as archive:
        info = next(name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name)
        metadata = archive.read(f"{info}/METADATA").decode()
        licence = archive.read(f"{info}/licenses/LICENSE").decode()
    assert "License-Expression: MIT AND CC-BY-4.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert "the MIT License" in licence and "CC BY 4.0" in licence


def test_the_installed_package_works_from_any_folder(wheel, tmp_path):
    install = ["install", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel]
    done = subprocess.run([sys.executable, "-m", "pip", *install], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path / "site")!r})
from importlib.resources import files
import {PACKAGE}
{PACKAGE}.make_model(7, 11, num_layers=1, d_model=8, d_ff=13, num_heads=2)
print({PACKAGE}.__file__)
print(files({PACKAGE!r}).joinpath("checkpoints", "planted.md").read_text())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(tmp_path / "site" / PACKAGE / "__init__.py"), "planted"]
