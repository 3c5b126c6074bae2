"""The whole model: parts by hand, parity with torch, who sees what, weights at the start, and error texts."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from annotated_transformer import (
    Decoder,
    Embeddings,
    Encoder,
    Generator,
    MultiHeadAttention,
    PositionalEncoding,
    SublayerConnection,
    Transformer,
    attention_maps,
    causal_mask,
    make_model,
    padding_mask,
    target_mask,
)
from annotated_transformer.decoding import TransformerStep
from annotated_transformer.transformer import InputEmbedding

few = settings(max_examples=20, deadline=None)
orders = pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
sharing = pytest.mark.parametrize("share", [False, True], ids=["separate", "shared"])
sides = pytest.mark.parametrize("side", ["src", "tgt"])
# torch says which of its own fast paths it does not take
quiet = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
PAD = 0
B, S, T, SRC, TGT, D_FF, MAX_LEN, HEADS, D_MODEL = 3, 5, 7, 11, 13, 19, 23, 2, 2 * 17
SIZES = {"num_layers": 2, "d_model": D_MODEL, "d_ff": D_FF, "num_heads": HEADS, "max_len": MAX_LEN}


def small(src_vocab=SRC, tgt_vocab=TGT, **options):
    """A small model whose gains and biases differ from where they start, so that a forgotten one shows."""
    torch.manual_seed(0)
    model = make_model(src_vocab, tgt_vocab, **SIZES | {"dropout": 0.0} | options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def ids(batch=B, source=S, target=T, seed=0):
    """Random ids without padding."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(1, SRC, (batch, source), generator=generator)
    return src, torch.randint(1, TGT, (batch, target), generator=generator)


def close(got, want, tolerance=1e-5):
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


# by hand


def test_input_embedding_scales_the_row_and_adds_the_position():
    embed = InputEmbedding(Embeddings(3, 2), PositionalEncoding(2, 0.0))
    embed.tokens.table.weight.data = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    root = math.sqrt(2)
    want = [[root + 0.0, 1.0], [math.sin(1), 2 * root + math.cos(1)]]
    close(embed(torch.tensor([[1, 2]])), torch.tensor([want]))
    close(embed(torch.tensor([[2]]), offset=1), torch.tensor([want[1:]]))


def test_generator_scores_each_token_by_a_dot_product():
    generator = Generator(2, 3)
    generator.projection.weight.data = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    generator.projection.bias.data = torch.tensor([0.5, 0.0, 0.0])
    close(generator(torch.tensor([3.0, 4.0])), torch.tensor([3.5, 8.0, 7.0]))
    assert Generator(2, 3, bias=False).projection.bias is None


class Doubled(nn.Module):
    def forward(self, x, mask=None):
        return 2 * x


class PlusLargest(nn.Module):
    def forward(self, x, memory, src_mask=None, tgt_mask=None, caches=None):
        return x + memory.amax(1, keepdim=True)


def test_a_model_of_simple_parts_can_be_worked_out():
    embeds = [InputEmbedding(Embeddings(4, 1), PositionalEncoding(1, 0.0, max_len=1)) for _ in range(2)]
    for embed in embeds:
        embed.tokens.table.weight.data = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    model = Transformer(*embeds, Doubled(), PlusLargest(), Generator(1, 2))
    model.generator.projection.weight.data = torch.tensor([[1.0], [-1.0]])
    model.generator.projection.bias.data = torch.tensor([0.0, 100.0])
    # memory 2 * 3 = 6; hidden 2 + 6 = 8; logits 8 and 100 - 8
    close(model.encode(torch.tensor([[3]])), torch.tensor([[[6.0]]]))
    close(model.decode(torch.tensor([[2]]), torch.tensor([[[6.0]]])), torch.tensor([[[8.0]]]))
    close(model(torch.tensor([[3]]), torch.tensor([[2]])), torch.tensor([[[8.0, 92.0]]]))


# parity with torch


