"""Masks and attention: values by hand, both paths against torch, properties, half precision, error texts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer import causal_mask, padding_mask, scaled_dot_product_attention, target_mask
from annotated_transformer.attention import attention_weights, check_mask, fused_attention

few = settings(max_examples=20, deadline=None)
sizes = st.sampled_from([1, 2, 3, 5, 7])
B, H, T, S, D, D_V = 2, 3, 5, 7, 11, 13
HALF = [torch.float16, torch.bfloat16]
DTYPES = [torch.float32, *HALF]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# rows that see one key, several keys, all keys and none
ROWS = [[1, 0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0, 1], [1] * 7, [0] * 7, [0, 0, 0, 0, 0, 0, 1]]
UNEVEN = torch.tensor(ROWS).bool()
MASKS = {
    "none": None,
    "causal": causal_mask(T, S),
    "padding": (torch.arange(S) < torch.tensor([[7], [2]]))[:, None, None, :],
    "uneven": UNEVEN,
    "per head": torch.arange(H * T * S).reshape(1, H, T, S) % 3 > 0,
    "column": torch.tensor([True, True, False, True, True]).reshape(T, 1),
    "nothing": torch.zeros(1, 1, 1, 1, dtype=torch.bool),
}
masks = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def wave(*shape, a=1.0, dtype=torch.float32):
    """Closed-form numbers, the same everywhere."""
    return (torch.arange(1, math.prod(shape) + 1, dtype=torch.float64) * a).sin().to(dtype).reshape(shape)


def inputs(dtype=torch.float32, batch=B, device="cpu"):
    """A query, a key and a value, each of other sizes."""
    shapes = ((batch, H, T, D, 1.0), (batch, H, S, D, 0.7), (batch, H, S, D_V, 1.3))
    return [wave(*shape, a=a, dtype=dtype).to(device).requires_grad_() for *shape, a in shapes]


def gradients(output, tensors):
    weighting = wave(*output.shape, a=0.3, dtype=output.dtype).to(output.device)
    return torch.autograd.grad(output, tensors, weighting)


def reference(query, key, value, allow):
    """Attention with Python's loops: one query, one key at a time."""
    rows = []
    for q, seen in zip(query.tolist(), allow.tolist(), strict=True):
        exponents = [
            math.exp(sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q))) if s else 0.0
            for k, s in zip(key.tolist(), seen, strict=True)
        ]
        total = sum(exponents) or 1.0
        rows.append([sum(e / total * v[i] for e, v in zip(exponents, value.tolist(), strict=True))
                     for i in range(value.size(1))])  # fmt: skip
    return torch.tensor(rows)


# masks


