"""Sampling, filters, streams, caches and contexts of text generation."""

import math
import mmap
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.attention import causal_mask
from annotated_transformer.decoding import KVCache, beam_search, greedy_search
from annotated_transformer.generation import (
    LARGE_PAGE,
    GPTStep,
    Int8Linear,
    TokenLayer,
    TokenLinear,
    filter_min_p,
    filter_top_k,
    filter_top_p,
    for_single_tokens,
    generate,
    next_token_probabilities,
    repetition_penalty,
    sample,
    stream,
)
from annotated_transformer.gpt import GPT, GPTConfig

LOGITS = torch.tensor([[3.0, 1.0, 2.0, 0.0, -1.0]])
CONFIG = GPTConfig(vocab_size=11, max_len=8, d_model=8, num_layers=2, num_heads=2, dropout=0.3)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = GPT(CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(20.0)  # choices far apart, so that a wrong cache cannot go unnoticed
    return model.eval()


def rows(*values):
    return torch.tensor(values)


def kept(logits):
    return logits.isfinite()[0].tolist()


# temperature


def test_temperature_divides_the_logits():
    got = next_token_probabilities(LOGITS, temperature=2.0)
    weights = [math.exp(z / 2) for z in LOGITS[0].tolist()]
    torch.testing.assert_close(got[0], torch.tensor([w / sum(weights) for w in weights]))


def test_temperature_zero_is_greedy_and_breaks_ties_by_the_first():
    logits = torch.tensor([[1.0, 4.0, 2.0], [9.0, -3.0, 8.9], [5.0, 5.0, 1.0]])
    for _ in range(5):
        assert sample(logits, temperature=0).tolist() == [1, 0, 0]
    assert next_token_probabilities(logits, 0.0).tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 0]]


@settings(max_examples=30, deadline=None)
@given(exponent=st.integers(-300, 300), scale=st.floats(0.0, 1e30), seed=st.integers(0, 99))
def test_no_temperature_gives_anything_but_probabilities(exponent, scale, seed):
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(seed)) * scale
    got = next_token_probabilities(logits, temperature=10.0**exponent)
    assert got.isfinite().all() and (got >= 0).all()
    torch.testing.assert_close(got.sum(-1), torch.ones(3))


@pytest.mark.parametrize("temperature", [-1.0, math.nan, math.inf])
def test_impossible_temperatures_are_refused(temperature):
    with pytest.raises(ValueError, match=rf"temperature \({temperature}\) must be 0 or above and finite"):
        sample(LOGITS, temperature=temperature)


def test_logits_without_meaning_are_refused():
    with pytest.raises(ValueError, match="logits must be numbers, got NaN"):
        sample(torch.tensor([[math.nan, 1.0]]))
    with pytest.raises(ValueError, match=r"logits must leave a token to choose"):
        sample(torch.full((1, 3), -math.inf))


def test_a_forbidden_token_is_never_drawn():
    for temperature in (1e-300, 1e-3, 1.0, 1e300):
        probabilities = next_token_probabilities(torch.tensor([[-math.inf, 0.0, 0.0]]), temperature)
        assert probabilities.tolist() == [[0.0, 0.5, 0.5]]


# filters


def test_top_k_keeps_the_k_best_and_more_than_all_keeps_all():
    assert kept(filter_top_k(LOGITS, 2)) == [True, False, True, False, False]
    for k in (5, 50):
        torch.testing.assert_close(filter_top_k(LOGITS, k), LOGITS)
    assert kept(filter_top_k(torch.tensor([[2.0, 2.0, 2.0]]), 2)).count(True) == 2


def test_top_p_keeps_the_fewest_tokens_that_reach_the_mass():
    logits = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()
    assert kept(filter_top_p(logits, 0.5)) == [False, True, False, False]
    assert kept(filter_top_p(logits, 0.6)) == [False, True, False, True]
    assert kept(filter_top_p(logits, 0.8)) == [False, True, True, True]
    assert kept(filter_top_p(logits, 1.0)) == [True] * 4
    assert kept(filter_top_p(logits, 1e-9)) == [False, True, False, False]


