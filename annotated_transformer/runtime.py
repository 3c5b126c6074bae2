"""Seeds, devices and checks of plain arguments: what every chapter uses and none is about."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def seed_everything(seed: int) -> None:
    """Seed Python's and torch's generators, on every device, so that two runs on one machine print the same.

    Args:
        seed: any whole number from 0 to 2**32 - 1.

    Raises:
        TypeError: when `seed` is not a whole number.
        ValueError: when `seed` is outside its range.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed ({seed!r}) must be a whole number, got {type(seed).__name__}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed ({seed}) must be from 0 to 2**32 - 1")
    random.seed(seed)
    torch.manual_seed(seed)


def default_device() -> torch.device:
    """Return the GPU where torch sees one (CUDA first, then Apple's MPS), else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def check_size(name: str, value: int, minimum: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `minimum`.

    Raises:
        TypeError: when it is not a whole number.
        ValueError: when it is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} ({value!r}) must be a whole number, got {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{name} ({value}) must be at least {minimum}")


def check_dropout(dropout: float) -> None:
    """Raise unless `dropout` is a probability.

    Raises:
        TypeError: when it is not a number.
        ValueError: when it is outside 0 to 1 (a NaN is).
    """
    if isinstance(dropout, bool) or not isinstance(dropout, int | float):
        raise TypeError(f"dropout ({dropout!r}) must be a number from 0 to 1, got {type(dropout).__name__}")
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout ({dropout}) must be from 0 to 1")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch every part of the model to eval mode and gradients off; afterwards each part is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
