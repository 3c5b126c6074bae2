"""Scores: values worked by hand, properties over random sequences, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.metrics import (
    bits_per_character,
    bleu,
    edit_distance,
    perplexity,
    phoneme_error_rate,
    word_error_rate,
)

few = settings(max_examples=40, deadline=None)
short = st.text("abc", max_size=7)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("kitten", "sitting", 3),
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("flaw", "lawn", 2),
        (("HH", "AH0"), ("HH", "AH1", "L"), 2),
    ],
)
def test_edit_distance_by_hand(first, second, expected):
    assert edit_distance(first, second) == expected


def by_recursion(first, second):
    if not first or not second:
        return len(first) + len(second)
    return min(
        by_recursion(first[1:], second[1:]) + (first[0] != second[0]),
        by_recursion(first[1:], second) + 1,
        by_recursion(first, second[1:]) + 1,
    )


@few
@given(st.text("abc", max_size=5), st.text("abc", max_size=5))
def test_edit_distance_equals_its_recursive_definition(first, second):
    assert edit_distance(first, second) == by_recursion(first, second)


@few
@given(short, short, short)
def test_edit_distance_is_a_metric(first, second, third):
    between = edit_distance(first, second)
    assert between == edit_distance(second, first)
    assert (between == 0) == (first == second)
    assert between <= edit_distance(first, third) + edit_distance(third, second)
    assert abs(len(first) - len(second)) <= between <= max(len(first), len(second))


@few
@given(short, short, short, short)
def test_edit_distance_ignores_what_both_share_at_the_ends(first, second, head, tail):
    assert edit_distance(head + first + tail, head + second + tail) == edit_distance(first, second)


PREDICTED = [("B", "AH"), ("T", "UW"), ("K",)]
LISTED = [[("B", "IY"), ("B", "AH")], [("T", "UW", "B")], [("K", "AE", "T", "S"), ("K", "AE")]]


def test_error_rates_count_any_listed_variant_as_right():
    assert word_error_rate(PREDICTED, LISTED) == pytest.approx(2 / 3)
    # edits 0 + 1 + 1 over the closest variants' 2 + 3 + 2 phonemes
    assert phoneme_error_rate(PREDICTED, LISTED) == pytest.approx(2 / 7)


def test_the_first_of_equally_close_variants_gives_the_length():
    assert phoneme_error_rate([("B", "C")], [[("B", "C", "D"), ("B",)]]) == pytest.approx(1 / 3)
    assert phoneme_error_rate([("B", "C")], [[("B",), ("B", "C", "D")]]) == 1.0


def test_lists_and_tuples_compare_equal():
    assert word_error_rate([["B", "AH"]], [[("B", "AH")]]) == 0.0


@few
@given(st.lists(st.lists(st.lists(st.sampled_from("BKT"), min_size=1), min_size=1, max_size=3), min_size=1))
def test_a_listed_variant_is_never_an_error(references):
    predictions = [variants[-1] for variants in references]
    assert word_error_rate(predictions, references) == 0.0
    assert phoneme_error_rate(predictions, references) == 0.0


@few
@given(st.lists(st.lists(st.sampled_from("BKT")), min_size=1), st.data())
def test_one_more_variant_never_makes_a_score_worse(predictions, data):
    variant = st.lists(st.sampled_from("BKT"), min_size=1).map(tuple)
    one = [[data.draw(variant)] for _ in predictions]
    two = [[*variants, data.draw(variant)] for variants in one]
    assert word_error_rate(predictions, two) <= word_error_rate(predictions, one)


@pytest.mark.parametrize("rate", [word_error_rate, phoneme_error_rate])
def test_error_rates_refuse_what_they_cannot_count(rate):
    with pytest.raises(ValueError, match=r"predictions \(1\) must be as many as references, 2"):
        rate([("B",)], [[("B",)], [("T",)]])
    with pytest.raises(ValueError, match=r"predictions \(0\) must hold at least one word"):
        rate([], [])
    with pytest.raises(ValueError, match=r"references\[1\] \(0 variants\) must hold at least one"):
        rate([("B",), ("T",)], [[("B",)], []])
    with pytest.raises(TypeError, match=r"references\[0\] must be a list of pronunciations, got one"):
        rate([("B",)], [("B",)])


def test_empty_pronunciations_give_no_rate():
    with pytest.raises(ValueError, match="references must hold at least one phoneme"):
        phoneme_error_rate([("B",)], [[()]])


def test_perplexity_of_a_uniform_guess_is_the_number_of_choices():
    assert perplexity(math.log(7)) == pytest.approx(7)
    assert perplexity(0.0) == 1.0
    assert perplexity(1e4) == math.inf


def test_bits_per_character_of_a_uniform_guess():
    assert bits_per_character(math.log(8)) == pytest.approx(3)
    # 4 nats a token of 2.5 characters
    assert bits_per_character(4.0, characters_per_token=2.5) == pytest.approx(4 / (2.5 * math.log(2)))


@few
@given(st.floats(0, 20))
def test_perplexity_is_two_to_the_bits(loss):
    assert perplexity(loss) == pytest.approx(2 ** bits_per_character(loss))


@pytest.mark.parametrize("loss", [-0.1, math.nan])
def test_losses_that_are_none_are_refused(loss):
    for score in (perplexity, bits_per_character):
        with pytest.raises(ValueError, match=rf"loss \({loss}\) must be a number of nats from 0 up"):
            score(loss)


@pytest.mark.parametrize("characters", [0, -1.0, math.nan])
def test_characters_per_token_must_be_positive(characters):
    with pytest.raises(ValueError, match=rf"characters_per_token \({characters}\) must be above 0"):
        bits_per_character(1.0, characters)


HYPOTHESES = [
    "the cat sat on the mat today",
    "a dog ran in the big park now",
    "we like tea with milk every day",
]
REFERENCES = [
    "the cat sat on the mat today",
    "the dog walks through a small park",
    "they drink coffee without sugar",
]


def test_bleu_takes_one_reference_a_sentence_flat_or_in_lists():
    assert bleu(HYPOTHESES, REFERENCES) == pytest.approx(35.1021388, abs=1e-3)
    assert bleu(HYPOTHESES, [[sentence] for sentence in REFERENCES]) == pytest.approx(35.1021388, abs=1e-3)


def test_bleu_takes_several_references_a_sentence():
    others = ["a cat was on the mat", "a dog ran in the big park now", "we like our tea with milk"]
    pairs = [list(pair) for pair in zip(REFERENCES, others, strict=True)]
    assert bleu(HYPOTHESES, pairs) == pytest.approx(79.4023817, abs=1e-3)


def test_bleu_takes_different_numbers_of_references():
    uneven = [[REFERENCES[0]], [REFERENCES[1], HYPOTHESES[1]], [REFERENCES[2]]]
    repeated = [[REFERENCES[0]] * 2, [REFERENCES[1], HYPOTHESES[1]], [REFERENCES[2]] * 2]
    assert bleu(HYPOTHESES, uneven) == pytest.approx(bleu(HYPOTHESES, repeated))
    assert bleu(HYPOTHESES, uneven) > bleu(HYPOTHESES, REFERENCES)


def test_bleu_pools_all_sentences_whatever_their_order():
    backwards = bleu(HYPOTHESES[::-1], REFERENCES[::-1])
    assert backwards == pytest.approx(bleu(HYPOTHESES, REFERENCES))
    assert bleu(HYPOTHESES, HYPOTHESES) == pytest.approx(100)
    assert bleu(HYPOTHESES, ["x", "y", "z"]) == 0.0


def test_bleu_refuses_references_of_another_shape():
    with pytest.raises(ValueError, match=r"references \(1\) must hold one entry for each of 3 hypotheses"):
        bleu(HYPOTHESES, [REFERENCES])
    with pytest.raises(ValueError, match=r"references\[2\] \(0 sentences\) must hold at least one reference"):
        bleu(HYPOTHESES, [[REFERENCES[0]], [REFERENCES[1]], []])
    with pytest.raises(ValueError, match=r"hypotheses \(0\) must hold at least one sentence"):
        bleu([], [])
    with pytest.raises(TypeError, match=r"hypotheses \('a cat'\) must be a list of sentences"):
        bleu("a cat", ["a cat"])
    with pytest.raises(TypeError, match=r"references \('a cat'\) must be a list of sentences"):
        bleu(["a cat"], "a cat")