def test_min_p_is_relative_to_the_likeliest():
    logits = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()
    assert kept(filter_min_p(logits, 0.4)) == [False, True, False, True]
    assert kept(filter_min_p(logits, 0.0)) == [True] * 4
    assert kept(filter_min_p(logits, 1.0)) == [False, True, False, False]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), k=st.integers(1, 9), p=st.floats(0.01, 1.0), m=st.floats(0.0, 1.0))
def test_filters_never_empty_a_row_never_change_what_they_keep_and_leave_the_input(seed, k, p, m):
    logits = torch.randn(4, 7, generator=torch.Generator().manual_seed(seed)) * 3
    before = logits.clone()
    for got in (filter_top_k(logits, k), filter_top_p(logits, p), filter_min_p(logits, m)):
        assert torch.equal(logits, before)
        finite = got.isfinite()
        assert finite.any(dim=-1).all()
        assert torch.equal(got[finite], logits[finite])
        assert finite.gather(-1, logits.argmax(-1, keepdim=True)).all()
    assert (filter_top_k(logits, k).isfinite().sum(-1) == min(k, 7)).all()
    mass = logits.softmax(-1).masked_fill(~filter_top_p(logits, p).isfinite(), 0).sum(-1)
    assert (mass >= p - 1e-5).all()


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": 0}, r"top_k \(0\) must be at least 1"),
        ({"top_k": -1}, r"top_k \(-1\) must be at least 1"),
        ({"top_p": 0.0}, r"top_p \(0.0\) must be above 0 and at most 1"),
        ({"top_p": 1.5}, r"top_p \(1.5\) must be above 0 and at most 1"),
        ({"top_p": math.nan}, r"top_p \(nan\) must be above 0 and at most 1"),
        ({"min_p": -0.1}, r"min_p \(-0.1\) must be from 0 to 1"),
    ],
)
def test_impossible_filters_are_refused_at_any_temperature(arguments, message, temperature):
    with pytest.raises(ValueError, match=message):
        sample(LOGITS, temperature, **arguments)


def test_repetition_penalty_lowers_every_seen_token_once():
    logits = torch.tensor([[4.0, 4.0, -2.0, -2.0, 0.0]])
    before = logits.clone()
    got = repetition_penalty(logits, rows([1, 3, 1, 4]), 2.0)
    assert got.tolist() == [[4, 2, -2, -4, 0]] and torch.equal(logits, before)
    for penalty in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=rf"repetition_penalty \({penalty}\) must be above 0"):
            repetition_penalty(logits, rows([1]), penalty)


def test_draws_follow_the_probabilities():
    generator = torch.Generator().manual_seed(0)
    many = sample(LOGITS.expand(20_000, 5), temperature=1.5, top_k=3, generator=generator)
    shares = torch.bincount(many, minlength=5) / 20_000
    torch.testing.assert_close(shares, next_token_probabilities(LOGITS, 1.5, 3)[0], atol=0.015, rtol=0)
    assert shares[3:].sum() == 0


# generation


def test_the_same_tokens_with_and_without_the_cache_and_for_any_prefill(model):
    ids = rows([3, 1, 4, 1, 5], [9, 2, 6, 5, 3])
    draw = {"temperature": 0.9, "top_k": 5, "max_new_tokens": 14}
    want = generate(model, ids, use_cache=False, generator=torch.Generator().manual_seed(1), **draw)
    for prefill in (None, 1, 2, 3):
        got = generate(model, ids, prefill=prefill, generator=torch.Generator().manual_seed(1), **draw)
        assert torch.equal(got, want)
    assert want.shape == (2, 19) and want.size(1) > 2 * CONFIG.max_len  # the window slid more than once


