"""Each fault of the documents, and the corrected form the book gives for it."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import annotated_transformer
from annotated_transformer import (
    Embeddings,
    MultiHeadAttention,
    attention_maps,
    causal_mask,
    make_model,
    padding_mask,
    scaled_dot_product_attention,
    sinusoidal_encoding,
    target_mask,
)
from annotated_transformer.encoder_decoder import Decoder, Encoder, decoder_layer
from annotated_transformer.gpt import GPTConfig
from annotated_transformer.parameter_count import parameter_count, preset, rough_terms

DOCUMENT_VOCABULARY, B, S, T = 10_000, 32, 10, 20


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(1, DOCUMENT_VOCABULARY, (B, S), generator=generator)
    tgt = torch.randint(1, DOCUMENT_VOCABULARY, (B, T), generator=generator)
    src[:, 7:][::3] = 0
    tgt[:, 15:][::2] = 0
    return src, tgt


def test_the_decoder_stack_and_every_other_undefined_name_exist():
    for name in ("Encoder", "Decoder", "Generator", "EncoderLayer", "DecoderLayer", "make_model"):
        assert callable(getattr(annotated_transformer, name))
    stack = Decoder([decoder_layer(8, 2, 16, dropout=0.0) for _ in range(3)], nn.LayerNorm(8))
    assert stack(torch.randn(2, 5, 8), torch.randn(2, 3, 8)).shape == (2, 5, 8)


def test_embeddings_carry_the_factor():
    table = Embeddings(1000, 512)
    x = table(torch.arange(1000)[None])
    torch.testing.assert_close(x[0], table.table.weight * math.sqrt(512))
    positions = sinusoidal_encoding(1000, 512).std()
    assert 0.5 < positions / x.std() < 1 and positions / (x / math.sqrt(512)).std() > 15


def test_a_mask_without_the_axis_of_the_heads_is_refused():
    keep = torch.ones(3, 1, 5, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mask \(shape \(3, 1, 5\)\) must have four dim.*padding_mask"):
        MultiHeadAttention(8, 2)(*[torch.zeros(3, 5, 8)] * 3, mask=keep)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_masked_scores_lose_in_every_precision(dtype):
    query, key = torch.full((1, 1, 1, 1), -150.0, dtype=dtype), torch.full((1, 1, 2, 1), 100.0, dtype=dtype)
    value = torch.tensor([1.0, 2.0], dtype=dtype).reshape(1, 1, 2, 1)
    output, weights = scaled_dot_product_attention(query, key, value, torch.tensor([[True, False]]))
    assert output.item() == 1.0 and weights.flatten().tolist() == [1.0, 0.0]


def test_175_billion_is_the_size_of_gpt3():
    shape = GPTConfig(vocab_size=50257, max_len=2048, d_model=12288, num_layers=96, num_heads=96)
    assert round(parameter_count(shape) / 1e9) == 175


def test_swapped_arguments_are_named_by_the_id_and_the_vocabulary():
    with pytest.raises(ValueError, match=r"ids \(9999\) must be .* vocab_size \(512\)"):
        Embeddings(512, DOCUMENT_VOCABULARY)(torch.tensor([[3, 9_999]]))


def test_the_document_s_own_test_gives_what_it_promises(batch):
    src, tgt = batch
    with torch.device("meta"):
        model = make_model(DOCUMENT_VOCABULARY, DOCUMENT_VOCABULARY)
    decoder_input = tgt[:, :-1]
    masks = padding_mask(src, 0).to("meta"), target_mask(decoder_input, 0).to("meta")
    logits = model(src.to("meta"), decoder_input.to("meta"), *masks)
    assert logits.shape == (32, 19, 10_000)
    sliced = (tgt != 0)[:, None, :][:, :-1, :-1]
    assert sliced.shape == (32, 0, 19)  # what the document makes instead


def test_the_future_is_hidden_with_and_without_given_masks():
    torch.manual_seed(0)
    model = make_model(11, 11, 2, 16, 32, 2, dropout=0.0)
    src, tgt = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5, 6, 7]])
    changed = torch.tensor([[4, 5, 9, 10]])
    for masks in ({}, {"tgt_mask": target_mask(tgt, 0)}):
        torch.testing.assert_close(model(src, tgt, **masks)[:, :2], model(src, changed, **masks)[:, :2])
    seen = {"tgt_mask": padding_mask(tgt, 0)}  # what the document makes: padding only
    assert not torch.allclose(model(src, tgt, **seen)[:, :2], model(src, changed, **seen)[:, :2], atol=1e-3)


def test_a_pre_norm_stack_ends_in_a_norm_and_a_post_norm_one_does_not():
    pre, post = (make_model(11, 11, 2, 16, 32, 2, norm_first=first) for first in (True, False))
    for stack in (pre.encoder, pre.decoder):
        assert isinstance(stack.norm, nn.LayerNorm)
    for stack in (post.encoder, post.decoder):
        assert isinstance(stack.norm, nn.Identity)
    assert isinstance(Encoder([]).norm, nn.Identity)


def test_a_convolution_keeps_order_and_attention_alone_does_not():
    torch.manual_seed(0)
    x, order = torch.randn(1, 4, 9), torch.tensor([3, 1, 4, 0, 5, 8, 2, 6, 7])
    convolution, attention = nn.Conv1d(4, 4, 3, padding=1), MultiHeadAttention(4, 1)
    assert not torch.allclose(convolution(x[:, :, order]), convolution(x)[:, :, order], atol=1e-3)
    rows = x.transpose(1, 2)
    torch.testing.assert_close(attention(*[rows[:, order]] * 3), attention(*[rows] * 3)[:, order])


def test_the_calculator_s_terms_both_sums_and_the_real_total():
    counts = [term.count for term in rough_terms()]
    rounded = [round(count / 1e6, 1) for count in counts[:3]] + [round(counts[3] / 1e6, 2)]
    assert rounded == [38.4, 28.3, 56.6, 0.02]
    assert (round(sum(rounded), 1), round(sum(counts) / 1e6, 1)) == (123.3, 123.4)
    assert parameter_count(preset("gpt2")) == 124_439_808


def test_the_norms_of_the_package_divide_by_n():
    norm = make_model(5, 5, 1, 4, 4, 1).encoder.norm
    got = norm(torch.tensor([[1.0, 0, 0, 0]]))
    torch.testing.assert_close(got, torch.tensor([[1.7320046] + [-0.5773348] * 3]))
    assert not torch.allclose(got, F.layer_norm(torch.tensor([[1.0, 0, 0, 0]]), (4,)) * 0.75**0.5, atol=0.1)


def test_maps_come_from_weights_before_dropout():
    torch.manual_seed(0)
    model = make_model(11, 11, 1, 16, 32, 2, dropout=0.5).train()
    for weights in attention_maps(model, torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert model.training


def test_masks_mean_may_attend():
    _, weights = scaled_dot_product_attention(*[torch.zeros(1, 1, 4, 2)] * 3, causal_mask(4))
    torch.testing.assert_close(weights[0, 0], torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None])
