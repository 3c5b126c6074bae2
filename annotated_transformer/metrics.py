"""Scores: edit distance, word and phoneme error rates, perplexity, bits per character, BLEU."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

Variants = Sequence[Sequence[str]]


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Smallest number of insertions, deletions and replacements that turn one sequence into the other.

    Reference: Levenshtein 1966.
    """
    row = list(range(len(second) + 1))  # distances between the first 0 symbols and each prefix of second
    for count, left in enumerate(first, start=1):
        diagonal, row[0] = row[0], count
        for column, right in enumerate(second, start=1):
            replaced = diagonal + (left != right)
            diagonal = row[column]
            row[column] = min(replaced, row[column] + 1, row[column - 1] + 1)
    return row[-1]


def word_error_rate(predictions: Sequence[Sequence[str]], references: Sequence[Variants]) -> float:
    """Share of words whose predicted pronunciation is none of the listed ones, from 0 to 1.

    Args:
        predictions: one pronunciation a word.
        references: for each word all pronunciations that count as right.

    Raises:
        ValueError: when the two differ in length, there is no word, or a word has no reference.
    """
    _check_pairs(predictions, references)
    wrong = sum(
        all(tuple(prediction) != tuple(variant) for variant in variants)
        for prediction, variants in zip(predictions, references, strict=True)
    )
    return wrong / len(predictions)


def phoneme_error_rate(predictions: Sequence[Sequence[str]], references: Sequence[Variants]) -> float:
    """Edits needed per reference phoneme, each word compared with its closest listed pronunciation.

    The numerator is the sum of the edit distances to the closest variants, the denominator the summed length
    of those variants (the first of them where several are equally close). It may exceed 1.

    Raises:
        ValueError: as `word_error_rate`, and when the closest variants are all empty.
    """
    _check_pairs(predictions, references)
    edits = length = 0
    for prediction, variants in zip(predictions, references, strict=True):
        distances = [edit_distance(prediction, variant) for variant in variants]
        closest = min(range(len(variants)), key=distances.__getitem__)
        edits += distances[closest]
        length += len(variants[closest])
    if length == 0:
        raise ValueError("references must hold at least one phoneme, got empty pronunciations only")
    return edits / length


def _check_pairs(predictions: Sequence[Sequence[str]], references: Sequence[Variants]) -> None:
    if len(predictions) != len(references):
        raise ValueError(f"predictions ({len(predictions)}) must be as many as references, {len(references)}")
    if not predictions:
        raise ValueError("predictions (0) must hold at least one word")
    for position, variants in enumerate(references):
        if len(variants) == 0:
            raise ValueError(f"references[{position}] (0 variants) must hold at least one pronunciation")
        if isinstance(variants[0], str):
            raise TypeError(f"references[{position}] must be a list of pronunciations, got one pronunciation")


def perplexity(loss: float) -> float:
    r"""How many equally likely choices a loss in nats per token is worth.

    .. math:: e^{\text{loss}}

    Raises:
        ValueError: when ``loss`` is negative or not a number.
    """
    _check_loss(loss)
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def bits_per_character(loss: float, characters_per_token: float = 1.0) -> float:
    r"""A loss in nats per token as bits per character, which models with different tokens share.

    .. math:: \frac{\text{loss}}{\ln 2 \cdot \text{characters per token}}

    Raises:
        ValueError: when ``loss`` is negative or not a number, or ``characters_per_token`` is not above 0.
    """
    _check_loss(loss)
    if not characters_per_token > 0:
        raise ValueError(f"characters_per_token ({characters_per_token}) must be above 0")
    return loss / (math.log(2) * characters_per_token)


def _check_loss(loss: float) -> None:
    if not loss >= 0:
        raise ValueError(f"loss ({loss}) must be a number of nats from 0 up")


def bleu(hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]) -> float:
    """Corpus BLEU by sacrebleu, from 0 to 100.

    Args:
        hypotheses: one translation a sentence, as plain text.
        references: for each sentence its reference, or the list of its references; the lists may differ in
            length. This is the transpose of what sacrebleu takes, one list per set of references.

    Raises:
        TypeError: when either is a single string.
        ValueError: when the two differ in length, there is no sentence, or a sentence has no reference.

    Reference: Papineni et al. 2002; Post 2018.
    """
    for name, value in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(value, str):
            raise TypeError(f"{name} ({value!r}) must be a list of sentences, got one string")
    if len(hypotheses) != len(references):
        raise ValueError(
            f"references ({len(references)}) must hold one entry for each of {len(hypotheses)} hypotheses"
        )
    if not hypotheses:
        raise ValueError("hypotheses (0) must hold at least one sentence")
    lists = [[entry] if isinstance(entry, str) else list(entry) for entry in references]
    for position, entry in enumerate(lists):
        if not entry:
            raise ValueError(f"references[{position}] (0 sentences) must hold at least one reference")
    import sacrebleu

    most = max(map(len, lists))
    # One list per set of references; None where a sentence has fewer.
    sets = [[entry[number] if number < len(entry) else None for entry in lists] for number in range(most)]
    return sacrebleu.corpus_bleu(list(hypotheses), sets).score