def test_left_padded_prompts_continue_as_if_alone(model):
    padded = rows([0, 0, 3, 1, 4], [2, 7, 1, 8, 2])
    keep = rows([0, 0, 1, 1, 1], [1, 1, 1, 1, 1]).bool()
    for use_cache in (True, False):
        both = generate(model, padded, 3, keep=keep, temperature=0, use_cache=use_cache)
        alone = generate(model, rows([3, 1, 4]), 3, temperature=0, use_cache=use_cache)
        assert torch.equal(both[0, 2:], alone[0])
        assert torch.equal(both[1], generate(model, padded[1:], 3, temperature=0)[0])


def test_padding_slides_out_of_the_window_and_changes_nothing_after(model):
    padded, keep = rows([0, 0, 3, 1, 4]), rows([0, 0, 1, 1, 1]).bool()
    for use_cache in (True, False):
        long = generate(model, padded, 12, keep=keep, temperature=0, use_cache=use_cache)
        assert long.shape == (1, 17)
    assert torch.equal(
        generate(model, padded, 12, keep=keep, temperature=0, use_cache=True),
        generate(model, padded, 12, keep=keep, temperature=0, use_cache=False),
    )


def test_a_full_context_slides_or_raises_as_asked(model):
    ids = rows(list(range(8)))
    assert generate(model, ids, 1).shape == (1, 9)  # the eighth token still fits
    with pytest.raises(ValueError, match=r"sequence length \(9\) must not exceed max_len \(8\)"):
        generate(model, ids, 2, beyond="error")
    slid = generate(model, ids, 2, temperature=0, beyond="slide")
    newer_half = slid[:, 5:9]  # nine tokens do not fit: the newest four are read again
    assert torch.equal(slid[:, 9], model(newer_half)[:, -1].argmax(-1))
    with pytest.raises(ValueError, match=r"beyond \('wrap'\) must be 'error' or 'slide'"):
        generate(model, ids, 2, beyond="wrap")


def test_a_prompt_longer_than_the_context_follows_the_same_rule(model):
    ids = rows([i % 11 for i in range(13)])
    with pytest.raises(ValueError, match=r"sequence length \(13\) must not exceed max_len \(8\)"):
        generate(model, ids, 1, beyond="error")
    assert torch.equal(
        generate(model, ids, 3, temperature=0)[:, 13:], generate(model, ids[:, 9:], 3, temperature=0)[:, 4:]
    )


def test_rows_stop_at_their_own_stop_token_and_are_padded():
    successors = {3: 4, 4: 5, 5: 1, 6: 1, 1: 7, 7: 7, 0: 0}
    table = torch.full((8, 8), -50.0)
    for token, following in successors.items():
        table[token, following] = 50.0
    step = lambda ids: table[ids[:, -1]]  # noqa: E731
    drawn = list(stream(step, rows([3], [6], [5]), 6, stop_ids=[1]))
    assert torch.stack(drawn, 1).tolist() == [[4, 5, 1], [1, 0, 0], [1, 0, 0]]


def test_a_stream_yields_each_token_before_the_next_is_computed():
    calls = []

    def step(ids):
        calls.append(ids.size(1))
        return LOGITS

    tokens = stream(step, rows([1]), 3, temperature=0)
    assert calls == []
    assert next(tokens).tolist() == [0] and calls == [1]
    assert next(tokens).tolist() == [0] and calls == [1, 2]


def test_seeded_generators_repeat_and_differ(model):
    draw = lambda seed: generate(model, rows([3]), 12, generator=torch.Generator().manual_seed(seed))  # noqa: E731
    assert torch.equal(draw(1), draw(1))
    assert len({tuple(draw(seed)[0].tolist()) for seed in range(5)}) > 1


