"""The Colab-like run lends every package but ours, and believes only what the first cell installed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tools import colab_check
from tools.colab_check import LOCATE, CheckFailed, FreshEnvironment, check, main
from tools.notebook_source import chapters, dumps, first_cell, parts

ADDRESS = "https://github.com/-owner-/annotated_transformer"
# A package that builds itself without setuptools, so that nothing is fetched.
BACKEND = """
import pathlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, info = "annotated_transformer-0.0.1-py3-none-any.whl", "annotated_transformer-0.0.1.dist-info"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
        wheel.writestr("annotated_transformer/__init__.py", "answer = 42")
        about = "Metadata-Version: 2.1\\nName: annotated_transformer\\nVersion: 0.0.1\\n"
        wheel.writestr(f"{info}/METADATA", about)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A git repository with a tiny package of our name."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (folder / "backend.py").write_text(BACKEND, encoding="utf-8")
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
    return folder


def write(path, *cells):
    """Writes a notebook and returns its path."""
    path.write_text(dumps(new_notebook(cells=list(cells))), encoding="utf-8")
    return path


def test_a_chapter_runs_alone_with_what_its_first_cell_installed(tmp_path, repository):
    alone = "import os\nassert os.listdir() == ['chapter.ipynb']"
    used = "import annotated_transformer, nbformat\nassert annotated_transformer.answer == 42"
    path = write(tmp_path / "chapter.ipynb", first_cell(), new_code_cell(alone), new_code_cell(used))
    before = path.read_bytes()
    place = check(path, ADDRESS, repository)
    assert place.parts[0] == "env" and place.parts[-3:] == (
        "site-packages",
        "annotated_transformer",
        "__init__.py",
    )
    assert path.read_bytes() == before


def test_a_chapter_that_installs_nothing_fails(tmp_path, repository):
    path = write(tmp_path / "chapter.ipynb", new_code_cell("x = 1"))
    with pytest.raises(CheckFailed, match="the first cell did not install the package: nothing is found"):
        check(path, ADDRESS, repository)


def test_a_chapter_that_brings_the_package_along_another_way_fails(tmp_path, repository):
    smuggle = "import pathlib\npathlib.Path('annotated_transformer').mkdir()\n"
    smuggle += "pathlib.Path('annotated_transformer/__init__.py').touch()"
    path = write(tmp_path / "chapter.ipynb", new_code_cell(smuggle))
    with pytest.raises(CheckFailed, match="did not install the package: .*content/annotated_transformer"):
        check(path, ADDRESS, repository)


def test_a_cell_that_fails_is_named(tmp_path, repository):
    path = write(
        tmp_path / "chapter.ipynb",
        new_code_cell("print('printed before')\nraise ValueError('no such thing')"),
    )
    with pytest.raises(CheckFailed, match="^printed before\nValueError: no such thing$"):
        check(path, ADDRESS, repository)


def test_the_package_of_the_running_environment_is_not_lent(tmp_path, repository, monkeypatch):
    installed = tmp_path / "installed"
    for name in ("annotated_transformer", "annotated_transformer-0.1.0.dist-info", "other"):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").touch()
    for name in (
        "__editable__.annotated_transformer-0.1.0.pth",
        "__editable___finder.py",
        "more.pth",
        "single.py",
    ):
        (installed / name).touch()
    real = sysconfig.get_path
    monkeypatch.setattr(
        sysconfig, "get_path", lambda *args, **named: real(*args, **named) if named else str(installed)
    )
    monkeypatch.setenv("PYTHONPATH", str(installed))
    fresh = FreshEnvironment(tmp_path / "env", ADDRESS, repository)
    assert sorted(path.name for path in (tmp_path / "env" / "lent").iterdir()) == ["other", "single.py"]
    assert fresh.run(LOCATE, tmp_path) == ""
    assert fresh.run("import other, single, sys; print(sys.prefix)", tmp_path) == str(tmp_path / "env")


def test_a_package_that_is_there_before_the_first_cell_fails(tmp_path, repository, monkeypatch):
    borrow = FreshEnvironment._borrow_packages

    def leak(self):
        borrow(self)
        (self.site / "annotated_transformer.py").touch()

    monkeypatch.setattr(FreshEnvironment, "_borrow_packages", leak)
    with pytest.raises(
        CheckFailed, match="the package is there before the first cell ran: .*annotated_transformer.py"
    ):
        check(write(tmp_path / "chapter.ipynb", first_cell()), ADDRESS, repository)


def test_git_settings_that_are_there_already_are_kept(tmp_path, repository, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "user.name")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "Somebody")
    fresh = FreshEnvironment(tmp_path / "env", ADDRESS, repository)
    ask = "import subprocess; print(subprocess.check_output(['git', 'config', '--get', '{}'], text=True))"
    assert fresh.run(ask.format("user.name"), tmp_path) == "Somebody"
    assert fresh.run(ask.format(f"url.{repository.as_uri()}.insteadOf"), tmp_path) == ADDRESS


@pytest.fixture
def checked(monkeypatch):
    """The notebooks that main checks, without running them; those called broken fail."""
    seen = []

    def record(path, address):
        seen.append(path)
        if path.stem == "broken":
            raise CheckFailed("it broke")
        return Path("env")

    monkeypatch.setattr(colab_check, "check", record)
    return seen


def test_without_names_the_first_chapter_of_each_part_is_checked(checked):
    assert main([]) == 0
    stems = [path.stem for path in chapters()]
    firsts = [[slug for slug in slugs if slug in stems][:1] for slugs in parts().values()]
    assert [path.stem for path in checked] == sum(firsts, [])
    assert len(checked) >= 2


def test_all_chapters_are_checked_when_asked(checked):
    assert main(["--all"]) == 0
    assert checked == chapters() and checked


def test_a_failure_is_reported_and_the_others_are_still_checked(tmp_path, checked, capsys):
    paths = [write(tmp_path / f"{name}.ipynb") for name in ("broken", "whole")]
    assert main([str(path) for path in paths]) == 1
    out = capsys.readouterr().out
    assert (
        checked == paths
        and "broken.ipynb … failed\nit broke\n" in out
        and out.endswith("failed: broken.ipynb\n")
    )


def test_a_notebook_that_does_not_exist_is_refused(checked, capsys):
    with pytest.raises(SystemExit):
        main(["book/no_such_chapter.ipynb"])
    assert "notebooks (book/no_such_chapter.ipynb) must exist" in capsys.readouterr().err


def test_the_program_says_how_it_is_called():
    command = [sys.executable, str(colab_check.ROOT / "tools" / "colab_check.py"), "--help"]
    assert "--all" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