def torch_twin(norm_first, layers=2):
    """Our model with the layers of a torch.nn.Transformer; without a final norm in post-norm, as ours."""
    torch.manual_seed(1)
    shape = {"d_model": D_MODEL, "nhead": HEADS, "dim_feedforward": D_FF, "dropout": 0.0}
    options = shape | {"batch_first": True, "norm_first": norm_first}
    stacks = {}
    if not norm_first:
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**options), layers, norm=None)
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), layers, norm=None)
        stacks = {"custom_encoder": encoder, "custom_decoder": decoder}
    theirs = nn.Transformer(**options, num_encoder_layers=layers, num_decoder_layers=layers, **stacks)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    ours = small(norm_first=norm_first, padding_idx=PAD)
    # strictly: make_model has the same parts as torch's model, no more and no fewer
    ours.encoder.load_state_dict(Encoder.from_torch(theirs.encoder).state_dict())
    ours.decoder.load_state_dict(Decoder.from_torch(theirs.decoder).state_dict())
    return ours, theirs


def run_torch(ours, theirs, src, tgt, keep_src=None, keep_tgt=None):
    """The logits of torch's model between our embeddings and our generator."""
    hidden = theirs(
        ours.src_embed(src),
        ours.tgt_embed(tgt),
        tgt_mask=~causal_mask(tgt.size(1))[0, 0],
        src_key_padding_mask=None if keep_src is None else ~keep_src,
        tgt_key_padding_mask=None if keep_tgt is None else ~keep_tgt,
        memory_key_padding_mask=None if keep_src is None else ~keep_src,
    )
    return ours.generator(hidden)


@quiet
@orders
def test_without_masks_the_whole_model_equals_torchs_forward_and_backward(norm_first):
    ours, theirs = torch_twin(norm_first)
    src, tgt = ids()
    mine, yours = ours(src, tgt), run_torch(ours, theirs, src, tgt)
    close(mine, yours)
    labels = torch.randint(1, TGT, (B, T))
    tables = (ours.src_embed.tokens.table.weight, ours.tgt_embed.tokens.table.weight)
    for mine_grad, yours_grad in zip(
        torch.autograd.grad(F.cross_entropy(mine.flatten(0, 1), labels.flatten()), tables),
        torch.autograd.grad(F.cross_entropy(yours.flatten(0, 1), labels.flatten()), tables),
        strict=True,
    ):
        close(mine_grad, yours_grad)


@quiet
@orders
def test_with_padding_the_whole_model_equals_torchs(norm_first):
    ours, theirs = torch_twin(norm_first)
    src, tgt = ids()
    src[1, 3:] = src[2, 1:] = tgt[0, 4:] = tgt[2, 6:] = PAD
    mine = ours(src, tgt, padding_mask(src, PAD), target_mask(tgt, PAD))
    yours = run_torch(ours, theirs, src, tgt, src != PAD, tgt != PAD)
    close(mine[tgt != PAD], yours[tgt != PAD])


# shapes


@few
@given(
    batch=st.sampled_from([1, 2, 3]),
    source=st.sampled_from([1, 5, 7]),
    target=st.sampled_from([1, 11, 13]),
    src_vocab=st.sampled_from([17, 19]),
    tgt_vocab=st.sampled_from([23, 29]),
    heads=st.sampled_from([1, 31]),
    norm_first=st.booleans(),
)
def test_shapes_for_all_sizes(batch, source, target, src_vocab, tgt_vocab, heads, norm_first):
    model = make_model(src_vocab, tgt_vocab, 1, 31, 37, heads, norm_first=norm_first)
    src, tgt = torch.randint(src_vocab, (batch, source)), torch.randint(tgt_vocab, (batch, target))
    memory = model.encode(src, padding_mask(src, PAD))
    assert memory.shape == (batch, source, 31)
    hidden = model.decode(tgt, memory, padding_mask(src, PAD), target_mask(tgt, PAD))
    assert hidden.shape == (batch, target, 31)
    assert model.generator(hidden).shape == (batch, target, tgt_vocab)
    assert model(src, tgt).shape == (batch, target, tgt_vocab)


def test_the_base_model_gives_logits_for_a_vocabulary_of_ten_thousand():
    model = make_model(10000, 10000)
    src, tgt = torch.randint(1, 10000, (32, 10)), torch.randint(1, 10000, (32, 20))
    shifted = tgt[:, :-1]
    with torch.inference_mode():
        logits = model.eval()(src, shifted, padding_mask(src, PAD), target_mask(shifted, PAD))
    assert logits.shape == (32, 19, 10000)
    assert logits.isfinite().all()


