"""Greedy and beam search, caches, and the step function of a Transformer."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from annotated_transformer import greedy_search, make_model, padding_mask
from annotated_transformer.decoding import (
    KVCache,
    TransformerStep,
    beam_search,
    length_normalized,
    n_best_search,
)

PAD, EOS = 0, 1


def table_step(table):
    """A step that looks only at the last token; rows of `table` are logits."""
    return lambda ids: table[ids[:, -1]]


def chain(successors, size):
    table = torch.zeros(size, size)
    for token, following in successors.items():
        table[token, following] = 10.0
    return table_step(table)


def tiny_model(seed=0, **kwargs):
    torch.manual_seed(seed)
    return make_model(11, 13, num_layers=2, d_model=8, d_ff=16, num_heads=2, max_len=20, **kwargs).eval()


def wide_logits(model):
    """Make an untrained model's choices distinct, so that a wrong cache cannot go unnoticed."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model


def test_rows_end_at_different_steps_and_are_padded_from_there():
    step = chain({3: 4, 4: 5, 5: 1, 6: 1, 1: 7, 7: 7, 0: 0}, 8)
    out = greedy_search(step, torch.tensor([[3], [6], [5]]), EOS, PAD, 6)
    assert out.tolist() == [[3, 4, 5, 1], [6, 1, 0, 0], [5, 1, 0, 0]]


def test_search_stops_at_the_limit_when_nothing_ends():
    step = chain({3: 3}, 5)
    assert greedy_search(step, torch.tensor([[3]]), EOS, PAD, 4).tolist() == [[3] * 5]
    ids, _ = beam_search(step, torch.tensor([[3]]), EOS, PAD, 4, num_beams=1)
    assert ids.tolist()[0][:4] == [3] * 4


def test_a_prompt_that_holds_the_end_token_is_still_extended():
    step = chain({1: 3, 3: 1}, 5)
    assert greedy_search(step, torch.tensor([[3, 1]]), EOS, PAD, 5).tolist() == [[3, 1, 3, 1]]


@pytest.mark.parametrize("search", [greedy_search, beam_search])
def test_search_refuses_bad_arguments(search):
    step = chain({}, 5)
    with pytest.raises(ValueError, match=r"max_new_tokens \(-1\) must be at least 0"):
        search(step, torch.tensor([[3]]), EOS, PAD, -1)
    with pytest.raises(ValueError, match=r"ids must have two dimensions .* got \(3,\)"):
        search(step, torch.tensor([3, 4, 2]), EOS, PAD, 3)
    with pytest.raises(ValueError, match=r"at least one token, got \(2, 0\)"):
        search(step, torch.zeros(2, 0, dtype=torch.long), EOS, PAD, 3)


def test_no_new_tokens_and_empty_batches_return_the_start():
    step = chain({3: 4}, 5)
    start = torch.tensor([[3], [2]])
    assert torch.equal(greedy_search(step, start, EOS, PAD, 0), start)
    assert torch.equal(beam_search(step, start, EOS, PAD, 0)[0], start)
    assert greedy_search(step, start[:0], EOS, PAD, 3).shape == (0, 1)
    assert beam_search(step, start[:0], EOS, PAD, 3)[0].shape == (0, 1)


def test_beam_search_refuses_bad_beams_and_exponents():
    step, ids = chain({}, 5), torch.tensor([[3]])
    with pytest.raises(ValueError, match=r"num_beams \(0\) must be at least 1"):
        beam_search(step, ids, EOS, PAD, 3, num_beams=0)
    for alpha in (-0.5, math.nan):
        with pytest.raises(ValueError, match=r"alpha \(.*\) must be at least 0"):
            beam_search(step, ids, EOS, PAD, 3, alpha=alpha)


def test_length_normalisation_counts_generated_tokens_and_favours_longer_text():
    assert length_normalized(-1.0, 2, 0.0) == -1.0 and length_normalized(-1.9, 5, 0.0) == -1.9
    assert length_normalized(-1.0, 2, 1.0) == -0.5
    assert length_normalized(-1.9, 5, 1.0) == pytest.approx(-0.38)
    with pytest.raises(ValueError, match=r"length \(0\) must be at least 1"):
        length_normalized(-1.0, 0, 1.0)