def test_repetition_penalty_reaches_the_stream():
    step = lambda ids: torch.tensor([[5.0, 4.0, 3.0]])  # noqa: E731
    plain = [int(t) for t in stream(step, rows([0]), 3, temperature=0)]
    moved = [int(t) for t in stream(step, rows([0]), 3, temperature=0, penalty=1.5)]
    assert plain == [0, 0, 0] and moved[0] == 1
    with pytest.raises(ValueError, match=r"repetition_penalty \(0.0\) must be above 0"):
        list(stream(step, rows([0]), 3, penalty=0.0))


def test_padding_is_no_text_that_the_penalty_could_hold_against_a_token(model):
    padded, keep = rows([7, 7, 3, 1, 4]), rows([0, 0, 1, 1, 1]).bool()
    draw = {"max_new_tokens": 3, "temperature": 0, "penalty": 5.0}
    alone = generate(model, rows([3, 1, 4]), **draw)
    for pad in range(11):  # whatever token the padding is made of
        padded[:, :2] = pad
        assert torch.equal(generate(model, padded, keep=keep, **draw)[0, 2:], alone[0])


def test_generation_restores_the_mode_also_after_an_error(model):
    model.train()
    try:
        first = generate(model, rows([3]), 5, temperature=0)
        assert model.training and torch.equal(first, generate(model, rows([3]), 5, temperature=0))
        with pytest.raises(ValueError):
            generate(model, rows([99]), 2)
        assert model.training
    finally:
        model.eval()


def test_generation_leaves_a_frozen_part_frozen(model):
    model.train()
    model.dropout.eval()
    try:
        generate(model, rows([3]), 2)
        assert model.training and not model.dropout.training
    finally:
        model.eval()


def test_bad_prompts_and_counts_are_refused(model):
    with pytest.raises(ValueError, match=r"at least one token, got \(1, 0\)"):
        generate(model, torch.zeros(1, 0, dtype=torch.long), 3)
    with pytest.raises(ValueError, match=r"max_new_tokens \(-1\) must be at least 0"):
        generate(model, rows([3]), -1)
    with pytest.raises(ValueError, match=r"ids \(11\) must be .* vocab_size \(11\)"):
        generate(model, rows([11]), 1)
    with pytest.raises(ValueError, match=r"keep must have its padding on the left"):
        generate(model, rows([3, 0]), 1, keep=rows([1, 0]).bool())
    with pytest.raises(ValueError, match=r"prefill \(0\) must be at least 1"):
        generate(model, rows([3]), 1, prefill=0)
    assert torch.equal(generate(model, rows([3]), 0), rows([3]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_new_tokens": -1}, r"max_new_tokens \(-1\) must be at least 0"),
        ({"temperature": math.nan}, r"temperature \(nan\) must be 0 or above and finite"),
        ({"top_k": 0}, r"top_k \(0\) must be at least 1"),
        ({"top_p": 0.0}, r"top_p \(0.0\) must be above 0 and at most 1"),
        ({"min_p": 2.0}, r"min_p \(2.0\) must be from 0 to 1"),
        ({"penalty": 0.0}, r"repetition_penalty \(0.0\) must be above 0"),
    ],
)
def test_a_stream_refuses_the_impossible_before_its_first_token(arguments, message):
    def step(ids):
        raise AssertionError("nothing may be computed")

    with pytest.raises(ValueError, match=message):
        stream(step, rows([1]), **{"max_new_tokens": 0, **arguments})


def test_masks_that_fit_no_prompt_are_refused(model):
    ids = rows([3, 1, 4], [2, 7, 1])
    with pytest.raises(TypeError, match=r"keep must be a boolean tensor .* got torch.int64"):
        generate(model, ids, 1, keep=torch.ones_like(ids))
    for shape in [(2, 2), (2, 4), (3, 3)]:
        with pytest.raises(ValueError, match=rf"keep \(shape \({shape[0]}, {shape[1]}\)\) must be \(2, 3\)"):
            generate(model, ids, 1, keep=torch.ones(shape, dtype=torch.bool))
    for shape in [(2, 4), (3, 3)]:
        with pytest.raises(ValueError, match=r"keep .* must be \(2, 3\), as ids say"):
            GPTStep(model, torch.ones(shape, dtype=torch.bool))(ids)
    with pytest.raises(ValueError, match="keep must leave a real token in each row, got a row of padding"):
        generate(model, ids, 1, keep=rows([0, 0, 1], [0, 0, 0]).bool())


