"""Masks of a small batch: padding, future, and what happens when True and False change places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..attention import attention_weights, target_mask
from .base import Interactive, rounded, table, texts

SENTENCES = ("the cat sleeps now", "dogs bark", "stop")
PAD = 0
WIDTH = 4
LABELS = {
    "title": "Who may look at whom",
    "caption": "Filled: may be looked at; hatched: hidden. Every row shares a weight of one among the keys "
    "that it "
    "may look at.",
    "sentence": "sentence",
    "row": "row",
    "padding": "hide padding",
    "causal": "hide the future",
    "front": "padding first",
    "wrong": "wrong way round (True = hidden)",
    "pad": "pad",
    "masks": "The masks of the batch, ({batch}, 1, {length}, {length})",
    "sequence": "sentence {number}",
    "weights": "Weights of sentence {number}, {shape}",
    "output": "Output, {shape}",
    "queries": "query",
    "status": "Row {row}, “{word}”, may look at {seen}; most of its weight, {most}, goes to “{key}”.",
    "mixed": "Read the wrong way round, row {row}, “{word}”, mixes exactly what it must not: {seen}. "
    "Most of its weight, {most}, goes to “{key}”.",
    "blind": "Row {row}, “{word}”, may look at nothing: its weights and its output are zeros.",
    "reset": "reset",
}


def mask_builder(
    sentences: Sequence[str] = SENTENCES, labels: Mapping[str, str] | None = None
) -> Interactive:
    """Show `padding_mask`, `causal_mask` and `target_mask` of a batch, and the weights that follow.

    Queries, keys and values are drawn once for each word, so that a word keeps its vectors where it moves.

    Args:
        sentences: two to five of them, of one to six words, not all equally long.
        labels: texts that replace those of `LABELS`.

    Raises:
        ValueError: when there are too few or too many sentences or words, or nothing to pad.
    """
    split = [sentence.split() for sentence in sentences]
    if not 2 <= len(split) <= 5:
        raise ValueError(f"sentences ({len(split)}) must be two to five")
    if not all(1 <= len(words) <= 6 for words in split):
        raise ValueError(f"sentences ({list(sentences)}) must have one to six words each")
    if len({len(words) for words in split}) == 1:
        raise ValueError(f"sentences ({list(sentences)}) must differ in length, so that there is padding")
    words = texts(LABELS, labels)
    vocabulary = [words["pad"], *dict.fromkeys(word for sentence in split for word in sentence)]
    length = max(map(len, split))
    ids = [[vocabulary.index(word) for word in each] + [PAD] * (length - len(each)) for each in split]
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(3, len(vocabulary), WIDTH, generator=generator, dtype=torch.float64)
    vectors = torch.tensor(rounded(vectors, 2), dtype=torch.float64)
    query, key, value = vectors
    batch = torch.tensor(ids)
    weights = attention_weights(query[batch], key[batch], target_mask(batch, PAD)[:, 0])
    first = [vocabulary[i] for i in ids[1]]
    fallback = table(rounded(weights[1]), first, first, words["queries"])
    data = {"ids": ids, "vocabulary": vocabulary, "pad": PAD}
    data |= {"query": query.tolist(), "key": key.tolist(), "value": value[:, :2].tolist()}
    return Interactive("mask_builder", data, words, fallback)
