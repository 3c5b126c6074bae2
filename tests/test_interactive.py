"""Interactive figures as HTML: complete in themselves, small, the same every time, with replaceable texts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from figures import MODULES, NODE, example, maker

from annotated_transformer import plots
from annotated_transformer.interactive import base
from annotated_transformer.interactive.base import Interactive, bundle, rounded, style, table, texts
from annotated_transformer.interactive.learning_rate import learning_rate

LABELS = {"title": "A title", "caption": "A caption."}
LIMIT = 150_000  # bytes of a figure with its data
ROOT = Path(__file__).parents[1]


def made(data=None, fallback="<p>nothing</p>") -> Interactive:
    return Interactive("learning_rate", data or {}, LABELS, fallback)


# Every figure


def test_there_are_figures():
    assert "learning_rate" in MODULES


@pytest.mark.parametrize("name", MODULES)
def test_a_figure_is_small(name):
    assert len(example(name).html().encode()) <= LIMIT


@pytest.mark.parametrize("name", MODULES)
def test_a_figure_is_the_same_every_time(name):
    threads = torch.get_num_threads()
    first = example(name).html()
    torch.manual_seed(987)
    torch.set_num_threads(2)
    try:
        assert example(name).html() == first
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", MODULES)
def test_a_figure_shows_something_without_scripting(name):
    fallback = example(name).fallback
    assert re.search(r"<(table|svg|img)\b", fallback)
    assert "<script" not in fallback


@pytest.mark.parametrize("name", MODULES)
def test_a_figure_asks_for_nothing_from_elsewhere(name):
    html = example(name).html().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]|@import|url\(|\bfetch\(|XMLHttpRequest", html)


@pytest.mark.parametrize("name", MODULES)
def test_all_texts_of_a_figure_can_be_replaced(name):
    module = __import__(maker(name).__module__, fromlist=["LABELS"])
    words = {key: "~" + re.sub(r"[^{}]+(?![^{]*})", "", text) for key, text in module.LABELS.items()}
    html = maker(name)(labels=words).html()
    for key, text in module.LABELS.items():
        plain = re.sub(r"{\w+}", "", text).strip()
        if len(plain) > 12:
            assert json.dumps(text, ensure_ascii=False)[1:-1] not in html, key


@pytest.mark.parametrize("name", MODULES)
def test_a_figure_draws_with_its_own_few_lines(name):
    assert len((base.FOLDER / f"{name}.js").read_text(encoding="utf-8").splitlines()) <= 220


@pytest.mark.parametrize("name", MODULES)
def test_a_figure_has_no_text_of_its_own_in_the_script(name):
    """Words that a reader sees come from the labels; in the script stand only names and signs."""
    source = (base.FOLDER / f"{name}.js").read_text(encoding="utf-8")
    source = re.sub(r"//.*", "", source)
    strings = re.findall(r'"([^"\n]*)"|`([^`\n]*)`', source)
    told = [s for pair in strings for s in pair if re.search(r"[a-z]{3,} [a-z]{2,} [a-z]{2,}", s)]
    assert told == []


# The frame


class Closing(HTMLParser):
    """Notes elements that are opened and not closed."""

    VOID = {"input", "meta", "br", "img", "hr"}

    def __init__(self, html: str):
        super().__init__()
        self.open, self.wrong = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.mark.parametrize("name", MODULES)
def test_the_fragment_is_well_formed(name):
    parsed = Closing(example(name).html())
    assert (parsed.open, parsed.wrong) == ([], [])


def test_no_text_can_end_the_script():
    data = {"text": "</script><b>&amp;", "line": "\u2028"}
    html = made(data).html()
    held = re.search(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)[1]
    assert json.loads(held)["data"] == data


def test_title_and_caption_are_escaped():
    figure = Interactive("learning_rate", {}, {"title": "a < b", "caption": "<i>"}, "<p></p>")
    assert "a &lt; b" in figure.html() and "&lt;i&gt;" in figure.html()


def test_the_identifier_depends_on_all_that_is_shown():
    names = {made().identifier, made({"a": 1}).identifier, made(fallback="<p>else</p>").identifier}
    assert len(names) == 3 and made().identifier == made().identifier


def test_a_notebook_gets_text_and_html():
    bundle_ = made()._repr_mimebundle_()
    assert bundle_["text/plain"] == "Interactive figure: A title. A caption."
    assert bundle_["text/html"] == made().html()


def test_a_script_has_no_imports_and_each_part_once():
    script = bundle("learning_rate")
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    assert script.count("class Panel") == 1 and "function render" in script


def test_a_page_is_a_whole_document():
    page = made().page("dark", copies=2)
    assert page.startswith("<!DOCTYPE html>") and 'data-theme="dark"' in page
    assert page.count('<figure class="at-figure"') == 2


def test_refuses_a_figure_without_module_or_texts_or_with_nan():
    with pytest.raises(FileNotFoundError, match=r"nowhere\.js"):
        Interactive("nowhere", {}, LABELS, "")
    with pytest.raises(ValueError, match="labels must have a caption"):
        Interactive("learning_rate", {}, {"title": "t"}, "")
    with pytest.raises(ValueError, match="learning_rate must be finite"):
        made({"x": float("nan")})


def test_rounding_goes_through_everything():
    given = {"a": torch.tensor([[1 / 3, -2e-9]]), "b": (12345.678, "text", 7, True, None), "c": -0.0}
    assert rounded(given) == {"a": [[0.3333, -2e-9]], "b": [12350.0, "text", 7, True, None], "c": 0.0}
    assert str(rounded(-0.0)) == "0.0"
    with pytest.raises(ValueError, match=r"values \(inf\) must be finite"):
        rounded([1.0, [float("inf")]])


def test_replaced_texts_are_checked():
    defaults = {"title": "t", "status": "{a} and {b}"}
    assert texts(defaults, {"status": "{b}"}) == {"title": "t", "status": "{b}"}
    assert texts(defaults, None) == defaults
    with pytest.raises(ValueError, match=r"labels \(other\) must be among status, title"):
        texts(defaults, {"other": ""})
    with pytest.raises(ValueError, match=r"labels\['status'\] must use placeholders of \['a', 'b'\]"):
        texts(defaults, {"status": "{c}"})


def test_a_table_holds_numbers_and_escapes_names():
    html = table([[1.0, "<"], [-0.256, "x"]], ["r", "&"], ["one", "two"], "corner", digits=1)
    cells = re.findall(r"<td>(.*?)</td>", html)
    assert cells == ["corner", "1.0", "&lt;", "-0.3", "x"]
    assert '<th scope="row">&amp;</th>' in html


def test_learning_rate_refuses_starts_that_its_sliders_lack():
    with pytest.raises(ValueError, match=r"d_model \(500\) must be one of 64, 128"):
        learning_rate(d_model=500)
    with pytest.raises(ValueError, match=r"warmup \(1\) must be a multiple of 500"):
        learning_rate(warmup=1)
    with pytest.raises(ValueError, match=r"steps \(5\) must be a multiple of 10,000"):
        learning_rate(steps=5)


# Colours


def css_colors(selector: str) -> dict[str, str]:
    block = re.search(rf"{re.escape(selector)} {{(.*?)}}", style(), re.DOTALL)[1]
    return dict(re.findall(r"--at-([\w-]+): (#[0-9A-Fa-f]{6});", block))


LIGHT, DARK = css_colors(".at-figure"), css_colors("body.vscode-dark) .at-figure")


def test_figures_have_the_colors_of_the_plots():
    assert {role: LIGHT[role] for role in plots.COLORS} == plots.COLORS
    assert {role: DARK[role] for role in plots.DARK_COLORS} == plots.DARK_COLORS


@pytest.mark.parametrize("role", ["query", "key"])
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_numbers_can_be_read_on_every_shade(theme, role):
    """Where a number changes its colour is said by `shade` in shared.js, whose values are tested there."""

    def rgb(name: str) -> list[float]:
        return [int(theme[name][i : i + 2], 16) / 255 for i in (1, 3, 5)]

    for percent in range(101):
        light = percent > (98 if role == "key" else 85)
        ink = "flip-light" if light else "flip-dark" if percent > 62 else "number"
        mix = zip(rgb("page"), rgb(role), strict=True)
        ground = [page + (end - page) * percent / 100 for page, end in mix]
        assert plots.contrast(rgb(ink), ground) >= 4.5, (percent, ink)


# Scripts


def test_scripts_are_clean():
    """oxlint, which pip brings, finds nothing."""
    oxlint = str(Path(sys.executable).with_name("oxlint"))
    command = [oxlint, "--deny-warnings", str(base.FOLDER), str(ROOT / "tests")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-500:]


def test_pure_functions_of_the_scripts_hold():
    """The unit tests under tests/js, by node's own runner; node comes with pip."""
    files = sorted(map(str, (ROOT / "tests" / "js").glob("*.test.js")))
    done = subprocess.run([NODE, "--test", *files], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-500:]
    assert re.search(r"pass [1-9]", done.stdout)
