"""The figure "sampling" in a browser: its bars and numbers are those of the package at every setting."""

from __future__ import annotations

import json
import re

import pytest
import torch

from annotated_transformer.data.shakespeare import CHARACTERS
from annotated_transformer.generation import next_token_probabilities
from annotated_transformer.interactive.sampling import sampling

pytestmark = pytest.mark.browser
READ = """(host) => [...host.querySelectorAll(".at-bar")].map((bar) =>
  [bar.title, bar.classList.contains("at-cut"), bar.querySelector(".at-after").style.height])"""
SLIDERS = {"temperature": 0, "top_k": 1, "top_p": 2, "min_p": 3}


def shown_bars(page) -> dict[str, tuple[float, float, bool]]:
    """Character -> probability before and after, and whether it is cut."""
    bars = {}
    for title, cut, _ in page.locator(".at-figure").evaluate(READ):
        character, before, after = re.fullmatch(r"(.): ([\d.]+) → ([\d.]+)", title).groups()
        bars[character.replace("␣", " ").replace("⏎", "\n")] = float(before), float(after), cut
    return bars


def put(page, settings: dict[str, float]) -> None:
    for name, value in settings.items():
        page.locator(".at-controls input[type=range]").nth(SLIDERS[name]).fill(str(value))


def entropy(probabilities: torch.Tensor) -> float:
    return torch.special.entr(probabilities).sum().item() / torch.tensor(2.0).log().item()


def test_its_numbers_are_those_of_the_package_at_every_setting(shown):
    figure = sampling()
    places = json.loads(figure.json)["data"]["contexts"]
    settings = [
        (0, {}),
        (0, {"temperature": 0.5}),
        (1, {"temperature": 1.5, "top_k": 8}),
        (2, {"top_p": 0.9}),
        (5, {"temperature": 1.3, "top_k": 30, "top_p": 0.85, "min_p": 0.04}),
        (3, {"temperature": 0}),
    ]
    with shown(figure) as (page, seen):
        for place, setting in settings:
            page.locator(".at-reset").click()
            page.locator("select").select_option(str(place))
            put(page, setting)
            logits = torch.tensor(places[place]["logits"])
            wanted = next_token_probabilities(logits, **setting)
            bars = shown_bars(page)
            assert set(bars) == set(CHARACTERS)
            for character, before, after in zip(CHARACTERS, logits.softmax(-1), wanted, strict=True):
                assert bars[character][:2] == pytest.approx((before.item(), after.item()), abs=6e-5)
            cut = {character for character in CHARACTERS if bars[character][2]}
            zeros = {c for c, p in zip(CHARACTERS, wanted.tolist(), strict=True) if p == 0}
            assert cut == (set() if setting.get("temperature") == 0 else zeros)
            numbers = page.locator(".at-matrix td[data-column='0']").all_inner_texts()
            entropies = [entropy(logits.softmax(-1)), entropy(wanted)]
            assert [float(number) for number in numbers] == pytest.approx(entropies, abs=6e-3)
            assert f"{65 - len(cut)} of 65" in page.locator(".at-status").inner_text()
        assert (seen.outside, seen.errors) == ([], [])


def test_bars_are_sorted_and_scaled_as_the_reader_likes(shown):
    with shown(sampling()) as (page, seen):
        after = [bar[1] for bar in shown_bars(page).values()]
        assert after == sorted(after, reverse=True)
        heights = page.locator(".at-figure").evaluate(READ)
        assert float(heights[0][2].removesuffix("%")) == pytest.approx(100 * after[0], abs=0.02)
        page.get_by_label("likeliest first").uncheck()
        assert "".join(shown_bars(page)) == CHARACTERS
        page.get_by_label("logarithmic").check()
        for (title, _, height), (_, p, _) in zip(
            page.locator(".at-figure").evaluate(READ), shown_bars(page).values(), strict=True
        ):
            if p > 0.01:
                wanted = 100 * (1 + torch.tensor(p).log10().item() / 4)
                assert float(height.removesuffix("%")) == pytest.approx(wanted, abs=0.2), title
        assert (seen.outside, seen.errors) == ([], [])
