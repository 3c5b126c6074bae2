"""Figures in one visual language: a colour is a role, a scale is fixed, a picture has a text.

Colour means role in every figure of the book: `COLORS` holds the colours for a light page, `DARK_COLORS`
those for a dark one, and `book/_static/book.css` the same two sets for the page. Figures are drawn once,
with light colours on a transparent background. The book's dark theme turns their lightness around with the
filter `DARK_FILTER`, which keeps the hues and lands close to `DARK_COLORS`.

The drawing functions take tensors, arrays or nested lists, draw into `ax` (or into a canvas of their own)
and return the axes. Every word in a figure is an argument, so that it can be translated. Then show it::

    axes = attention_heatmap(weights, queries=tokens, keys=tokens)
    figure(axes, alt="Heat map of 4 by 4 weights: …", caption="Each word looks mostly at the noun before it.")

That writes two outputs. The first holds the picture as PNG and, as plain text, the alternative text; the
second is the caption in Markdown. Jupyter, Colab and GitHub show picture and caption, the book joins them
into one figure, and nbval compares the texts, which are the same on every machine, but not the pixels.
A cell whose picture is a photograph carries the tag `photograph`: the dark theme leaves it as it is.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

__all__ = [
    "AXES",
    "COLORS",
    "DARK_COLORS",
    "DARK_FILTER",
    "arrow",
    "attention_heads",
    "attention_heatmap",
    "block",
    "canvas",
    "contrast",
    "curves",
    "diverging",
    "figure",
    "mask_grid",
    "matrix_grid",
    "on_dark_page",
    "sequential",
    "signed_heatmap",
    "style",
    "token_row",
]

COLORS = {
    "query": "#0063A8",  # asks
    "key": "#C2500A",  # is asked
    "value": "#007A57",  # is passed on
    "output": "#8E4585",  # output, prediction
    "residual": "#5B6470",  # carried along
    "masked": "#B0B7BF",  # masked, padding: always hatched
}
DARK_COLORS = {
    "query": "#6CB8F0",
    "key": "#F2A25C",
    "value": "#4FCFA5",
    "output": "#D9A0D3",
    "residual": "#A9B4C0",
    "masked": "#4A535D",
}
AXES = "#6E7681"  # axes, ticks and their labels: a grey that reads on both pages
INK, PAPER = "#000000", "#FFFFFF"  # numbers on pale cells, and pale cells with the numbers on deep ones
DARK_FILTER = "invert(0.92) hue-rotate(180deg)"  # what book.css does to figures; on_dark_page computes it

FULL, PAIR = 6.4, 3.1  # widths in inches
DPI = 100
MOST_NUMBERS = 64  # cells: with more, numbers are left out
LINE_STYLES = ("-", "--", "-.", ":")  # lines differ by more than their hue
LINE_ROLES = ("query", "key", "value", "output", "residual")

Matrix = Any  # a tensor, an array or nested lists


def sequential() -> LinearSegmentedColormap:
    """Attention weights and probabilities: white is 0, the blue of queries is 1."""
    return LinearSegmentedColormap.from_list("weights", [PAPER, COLORS["query"]])


def diverging() -> LinearSegmentedColormap:
    """Signed values: the orange of keys below zero, white at zero, the blue of queries above."""
    return LinearSegmentedColormap.from_list("signed", [COLORS["key"], PAPER, COLORS["query"]])


def canvas(
    rows: int = 1, columns: int = 1, width: float = FULL, height: float = 2.8, **options: Any
) -> tuple[Figure, Any]:
    """An empty figure in the book's look, and its axes.

    The figure is not known to `pyplot`, so nothing is shown before :func:`figure` shows it.

    Args:
        rows: number of rows of axes.
        columns: number of axes in a row; two make a pair.
        width: inches: `FULL` or `PAIR`.
        height: inches.
        options: what `Figure.subplots` takes, such as `sharey=True`.

    Returns:
        the figure, and its axes as `Figure.subplots` gives them: one, or an array of them.
    """
    drawing = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    axes = drawing.subplots(rows, columns, **options)
    for ax in numpy.atleast_1d(axes).flat:
        style(ax)
    return drawing, axes


def style(ax: Axes) -> Axes:
    """Give axes the book's look: grey lines at the left and the bottom only, small grey labels."""
    ax.set_facecolor("none")
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(AXES)
    ax.tick_params(colors=AXES, labelsize=9, length=3)
    for text in (ax.xaxis.label, ax.yaxis.label, ax.title):
        text.set(color=AXES, size=10)
    return ax


