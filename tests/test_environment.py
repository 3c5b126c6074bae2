"""The pins are complete: what any file imports is pinned, and what the package asks for is met by its pin."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.chapters import BEGIN, with_table

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("annotated_transformer", "benchmarks", "book/_ext", "tests", "tools")


def pins(name: str) -> dict[str, Requirement]:
    """The requirements of a file, and of the file that it includes, by canonical name."""
    found: dict[str, Requirement] = {}
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("-r "):
            found |= pins(line.removeprefix("-r "))
        elif line:
            requirement = Requirement(line)
            found[canonicalize_name(requirement.name)] = requirement
    return found


def asked_for() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    return [Requirement(line) for line in sum(extras, project["dependencies"])]


def imports(code: str) -> set[str]:
    """The top-level names that some code imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip":
            names.add(ast.literal_eval(node.args[0]))
    return {name.partition(".")[0] for name in names}


def sources() -> dict[str, str]:
    """The Python code of the project, notebooks included, by file."""
    paths = [ROOT / "conftest.py", *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))]
    code = {path: path.read_text(encoding="utf-8") for path in paths}
    for path in (ROOT / "book").glob("*.ipynb"):
        cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        code[path] = "\n".join(re.sub(r"^(\s*)[%!].*", r"\1pass", cell, flags=re.MULTILINE) for cell in cells)
    return {str(path.relative_to(ROOT)): text for path, text in code.items()}


@pytest.mark.parametrize("name", ["requirements-book.txt", "requirements.txt"])
def test_every_requirement_is_one_version(name):
    for requirement in pins(name).values():
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), requirement


def test_building_the_book_asks_for_no_torch():
    assert "sphinx" in pins("requirements-book.txt")
    assert not {"torch", "numpy", "matplotlib"} & set(pins("requirements-book.txt"))


@pytest.mark.parametrize("requirement", asked_for(), ids=lambda requirement: requirement.name)
def test_the_pin_satisfies_what_the_package_asks_for(requirement):
    pin = pins("requirements.txt")[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(str(pin.specifier).removeprefix("=="))


def test_whatever_is_imported_is_pinned():
    local = {"annotated_transformer", "tools", "tests", "conftest"}
    patterns = ("benchmarks/*.py", "book/_ext/*.py", "tests/**/*.py")
    local |= {path.stem for pattern in patterns for path in ROOT.glob(pattern)}
    known, pinned = packages_distributions(), set(pins("requirements.txt"))
    loose = {
        f"{file} imports {name}"
        for file, code in sources().items()
        for name in imports(code) - set(sys.stdlib_module_names) - local
        if not {canonicalize_name(each) for each in known.get(name, [name])} & pinned
    }
    assert not loose, f"pin in requirements.txt: {sorted(loose)}"


def test_the_package_asks_for_whatever_it_and_its_chapters_import():
    needed = {canonicalize_name(requirement.name) for requirement in asked_for()}
    known = packages_distributions()
    loose = {
        f"{file} imports {name}"
        for file, code in sources().items()
        if file.startswith("annotated_transformer/") or file.endswith(".ipynb")
        for name in imports(code) - set(sys.stdlib_module_names) - {"annotated_transformer"}
        if not {canonicalize_name(each) for each in known.get(name, [name])} & needed
    }
    assert not loose, f"add to the dependencies in pyproject.toml: {sorted(loose)}"


def test_the_readme_lists_the_chapters_as_they_are():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_table(readme) == readme, "run python tools/chapters.py"


def test_a_readme_without_marks_is_refused():
    with pytest.raises(ValueError, match=rf"^text \(README.md\) must hold {BEGIN} and, after it, "):
        with_table("# A title\n")
