"""What stands in the built pages: links that lead somewhere, texts for pictures, formulas, every name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from built_book import pages

PAGES = pages()
OUTSIDE = re.compile(r"(https?:)?//", re.IGNORECASE)
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Page(HTMLParser):
    """Identifiers, links, resources, images and formulas of one page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.images: list[dict[str, str]] = []
        self.stack: list[tuple[str, str]] = []
        self.captions = 0
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attributes}
        self.ids.update(given[key] for key in ("id", "name") if given.get(key))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in ("img", "script", "iframe", "source", "video", "audio", "embed") and "src" in given:
            self.resources.append(given["src"])
        if tag == "link" and "href" in given and given.get("rel") not in ("canonical", "author", "search"):
            self.resources.append(given["href"])
        if tag == "img" and "article" in {name for name, _ in self.stack}:
            self.images.append({**given, "inside": " ".join(f"{name}.{kind}" for name, kind in self.stack)})
        if tag == "figcaption":
            self.captions += 1
        if tag not in VOID:
            self.stack.append((tag, given.get("class", "")))

    def handle_endtag(self, tag: str) -> None:
        while self.stack and self.stack.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        hidden = {"script", "style", "annotation", "pre", "code"}
        if "article" in {name for name, _ in self.stack} and not hidden & {name for name, _ in self.stack}:
            self.text.append(data)


@cache
def parse(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def whereto(path: Path, link: str) -> tuple[Path, str]:
    """The file that a link on a page leads to, and the anchor in it."""
    name, anchor = urldefrag(link)
    return (path.parent / unquote(name.split("?")[0])).resolve() if name else path, unquote(anchor)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_of_the_contents_is_built(html, name):
    assert (html / name).is_file()


def test_the_root_leads_to_the_first_page(html):
    assert f"url={PAGES[0]}" in (html / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*PAGES, "search.html", "genindex.html"])
def test_links_and_anchors_lead_somewhere(html, name):
    path = (html / name).resolve()
    wrong = []
    for link in parse(path).links:
        if re.match(r"[a-z]+:|//", link, re.IGNORECASE):
            continue
        target, anchor = whereto(path, link)
        if not target.is_file():
            wrong.append(link)
        elif anchor and target.suffix == ".html" and anchor not in parse(target).ids:
            wrong.append(link)
    assert not wrong


@pytest.mark.parametrize("name", [*PAGES, "search.html", "genindex.html"])
def test_every_resource_comes_with_the_book(html, name):
    path = (html / name).resolve()
    resources = [link for link in parse(path).resources if not link.startswith("data:")]
    assert not [link for link in resources if OUTSIDE.match(link)]
    assert not [link for link in resources if not whereto(path, link)[0].is_file()]


def test_style_sheets_ask_no_other_host(html):
    outside = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//[^)"']*""")
    wrong = {
        path.name: outside.findall(path.read_text(encoding="utf-8"))
        for path in (html / "_static").rglob("*.css")
        if outside.search(path.read_text(encoding="utf-8"))
    }
    assert not wrong


@pytest.mark.parametrize("name", PAGES)
def test_every_picture_has_a_text_and_those_of_chapters_a_caption(html, name):
    page = parse((html / name).resolve())
    silent = [image["src"] for image in page.images if len(image.get("alt", "").split()) < 3]
    assert not silent
    assert not [image["alt"] for image in page.images if image["alt"].startswith(("<", "_images", "../"))]
    outputs = [image for image in page.images if "cell_output" in image["inside"]]
    assert not [image["alt"] for image in outputs if "figure." not in image["inside"]]


@pytest.mark.parametrize("name", PAGES)
def test_formulas_are_finished(html, name):
    source = (html / name).read_text(encoding="utf-8")
    formulas = re.split(r'<(?:span|div) class="math[ "]', source)[1:]
    assert all('class="katex' in formula for formula in formulas)
    assert "katex-error" not in source
    text = " ".join(parse((html / name).resolve()).text)
    assert not re.search(r"\$\$|\\frac|\\sqrt|\\mathrm|\\text\{", text)


@pytest.mark.parametrize("name", pages(part="The parts") + pages(part="The Transformer"))
def test_a_chapter_has_formulas_and_pictures(html, name):
    assert 'class="katex' in (html / name).read_text(encoding="utf-8")
    assert parse((html / name).resolve()).captions > 0


def public_names() -> list[str]:
    """Full names of the functions and classes that the package's modules offer."""
    package = importlib.import_module("annotated_transformer")
    found = []
    for entry in pkgutil.walk_packages(package.__path__, "annotated_transformer."):
        if entry.name.rpartition(".")[2].startswith("_"):
            continue
        module = importlib.import_module(entry.name)
        offered = getattr(module, "__all__", None) or [name for name in vars(module) if name[0] != "_"]
        for name in offered:
            thing = getattr(module, name)
            is_own = getattr(thing, "__module__", "") == entry.name
            if is_own and (inspect.isroutine(thing) or inspect.isclass(thing)):
                found.append(f"{entry.name}.{name}")
    return found


def test_the_reference_holds_every_public_name(html):
    ids = set().union(*(parse((html / name).resolve()).ids for name in PAGES if "/reference_" in name))
    names = public_names()
    assert "annotated_transformer.attention.causal_mask" in names
    assert not [name for name in names if name not in ids]


def test_signatures_in_the_reference_are_those_of_the_package(html):
    """Built without torch, a class could show the signature of the stand-in for its parent."""
    text = re.sub(r"<[^>]+>", "", (html / "book/reference_parts.html").read_text(encoding="utf-8"))
    assert "*args: Any" not in text
    assert re.search(r"MultiHeadAttention\(\s*d_model: int,\s*num_heads: int", text)
