"""The feed-forward network: values by hand, parity with torch, properties and error texts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from annotated_transformer import PositionwiseFeedForward
from annotated_transformer.feed_forward import ACTIVATIONS

few = settings(max_examples=20, deadline=None)
sizes = st.sampled_from([1, 2, 3, 5, 7, 11])


def with_weights(w1, b1, w2, b2, activation="relu", dropout=0.0):
    """A network with given weights, written as in the formula: x W1 + b1, so one column a hidden unit."""
    w1, b1, w2, b2 = (torch.tensor(part, dtype=torch.float32) for part in (w1, b1, w2, b2))
    ours = PositionwiseFeedForward(w1.size(0), w1.size(1), dropout, activation)
    with torch.no_grad():
        ours.widen.weight.copy_(w1.T), ours.widen.bias.copy_(b1)
        ours.narrow.weight.copy_(w2.T), ours.narrow.bias.copy_(b2)
    return ours


# by hand


def test_two_relu_units_compute_exclusive_or():
    xor = with_weights([[1, 1], [1, 1]], [0, -1], [[1, 0], [-2, 0]], [0, 0])
    x = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]])
    torch.testing.assert_close(xor(x), torch.tensor([[0.0, 0], [1, 0], [1, 0], [0, 0]]))


def test_biases_are_added_before_and_after_the_bend():
    ours = with_weights([[2, -1, 1]], [-1, 0, 3], [[1], [10], [100]], [0.5])
    # hidden of 3: max(0, 5), max(0, -3), max(0, 6); of -2: max(0, -5), max(0, 2), max(0, 1)
    torch.testing.assert_close(ours(torch.tensor([[3.0], [-2.0]])), torch.tensor([[605.5], [120.5]]))


def test_base_size_has_the_number_of_parameters_of_the_paper():
    base = PositionwiseFeedForward(512, 2048)
    assert sum(p.numel() for p in base.parameters()) == 2_099_712 == 512 * 2048 + 2048 + 2048 * 512 + 512


X = [-2.7, -1.0, 0.5, 2.0]
EXACT = [-0.0093608, -0.1586553, 0.3457312, 1.9544997]
TANH = [-0.0088876, -0.1588080, 0.3457140, 1.9545977]


@pytest.mark.parametrize(("name", "want"), [("gelu", EXACT), ("gelu_tanh", TANH)])
def test_the_two_gelus_give_their_own_values(name, want):
    torch.testing.assert_close(ACTIVATIONS[name](torch.tensor(X)), torch.tensor(want), atol=2e-6, rtol=0)
    diagonal = with_weights([[1]], [0], [[1]], [0], name)
    torch.testing.assert_close(diagonal(torch.tensor([X]).T).T, torch.tensor([want]), atol=2e-6, rtol=0)


def test_the_two_gelus_differ_most_near_2_7():
    x = torch.linspace(-8, 8, 160_001, dtype=torch.float64)
    difference = (ACTIVATIONS["gelu"](x) - ACTIVATIONS["gelu_tanh"](x)).abs()
    assert difference.max().item() == pytest.approx(4.73e-4, abs=1e-6)
    assert abs(x[difference.argmax()].item()) == pytest.approx(2.699, abs=1e-2)


@few
@given(x=st.floats(-20, 20))
def test_activations_follow_their_formulas(x):
    normal = 0.5 * (1 + math.erf(x / math.sqrt(2)))
    tanh = 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    want = {"relu": max(0.0, x), "gelu": x * normal, "gelu_tanh": x * tanh, "silu": x / (1 + math.exp(-x))}
    assert set(want) == set(ACTIVATIONS)
    for name, value in want.items():
        got = ACTIVATIONS[name](torch.tensor(x, dtype=torch.float64))
        assert got.item() == pytest.approx(value, abs=1e-9)


# parity with torch


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_equals_linear_bend_linear_forward_and_backward(name):
    torch.manual_seed(0)
    bend = {"relu": nn.ReLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh"), "silu": nn.SiLU()}[name]
    ours = PositionwiseFeedForward(5, 13, dropout=0.0, activation=name)
    theirs = nn.Sequential(nn.Linear(5, 13), bend, nn.Linear(13, 5))
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    x, y = torch.randn(2, 3, 5, requires_grad=True), torch.randn(2, 3, 5)
    ours(x).mul(y).sum().backward()
    mine, x.grad = x.grad, None
    theirs(x).mul(y).sum().backward()
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(mine, x.grad)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@few
@given(batch=sizes, length=sizes, d_model=sizes, d_ff=sizes)
def test_equals_two_convolutions_of_kernel_size_one(batch, length, d_model, d_ff):
    ours = PositionwiseFeedForward(d_model, d_ff, dropout=0.0)
    x = torch.randn(batch, length, d_model)
    hidden = F.conv1d(x.transpose(1, 2), ours.widen.weight[..., None], ours.widen.bias).relu()
    want = F.conv1d(hidden, ours.narrow.weight[..., None], ours.narrow.bias).transpose(1, 2)
    torch.testing.assert_close(ours(x), want)


# properties


@few
@given(batch=sizes, length=sizes, name=st.sampled_from(sorted(ACTIVATIONS)), seed=st.integers(0, 99))
def test_permuting_positions_permutes_outputs(batch, length, name, seed):
    torch.manual_seed(seed)
    ours = PositionwiseFeedForward(5, 13, dropout=0.0, activation=name)
    x, order = torch.randn(batch, length, 5), torch.randperm(length)
    torch.testing.assert_close(ours(x[:, order]), ours(x)[:, order])


@few
@given(length=sizes, place=st.integers(0, 10), seed=st.integers(0, 99))
def test_changing_a_position_changes_no_other_output(length, place, seed):
    torch.manual_seed(seed)
    ours, place = PositionwiseFeedForward(5, 13, dropout=0.0), place % length
    x = torch.randn(2, length, 5)
    changed = x.clone()
    changed[:, place] += 1
    same = (ours(x) - ours(changed)).abs().amax(dim=(0, 2)) < 1e-6
    assert not same[place] and same.sum() == length - 1


@few
@given(leading=st.lists(st.integers(0, 3), max_size=3))
def test_any_leading_dimensions_are_kept(leading):
    assert PositionwiseFeedForward(5, 13)(torch.randn(*leading, 5)).shape == (*leading, 5)


def test_without_the_bend_it_would_be_affine_and_with_it_it_is_not():
    torch.manual_seed(0)
    ours = PositionwiseFeedForward(5, 13, dropout=0.0)
    a, b, zero = torch.randn(5), torch.randn(5), torch.zeros(5)
    gap = ours(a) + ours(b) - ours(zero) - ours(a + b)
    ours.activation = nn.Identity()
    flat = ours(a) + ours(b) - ours(zero) - ours(a + b)
    assert gap.abs().max() > 1e-2 and flat.abs().max() < 1e-5


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    ours, x = PositionwiseFeedForward(5, 499, dropout=0.5), torch.randn(3, 5)
    assert not torch.equal(ours(x), ours(x))
    ours.eval()
    without = PositionwiseFeedForward(5, 499, dropout=0.0)
    without.load_state_dict(ours.state_dict())
    assert torch.equal(ours(x), ours(x))
    torch.testing.assert_close(ours(x), without(x))


def test_dropout_falls_on_the_hidden_units_and_keeps_their_mean():
    ours = with_weights([[1] * 10_007], [0] * 10_007, [[1]] * 10_007, [7], dropout=0.25)
    torch.manual_seed(0)
    kept = (ours(torch.ones(1, 1)).item() - 7) * 0.75 / 10_007  # the share that survived, without the bias
    assert kept == pytest.approx(0.75, abs=0.02)
    everything = with_weights([[1]], [0], [[1]], [7], dropout=1.0)
    assert everything(torch.ones(1, 1)).item() == 7


def test_dropout_reaches_every_activation_by_default_with_the_rate_of_one_tenth():
    for name in ACTIVATIONS:
        assert PositionwiseFeedForward(3, 5, activation=name).dropout.p == 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_number_formats_keep_their_type(dtype):
    ours = PositionwiseFeedForward(3, 5).to(dtype)
    assert ours(torch.ones(2, 3, dtype=dtype)).dtype == dtype


# error texts


@pytest.mark.parametrize("name", ["swish", "ReLU", "", None])
def test_an_unknown_activation_is_refused_with_the_known_names(name):
    known = "gelu, gelu_tanh, relu, silu"
    with pytest.raises(ValueError, match=rf"activation \({name!r}\) must be one of {known}$"):
        PositionwiseFeedForward(3, 5, activation=name)


@pytest.mark.parametrize(("sizes", "text"), [((0, 5), r"d_model \(0\)"), ((3, -2), r"d_ff \(-2\)")])
def test_sizes_below_one_are_refused(sizes, text):
    with pytest.raises(ValueError, match=text + " must be at least 1"):
        PositionwiseFeedForward(*sizes)


def test_sizes_that_are_not_whole_are_refused():
    with pytest.raises(TypeError, match=r"d_ff \(4\.0\) must be a whole number, got float"):
        PositionwiseFeedForward(3, 4.0)


@pytest.mark.parametrize("dropout", [-0.1, 1.5, float("nan")])
def test_dropout_that_is_no_probability_is_refused(dropout):
    with pytest.raises(ValueError, match=rf"dropout \({dropout}\) must be from 0 to 1"):
        PositionwiseFeedForward(3, 5, dropout)