@pytest.mark.parametrize(("batch", "source", "target"), [(0, S, T), (B, 0, T), (B, S, 0), (0, 0, 0)])
def test_empty_batches_and_empty_sequences_pass(batch, source, target):
    model, (src, tgt) = small(), ids(batch, source, target)
    assert model(src, tgt).shape == (batch, target, TGT)
    masked = model(src, tgt, padding_mask(src, PAD), target_mask(tgt, PAD))
    assert masked.shape == (batch, target, TGT) and masked.isfinite().all()


@orders
def test_forward_is_encode_then_decode_then_generator(norm_first):
    model, (src, tgt) = small(norm_first=norm_first), ids()
    src[1, 2:] = tgt[2, 4:] = PAD
    masks = padding_mask(src, PAD), target_mask(tgt, PAD)
    hidden = model.decode(tgt, model.encode(src, masks[0]), *masks)
    assert torch.equal(model(src, tgt, *masks), model.generator(hidden))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_model_runs_in_other_number_formats(dtype):
    model, (src, tgt) = small(), ids()
    src[1, 2:] = PAD
    masks = padding_mask(src, PAD), target_mask(tgt, PAD)
    want = model(src, tgt, *masks)
    got = model.to(dtype)(src, tgt, *masks)
    assert got.dtype == dtype
    close(got.float(), want, 0.1)


# who can see what


@few
@given(
    length=st.integers(2, 9),
    cut=st.integers(1, 8),
    norm_first=st.booleans(),
    share=st.booleans(),
    seed=st.integers(0, 99),
)
def test_without_masks_future_tokens_do_not_change_past_outputs(length, cut, norm_first, share, seed):
    cut = min(cut, length - 1)
    model = small(TGT, TGT, norm_first=norm_first, share_embeddings=share)
    src, tgt = ids(2, 3, length, seed)
    changed = tgt.clone()
    changed[:, cut:] = (tgt[:, cut:] + 1) % TGT
    before, after = model(src, tgt), model(src, changed)
    close(before[:, :cut], after[:, :cut])
    assert (before[:, cut:] - after[:, cut:]).abs().amax((0, 2)).min() > 1e-3


@few
@given(place=st.integers(0, 4), norm_first=st.booleans(), seed=st.integers(0, 99))
def test_without_masks_each_source_token_reaches_every_output(place, norm_first, seed):
    model, (src, tgt) = small(norm_first=norm_first), ids(seed=seed)
    changed = src.clone()
    changed[:, place] = src[:, place] % (SRC - 1) + 1
    assert (model(src, tgt) - model(changed, tgt)).abs().amax(-1).min() > 1e-6


@orders
def test_without_masks_nothing_is_padding_and_the_target_is_causal(norm_first):
    model, (src, tgt) = small(norm_first=norm_first), ids()
    src[:, 3:] = tgt[:, 5:] = PAD
    want = model(src, tgt, torch.ones(1, 1, 1, S, dtype=torch.bool), causal_mask(T))
    close(model(src, tgt), want)
    close(model(src, tgt[:, :1]), want[:, :1])
    hidden = padding_mask(src, PAD), target_mask(tgt, PAD)
    assert (model(src, tgt, *hidden) - want).abs().max() > 1e-3


def test_a_target_mask_of_padding_only_shows_the_future():
    model, (src, tgt) = small(), ids()
    changed = tgt.clone()
    changed[:, -1] = tgt[:, -1] % (TGT - 1) + 1
    open_before, open_after = (model(src, t, None, padding_mask(t, PAD)) for t in (tgt, changed))
    assert (open_before - open_after)[:, 0].abs().max() > 1e-3
    close(model(src, tgt, None, target_mask(tgt, PAD))[:, :-1], model(src, changed)[:, :-1])


@few
@given(
    lengths=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=5),
    pad=st.integers(0, 3),
    norm_first=st.booleans(),
)
def test_padding_on_either_side_changes_no_real_output(lengths, pad, norm_first):
    # also where the batch is as large as a sequence is long
    model = small(norm_first=norm_first)
    (widest, longest), rows = map(max, zip(*lengths, strict=True)), len(lengths)
    src, tgt = ids(rows, widest + pad, longest + pad)
    for row, (n, m) in enumerate(lengths):
        src[row, n:], tgt[row, m:] = PAD, PAD
    together = model(src, tgt, padding_mask(src, PAD), target_mask(tgt, PAD))
    for row, (n, m) in enumerate(lengths):
        alone = model(src[row : row + 1, :n], tgt[row : row + 1, :m])
        close(together[row, :m], alone[0], 1e-4)