def figure(drawing: Figure | Axes, alt: str, caption: str) -> None:
    """Show a figure with its alternative text and its caption.

    Args:
        drawing: a matplotlib figure, or axes that belong to one.
        alt: what is in the figure, for someone who cannot see it.
        caption: what to see in it, in one sentence of Markdown.

    Raises:
        ValueError: when a text is empty.
    """
    from IPython.display import display

    for name, text in (("alt", alt), ("caption", caption)):
        if not text.strip():
            raise ValueError(f"{name} ({text!r}) must say something about the figure, got no text")
    whole = drawing if isinstance(drawing, Figure) else drawing.figure
    png = base64.b64encode(png_bytes(whole)).decode("ascii")
    display({"image/png": png, "text/plain": alt}, metadata={"image/png": {"alt": alt}}, raw=True)
    display({"text/markdown": caption, "text/plain": caption}, raw=True)


def png_bytes(drawing: Figure) -> bytes:
    """The figure as PNG: transparent, 100 dots an inch, without the name and version of the program."""
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=DPI, transparent=True, metadata={"Software": None})
    return buffer.getvalue()


def attention_heatmap(
    weights: Matrix,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    ax: Axes | None = None,
    mask: Matrix | None = None,
    xlabel: str = "key",
    ylabel: str = "query",
) -> Axes:
    """Attention weights as a grid: queries are rows, keys are columns, white is 0 and blue is 1.

    Args:
        weights: weights or other probabilities, each between 0 and 1.
        queries: a label for each row; numbers from 0 where left out.
        keys: a label for each column.
        ax: where to draw.
        mask: true where a query may attend; other cells are hatched.
        xlabel: name of the columns.
        ylabel: name of the rows.

    Shape:
        weights (T, S), mask (T, S)

    Returns:
        the axes.

    Raises:
        ValueError: when a weight lies outside 0 to 1, or when shapes and labels do not fit.
    """
    cells = as_matrix("weights", weights)
    if cells.size and not (-1e-6 <= cells.min() and cells.max() <= 1 + 1e-6):
        raise ValueError(f"weights ({cells.min():.3g} to {cells.max():.3g}) must lie between 0 and 1")
    seen = None if mask is None else as_matrix("mask", mask).astype(bool)
    if seen is not None and seen.shape != cells.shape:
        raise ValueError(f"mask {seen.shape} must have the shape of weights, got weights {cells.shape}")
    rows, columns = check_labels("queries", queries, len(cells)), check_labels("keys", keys, cells.shape[1])
    ax = draw_cells(cells, ax, sequential(), 0.0, 1.0, rows, columns, seen)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    return ax


def mask_grid(
    mask: Matrix,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    ax: Axes | None = None,
    xlabel: str = "key",
    ylabel: str = "query",
) -> Axes:
    """A mask as a grid: cells that a query may see are filled, all others are hatched.

    Args:
        mask: true where a query may attend.
        queries: a label for each row; numbers from 0 where left out.
        keys: a label for each column.
        ax: where to draw.
        xlabel: name of the columns.
        ylabel: name of the rows.

    Shape:
        mask (T, S)

    Returns:
        the axes.

    Raises:
        ValueError: when the mask has not two dimensions, or a label for each row and column.
    """
    seen = as_matrix("mask", mask).astype(bool)
    rows, columns = check_labels("queries", queries, len(seen)), check_labels("keys", keys, seen.shape[1])
    ax = draw_cells(seen.astype(float), ax, sequential(), 0.0, 1.0, rows, columns, seen, numbers=False)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    return ax


