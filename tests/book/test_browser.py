"""The book as a reader gets it, in a real browser without a network."""

from __future__ import annotations

import json
import re

import pytest
import torch
from built_book import pages

from annotated_transformer import scaled_dot_product_attention
from annotated_transformer.plots import DARK_FILTER

pytestmark = pytest.mark.browser
PAGES = pages()
ATTENTION = "book/attention.html"


# Each page is opened three times, and several tests look at it while it is open.


@pytest.fixture(scope="module", params=[*PAGES, "search.html", "genindex.html"])
def served(request, reader):
    """A page from a server, in the light theme."""
    with reader(request.param, "http", theme="light") as opened:
        yield opened


@pytest.fixture(scope="module", params=[*PAGES, "search.html", "genindex.html"])
def on_disk(request, reader):
    """A page from the disk, in the dark theme, on a narrow screen."""
    with reader(request.param, "file", theme="dark", width=390) as opened:
        yield opened


@pytest.fixture(scope="module", params=PAGES)
def without_scripts(request, reader):
    """A page in a browser that runs no scripts."""
    with reader(request.param, scripts=False) as opened:
        yield opened


def assert_quiet(page, seen) -> None:
    page.locator("footer").last.scroll_into_view_if_needed()
    page.wait_for_timeout(150)
    assert seen.outside == []
    assert seen.errors == []
    assert seen.failed == []


def test_a_served_page_asks_nobody_else_and_logs_no_error(served):
    assert_quiet(*served)


def test_a_page_on_disk_asks_nobody_else_and_logs_no_error(on_disk):
    assert_quiet(*on_disk)


ONE_OF_A_KIND = """() => {  // code has thousands of words in a dozen colours: one of each is enough
  const seen = new Set();
  for (const word of document.querySelectorAll("pre span[class]")) {
    const kind = word.className + " in " + (word.closest(".cell_input, .cell_output, .highlight")?.className);
    if (seen.has(kind)) word.replaceWith(...word.childNodes); else seen.add(kind);
  }
}"""
UNFOLD = "document.querySelectorAll('details').forEach((fold) => fold.open = true)"


def violations(page, axe: str) -> list[str]:
    """What axe-core finds against WCAG 2 A and AA, with everything unfolded."""
    page.evaluate(UNFOLD)
    page.evaluate(ONE_OF_A_KIND)
    page.evaluate(axe)
    options = {"runOnly": ["wcag2a", "wcag2aa"], "resultTypes": ["violations"], "preload": False}
    found = page.evaluate("(options) => axe.run(document, options)", options)["violations"]
    nodes = [(rule["id"], node) for rule in found for node in rule["nodes"]]
    return [f"{rule}: {node['target']} {node['html'][:120]}" for rule, node in nodes]


def test_axe_finds_no_violation_in_the_light_theme_on_a_wide_screen(served, axe):
    page, _ = served
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert violations(page, axe) == []


def test_axe_finds_no_violation_in_the_dark_theme_on_a_narrow_screen(on_disk, axe):
    page, _ = on_disk
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert violations(page, axe) == []


WIDER_THAN_THE_SCREEN = """() => {
  const mayScroll = "pre, .highlight, .pst-scrollable-table-container, .at-scroll, "
    + ".output.text_html:has(table)";
  const wrong = [];
  if (document.scrollingElement.scrollWidth > window.innerWidth) wrong.push("the page itself");
  for (const node of document.querySelectorAll(".bd-article, .bd-article *")) {
    if (node.closest(mayScroll) || node.parentElement.closest("svg, .katex")) continue;
    const name = `${node.tagName}.${node.className}: ${node.textContent.trim().slice(0, 60)}`;
    const scrolls = ["auto", "scroll"].includes(getComputedStyle(node).overflowX);
    if (scrolls && node.scrollWidth > node.clientWidth + 1) wrong.push("scrolls: " + name);
    if (node.getBoundingClientRect().right > window.innerWidth + 1) wrong.push("sticks out: " + name);
  }
  return wrong;
}"""
NOT_LOADED = """(images) =>
  images.filter((image) => !image.complete || image.naturalWidth === 0).map((image) => image.src)"""