@orders
def test_one_pass_predicts_what_separate_passes_over_the_prefixes_predict(norm_first):
    model, (src, tgt) = small(norm_first=norm_first), ids()
    together = model(src, tgt)
    for length in range(1, T + 1):
        close(model(src, tgt[:, :length])[:, -1], together[:, length - 1])


def test_rows_of_a_batch_do_not_meet():
    model, (src, tgt) = small(), ids()
    other_src, other_tgt = ids(seed=1)
    other_src[1], other_tgt[1] = src[1], tgt[1]
    close(model(src, tgt)[1], model(other_src, other_tgt)[1])


def test_the_maps_of_a_whole_model_come_in_forward_order_and_sum_to_one():
    model, (src, tgt) = small(dropout=0.5), ids()
    src[0, 2:] = PAD
    maps = attention_maps(model, src, tgt, src_mask=padding_mask(src, PAD))
    own = [f"encoder.layers.{n}.self_attention" for n in range(2)]
    pairs = [[f"decoder.layers.{n}.{name}_attention" for name in ("self", "cross")] for n in range(2)]
    assert list(maps) == own + pairs[0] + pairs[1]
    for name, weights in maps.items():
        shape = (S, S) if name.startswith("encoder") else (T, T) if "self" in name else (T, S)
        assert weights.shape == (B, HEADS, *shape), name
        close(weights.sum(-1), torch.ones(B, HEADS, shape[0]))
        if shape[1] == S:
            assert (weights[0, :, :, 2:] == 0).all(), name
        else:
            assert (weights.triu(1) == 0).all(), name


# weights at the start


def test_the_base_model_with_a_shared_vocabulary_of_37000_has_63082496_parameters():
    with torch.device("meta"):
        model = make_model(37000, 37000, norm_first=False, share_embeddings=True)
        assert count(model) == 63_082_496
        assert count(make_model(37000, 37000, share_embeddings=True)) == 63_082_496 + 2 * 2 * 512


@few
@given(
    src_vocab=st.sampled_from([3, 5]),
    tgt_vocab=st.sampled_from([3, 7]),
    layers=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 11]),
    d_ff=st.sampled_from([13, 17]),
    norm_first=st.booleans(),
    share=st.booleans(),
)
def test_the_number_of_parameters_follows_from_the_sizes(
    src_vocab, tgt_vocab, layers, heads, d_ff, norm_first, share
):
    d, src_vocab = 22, tgt_vocab if share else src_vocab
    attention, feed_forward, norm = 4 * (d * d + d), 2 * d * d_ff + d_ff + d, 2 * d
    tables = tgt_vocab * d if share else (src_vocab + tgt_vocab) * d + (d + 1) * tgt_vocab
    want = tables + layers * (3 * attention + 2 * feed_forward + 5 * norm) + 2 * norm * norm_first
    with torch.device("meta"):
        model = make_model(
            src_vocab, tgt_vocab, layers, d, d_ff, heads, norm_first=norm_first, share_embeddings=share
        )
    assert count(model) == want


def matrices(model):
    return {name: p for name, p in model.named_parameters() if p.dim() > 1}


@sharing
def test_every_matrix_starts_with_xaviers_distribution(share):
    torch.manual_seed(0)
    model = make_model(101, 101, 2, 64, 128, 4, share_embeddings=share)
    for name, matrix in matrices(model).items():
        bound = math.sqrt(6 / sum(matrix.shape))
        assert matrix.abs().max() <= bound, name
        assert matrix.abs().max() > 0.98 * bound, name
        assert matrix.std().item() == pytest.approx(math.sqrt(2 / sum(matrix.shape)), rel=0.05), name
        assert abs(matrix.mean().item()) < 0.05 * bound, name


