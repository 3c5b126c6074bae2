"""Recurrence, convolution and attention: operations, paths, influence, recall."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated_transformer.attention import scaled_dot_product_attention
from annotated_transformer.sequence_models import (
    Attention,
    Convolution,
    Recaller,
    Recurrence,
    count_operations,
    fitted_exponent,
    influence,
    path_length,
    recall_batch,
    sequential_steps,
)

LAYERS = [Recurrence, Convolution, Attention]


def test_recurrence_is_the_formula_step_by_step():
    layer, x = Recurrence(3), torch.randn(2, 5, 3)
    rnn, h = layer.layer, torch.zeros(2, 3)
    for t in range(5):
        h = torch.tanh(
            x[:, t] @ rnn.weight_ih_l0.T + rnn.bias_ih_l0 + h @ rnn.weight_hh_l0.T + rnn.bias_hh_l0
        )
        torch.testing.assert_close(layer(x)[:, t], h)


def test_convolution_is_the_formula_and_sees_only_the_past():
    layer, x = Convolution(3, kernel=2), torch.randn(2, 5, 3)
    weight = layer.layer.weight  # (out, in, kernel), the newest token last
    want = x[:, 3] @ weight[:, :, 0].T + x[:, 4] @ weight[:, :, 1].T + layer.layer.bias
    torch.testing.assert_close(layer(x)[:, 4], want)
    changed = x.clone()
    changed[:, 3:] += 1
    torch.testing.assert_close(layer(changed)[:, :3], layer(x)[:, :3])


def test_attention_is_the_one_of_the_later_chapter():
    layer, x = Attention(7), torch.randn(2, 5, 7)
    output, _ = scaled_dot_product_attention(layer.query(x), layer.key(x), layer.value(x))
    torch.testing.assert_close(layer(x), layer.output(output))
    bare = Attention(7, projections=False)
    torch.testing.assert_close(bare(x), scaled_dot_product_attention(x, x, x)[0])


@settings(max_examples=10, deadline=None)
@given(length=st.integers(1, 40), d=st.integers(1, 23), kernel=st.integers(1, 5))
def test_operations_are_the_formulas_of_the_table(length, d, kernel):
    assert count_operations(Recurrence(d), length, d) == 4 * length * d * d
    assert count_operations(Convolution(d, kernel), length, d) == 2 * kernel * length * d * d
    assert count_operations(Attention(d, projections=False), length, d) == 4 * length * length * d
    assert count_operations(Attention(d), length, d) == 8 * length * d * d + 4 * length * length * d


def test_exponents_come_out_of_counted_operations():
    lengths, widths = (64, 128, 256, 512, 1024, 2048), (16, 32, 64)
    for make, in_length, in_width in (
        (Recurrence, 1, 2),
        (Convolution, 1, 2),
        (lambda d: Attention(d, projections=False), 2, 1),
    ):
        by_length = [count_operations(make(16), n, 16) for n in lengths]
        by_width = [count_operations(make(d), 64, d) for d in widths]
        assert fitted_exponent(lengths, by_length) == pytest.approx(in_length, abs=1e-6)
        assert fitted_exponent(widths, by_width) == pytest.approx(in_width, abs=1e-6)


def test_recurrence_and_attention_cost_the_same_where_length_is_width():
    d = 48
    assert count_operations(Recurrence(d), d, d) == count_operations(Attention(d, projections=False), d, d)


@given(power=st.floats(0.1, 4), factor=st.floats(0.01, 100))
@settings(max_examples=20, deadline=None)
def test_fit_returns_the_exponent_of_a_power(power, factor):
    sizes = [1.0, 2.0, 5.0, 11.0]
    assert fitted_exponent(sizes, [factor * n**power for n in sizes]) == pytest.approx(power, rel=1e-6)


def test_paths_and_steps_of_the_table():
    assert [sequential_steps(kind, 20) for kind in ("recurrence", "convolution", "attention")] == [20, 1, 1]
    assert [path_length("recurrence", k) for k in (0, 1, 10)] == [1, 2, 11]
    assert [path_length("convolution", k, kernel=3) for k in (0, 1, 2, 3, 10)] == [1, 1, 1, 2, 5]
    assert [path_length("attention", k) for k in (0, 1, 10)] == [1, 1, 1]


@settings(max_examples=15, deadline=None)
@given(depth=st.integers(1, 4), kernel=st.integers(2, 4))
def test_a_stack_of_convolutions_reaches_as_far_as_the_path_says(depth, kernel):
    torch.manual_seed(0)
    x = torch.randn(1, 16, 5)
    reach = influence(nn.Sequential(*[Convolution(5, kernel) for _ in range(depth)]), x)
    for distance in range(16):
        seen = reach[15 - distance] > 0
        assert seen == (path_length("convolution", distance, kernel) <= depth)


def test_influence_fades_in_recurrence_and_not_in_attention():
    torch.manual_seed(0)
    x = torch.randn(16, 40, 32)
    recurrent, attending = influence(Recurrence(32), x), influence(Attention(32), x)
    assert recurrent[0] < 1e-6 * recurrent[-1]
    assert attending[0] > 0.05 * attending[-1]


def test_recall_asks_for_the_token_at_the_distance():
    ids, answers = recall_batch(5, 11, 3, 7, torch.Generator().manual_seed(0))
    assert ids.shape == (5, 11) and torch.equal(answers, ids[:, 7]) and ids.max() < 7
    ids, answers = recall_batch(2, 4, 0, 3)
    assert torch.equal(answers, ids[:, -1])


@pytest.mark.parametrize("make", LAYERS)
def test_every_layer_answers_with_scores_of_the_vocabulary(make):
    model = Recaller(make(6), vocab_size=5, d_model=6, length=9)
    assert model(torch.zeros(3, 9, dtype=torch.long)).shape == (3, 5)
    assert make(6)(torch.zeros(0, 4, 6)).shape == (0, 4, 6)


def test_impossible_sizes_and_kinds_are_named():
    for make in LAYERS:
        with pytest.raises(ValueError, match=r"d_model \(0\) must be at least 1"):
            make(0)
    with pytest.raises(ValueError, match=r"length \(0\) must be at least 1"):
        count_operations(Recurrence(4), 0, 4)
    with pytest.raises(ValueError, match=r"d_model \(0\) must be at least 1"):
        count_operations(Recurrence(4), 4, 0)
    with pytest.raises(ValueError, match=r"length \(0\) must be at least 1"):
        sequential_steps("attention", 0)
    with pytest.raises(
        ValueError, match=r"kind \('lstm'\) must be one of recurrence, convolution, attention"
    ):
        path_length("lstm", 3)
    with pytest.raises(ValueError, match=r"kernel \(1\) must be at least 2"):
        path_length("convolution", 3, kernel=1)
    with pytest.raises(ValueError, match=r"distance \(9\) must be below length \(9\)"):
        recall_batch(2, 9, 9, 3)
    with pytest.raises(ValueError, match=r"sizes \(1\) must be two or more"):
        fitted_exponent([3], [4])
    with pytest.raises(ValueError, match=r"must be above 0, got 0"):
        fitted_exponent([1, 2], [0, 4])
