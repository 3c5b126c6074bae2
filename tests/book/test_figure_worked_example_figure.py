"""The worked example in the page: every matrix equals the package's to a millionth, also after edits."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import in_node  # noqa: E402

from annotated_transformer.interactive.worked_example_figure import (  # noqa: E402
    LABELS,
    START,
    TOKENS,
    with_package,
    worked_example_figure,
)

COMPUTED = set(with_package(START)) - {"embedded"}


def assert_equal(found: dict, wanted: dict) -> None:
    for name in COMPUTED:
        got = torch.tensor(found[name], dtype=torch.float64)
        torch.testing.assert_close(got, wanted[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_the_script_computes_what_the_package_computes(positions, causal):
    generator = torch.Generator().manual_seed(3)
    values = {name: torch.randn(len(rows), 4, generator=generator).tolist() for name, rows in START.items()}
    for given in (START, values):
        switches = f"{json.dumps(positions)}, {json.dumps(causal)}"
        found = in_node("worked_example_figure", f"module.compute({json.dumps(given)}, {switches})")
        assert_equal(found, with_package(given, positions, causal))


def shown_values(page) -> dict:
    nodes = page.locator(".at-drawing [data-values]")
    pairs = nodes.evaluate_all("(all) => all.map((node) => [node.dataset.name, node.dataset.values])")
    return {name: json.loads(values) for name, values in pairs}


def entry(page, name: str, row: str, column: str):
    return page.get_by_label(LABELS["entry"].format(name=LABELS[name], row=row, column=column), exact=True)


@pytest.mark.browser
def test_any_number_can_be_edited_and_all_that_follows_is_the_package_s(shown):
    with shown(worked_example_figure()) as (page, seen):
        status = page.locator(".at-status")
        assert_equal(shown_values(page), with_package(START))
        assert status.inner_text().startswith("我 looks mostly at 爱: 0.52.")
        values = copy.deepcopy(START)
        edits = [("embedded", 0, 0, "2.5"), ("W_Q", 1, 3, "-0.75"), ("W_K", 3, 0, "1.125")]
        edits += [("W_V", 2, 2, "-3"), ("W_O", 0, 1, "0.3")]
        for name, row, column, text in edits:
            values[name][row][column] = float(text)
            rows = TOKENS if name == "embedded" else "1234"
            entry(page, name, rows[row], str(column + 1)).fill(text)
            assert_equal(shown_values(page), with_package(values))
            assert f"row {rows[row]}, column {column + 1} is {text}." in status.inner_text()
        page.get_by_label(LABELS["causal"]).check()
        assert_equal(shown_values(page), with_package(values, causal=True))
        page.get_by_label(LABELS["use_positions"]).uncheck()
        assert_equal(shown_values(page), with_package(values, use_positions=False, causal=True))
        # what is no number changes nothing and is said
        first = entry(page, "embedded", TOKENS[0], "1")
        first.fill("")
        assert "must be a number" in status.inner_text() and first.get_attribute("aria-invalid") == "true"
        assert_equal(shown_values(page), with_package(values, use_positions=False, causal=True))
        page.locator(".at-reset").click()
        assert_equal(shown_values(page), with_package(START))
        # the keyboard: one arrow is a tenth, and the box keeps the focus
        first.focus()
        page.keyboard.press("ArrowUp")
        values = copy.deepcopy(START)
        values["embedded"][0][0] = 0.6
        assert_equal(shown_values(page), with_package(values))
        assert first.evaluate("(input) => input === document.activeElement")
        # numbers in cells are those of the matrices, rounded
        cells = page.locator('[data-name="weights"] td.at-cell').all_inner_texts()
        assert cells == [f"{w:.2f}" for w in with_package(values)["weights"].flatten().tolist()]
        assert (seen.outside, seen.errors, seen.failed) == ([], [], [])
