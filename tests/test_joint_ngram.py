"""Pairs of letters and phonemes, n-grams of pairs, and what they say about pronunciations."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from annotated_transformer import joint_ngram
from annotated_transformer.data import cmudict
from annotated_transformer.joint_ngram import (
    LETTERS,
    LOWEST,
    PAIRS,
    PHONEMES,
    JointNGram,
    KneserNey,
    alignment_log_probability,
    best_pairs,
    pair_log_probabilities,
    phonemes_of_pairs,
)


def word(letters, phonemes):
    """Ids of a word: its letters with their end, its phonemes with begin and end."""
    src, tgt = cmudict.letters(), cmudict.phonemes()
    return [*src.encode(letters), src.eos_id], [tgt.bos_id, *tgt.encode(phonemes.split()), tgt.eos_id]


def tensors(*words):
    rows = [torch.tensor(tgt) for _, tgt in words]
    src = torch.tensor([src for src, _ in words])
    return src, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def random_table():
    torch.manual_seed(0)
    return pair_log_probabilities(torch.rand(PAIRS).pow(4))


# pairs


def ways(src, tgt):
    """Every way to share the phonemes out, as lists of pairs (letter, first, second)."""
    for sizes in itertools.product((0, 1, 2), repeat=len(src)):
        if sum(sizes) == len(tgt):
            begins = itertools.accumulate(sizes, initial=0)
            written = [[*tgt[at : at + size], 0, 0][:2] for at, size in zip(begins, sizes, strict=False)]
            yield [(letter, *two) for letter, two in zip(src, written, strict=True)]


def test_probabilities_of_a_letter_sum_to_one_and_rule_a_lone_second_phoneme_out():
    table = random_table()
    assert_close(table.exp().sum(dim=(1, 2)), torch.ones(LETTERS))
    assert (table[:, 0, 1:] == LOWEST).all()


@pytest.mark.parametrize(
    "letters, phonemes", [("mix", "M IH1 K S"), ("e", ""), ("who", "HH UW1"), ("a", "EY1 Z")]
)
def test_all_ways_and_the_best_are_those_of_an_enumeration(letters, phonemes):
    table, spelled = random_table(), word(letters, phonemes)
    src, tgt = tensors(spelled)
    every = {tuple(way): sum(table[pair].item() for pair in way) for way in ways(spelled[0], spelled[1][1:])}
    total = math.log(sum(map(math.exp, every.values())))
    for padding in (0, 3):  # which changes nothing
        padded = torch.nn.functional.pad(tgt[:, 1:], (0, padding))
        assert_close(alignment_log_probability(table, src, padded), torch.tensor([total]))
        want = [(a * PHONEMES + b) * PHONEMES + c for a, b, c in max(every, key=every.get)]
        assert best_pairs(table, src, padded)[0].tolist() == want


def test_the_gradient_is_how_often_each_pair_is_expected():
    spelled = word("tho", "DH OW1")
    table = random_table()
    every = {tuple(way): sum(table[pair].item() for pair in way) for way in ways(spelled[0], spelled[1][1:])}
    expected, total = torch.zeros(PAIRS), sum(map(math.exp, every.values()))
    for way, score in every.items():
        for pair in way:
            expected[pair] += math.exp(score) / total
    src, tgt = tensors(spelled)
    score = alignment_log_probability(table.requires_grad_(), src, tgt[:, 1:])
    (gradient,) = torch.autograd.grad(score.sum(), table)
    assert_close(gradient, expected)
    assert gradient.sum().item() == pytest.approx(4, rel=1e-5)  # each letter, and the end, writes once


@pytest.mark.parametrize("tilt, writes", [(0.0, "c"), (5e-4, "c"), (2e-3, "k")])
def test_of_two_letters_that_may_both_write_a_phoneme_the_earlier_does(tilt, writes):
    src, tgt = tensors(word("back", "B AE1 K"))
    table = torch.full(PAIRS, LOWEST).double()
    for letter, phoneme in zip(src[0, [0, 1, 4]], tgt[0, [1, 2, 4]], strict=True):
        table[letter, phoneme, 0] = 0
    table[src[0, 2:4], 0, 0] = 0
    table[src[0, 2], tgt[0, 3], 0], table[src[0, 3], tgt[0, 3], 0] = 0, tilt
    written = phonemes_of_pairs(best_pairs(table, src, tgt[:, 1:])[0])[:, 0]
    assert written["back".index(writes)] == tgt[0, 3] and (written == 0).sum() == 1


def test_the_same_words_are_always_cut_alike(monkeypatch):
    """Gradients are added up in a fixed order in float64, in float32 they are not."""
    kinds, score = set(), joint_ngram.alignment_log_probability

    def watched(table, *args):
        kinds.add(table.dtype)
        return score(table, *args)

    monkeypatch.setattr(joint_ngram, "alignment_log_probability", watched)
    book = list(phrase_book())
    first, second = (JointNGram.fit(words, order=4).tensors() for words in (book, book))
    assert all(torch.equal(part, second[name]) for name, part in first.items())
    assert kinds == {torch.float64}


def test_more_than_two_phonemes_a_letter_cannot_be_shared_out():
    src, tgt = tensors(word("w", "D AH1 B AH0 L Y UW0"), word("w", "W IY1"))
    pairs = best_pairs(random_table(), src, tgt[:, 1:])
    assert (pairs[0] == -1).all() and (pairs[1] >= 0).all()


# n-grams


def slow_probability(sequences, vocab_size, order):
    """Interpolated modified Kneser-Ney as the formula reads: a function of history and token."""
    raw = [Counter() for _ in range(order + 1)]
    for sequence in sequences:
        for length in range(1, order + 1):
            for begin in range(len(sequence) - length + 1):
                raw[length][tuple(sequence[begin : begin + length])] += 1
    order = max(length for length in range(1, order + 1) if raw[length])
    counts = {order: raw[order]}
    for length in range(1, order):
        kinds = Counter(gram[1:] for gram in raw[length + 1])
        for gram in raw[length]:
            if length > 1 and gram[0] == 0:
                kinds[gram] = raw[length][gram]
        counts[length] = kinds
    counts[1].pop((0,), None)

    def probability(history, token):
        if len(history) >= order:
            history = history[len(history) - order + 1 :]
        shorter = probability(history[1:], token) if history else 1 / vocab_size
        grams = counts[len(history) + 1]
        if history and history not in {gram[:-1] for gram in raw[len(history) + 1]} | set(raw[len(history)]):
            return shorter
        times = [max(sum(c == j for c in grams.values()), 1) for j in (1, 2, 3, 4)]
        share = times[0] / (times[0] + 2 * times[1])
        discount = {0: 0.0}
        for j in (1, 2, 3):
            discount[j] = min(max(j - (j + 1) * share * times[j] / times[j - 1], 0.1), 0.9 * j)
        same = {gram[-1]: c for gram, c in grams.items() if gram[:-1] == history and c}
        total = sum(same.values())
        if not total:
            return shorter
        left = sum(discount[min(c, 3)] for c in same.values()) / total
        own = same.get(token, 0)
        return (own - discount[min(own, 3)]) / total + left * shorter

    return probability


def flat(sequences):
    return torch.tensor([token for sequence in sequences for token in sequence])


TEXTS = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=6), min_size=1, max_size=8)


@settings(deadline=None, max_examples=30)
@given(TEXTS, st.integers(1, 4), st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_the_n_grams_are_those_of_the_formula(texts, order, asked):
    sequences = [[0, *text] for text in texts]
    got = KneserNey(flat(sequences), 6, order).log_probability(torch.tensor([[0, *asked]]))[0].exp()
    probability = slow_probability(sequences, 6, order)
    want = [probability((0, *asked[:i]), token) for i, token in enumerate(asked)]
    assert_close(got, torch.tensor(want, dtype=torch.float64))


@settings(deadline=None, max_examples=30)
@given(TEXTS, st.integers(1, 4), st.lists(st.integers(1, 5), max_size=5))
def test_the_probabilities_after_every_history_sum_to_one(texts, order, history):
    model = KneserNey(flat([[0, *text] for text in texts]), 6, order)
    rows = torch.tensor([[0, *history, token] for token in range(6)])
    assert_close(model.log_probability(rows)[:, -1].exp().sum().item(), 1.0)


def test_a_token_never_seen_has_what_the_discounts_leave_and_hides_what_stands_before_it():
    model = KneserNey(flat([[0, 1, 2, 3]] * 5 + [[0, 2, 1]]), 4, 3)
    known, unknown = model.log_probability(torch.tensor([[0, 1, 2, 3], [0, 1, -1, 3]]))
    assert unknown[1].isfinite() and unknown[1] < known[1] and unknown[2] < known[2]
    assert_close(known[0], unknown[0])


def test_sequences_must_be_opened():
    for tokens in ([], [1, 2], [0, 0]):
        with pytest.raises(ValueError, match="must hold sequences, each opened by a 0"):
            KneserNey(torch.tensor(tokens, dtype=torch.long), 3, 2)
    with pytest.raises(ValueError, match=r"order \(0\) must be at least 1"):
        KneserNey(torch.tensor([0, 1]), 3, 0)


# pronunciations


def phrase_book():
    """Words whose letters are sounded as in Italian, but for a silent h and an x of two sounds."""
    sounds = {"b": "B", "d": "D", "m": "M", "h": "", "x": "K S", "a": "AA1", "o": "OW1", "i": "IY1"}
    for letters in itertools.product("bdmhx", "aoi", "bdmx", "aoi"):
        yield word("".join(letters), " ".join(sounds[letter] for letter in letters if sounds[letter]))


@pytest.fixture(scope="module")
def learned():
    return JointNGram.fit(list(phrase_book()), order=4)


def test_expectation_maximisation_finds_out_which_letter_writes_what(learned):
    src, tgt = tensors(word("hoxi", "OW1 K S IY1"))
    tokens = learned.cut(src, tgt)
    assert tokens[0, 0] == 0 and (tokens > 0).sum() == 5
    written = phonemes_of_pairs(learned.pairs[tokens[0, 1:] - 1])
    ids = cmudict.phonemes().encode("OW1 K S IY1".split())
    assert written.tolist() == [[0, 0], [ids[0], 0], [ids[1], ids[2]], [ids[3], 0], [2, 0]]


def test_what_the_words_say_scores_above_what_they_never_say(learned):
    src, tgt = tensors(word("maxo", "M AA1 K S OW1"), word("maxo", "M AA1 S OW1"), word("maxo", "B IY1 D"))
    right, near, wrong = learned.log_probability(src, tgt).tolist()
    assert right > near > wrong > -math.inf
    assert right == pytest.approx(math.log(1 / (5 * 3 * 4 * 3)), abs=1)  # one of the words, all alike


def test_scores_do_not_depend_on_the_padding_or_the_other_rows(learned):
    words = word("maxo", "M AA1 K S OW1"), word("boda", "B OW1 D AA1")
    src, tgt = tensors(*words)
    apart = torch.cat([learned.log_probability(*tensors(each)) for each in words])
    assert_close(learned.log_probability(src, torch.nn.functional.pad(tgt, (0, 4))), apart)


def test_it_comes_back_from_its_tensors(learned):
    stored = learned.tensors()
    assert {part.dtype for part in stored.values()} == {torch.int32, torch.int16}
    again = JointNGram(**stored, order=4)
    src, tgt = tensors(word("maxo", "M AA1 K S OW1"), word("haxo", "AA1 K S OW1"))
    assert torch.equal(again.log_probability(src, tgt), learned.log_probability(src, tgt))


def test_words_that_cannot_be_cut_are_left_out_and_scored_as_never_seen(learned):
    book = list(phrase_book())
    more = JointNGram.fit([*book, word("w", "D AH1 B AH0 L Y UW0")], order=4)
    assert torch.equal(more.tokens, learned.tokens)
    src, tgt = tensors(word("w", "D AH1 B AH0 L Y UW0"))
    assert (learned.cut(src, tgt)[0] == torch.tensor([0, -1, -1])).all()
    assert learned.log_probability(src, tgt).isfinite().all()
    with pytest.raises(ValueError, match="must hold one with at most two phonemes for each letter"):
        JointNGram.fit([word("w", "D AH1 B AH0 L Y UW0")])


@pytest.mark.parametrize("pairs", [[9, 5], [5, 5], [-1, 5], [5, LETTERS * PHONEMES**2]], ids=str)
def test_pairs_of_another_kind_are_refused(pairs):
    with pytest.raises(ValueError, match="pairs must rise, from 0 to below 150,336"):
        JointNGram(torch.tensor(pairs), torch.tensor([0, 1]))


def test_tokens_outside_the_pairs_are_refused():
    with pytest.raises(ValueError, match=r"tokens must be from 0 to the number of pairs \(2\)"):
        JointNGram(torch.tensor([5, 9]), torch.tensor([0, 1, 3]))
