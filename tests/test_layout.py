"""The laws of the layout: one list of slugs drives chapters, modules and tests, and imports follow its order.

Each law is a function that lists the faults in what it is given; it is held against the project and against
samples that break it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

import annotated_transformer
from annotated_transformer import attention
from annotated_transformer.notebook import Source
from tools.notebook_source import ROOT, chapters, parts

PACKAGE = ROOT / "annotated_transformer"
# The order of all chapters, planned ones too: a module may exist before its chapter.
ORDER = """
    sequence_models embeddings positional_encoding attention multi_head_attention feed_forward residual
    encoder_decoder transformer training decoding distributed tokenization gpt generation bert t5 vit llama
    instruction_tuning rlhf worked_example parameter_count errata notation performance
""".split()
PAGES = {"index", "notation", "references", "reference"}  # pages of Markdown, not notebooks
APPENDICES = "Appendices"  # chapters of this part may do without a module
DRAWING = {"interactive", "notebook", "plots"}
NOTEBOOK_LIBRARIES = {"IPython", "ipywidgets", "matplotlib", "seaborn"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
SLUGS = [path.stem for path in MODULES if path.parent == PACKAGE and path.stem in ORDER]


def slug_faults(toc, notebooks, modules, tests):
    """What a slug of the contents lacks, and what stands outside the order; `toc` maps parts to slugs."""
    listed = [slug for slugs in toc.values() for slug in slugs if slug not in PAGES]
    faults = [f"{slug}: no notebook" for slug in listed if slug not in notebooks]
    faults += [
        f"{slug}: a notebook that the contents do not list" for slug in notebooks if slug not in listed
    ]
    known = [slug for slug in listed if slug in ORDER]
    faults += [f"{slug}: not a slug of the book" for slug in listed if slug not in ORDER]
    faults += ["the chapters are not in the book's order"] * (known != sorted(known, key=ORDER.index))
    teaches = [
        slug for part, slugs in toc.items() if part != APPENDICES for slug in slugs if slug not in PAGES
    ]
    faults += [f"{slug}: no module" for slug in teaches if slug not in modules]
    return faults + [f"{slug}: no test" for slug in modules if slug not in tests]


def imports(source):
    """Each import as (name, whether it stands inside a function); names of this package begin with a dot."""
    tree = ast.parse(source)
    inside = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(outer)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level and not node.module:
            names = ["." * node.level + alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        else:
            continue
        found += [(name, id(node) in inside) for name in names]
    return [(own_name(name), deep) for name, deep in found]


def own_name(name):
    """A module of this package by its name without the package, `.attention`; any other as it is."""
    prefix = annotated_transformer.__name__
    if name == prefix or name.startswith(prefix + "."):
        return "." + name.removeprefix(prefix).lstrip(".")
    return name


def top(name):
    """The first word of a module's name."""
    return name.lstrip(".").partition(".")[0]


def import_faults(slug, source):
    """What a module imports against the laws; a slug that is no chapter's is a supporting module's."""
    earlier = ORDER[: ORDER.index(slug)] if slug in ORDER else ORDER
    faults = []
    for name, inside in imports(source):
        own, first = name.startswith("."), top(name)
        if own and first in DRAWING and slug not in DRAWING:
            faults.append(f"{slug} imports {first}, which draws")
        elif own and slug in ORDER and first in ORDER and first not in earlier:
            faults.append(f"{slug} imports {first}, which comes later")
        elif own and slug in ORDER and first not in {*ORDER, "runtime"} and not inside:
            faults.append(f"{slug} imports {name}, not a chapter's module, outside a function")
        elif not own and first in NOTEBOOK_LIBRARIES and slug not in DRAWING:
            faults.append(f"{slug} imports {first}, which only the drawing modules may")
        elif (
            not own
            and not inside
            and slug not in DRAWING
            and first not in {*sys.stdlib_module_names, "torch"}
        ):
            faults.append(f"{slug} imports {first} outside a function")
    return faults


def public_names(module):
    """The functions and classes a module offers: its `__all__`, or what it defines without an underscore."""
    names = getattr(module, "__all__", None)
    if names is not None:
        return list(names)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    ]


