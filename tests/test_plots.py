"""Figures: colours and their contrast, scales, numbers, labels, and the outputs that a notebook keeps."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from annotated_transformer import plots

CSS = (Path(__file__).parents[1] / "book" / "_static" / "book.css").read_text(encoding="utf-8")
TOKENS = ["the", "cat", "sat"]
heat = plots.attention_heatmap
TEXT_ROLES = [role for role in plots.COLORS if role != "masked"]


def css_colors(selector: str) -> dict[str, str]:
    """The colours that one block of the style sheet sets."""
    block = re.search(rf"^{re.escape(selector)} \{{(.*?)^\}}", CSS, re.DOTALL | re.MULTILINE)[1]
    return dict(re.findall(r"--at-([\w-]+): (#[0-9A-Fa-f]{6});", block))


LIGHT, DARK = css_colors(":root"), css_colors('html[data-theme="dark"]')


def contrast(one: str, other: str) -> float:
    return plots.contrast(to_rgb(one), to_rgb(other))


def numbers(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


def hatched(ax) -> set[tuple[int, int]]:
    """Row and column of the hatched cells."""
    cells = [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_hatch()]
    return {(int(cell.get_y()), int(cell.get_x())) for cell in cells}


# Colours


def test_contrast_of_known_pairs():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)  # the grey that just fails
    assert contrast("#123456", "#123456") == pytest.approx(1)


def test_page_and_figures_have_the_same_colors():
    assert {role: LIGHT[role] for role in plots.COLORS} == plots.COLORS
    assert {role: DARK[role] for role in plots.DARK_COLORS} == plots.DARK_COLORS
    assert LIGHT["axes"] == plots.AXES
    assert f"filter: {plots.DARK_FILTER};" in CSS


@pytest.mark.parametrize("role", [*TEXT_ROLES, "axes", "ink"])
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_role_reads_on_its_page(role, theme):
    assert contrast(theme[role], theme["page"]) >= 4.5


@pytest.mark.parametrize("role", [*TEXT_ROLES, "axes"])
def test_every_role_reads_on_the_dark_page_after_the_filter(role):
    seen = plots.on_dark_page(to_rgb(LIGHT[role]))
    assert plots.contrast(seen, to_rgb(DARK["page"])) >= 4.5


@pytest.mark.parametrize("role", list(plots.COLORS))
def test_the_filter_lands_close_to_the_dark_color(role):
    seen = numpy.array(plots.on_dark_page(to_rgb(plots.COLORS[role])))
    assert numpy.abs(seen - to_rgb(plots.DARK_COLORS[role])).max() < 0.15


def test_the_filter_by_hand():
    # White turns to 0.92 - 0.84 = 0.08, red to (0.08, 0.92, 0.92), whose grey is 0.213 * 0.08 + 0.787 * 0.92.
    assert plots.on_dark_page((1.0, 1.0, 1.0)) == pytest.approx((0.08, 0.08, 0.08))
    twice = 2 * (0.213 * 0.08 + 0.787 * 0.92)
    assert plots.on_dark_page((1.0, 0.0, 0.0)) == pytest.approx((1.0, twice - 0.92, twice - 0.92))


def test_no_two_roles_differ_by_hue_alone():
    """Neighbouring lines also differ in their stroke."""
    assert len(set(plots.LINE_STYLES)) == len(plots.LINE_STYLES) >= 3


@pytest.mark.parametrize("scale", [plots.sequential(), plots.diverging()], ids=lambda scale: scale.name)
def test_numbers_read_on_every_cell_in_both_themes(scale):
    for share in numpy.linspace(0, 1, 101):
        fill = scale(share)[:3]
        assert max(plots.reads_on(to_rgb(ink), fill) for ink in (plots.INK, plots.PAPER)) >= 3


def test_scales_begin_and_end_in_the_colors_of_their_roles():
    ends = [to_hex(plots.sequential()(share)).upper() for share in (0.0, 1.0)]
    assert ends == ["#FFFFFF", plots.COLORS["query"]]
    ends = [to_hex(plots.diverging()(share)).upper() for share in (0.0, 0.5, 1.0)]
    assert ends[0] == plots.COLORS["key"] and ends[2] == plots.COLORS["query"]
    assert min(to_rgb(ends[1])) > 0.98


# Heat maps


def test_attention_is_drawn_from_0_to_1_with_queries_as_rows():
    ax = plots.attention_heatmap([[1.0, 0.0], [0.25, 0.75]], ["a", "b"], ["c", "d"])
    mesh = ax.collections[0]
    assert mesh.get_clim() == (0.0, 1.0)
    assert numbers(ax) == ["1.00", "0.00", "0.25", "0.75"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["c", "d"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    assert ax.yaxis_inverted()  # row 0 on top


def test_words_in_figures_are_arguments():
    ax = plots.attention_heatmap([[1.0]], ["été"], ["été"], xlabel="clé", ylabel="requête")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("clé", "requête")
    assert plots.mask_grid([[True]], xlabel="clé").get_xlabel() == "clé"
    drawing = plots.attention_heads(torch.ones(1, 1, 1), names=["tête"], xlabel="clé", ylabel="requête")
    assert [(ax.get_title(), ax.get_xlabel()) for ax in drawing.axes] == [("tête", "clé")]


def test_masked_weights_are_hatched_and_have_no_number():
    weights, mask = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[True, False], [True, True]])
    ax = plots.attention_heatmap(weights, mask=mask)
    assert hatched(ax) == {(0, 1)}
    assert numbers(ax) == ["1.00", "0.50", "0.50"]


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 7), st.integers(1, 11), st.randoms(use_true_random=False))
def test_a_mask_fills_seen_cells_and_hatches_all_others(rows, columns, random):
    mask = torch.tensor([[random.random() < 0.5 for _ in range(columns)] for _ in range(rows)])
    ax = plots.mask_grid(mask)
    assert hatched(ax) == {tuple(cell) for cell in (~mask).nonzero().tolist()}
    assert ax.collections[0].get_array().reshape(rows, columns).tolist() == mask.float().tolist()
    assert numbers(ax) == []


@pytest.mark.parametrize(("shape", "count"), [((8, 8), 64), ((5, 13), 0)])
def test_up_to_64_cells_have_numbers(shape, count):
    assert len(numbers(plots.signed_heatmap(torch.zeros(shape)))) == count


def test_signed_values_are_symmetric_about_zero():
    ax = plots.signed_heatmap([[-3.0, 1.0], [0.0, -0.001]], xlabel="column")
    assert ax.collections[0].get_clim() == (-3.0, 3.0)
    assert numbers(ax) == ["−3.00", "1.00", "0.00", "0.00"]
    assert plots.signed_heatmap([[1.0]], limit=2.5).collections[0].get_clim() == (-2.5, 2.5)
    assert plots.signed_heatmap([[0.0]]).collections[0].get_clim() == (-1.0, 1.0)


def test_half_precision_and_gradients_are_welcome():
    weights = torch.full((2, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
    assert numbers(plots.attention_heatmap(weights)) == ["0.50"] * 4


def test_heads_stand_side_by_side_on_one_scale():
    drawing = plots.attention_heads(torch.full((5, 3, 3), 1 / 3), TOKENS, TOKENS)
    drawn = [ax for ax in drawing.axes if ax.axison]
    assert [ax.get_title() for ax in drawn] == ["head 1", "head 2", "head 3", "head 4", "head 5"]
    assert {ax.collections[0].get_clim() for ax in drawn} == {(0.0, 1.0)}
    assert drawing.get_figwidth() == plots.FULL


def test_a_matrix_shows_whole_numbers_and_its_shape():
    ax = plots.matrix_grid(torch.arange(6).reshape(2, 3), shape="(T, d_model)", role="value")
    assert numbers(ax) == ["0", "1", "2", "3", "4", "5", "(T, d_model)"]
    assert ax.texts[-1].get_color() == plots.COLORS["value"]
    assert numbers(plots.matrix_grid(torch.zeros(9, 9))) == ["(9, 9)"]


# Lines, boxes, canvas


def test_lines_carry_their_names_in_their_colors():
    series = {"up": [1, 2, 3], "down": torch.tensor([3, 2, 1])}
    ax = plots.curves([1, 2, 3], series, roles=["output", "residual"], xlabel="step")
    assert ax.get_xlabel() == "step"
    assert {text.get_text(): text.get_color() for text in ax.texts} == {
        "up": plots.COLORS["output"],
        "down": plots.COLORS["residual"],
    }
    assert len({line.get_linestyle() for line in ax.lines}) == 2
    assert ax.get_legend() is None


@pytest.mark.parametrize("x", [[1, 2, 3], [3, 2, 1]])
def test_names_stand_at_the_right_ends(x):
    ax = plots.curves(x, {"a": x, "b": [5, 5, 5]})
    assert {text.get_text(): text.xy for text in ax.texts} == {"a": (3, 3), "b": (3, 5)}


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_names_of_close_lines_do_not_touch(scale):
    ax = plots.curves([1, 2], {"a": [1, 5.0], "b": [1, 5.01], "c": [2, 5.02]}, yscale=scale)
    ax.figure.draw_without_rendering()
    boxes = sorted((text.get_window_extent() for text in ax.texts), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 for low, high in zip(boxes, boxes[1:], strict=False))
    lines = [ax.transData.transform((2, y))[1] for y in (5.0, 5.02)]
    assert abs(boxes[1].y0 + boxes[1].y1 - sum(lines)) < 12  # the middle name stays beside the lines


def test_tokens_stand_in_a_row():
    ax = plots.token_row(TOKENS, role="query")
    assert numbers(ax) == TOKENS
    assert [text.get_position() for text in ax.texts] == [(0, 0), (1, 0), (2, 0)]
    assert len(ax.patches) == 3


def test_an_arrow_can_carry_a_shape():
    _, ax = plots.canvas()
    plots.arrow(ax, (0, 0), (0, 1), role="key", text="(B, T)")
    assert numbers(ax) == ["(B, T)"]
    assert to_hex(ax.patches[0].get_edgecolor()).upper() == plots.COLORS["key"]
    assert plots.block(ax, (0, 2), "pad", role="masked").get_hatch()


def test_a_canvas_has_the_width_of_the_page_and_no_chart_junk():
    drawing, pair = plots.canvas(columns=2, sharey=True)
    assert drawing.get_figwidth() == 6.4 and drawing.dpi == 100 and len(pair) == 2
    for ax in pair:
        assert not ax.spines["top"].get_visible() and not ax.spines["right"].get_visible()
        assert to_hex(ax.spines["left"].get_edgecolor()).upper() == plots.AXES
    assert plots.canvas(width=plots.PAIR)[0].get_figwidth() == 3.1


# What a notebook keeps


def test_a_figure_is_a_picture_with_its_text_and_then_its_caption(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **options: shown.append((data, options)))
    drawing = plots.attention_heatmap([[1.0]])
    plots.figure(drawing, alt="One cell, fully blue.", caption="All weight, $w = 1$.")
    (picture, options), (caption, _) = shown
    assert base64.b64decode(picture["image/png"]).startswith(b"\x89PNG")
    assert picture["text/plain"] == "One cell, fully blue."  # nbval compares it
    assert options == {"metadata": {"image/png": {"alt": "One cell, fully blue."}}, "raw": True}
    assert caption == {"text/markdown": "All weight, $w = 1$.", "text/plain": "All weight, $w = 1$."}


def test_pictures_are_640_dots_wide_transparent_and_the_same_twice():
    drawing = plots.signed_heatmap(torch.eye(3)).figure
    data = plots.png_bytes(drawing)
    assert int.from_bytes(data[16:20], "big") == 640
    assert data[25] == 6  # colour type: red, green, blue, alpha
    assert b"Software" not in data
    assert data == plots.png_bytes(drawing)


def test_figures_stay_unknown_to_pyplot():
    import matplotlib.pyplot

    drawing, _ = plots.canvas()
    assert isinstance(drawing, Figure) and matplotlib.pyplot.get_fignums() == []


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: heat([[1.5]]), r"weights \(1\.5 to 1\.5\) must lie between 0 and 1"),
        (lambda: heat(torch.zeros(2, 3, 5)), r"weights \(2, 3, 5\) must have two dimensions"),
        (lambda: heat([[1.0]], ["a", "b"]), r"queries \(2 labels\) must have one label for"),
        (lambda: plots.mask_grid([[True]], keys=[]), r"keys \(0 labels\) must have one label for each of 1"),
        (lambda: heat([[1.0]], mask=[[1, 1]]), r"mask \(1, 2\) must have the shape of weights"),
        (lambda: plots.attention_heads(torch.zeros(2, 3)), r"weights \(2, 3\) must have three dimensions"),
        (lambda: plots.signed_heatmap([[1.0]], limit=-1.0), r"limit \(-1\.0\) must be positive"),
        (lambda: plots.matrix_grid([[1.0]], role="colour"), r"role \('colour'\) must be one of query, key"),
        (lambda: plots.curves([1], {str(n): [n] for n in range(6)}), r"series \(6 lines\) must have a role"),
        (lambda: plots.curves([1, 2], {"a": [1]}), r"series\['a'\] \(1,\) must have the shape of x"),
        (lambda: plots.figure(plots.canvas()[0], alt=" ", caption="x"), r"alt \(' '\) must say something"),
        (lambda: plots.figure(plots.canvas()[0], alt="x", caption=""), r"caption \(''\) must say something"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
