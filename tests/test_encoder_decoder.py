"""Layers and stacks: a layer by hand, parity with torch in both orders, who can see whom, and error texts."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from annotated_transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    PositionwiseFeedForward,
    SublayerConnection,
    causal_mask,
    padding_mask,
)
from annotated_transformer.encoder_decoder import decoder_layer, encoder_layer
from annotated_transformer.residual import residuals

few = settings(max_examples=20, deadline=None)
orders = pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
# torch says which of its own fast paths it does not take
quiet = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
sizes = st.sampled_from([1, 2, 3, 5, 7])
B, S, T, D_MODEL, HEADS, D_FF = 3, 7, 5, 22, 11, 13
SHAPE = {"d_model": D_MODEL, "nhead": HEADS, "dim_feedforward": D_FF, "dropout": 0.0, "batch_first": True}
KEEP = torch.arange(S) < torch.tensor([[7], [4], [1]])  # (B, S): the second and third sequence are padded


def uneven(module):
    """Replace the gains, biases and zeros that torch starts with, so that a forgotten one shows."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return module


def inputs(seed=0):
    torch.manual_seed(seed)
    return torch.randn(B, T, D_MODEL, requires_grad=True), torch.randn(B, S, D_MODEL, requires_grad=True)


def small_encoder(norm_first=True, layers=2, dropout=0.0):
    norm = nn.LayerNorm(D_MODEL) if norm_first else None
    return Encoder([encoder_layer(D_MODEL, HEADS, D_FF, dropout, norm_first) for _ in range(layers)], norm)


def small_decoder(norm_first=True, layers=2, dropout=0.0):
    norm = nn.LayerNorm(D_MODEL) if norm_first else None
    return Decoder([decoder_layer(D_MODEL, HEADS, D_FF, dropout, norm_first) for _ in range(layers)], norm)


def average_attention(query, key, value, mask=None):
    """An attention without parameters that gives every visible value the same weight."""
    seen = torch.ones(1, 1, query.size(1), key.size(1)) if mask is None else mask.float()
    weights = seen[:, 0] / seen[:, 0].sum(-1, keepdim=True)
    return weights @ value


class Average(nn.Module):
    def forward(self, query, key, value, mask=None):
        return average_attention(query, key, value, mask)


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def plain(count, norm_first=True):
    """Residuals without a norm, so that a layer can be worked out by hand."""
    return [SublayerConnection(nn.Identity(), 0.0, norm_first) for _ in range(count)]


# by hand


@orders
def test_an_encoder_layer_attends_and_then_transforms(norm_first):
    layer = EncoderLayer(Average(), Times(10), plain(2, norm_first))
    x = torch.tensor([[[1.0], [3.0]]])
    # the average 2 is added: 3 and 5; ten times that is added: 33 and 55
    torch.testing.assert_close(layer(x), torch.tensor([[[33.0], [55.0]]]))
    # causal: the first position sees only itself: 1 + 1 = 2, then 22
    torch.testing.assert_close(layer(x, causal_mask(2)), torch.tensor([[[22.0], [55.0]]]))


@orders
def test_a_decoder_layer_looks_back_then_across_and_then_transforms(norm_first):
    layer = DecoderLayer(Average(), Average(), Times(10), plain(3, norm_first))
    x, memory = torch.tensor([[[1.0], [3.0]]]), torch.tensor([[[6.0], [2.0], [100.0]]])
    hide = torch.tensor([True, True, False]).expand(1, 1, 2, 3)
    # looking back: 1 + 1 and 3 + 2; across: 4 more, the average of 6 and 2; then eleven times that
    torch.testing.assert_close(layer(x, memory, hide, causal_mask(2)), torch.tensor([[[66.0], [99.0]]]))


def test_a_stack_runs_its_layers_in_order_and_its_norm_last():
    stack = Encoder([EncoderLayer(Average(), Times(factor), plain(2)) for factor in (0, 1)], Times(-1))
    # the first layer doubles (x + x, + 0), the second quadruples
    torch.testing.assert_close(stack(torch.ones(1, 1, 1)), torch.full((1, 1, 1), -8.0))
    pair = [DecoderLayer(Average(), Average(), Times(factor), plain(3)) for factor in (0, 1)]
    # (2x + m) and then 2 (2 (2x + m) + m), with x = 1 and m = 5 each time
    got = Decoder(pair, Times(-1))(torch.ones(1, 1, 1), torch.full((1, 1, 1), 5.0))
    torch.testing.assert_close(got, torch.full((1, 1, 1), -38.0))