def attention_heads(
    weights: Matrix,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    columns: int = 4,
    xlabel: str = "key",
    ylabel: str = "query",
) -> Figure:
    """The maps of several heads side by side, all on the scale from 0 to 1.

    Args:
        weights: the weights of one layer for one example.
        queries: a label for each row of a map.
        keys: a label for each column of a map.
        names: a title for each head; "head 1" and so on where left out.
        columns: maps in a row.
        xlabel: name of the columns of a map.
        ylabel: name of the rows of a map.

    Shape:
        weights (H, T, S)

    Returns:
        the figure.

    Raises:
        ValueError: when the weights have not three dimensions.
    """
    maps = as_array(weights)
    if maps.ndim != 3:
        raise ValueError(f"weights {maps.shape} must have three dimensions (H, T, S), got {maps.ndim}")
    columns = min(columns, len(maps))
    rows = -(-len(maps) // columns)
    titles = names or [f"head {number + 1}" for number in range(len(maps))]
    side = (FULL - 0.6) / columns
    drawing, axes = canvas(rows, columns, height=rows * (side * maps.shape[1] / maps.shape[2] + 0.35) + 0.3)
    grid = numpy.atleast_2d(axes)
    for number, ax in enumerate(grid.flat):
        if number >= len(maps):
            ax.set_axis_off()
            continue
        row, column = divmod(number, columns)
        attention_heatmap(
            maps[number],
            queries if column == 0 else [""] * maps.shape[1],
            keys if number + columns >= len(maps) else [""] * maps.shape[2],
            ax=ax,
            xlabel=xlabel if number + columns >= len(maps) else "",
            ylabel=ylabel if column == 0 else "",
        )
        ax.set_title(titles[number])
    return drawing


def signed_heatmap(
    matrix: Matrix,
    ax: Axes | None = None,
    limit: float | None = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    xlabel: str = "",
    ylabel: str = "",
) -> Axes:
    """Signed values as a grid: orange below zero, white at zero, blue above, on a scale symmetric about zero.

    Args:
        matrix: the values: embeddings, scores, encodings.
        ax: where to draw.
        limit: the value that gets the full colour; the largest magnitude where left out. Give neighbouring
            figures the same one.
        rows: a label for each row; numbers from 0 where left out.
        columns: a label for each column.
        xlabel: name of the columns.
        ylabel: name of the rows.

    Returns:
        the axes.

    Raises:
        ValueError: when the matrix has not two dimensions, or the limit is not positive.
    """
    cells = as_matrix("matrix", matrix)
    if limit is None:
        limit = float(numpy.abs(cells).max()) or 1.0
    if limit <= 0:
        raise ValueError(f"limit ({limit}) must be positive")
    sides = check_labels("rows", rows, len(cells)), check_labels("columns", columns, cells.shape[1])
    ax = draw_cells(cells, ax, diverging(), -limit, limit, *sides, None)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    return ax


def matrix_grid(
    matrix: Matrix,
    ax: Axes | None = None,
    shape: str = "",
    role: str = "query",
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Axes:
    """A matrix as a grid in the colour of its role, its numbers in the cells and its shape at the edge.

    Args:
        matrix: the values; with more than 64 of them the numbers are left out.
        ax: where to draw.
        shape: the shape as letters, such as "(T, d_model)"; the sizes where left out.
        role: a key of `COLORS`.
        rows: a label for each row; none where left out.
        columns: a label for each column; none where left out.

    Returns:
        the axes.

    Raises:
        ValueError: when the matrix has not two dimensions, or the role is unknown.
    """
    cells = as_matrix("matrix", matrix)
    color = role_color(role)
    height, width = cells.shape
    sides = (
        check_labels("rows", rows or [""] * height, height),
        check_labels("columns", columns or [""] * width, width),
    )
    blank = LinearSegmentedColormap.from_list(role, [PAPER, PAPER])
    ax = draw_cells(cells, ax, blank, 0.0, 1.0, *sides, None, line=color)
    ax.annotate(
        shape or f"({height}, {width})",
        (1, 0),
        xytext=(0, -4 if columns is None else -18),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right",
        va="top",
        color=color,
        size=10,
    )
    return ax


def curves(
    x: Sequence[float] | Matrix,
    series: Mapping[str, Matrix],
    ax: Axes | None = None,
    roles: Sequence[str] | None = None,
    xlabel: str = "",
    ylabel: str = "",
    xscale: str = "linear",
    yscale: str = "linear",
) -> Axes:
    """Lines with their names at their ends, told apart by colour and by stroke.

    Args:
        x: the common abscissa.
        series: for each name, its ordinates.
        ax: where to draw.
        roles: a key of `COLORS` for each line.
        xlabel: name and unit of the abscissa.
        ylabel: name and unit of the ordinate.
        xscale: "linear" or "log".
        yscale: "linear" or "log".

    Returns:
        the axes.

    Raises:
        ValueError: when there are more lines than roles, or a line has another length than `x`.
    """
    at = as_array(x)
    if ax is None:
        _, ax = canvas()
    roles = roles or LINE_ROLES
    if len(series) > len(roles):
        raise ValueError(f"series ({len(series)} lines) must have a role for each, got {len(roles)} roles")
    ax.set(xlabel=xlabel, ylabel=ylabel, xscale=xscale, yscale=yscale)
    ends = []
    for number, (name, values) in enumerate(series.items()):
        y = as_array(values)
        if y.shape != at.shape:
            raise ValueError(f"series[{name!r}] {y.shape} must have the shape of x, got x {at.shape}")
        color = role_color(roles[number])
        ax.plot(at, y, color=color, linestyle=LINE_STYLES[number % len(LINE_STYLES)], linewidth=1.8)
        ends.append((name, y[at.argmax()], color))
    write_ends(ax, at.max(), ends)
    return ax


def token_row(tokens: Sequence[str], ax: Axes | None = None, role: str = "residual") -> Axes:
    """Tokens as a row of rounded boxes, time from left to right.

    Args:
        tokens: the text of each token.
        ax: where to draw.
        role: a key of `COLORS`.

    Returns:
        the axes.

    Raises:
        ValueError: when the role is unknown.
    """
    role_color(role)
    if ax is None:
        _, ax = canvas(height=0.7)
    ax.set(xlim=(-0.5, len(tokens) - 0.5), ylim=(-0.5, 0.5))
    ax.set_axis_off()
    for position, token in enumerate(tokens):
        block(ax, (position, 0), token, role, width=0.84, height=0.7)
    return ax


def block(
    ax: Axes,
    center: tuple[float, float],
    text: str,
    role: str = "residual",
    width: float = 1.0,
    height: float = 0.5,
    size: float = 10,
) -> FancyBboxPatch:
    """A rounded box with a text in it, in the units of the axes: a token, or one part of an architecture.

    Args:
        ax: where to draw.
        center: where its middle lies.
        text: what stands in it.
        role: a key of `COLORS`.
        width: its width.
        height: its height.
        size: of the text, in points.

    Returns:
        the box.

    Raises:
        ValueError: when the role is unknown.
    """
    color = role_color(role)
    x, y = center
    box = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        boxstyle=f"round,pad=0,rounding_size={0.25 * min(width, height)}",
        facecolor=PAPER,
        edgecolor=color,
        linewidth=1.4,
        hatch="////" if role == "masked" else None,
    )
    ax.add_patch(box)
    ax.text(x, y, text, ha="center", va="center", color=INK if role == "masked" else color, size=size)
    return box


def arrow(
    ax: Axes,
    tail: tuple[float, float],
    head: tuple[float, float],
    role: str = "residual",
    text: str = "",
    bend: float = 0.0,
) -> FancyArrowPatch:
    """An arrow along which data flows, with an optional text (mostly a shape) beside its middle.

    Args:
        ax: where to draw.
        tail: where it starts.
        head: where it points.
        role: a key of `COLORS`.
        text: what stands at its right.
        bend: how far it bends, as a share of its length.

    Returns:
        the arrow.

    Raises:
        ValueError: when the role is unknown.
    """
    color = role_color(role)
    line = FancyArrowPatch(
        tail,
        head,
        arrowstyle="-|>",
        mutation_scale=10,
        color=color,
        linewidth=1.4,
        shrinkA=0,
        shrinkB=0,
        connectionstyle=f"arc3,rad={bend}",
    )
    ax.add_patch(line)
    if text:
        middle = ((tail[0] + head[0]) / 2, (tail[1] + head[1]) / 2)
        ax.annotate(text, middle, (5, 0), textcoords="offset points", color=AXES, size=9, va="center")
    return line


def role_color(role: str) -> str:
    """The colour of a role on a light page."""
    if role not in COLORS:
        raise ValueError(f"role ({role!r}) must be one of {', '.join(COLORS)}")
    return COLORS[role]


def as_array(values: Matrix) -> numpy.ndarray:
    """A tensor, array or nested list as a numpy array; a half-precision tensor becomes float64."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    return numpy.asarray(values)


def check_labels(name: str, labels: Sequence[str] | None, count: int) -> list[str] | str:
    """The labels of one side of a grid; "auto" stands for numbers from 0."""
    if labels is None:
        return "auto"
    if len(labels) != count:
        raise ValueError(f"{name} ({len(labels)} labels) must have one label for each of {count} cells")
    return [str(label) for label in labels]


def as_matrix(name: str, values: Matrix) -> numpy.ndarray:
    """Like :func:`as_array`, for what must have two dimensions."""
    cells = as_array(values)
    if cells.ndim != 2:
        raise ValueError(f"{name} {cells.shape} must have two dimensions, got {cells.ndim}")
    return cells


def draw_cells(
    cells: numpy.ndarray,
    ax: Axes | None,
    cmap: LinearSegmentedColormap,
    low: float,
    high: float,
    rows: list[str] | str,
    columns: list[str] | str,
    seen: numpy.ndarray | None,
    numbers: bool = True,
    line: str = AXES,
) -> Axes:
    """The grid under all of these figures: coloured cells, hatched where not seen, up to 64 with numbers."""
    import seaborn

    height, width = cells.shape
    if ax is None:
        _, ax = canvas(height=min(4.2, max(1.2, 0.36 * height + 0.7)))
    is_small = cells.size <= MOST_NUMBERS
    seaborn.heatmap(
        cells,
        vmin=low,
        vmax=high,
        cmap=cmap,
        cbar=False,
        square=is_small or height == width,
        linewidths=0.8 if is_small else 0,
        linecolor=line,
        xticklabels=max(1, width // 8) if columns == "auto" else columns,
        yticklabels=max(1, height // 8) if rows == "auto" else rows,
        rasterized=True,
        ax=ax,
    )
    style(ax)
    ax.spines[:].set(visible=True, color=line)
    ax.tick_params(length=0, rotation=0)
    if columns != "auto" and max(map(len, columns), default=0) * width > 60:
        ax.tick_params(axis="x", rotation=90)
    for row, column in numpy.argwhere(~seen) if seen is not None else ():
        hatch_cell(ax, row, column)
    if numbers and is_small:
        write_numbers(ax, cells, cmap, low, high, seen)
    return ax


def hatch_cell(ax: Axes, row: int, column: int) -> None:
    """Draw one masked cell."""
    fill = COLORS["masked"]
    ax.add_patch(Rectangle((column, row), 1, 1, facecolor=fill, edgecolor=AXES, hatch="////", linewidth=0.8))


def write_numbers(
    ax: Axes,
    cells: numpy.ndarray,
    cmap: LinearSegmentedColormap,
    low: float,
    high: float,
    seen: numpy.ndarray | None,
) -> None:
    """Write each number in the ink that reads best on its cell in both themes; masked cells stay empty."""
    size = 9 if cells.shape[1] <= 6 else 7.5
    for (row, column), value in numpy.ndenumerate(cells):
        if seen is not None and not seen[row, column]:
            continue
        fill = cmap((value - low) / (high - low))[:3]
        text = f"{value:d}" if cells.dtype.kind in "iu" else f"{round(value, 2) + 0.0:.2f}"
        text = text.replace("-", "\N{MINUS SIGN}")
        ink = max((INK, PAPER), key=lambda ink: reads_on(to_rgb(ink), fill))
        ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", size=size, color=ink)


def reads_on(ink: Sequence[float], fill: Sequence[float]) -> float:
    """The contrast of a text on a colour, in the theme where it is worse."""
    return min(contrast(ink, fill), contrast(on_dark_page(ink), on_dark_page(fill)))


def on_dark_page(color: Sequence[float]) -> tuple[float, ...]:
    """What `DARK_FILTER` makes of a colour of red, green and blue between 0 and 1.

    Shape:
        color (3,); output (3,)

    Reference:
        W3C, Filter Effects Module Level 1, sections on invert and hue-rotate.
    """
    bright, grey = 0.92, (0.213, 0.715, 0.072)
    inverted = [bright - (2 * bright - 1) * part for part in color]
    twice_grey = 2 * sum(weight * part for weight, part in zip(grey, inverted, strict=True))
    return tuple(min(1.0, max(0.0, twice_grey - part)) for part in inverted)


def luminance(color: Sequence[float]) -> float:
    """Relative luminance of a colour, red, green and blue between 0 and 1, as in the WCAG guidelines."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """Contrast of two colours: 1 where they are equal, 21 between black and white; text needs 4.5."""
    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def write_ends(ax: Axes, x: float, ends: Sequence[tuple[str, float, str]]) -> None:
    """Write names beside the right ends of lines, moved apart where they would touch."""
    ax.get_ylim()  # settles the limits, which matplotlib puts off
    ends = sorted(ends, key=lambda end: end[1])
    wanted = [ax.transData.transform((x, y))[1] for _, y, _ in ends]
    gap = 13 * DPI / 72  # dots: the height of a line of text
    placed = list(wanted)
    for _ in range(100):  # neighbours push each other until all have room
        for low, high in zip(range(len(ends)), range(1, len(ends)), strict=False):
            push = max(0.0, gap - (placed[high] - placed[low])) / 2
            placed[low], placed[high] = placed[low] - push, placed[high] + push
    for (name, y, color), start, end in zip(ends, wanted, placed, strict=True):
        shift = (5, (end - start) * 72 / DPI)
        ax.annotate(name, (x, y), shift, textcoords="offset points", color=color, size=9, va="center")
