"""Compares a reader's answer to an exercise with the right one and says in words what differs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

UNANSWERED = "not answered yet."


def check(
    answer: Any,
    expected: Any,
    inputs: Sequence[tuple] | None = None,
    name: str = "your answer",
    tolerance: float = 1e-5,
) -> bool:
    """Prints whether an answer is right, and if not, where it differs.

    Args:
        answer: a value, or with `inputs` a function.
        expected: the right value, or with `inputs` the function that computes it.
        inputs: the arguments on which two functions are compared, one tuple a call.
        name: what the answer is called in the verdict.
        tolerance: largest difference between two numbers that count as equal.

    Returns:
        True where the answer is right.

    Raises:
        TypeError: when there are inputs but the expected value is not a function.
        ValueError: when a function is expected and there are no inputs, or when the tolerance is negative.
    """
    if tolerance < 0:
        raise ValueError(f"tolerance ({tolerance}) must not be negative")
    if inputs is not None and not callable(expected):
        raise TypeError(f"expected ({expected!r:.60}) must be a function where inputs are given")
    if not inputs and callable(expected):
        raise ValueError(f"inputs ({inputs}) must hold the arguments of a call where a function is expected")
    if inputs is None:
        fault = difference(answer, expected, tolerance)
    else:
        fault = function_difference(answer, expected, inputs, tolerance)
    print(f"{name}: " + (fault if fault == UNANSWERED else f"not yet. {fault}" if fault else "right."))
    return not fault


def function_difference(answer: Any, expected: Callable, inputs: Sequence[tuple], tolerance: float) -> str:
    """The first input on which two functions differ, and how; an empty string where there is none."""
    if answer is None or answer is ...:
        return UNANSWERED
    if not callable(answer):
        return f"It should be a function, it is of type {type(answer).__name__}."
    for arguments in inputs:
        right = expected(*copy.deepcopy(arguments))
        try:
            got = answer(*copy.deepcopy(arguments))
        except NotImplementedError:
            return UNANSWERED
        except Exception as error:
            return f"On {describe(arguments)} it raised {type(error).__name__}: {error}"
        fault = difference(got, right, tolerance)
        if fault == UNANSWERED:
            return fault
        if fault:
            return f"On {describe(arguments)}: {fault}"
    return ""


def difference(got: Any, right: Any, tolerance: float) -> str:
    """How a value differs from the right one, as a sentence; an empty string where it does not."""
    if (got is None or got is ...) and got is not right:
        return UNANSWERED
    if isinstance(right, Tensor):
        return tensor_difference(got, right, tolerance)
    if isinstance(got, Tensor) and got.numel() == 1 and isinstance(right, (bool, int, float)):
        got = got.item()
    if isinstance(right, bool) or isinstance(right, str) or right is None:
        return "" if type(got) is type(right) and got == right else f"It is {got!r}, expected {right!r}."
    if isinstance(right, (int, float)):
        number = isinstance(got, (int, float)) and not isinstance(got, bool)
        near = number and (got == right or math.isclose(got, right, rel_tol=0, abs_tol=tolerance))
        return "" if near else f"It is {got!r}, expected {right!r}."
    if isinstance(right, (list, tuple)):
        return sequence_difference(got, right, tolerance)
    if isinstance(right, Mapping):
        return mapping_difference(got, right, tolerance)
    return "" if got == right else f"It is {got!r:.60}, expected {right!r:.60}."


def tensor_difference(got: Any, right: Tensor, tolerance: float) -> str:
    """The first of shape, kind and numbers in which a value differs from a tensor."""
    try:
        got = torch.as_tensor(got).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        return f"It should be a tensor, it is of type {type(got).__name__}."
    right = right.detach().cpu()
    if got.shape != right.shape:
        return f"Its shape is {tuple(got.shape)}, expected {tuple(right.shape)}."
    if (got.dtype == torch.bool) != (right.dtype == torch.bool):
        return f"Its type is {got.dtype}, expected {right.dtype}."
    if got.numel() == 0:
        return ""
    gap = torch.where(got == right, 0.0, (got.double() - right.double()).abs()).flatten()
    gap = torch.where(got.isnan().flatten() & right.isnan().flatten(), 0.0, gap).nan_to_num(nan=math.inf)
    worst = int(gap.argmax())
    if gap[worst] <= tolerance:
        return ""
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), right.shape))
    wrong = int((gap > tolerance).sum())
    values = f"at {place} it is {got[place].item():.6g}, expected {right[place].item():.6g}"
    return f"{wrong} of {gap.numel()} numbers differ: {values}."


def sequence_difference(got: Any, right: Sequence, tolerance: float) -> str:
    """The first item in which a value differs from a list or tuple."""
    if not isinstance(got, (list, tuple)):
        return f"It should be a {type(right).__name__}, it is of type {type(got).__name__}."
    if len(got) != len(right):
        return f"It has {len(got)} items, expected {len(right)}."
    for i, (mine, theirs) in enumerate(zip(got, right, strict=True)):
        fault = difference(mine, theirs, tolerance)
        if fault:
            return fault if fault == UNANSWERED else f"Item {i}: {fault}"
    return ""


def mapping_difference(got: Any, right: Mapping, tolerance: float) -> str:
    """The first entry in which a value differs from a dictionary."""
    if not isinstance(got, Mapping):
        return f"It should be a dictionary, it is of type {type(got).__name__}."
    if set(got) != set(right):
        return f"Its keys are {sorted(map(str, got))}, expected {sorted(map(str, right))}."
    for key, theirs in right.items():
        fault = difference(got[key], theirs, tolerance)
        if fault:
            return fault if fault == UNANSWERED else f"Entry {key!r}: {fault}"
    return ""


def describe(arguments: tuple) -> str:
    """The arguments of a call, with tensors by their shape."""
    shapes = [f"a tensor of shape {tuple(a.shape)}" if isinstance(a, Tensor) else "" for a in arguments]
    words = [shape or f"{a!r:.40}" for shape, a in zip(shapes, arguments, strict=True)]
    return f"input ({', '.join(words)})"