def test_layers_of_the_base_size_have_the_paper_s_parameter_counts():
    def count(module):
        return sum(p.numel() for p in module.parameters())

    attention, feed_forward, norm = 4 * (512 * 512 + 512), 2_099_712, 1024
    assert count(encoder_layer(512, 8, 2048)) == 3_152_384 == attention + feed_forward + 2 * norm
    assert count(decoder_layer(512, 8, 2048)) == 4_204_032 == 2 * attention + feed_forward + 3 * norm


# parity with torch, forward and backward


def same_gradients(ours, theirs, pairs):
    """Compare gradients of inputs, and of the parameters that lie at the same place in both."""
    for mine, yours in pairs:
        torch.testing.assert_close(mine, yours, atol=1e-5, rtol=1e-5)
    same = [(ours.feed_forward.widen, theirs.linear1), (ours.feed_forward.narrow, theirs.linear2)]
    same += [(c.norm, getattr(theirs, f"norm{number}")) for number, c in enumerate(ours.residuals, start=1)]
    for mine, yours in same:
        torch.testing.assert_close(mine.weight.grad, yours.weight.grad, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(mine.bias.grad, yours.bias.grad, atol=1e-5, rtol=1e-4)
    heads = ours.self_attention
    projections = (heads.query_projection, heads.key_projection, heads.value_projection)
    mine = torch.cat([part.weight.grad for part in projections])
    torch.testing.assert_close(mine, theirs.self_attn.in_proj_weight.grad, atol=1e-5, rtol=1e-4)


@orders
@pytest.mark.parametrize("activation", ["relu", "gelu", F.silu, torch.relu])
@pytest.mark.parametrize("masked", [False, True], ids=["open", "padded"])
def test_an_encoder_layer_equals_torchs(norm_first, activation, masked):
    torch.manual_seed(0)
    theirs = uneven(nn.TransformerEncoderLayer(**SHAPE, norm_first=norm_first, activation=activation))
    ours = EncoderLayer.from_torch(theirs)
    _, x = inputs()
    weight = torch.randn(B, S, D_MODEL) * (KEEP[..., None] if masked else 1)  # what padding becomes is free
    mine = ours(x, KEEP[:, None, None] if masked else None)
    yours = theirs(x, src_key_padding_mask=~KEEP if masked else None)
    torch.testing.assert_close(mine * weight, yours * weight, atol=1e-5, rtol=1e-5)
    (mine_grad,) = torch.autograd.grad((mine * weight).sum(), x, retain_graph=True)
    (yours_grad,) = torch.autograd.grad((yours * weight).sum(), x, retain_graph=True)
    (mine * weight).sum().backward(), (yours * weight).sum().backward()
    same_gradients(ours, theirs, [(mine_grad, yours_grad)])


@orders
@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_a_decoder_layer_equals_torchs(norm_first, masked):
    torch.manual_seed(0)
    theirs = uneven(nn.TransformerDecoderLayer(**SHAPE, norm_first=norm_first))
    ours = DecoderLayer.from_torch(theirs)
    x, memory = inputs()
    weight = torch.randn(B, T, D_MODEL)
    masks = (KEEP[:, None, None], causal_mask(T)) if masked else (None, None)
    mine = ours(x, memory, *masks)
    theirs_masks = {"tgt_mask": ~causal_mask(T)[0, 0], "memory_key_padding_mask": ~KEEP} if masked else {}
    yours = theirs(x, memory, **theirs_masks)
    torch.testing.assert_close(mine, yours, atol=1e-5, rtol=1e-5)
    mine_grads = torch.autograd.grad((mine * weight).sum(), (x, memory), retain_graph=True)
    yours_grads = torch.autograd.grad((yours * weight).sum(), (x, memory), retain_graph=True)
    (mine * weight).sum().backward(), (yours * weight).sum().backward()
    same_gradients(ours, theirs, zip(mine_grads, yours_grads, strict=True))


@pytest.mark.parametrize("masked", [False, True], ids=["open", "padded"])
def test_an_encoder_layer_equals_torchs_fast_path_for_inference(masked):
    # torch takes it in eval mode, without gradients, for post-norm and an even number of heads
    torch.manual_seed(0)
    theirs = uneven(nn.TransformerEncoderLayer(**SHAPE | {"nhead": 2})).eval()
    ours, x = EncoderLayer.from_torch(theirs), torch.randn(B, S, D_MODEL)
    with torch.no_grad():
        mine = ours(x, KEEP[:, None, None] if masked else None)
        yours = theirs(x, src_key_padding_mask=~KEEP if masked else None)
    real = KEEP if masked else torch.ones_like(KEEP)
    torch.testing.assert_close(mine[real], yours[real], atol=1e-5, rtol=1e-5)


def torch_stacks(norm_first, final_norm, layers=3):
    """Torch's two stacks with three layers that differ from one another."""
    options = SHAPE | {"norm_first": norm_first}
    norms = [nn.LayerNorm(D_MODEL) if final_norm else None for _ in range(2)]
    encoder_one, decoder_one = nn.TransformerEncoderLayer(**options), nn.TransformerDecoderLayer(**options)
    encoder = nn.TransformerEncoder(encoder_one, layers, norms[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(decoder_one, layers, norms[1])
    for parameter in (*encoder.parameters(), *decoder.parameters()):
        nn.init.normal_(parameter, std=0.3) if parameter.dim() > 1 else None
    return uneven(encoder), uneven(decoder)


@orders
@pytest.mark.parametrize("final_norm", [True, False], ids=["norm", "bare"])
def test_both_stacks_equal_torchs_with_and_without_a_final_norm(norm_first, final_norm):
    torch.manual_seed(0)
    their_encoder, their_decoder = torch_stacks(norm_first, final_norm)
    encoder, decoder = Encoder.from_torch(their_encoder), Decoder.from_torch(their_decoder)
    x, source = inputs()
    keep, future = KEEP[:, None, None], causal_mask(T)
    mine = decoder(x, encoder(source, keep), keep, future)
    memory = their_encoder(source, src_key_padding_mask=~KEEP)
    yours = their_decoder(x, memory, tgt_mask=~future[0, 0], memory_key_padding_mask=~KEEP)
    torch.testing.assert_close(mine, yours, atol=1e-5, rtol=1e-5)
    for mine_grad, yours_grad in zip(
        torch.autograd.grad(mine.square().sum(), (x, source)),
        torch.autograd.grad(yours.square().sum(), (x, source)),
        strict=True,
    ):
        gap = (mine_grad - yours_grad).abs().max() / yours_grad.abs().max()
        assert gap.item() < 1e-5


def whole(norm_first):
    torch.manual_seed(0)
    theirs = nn.Transformer(
        D_MODEL, HEADS, 2, 3, D_FF, dropout=0.0, batch_first=True, norm_first=norm_first, activation="gelu"
    )
    uneven(theirs)
    return theirs, Encoder.from_torch(theirs.encoder), Decoder.from_torch(theirs.decoder)


@quiet
@orders
def test_the_pair_of_stacks_equals_torchs_transformer(norm_first):
    theirs, encoder, decoder = whole(norm_first)
    x, source = inputs()
    keep, future = KEEP[:, None, None], causal_mask(T)
    yours = theirs(
        source, x, tgt_mask=~future[0, 0], src_key_padding_mask=~KEEP, memory_key_padding_mask=~KEEP
    )
    torch.testing.assert_close(decoder(x, encoder(source, keep), keep, future), yours, atol=1e-5, rtol=1e-5)


@quiet
def test_torchs_transformer_ends_in_a_norm_in_both_orders_and_ours_does_so_in_one():
    for norm_first in (True, False):
        theirs = nn.Transformer(D_MODEL, HEADS, 1, 1, D_FF, batch_first=True, norm_first=norm_first)
        assert isinstance(theirs.encoder.norm, nn.LayerNorm) and isinstance(theirs.decoder.norm, nn.LayerNorm)
    assert isinstance(small_encoder(True).norm, nn.LayerNorm)
    assert not list(small_encoder(False).norm.parameters())


def test_from_torch_copies_and_does_not_share():
    theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(**SHAPE), 2, enable_nested_tensor=False)
    ours = Encoder.from_torch(theirs)
    shared = {p.data_ptr() for p in theirs.parameters()} & {p.data_ptr() for p in ours.parameters()}
    assert not shared


@pytest.mark.parametrize("training", [True, False])
def test_from_torch_keeps_mode_dropout_rate_and_number_format(training):
    options = SHAPE | {"dropout": 0.25}
    theirs = nn.TransformerDecoderLayer(**options, dtype=torch.float64).train(training)
    ours = DecoderLayer.from_torch(theirs)
    assert {part.training for part in ours.modules()} == {training}
    assert {p.dtype for p in ours.parameters()} == {torch.float64}
    assert {part.p for part in ours.modules() if isinstance(part, nn.Dropout)} == {0.25}
    assert ours.self_attention.dropout == ours.cross_attention.dropout == 0.25


# who can see whom


@few
@given(length=st.integers(2, 9), cut=st.integers(1, 8), norm_first=st.booleans(), seed=st.integers(0, 99))
def test_future_tokens_do_not_change_past_outputs(length, cut, norm_first, seed):
    torch.manual_seed(seed)
    cut, decoder = min(cut, length - 1), small_decoder(norm_first)
    x, memory = torch.randn(2, length, D_MODEL), torch.randn(2, 3, D_MODEL)
    changed = x.clone()
    changed[:, cut:] = torch.randn(2, length - cut, D_MODEL)
    before, after = (decoder(tokens, memory, tgt_mask=causal_mask(length)) for tokens in (x, changed))
    torch.testing.assert_close(before[:, :cut], after[:, :cut], atol=1e-5, rtol=1e-5)
    assert (before[:, cut:] - after[:, cut:]).abs().max() > 1e-2
    open_before, open_after = decoder(x, memory), decoder(changed, memory)
    assert (open_before[:, :cut] - open_after[:, :cut]).abs().max() > 1e-4


@few
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    norm_first=st.booleans(),
    pad=st.integers(0, 3),
)
def test_padding_does_not_change_the_real_positions_of_the_encoder(lengths, norm_first, pad):
    # also where the batch is as large as the sequence is long, and a (B, S) mask could be read as (T, S)
    torch.manual_seed(0)
    encoder, width = small_encoder(norm_first), max(lengths) + pad
    ids = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    x = torch.randn(len(lengths), width, D_MODEL)
    together = encoder(x, padding_mask(ids, 0))
    for row, n in enumerate(lengths):
        torch.testing.assert_close(together[row, :n], encoder(x[row : row + 1, :n])[0], atol=1e-5, rtol=1e-4)


@few
@given(batch=sizes, norm_first=st.booleans(), seed=st.integers(0, 99))
def test_padding_of_the_memory_does_not_reach_the_decoder(batch, norm_first, seed):
    torch.manual_seed(seed)
    decoder = small_decoder(norm_first)
    x, memory = torch.randn(batch, 3, D_MODEL), torch.randn(batch, 5, D_MODEL)
    ids = torch.tensor([[1, 1, 1, 0, 0]] * batch)
    padded = decoder(x, memory, padding_mask(ids, 0), causal_mask(3))
    torch.testing.assert_close(padded, decoder(x, memory[:, :3], None, causal_mask(3)), atol=1e-5, rtol=1e-4)


@few
@given(length=sizes, seed=st.integers(0, 99), norm_first=st.booleans())
def test_permuting_the_source_permutes_the_encoder_and_leaves_the_decoder_alone(length, seed, norm_first):
    torch.manual_seed(seed)
    source, x, order = torch.randn(2, length, D_MODEL), torch.randn(2, 3, D_MODEL), torch.randperm(length)
    encoder, decoder = small_encoder(norm_first), small_decoder(norm_first)
    torch.testing.assert_close(encoder(source[:, order]), encoder(source)[:, order], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(decoder(x, source[:, order]), decoder(x, source), atol=1e-5, rtol=1e-4)


@few
@given(batch=sizes, source=sizes, target=sizes, norm_first=st.booleans())
def test_shapes_for_all_sizes(batch, source, target, norm_first):
    memory = small_encoder(norm_first)(torch.randn(batch, source, D_MODEL))
    assert memory.shape == (batch, source, D_MODEL)
    out = small_decoder(norm_first)(torch.randn(batch, target, D_MODEL), memory)
    assert out.shape == (batch, target, D_MODEL)


def test_every_layer_of_a_decoder_reads_the_same_memory():
    decoder, seen = small_decoder(layers=3), []
    for layer in decoder.layers:
        layer.cross_attention.register_forward_hook(lambda part, args, output: seen.append(args[1:3]))
    memory = torch.randn(2, 3, D_MODEL)
    decoder(torch.randn(2, 5, D_MODEL), memory)
    assert len(seen) == 3 and all(key is memory and value is memory for key, value in seen)


def test_the_two_masks_of_a_decoder_go_to_their_own_attention():
    layer, seen = decoder_layer(D_MODEL, HEADS, D_FF), {}
    for name in ("self_attention", "cross_attention"):
        hook = lambda part, args, output, name=name: seen.update({name: args[3]})  # noqa: E731
        getattr(layer, name).register_forward_hook(hook)
    src_mask, tgt_mask = KEEP[:, None, None], causal_mask(T)
    x, memory = inputs()
    layer(x, memory, src_mask, tgt_mask)
    assert seen["self_attention"] is tgt_mask and seen["cross_attention"] is src_mask


# dropout, injected parts, copies


@orders
@pytest.mark.parametrize("make", [small_encoder, small_decoder])
def test_dropout_acts_in_training_only(norm_first, make):
    x, memory = inputs()
    stack = make(norm_first, dropout=0.5)
    arguments = (x, memory) if make is small_decoder else (x,)
    assert not torch.equal(stack(*arguments), stack(*arguments))
    stack.eval()
    without = make(norm_first, dropout=0.0)
    without.load_state_dict(stack.state_dict())
    assert torch.equal(stack(*arguments), stack(*arguments))
    torch.testing.assert_close(stack(*arguments), without(*arguments))


@pytest.mark.parametrize("make", [encoder_layer, decoder_layer])
def test_the_rate_of_dropout_reaches_every_part(make):
    for dropout in (0.0, 0.375):
        layer = make(D_MODEL, HEADS, D_FF, dropout)
        rates = [part.p for part in layer.modules() if isinstance(part, nn.Dropout)]
        attentions = [part.dropout for name, part in layer.named_children() if name.endswith("attention")]
        assert set(rates + attentions) == {dropout} and len(rates) == len(layer.residuals) + 1


@pytest.mark.parametrize("make", [encoder_layer, decoder_layer])
def test_the_order_of_normalisation_reaches_every_residual(make):
    for norm_first in (True, False):
        layer = make(D_MODEL, HEADS, D_FF, 0.1, norm_first)
        assert {c.norm_first for c in layer.residuals} == {norm_first}


def test_parts_can_be_exchanged_without_touching_the_layer():
    x, memory = inputs()
    connections = [SublayerConnection(nn.RMSNorm(D_MODEL), 0.0) for _ in range(3)]
    layer = DecoderLayer(Average(), Average(), PositionwiseFeedForward(D_MODEL, D_FF), connections)
    assert layer(x, memory, None, causal_mask(T)).shape == x.shape
    assert EncoderLayer(Average(), Times(2), connections[:2])(memory).shape == memory.shape


def test_parts_need_not_know_about_caches():
    x, memory = inputs()
    layer = DecoderLayer(Average(), Average(), Times(0), plain(3))
    torch.testing.assert_close(Decoder([layer])(x, memory), layer(x, memory))


class Growing:
    """A cache that concatenates."""

    def __init__(self):
        self.keys, self.values = [], []

    def update(self, key, value):
        self.keys.append(key), self.values.append(value)
        return torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)


def caches_for(decoder, memory):
    return [
        SimpleNamespace(self_attention=Growing(), memory=layer.cross_attention.project(memory, memory))
        for layer in decoder.layers
    ]


@orders
def test_a_decoder_with_caches_gives_token_by_token_what_it_gives_at_once(norm_first):
    x, memory = inputs()
    decoder, keep = small_decoder(norm_first), KEEP[:, None, None]
    caches = caches_for(decoder, memory)
    steps = [decoder(x[:, t : t + 1], None, keep, caches=caches) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, dim=1), decoder(x, memory, keep, causal_mask(T)))