def test_a_causal_mask_lets_each_query_see_itself_and_what_came_before():
    mask = causal_mask(4)
    assert mask.dtype == torch.bool and mask.shape == (1, 1, 4, 4)
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert causal_mask(1).tolist() == [[[[True]]]]


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ((2, 5), [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
        ((1, 4), [[1, 1, 1, 1]]),
        ((3, 3), [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        ((0, 3), []),
    ],
)
def test_the_last_query_is_aligned_with_the_last_key(lengths, rows):
    assert causal_mask(*lengths)[0, 0].int().tolist() == rows


@few
@given(length=sizes, more=st.integers(0, 5))
def test_a_causal_mask_with_more_keys_is_the_end_of_the_square_one(length, more):
    total = length + more
    assert torch.equal(causal_mask(length, total), causal_mask(total)[:, :, more:])
    assert causal_mask(length, total).sum().item() == length * more + length * (length + 1) // 2


def test_a_padding_mask_hides_one_id_from_every_query():
    mask = padding_mask(torch.tensor([[5, 3, 0], [4, 0, 0]]), pad_id=0)
    assert mask.dtype == torch.bool and mask.shape == (2, 1, 1, 3)
    assert mask.int().tolist() == [[[[1, 1, 0]]], [[[1, 0, 0]]]]
    assert padding_mask(torch.tensor([[0, 9]]), pad_id=9).tolist() == [[[[True, False]]]]


def test_a_target_mask_hides_padding_and_future():
    mask = target_mask(torch.tensor([[5, 3, 8], [4, 7, 0]]), pad_id=0)
    assert mask.shape == (2, 1, 3, 3)
    assert mask[:, 0].int().tolist() == [[[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 0, 0], [1, 1, 0], [1, 1, 0]]]


@few
@given(batch=sizes, length=sizes, pad=st.integers(0, 3))
def test_a_target_mask_is_both_rules_at_once(batch, length, pad):
    tgt = torch.arange(batch * length).reshape(batch, length) % 4
    mask = target_mask(tgt, pad)
    for b in range(batch):
        for i in range(length):
            seen = [j <= i and tgt[b, j].item() != pad for j in range(length)]
            assert mask[b, 0, i].tolist() == seen


# values by hand


def test_equal_scores_share_the_weight_over_the_allowed_keys():
    # the values are the identity, so the output is the weights
    query, key, value = torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2), torch.eye(4)[None, None]
    output, weights = scaled_dot_product_attention(query, key, value, causal_mask(4))
    expected = torch.tensor([[1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [1 / 4] * 4])
    torch.testing.assert_close(output[0, 0], expected)
    torch.testing.assert_close(weights[0, 0], expected)
    # the opposite polarity would give 0, 1/3, 1/3, 1/3 in the first row and nothing in the last
    opposite, _ = scaled_dot_product_attention(query, key, value, ~causal_mask(4))
    torch.testing.assert_close(opposite[0, 0, 0], torch.tensor([0, 1 / 3, 1 / 3, 1 / 3]))
    assert (opposite[0, 0, 3] == 0).all()


def test_scores_are_divided_by_the_root_of_the_width():
    # width 4: the scores are 2 * 2 ln 3 / 2 = ln 9 and 0, so the weights are 9/10 and 1/10
    query = torch.tensor([[2.0, 0, 0, 0]])
    key = torch.tensor([[2 * math.log(3), 0, 0, 0], [0, 1.0, 0, 0]])
    output, weights = scaled_dot_product_attention(query, key, torch.tensor([[10.0, 0], [0, 20]]))
    torch.testing.assert_close(weights, torch.tensor([[0.9, 0.1]]))
    torch.testing.assert_close(output, torch.tensor([[9.0, 2.0]]))


def test_a_query_that_may_attend_to_nothing_gets_zeros_and_finite_gradients():
    query, key, value = (wave(1, 1, 3, 4, a=a).requires_grad_() for a in (1.0, 0.7, 1.3))
    allow = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 1, 0]]).bool()
    expected = torch.tensor(
        [[0.963558, 0.515501, -0.687766, -0.883455], [0, 0, 0, 0], [0.353657, 0.909131, 0.132726, -0.838123]]
    )
    output, weights = scaled_dot_product_attention(query, key, value, allow)
    torch.testing.assert_close(output[0, 0], expected, atol=2e-6, rtol=0)
    torch.testing.assert_close(fused_attention(query, key, value, allow)[0, 0], expected, atol=2e-6, rtol=0)
    assert (weights[0, 0, 1] == 0).all() and (output[0, 0, 1] == 0).all()
    for result in (output, fused_attention(query, key, value, allow)):
        grads = torch.autograd.grad(result.sum(), (query, key, value))
        assert all(torch.isfinite(grad).all() for grad in grads)
        assert (grads[0][0, 0, 1] == 0).all(), "a blind query must not be pushed anywhere"


def test_no_step_of_the_backward_pass_is_nan():
    query, key, value = inputs()
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        for mask in (UNEVEN, MASKS["nothing"]):
            output, weights = scaled_dot_product_attention(query, key, value, mask)
            (output.sum() + weights.sum()).backward()


# parity


