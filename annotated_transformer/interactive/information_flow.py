"""Recurrence, convolution and attention side by side: who has heard of whom after so many steps."""

from __future__ import annotations

from collections.abc import Mapping

from ..sequence_models import path_length, sequential_steps
from .base import Interactive, table, texts

KINDS = ("recurrence", "convolution", "attention")
LENGTHS = range(3, 17)
KERNELS = range(2, 7)
WIDTHS = (16, 32, 64, 128, 256, 512)
LABELS = {
    "title": "How information travels",
    "caption": "Filled circles have reached the chosen token. In the grid below, a row is a token and its "
    "filled "
    "cells are the tokens that have reached it. A step is a state of the recurrence, or a layer of the "
    "other two.",
    "length": "tokens n",
    "kernel": "kernel k",
    "width": "width d",
    "step": "step",
    "token": "token",
    "recurrence": "recurrence",
    "convolution": "convolution",
    "attention": "attention",
    "drawing": "{kind} after {step} steps: {reached} of {length} tokens have reached token {token}.",
    "grid": "{kind}: {pairs} of {all} pairs of tokens have met.",
    "reached": "reached {token}",
    "path": "path, first to last",
    "steps": "steps that wait",
    "work": "work",
    "works": "{formula} = {value}",
    "recurrencework": "n · d²",
    "convolutionwork": "k · n · d²",
    "attentionwork": "n² · d",
    "status": "After {step} steps token {token} has heard of {recurrence} tokens in the recurrence, "
    "{convolution} in "
    "the convolution, {attention} in attention.",
    "reset": "reset",
}


def work(kind: str, length: int, d_model: int, kernel: int = 3) -> int:
    """Count multiplications as the usual table does: n·d², k·n·d² or n²·d.

    Raises:
        KeyError: when the kind is not one of `KINDS`.
    """
    counts = {
        "recurrence": length * d_model**2,
        "convolution": kernel * length * d_model**2,
        "attention": length**2 * d_model,
    }
    return counts[kind]


def information_flow(
    length: int = 8, kernel: int = 3, d_model: int = 64, labels: Mapping[str, str] | None = None
) -> Interactive:
    """Show the three ways to mix a sequence, step by step, with path lengths and work.

    Args:
        length: tokens at the start, 3 to 16.
        kernel: tokens that an output of the convolution sees at the start, 2 to 6.
        d_model: width at the start, one of `WIDTHS`.
        labels: texts that replace those of `LABELS`.

    Raises:
        ValueError: when a start value is not one that its slider offers.
    """
    if length not in LENGTHS:
        raise ValueError(f"length ({length}) must be from {LENGTHS[0]} to {LENGTHS[-1]}")
    if kernel not in KERNELS:
        raise ValueError(f"kernel ({kernel}) must be from {KERNELS[0]} to {KERNELS[-1]}")
    if d_model not in WIDTHS:
        raise ValueError(f"d_model ({d_model}) must be one of {', '.join(map(str, WIDTHS))}")
    words = texts(LABELS, labels)
    rows = [
        [
            str(path_length(kind, length - 1, kernel)),
            str(sequential_steps(kind, length)),
            f"{words[kind + 'work']} = {work(kind, length, d_model, kernel):,}",
        ]
        for kind in KINDS
    ]
    fallback = table(
        rows, [words[kind] for kind in KINDS], [words[name] for name in ("path", "steps", "work")]
    )
    data = {"length": length, "kernel": kernel, "width": d_model}
    data |= {"widths": list(WIDTHS), "kinds": list(KINDS)}
    data |= {"lengths": [LENGTHS[0], LENGTHS[-1]], "kernels": [KERNELS[0], KERNELS[-1]]}
    return Interactive("information_flow", data, words, fallback)
