"""Self-attention in five steps, every number visible, for the worked example and for words of the reader."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from ..attention import scaled_dot_product_attention
from .base import Interactive, rounded, table, texts

KNOWN = {"我": [0.5, 0.8, -0.3, 0.2], "爱": [0.3, -0.5, 0.9, 0.1], "你": [-0.2, 0.7, 0.4, 0.6]}
W_QUERY = [[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 1.0]]
W_KEY = [[0.0, 1.0], [1.0, -1.0], [2.0, 0.0], [0.0, 2.0]]
W_VALUE = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, -1.0]]
MOST = 6  # words shown
LABELS = {
    "title": "Self-attention in five steps",
    "caption": "“我爱你” is “I love you”; its vectors are those of the worked example. Any other word gets a "
    "vector "
    "made from its letters. The three matrices are those of the text above.",
    "words": "words",
    "causal": "causal",
    "step": "step",
    "previous": "previous step",
    "next": "next step",
    "step1": "Step 1: every word becomes a vector. The same word always gets the same one.",
    "step2": "Step 2: three matrices turn each vector into a query (what it asks), a key (what it is asked "
    "by) and a "
    "value (what it passes on).",
    "step3": "Step 3: every query is compared with every key. The score is their dot product.",
    "step4": "Step 4: scores are divided by √d_k and hidden ones left out. The softmax turns each row into "
    "weights "
    "that sum to one.",
    "step5": "Step 5: each word's output is the sum of all values, each times its weight.",
    "number1": "{word} = ({sum})",
    "number2": "Query of {word}, first number: {sum} = {value}",
    "number3": "{word} asks {key}: {sum} = {value}",
    "number4": "{word} looks at {key}: {score} / √{width} = {scaled}, and its weight is e^{scaled} / "
    "{total} = {value}",
    "number5": "Output of {word}, first number: {sum} = {value}",
    "x": "embeddings x {shape}",
    "wq": "W_Q {shape}",
    "wk": "W_K {shape}",
    "wv": "W_V {shape}",
    "q": "queries Q {shape}",
    "k": "keys K {shape}",
    "v": "values V {shape}",
    "scores": "scores QKᵀ {shape}",
    "scaled": "scaled QKᵀ / √d_k {shape}",
    "weights": "weights {shape}",
    "output": "output {shape}",
    "empty": "Type one to {most} words.",
    "status": "Step {step} of 5. {word} looks mostly at {key}: {weight}.",
    "reset": "reset",
}


def split_words(text: str, most: int = MOST) -> list[str]:
    """Cut a text at spaces; every Chinese character is a word of its own. At most `most` words are kept."""
    return re.findall(r"[\u4e00-\u9fff]|[^\s\u4e00-\u9fff]+", text.lower())[:most]


def word_vector(word: str, width: int = 4) -> list[float]:
    """Make numbers from -1.0 to 1.0 with one decimal out of a word's letters, the same on every machine.

    The 32-bit hash FNV-1a over the code points starts the generator h -> 1664525 h + 1013904223 (mod 2^32);
    each number of the vector is one of 21 steps, by the size of h.
    """
    if word in KNOWN:
        return KNOWN[word]
    state = 2166136261
    for letter in word:
        state = ((state ^ ord(letter)) * 16777619) % 2**32
    vector = []
    for _ in range(width):
        state = (1664525 * state + 1013904223) % 2**32
        vector.append((state * 21 // 2**32 - 10) / 10)
    return vector


def five_steps(text: str, causal: bool = False) -> dict[str, Tensor]:
    """Compute what the figure shows, with the package's attention, in float64.

    Raises:
        ValueError: when the text has no word.
    """
    words = split_words(text)
    if not words:
        raise ValueError(f"text ({text!r}) must have at least one word")
    x, w_query, w_key, w_value = (
        torch.tensor(rows, dtype=torch.float64)
        for rows in ([word_vector(word) for word in words], W_QUERY, W_KEY, W_VALUE)
    )
    query, key, value = x @ w_query, x @ w_key, x @ w_value
    mask = torch.ones(len(words), len(words), dtype=torch.bool).tril() if causal else None
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    steps = {"x": x, "q": query, "k": key, "v": value, "scores": query @ key.T}
    return steps | {"weights": weights, "output": output}


def self_attention_steps(text: str = "我爱你", labels: Mapping[str, str] | None = None) -> Interactive:
    """Show embeddings, queries, keys and values, scores, weights and output, one step at a time.

    Args:
        text: what the text field holds at the start.
        labels: texts that replace those of `LABELS`.

    Raises:
        ValueError: when the text has no word, or more than 60 characters.
    """
    if len(text) > 60:
        raise ValueError(f"text ({len(text)} characters) must have up to 60 characters")
    steps = five_steps(text)
    words, shown = texts(LABELS, labels), split_words(text)
    fallback = table(rounded(steps["weights"]), shown, shown, words["weights"].replace("{shape}", ""))
    data = {"text": text, "most": MOST, "known": KNOWN, "wq": W_QUERY, "wk": W_KEY, "wv": W_VALUE}
    return Interactive("self_attention_steps", data, words, fallback)
