"""The sinusoidal encoding: its table, two columns, products over the distance, turned pairs."""

from __future__ import annotations

from collections.abc import Mapping

from ..positional_encoding import sinusoidal_encoding
from .base import Interactive, rounded, table, texts

LENGTHS = range(4, 101)
WIDTHS = range(8, 129, 8)
LABELS = {
    "title": "Positions as waves and as hands of clocks",
    "caption": "Fast pairs are on the left of the map, slow ones on the right. Move query and key by the "
    "same "
    "number of places: all hands turn, and the angle between two hands of a clock stays.",
    "length": "sequence length",
    "width": "width",
    "pair": "pair",
    "query": "query at position",
    "key": "key at position",
    "map": "Heat map of {length} positions by {width} columns, from −1 to 1; row {query}: sine {sine}, "
    "cosine {cosine}.",
    "table": "The table: position 0 at the top, {last} at the bottom; blue is positive, orange negative",
    "column": "column",
    "first": "0",
    "position": "position",
    "value": "value",
    "sine": "column {column}",
    "cosine": "column {column}",
    "curves": "Sine and cosine of pair {pair} over {length} positions: a wave of {wavelength} positions.",
    "distance": "distance",
    "product": "product of two rows / (d_model / 2)",
    "products": "The product of two rows over their distance: 1 at distance 0, {product} at distance "
    "{distance}.",
    "encoding": "encoding",
    "rotary": "Rotary: query (solid) and key (dashed) start at the top and are turned by their position "
    "times the pair's frequency",
    "dial": "Pair {pair}: query turned by {query} degrees, key by {key} degrees, {between} degrees apart.",
    "dialname": "pair {pair}",
    "apart": "{between}° apart",
    "status": "Pair {pair}: row {query} holds sine {sine} and cosine {cosine}. Query and key are {distance} "
    "places and {between}° "
    "apart; the mean cosine of all {pairs} pairs is {product}.",
    "reset": "reset",
}


def positional_encoding_figure(
    length: int = 20, d_model: int = 64, pair: int = 4, labels: Mapping[str, str] | None = None
) -> Interactive:
    """Show `sinusoidal_encoding` as a map, as curves, by its products, and as rotary pairs.

    Args:
        length: positions at the start, 4 to 100.
        d_model: width at the start, a multiple of 8 up to 128.
        pair: the pair of columns that is drawn at the start.
        labels: texts that replace those of `LABELS`.

    Raises:
        ValueError: when a start value is not one that its slider offers.
    """
    if length not in LENGTHS:
        raise ValueError(f"length ({length}) must be from {LENGTHS[0]} to {LENGTHS[-1]}")
    if d_model not in WIDTHS:
        raise ValueError(f"d_model ({d_model}) must be a multiple of 8 up to {WIDTHS[-1]}")
    if pair not in range(d_model // 2):
        raise ValueError(f"pair ({pair}) must be from 0 to {d_model // 2 - 1}")
    words = texts(LABELS, labels)
    query, key = min(7, length - 1), min(4, length - 1)
    encoding = sinusoidal_encoding(length, d_model)
    columns = sorted({0, 1, 2 * pair, 2 * pair + 1, d_model // 2, d_model // 2 + 1})
    fallback = table(
        rounded(encoding[:8, columns]),
        [str(t) for t in range(min(length, 8))],
        [f"{words['column']} {column}" for column in columns],
        words["position"],
    )
    data = {"length": length, "width": d_model, "pair": pair, "query": query, "key": key}
    data |= {"lengths": [LENGTHS[0], LENGTHS[-1]], "widths": list(WIDTHS)}
    return Interactive("positional_encoding_figure", data, words, fallback)
