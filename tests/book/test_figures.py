"""Every interactive figure in a real browser, from the disk, without a network: it draws and it obeys.

What each figure computes is tested in a file of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import MODULES, example  # noqa: E402
from test_browser import WIDER_THAN_THE_SCREEN, violations  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.parametrize("name", MODULES)]
# everything that a reader could see change
LOOKS = """(host) => [...host.querySelectorAll(".at-drawing, .at-status, .at-controls")].map((node) => {
  const copy = node.cloneNode(true);
  copy.querySelectorAll("[name^=at-]").forEach((input) => input.removeAttribute("name"));
  const states = [...node.querySelectorAll("input, select")].map((input) =>
    ["checkbox", "radio"].includes(input.type) ? input.checked : input.value);
  const pictures = [...node.querySelectorAll("canvas")].map((canvas) => canvas.toDataURL());
  return JSON.stringify([copy.innerHTML, states, pictures]);
}).join("\\n")"""
CONTROLS = ".at-controls :is(input, select, button), .at-drawing :is(input, select, button)"
REACHED = """(host, controls) => {
  const wanted = [...host.querySelectorAll(controls)].filter((node) => !node.disabled
    && node.offsetParent !== null && node.tabIndex >= 0 && (node.type !== "radio" || node.checked));
  return wanted.filter((node) => !node.dataset.reached).map((node) => node.outerHTML);
}"""


def assert_quiet(seen) -> None:
    assert (seen.outside, seen.errors, seen.failed) == ([], [], [])


def test_it_draws_in_both_themes_and_axe_finds_nothing(shown, axe, name):
    for theme, width in (("light", 1280), ("dark", 390)):
        with shown(example(name), width=width, theme=theme) as (page, seen):
            assert page.locator(".at-controls").is_visible()
            assert page.locator(".at-status").inner_text() != ""
            assert page.locator(".at-drawing").bounding_box()["height"] > 40
            assert violations(page, axe) == []
            assert_quiet(seen)


def test_it_fits_a_narrow_screen(shown, name):
    with shown(example(name), width=390) as (page, seen):
        script = WIDER_THAN_THE_SCREEN.replace(".bd-article, .bd-article *", "main, main *")
        assert page.evaluate(script) == []


def test_without_scripting_the_fallback_shows_and_no_dead_control(shown, name):
    with shown(example(name), scripts=False) as (page, seen):
        assert page.locator(".at-drawing :is(table, svg, img)").first.is_visible()
        assert page.locator(".at-controls").is_hidden()


def test_every_control_changes_something_and_reset_brings_everything_back(shown, name):
    with shown(example(name)) as (page, seen):
        host = page.locator(".at-figure")
        start = host.evaluate(LOOKS)
        sliders = page.locator(".at-controls input[type=range]:visible")
        for i in range(sliders.count()):
            slider = sliders.nth(i)
            before = host.evaluate(LOOKS)
            slider.evaluate("""(input) => {
              input.value = input.value === input.max ? input.min : input.max;
              input.dispatchEvent(new Event("input", { bubbles: true }));
            }""")
            assert host.evaluate(LOOKS) != before, slider.locator("..").inner_text()
        boxes = page.locator(".at-controls input[type=checkbox]:visible")
        for i in range(boxes.count()):
            before = host.evaluate(LOOKS)
            boxes.nth(i).click()
            assert host.evaluate(LOOKS) != before
        page.locator(".at-reset").click()
        assert host.evaluate(LOOKS) == start
        assert_quiet(seen)


def test_the_keyboard_reaches_every_control_and_the_focus_is_seen(shown, name):
    with shown(example(name)) as (page, seen):
        host = page.locator(".at-figure")
        page.locator("h1").click()
        for _ in range(200):
            page.keyboard.press("Tab")
            state = page.evaluate("""() => {
              const node = document.activeElement;
              if (!node.closest(".at-figure")) return "outside";
              node.dataset.reached = "true";
              return getComputedStyle(node).outlineStyle;
            }""")
            if state == "outside":
                break
            assert state == "solid"
        assert host.evaluate(REACHED, CONTROLS) == []


def test_sliders_obey_the_arrow_keys_and_say_their_value(shown, name):
    with shown(example(name)) as (page, seen):
        sliders = page.locator(".at-controls input[type=range]:visible")
        for i in range(sliders.count()):
            slider = sliders.nth(i)
            before, text = slider.input_value(), slider.get_attribute("aria-valuetext")
            slider.focus()
            at_end = slider.evaluate("(node) => Number(node.value) + Number(node.step) > Number(node.max)")
            page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
            assert slider.input_value() != before
            assert slider.get_attribute("aria-valuetext") != text
        assert_quiet(seen)


def test_every_control_has_a_name(shown, name):
    with shown(example(name)) as (page, seen):
        unnamed = """(nodes) => nodes.filter((node) => !(node.closest("label") ?? node).textContent.trim()
          && !node.ariaLabel).map((node) => node.outerHTML)"""
        assert page.locator(f".at-figure :is({CONTROLS})").evaluate_all(unnamed) == []


def test_two_on_a_page_do_not_disturb_each_other(shown, name):
    with shown(example(name), copies=2) as (page, seen):
        first, second = page.locator(".at-figure").all()
        before = second.evaluate(LOOKS)
        assert first.evaluate(LOOKS) == before
        slider = first.locator(".at-controls input[type=range]:visible").first
        if slider.count():
            slider.focus()
            page.keyboard.press("End" if slider.input_value() != slider.get_attribute("max") else "Home")
        else:
            first.locator(".at-controls input:visible").last.press("Space")
        assert first.evaluate(LOOKS) != before
        assert second.evaluate(LOOKS) == before
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
        assert len(ids) == len(set(ids))
        assert_quiet(seen)


def test_it_follows_the_theme_while_it_is_open(shown, name):
    with shown(example(name)) as (page, seen):
        color = "getComputedStyle(document.querySelector('.at-figure')).backgroundColor"
        assert page.evaluate(color) == "rgb(255, 255, 255)"
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        assert page.evaluate(color) == "rgb(18, 18, 18)"
        assert_quiet(seen)