def prefix_step(vocab, seed, sharp=2.0):
    """Logits that depend on the whole prefix: a hash of it seeds them."""

    def step(ids):
        rows = []
        for row in ids.tolist():
            generator = torch.Generator().manual_seed(
                seed + sum((i + 1) * 31**i * t for i, t in enumerate(row))
            )
            rows.append(torch.randn(vocab, generator=generator) * sharp)
        return torch.stack(rows)

    return step


def enumerate_all(step, start, vocab, max_new, alpha):
    """Every hypothesis that ends within `max_new` tokens, with its score, the best first."""
    found = []
    others = [t for t in range(vocab) if t != EOS]
    for n in range(1, max_new + 1):
        for body in itertools.product(others, repeat=n - 1):
            ids, total = [start], 0.0
            for token in (*body, EOS):
                total += step(torch.tensor([ids])).log_softmax(-1)[0, token].item()
                ids.append(token)
            found.append((total / n**alpha, ids))
    return sorted(found, reverse=True)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), alpha=st.sampled_from([0.0, 0.6, 1.0]), vocab=st.integers(3, 4))
def test_a_wide_beam_equals_exhaustive_enumeration(seed, alpha, vocab):
    step = prefix_step(vocab, seed)
    want_score, want = enumerate_all(step, 2, vocab, 4, alpha)[0]
    ids, score = beam_search(step, torch.tensor([[2]]), EOS, PAD, 4, num_beams=vocab**4, alpha=alpha)
    assert score.item() == pytest.approx(want_score, abs=1e-5)
    assert ids[0, : len(want)].tolist() == want


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), alpha=st.sampled_from([0.0, 1.0]), count=st.integers(1, 6))
def test_a_wide_beam_lists_the_best_of_an_enumeration(seed, alpha, count):
    step = prefix_step(3, seed)
    want = enumerate_all(step, 2, 3, 4, alpha)[:count]
    ids, scores = n_best_search(step, torch.tensor([[2]]), EOS, PAD, 4, 3**4, alpha, count)
    assert ids.shape[:2] == (1, count)
    for row, score, (want_score, want_row) in zip(ids[0].tolist(), scores[0].tolist(), want, strict=True):
        assert score == pytest.approx(want_score, abs=1e-5)
        assert row[: len(want_row)] == want_row and all(token == PAD for token in row[len(want_row) :])


def test_a_list_is_filled_up_where_fewer_hypotheses_end():
    table = torch.full((4, 4), -math.inf)
    table[2, 3] = table[3, EOS] = 0.0  # 2 3 end is all there is
    ids, scores = n_best_search(table_step(table), torch.tensor([[2]]), EOS, PAD, 4, 2, 0.0, count=3)
    assert ids[0, :, :3].tolist() == [[2, 3, 1], [2, 0, 0], [2, 0, 0]]
    assert scores[0].tolist() == [0.0, -math.inf, -math.inf]
    with pytest.raises(ValueError, match=r"count \(0\) must be at least 1"):
        n_best_search(table_step(table), torch.tensor([[2]]), EOS, PAD, 4, count=0)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), beams=st.integers(1, 4))
def test_the_score_is_that_of_the_returned_sequence(seed, beams):
    step = prefix_step(6, seed)
    ids, score = beam_search(step, torch.tensor([[2], [3]]), EOS, PAD, 5, num_beams=beams, alpha=1.0)
    for row, value in zip(ids.tolist(), score.tolist(), strict=True):
        body = row[1 : row.index(EOS, 1) + 1]
        total = sum(
            step(torch.tensor([row[: i + 1]])).log_softmax(-1)[0, token].item()
            for i, token in enumerate(body)
        )
        assert value == pytest.approx(total / len(body), abs=1e-5)
        assert all(token == PAD for token in row[len(body) + 1 :])


