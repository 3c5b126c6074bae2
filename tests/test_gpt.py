"""GPT: parity with Hugging Face's GPT-2, caches, padding, the loss and the loading of weights."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from annotated_transformer.gpt import (
    GPT,
    PRESETS,
    GPTConfig,
    next_token_loss,
    padded_positions,
)

IDS = torch.tensor([[3, 1, 4, 1, 5, 9]])
TINY = GPTConfig(vocab_size=17, max_len=8, d_model=8, num_layers=2, num_heads=2, dropout=0.0)


def spread(module, scale=1.0):
    """Give a module weights that look random and are the same everywhere."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            u = torch.rand(parameter.shape, generator=generator) * 2 - 1
            parameter.copy_(1 + 0.1 * u if parameter.dim() == 1 and "bias" not in name else scale * u)
    return module.eval()


@pytest.fixture(scope="module")
def published():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=17, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0
    )
    return spread(transformers.GPT2LMHeadModel(config))


@pytest.fixture(scope="module")
def model(published):
    return GPT.from_state_dict(TINY, published.state_dict()).eval()


def test_logits_and_gradients_equal_hugging_face(published, model):
    torch.testing.assert_close(model(IDS), published(IDS).logits, atol=1e-5, rtol=1e-5)
    published.zero_grad()
    model.zero_grad()
    published(IDS, labels=IDS).loss.backward()
    next_token_loss(model(IDS), IDS).backward()
    torch.testing.assert_close(
        model.tokens.weight.grad, published.transformer.wte.weight.grad, atol=1e-5, rtol=1e-4
    )
    theirs = published.transformer.h[0].attn.c_attn.weight.grad  # (in, out), query, key and value joined
    ours = model.decoder.layers[0].self_attention
    joined = torch.cat([ours.query_projection.weight.grad, ours.key_projection.weight.grad])
    torch.testing.assert_close(joined, theirs.t()[:16], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        model.decoder.layers[1].feed_forward.narrow.weight.grad,
        published.transformer.h[1].mlp.c_proj.weight.grad.t(),
        atol=1e-5,
        rtol=1e-4,
    )


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_published_sizes_have_their_exact_parameter_counts(name, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in GPT(GPTConfig.preset(name)).parameters()) == count


def test_every_preset_is_a_published_name():
    assert list(PRESETS) == ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"]
    assert GPTConfig.preset("gpt2") == GPTConfig()
    assert GPTConfig.preset("gpt2", dropout=0.0).dropout == 0.0
    with pytest.raises(
        ValueError, match=r"name \('gpt3'\) must be one of gpt2, gpt2-medium, gpt2-large, gpt2-xl"
    ):
        GPTConfig.preset("gpt3")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_heads": 3}, ValueError, r"num_heads \(3\) must divide d_model \(8\)"),
        ({"num_layers": 0}, ValueError, r"num_layers \(0\) must be at least 1"),
        ({"vocab_size": -1}, ValueError, r"vocab_size \(-1\) must be at least 1"),
        ({"d_model": 8.0}, TypeError, r"d_model \(8.0\) must be a whole number"),
        ({"dropout": 1.5}, ValueError, r"dropout \(1.5\) must"),
        ({"attention_dropout": -0.1}, ValueError, r"dropout \(-0.1\) must"),
    ],
)
def test_impossible_shapes_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        dataclasses.replace(TINY, **change)


def test_configuration_fills_in_what_follows_from_the_rest():
    assert TINY.d_ff == 32 and TINY.attention_dropout == 0.0
    assert GPTConfig(dropout=0.3).attention_dropout == 0.3


def test_future_tokens_do_not_change_past_logits(model):
    changed = IDS.clone()
    changed[0, 4:] = torch.tensor([16, 2])
    torch.testing.assert_close(model(changed)[:, :4], model(IDS)[:, :4])
    assert not torch.allclose(model(changed)[:, 4:], model(IDS)[:, 4:])


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=6).filter(lambda s: sum(s) <= 8))
def test_any_pieces_through_the_cache_equal_one_forward(sizes):
    model = spread(GPT(TINY))
    ids = torch.arange(2 * sum(sizes)).reshape(2, -1) % 17
    cache, pieces = model.new_cache(), ids.split(sizes, dim=1)
    with torch.no_grad():
        stepped = torch.cat([model(piece, cache=cache) for piece in pieces], dim=1)
        torch.testing.assert_close(stepped, model(ids), atol=1e-5, rtol=1e-5)


