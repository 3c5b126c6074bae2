"""The learning rate over the updates: the paper's warm-up schedule, and a cosine beside it."""

from __future__ import annotations

from collections.abc import Mapping

from ..training import cosine, noam
from .base import Interactive, rounded, table, texts

LABELS = {
    "title": "The learning rate of every update",
    "caption": "The longer the warm-up, the later and the lower the peak; a wider model learns more slowly. "
    "The cosine has the same peak and ends at zero.",
    "warmup": "warm-up",
    "width": "d_model",
    "updates": "updates",
    "noam": "paper",
    "cosine": "cosine",
    "step": "update",
    "rate": "rate × 10⁻³",
    "status": "After {warmup} updates the rate peaks at {peak} × 10⁻³; "
    "after {steps} the paper's schedule is at {last} × 10⁻³.",
    "chart": "Two curves over {steps} updates. Both rise for {warmup} to {peak} thousandths, then fall.",
    "reset": "reset",
}


def learning_rate(
    d_model: int = 512, warmup: int = 4000, steps: int = 20_000, labels: Mapping[str, str] | None = None
) -> Interactive:
    """Show `training.noam` and `training.cosine` with sliders for warm-up, width and length.

    Args:
        d_model: width at the start, one of the powers of two from 64 to 4,096.
        warmup: updates of warm-up at the start.
        steps: updates shown at the start.
        labels: texts that replace those of `LABELS`.

    Raises:
        ValueError: when a start value is not one that its slider offers.
    """
    widths = [2**i for i in range(6, 13)]
    if d_model not in widths:
        raise ValueError(f"d_model ({d_model}) must be one of {', '.join(map(str, widths))}")
    if warmup not in range(500, 16_001, 500):
        raise ValueError(f"warmup ({warmup}) must be a multiple of 500 up to 16,000")
    if steps not in range(10_000, 100_001, 10_000):
        raise ValueError(f"steps ({steps}) must be a multiple of 10,000 up to 100,000")
    words = texts(LABELS, labels)
    peak = noam(warmup, d_model, warmup)
    rows = [round(steps * i / 5) for i in range(6)]
    values = [[1e3 * noam(n, d_model, warmup), 1e3 * cosine(n, peak, warmup, steps)] for n in rows]
    fallback = table(
        rounded(values), [f"{n:,}" for n in rows], [words["noam"], words["cosine"]], words["rate"], 3
    )
    data = {"d_model": d_model, "warmup": warmup, "steps": steps, "widths": widths}
    return Interactive("learning_rate", data, words, fallback)