@orders
def test_every_bias_starts_at_zero_and_every_gain_at_one(norm_first):
    model = make_model(SRC, TGT, **SIZES, norm_first=norm_first)
    biases = {name: p for name, p in model.named_parameters() if name.endswith("bias")}
    gains = {name: p for name, p in model.named_parameters() if p.dim() == 1 and name not in biases}
    norms = 2 * (2 + 3) + 2 * norm_first
    assert len(gains) == norms and len(biases) == norms + 2 * (3 * 4 + 2 * 2) + 1
    assert all((bias == 0).all() for bias in biases.values())
    assert all((gain == 1).all() for gain in gains.values())


def test_layers_start_different_from_one_another():
    model = make_model(SRC, TGT, **SIZES | {"num_layers": 3})
    attentions = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    stacks = [model.encoder.layers, model.decoder.layers]
    for first, second in itertools.chain(
        itertools.combinations(attentions, 2), *(itertools.combinations(stack, 2) for stack in stacks)
    ):
        for (name, one), other in zip(matrices(first).items(), matrices(second).values(), strict=True):
            assert (one - other).abs().mean() > 1e-2, name


def test_the_same_seed_gives_the_same_model():
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(make_model(SRC, TGT, **SIZES))
    first, again, other = (torch.cat([p.flatten() for p in model.parameters()]) for model in models)
    assert torch.equal(first, again) and not torch.equal(first, other)


@sharing
@pytest.mark.parametrize("padding_idx", [0, 7])
def test_a_padding_row_is_zero_after_xavier_and_the_others_are_not(padding_idx, share):
    model = make_model(TGT, TGT, **SIZES, padding_idx=padding_idx, share_embeddings=share)
    for embed in (model.src_embed, model.tgt_embed):
        rows = embed.tokens.table.weight.abs().sum(-1)
        assert rows[padding_idx] == 0 and (rows > 0).sum() == TGT - 1
    assert all((make_model(3, 3, **SIZES).src_embed.tokens.table.weight != 0).any(-1))


def train_once(model):
    src, tgt = ids()
    src, tgt = src % TGT, tgt.clone()
    src[1, 2:] = tgt[1, 2:] = PAD
    logits = model(src, tgt, padding_mask(src, PAD), target_mask(tgt, PAD))
    F.cross_entropy(logits.flatten(0, 1), tgt.flatten(), ignore_index=PAD).backward()
    torch.optim.SGD(model.parameters(), 1.0).step()
    return logits


def test_a_padding_row_stays_zero_in_training_unless_the_output_shares_it():
    separate = small(padding_idx=PAD)
    shared = small(TGT, TGT, padding_idx=PAD, share_embeddings=True)
    train_once(separate), train_once(shared)
    assert (separate.src_embed.tokens.table.weight[PAD] == 0).all()
    assert (separate.tgt_embed.tokens.table.weight[PAD] == 0).all()
    # the score of padding is a dot product with its row, which every other token pushes down
    assert (shared.tgt_embed.tokens.table.weight[PAD] != 0).any()


def test_sharing_ties_source_target_and_output():
    model = small(TGT, TGT, share_embeddings=True)
    table = model.src_embed.tokens.table.weight
    assert model.tgt_embed.tokens.table.weight is table and model.generator.projection.weight is table
    assert model.generator.projection.bias is None
    assert count(small(TGT, TGT)) - count(model) == 2 * TGT * D_MODEL + TGT
    train_once(model)
    assert model.generator.projection.weight is table and table.grad is not None


def test_without_sharing_the_three_matrices_are_separate():
    model = small(TGT, TGT)
    tables = [model.src_embed.tokens.table.weight, model.tgt_embed.tokens.table.weight]
    tables.append(model.generator.projection.weight)
    assert len({table.data_ptr() for table in tables}) == 3
    assert all((a - b).abs().mean() > 1e-2 for a, b in itertools.combinations(tables, 2))


def test_a_shared_model_stays_shared_when_copied_moved_and_loaded():
    model, (src, tgt) = small(TGT, TGT, share_embeddings=True), ids()
    loaded = make_model(TGT, TGT, **SIZES | {"dropout": 0.0}, share_embeddings=True)
    loaded.load_state_dict(model.state_dict())
    for twin in (copy.deepcopy(model), loaded, copy.deepcopy(model).double().float()):
        assert twin.generator.projection.weight is twin.src_embed.tokens.table.weight
        assert twin.tgt_embed.tokens.table.weight is twin.src_embed.tokens.table.weight
        close(twin(src, tgt), model(src, tgt))


