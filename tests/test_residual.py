"""Residual connections: values by hand, parity with torch, properties and error texts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from annotated_transformer import SublayerConnection
from annotated_transformer.residual import residuals

few = settings(max_examples=20, deadline=None)
orders = pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
sizes = st.sampled_from([1, 2, 3, 5, 7, 11])


def connect(d_model, norm_first=True, dropout=0.0, norm=None):
    return SublayerConnection(norm or nn.LayerNorm(d_model), dropout, norm_first)


def zero(x):
    return torch.zeros_like(x)


# by hand

ONE_HOT = torch.tensor([1.0, 0, 0, 0])
BIASED = torch.tensor([1.7320046, -0.5773348, -0.5773348, -0.5773348])


def test_the_norm_divides_by_the_biased_deviation_with_eps_inside_the_root():
    (connection,) = residuals(1, 4, norm_first=False)
    torch.testing.assert_close(connection.eval()(ONE_HOT, zero), BIASED, atol=2e-6, rtol=0)
    unbiased = (ONE_HOT - ONE_HOT.mean()) / (ONE_HOT.std() + 1e-5)  # what a popular hand-written norm gives
    assert unbiased[0].item() == pytest.approx(1.5, abs=1e-4)


@few
@given(width=st.integers(2, 40), seed=st.integers(0, 99), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_the_norm_of_every_connection_is_the_biased_one(width, seed, scale):
    torch.manual_seed(seed)
    x = torch.randn(3, width, dtype=torch.float64) * scale
    (connection,) = residuals(1, width, norm_first=False).double().eval()
    centred = x - x.mean(dim=-1, keepdim=True)
    want = centred / (centred.pow(2).sum(dim=-1, keepdim=True) / width + 1e-5).sqrt()
    torch.testing.assert_close(connection(x, zero), want)


def test_pre_norm_adds_the_sublayer_of_the_norm_to_the_untouched_input():
    want = ONE_HOT + 10 * BIASED
    torch.testing.assert_close(connect(4)(ONE_HOT, lambda y: 10 * y), want, atol=2e-5, rtol=0)


def test_post_norm_normalises_the_sum():
    # x + f(x) = 11 times one-hot; the norm forgets the factor
    got = connect(4, norm_first=False)(ONE_HOT, lambda y: 10 * y)
    torch.testing.assert_close(got, torch.tensor([3.0, -1, -1, -1]) / math.sqrt(3), atol=1e-5, rtol=0)


def test_a_layer_of_the_base_model_has_1024_parameters_in_each_norm():
    assert [sum(p.numel() for p in c.parameters()) for c in residuals(3, 512)] == [1024] * 3


# parity with torch


@few
@given(batch=sizes, length=sizes, width=st.integers(2, 23), norm_first=st.booleans(), seed=st.integers(0, 99))
def test_equals_the_formula_with_torchs_layer_norm(batch, length, width, norm_first, seed):
    torch.manual_seed(seed)
    norm, sublayer = nn.LayerNorm(width), nn.Linear(width, width)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2), norm.bias.uniform_(-1, 1)
    x, y = torch.randn(batch, length, width, requires_grad=True), torch.randn(batch, length, width)

    def normal(z):
        return F.layer_norm(z, (width,), norm.weight, norm.bias)

    want = x + sublayer(normal(x)) if norm_first else normal(x + sublayer(x))
    (want_grad,) = torch.autograd.grad(want.mul(y).sum(), x)
    got = connect(width, norm_first, norm=norm)(x, sublayer)
    (got_grad,) = torch.autograd.grad(got.mul(y).sum(), x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(got_grad, want_grad)


# properties


@few
@given(leading=st.lists(st.integers(0, 3), max_size=3), norm_first=st.booleans())
def test_the_shape_is_kept_for_any_leading_dimensions(leading, norm_first):
    assert connect(5, norm_first)(torch.randn(*leading, 5), nn.Linear(5, 5)).shape == (*leading, 5)


@few
@given(seed=st.integers(0, 99), size=st.floats(0.1, 1000))
def test_a_silent_sublayer_leaves_pre_norm_input_as_it_was_and_post_norm_input_normalised(seed, size):
    torch.manual_seed(seed)
    x = torch.randn(2, 3, 17) * size + 5
    assert torch.equal(connect(17)(x, zero), x)
    post = connect(17, norm_first=False)(x, zero)
    torch.testing.assert_close(post.mean(-1), torch.zeros(2, 3), atol=1e-5, rtol=0)
    want = (x.var(-1, correction=0) / (x.var(-1, correction=0) + 1e-5)).sqrt()
    torch.testing.assert_close(post.std(-1, correction=0), want, atol=1e-4, rtol=0)


@few
@given(depth=st.integers(1, 40), seed=st.integers(0, 99))
def test_the_gradient_of_a_pre_norm_stack_reaches_the_input_unchanged_along_the_path(depth, seed):
    torch.manual_seed(seed)
    x, y = torch.randn(3, 7, requires_grad=True), torch.randn(3, 7)
    out = x
    for connection in residuals(depth, 7, dropout=0.0):
        out = connection(out, lambda z: 0 * z)
    (grad,) = torch.autograd.grad(out.mul(y).sum(), x)
    torch.testing.assert_close(grad, y)


@orders
def test_dropout_falls_on_the_branch_and_never_on_the_path(norm_first):
    torch.manual_seed(0)
    x = torch.randn(5, 1009)
    connection = connect(1009, norm_first, dropout=0.3)
    lost = connection(x, lambda y: torch.full_like(y, 1e4))
    if norm_first:
        branch = lost - x
        torch.testing.assert_close(branch[branch > 1], torch.full_like(branch[branch > 1], 1e4 / 0.7))
        assert (branch < 1).float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert not torch.equal(lost, connection(x, lambda y: torch.full_like(y, 1e4)))
    everything = connect(1009, norm_first, dropout=1.0)
    want = x if norm_first else F.layer_norm(x, (1009,))
    torch.testing.assert_close(everything(x, lambda y: y + 1e4), want)


@orders
def test_in_eval_mode_nothing_is_dropped(norm_first):
    torch.manual_seed(0)
    x, sublayer = torch.randn(5, 7), nn.Linear(7, 7)
    dropping = connect(7, norm_first, dropout=0.5).eval()
    assert torch.equal(dropping(x, sublayer), dropping(x, sublayer))
    torch.testing.assert_close(dropping(x, sublayer), connect(7, norm_first)(x, sublayer))


@orders
def test_the_input_is_not_changed_in_place(norm_first):
    x = torch.randn(3, 5)
    before = x.clone()
    connect(5, norm_first)(x, lambda y: y + 1)
    assert torch.equal(x, before)


@orders
def test_residuals_makes_separate_connections_with_all_options(norm_first):
    made = residuals(3, 7, dropout=0.4, norm_first=norm_first)
    options = [(c.norm_first, c.dropout.p, c.norm.normalized_shape) for c in made]
    assert options == [(norm_first, 0.4, (7,))] * 3
    assert len({id(c.norm.weight) for c in made}) == 3
    assert len(residuals(2, 7)) == 2 and residuals(2, 7)[0].norm_first and residuals(2, 7)[0].dropout.p == 0.1


@orders
def test_any_norm_can_be_injected(norm_first):
    x = torch.randn(3, 8)
    for norm in (nn.RMSNorm(8), nn.Identity()):
        want = x + 2 * norm(x) if norm_first else norm(x + 2 * x)
        torch.testing.assert_close(connect(8, norm_first, norm=norm)(x, lambda y: 2 * y), want)


# error texts


@orders
def test_an_input_of_another_width_is_refused_with_both_numbers(norm_first):
    text = r"x \(shape \(2, 3\)\) must end in the width of the norm \(5,\)"
    for norm in (nn.LayerNorm(5), nn.RMSNorm(5)):
        with pytest.raises(ValueError, match=text):
            connect(5, norm_first, norm=norm)(torch.randn(2, 3), zero)
    with pytest.raises(ValueError, match=r"x \(shape \(\)\) must end in the width of the norm \(5,\)"):
        connect(5, norm_first)(torch.tensor(1.0), zero)


@orders
@pytest.mark.parametrize("shape", [(2, 3, 1), (1, 3, 5), (3, 5), (2, 2, 3, 5)])
def test_a_sublayer_that_changes_the_shape_is_refused_even_where_the_sum_would_broadcast(norm_first, shape):
    numbers = ", ".join(map(str, shape))
    text = rf"sublayer \(output \({numbers}\)\) must keep the shape of x, got x \(2, 3, 5\)"
    with pytest.raises(ValueError, match=text):
        connect(5, norm_first)(torch.randn(2, 3, 5), lambda y: torch.zeros(shape))


@pytest.mark.parametrize("dropout", [-0.1, 1.5, float("nan")])
def test_dropout_that_is_no_probability_is_refused(dropout):
    with pytest.raises(ValueError, match=rf"dropout \({dropout}\) must be from 0 to 1"):
        connect(5, dropout=dropout)
    with pytest.raises(ValueError, match=rf"dropout \({dropout}\) must be from 0 to 1"):
        residuals(2, 5, dropout)


@pytest.mark.parametrize(("sizes", "text"), [((0, 5), r"count \(0\)"), ((2, -5), r"d_model \(-5\)")])
def test_sizes_below_one_are_refused(sizes, text):
    with pytest.raises(ValueError, match=text + " must be at least 1"):
        residuals(*sizes)
