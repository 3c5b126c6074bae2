"""The project's address is the same wherever it stands, and one command sets it everywhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml

from tools.notebook_source import dumps, set_ids
from tools.repository import ADDRESS, COLAB, HOLDERS, current, holders, replace, set_address, slug

ROOT = Path(__file__).resolve().parent.parent
NEW = "https://github.com/somebody/transformers-for-all"


@pytest.fixture
def copy(tmp_path):
    """A copy of every file that may hold the address, with a notebook that surely does."""
    for path in holders():
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    install = nbformat.v4.new_code_cell(f"%pip install --quiet git+https://github.com/{current()}")
    badge = nbformat.v4.new_markdown_cell(f"{COLAB}{current()}/blob/main/book/sample.ipynb")
    nb = nbformat.v4.new_notebook(cells=[badge, install])
    set_ids(nb)
    (tmp_path / "book" / "sample.ipynb").write_text(dumps(nb), encoding="utf-8")
    return tmp_path


def texts(root: Path = ROOT) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in holders(root)}


def test_the_book_and_the_package_name_the_same_repository():
    url = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"]
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert url == f"https://github.com/{current()}"
    assert urls["Homepage"] == url
    assert all(address == url or address.startswith(f"{url}/") for address in urls.values())


def test_every_link_to_a_repository_of_this_name_and_to_colab_is_ours():
    name = current().partition("/")[2]
    for path, text in texts().items():
        for found in ADDRESS.findall(text):
            found = found.rstrip(".").removesuffix(".git")
            assert found.partition("/")[2] != name or found == current(), f"{path} holds {found}"
        for rest in text.split(COLAB)[1:]:
            assert rest.startswith(f"{current()}/blob/"), f"{path} sends to Colab with {rest[:60]}"
        for rest in text.split("git+https://")[1:]:
            assert rest.startswith(f"github.com/{current()}"), f"{path} installs from {rest[:60]}"


def test_colab_links_lead_to_notebooks_that_exist():
    for path, text in texts().items():
        for rest in text.split(f"{COLAB}{current()}/blob/")[1:]:
            notebook = rest.partition(")")[0].partition('"')[0].partition("/")[2]
            assert (ROOT / notebook).is_file(), f"{path} links to {notebook}"


def test_each_notebook_installs_the_package_from_the_address_and_links_to_itself_on_colab():
    for path in sorted((ROOT / "book").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        first = next(cell.source for cell in cells if cell.cell_type == "code")
        assert f"git+https://github.com/{current()}" in first, path.name
        assert f"{COLAB}{current()}/blob/main/book/{path.name}" in cells[0].source, path.name


def test_nothing_installs_the_package_by_its_bare_name():
    for path, text in texts().items():
        for line in text.splitlines():
            if "pip install" in line:
                assert not re.search(r"install (-\S+ )*[\"']?annotated", line), f"{path}: {line}"


def test_no_other_tracked_file_holds_the_address():
    tracked = subprocess.run(
        ["git", "grep", "-l", "--fixed-strings", current()], cwd=ROOT, capture_output=True, text=True
    )
    if tracked.returncode > 1:
        pytest.fail(f"git could not search the files: {tracked.stderr}")
    known = {str(path.relative_to(ROOT)) for path in holders()}
    assert set(tracked.stdout.split()) <= known, f"add the file's kind to {HOLDERS}"


def test_setting_the_address_leaves_no_trace_of_the_old_one(copy):
    old, before = current(), texts(copy)
    changed = set_address(f"{NEW}.git", copy)
    after = texts(copy)
    assert {"_config.yml", "pyproject.toml", "README.md", "book/sample.ipynb"} <= {
        str(path.relative_to(copy)) for path in changed
    }
    assert current(copy) == "somebody/transformers-for-all"
    assert not [path for path, text in after.items() if old in text]
    really = [copy / path for path in before if before[path] != after[path]]
    assert sorted(really) == sorted(changed)


def test_the_ids_of_a_notebooks_cells_follow_their_new_text(copy):
    set_address(NEW, copy)
    nb = nbformat.read(copy / "book" / "sample.ipynb", as_version=4)
    ids = [cell.id for cell in nb.cells]
    set_ids(nb)
    assert ids == [cell.id for cell in nb.cells]
    assert f"git+{NEW}" in nb.cells[1].source


def test_setting_the_address_twice_or_back_changes_nothing_more(copy):
    before = texts(copy)
    set_address(NEW, copy)
    assert set_address(NEW, copy) == []
    set_address(f"https://github.com/{current()}", copy)
    assert texts(copy) == before


@pytest.mark.parametrize("rest", ["-extra", "2", ".js", "/tree/main", ".git", "", "."])
def test_only_the_whole_name_is_replaced(rest):
    text = f"https://github.com/a/b{rest}"
    is_ours = rest in ("/tree/main", ".git", "", ".")
    assert replace(text, "a/b", "c/d") == (f"https://github.com/c/d{rest}" if is_ours else text)


@pytest.mark.parametrize("url", ["", "somebody/name", "https://example.com/a/b", "https://github.com/a"])
def test_an_address_that_is_no_repository_is_refused(url):
    with pytest.raises(ValueError, match=r"^url \(.*\) must be https://github.com/OWNER/NAME$"):
        slug(url)


def test_a_book_without_an_address_is_refused(tmp_path):
    (tmp_path / "_config.yml").write_text("title: x\n")
    with pytest.raises(ValueError, match=r"^_config.yml \(.*\) must hold a line url: "):
        current(tmp_path)
