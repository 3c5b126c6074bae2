"""What Jupyter Book 1.x leaves to mend: scripts, figures and their texts, captions of parts, formulas.

Each function says which fault it mends. The book must build strictly, ask no other host for anything, log no
error in the browser and give every figure its alternative text.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from inspect import isfunction
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.ext import autodoc
from sphinx.ext.autodoc.mock import _MockObject
from sphinx.locale import init as load_catalogue
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinxcontrib import katex


def is_output(node: nodes.Node, kind: str) -> bool:
    """True for the containers of myst-nb: "mime_bundle" of an output, "cell_code_output" of a cell."""
    return isinstance(node, nodes.container) and node.get("nb_element") == kind


class AlternativeText(SphinxTransform):
    """Give the image of an output the text that the same output holds as plain text.

    myst-nb keeps only width and height of an image's metadata. ``annotated_transformer.plots.figure`` writes
    the alternative text as ``text/plain``, where nbval compares it. Runs before translation (priority 20).
    """

    default_priority = 10

    def apply(self, **kwargs) -> None:
        for bundle in self.document.findall(lambda node: is_output(node, "mime_bundle")):
            parts = {part.get("mime_type"): part for part in bundle.children}
            text = parts["text/plain"].astext().strip() if "text/plain" in parts else ""
            for mime_type in ("image/png", "image/jpeg", "image/svg+xml"):
                for image in parts[mime_type].findall(nodes.image) if mime_type in parts else ():
                    if text and not text.startswith("<"):
                        image["alt"] = text


class Captions(SphinxPostTransform):
    """Join an image and the paragraph shown after it in the same cell into a figure with its caption."""

    default_priority = 5  # just after myst-nb has chosen one of each output's forms

    def run(self, **kwargs) -> None:
        count = 0
        for cell in self.document.findall(lambda node: is_output(node, "cell_code_output")):
            for image, text in zip(cell.children[:-1], cell.children[1:], strict=True):
                if not (isinstance(image, nodes.image) and isinstance(text, nodes.paragraph)):
                    continue
                caption = nodes.caption(text.rawsource, "", *text.children)
                caption.source, caption.line = text.source, text.line
                count += 1
                figure = nodes.figure("", image.deepcopy(), caption, ids=[f"figure-{count}"])
                cell.remove(text)
                image.replace_self(figure)


def drop_thebe(app, pagename, templatename, context, doctree) -> None:
    """Drop Thebe's scripts: emitted twice, they raise an error on every page, and nothing here uses them."""

    def keep(script) -> bool:
        attributes = getattr(script, "attributes", None) or {}
        is_setting = str(attributes.get("body", "")).startswith("const THEBE_JS_URL")
        return not is_setting and "sphinx-thebe" not in str(getattr(script, "filename", ""))

    context["script_files"] = [script for script in context.get("script_files", []) if keep(script)]


def let_keys_scroll_tables(app, pagename, templatename, context, doctree) -> None:
    """Let the keyboard reach a table that is wider than its screen, as the theme does for code."""
    table = re.compile(r'(<div class="pst-scrollable-table-container")>(?=<table (?![^>]*at-head))')
    if context.get("body"):
        context["body"] = table.sub(r'\1 tabindex="0">', context["body"])


def add_filters(app) -> None:
    """Offer the templates what mends the theme's HTML.

    `without_spare_parts`: from file:// a browser refuses to preload fonts and logs an error for each; and the
    icons, which come with a style sheet and a font, come a second time as a script of 1.5 MB.
    `with_named_folds`: a button that unfolds a part of the contents gets the name of that part.
    """
    if not isinstance(app.builder, StandaloneHTMLBuilder):
        return
    spare = re.compile(r'<link rel="preload" as="font"[^>]*>|<script src="[^"]*fontawesome[^"]*"></script>')
    fold = re.compile(r"(<a [^>]*>([^<]*)</a>\s*<details[^>]*>\s*)<summary>")
    filters = app.builder.templates.environment.filters
    filters["without_spare_parts"] = lambda html: spare.sub("", str(html))
    filters["with_named_folds"] = lambda html: fold.sub(r'\1<summary aria-label="\2">', str(html))