def test_on_a_narrow_screen_only_code_and_tables_scroll_sideways(on_disk):
    page, _ = on_disk
    page.evaluate(UNFOLD)
    assert page.evaluate(WIDER_THAN_THE_SCREEN) == []


def test_formulas_and_pictures_show_without_scripts(without_scripts):
    page, _ = without_scripts
    formulas = page.locator(".bd-article .katex-html:not(details *)").all()
    for formula in [*formulas[:3], *formulas[-1:]]:
        assert formula.bounding_box()["width"] > 3
    if formulas:
        family = "(node) => getComputedStyle(node).fontFamily"
        assert "KaTeX" in page.locator(".bd-article .katex").first.evaluate(family)
        spoken = page.locator(".bd-article .katex-mathml").first  # for screen readers only
        assert spoken.bounding_box()["width"] <= 1
    assert page.locator(".bd-article img").evaluate_all(NOT_LOADED) == []


@pytest.mark.parametrize("origin", ["http", "file"])
def test_search_finds_softmax_and_leads_to_attention(reader, origin):
    with reader("book/index.html", origin) as (page, seen):
        page.keyboard.press("Control+k")
        page.keyboard.type("softmax")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search.html?q=softmax*")
        results = page.locator("#search-results li a")
        results.first.wait_for()
        leading = results.evaluate_all("(links) => links.map((link) => link.getAttribute('href'))")
        assert re.match(r"book/attention\.html", leading[0]), leading[:5]
        results.first.click()
        page.wait_for_url("**/book/attention.html*")
        assert "softmax" in page.locator("article").inner_text().lower()
        assert (seen.outside, seen.errors, seen.failed) == ([], [], [])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_follow_the_theme(reader, theme):
    with reader(ATTENTION, theme=theme) as (page, _):
        picture = page.locator(".cell_output figure img").first
        style = picture.evaluate("(node) => ({...getComputedStyle(node)})")
        assert style["filter"] == (DARK_FILTER if theme == "dark" else "none")
        assert style["backgroundColor"] == "rgba(0, 0, 0, 0)"
        page_color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert page_color == ("rgb(18, 18, 18)" if theme == "dark" else "rgb(255, 255, 255)")


def test_text_is_about_70_characters_wide(reader):
    """Lines of running text, counted where the browser breaks them."""
    count = """(node) => {
      const range = document.createRange(), lines = new Map();
      const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
      for (let text; (text = walker.nextNode());) for (let i = 0; i < text.length; i++) {
        range.setStart(text, i); range.setEnd(text, i + 1);
        const top = Math.round(range.getBoundingClientRect().top / 8);
        lines.set(top, (lines.get(top) || 0) + 1);
      }
      return [...lines.values()].slice(0, -1);
    }"""
    with reader("book/index.html") as (page, _):
        lines = page.locator("#who-it-is-for > p").first.evaluate(count)
        assert len(lines) >= 3
        assert 55 <= sum(lines) / len(lines) <= 85


def test_the_figure_on_the_front_page_computes_what_the_package_computes(reader):
    with reader("book/index.html", "file") as (page, seen):
        figure = page.locator("#front-figure")
        given = json.loads(figure.locator("script[type='application/json']").text_content())
        x = torch.tensor(given["vectors"])
        _, weights = scaled_dot_product_attention(x, x, x)
        assert given["scale"] == x.shape[-1] ** -0.5

        def shown() -> list[str]:
            return figure.locator(".at-number").all_text_contents()

        for row, word in enumerate(given["words"]):
            figure.get_by_label(word, exact=True).check()
            assert shown() == [f"{weight:.2f}" for weight in weights[row].tolist()]
        figure.locator("input[type=range]").fill("0")
        assert shown() == ["0.33", "0.33", "0.33"]
        assert "alike" in figure.locator(".at-status").inner_text()
        figure.get_by_role("button", name="reset").click()
        assert shown() == [f"{weight:.2f}" for weight in weights[given["query"]].tolist()]
        assert "0.50" in figure.locator(".at-status").inner_text()
        assert seen.errors == []
    with reader("book/index.html", "file", scripts=False) as (page, _):
        cells = page.locator("#front-figure td")
        assert cells.first.is_visible() and not page.locator("#front-figure input").first.is_visible()
        assert cells.all_text_contents() == [f"{weight:.2f}" for weight in weights.flatten().tolist()]
