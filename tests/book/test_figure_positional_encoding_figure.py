"""The figure of the positional encoding shows the numbers of the package's table."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import MOVE_SLIDER, in_node  # noqa: E402

from annotated_transformer import sinusoidal_encoding  # noqa: E402
from annotated_transformer.interactive.positional_encoding_figure import positional_encoding_figure  # noqa: E402

PIXELS = """() => {
  const canvas = document.querySelector("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return [canvas.width, canvas.height, [...data]];
}"""
BLUE, ORANGE = (0x00, 0x63, 0xA8), (0xC2, 0x50, 0x0A)


@pytest.mark.parametrize(("length", "width"), [(20, 64), (4, 8), (100, 128)])
def test_the_table_is_that_of_the_package(length, width):
    ours = in_node("positional_encoding_figure", f"module.encoding({length}, {width})")
    wanted = sinusoidal_encoding(length, width).double()
    for row, line in zip(wanted.tolist(), ours, strict=True):
        assert line == pytest.approx(row, abs=1e-7)


def test_products_over_the_distance_are_those_of_the_package():
    ours = in_node("positional_encoding_figure", "module.products(module.encoding(50, 64))")
    rows = sinusoidal_encoding(50, 64).double()
    assert ours == pytest.approx((rows @ rows[0] / 32).tolist(), abs=1e-6)
    assert ours[7] == pytest.approx((rows[30] @ rows[23] / 32).item(), abs=1e-6)


def test_a_turned_hand_is_the_encoding():
    """Turning (1, 0) by position times frequency gives cosine and sine of the table."""
    script = "[...Array(20).keys()].map((t) => module.turn([1, 0], t * module.frequency(3, 16)))"
    rows = sinusoidal_encoding(20, 16)
    for (x, y), row in zip(in_node("positional_encoding_figure", script), rows.tolist(), strict=True):
        assert (x, y) == pytest.approx((row[7], row[6]), abs=1e-6)


@pytest.mark.browser
def test_controls_show_the_numbers_of_the_package(shown):
    with shown(positional_encoding_figure()) as (page, seen):

        def check(length, width, pair, query, key):
            rows = sinusoidal_encoding(length, width).double()
            angle = math.degrees((query - key) / 10000 ** (2 * pair / width)) % 360
            status = page.locator(".at-status").inner_text().replace("−", "-")
            sine, cosine = rows[query, 2 * pair], rows[query, 2 * pair + 1]
            product = rows[query] @ rows[key] / (width / 2)
            row = f"Pair {pair}: row {query} holds sine {sine:.3f} and cosine {cosine:.3f}."
            assert status.startswith(row)
            assert f"{abs(query - key)} places and {min(angle, 360 - angle):.0f}° apart" in status
            assert status.endswith(f"all {width // 2} pairs is {product:.3f}.")
            columns, lines, data = page.evaluate(PIXELS)
            assert (columns, lines) == (width, length)
            for t, j in ((0, 0), (query, 2 * pair), (length - 1, width - 1)):
                value = rows[t, j].item()
                end = ORANGE if value < 0 else BLUE
                wanted = [255 + (e - 255) * abs(value) for e in end]
                assert data[4 * (t * width + j) :][:3] == pytest.approx(wanted, abs=1)

        check(20, 64, 4, 7, 4)
        assert page.locator(".at-dial").count() == 4
        for i, value in ((0, 50), (1, 3), (2, 9), (3, 41), (4, 12)):  # the slider's fourth width is 32
            page.evaluate(MOVE_SLIDER, [i, value])
        check(50, 32, 9, 41, 12)
        page.evaluate(MOVE_SLIDER, [0, 6])  # shorter: query and key must follow
        check(6, 32, 9, 5, 5)
        page.locator(".at-reset").click()
        check(20, 64, 4, 7, 4)
        assert (seen.outside, seen.errors, seen.failed) == ([], [], [])