@masks
@pytest.mark.parametrize("device", DEVICES)
def test_explicit_and_fused_agree_forward_and_backward(mask, device):
    tensors = inputs(device=device)
    mask = None if mask is None else mask.to(device)
    explicit, _ = scaled_dot_product_attention(*tensors, mask)
    fused = fused_attention(*tensors, mask)
    torch.testing.assert_close(explicit, fused, atol=1e-5, rtol=0)
    for ours, theirs in zip(gradients(explicit, tensors), gradients(fused, tensors), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@masks
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_both_paths_agree_with_float32_in_half_precision(mask, dtype, device):
    halves = inputs(dtype, device=device)
    mask = None if mask is None else mask.to(device)
    exact = [tensor.detach().float().requires_grad_() for tensor in halves]
    right, _ = scaled_dot_product_attention(*exact, mask)
    wanted = gradients(right, exact)
    bound = {torch.float16: 6e-3, torch.bfloat16: 5e-2}[dtype]
    for output in (scaled_dot_product_attention(*halves, mask)[0], fused_attention(*halves, mask)):
        assert output.dtype == dtype
        torch.testing.assert_close(output.float(), right, atol=bound, rtol=bound)
        for ours, want in zip(gradients(output, halves), wanted, strict=True):
            torch.testing.assert_close(ours.float(), want, atol=bound, rtol=bound)
        if mask is not None:
            blind = ~mask.any(-1, keepdim=True).expand(B, H, T, 1)
            assert (output.masked_select(blind) == 0).all()


def test_the_causal_mask_gives_what_torch_gives_with_its_own_flag():
    query, key, value = (wave(2, 3, 7, 5, a=a) for a in (1.0, 0.7, 1.3))
    ours, _ = scaled_dot_product_attention(query, key, value, causal_mask(7))
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(query, key, value, is_causal=True))


@masks
def test_attention_is_the_loop_over_queries_and_keys(mask):
    query, key, value = inputs()
    output, _ = scaled_dot_product_attention(query, key, value, mask)
    allow = torch.ones(B, H, T, S, dtype=torch.bool) if mask is None else mask.expand(B, H, T, S)
    for b, h in ((0, 0), (1, 2)):
        expected = reference(query[b, h], key[b, h], value[b, h], allow[b, h])
        torch.testing.assert_close(output[b, h], expected)


def test_leading_dimensions_are_free():
    query, key, value = inputs()
    whole, weights = scaled_dot_product_attention(query, key, value)
    alone, alone_weights = scaled_dot_product_attention(query[1, 2], key[1, 2], value[1, 2])
    torch.testing.assert_close(whole[1, 2], alone)
    torch.testing.assert_close(weights[1, 2], alone_weights)
    five, _ = scaled_dot_product_attention(query[None], key[None], value[None], MASKS["padding"])
    assert five.shape == (1, B, H, T, D_V)


# properties


@few
@given(batch=sizes, queries=sizes, keys=sizes, width=sizes, seed=st.integers(0, 99))
def test_rows_sum_to_one_or_are_zero(batch, queries, keys, width, seed):
    chance = torch.Generator().manual_seed(seed)
    share = torch.rand(1, generator=chance)  # of allowed keys
    query = torch.randn(batch, 2, queries, width, generator=chance) * 5
    key = torch.randn(batch, 2, keys, width, generator=chance) * 5
    mask = torch.rand(batch, 1, queries, keys, generator=chance) < share
    weights = attention_weights(query, key, mask)
    assert weights.shape == (batch, 2, queries, keys) and (weights >= 0).all()
    assert (weights.masked_select(~mask) == 0).all()
    torch.testing.assert_close(weights.sum(-1), mask.any(-1).expand(batch, 2, queries).float())


