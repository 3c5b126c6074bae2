"""Seeds, devices and the checks of plain arguments."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest
import torch

from annotated_transformer.runtime import check_dropout, check_size, default_device, seed_everything


def draws() -> tuple:
    """One number of each generator that a seed must reach."""
    return random.random(), torch.rand(3).tolist(), torch.randperm(7).tolist()


def test_the_same_seed_gives_the_same_draws():
    seed_everything(5)
    first = draws()
    seed_everything(5)
    assert draws() == first


def test_another_seed_gives_other_draws():
    seed_everything(5)
    python, uniform, order = draws()
    seed_everything(7)
    other = draws()
    assert python != other[0] and uniform != other[1] and order != other[2]


def test_seeding_equals_seeding_each_generator_alone():
    seed_everything(11)
    together = draws()
    random.seed(11)
    torch.manual_seed(11)
    assert draws() == together


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_the_ends_of_the_range_of_seeds_are_accepted(seed):
    seed_everything(seed)
    assert torch.initial_seed() == seed


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_outside_its_range_raises(seed):
    with pytest.raises(ValueError, match=rf"seed \({seed}\) must be from 0 to"):
        seed_everything(seed)


@pytest.mark.parametrize("seed", [1.0, "1", None, True])
def test_a_seed_that_is_not_a_whole_number_raises(seed):
    with pytest.raises(TypeError, match=rf"seed \({seed!r}\) must be a whole number, got"):
        seed_everything(seed)


@pytest.mark.parametrize(
    ("has_cuda", "has_mps", "kind"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_the_default_device_is_the_gpu_where_there_is_one(monkeypatch, has_cuda, has_mps, kind):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(torch.backends, "mps", SimpleNamespace(is_available=lambda: has_mps))
    assert default_device() == torch.device(kind)


def test_the_default_device_holds_a_tensor():
    assert torch.zeros(2, device=default_device()).sum().item() == 0


@pytest.mark.parametrize(("value", "minimum"), [(1, 1), (13, 1), (0, 0), (-3, -3)])
def test_a_size_from_its_minimum_on_is_accepted(value, minimum):
    assert check_size("num_layers", value, minimum) is None


@pytest.mark.parametrize(("value", "minimum"), [(0, 1), (-5, 1), (-1, 0), (2, 3)])
def test_a_size_below_its_minimum_raises(value, minimum):
    with pytest.raises(ValueError, match=rf"num_layers \({value}\) must be at least {minimum}$"):
        check_size("num_layers", value, minimum)


@pytest.mark.parametrize("value", [2.0, "2", None, True, torch.tensor(2)])
def test_a_size_that_is_not_a_whole_number_raises(value):
    with pytest.raises(TypeError, match=rf"d_ff \(.*\) must be a whole number, got {type(value).__name__}$"):
        check_size("d_ff", value)


@pytest.mark.parametrize("dropout", [0, 0.0, 0.1, 1, 1.0])
def test_a_probability_is_accepted_as_dropout(dropout):
    assert check_dropout(dropout) is None


@pytest.mark.parametrize("dropout", [-0.1, 1.5, 10, math.inf, math.nan])
def test_dropout_that_is_not_a_probability_raises(dropout):
    with pytest.raises(ValueError, match=rf"dropout \({dropout}\) must be from 0 to 1"):
        check_dropout(dropout)


@pytest.mark.parametrize("dropout", ["0.1", None, True])
def test_dropout_that_is_not_a_number_raises(dropout):
    with pytest.raises(TypeError, match=rf"dropout \({dropout!r}\) must be a number from 0 to 1"):
        check_dropout(dropout)