def test_several_hypotheses_share_the_cached_memory_of_their_source():
    decoder, n = small_decoder(), 2
    torch.manual_seed(0)
    x, memory = torch.randn(B * n, 1, D_MODEL), torch.randn(B, S, D_MODEL)
    keep = KEEP[:, None, None]
    got = decoder(x, None, keep, caches=caches_for(decoder, memory))
    want = decoder(x, memory.repeat_interleave(n, dim=0), keep.repeat_interleave(n, dim=0))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("make", [small_encoder, small_decoder])
def test_layers_start_different_from_one_another(make):
    first, second = make().layers
    for (name, a), (_, b) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert a is not b
        if a.dim() > 1:
            assert not torch.equal(a, b), name


def test_a_deep_copy_of_a_stack_is_the_same_and_independent():
    encoder = small_encoder().eval()
    twin, (_, x) = copy.deepcopy(encoder), inputs()
    torch.testing.assert_close(twin(x), encoder(x))
    with torch.no_grad():
        next(twin.parameters()).add_(1)
    assert not torch.equal(twin(x), encoder(x))


# error texts


@pytest.mark.parametrize("count", [1, 3, 4])
def test_an_encoder_layer_refuses_any_other_number_of_residuals_than_two(count):
    with pytest.raises(ValueError, match=rf"residuals \({count}\) must be 2 SublayerConnections, one a"):
        EncoderLayer(Average(), Times(1), residuals(count, D_MODEL))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_decoder_layer_refuses_any_other_number_of_residuals_than_three(count):
    with pytest.raises(ValueError, match=rf"residuals \({count}\) must be 3 SublayerConnections, one a"):
        DecoderLayer(Average(), Average(), Times(1), residuals(count, D_MODEL))


