"""Heads: the same projections cut into more or fewer of them, and the maps of trained models."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..attention import causal_mask
from ..data import cmudict
from ..gpt import GPT
from ..multi_head_attention import MultiHeadAttention, attention_maps
from ..recipes import G2P_CHECKPOINT, load_g2p, phonemes_of, pronounce
from ..shakespeare import CHECKPOINT, load_shakespeare_gpt, tokenizer
from ..transformer import Transformer
from .base import Interactive, rounded, table, texts

WORDS = ("the", "cat", "sat", "on", "the", "mat")
WIDTH = 48
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)
LINE = "To be, or not to be"
SPOKEN = ("knight", "phone", "station")
LABELS = {
    "title": "Where heads look",
    "caption": "Rows are queries, columns keys; white is 0, blue is 1. A token's row says where it looks.",
    "heads": "number of heads",
    "fresh": "An attention of width {width} that has learned nothing: {heads} heads of width d_k = {width} "
    "/ {heads} = {dk}",
    "map": "head {head}",
    "freshmap": "Head {head} of {heads}: weights of {length} queries on {length} keys, the largest {most}.",
    "trained": "Trained models: choose a text, a layer and a head; point at a token, or use the slider",
    "text": "text",
    "line": "Shakespeare: “{text}”",
    "word": "pronunciation of “{text}”",
    "layer": "layer",
    "head": "head",
    "token": "token",
    "layermap": "Head {head} of layer {layer}.",
    "weights": "Layer {layer}, head {head}",
    "asks": "“{token}” looks at",
    "end": "end",
    "status": "{heads} heads of width {dk}. Largest weight: {most}.",
    "looks": "{heads} heads of width {dk}. Layer {layer}, head {head}: “{token}” looks mostly at “{key}”, "
    "{weight}.",
    "reset": "reset",
}


def fresh_projections(seed: int = 0) -> tuple[Tensor, MultiHeadAttention]:
    """Make vectors for `WORDS`, (1, T, 48), and an attention of one head whose matrices are random.

    The caller's random numbers stay as they were.
    """
    generator = torch.Generator().manual_seed(seed)
    vocabulary = list(dict.fromkeys(WORDS))
    embedded = torch.randn(len(vocabulary), WIDTH, generator=generator, dtype=torch.float64)
    places = torch.randn(len(WORDS), WIDTH, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        layer = MultiHeadAttention(WIDTH, num_heads=1, bias=False).double()
    with torch.no_grad():
        for part in (layer.query_projection, layer.key_projection):
            drawn = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)
            part.weight.copy_(drawn * WIDTH**-0.5)
    x = embedded[[vocabulary.index(word) for word in WORDS]] + 0.5 * places
    return x[None], layer


def line_maps(model: GPT, text: str = LINE) -> Tensor:
    """Where each character of a text looks in a GPT: (layers, H, T, T), in float64."""
    model = copy.deepcopy(model).double().cpu()
    return torch.cat(list(attention_maps(model, torch.tensor([tokenizer().encode(text)])).values()))


def word_maps(model: Transformer, word: str) -> tuple[tuple[str, ...], Tensor]:
    """The phonemes of a word, and where the decoder looks among its letters to say each of them.

    Returns:
        the phonemes, P of them, and the weights of the cross-attentions, (layers, H, P + 1, S + 1), in
        float64; the last row says the end, the last column is the end of the word.
    """
    model = copy.deepcopy(model).double().cpu()
    said = pronounce([word], model, num_beams=1)[0]
    letters = cmudict.letters()
    phonemes = phonemes_of(model)
    src = torch.tensor([[*letters.encode(word), letters.eos_id]])
    tgt = torch.tensor([[phonemes.bos_id, *phonemes.encode(said)]])
    maps = attention_maps(model, src, tgt, tgt_mask=causal_mask(tgt.size(1)))
    return said, torch.cat([weights for name, weights in maps.items() if "cross" in name])


def heads(
    shakespeare: GPT | None = None,
    pronunciation: Transformer | None = None,
    num_heads: int = 4,
    labels: Mapping[str, str] | None = None,
) -> Interactive:
    """Show the maps of a fresh attention for any number of heads, and those of trained models.

    Args:
        shakespeare: a GPT over the characters of plays; where it is None, the shipped one if there is one.
        pronunciation: a model from letters to phonemes; where it is None, the shipped one if there is one.
        num_heads: at the start, one of 1, 2, 3, 4, 6, 8, 12 and 16.
        labels: texts that replace those of `LABELS`.

    Raises:
        ValueError: when `num_heads` does not divide the width of 48, or is too large.
    """
    if num_heads not in COUNTS:
        raise ValueError(f"num_heads ({num_heads}) must be one of {', '.join(map(str, COUNTS))}")
    words = texts(LABELS, labels)
    with torch.random.fork_rng(devices=[]):  # loading begins with random weights
        if shakespeare is None and CHECKPOINT.exists():
            shakespeare = load_shakespeare_gpt()
        if pronunciation is None and G2P_CHECKPOINT.exists():
            pronunciation = load_g2p()
    x, layer = fresh_projections()
    with torch.no_grad():
        query, key = layer.query_projection(x)[0], layer.key_projection(x)[0]
        layer.num_heads = num_heads
        first = layer.weights(x, x)[0, 0]
    trained: list[dict[str, Any]] = []
    if shakespeare is not None:
        tokens = ["␣" if character == " " else character for character in LINE]
        name = words["line"].replace("{text}", LINE)
        trained.append(packed(name, tokens, tokens, line_maps(shakespeare), causal=True))
    if pronunciation is not None:
        for word in SPOKEN:
            said, maps = word_maps(pronunciation, word)
            name = words["word"].replace("{text}", word)
            trained.append(packed(name, [*said, words["end"]], [*word, words["end"]], maps))
    fallback = table(rounded(first), WORDS, WORDS, words["map"].replace("{head}", "1"))
    data = {"query": rounded(query), "key": rounded(key), "words": list(WORDS), "counts": list(COUNTS)}
    return Interactive("heads", {**data, "heads": num_heads, "trained": trained}, words, fallback)


def packed(
    name: str, queries: list[str], keys: list[str], maps: Tensor, causal: bool = False
) -> dict[str, Any]:
    """Weights as whole thousandths, row after row; of a causal map only what may be seen."""
    thousandths = (maps * 1000).round().long().tolist()
    flat = [
        [[x for i, row in enumerate(head) for x in (row[: i + 1] if causal else row)] for head in layer]
        for layer in thousandths
    ]
    return {"name": name, "queries": queries, "keys": keys, "causal": causal, "maps": flat}