@few
@given(length=st.integers(2, 9), at=st.integers(0, 8), seed=st.integers(0, 99))
def test_future_tokens_do_not_change_past_outputs(length, at, seed):
    at = 1 + at % (length - 1)
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 1, length, 3, generator=chance)
    changed = x.clone()
    changed[:, :, at:] += 10
    for path in (lambda y: scaled_dot_product_attention(y, y, y, causal_mask(length))[0],
                 lambda y: fused_attention(y, y, y, causal_mask(length))):  # fmt: skip
        torch.testing.assert_close(path(x)[:, :, :at], path(changed)[:, :, :at])
        assert (path(x)[:, :, at:] - path(changed)[:, :, at:]).abs().max() > 1


@few
@given(batch=sizes, length=sizes, padding=st.integers(0, 4), seed=st.integers(0, 99))
def test_padding_changes_nothing(batch, length, padding, seed):
    chance = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 9, (batch, length), generator=chance)
    x = torch.randn(batch, 1, length, 3, generator=chance)
    longer = torch.cat([x, torch.full((batch, 1, padding, 3), 50.0)], dim=2)
    mask = padding_mask(F.pad(ids, (0, padding)), pad_id=0)
    alone, _ = scaled_dot_product_attention(x, x, x)
    padded, weights = scaled_dot_product_attention(longer, longer, longer, mask)
    torch.testing.assert_close(padded[:, :, :length], alone)
    assert (weights[..., length:] == 0).all()


def test_a_padding_mask_belongs_to_its_sequence_also_where_batch_equals_length():
    lengths, x = (3, 2, 1), wave(3, 1, 3, 8)
    ids = torch.tensor([[4, 5, 6], [4, 5, 0], [4, 0, 0]])
    for attend in (lambda y, m: scaled_dot_product_attention(y, y, y, m)[0],
                   lambda y, m: fused_attention(y, y, y, m)):  # fmt: skip
        output = attend(x, padding_mask(ids, 0))
        for b, length in enumerate(lengths):
            alone = attend(x[b : b + 1, :, :length], None)
            torch.testing.assert_close(output[b, :, :length], alone[0])
        # the bare (B, S) mask fits the scores too, as (T, S): it hides keys of the wrong sequence
        assert (attend(x, ids != 0)[0] - output[0]).abs().max() > 1e-3


@few
@given(length=st.integers(1, 9), seed=st.integers(0, 99))
def test_permuted_tokens_give_permuted_outputs(length, seed):
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, length, 5, generator=chance)
    order = torch.randperm(length, generator=chance)
    output, weights = scaled_dot_product_attention(x, x, x)
    moved, moved_weights = scaled_dot_product_attention(*[x[:, :, order]] * 3)
    torch.testing.assert_close(moved, output[:, :, order])
    torch.testing.assert_close(moved_weights, weights[:, :, order][..., order])


@few
@given(queries=sizes, keys=sizes, seed=st.integers(0, 99))
def test_an_output_lies_between_the_values(queries, keys, seed):
    chance = torch.Generator().manual_seed(seed)
    query, key = torch.randn(queries, 3, generator=chance), torch.randn(keys, 3, generator=chance)
    value = torch.randn(keys, 2, generator=chance)
    output, _ = scaled_dot_product_attention(query, key, value)
    assert (output >= value.amin(0) - 1e-5).all() and (output <= value.amax(0) + 1e-5).all()


def test_operations_grow_with_the_square_of_the_length():
    counts = []
    for length in (8, 16, 32):
        x = torch.zeros(1, 1, length, 4)
        with FlopCounterMode(display=False) as counter:
            scaled_dot_product_attention(x, x, x)
        counts.append(counter.get_total_flops())
    assert counts == [2 * 2 * n * n * 4 for n in (8, 16, 32)]


# dropout


def test_the_returned_weights_are_those_before_dropout():
    query, key, value = inputs()
    output, weights = scaled_dot_product_attention(query, key, value, dropout=0.5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T))
    plain, _ = scaled_dot_product_attention(query, key, value)
    assert not torch.equal(output, plain)