@pytest.mark.parametrize("make", [encoder_layer, decoder_layer])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((10, 3, 5), r"num_heads \(3\) must divide d_model \(10\)"),
        ((0, 1, 5), r"d_model \(0\) must be at least 1"),
        ((6, 3, 0), r"d_ff \(0\) must be at least 1"),
        ((6, 3, 5, 1.5), r"dropout \(1\.5\) must be from 0 to 1"),
    ],
)
def test_impossible_sizes_are_refused(make, arguments, text):
    with pytest.raises(ValueError, match=text):
        make(*arguments)


LAYER = {"d_model": 6, "nhead": 3, "dim_feedforward": 5}
THEIR_ENCODER_LAYER = nn.TransformerEncoderLayer(**LAYER)
THEIR_DECODER_LAYER = nn.TransformerDecoderLayer(**LAYER)


@pytest.mark.parametrize(
    ("ours", "theirs", "wanted"),
    [
        (EncoderLayer, THEIR_DECODER_LAYER, "TransformerEncoderLayer, got TransformerDecoderLayer"),
        (DecoderLayer, THEIR_ENCODER_LAYER, "TransformerDecoderLayer, got TransformerEncoderLayer"),
        (Encoder, THEIR_ENCODER_LAYER, "TransformerEncoder, got TransformerEncoderLayer"),
        (Decoder, nn.Linear(2, 3), "TransformerDecoder, got Linear"),
    ],
)
def test_from_torch_refuses_another_module(ours, theirs, wanted):
    with pytest.raises(TypeError, match=rf"module must be a torch\.nn\.{wanted}$"):
        ours.from_torch(theirs)


