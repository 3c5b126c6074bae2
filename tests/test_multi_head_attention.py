"""Multi-head attention: heads by hand, parity with torch, who sees whom, maps of models, error texts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer import (
    MultiHeadAttention,
    attention_maps,
    causal_mask,
    make_model,
    merge_heads,
    padding_mask,
    scaled_dot_product_attention,
    split_heads,
)
from annotated_transformer import multi_head_attention as module

few = settings(max_examples=20, deadline=None)
sizes = st.sampled_from([1, 2, 3, 5, 7])
B, T, S, HEADS, D = 3, 5, 7, 2, 11
WIDTH = HEADS * D


def wave(*shape, a=1.0):
    """Closed-form numbers, the same everywhere."""
    return (torch.arange(1, math.prod(shape) + 1, dtype=torch.float64) * a).sin().float().reshape(shape)


def fill(layer, scale=0.4):
    """Closed-form weights, other ones for each parameter."""
    with torch.no_grad():
        for i, (_, parameter) in enumerate(sorted(layer.named_parameters())):
            numbers = torch.arange(parameter.numel(), dtype=torch.float64) * 0.37 + i
            parameter.copy_((numbers.sin() * scale).reshape(parameter.shape))
    return layer


def torch_attention(bias=True, dropout=0.0, batch_first=True):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, dropout, bias, batch_first=batch_first)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.normal_()  # torch starts with zeros, which would hide a forgotten bias
    return theirs


# splitting and merging


def test_a_head_holds_neighbouring_features_of_one_token():
    heads = split_heads(torch.arange(12).reshape(1, 2, 6), 3)
    assert heads.tolist() == [[[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]]]


def test_merging_puts_the_heads_of_a_token_side_by_side():
    heads = torch.tensor([[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]])  # (1, 2 heads, 2 tokens, 2)
    assert merge_heads(heads).tolist() == [[[1, 2, 5, 6], [3, 4, 7, 8]]]


@few
@given(batch=st.integers(0, 3), length=sizes, heads=sizes, width=sizes)
def test_merging_undoes_splitting(batch, length, heads, width):
    x = torch.arange(batch * length * heads * width).reshape(batch, length, heads * width)
    split = split_heads(x, heads)
    assert split.shape == (batch, heads, length, width)
    assert torch.equal(merge_heads(split), x)
    for h in range(heads):
        assert torch.equal(split[:, h], x[:, :, h * width : (h + 1) * width])


def test_any_layout_in_memory_can_be_split():
    x = wave(B, WIDTH, T).transpose(1, 2)
    assert not x.is_contiguous()
    assert torch.equal(split_heads(x, HEADS), split_heads(x.contiguous(), HEADS))


# values and parity


def test_heads_are_column_blocks_of_one_matrix():
    layer = fill(MultiHeadAttention(WIDTH, HEADS))
    query, key, value = wave(B, T, WIDTH), wave(B, S, WIDTH, a=0.7), wave(B, S, WIDTH, a=1.3)
    found = []
    for i in range(HEADS):
        own = slice(i * D, (i + 1) * D)  # the paper's W_i is the transpose of these rows of torch's weight
        parts = (layer.query_projection, layer.key_projection, layer.value_projection)
        pairs = zip(parts, (query, key, value), strict=True)
        projected = [x @ part.weight[own].T + part.bias[own] for part, x in pairs]
        found.append(scaled_dot_product_attention(*projected)[0])
    expected = torch.cat(found, dim=-1) @ layer.output_projection.weight.T + layer.output_projection.bias
    torch.testing.assert_close(layer(query, key, value), expected)


def test_one_head_with_identity_projections_is_plain_attention():
    layer = MultiHeadAttention(4, 1, bias=False)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.eye(4))
    x = wave(1, 3, 4)
    torch.testing.assert_close(layer(x, x, x), scaled_dot_product_attention(x, x, x)[0])


MASKS = {
    "none": None,
    "causal": causal_mask(T, S),
    "padding": (torch.arange(S) < torch.tensor([[7], [4], [1]]))[:, None, None, :],
    "per head": torch.arange(HEADS * T * S).reshape(1, HEADS, T, S) % 3 > 0,
}
masks = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


@masks
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "length first"])
def test_torch_gives_the_same_outputs_weights_and_gradients(mask, bias, batch_first):
    theirs = torch_attention(bias, batch_first=batch_first)
    ours = MultiHeadAttention.from_torch(theirs)
    query, key, value = wave(B, T, WIDTH), wave(B, S, WIDTH, a=0.7), wave(B, S, WIDTH, a=1.3)
    query.requires_grad_()
    swap = (lambda x: x) if batch_first else (lambda x: x.transpose(0, 1))
    hidden = None if mask is None else ~mask.expand(B, HEADS, T, S).reshape(B * HEADS, T, S)
    given = (swap(query), swap(key), swap(value))
    expected, weights = theirs(*given, attn_mask=hidden, average_attn_weights=False)
    output = ours(query, key, value, mask)
    torch.testing.assert_close(output, swap(expected), atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.weights(query, key, mask), weights, atol=1e-6, rtol=0)
    factor = wave(B, T, WIDTH, a=0.3)
    wanted = torch.autograd.grad((swap(expected) * factor).sum(), (query, theirs.in_proj_weight))
    names = ("query_projection", "key_projection", "value_projection")
    got = torch.autograd.grad((output * factor).sum(), [query, *(getattr(ours, n).weight for n in names)])
    torch.testing.assert_close(got[0], wanted[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.cat(got[1:]), wanted[1], atol=1e-4, rtol=1e-4)


def test_from_torch_keeps_dropout_mode_dtype_and_independence():
    theirs = torch_attention(dropout=0.3).double().eval()
    ours = MultiHeadAttention.from_torch(theirs)
    assert ours.dropout == 0.3 and not ours.training and ours.query_projection.weight.dtype == torch.float64
    before = ours.query_projection.weight.clone()
    with torch.no_grad():
        theirs.in_proj_weight.zero_()
    assert torch.equal(ours.query_projection.weight, before)


@pytest.mark.parametrize("bias", [True, False])
def test_parameters_are_four_square_matrices_and_four_biases(bias):
    layer = MultiHeadAttention(WIDTH, HEADS, bias=bias)
    expected = 4 * WIDTH * WIDTH + (4 * WIDTH if bias else 0)
    assert sum(parameter.numel() for parameter in layer.parameters()) == expected


def test_the_cost_does_not_depend_on_the_number_of_heads():
    counts = set()
    for heads in (1, 2, 3, 6):
        layer = MultiHeadAttention(6, heads)
        x = torch.zeros(1, 5, 6)
        with FlopCounterMode(display=False) as counter:
            layer(x, x, x)
        counts.add(counter.get_total_flops())
    assert counts == {2 * (4 * 5 * 6 * 6 + 2 * 5 * 5 * 6)}


# properties


@few
@given(batch=sizes, queries=sizes, keys=sizes, heads=sizes, width=sizes)
def test_outputs_have_the_shape_of_the_query_and_rows_sum_to_one(batch, queries, keys, heads, width):
    layer = fill(MultiHeadAttention(heads * width, heads))
    query, key = wave(batch, queries, heads * width), wave(batch, keys, heads * width, a=0.7)
    assert layer(query, key, key).shape == query.shape
    weights = layer.weights(query, key)
    assert weights.shape == (batch, heads, queries, keys)
    torch.testing.assert_close(weights.sum(-1), torch.ones(batch, heads, queries))


@few
@given(length=st.integers(2, 9), at=st.integers(0, 8))
def test_future_tokens_do_not_change_past_outputs(length, at):
    at = 1 + at % (length - 1)
    layer = fill(MultiHeadAttention(WIDTH, HEADS))
    x, changed = wave(B, length, WIDTH), wave(B, length, WIDTH)
    changed[:, at:] += 3
    for context in (torch.enable_grad(), torch.no_grad()):
        with context:
            before, after = (layer(y, y, y, causal_mask(length)) for y in (x, changed))
        torch.testing.assert_close(before[:, :at], after[:, :at])
        assert (before[:, at:] - after[:, at:]).abs().max() > 1e-2


def test_padding_changes_no_real_position_also_where_batch_equals_length():
    layer = fill(MultiHeadAttention(8, 2))
    x, ids = wave(3, 3, 8), torch.tensor([[4, 5, 6], [4, 5, 0], [4, 0, 0]])
    output = layer(x, x, x, padding_mask(ids, 0))
    for b, length in enumerate((3, 2, 1)):
        alone = x[b : b + 1, :length]
        torch.testing.assert_close(output[b, :length], layer(alone, alone, alone)[0])


@few
@given(length=st.integers(1, 9), seed=st.integers(0, 99))
def test_permuted_tokens_give_permuted_outputs(length, seed):
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    layer, x = fill(MultiHeadAttention(WIDTH, HEADS)), wave(B, length, WIDTH)
    moved = x[:, order]
    torch.testing.assert_close(layer(moved, moved, moved), layer(x, x, x)[:, order], atol=1e-5, rtol=0)


def test_the_order_of_the_heads_does_not_matter():
    one, other, x = fill(MultiHeadAttention(6, 3)), MultiHeadAttention(6, 3), wave(2, 5, 6)
    moved = torch.tensor([4, 5, 0, 1, 2, 3])
    with torch.no_grad():
        for name in ("query_projection", "key_projection", "value_projection"):
            part = getattr(one, name)
            getattr(other, name).load_state_dict({"weight": part.weight[moved], "bias": part.bias[moved]})
        other.output_projection.weight.copy_(one.output_projection.weight[:, moved])
        other.output_projection.bias.copy_(one.output_projection.bias)
    torch.testing.assert_close(other(x, x, x), one(x, x, x))


def test_a_sequence_of_padding_alone_gives_the_bias_and_finite_gradients():
    layer, x = fill(MultiHeadAttention(WIDTH, HEADS)), wave(B, T, WIDTH).requires_grad_()
    ids = torch.tensor([[1] * T, [0] * T, [1, 0, 0, 0, 0]])
    output = layer(x, x, x, padding_mask(ids, 0))
    torch.testing.assert_close(output[1], layer.output_projection.bias.expand(T, WIDTH))
    output.sum().backward()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in layer.parameters())


def test_an_empty_batch_gives_an_empty_output():
    layer, x = MultiHeadAttention(WIDTH, HEADS), torch.zeros(0, T, WIDTH)
    assert layer(x, x, x, causal_mask(T)).shape == (0, T, WIDTH)
    with torch.no_grad():
        assert layer(x, x, x).shape == (0, T, WIDTH)


# dropout


def test_dropout_acts_in_training_only():
    x = wave(1, 6, 8)
    layer, plain = fill(MultiHeadAttention(8, 2, dropout=0.5)), fill(MultiHeadAttention(8, 2)).eval()
    layer.eval()
    assert torch.equal(layer(x, x, x), layer(x, x, x))
    torch.testing.assert_close(layer(x, x, x), plain(x, x, x))
    layer.train()
    torch.manual_seed(0)
    assert not torch.equal(layer(x, x, x), layer(x, x, x))
    torch.testing.assert_close(layer.weights(x, x).sum(-1), torch.ones(1, 2, 6))


@pytest.mark.parametrize("fused_from", [1, 512], ids=["fused", "explicit"])
def test_dropout_has_the_same_mean_on_both_paths(monkeypatch, fused_from):
    monkeypatch.setattr(module, "FUSED_FROM", fused_from)
    torch.manual_seed(0)
    layer, x = fill(MultiHeadAttention(8, 2, dropout=0.5)), wave(1, 6, 8).expand(4000, 6, 8)
    outputs = layer(x, x, x)
    assert outputs.std(dim=0).max() > 0.1
    torch.testing.assert_close(outputs.mean(0), layer.eval()(x[:1], x[:1], x[:1])[0], atol=0.05, rtol=0)


# two paths


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@masks
def test_both_paths_of_the_module_agree(monkeypatch, mask, dtype):
    layer = fill(MultiHeadAttention(WIDTH, HEADS)).to(dtype)
    query, key = wave(B, T, WIDTH).to(dtype), wave(B, S, WIDTH, a=0.7).to(dtype)
    outputs = []
    for fused_from in (S + 1, S):
        monkeypatch.setattr(module, "FUSED_FROM", fused_from)
        outputs.append(layer(query, key, key, mask))
    bound = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(*outputs, atol=bound, rtol=0)


@pytest.mark.parametrize(
    ("length", "dropout", "grad", "fused"),
    [
        (module.FUSED_FROM - 1, 0.0, True, False),
        (module.FUSED_FROM, 0.0, True, True),
        (module.FUSED_FROM, 0.1, True, False),
        (2, 0.0, False, True),
        (2, 0.1, False, False),
    ],
)
def test_the_faster_path_is_taken_on_a_cpu(monkeypatch, length, dropout, grad, fused):
    calls = []

    def spy(*args):
        calls.append(args)
        return original(*args)

    original = module.fused_attention
    monkeypatch.setattr(module, "fused_attention", spy)
    layer, x = MultiHeadAttention(2, 1, dropout), torch.zeros(1, length, 2)
    with torch.set_grad_enabled(grad):
        layer(x[:, :1], x, x)
    assert len(calls) == fused


# cache


class Concatenating:
    """The least that the layer asks of a cache."""

    def __init__(self):
        self.key, self.value = torch.zeros(B, HEADS, 0, D), torch.zeros(B, HEADS, 0, D)

    def update(self, key, value):
        self.key, self.value = torch.cat([self.key, key], dim=2), torch.cat([self.value, value], dim=2)
        return self.key, self.value


@pytest.mark.parametrize("pieces", [[1] * S, [3, 1, 3], [S]], ids=str)
def test_feeding_pieces_through_a_cache_gives_the_whole(pieces):
    layer, x = fill(MultiHeadAttention(WIDTH, HEADS)), wave(B, S, WIDTH)
    cache, start, parts = Concatenating(), 0, []
    for size in pieces:
        new = x[:, start : start + size]
        start += size
        parts.append(layer(new, new, new, causal_mask(size, start), cache))
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x, x, x, causal_mask(S)))


# maps


def small_model(norm_first=True, dropout=0.5):
    torch.manual_seed(0)
    return make_model(11, 13, 2, 6, 17, 3, dropout, norm_first)


def test_maps_have_the_weights_of_every_layer_in_the_order_of_the_forward_pass():
    src, tgt = torch.arange(10).reshape(2, 5), torch.arange(6).reshape(2, 3)
    maps = attention_maps(small_model(), src, tgt)
    assert list(maps) == [
        "encoder.layers.0.self_attention",
        "encoder.layers.1.self_attention",
        "decoder.layers.0.self_attention",
        "decoder.layers.0.cross_attention",
        "decoder.layers.1.self_attention",
        "decoder.layers.1.cross_attention",
    ]
    shapes = [tuple(weights.shape) for weights in maps.values()]
    assert shapes == [(2, 3, 5, 5)] * 2 + [(2, 3, 3, 3), (2, 3, 3, 5)] * 2
    for weights in maps.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert not weights.requires_grad


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_maps_respect_masks_given_by_name(norm_first):
    src, tgt = torch.tensor([[4, 2, 0], [0, 0, 0]]), torch.tensor([[3, 1], [2, 0]])
    maps = attention_maps(small_model(norm_first), src, tgt, src_mask=padding_mask(src, 0))
    for name, weights in maps.items():
        if "decoder" in name and "self" in name:
            assert (weights[..., 0, 1] == 0).all()
        else:
            sums = weights.sum(-1)
            torch.testing.assert_close(sums[0], torch.ones_like(sums[0]))
            assert (weights[0, ..., 2] == 0).all() and (weights[1] == 0).all()


def test_a_map_is_what_the_layer_attends_to():
    layer, x = fill(MultiHeadAttention(WIDTH, HEADS, dropout=0.5)), wave(B, T, WIDTH)
    (weights,) = attention_maps(layer, x, x, x, causal_mask(T)).values()
    _, values = layer.project(x, x)
    expected = layer.eval()(x, x, x, causal_mask(T))
    torch.testing.assert_close(layer.output_projection(merge_heads(weights @ values)), expected)


def test_each_part_is_back_in_its_own_mode_afterwards():
    model = small_model().train()
    model.encoder.layers[1].eval()
    modes = [part.training for part in model.modules()]
    assert True in modes and False in modes
    attention_maps(model, torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, dtype=torch.long))
    assert [part.training for part in model.modules()] == modes
    with pytest.raises(ValueError, match="src"):
        attention_maps(model, torch.full((1, 2), 99), torch.zeros(1, 2, dtype=torch.long))
    assert [part.training for part in model.modules()] == modes
    assert not any(part._forward_hooks for part in model.modules())


def test_maps_draw_no_random_numbers():
    model, ids = small_model(), torch.zeros(1, 2, dtype=torch.long)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, second = attention_maps(model, ids, ids), attention_maps(model, ids, ids)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_layer_that_is_called_again_appears_again():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.look = fill(MultiHeadAttention(6, 3))

        def forward(self, x, key):
            return self.look(query=self.look(x, x, x), key=key, value=key)

    model, x, key = Twice(), wave(2, 5, 6), wave(2, 7, 6, a=0.7)
    maps = attention_maps(model, x, key)
    assert list(maps) == ["look", "look#2"]
    torch.testing.assert_close(maps["look#2"], model.look.weights(model.look(x, x, x), key).detach())


def test_a_model_without_attention_raises():
    with pytest.raises(ValueError, match=r"^model \(Linear\) must contain MultiHeadAttention, got none$"):
        attention_maps(nn.Linear(2, 2), torch.zeros(1, 2))


# errors


@pytest.mark.parametrize(("d_model", "num_heads"), [(10, 3), (1600, 48), (3, 7)])
def test_a_head_count_that_does_not_divide_the_width_raises_with_both_numbers(d_model, num_heads):
    with pytest.raises(ValueError, match=rf"^num_heads \({num_heads}\) must divide d_model \({d_model}\)$"):
        MultiHeadAttention(d_model, num_heads)


def test_a_width_that_cannot_be_split_raises():
    with pytest.raises(ValueError, match=r"^num_heads \(3\) must divide the width of x \(10\)$"):
        split_heads(torch.zeros(1, 2, 10), 3)
    with pytest.raises(ValueError, match=r"^num_heads \(0\) must be at least 1$"):
        split_heads(torch.zeros(1, 2, 10), 0)


@pytest.mark.parametrize("shape", [(5, 22), (22,), (2, 3, 5, 22)])
def test_inputs_without_a_batch_axis_raise(shape):
    x = torch.zeros(shape)
    with pytest.raises(ValueError) as error:
        MultiHeadAttention(WIDTH, HEADS)(x, x, x)
    assert str(error.value) == f"x (shape {shape}) must have three dimensions (B, T, d_model)"


@pytest.mark.parametrize(
    ("d_model", "num_heads", "kind", "words"),
    [
        (0, 1, ValueError, r"d_model \(0\) must be at least 1"),
        (8, 0, ValueError, r"num_heads \(0\) must be at least 1"),
        (8, -2, ValueError, r"num_heads \(-2\) must be at least 1"),
        (8.0, 2, TypeError, r"d_model \(8.0\) must be a whole number, got float"),
        (8, "2", TypeError, r"num_heads \('2'\) must be a whole number, got str"),
        (8, True, TypeError, r"num_heads \(True\) must be a whole number, got bool"),
    ],
)
def test_sizes_must_be_positive_whole_numbers(d_model, num_heads, kind, words):
    with pytest.raises(kind, match=f"^{words}$"):
        MultiHeadAttention(d_model, num_heads)


@pytest.mark.parametrize("dropout", [-0.1, 1.5, float("nan")])
def test_dropout_must_be_a_probability(dropout):
    with pytest.raises(ValueError, match=rf"^dropout \({dropout}\) must be from 0 to 1$"):
        MultiHeadAttention(8, 2, dropout)


@pytest.mark.parametrize("shape", [(T, T), (B, T), (B, 1, T), (T,), (1, B, 1, 1, T)])
@pytest.mark.parametrize("batch", [B, T], ids=["other batch", "batch equals length"])
def test_masks_without_four_dimensions_raise_and_point_to_the_makers(shape, batch):
    layer, x = MultiHeadAttention(WIDTH, HEADS), torch.zeros(batch, T, WIDTH)
    for call in (layer, lambda q, k, v, mask: layer.weights(q, k, mask)):
        with pytest.raises(ValueError) as error:
            call(x, x, x, mask=torch.ones(shape, dtype=torch.bool))
        assert str(error.value) == (
            f"mask (shape {shape}) must have four dimensions (B, H, T, S): "
            "padding_mask(ids, pad_id) and causal_mask(length) make such masks"
        )


@pytest.mark.parametrize("shape", [(B + 1, 1, 1, S), (1, HEADS + 1, 1, 1), (1, 1, S, T), (B, 1, T, T)])
@pytest.mark.parametrize("grad", [True, False], ids=["explicit", "fused"])
def test_masks_that_do_not_broadcast_raise_with_both_shapes(shape, grad):
    layer, query, key = MultiHeadAttention(WIDTH, HEADS), torch.zeros(B, T, WIDTH), torch.zeros(B, S, WIDTH)
    with pytest.raises(ValueError) as error, torch.set_grad_enabled(grad):
        layer(query, key, key, torch.ones(shape, dtype=torch.bool))
    assert str(error.value) == f"mask (shape {shape}) must broadcast to the scores, got {(B, HEADS, T, S)}"


@pytest.mark.parametrize(
    ("mask", "got"), [(torch.ones(1, 1, T, T), "torch.float32"), ([[True]], "list"), (0, "int")], ids=str
)
def test_masks_that_are_not_boolean_raise(mask, got):
    layer, x = MultiHeadAttention(WIDTH, HEADS), torch.zeros(B, T, WIDTH)
    with pytest.raises(TypeError, match=rf"^mask must be a boolean tensor \(True = may attend\), got {got}$"):
        layer(x, x, x, mask)


@pytest.mark.parametrize("grad", [True, False], ids=["explicit", "fused"])
def test_keys_and_values_of_different_lengths_raise(grad):
    layer, x = MultiHeadAttention(WIDTH, HEADS), torch.zeros(B, T, WIDTH)
    with pytest.raises(ValueError, match=r"^key \(length 5\) must be as long as value \(4\)$"):
        with torch.set_grad_enabled(grad):
            layer(x, x, x[:, 1:])


@pytest.mark.parametrize(
    "options", [{"kdim": 3}, {"vdim": 3}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str
)
def test_options_of_torch_without_a_counterpart_raise(options):
    with pytest.raises(ValueError, match="^module must have kdim = vdim = embed_dim, no add_bias_kv"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, **options))


def test_only_torchs_attention_can_be_copied():
    with pytest.raises(TypeError, match=r"^module must be a torch.nn.MultiheadAttention, got Linear$"):
        MultiHeadAttention.from_torch(nn.Linear(2, 2))