@pytest.mark.parametrize("mask", [None, MASKS["uneven"]], ids=["no mask", "mask"])
def test_dropout_keeps_the_mean_of_the_output(mask):
    torch.manual_seed(0)
    query, key, value = (tensor[:1, :1].detach().expand(4000, 1, -1, -1) for tensor in inputs())
    plain, _ = scaled_dot_product_attention(query[:1], key[:1], value[:1], mask)
    for output in (
        scaled_dot_product_attention(query, key, value, mask, dropout=0.3)[0],
        fused_attention(query, key, value, mask, dropout=0.3),
    ):
        assert output.std(dim=0).max() > 0.1
        torch.testing.assert_close(output.mean(0, keepdim=True), plain, atol=0.06, rtol=0)


def test_full_dropout_passes_nothing_on():
    query, key, value = inputs()
    output, weights = scaled_dot_product_attention(query, key, value, dropout=1.0)
    assert (output == 0).all() and (weights > 0).all()


# half precision


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sign", [1, -1], ids=["+15000", "-15000"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_masked_key_loses_to_an_allowed_one_whatever_the_scores(dtype, sign, device):
    query = torch.full((1, 1, 1, 1), 150.0 * sign, dtype=dtype, device=device)
    key = torch.full((1, 1, 2, 1), 100.0, dtype=dtype, device=device)
    value = torch.tensor([1.0, 2.0], dtype=dtype, device=device).reshape(1, 1, 2, 1)
    for allowed, expected in (([True, False], 1.0), ([False, True], 2.0)):
        mask = torch.tensor([[allowed]], device=device).unsqueeze(0)
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        assert output.item() == expected and weights.flatten().tolist() == [float(a) for a in allowed]
        assert fused_attention(query, key, value, mask).item() == expected
        at_zero, _ = scaled_dot_product_attention(query * 0, key, value, mask)
        assert at_zero.item() == expected and at_zero.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_of_15000_have_finite_gradients(dtype):
    query = torch.tensor([[150.0], [-150.0], [150.0]], dtype=dtype).reshape(1, 1, 3, 1).requires_grad_()
    key = torch.tensor([[100.0], [-100.0]], dtype=dtype).reshape(1, 1, 2, 1).requires_grad_()
    value = torch.tensor([[1.0], [2.0]], dtype=dtype).reshape(1, 1, 2, 1).requires_grad_()
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    for output in (
        scaled_dot_product_attention(query, key, value, mask)[0],
        fused_attention(query, key, value, mask),
    ):
        assert output.flatten().tolist() == [1.0, 2.0, 0.0]
        assert all(torch.isfinite(grad).all() for grad in gradients(output, (query, key, value)))


def test_a_wide_head_does_not_overflow_float16():
    # the bare dot product, 40 * 40 * 64 = 102,400, is beyond float16's 65,504; divided by 8 it is 12,800
    x = torch.full((1, 1, 2, 64), 40.0, dtype=torch.float16)
    output, weights = scaled_dot_product_attention(x, x, x)
    assert weights.flatten().tolist() == [0.5] * 4 and (output == 40).all()


# empty inputs


@pytest.mark.parametrize("mask", [None, causal_mask(T, S)], ids=["no mask", "mask"])
def test_an_empty_batch_gives_an_empty_output(mask):
    query, key, value = inputs(batch=0)
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    assert output.shape == (0, H, T, D_V) and weights.shape == (0, H, T, S)
    assert fused_attention(query, key, value, mask).shape == (0, H, T, D_V)
    assert padding_mask(torch.zeros(0, 3, dtype=torch.long), 0).shape == (0, 1, 1, 3)
    assert target_mask(torch.zeros(0, 3, dtype=torch.long), 0).shape == (0, 1, 3, 3)


@pytest.mark.parametrize("mask", [None, torch.ones(1, 1, 1, 0, dtype=torch.bool)], ids=["no mask", "mask"])
def test_without_keys_the_output_is_zero(mask):
    query, key, value = torch.ones(2, 3, 5, 7), torch.ones(2, 3, 0, 7), torch.ones(2, 3, 0, 11)
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    assert weights.shape == (2, 3, 5, 0) and torch.equal(output, torch.zeros(2, 3, 5, 11))
    assert torch.equal(fused_attention(query, key, value, mask), output)