def link_chapters(app, what, name, obj, options, lines) -> None:
    """Turn "Chapter: `attention`." in a module's docstring into a link to that chapter, once there is one."""

    def link(match: re.Match) -> str:
        page = f"book/{match[1]}"
        return f"Chapter: :doc:`/{page}`." if page in app.env.found_docs else match[0]

    if what == "module":
        lines[:] = [re.sub(r"Chapter: `(\w+)`\.", link, line) for line in lines]


def mark_head(app, doctree) -> None:
    """Mark the table at the head of a chapter, one row under four names, for the style sheet."""
    title = next(iter(doctree.findall(nodes.section)), None)
    if title is None or "kernelspec" not in app.env.metadata[app.env.docname]:
        return
    tables = (node for node in title.children if isinstance(node, nodes.table))
    head = next(tables, None)
    if head is not None and head[0]["cols"] == 4 and len(list(head.findall(nodes.row))) == 2:
        head["classes"].append("at-head")


def translate_captions(app, doctree) -> None:
    """Translate the captions of the book's parts, which sphinx-external-toc leaves in English."""
    if app.config.language in (None, "en"):
        return
    directories = [str(Path(app.srcdir) / folder) for folder in app.config.locale_dirs]
    catalogue, found = load_catalogue(directories, app.config.language, app.env.docname)
    if found:
        for toctree in doctree.findall(addnodes.toctree):
            if toctree.get("caption"):
                toctree["caption"] = catalogue.gettext(toctree["caption"])


def wait_for_katex() -> None:
    """Wait until KaTeX's server listens: the extension connects as soon as its socket exists."""
    katex.KaTeXServer.start_server_process = katex.KaTeXServer.start_network_socket  # this one tries again
    katex.STARTUP_TIMEOUT = katex.RENDER_TIMEOUT = 60.0  # seconds; 5 are too few on a busy machine


def see_through_decorators() -> None:
    """Let decorators of packages that autodoc only pretends to import give back the function that they got.

    It hands out a stand-in that remembers the function, and then finds no signature for a constructor.
    """
    make_stand_in = _MockObject.__call__

    def call(self, *args, **kwargs):
        if len(args) == 1 and not kwargs and isfunction(args[0]):
            return args[0]
        return make_stand_in(self, *args, **kwargs)

    _MockObject.__call__ = call
    # A class whose parent is a stand-in has the signature of its own __init__, not the stand-in's __new__.
    autodoc._CLASS_NEW_BLACKLIST.append("sphinx.ext.autodoc.mock._MockObject.__new__")


def write_weights(app) -> None:
    """Write the scripts with the weights of the GPT that runs in the page, from the shipped checkpoint.

    They are 5 MB and follow from the checkpoint, so they are not committed. The module that makes them needs
    the standard library only; it is loaded by its path, since its package needs torch.
    """
    if not isinstance(app.builder, StandaloneHTMLBuilder):
        return
    package = Path(app.srcdir) / "annotated_transformer"
    path = package / "interactive" / "gpt_weights.py"
    spec = importlib.util.spec_from_file_location("gpt_weights", path)
    gpt_weights = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpt_weights)
    weights = gpt_weights.quantize((package / "checkpoints" / "shakespeare.safetensors").read_bytes())
    folder = Path(app.outdir) / "_static" / "gpt"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in gpt_weights.scripts(weights).items():
        (folder / name).write_text(text, encoding="utf-8")


def setup(app) -> dict:
    see_through_decorators()
    wait_for_katex()
    sys.path.insert(0, str(app.srcdir))  # the API reference reads the docstrings of this checkout
    app.add_transform(AlternativeText)
    app.add_post_transform(Captions)
    app.connect("builder-inited", add_filters)
    app.connect("builder-inited", write_weights)
    app.connect("autodoc-process-docstring", link_chapters)
    app.connect("html-page-context", drop_thebe, priority=900)
    app.connect("html-page-context", let_keys_scroll_tables)
    app.connect("doctree-read", mark_head)
    app.connect("doctree-read", translate_captions, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "version": "1"}