@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
def test_from_torch_refuses_options_without_a_counterpart(kind):
    ours = {"Encoder": EncoderLayer, "Decoder": DecoderLayer}[kind]
    theirs = {"Encoder": nn.TransformerEncoderLayer, "Decoder": nn.TransformerDecoderLayer}[kind]
    with pytest.raises(ValueError, match=r"module \(activation tanh\) must use one of the functions relu"):
        ours.from_torch(theirs(**LAYER, activation=torch.tanh))
    with pytest.raises(ValueError, match=r"module \(activation GELU\(approximate='tanh'\)\) must use one of"):
        ours.from_torch(theirs(**LAYER, activation=nn.GELU("tanh")))
    with pytest.raises(ValueError, match=r"module \(bias=False\) must have biases"):
        ours.from_torch(theirs(**LAYER, bias=False))


def test_masks_of_the_wrong_kind_are_refused_through_the_whole_stack():
    x, memory = inputs()
    with pytest.raises(ValueError, match=r"mask \(shape \(3, 7\)\) must have four dimensions"):
        small_encoder()(memory, KEEP)
    with pytest.raises(TypeError, match="mask must be a boolean tensor"):
        small_decoder()(x, memory, None, causal_mask(T).float())
    with pytest.raises(ValueError, match=r"mask \(shape \(3, 1, 1, 7\)\) must broadcast to the scores"):
        small_decoder()(x, memory, causal_mask(T), KEEP[:, None, None])  # the two masks in the wrong order