def test_one_beam_is_never_worse_than_greedy_search():
    for seed in range(20):
        step = prefix_step(6, seed)
        greedy = greedy_search(step, torch.tensor([[2]]), EOS, PAD, 6)[0].tolist()
        if EOS not in greedy[1:]:
            continue
        total = sum(
            step(torch.tensor([greedy[: i + 1]])).log_softmax(-1)[0, token].item()
            for i, token in enumerate(greedy[1:])
        )
        _, score = beam_search(step, torch.tensor([[2]]), EOS, PAD, 6, num_beams=1, alpha=0.0)
        assert score.item() >= total - 1e-5


def test_the_search_goes_on_after_the_first_finished_hypothesis():
    # ending at once has log P = log 0.5; the longer way has log 0.5 too, but over three tokens
    table = torch.full((5, 5), -30.0)
    table[2, EOS], table[2, 3] = math.log(0.5), math.log(0.5)
    table[3, 4] = table[4, EOS] = 0.0
    ids, score = beam_search(table_step(table), torch.tensor([[2]]), EOS, PAD, 4, num_beams=2, alpha=1.0)
    assert ids.tolist() == [[2, 3, 4, 1]] and score.item() == pytest.approx(math.log(0.5) / 3)
    ids, score = beam_search(table_step(table), torch.tensor([[3]]), EOS, PAD, 4, num_beams=2, alpha=1.0)
    assert ids.tolist() == [[3, 4, 1]] and score.item() == pytest.approx(0.0, abs=1e-6)


def test_a_hypothesis_that_cannot_end_is_cut_off():
    table = torch.zeros(4, 4)
    table[:, EOS] = -math.inf
    table[2, 3] = table[3, 3] = 5.0
    ids, score = beam_search(table_step(table), torch.tensor([[2]]), EOS, PAD, 3, num_beams=2)
    assert ids.tolist() == [[2, 3, 3, 3]] and math.isfinite(score.item())


def test_cache_returns_everything_and_refuses_too_much():
    cache, x = KVCache(5), torch.randn(2, 3, 5, 7)
    cache.update(x[:, :, :2], x[:, :, :2])
    keys, values = cache.update(x[:, :, 2:], 2 * x[:, :, 2:])
    torch.testing.assert_close(keys, x)
    torch.testing.assert_close(values[:, :, 2:], 2 * x[:, :, 2:])
    with pytest.raises(ValueError, match=r"cache length \(6\) must not exceed max_len \(5\)"):
        cache.update(x[:, :, :1], x[:, :, :1])


@given(rows=st.lists(st.integers(0, 2), min_size=1, max_size=7))
@settings(max_examples=20, deadline=None)
def test_cache_rows_can_repeat_vanish_and_swap(rows):
    cache, x = KVCache(5), torch.randn(3, 2, 5, 4)
    cache.reorder(torch.tensor(rows))  # an empty cache has no rows yet
    cache.update(x[:, :, :3], -x[:, :, :3])
    cache.reorder(torch.tensor(rows))
    keys, values = cache.update(x[rows][:, :, 3:], -x[rows][:, :, 3:])
    torch.testing.assert_close(keys, x[rows])
    torch.testing.assert_close(values, -x[rows])


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("pieces", [[1] * 7, [3, 4], [1, 5, 1], [7]])
def test_cached_steps_equal_the_full_model(norm_first, pieces):
    model = wide_logits(tiny_model(norm_first=norm_first)).double()  # exact enough to need no tolerance
    src = torch.tensor([[3, 4, 5, 6, 0], [7, 8, 9, 10, 3], [5, 0, 0, 0, 0]])
    tgt = torch.randint(2, 13, (3, 7))
    mask = padding_mask(src, 0)
    full = model(src, tgt, mask)
    step, end = TransformerStep(model, src, mask, max_len=7), 0
    for piece in pieces:
        end += piece
        torch.testing.assert_close(step(tgt[:, :end]), full[:, end - 1], atol=1e-10, rtol=1e-10)