def test_searches_of_the_decoding_module_take_a_gpt_step(model):
    ids = rows([3, 1], [4, 1])
    want = generate(model, ids, 4, temperature=0, stop_ids=[2])
    got = greedy_search(GPTStep(model), ids, eos_id=2, pad_id=0, max_new_tokens=4)
    assert torch.equal(got, want)
    plain, scores = beam_search(lambda i: model(i)[:, -1], ids, 2, 0, 4, num_beams=3)
    cached, cached_scores = beam_search(GPTStep(model), ids, 2, 0, 4, num_beams=3)
    torch.testing.assert_close(cached_scores, scores, atol=1e-4, rtol=1e-4)
    assert torch.equal(plain, cached)


# single tokens


def copied(model):
    copy = GPT(CONFIG).eval()
    copy.load_state_dict(model.state_dict())
    return copy


def test_a_model_prepared_for_single_tokens_gives_the_same_numbers_and_keeps_its_tie(model):
    ids = rows([3, 1, 4])
    quick = for_single_tokens(copied(model), None)
    torch.testing.assert_close(quick(ids), model(ids))
    torch.testing.assert_close(quick(ids[:, :1]), model(ids[:, :1]))
    assert isinstance(quick.decoder.layers[0].feed_forward.widen, TokenLinear)
    assert quick.decoder.layers[0].feed_forward.widen.weight.stride() == (1, 32)
    assert quick.generator.projection.weight is quick.tokens.weight
    assert quick.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(generate(quick, ids, 12, temperature=0), generate(model, ids, 12, temperature=0))


def test_a_prepared_model_in_bfloat16_rounds_as_torch_does():
    torch.manual_seed(0)
    small = GPT(CONFIG).eval()
    plain = copied(small).bfloat16()
    quick = for_single_tokens(copied(small), torch.bfloat16)
    assert {p.dtype for p in quick.parameters()} == {torch.bfloat16}
    assert quick.decoder.layers[0].feed_forward.widen.weight.is_contiguous()
    for ids in (rows([3]), rows([3, 1, 4]), rows([3], [5])):
        torch.testing.assert_close(quick(ids), plain(ids), rtol=2**-6, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_token_layer_computes_a_single_token_as_the_layer_it_was_made_of(dtype, monkeypatch):
    torch.manual_seed(0)
    layer = GPT(CONFIG).eval().to(dtype).decoder.layers[0]
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    quick = TokenLayer(deepcopy(layer))
    caches = KVCache(6), KVCache(6)
    short = []
    monkeypatch.setattr(torch, "addmv", lambda *args, addmv=torch.addmv: short.append(1) or addmv(*args))
    with torch.no_grad():
        for T in (2, 1, 1, 1):  # a prompt, then token by token
            short.clear()
            x = torch.randn(1, T, 8, dtype=dtype)
            mask = None if T == 1 else causal_mask(T)
            got, want = quick(x, mask, caches[0]), layer(x, mask, caches[1])
            assert got.dtype == dtype and len(short) == (4 if T == 1 else 0)
            tolerance = {} if dtype == torch.float32 else {"rtol": 2**-5, "atol": 2**-4}
            torch.testing.assert_close(got, want, **tolerance)


def test_a_token_layer_keeps_up_with_weights_that_change():
    torch.manual_seed(0)
    small, other = GPT(CONFIG).eval(), GPT(CONFIG).eval()
    quick = for_single_tokens(copied(small), None)
    ids = rows([3, 1, 4])

    def written(model):
        step = GPTStep(model)
        return torch.stack([step(ids[:, :t]) for t in (1, 2, 3)])

    def check(model):
        torch.testing.assert_close(written(quick), written(model))
        torch.testing.assert_close(written(deepcopy(quick)), written(model))

    check(small)
    quick.load_state_dict(other.state_dict())
    check(other)
    quick.load_state_dict(small.state_dict(), assign=True)
    check(small)
    quick.double()
    check(small.double())
    for model in (quick, small):
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
    check(small)


def test_a_token_layer_goes_the_long_way_for_gradients_and_dropout():
    torch.manual_seed(0)
    quick = TokenLayer(GPT(CONFIG).decoder.layers[0])
    x = torch.randn(1, 1, 8)
    with torch.no_grad():
        assert not torch.equal(quick(x, None, KVCache(2)), quick(x, None, KVCache(2)))  # dropout
    quick.eval()(x, None, KVCache(2)).sum().backward()
    assert quick.self_attention.value_projection.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 1, 3), (2, 3), (0, 3)], ids=str)