def shown_names(nb, path):
    """The names whose source a notebook shows from one file of the package."""
    head = f"# {path}\n"
    texts = [
        output.get("data", {}).get("text/plain", "")
        for cell in nb.cells
        for output in cell.get("outputs", [])
    ]
    trees = [ast.parse(text) for text in texts if text.startswith(head)]
    return {node.name for tree in trees for node in tree.body if hasattr(node, "name")}


def used_names(nb):
    """The names that the code cells of a notebook use, beyond importing and showing them."""
    names = set()
    for cell in nb.cells:
        if cell.cell_type == "code":
            code = re.sub(r"^(\s*)[%!].*$", r"\1pass", cell.source, flags=re.MULTILINE)
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.Name):
                    names.add(node.id)
                elif isinstance(node, ast.Attribute):
                    names.add(node.attr)
    return names


def unshown(module, nb):
    """The public names of a module that its chapter does not show.

    What the package exports must be shown by `show`, alone or in its class. A smaller public name, a check or
    a variant, must be shown or used.
    """
    path = module.__name__.replace(".", "/") + ".py"
    shown, used = shown_names(nb, path), used_names(nb)
    exported = set(annotated_transformer.__all__)
    return [
        name for name in public_names(module) if name not in (shown if name in exported else shown | used)
    ]


def names_in(folder, pattern, prefix=""):
    """The stems of the files in a folder, without a prefix."""
    return {path.stem.removeprefix(prefix) for path in (ROOT / folder).glob(pattern)}


def test_every_slug_has_its_notebook_its_module_and_its_test():
    modules = {path.stem for path in PACKAGE.glob("*.py")} & set(ORDER)
    tests = names_in("tests", "test_*.py", "test_")
    assert slug_faults(parts(), {path.stem for path in chapters()}, modules, tests) == []