@settings(max_examples=15, deadline=None)
@given(left=st.integers(0, 3), right=st.integers(0, 2), pad=st.integers(0, 16))
def test_padding_on_either_side_changes_nothing(left, right, pad):
    model = spread(GPT(TINY))
    alone = torch.tensor([[3, 1, 4]])
    row = torch.cat([torch.full((1, left), pad), alone, torch.full((1, right), pad)], dim=1)
    keep = torch.zeros_like(row, dtype=torch.bool)
    keep[:, left : left + 3] = True
    with torch.no_grad():
        padded = model(row, keep)[:, left : left + 3]
        torch.testing.assert_close(padded, model(alone), atol=1e-5, rtol=1e-5)


def test_left_padded_rows_continue_through_the_cache(model):
    ids = torch.tensor([[0, 0, 3, 1, 4, 1], [2, 7, 1, 8, 2, 8]])
    keep = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]).bool()
    cache = model.new_cache()
    with torch.no_grad():
        first = model(ids[:, :4], keep[:, :4], cache=cache)
        rest = model(ids[:, 4:], keep, cache=cache)
        whole = model(ids, keep)
    torch.testing.assert_close(torch.cat([first, rest], 1)[1], whole[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rest[0], whole[0, 4:], atol=1e-5, rtol=1e-5)


def test_positions_count_real_tokens():
    keep = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    assert padded_positions(keep)[0, 2:].tolist() == [0, 1, 2]
    assert padded_positions(keep)[1].tolist() == [0, 1, 2, 3, 4]


def test_given_positions_are_used(model):
    torch.testing.assert_close(model(IDS, positions=torch.arange(6)[None]), model(IDS))
    assert not torch.allclose(model(IDS, positions=torch.arange(1, 7)[None]), model(IDS))
    with pytest.raises(ValueError, match=r"positions \(8\) must be .* \(8\)"):
        model(IDS[:, :1], positions=torch.tensor([[8]]))
    for wrong in (torch.arange(6), torch.arange(5)[None], torch.zeros(2, 6, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"positions \(shape .*\) must be \(1, 6\) or \(1, 6\)"):
            model(IDS, positions=wrong)


def test_a_cache_must_be_one_for_each_layer_and_hold_the_text(model):
    with pytest.raises(ValueError, match=r"cache \(1\) must hold one for each layer \(2\)"):
        model(IDS, cache=model.new_cache()[:1])
    with pytest.raises(ValueError, match=r"max_len \(0\) must be at least 1"):
        model.new_cache(0)
    with pytest.raises(ValueError, match=r"cache length \(6\) must not exceed max_len \(5\)"):
        model(IDS, cache=model.new_cache(5))


def test_bad_ids_lengths_and_masks_are_named(model):
    with pytest.raises(ValueError, match=r"ids \(17\) must be .* vocab_size \(17\)"):
        model(torch.tensor([[3, 17]]))
    with pytest.raises(ValueError, match=r"ids \(-1\) must be .* vocab_size \(17\)"):
        model(torch.tensor([[3, -1]]))
    with pytest.raises(ValueError, match=r"sequence length \(9\) must not exceed max_len \(8\)"):
        model(torch.zeros(1, 9, dtype=torch.long))
    with pytest.raises(ValueError, match=r"ids must have two dimensions \(B, T\), got \(6,\)"):
        model(IDS[0])
    with pytest.raises(ValueError, match=r"keep \(shape \(1, 5\)\) must be \(1, 6\)"):
        model(IDS, torch.ones(1, 5, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"keep must be a boolean tensor .* got torch.int64"):
        model(IDS, torch.ones(1, 6, dtype=torch.long))


def test_an_empty_batch_gives_empty_logits(model):
    assert model(IDS[:0]).shape == (0, 6, 17)


def test_loss_by_hand_and_the_shift_happens_once():
    ids = torch.tensor([[1, 2, 3, 4], [5, 3, 1, 2]])
    logits = torch.zeros(2, 4, 6)
    for b in range(2):
        for t in range(3):
            logits[b, t, ids[b, t + 1]] = 20.0
        logits[b, 3, 0] = 20.0
    assert next_token_loss(logits, ids).item() < 1e-6
    assert next_token_loss(torch.zeros(2, 4, 6), ids).item() == pytest.approx(math.log(6))
    unshifted = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
    assert unshifted > 10


def test_loss_ignores_padding_and_refuses_nothing_to_predict():
    logits, ids = torch.randn(1, 5, 6), torch.tensor([[0, 0, 1, 2, 3]])
    keep = torch.tensor([[0, 0, 1, 1, 1]]).bool()
    torch.testing.assert_close(next_token_loss(logits, ids, keep), next_token_loss(logits[:, 2:], ids[:, 2:]))
    with pytest.raises(ValueError, match=r"ids \(shape \(1, 1\)\) must hold a token with a next token"):
        next_token_loss(logits[:, :1], ids[:, :1])
    with pytest.raises(ValueError, match=r"logits \(B, T = \(1, 4\)\) must fit ids \(1, 5\)"):
        next_token_loss(logits[:, 1:], ids)  # shifted already
    with pytest.raises(ValueError, match=r"keep \(B, T = \(1, 4\)\) must fit ids \(1, 5\)"):
        next_token_loss(logits, ids, keep[:, 1:])


def test_output_is_tied_and_initialisation_scales_with_depth():
    torch.manual_seed(0)
    model = GPT(dataclasses.replace(TINY, d_model=64, num_layers=8, num_heads=4))
    assert model.generator.projection.weight is model.tokens.weight
    layer = model.decoder.layers[3]
    assert layer.feed_forward.widen.weight.std().item() == pytest.approx(0.02, rel=0.1)
    for writes in (layer.feed_forward.narrow, layer.self_attention.output_projection):
        assert writes.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)
        assert writes.bias.abs().max() == 0


def test_untrained_model_is_as_surprised_as_chance():
    torch.manual_seed(0)
    model = GPT(TINY).eval()
    assert next_token_loss(model(IDS), IDS).item() == pytest.approx(math.log(17), abs=0.1)


def test_weights_load_without_head_with_old_masks_and_with_or_without_prefix(published):
    state = {k: v.clone() for k, v in published.state_dict().items() if k != "lm_head.weight"}
    state["transformer.h.0.attn.bias"] = torch.ones(1, 1, 8, 8).tril()
    state["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    for prefix in ("transformer.", ""):
        named = {prefix + k.removeprefix("transformer."): v for k, v in state.items()}
        loaded = GPT.from_state_dict(TINY, named).eval()
        torch.testing.assert_close(loaded(IDS), published(IDS).logits, atol=1e-5, rtol=1e-5)
        assert loaded.generator.projection.weight.data_ptr() == loaded.tokens.weight.data_ptr()


def test_weights_that_do_not_fit_are_refused_by_name(published):
    state = dict(published.state_dict())
    short = {k: v for k, v in state.items() if k != "transformer.h.1.mlp.c_fc.weight"}
    with pytest.raises(ValueError, match=r"missing \['h.1.mlp.c_fc.weight'\]"):
        GPT.from_state_dict(TINY, short)
    with pytest.raises(ValueError, match=r"unknown \['h.0.attn.rotary'\]"):
        GPT.from_state_dict(TINY, {**state, "transformer.h.0.attn.rotary": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"unknown \['h.2"):
        GPT.from_state_dict(TINY, {**state, "transformer.h.2.ln_1.weight": torch.zeros(8)})
    wider = {**state, "transformer.wpe.weight": torch.zeros(9, 8)}
    with pytest.raises(ValueError, match=r"wpe.weight \(shape \(9, 8\)\) must be \(8, 8\)"):
        GPT.from_state_dict(TINY, wider)
    untransposed = {**state, "transformer.h.0.mlp.c_fc.weight": state["transformer.h.0.mlp.c_fc.weight"].t()}
    with pytest.raises(ValueError, match=r"h.0.mlp.c_fc.weight .* must be \(32, 8\)"):
        GPT.from_state_dict(TINY, untransposed)
    with pytest.raises(ValueError, match=r"lm_head.weight must equal wte.weight"):
        GPT.from_state_dict(TINY, {**state, "lm_head.weight": state["lm_head.weight"] + 1})


def test_no_dropout_means_training_and_eval_agree():
    model = GPT(TINY)
    torch.testing.assert_close(model.train()(IDS), model.eval()(IDS))