def test_token_linear_is_linear(shape, bias):
    torch.manual_seed(0)
    plain, quick = torch.nn.Linear(3, 4, bias), TokenLinear(3, 4, bias)
    quick.load_state_dict(plain.state_dict())
    x = torch.randn(shape, requires_grad=True)
    torch.testing.assert_close(quick(x), plain(x))
    for got, want in zip(
        torch.autograd.grad(quick(x).sum(), [x, quick.weight]),
        torch.autograd.grad(plain(x).sum(), [x, plain.weight]),
        strict=True,
    ):
        torch.testing.assert_close(got, want)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(quick(x), plain(x), rtol=2**-7, atol=2**-7)


def test_token_linear_refuses_another_width():
    with pytest.raises(RuntimeError):
        TokenLinear(3, 4)(torch.randn(2))


# weights in eight bits


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=12, max_size=12), st.booleans())
def test_a_weight_in_eight_bits_is_off_by_half_a_scale_at_most(numbers, bias):
    layer = torch.nn.Linear(4, 3, bias=bias)
    layer.weight.data = torch.tensor(numbers).view(3, 4)
    stored = Int8Linear(layer)
    assert stored.weight.dtype == torch.int8 and stored.bias is layer.bias
    scale = stored.scale.float()[:, None]
    assert (stored.weight.float().abs() <= 127).all()
    assert ((stored.weight * scale - layer.weight).abs() <= scale * 0.5001).all()
    assert (scale[:, 0] <= layer.weight.abs().amax(dim=1) / 127 * 1.02 + 1e-30).all()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (3, 7)], ids=str)
@pytest.mark.parametrize("width", [64, 96, 16, 40, 5])
def test_products_with_eight_bits_are_those_of_the_stored_weights(shape, width, bias):
    torch.manual_seed(0)
    stored = Int8Linear(torch.nn.Linear(width, 47, bias=bias)).to(torch.bfloat16)
    x = torch.randn(*shape, width, dtype=torch.bfloat16)
    with torch.no_grad():
        got = stored(x)
        want = x.float() @ (stored.weight * stored.scale.float()[:, None]).t()
        want = want if stored.bias is None else want + stored.bias.float()
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.float(), want, rtol=2**-6, atol=2**-6)
        torch.testing.assert_close(stored.float()(x.float()), want)  # and on other devices and precisions


def test_eight_bits_do_without_the_function_that_torch_may_drop(monkeypatch):
    torch.manual_seed(0)
    stored, x = Int8Linear(torch.nn.Linear(64, 48, dtype=torch.bfloat16)), torch.randn(1, 64).bfloat16()
    called = []
    quick = torch._weight_int8pack_mm
    monkeypatch.setattr(torch, "_weight_int8pack_mm", lambda *args: called.append(1) or quick(*args))
    with torch.no_grad():
        want = stored(x)
        monkeypatch.delattr(torch, "_weight_int8pack_mm")
        torch.testing.assert_close(stored(x), want, rtol=2**-6, atol=2**-6)
    assert called == [1]


