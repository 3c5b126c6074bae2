"""Self-attention in five steps: the numbers of the package, for any words."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import in_node  # noqa: E402

from annotated_transformer.interactive.self_attention_steps import (  # noqa: E402
    five_steps,
    self_attention_steps,
    split_words,
    word_vector,
)

DATA = json.loads(self_attention_steps().json)["data"]
TEXTS = ["我爱你", "the cat sat on the mat", "Naïve 你 😀 x", "one", "a b c d e f g h"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_every_step_is_that_of_the_package(text, causal):
    script = f"module.fiveSteps({json.dumps(DATA)}, {json.dumps(text)}, {json.dumps(causal)})"
    got = in_node("self_attention_steps", script)
    assert got["words"] == split_words(text)
    for name, wanted in five_steps(text, causal).items():
        ours = torch.tensor(got[name], dtype=torch.float64)
        torch.testing.assert_close(ours, wanted, atol=1e-6, rtol=0, msg=name)


def test_words_get_different_vectors_and_the_example_those_of_the_document():
    assert word_vector("我") == [0.5, 0.8, -0.3, 0.2]
    words = "the a cat dog sat ran on in mat hat is was it he she they we you i do".split()
    assert len({tuple(word_vector(word)) for word in words}) == len(words)
    assert all(-1 <= x <= 1 for word in words for x in word_vector(word))


def test_refuses_a_text_without_words_and_one_that_is_too_long():
    with pytest.raises(ValueError, match=r"text \('  '\) must have at least one word"):
        self_attention_steps("  ")
    with pytest.raises(ValueError, match=r"text \(61 characters\) must have up to 60"):
        self_attention_steps("a" * 61)


@pytest.mark.browser
def test_all_numbers_of_all_steps_are_shown(shown):
    with shown(self_attention_steps()) as (page, seen):
        buttons = page.locator(".at-controls button")
        previous, following = buttons.nth(0), buttons.nth(1)

        def check(names, text, causal):
            wanted = five_steps(text, causal) | {f"w{n}": torch.tensor(DATA[f"w{n}"]) for n in "qkv"}
            wanted["scaled"] = wanted["scores"] / 2**0.5
            tables = page.locator(".at-drawing table")
            assert tables.count() == len(names)
            for n, name in enumerate(names):
                cells = tables.nth(n).locator("td[data-row]").all_text_contents()
                values = [float(cell.replace("−", "-")) for cell in cells]
                assert values == pytest.approx(wanted[name].flatten().tolist(), abs=0.0051), name

        def check_all(text, causal):
            check(["x"], text, causal)
            for names in (
                ["x", "wq", "wk", "wv", "q", "k", "v"],
                ["q", "k", "scores"],
                ["scores", "scaled", "weights"],
                ["weights", "v", "output"],
            ):
                following.press("Enter")
                check(names, text, causal)
            assert following.is_disabled() and previous.is_enabled()

        assert previous.is_disabled()
        check_all("我爱你", False)
        page.locator("input[type=text]").fill("the cat sat")
        page.locator("input[type=checkbox]").press("Space")
        for _ in range(4):
            previous.press("Enter")
        check_all("the cat sat", True)
        hidden = page.locator(".at-drawing table").first.locator(".at-hidden")
        assert hidden.count() == 3
        page.locator("input[type=text]").fill("")
        assert page.locator(".at-drawing table").count() == 0
        page.locator(".at-reset").click()
        check(["x"], "我爱你", False)
        assert (seen.outside, seen.errors, seen.failed) == ([], [], [])