def test_unequal_vocabularies_cannot_be_shared_and_the_message_names_both():
    with pytest.raises(ValueError, match=r"src_vocab \(11\) must equal tgt_vocab \(13\) to share embeddings"):
        make_model(SRC, TGT, share_embeddings=True)


@pytest.mark.parametrize("vocabulary", [5, 97])
def test_an_untrained_model_scores_about_as_well_as_guessing(vocabulary):
    torch.manual_seed(0)
    model = make_model(vocabulary, vocabulary, 2, 32, 64, 4, dropout=0.0)
    src, tgt = torch.randint(vocabulary, (61, 5)), torch.randint(vocabulary, (61, 8))
    loss = F.cross_entropy(model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten())
    # logits have the variance d * 2 / (d + V), and half of that is added to ln V
    extra = 32 / (32 + vocabulary)
    assert loss.item() == pytest.approx(math.log(vocabulary) + extra, abs=0.35)


# dropout, norms, gradients


@orders
@sharing
def test_without_dropout_training_equals_evaluation(norm_first, share):
    model, (src, tgt) = small(TGT, TGT, norm_first=norm_first, share_embeddings=share), ids()
    in_training = model.train()(src, tgt)
    assert torch.equal(in_training, model.train()(src, tgt))
    # without gradients another kernel may compute the attention, but it may not drop anything either
    close(in_training, model.eval()(src, tgt), 1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.375])
def test_the_rate_of_dropout_reaches_every_part(dropout):
    model = make_model(SRC, TGT, **SIZES, dropout=dropout)
    modules = [part.p for part in model.modules() if isinstance(part, nn.Dropout)]
    attentions = [part.dropout for part in model.modules() if isinstance(part, MultiHeadAttention)]
    # two encodings; in each of two layers a pair of residuals and a middle, or three residuals and a middle
    assert modules == [dropout] * (2 + 2 * 3 + 2 * 4) and attentions == [dropout] * (2 * 1 + 2 * 2)


def test_dropout_acts_in_training_only():
    model, (src, tgt) = small(dropout=0.5), ids()
    assert not torch.equal(model(src, tgt), model(src, tgt))
    model.eval()
    close(model(src, tgt), small()(src, tgt))


@orders
def test_the_order_of_normalisation_reaches_every_residual_and_the_end_of_both_stacks(norm_first):
    model = make_model(SRC, TGT, **SIZES, norm_first=norm_first)
    connections = [part for part in model.modules() if isinstance(part, SublayerConnection)]
    assert [part.norm_first for part in connections] == [norm_first] * (2 * 2 + 2 * 3)
    assert all(isinstance(stack.norm, nn.LayerNorm) == norm_first for stack in (model.encoder, model.decoder))


@orders
@sharing
def test_every_parameter_gets_a_gradient(norm_first, share):
    model = small(TGT, TGT, norm_first=norm_first, share_embeddings=share)
    train_once(model)
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        if name.endswith("key_projection.bias"):
            # it adds the same to every score of a query, which softmax does not see
            assert parameter.grad.abs().max() < 1e-6, name
        else:
            assert parameter.grad.abs().max() > 1e-6, name


@orders
def test_gradients_agree_with_finite_differences(norm_first):
    torch.manual_seed(0)
    model = make_model(3, 5, 1, 4, 7, 2, 0.0, norm_first=norm_first).double()
    src, tgt = torch.tensor([[1, 2, 0]]), torch.tensor([[4, 3]])
    masks = padding_mask(src, PAD), target_mask(tgt, PAD)
    memory = model.encode(src, masks[0]).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda m: model.generator(model.decode(tgt, m, *masks)), memory)


# bad input


def with_id(side, wrong):
    src, tgt = ids()
    (src if side == "src" else tgt)[1, 2] = wrong
    return src, tgt


@sides
@pytest.mark.parametrize("wrong", [-1, -100, "vocabulary", 1000])
def test_an_id_outside_the_vocabulary_is_named_with_its_side_and_the_vocabulary(side, wrong):
    vocabulary = SRC if side == "src" else TGT
    wrong = vocabulary if wrong == "vocabulary" else wrong
    with pytest.raises(ValueError, match=rf"{side} \({wrong}\) must .* vocab_size \({vocabulary}\)"):
        small()(*with_id(side, wrong))


