"""How many parameters a model has, term by term, and what memory they take, for any sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from ..parameter_count import CHOICES, PRESETS, ModelShape, as_shape, parameter_terms, preset
from .base import Interactive, table, texts

# What rules of thumb count: matrices and gains, nothing else.
RULE_OF_THUMB = ModelShape(
    vocab_size=50_000, bias=False, norm="rms", norm_first=False, positions="sinusoidal"
)

# How the script calls a term of `parameter_terms`, where it does not use the term's own name.
KEYS = {
    "token embeddings": "tokens",
    "position embeddings": "places",
    "segment embeddings": "segments",
    "patches, class token": "patches",
    "embedding norm": "first_norm",
    "cross-attention": "cross",
    "feed-forward": "ff",
    "last norms": "last_norms",
}

LABELS = {
    "title": "A parameter calculator",
    "caption": "It starts with the rule of thumb, matrices and gains only. Switch on what the rule leaves "
    "out, or choose a published model: the total is then exact.",
    "preset": "start from",
    "rule-of-thumb": "rule of thumb",
    "transformer-base": "Transformer base",
    "transformer-big": "Transformer big",
    "gpt2": "GPT-2",
    "gpt2-medium": "GPT-2 medium",
    "gpt2-large": "GPT-2 large",
    "gpt2-xl": "GPT-2 XL",
    "bert-base": "BERT base",
    "t5-small": "T5 small",
    "vit-b16": "ViT-B/16",
    "llama-7b": "LLaMA 7B",
    "num_layers": "layers N",
    "d_model": "d_model d",
    "num_heads": "heads H",
    "num_kv_heads": "key/value heads G",
    "d_ff": "d_ff f",
    "vocab_size": "vocabulary V",
    "max_len": "positions L",
    "architecture": "stack",
    "encoder": "encoder",
    "decoder": "decoder",
    "encoder-decoder": "both",
    "norm": "norms",
    "layer": "gain and bias (LayerNorm)",
    "rms": "gain (RMSNorm)",
    "positions": "positions",
    "learned": "learned",
    "sinusoidal": "sinusoidal",
    "rotary": "rotary",
    "relative": "relative",
    "bias": "biases",
    "gated": "gated feed-forward",
    "norm_first": "pre-norm, with last norms",
    "share_embeddings": "output tied to embeddings",
    "bytes": "bytes a number",
    "batch": "sequences at once",
    "context": "tokens in the cache",
    "part": "part",
    "formula": "formula",
    "parameters": "parameters",
    "millions": "million",
    "share": "share",
    "tokens": "token embeddings",
    "places": "position embeddings",
    "segments": "segment embeddings",
    "patches": "patches, class token",
    "first_norm": "embedding norm",
    "attention": "attention",
    "cross": "cross-attention",
    "ff": "feed-forward",
    "norms": "norms",
    "last_norms": "last norms",
    "pooler": "pooler",
    "classes": "classes",
    "output": "output",
    "tied": "tied",
    "none": "none",
    "total": "total",
    "sums": "The rounded terms sum to {rounded} million. The terms sum to {exact}, which rounds to {total} "
    "million.",
    "letters": "k is the width of a head: {k}. R are buckets of relative positions, p the side of a patch, "
    "c its colours, C the classes.",
    "memory": "memory",
    "gigabytes": "GB",
    "weights": "weights",
    "gradients": "gradients",
    "adam": "Adam",
    "training": "training, without activations",
    "cache": "key/value cache",
    "status": "{total} parameters: {largest} takes {share}. "
    "Training keeps {training} GB, a cache of {tokens} tokens {cache} GB.",
    "same": "{total} parameters, exactly those of {name}. "
    "Training keeps {training} GB, a cache of {tokens} tokens {cache} GB.",
    "small": "{name} ({value}) must be a whole number of at least 1",
    "divide": "{name} ({value}) must divide {other} ({whole})",
    "chart": "Bars: {bars}.",
    "reset": "reset",
}


def parameter_calculator(
    start: str = "rule-of-thumb", labels: Mapping[str, str] | None = None
) -> Interactive:
    """Count the parameters of any shape in the page, by the formulas of `parameter_count`.

    Args:
        start: what it starts with: "rule-of-thumb" or a name of `parameter_count.PRESETS`.
        labels: texts that replace those of `LABELS`.

    Raises:
        ValueError: when the name of the start is unknown.
    """
    if start != "rule-of-thumb" and start not in PRESETS:
        raise ValueError(f"start ({start!r}) must be rule-of-thumb or one of {', '.join(PRESETS)}")
    words = texts(LABELS, labels)
    shapes = {"rule-of-thumb": RULE_OF_THUMB, **{name: as_shape(preset(name)) for name in PRESETS}}
    terms = parameter_terms(shapes[start])
    names = [words[KEYS.get(term.name, term.name)] for term in terms]
    total = sum(term.count for term in terms)
    rows = [[words.get(t.formula, t.formula), f"{t.count:,}", f"{t.count / total:.1%}"] for t in terms]
    fallback = table(
        [*rows, ["", f"{total:,}", "100.0%"]],
        [*names, words["total"]],
        [words["formula"], words["parameters"], words["share"]],
        words["part"],
    )
    data = {
        "start": start,
        "shapes": {name: asdict(shape) for name, shape in shapes.items()},
        "choices": CHOICES,
    }
    return Interactive("parameter_calculator", data, words, fallback)