def test_a_row_of_zeros_stays_zero():
    layer = torch.nn.Linear(5, 2, bias=False)
    layer.weight.data.zero_()
    with torch.no_grad():
        assert (Int8Linear(layer)(torch.ones(1, 5, dtype=torch.bfloat16)) == 0).all()


def test_a_model_in_eight_bits_says_nearly_the_same_in_every_way_of_reading():
    torch.manual_seed(0)
    small = GPT(GPTConfig(vocab_size=11, max_len=24, d_model=64, num_layers=2, num_heads=4)).eval()
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.mul_(3)
    quick = for_single_tokens(deepcopy(small))
    assert {p.dtype for p in quick.parameters()} == {torch.bfloat16}
    assert quick.decoder.layers[0].self_attention.query_projection.weight.dtype == torch.int8
    assert torch.equal(quick.tokens.weight, small.tokens.weight.bfloat16())
    ids = torch.randint(11, (1, 20))

    @torch.no_grad()
    def one_by_one(model):
        step = GPTStep(model)
        return torch.stack([step(ids[:, : t + 1])[0] for t in range(20)]).float()

    with torch.no_grad():
        want = small(ids)[0]
        ways = [quick(ids)[0].float(), one_by_one(quick), one_by_one(deepcopy(quick)), one_by_one(small)]
    spread = want.std()
    for got in ways:
        assert ((got - want).square().mean().sqrt() / spread) < 0.05


def test_a_layer_in_eight_bits_keeps_up_with_its_parts():
    torch.manual_seed(0)
    quick = for_single_tokens(GPT(CONFIG).eval())
    layer, x = quick.decoder.layers[0], torch.randn(1, 1, 8, dtype=torch.bfloat16)
    for moved in (layer, deepcopy(layer), layer.to(torch.bfloat16)):
        with torch.no_grad():
            short = moved(x, None, KVCache(2))
            long = super(TokenLayer, moved).forward(x, None, KVCache(2))
        torch.testing.assert_close(short, long, rtol=2**-5, atol=2**-5)
    query, whole = layer.self_attention.query_projection, layer.weight
    assert query.weight.data_ptr() == whole.data_ptr() and query.scale.data_ptr() == layer.scale.data_ptr()


def test_a_single_token_in_eight_bits_takes_four_products_a_layer(monkeypatch):
    config = GPTConfig(vocab_size=11, max_len=8, d_model=96, num_layers=3, num_heads=4)
    quick = for_single_tokens(GPT(config).eval())
    called, product = [], torch._weight_int8pack_mm
    monkeypatch.setattr(torch, "_weight_int8pack_mm", lambda *args: called.append(1) or product(*args))
    step = GPTStep(quick)
    step(rows([3, 1]))
    called.clear()
    step(rows([3, 1, 4]))
    assert len(called) == 3 * 4 + 1


def test_weights_in_floating_point_do_not_go_into_a_model_in_eight_bits():
    quick = for_single_tokens(GPT(CONFIG).eval())
    with pytest.raises(RuntimeError, match="scale"):
        quick.load_state_dict(GPT(CONFIG).state_dict())


def test_a_large_matrix_lies_in_memory_of_its_own_with_the_same_numbers():
    layer = torch.nn.Linear(1024, 3072)
    kept = layer.weight.detach().clone()
    quick = for_single_tokens(torch.nn.Sequential(layer), torch.bfloat16)[0]
    assert torch.equal(quick.weight, kept.bfloat16())
    assert torch.equal(deepcopy(quick).weight, quick.weight)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        layers = [Int8Linear(torch.nn.Linear(1024, 1100 + 37 * i)) for i in range(8)]
        assert all(layer.weight.data_ptr() % LARGE_PAGE == 0 for layer in (quick, *layers))
    assert quick.state_dict()["weight"].is_contiguous()