@sides
def test_encode_and_decode_check_on_their_own(side):
    model, (src, tgt) = small(), with_id(side, -1)
    memory = torch.zeros(B, S, D_MODEL)
    with pytest.raises(ValueError, match=rf"{side} \(-1\)"):
        model.encode(src) if side == "src" else model.decode(tgt, memory)


@sides
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_ids_that_are_not_whole_numbers_raise(side, dtype):
    src, tgt = ids()
    given_ids = {"src": src, "tgt": tgt}
    given_ids[side] = given_ids[side].to(dtype)
    with pytest.raises(TypeError, match=rf"{side} \(dtype {dtype}\) must hold whole numbers"):
        small()(**given_ids)


@sides
def test_ids_that_are_no_tensor_raise(side):
    src, tgt = ids()
    given_ids = {"src": src, "tgt": tgt} | {side: [[1, 2, 3]]}
    with pytest.raises(TypeError, match=rf"{side} must be a tensor of token ids, got list"):
        small()(**given_ids)


@sides
@pytest.mark.parametrize("shape", [(5,), (3, 5, 1)])
def test_ids_that_are_not_a_batch_of_sequences_raise(side, shape):
    src, tgt = ids()
    given_ids = {"src": src, "tgt": tgt} | {side: torch.ones(shape, dtype=torch.long)}
    text = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    with pytest.raises(ValueError, match=rf"{side} \(shape \({text}\)\) must have two dimensions"):
        small()(**given_ids)


def counted(monkeypatch):
    """Count how often the values of ids are read."""
    calls, aminmax = [], torch.Tensor.aminmax
    monkeypatch.setattr(torch.Tensor, "aminmax", lambda self: calls.append(self) or aminmax(self))
    return calls


def test_ids_are_read_once_a_side_and_not_again_in_cached_steps(monkeypatch):
    model, (src, tgt) = small().eval(), ids()
    calls = counted(monkeypatch)
    model(src, tgt)
    assert [call.shape for call in calls] == [src.shape, tgt.shape]
    step = TransformerStep(model, src)
    calls.clear()
    for length in range(1, T + 1):
        step(tgt[:, :length])
    assert len(calls) == 1


def test_ids_are_not_read_while_a_graph_is_compiled(monkeypatch):
    model, (src, tgt) = small(), ids()
    want, calls = model(src, tgt), counted(monkeypatch)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    close(model(src, tgt), want)
    assert not calls
    with pytest.raises(TypeError, match="src"):  # a wrong type costs no look at the values
        model(src.float(), tgt)


def test_ids_have_no_values_on_the_meta_device():
    with torch.device("meta"):
        model = make_model(SRC, TGT, **SIZES)
        src, tgt = torch.full((B, S), 99), torch.full((B, T), -99)
    out = model(src, tgt, padding_mask(src, PAD), target_mask(tgt, PAD))
    assert out.is_meta and out.shape == (B, T, TGT)
    assert model(src, tgt).is_meta  # and the causal mask is made where the ids are


@sides
def test_a_sequence_longer_than_max_len_raises_and_names_both_lengths(side):
    lengths = {"src": S, "tgt": T} | {side: MAX_LEN + 6}
    src, tgt = ids(B, lengths["src"], lengths["tgt"])
    with pytest.raises(ValueError, match=r"length \(29\) must not exceed max_len \(23\)"):
        small()(src, tgt)


def test_sequences_may_be_as_long_as_max_len():
    assert small()(*ids(1, MAX_LEN, MAX_LEN)).shape == (1, MAX_LEN, TGT)


@pytest.mark.parametrize(("sources", "targets"), [(3, 2), (1, 3), (3, 1)])
def test_batches_of_different_size_raise_and_both_are_named(sources, targets):
    src, tgt = ids(sources)[0], ids(targets)[1]
    with pytest.raises(ValueError, match=rf"tgt \(batch {targets}\) .* memory \({sources}\)"):
        small()(src, tgt)


@sides
@pytest.mark.parametrize("kind", [torch.float32, torch.long])
def test_a_mask_that_is_not_boolean_raises(side, kind):
    src, tgt = ids()
    masks = {"src_mask": padding_mask(src, PAD), "tgt_mask": target_mask(tgt, PAD)}
    masks[f"{side}_mask"] = masks[f"{side}_mask"].to(kind)
    with pytest.raises(TypeError, match="mask must be a boolean tensor"):
        small()(src, tgt, **masks)