# errors


@pytest.mark.parametrize(("length", "key_length"), [(4, 2), (1, 0), (7, 6)])
def test_more_queries_than_keys_raise(length, key_length):
    with pytest.raises(ValueError, match=rf"length \({length}\) must not exceed key_length \({key_length}\)"):
        causal_mask(length, key_length)


def test_lengths_must_be_whole_numbers_from_zero():
    with pytest.raises(ValueError, match=r"^length \(-1\) must be at least 0"):
        causal_mask(-1)
    with pytest.raises(ValueError, match=r"key_length \(-2\) must be at least 0"):
        causal_mask(0, -2)
    with pytest.raises(TypeError, match=r"^length \(2.0\) must be a whole number, got float"):
        causal_mask(2.0)
    with pytest.raises(TypeError, match=r"^length \(tensor\(\[3\]\)\) must be a whole number, got Tensor"):
        causal_mask(torch.tensor([3]))


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5)])
@pytest.mark.parametrize("make", [padding_mask, target_mask])
def test_ids_need_two_dimensions(make, shape):
    with pytest.raises(ValueError) as error:
        make(torch.zeros(shape, dtype=torch.long), 0)
    assert str(error.value) == f"ids must have two dimensions (B, S), got {shape}"


PATHS = pytest.mark.parametrize("attend", [scaled_dot_product_attention, fused_attention])


@PATHS
@pytest.mark.parametrize(
    ("mask", "got"),
    [
        (torch.ones(T, S), "torch.float32"),
        (torch.ones(T, S, dtype=torch.long), "torch.int64"),
        (torch.ones(T, S, dtype=torch.uint8), "torch.uint8"),
        ([[True] * S] * T, "list"),
        (True, "bool"),
    ],
)
def test_masks_that_are_not_boolean_raise(attend, mask, got):
    with pytest.raises(TypeError, match=rf"mask must be a boolean tensor \(True = may attend\), got {got}"):
        attend(*inputs(), mask)


@PATHS
@pytest.mark.parametrize("shape", [(B, S), (B, 1, S), (T, T), (S, T), (1, B, 1, 1, S), (H + 1, 1, 1)])
def test_masks_that_do_not_broadcast_raise_with_both_shapes(attend, shape):
    mask = torch.ones(shape, dtype=torch.bool)
    with pytest.raises(ValueError) as error:
        attend(*inputs(), mask)
    assert str(error.value) == f"mask (shape {shape}) must broadcast to the scores, got {(B, H, T, S)}"


@few
@given(shape=st.lists(st.sampled_from([1, 2, 3, 5]), max_size=5))
def test_exactly_the_masks_that_torch_would_broadcast_to_the_scores_are_allowed(shape):
    scores, mask = (2, 3, 5, 3), torch.ones(shape, dtype=torch.bool)
    try:
        fits = torch.broadcast_shapes(scores, tuple(shape)) == scores
    except RuntimeError:
        fits = False
    if fits:
        check_mask(mask, scores)
    else:
        with pytest.raises(ValueError, match="must broadcast to the scores"):
            check_mask(mask, scores)


@PATHS
def test_shapes_that_do_not_fit_raise(attend):
    query, key, value = inputs()
    with pytest.raises(ValueError, match=r"query \(width 11\) must have the width of key \(13\)"):
        attend(query, value, value)
    with pytest.raises(ValueError, match=r"key \(length 7\) must be as long as value \(6\)"):
        attend(query, key, value[:, :, 1:])


@PATHS
@pytest.mark.parametrize("dropout", [-0.1, 1.1, float("nan")])
def test_a_dropout_that_is_no_probability_raises(attend, dropout):
    with pytest.raises(ValueError, match=rf"dropout \({dropout}\) must be from 0 to 1"):
        attend(*inputs(), dropout=dropout)