def test_every_supporting_module_has_a_test_of_its_name():
    tests = names_in("tests", "test_*.py", "test_")
    own = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    own |= {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert own - tests == set()


def test_every_page_of_the_book_is_in_the_contents():
    contents = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    pages = names_in("book", "*.md") | names_in("book", "*.ipynb")
    assert {page for page in pages if f": book/{page}\n" not in contents + "\n"} == set()


GOOD = (
    {"The parts": ["embeddings", "attention"], APPENDICES: ["errata", "notation"]},
    {"embeddings", "attention", "errata"},
    {"embeddings", "attention"},
    {"embeddings", "attention", "layout"},
)


@pytest.mark.parametrize(
    "place, value, fault",
    [
        (1, {"embeddings", "attention"}, "errata: no notebook"),
        (1, {*GOOD[1], "t5"}, "t5: a notebook that the contents do not list"),
        (2, {"embeddings"}, "attention: no module"),
        (3, {"embeddings"}, "attention: no test"),
        (
            0,
            {**GOOD[0], "The parts": ["attention", "embeddings"]},
            "the chapters are not in the book's order",
        ),
        (0, {**GOOD[0], "The parts": ["embeddings", "attention", "1_gpt"]}, "1_gpt: not a slug of the book"),
    ],
)
def test_a_slug_without_its_files_is_reported(place, value, fault):
    assert slug_faults(*GOOD) == []
    assert fault in slug_faults(*[value if i == place else given for i, given in enumerate(GOOD)])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_of_the_package_follow_the_order_of_the_chapters(path):
    if path.parent == PACKAGE and path.stem != "__init__":
        slug = path.stem
    else:
        slug = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    lazy = ["__init__ imports notebook, which draws"] if slug == "__init__" else []
    assert import_faults(slug, path.read_text(encoding="utf-8")) == lazy


@pytest.mark.parametrize(
    "slug, source, fault",
    [
        (
            "attention",
            "from .transformer import Transformer",
            "attention imports transformer, which comes later",
        ),
        ("attention", "import annotated_transformer.gpt", "attention imports gpt, which comes later"),
        (
            "attention",
            "from annotated_transformer.gpt import GPT",
            "attention imports gpt, which comes later",
        ),
        ("attention", "def f():\n    from . import gpt", "attention imports gpt, which comes later"),
        ("attention", "from .attention import causal_mask", "attention imports attention, which comes later"),
        ("gpt", "from .notebook import show", "gpt imports notebook, which draws"),
        ("gpt", "def f():\n    from .plots import figure", "gpt imports plots, which draws"),
        ("gpt", "from .interactive.attention import heads", "gpt imports interactive, which draws"),
        ("recipes", "from . import plots", "recipes imports plots, which draws"),
        (
            "gpt",
            "from .recipes import train",
            "gpt imports .recipes, not a chapter's module, outside a function",
        ),
        ("gpt", "import safetensors", "gpt imports safetensors outside a function"),
        ("recipes", "from tokenizers import Tokenizer", "recipes imports tokenizers outside a function"),
        ("gpt", "if True:\n    import numpy as np", "gpt imports numpy outside a function"),
        ("gpt", "class A:\n    import numpy", "gpt imports numpy outside a function"),
        (
            "gpt",
            "def f():\n    import matplotlib.pyplot",
            "gpt imports matplotlib, which only the drawing modules may",
        ),
        (
            "metrics",
            "def f():\n    import IPython",
            "metrics imports IPython, which only the drawing modules may",
        ),
    ],
)
def test_an_import_against_the_laws_is_reported(slug, source, fault):
    assert import_faults(slug, source) == [fault]


@pytest.mark.parametrize(
    "slug, source",
    [
        (
            "gpt",
            "import math\nimport torch\nfrom torch.nn import functional as F\nfrom collections import abc",
        ),
        (
            "gpt",
            "from .attention import causal_mask\nfrom .runtime import check_size\nfrom . import decoding",
        ),
        ("gpt", "def f():\n    import safetensors\n    from .pretrained import download"),
        ("plots", "import matplotlib\ndef f():\n    from IPython.display import display"),
        ("recipes", "from .transformer import make_model\nfrom .data import cmudict"),
    ],
)
def test_imports_within_the_laws_are_not_reported(slug, source):
    assert import_faults(slug, source) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_open_with_a_docstring_and_need_no_annotations_at_run_time(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body[:2])


def test_importing_the_package_imports_no_library_of_notebooks_or_models():
    code = "import annotated_transformer, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "torch" in loaded and not loaded & {*NOTEBOOK_LIBRARIES, "transformers"}


@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
def test_each_chapter_shows_every_public_name_of_its_module(path):
    if path.stem in SLUGS:
        module = importlib.import_module(f"annotated_transformer.{path.stem}")
        assert unshown(module, nbformat.read(path, as_version=4)) == []


def showing(*objects, code="x = 1"):
    """A notebook that shows some objects of the package and then runs some code."""
    outputs = [new_output("display_data", data=Source(obj)._repr_mimebundle_()) for obj in objects]
    return new_notebook(cells=[new_code_cell(code, outputs=outputs)])


def test_names_that_a_chapter_does_not_show_are_reported():
    everything = [getattr(attention, name) for name in public_names(attention)]
    assert "causal_mask" in public_names(attention) and "check_size" not in public_names(attention)
    assert unshown(attention, showing(*everything)) == []
    without = [obj for obj in everything if obj.__name__ not in ("causal_mask", "check_mask")]
    assert unshown(attention, showing(*without)) == ["causal_mask", "check_mask"]
    assert unshown(attention, showing(*without, code="check_mask(causal_mask(3), (3, 3))")) == ["causal_mask"]


def test_a_name_shown_from_another_module_does_not_count():
    assert shown_names(showing(attention.causal_mask), "annotated_transformer/transformer.py") == set()
    assert shown_names(showing(attention.causal_mask), "annotated_transformer/attention.py") == {
        "causal_mask"
    }


def test_the_list_of_a_module_decides_what_is_public(monkeypatch):
    monkeypatch.setattr(attention, "__all__", ["causal_mask"], raising=False)
    assert public_names(attention) == ["causal_mask"]