def test_beams_share_the_memory_of_their_source():
    model = wide_logits(tiny_model())
    src = torch.tensor([[3, 4, 5], [7, 8, 0]])
    mask = padding_mask(src, 0)
    step = TransformerStep(model, src, mask, max_len=4)
    tgt = torch.tensor([[2, 5], [2, 6], [2, 7], [2, 5], [2, 6], [2, 7]])  # three for each source
    first = step(tgt[::3, :1])
    torch.testing.assert_close(first, model(src, tgt[::3, :1], mask)[:, -1], atol=1e-5, rtol=1e-4)
    step.reorder(torch.tensor([0, 0, 0, 1, 1, 1]))
    want = model(src.repeat_interleave(3, 0), tgt, mask.repeat_interleave(3, 0))[:, -1]
    torch.testing.assert_close(step(tgt), want, atol=1e-5, rtol=1e-4)
    assert step.caches[0].memory[0].size(0) == 2


@pytest.mark.parametrize("with_mask", [True, False])
def test_cached_searches_find_what_uncached_ones_find(with_mask):
    model = wide_logits(tiny_model(seed=3))
    src = torch.randint(2, 11, (9, 5))
    src[:, 3:][::2] = 0
    mask = padding_mask(src, 0) if with_mask else None
    start = torch.full((9, 1), 2)
    ends = set()

    def step_for(n):
        many = src.repeat_interleave(n, 0)
        many_mask = None if mask is None else mask.repeat_interleave(n, 0)
        return lambda ids: model(many, ids, many_mask)[:, -1]

    want = greedy_search(step_for(1), start, EOS, PAD, 12)
    got = greedy_search(TransformerStep(model, src, mask, max_len=13), start, EOS, PAD, 12)
    assert torch.equal(got, want)
    ends.update((want == EOS).int().argmax(1).tolist())
    want, want_scores = beam_search(step_for(3), start, EOS, PAD, 12, num_beams=3)
    got, scores = beam_search(TransformerStep(model, src, mask, max_len=13), start, EOS, PAD, 12, num_beams=3)
    torch.testing.assert_close(scores, want_scores, atol=1e-5, rtol=1e-5)
    assert torch.equal(got, want)
    ends.update((want == EOS).int().argmax(1).tolist())
    assert len(ends) > 1  # the rows do end at different steps


def test_step_refuses_ids_that_do_not_continue_and_targets_that_are_too_long():
    model, src = tiny_model(), torch.tensor([[3, 4]])
    step = TransformerStep(model, src, max_len=3)
    step(torch.tensor([[2, 3]]))
    with pytest.raises(ValueError, match=r"ids \(length 2\) must be longer than what was seen \(2\)"):
        step(torch.tensor([[2, 3]]))
    with pytest.raises(ValueError, match=r"cache length \(4\) must not exceed max_len \(3\)"):
        step(torch.tensor([[2, 3, 4, 5]]))
    with pytest.raises(ValueError, match=r"ids \(13\) must be .* vocab_size \(13\)"):
        TransformerStep(model, src, max_len=3)(torch.tensor([[13]]))


def test_greedy_drops_rows_that_have_ended():
    class Counting:
        def __init__(self, table):
            self.table, self.rows = table, []

        def __call__(self, ids):
            self.rows.append(len(ids))
            return self.table[ids[:, -1]]

        def reorder(self, rows, sources=None):
            self.reordered = rows.tolist()

    table = F.one_hot(torch.tensor([0, 7, 3, 4, 5, 1, 1, 7]), 8).float()
    step = Counting(table)
    out = greedy_search(step, torch.tensor([[3], [6], [5]]), EOS, PAD, 6)
    assert out.tolist() == [[3, 4, 5, 1], [6, 1, 0, 0], [5, 1, 0, 0]]
    assert step.rows == [3, 1, 1] and step.reordered == [0]


def test_reordering_twice_still_continues_the_right_rows():
    cache, x = KVCache(6), torch.randn(4, 2, 6, 3)
    cache.update(x[:, :, :2], -x[:, :, :2])
    cache.reorder(torch.tensor([3, 1, 2]))
    cache.reorder(torch.tensor([2, 0, 0, 1, 1]))  # more rows again than there were
    rows = [2, 3, 3, 1, 1]
    keys, values = cache.update(x[rows][:, :, 2:], -x[rows][:, :, 2:])
    torch.testing.assert_close(keys, x[rows])
    torch.testing.assert_close(values, -x[rows])