@sides
@pytest.mark.parametrize("batch", [2, 5], ids=["batch", "batch as large as length"])
def test_a_mask_without_four_dimensions_raises_and_the_message_says_what_makes_one(side, batch):
    src, tgt = ids(batch, 5, 5)
    keep = src != PAD
    for mask in (keep, keep[:, None]):
        with pytest.raises(ValueError, match=r"must have four dimensions .* padding_mask\(ids, pad_id\)"):
            small()(src, tgt, **{f"{side}_mask": mask})


def test_a_target_mask_sliced_to_nothing_raises():
    # what [:, :-1, :-1] leaves of a mask (B, 1, T)
    src, tgt = ids()
    mask = (tgt != PAD)[:, None][:, :-1, :-1]
    assert mask.shape == (B, 0, T - 1)
    for sliced in (mask, mask[:, None]):
        with pytest.raises(ValueError, match=r"mask \(shape \(3, .*0, 6\)\) must"):
            small()(src, tgt[:, :-1], None, sliced)


def test_masks_of_another_length_or_batch_raise_and_name_the_shapes():
    model, (src, tgt) = small(), ids()
    for masks in (
        {"src_mask": padding_mask(tgt, PAD)},
        {"src_mask": padding_mask(src[:2], PAD)},
        {"tgt_mask": target_mask(tgt[:, :-1], PAD)},
        {"tgt_mask": padding_mask(src, PAD)},
    ):
        (mask,) = masks.values()
        got = ", ".join(map(str, mask.shape))
        message = rf"mask \(shape \({got}\)\) must broadcast to the scores, got \(3, 2"
        with pytest.raises(ValueError, match=message):
            model(src, tgt, **masks)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"src_vocab": 0}, ValueError, r"src_vocab \(0\) must be at least 1"),
        ({"tgt_vocab": -1}, ValueError, r"tgt_vocab \(-1\) must be at least 1"),
        ({"src_vocab": 5.0}, TypeError, r"src_vocab \(5.0\) must be a whole number"),
        ({"num_layers": 0}, ValueError, r"num_layers \(0\) must be at least 1"),
        ({"d_model": 0}, ValueError, r"d_model \(0\) must be at least 1"),
        ({"d_model": 10, "num_heads": 3}, ValueError, r"num_heads \(3\) must divide d_model \(10\)"),
        ({"d_ff": 0}, ValueError, r"d_ff \(0\) must be at least 1"),
        ({"num_heads": 0}, ValueError, r"num_heads \(0\) must be at least 1"),
        ({"dropout": 1.5}, ValueError, r"dropout \(1.5\) must be from 0 to 1"),
        ({"dropout": "none"}, TypeError, r"dropout \('none'\) must be a number"),
        ({"padding_idx": 13}, ValueError, r"padding_idx \(13\) must be below vocab_size \(11\)"),
        ({"padding_idx": -1}, ValueError, r"padding_idx \(-1\) must be at least 0"),
        ({"max_len": 0}, ValueError, r"max_len \(0\) must be at least 1"),
    ],
)
def test_sizes_that_make_no_model_raise(options, error, message):
    with pytest.raises(error, match=message):
        make_model(**{"src_vocab": SRC, "tgt_vocab": TGT} | SIZES | options)


@pytest.mark.parametrize(("sizes", "message"), [((0, 3), r"d_model \(0\)"), ((2, 0), r"vocab_size \(0\)")])
def test_a_generator_of_impossible_size_raises(sizes, message):
    with pytest.raises(ValueError, match=message):
        Generator(*sizes)


@pytest.mark.gpu
def test_a_gpu_gives_the_numbers_of_the_cpu():
    model, (src, tgt) = small().eval(), ids()
    src[1, 2:] = tgt[2, 4:] = PAD
    masks = padding_mask(src, PAD), target_mask(tgt, PAD)
    want = model(src, tgt, *masks), model(src, tgt)
    model, src, tgt, *masks = (part.cuda() for part in (model, src, tgt, *masks))
    close(model(src, tgt, *masks).cpu(), want[0], 1e-4)
    close(model(src, tgt).cpu(), want[1], 1e-4)
