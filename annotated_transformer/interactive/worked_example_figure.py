"""Three characters through one head, the residual and the norm: every number can be edited."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..attention import causal_mask
from ..embeddings import Embeddings
from ..multi_head_attention import MultiHeadAttention
from ..positional_encoding import sinusoidal_encoding
from ..residual import SublayerConnection
from .base import Interactive, rounded, table, texts

TOKENS = "我爱你"
START = {
    "embedded": [[0.5, 0.8, -0.3, 0.2], [0.3, -0.5, 0.9, 0.1], [-0.2, 0.7, 0.4, 0.6]],
    "W_Q": [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]],
    "W_K": [[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]],
    "W_V": [[0.5, 0.0, 0.0, 0.5], [0.0, 0.5, 0.5, 0.0], [0.5, 0.0, -0.5, 0.0], [0.0, 0.5, 0.0, -0.5]],
    "W_O": [[0.5, 0.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.5]],
}

LABELS = {
    "title": "我爱你 through one head, one residual, one norm",
    "caption": "Numbers in boxes can be edited, and all that follows changes with them. Blue is positive, "
    "orange negative, from −2 to 2; weights go from 0 to 1.",
    "use_positions": "add positions",
    "causal": "causal mask",
    "embedded": "embedded (3, 4)",
    "positions": "positions (3, 4)",
    "x": "x (3, 4)",
    "W_Q": "W_Q (4, 4)",
    "W_K": "W_K (4, 4)",
    "W_V": "W_V (4, 4)",
    "W_O": "W_O (4, 4)",
    "Q": "Q = x W_Q (3, 4)",
    "K": "K = x W_K (3, 4)",
    "V": "V = x W_V (3, 4)",
    "scores": "scores, Q Kᵀ / √4",
    "weights": "weights (3, 3)",
    "averaged": "weights · V (3, 4)",
    "attended": "attended (3, 4)",
    "added": "x + attended (3, 4)",
    "normalised": "normalised (3, 4)",
    "step_x": "1. Each character has a vector; the vector of its position is added.",
    "step_QKV": "2. Three matrices make what a token asks, what it is asked for, and what it passes on.",
    "step_weights": "3. Each query times each key, divided by √4; softmax makes each row sum to one.",
    "step_attended": "4. The weights average the values; a last matrix mixes the result.",
    "step_normalised": "5. What came in is added, then each row gets mean 0 and deviation 1.",
    "entry": "{name}, row {row}, column {column}",
    "status": "{query} looks mostly at {key}: {weight}. Its vector becomes ({vector}).",
    "edited": "{name}, row {row}, column {column} is {value}. {query} looks mostly at {key}: {weight}. "
    "Its vector becomes ({vector}).",
    "wrong": "{name}, row {row}, column {column} must be a number; what follows has not changed.",
    "reset": "reset",
}


def with_package(
    values: Mapping[str, list[list[float]]], use_positions: bool = True, causal: bool = False
) -> dict[str, Tensor]:
    """Compute every matrix of the figure by the package's modules, in float64.

    Args:
        values: the matrices of `START`, or edited ones.
        use_positions: whether positions are added.
        causal: whether no character sees a later one.
    """
    T, d_model = 3, 4
    embeddings, attention = Embeddings(T, d_model), MultiHeadAttention(d_model, num_heads=1, bias=False)
    residual = SublayerConnection(nn.LayerNorm(d_model), dropout=0.0, norm_first=False)
    for module in (embeddings, attention, residual):
        module.double().eval()
    given = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in values.items()}
    mask = causal_mask(T) if causal else None
    with torch.no_grad():
        embeddings.table.weight.copy_(given["embedded"] / d_model**0.5)
        for name, part in zip(("W_Q", "W_K", "W_V", "W_O"), attention.children(), strict=True):
            part.weight.copy_(given[name].T)  # nn.Linear stores outputs as rows
        embedded = embeddings(torch.arange(T)[None])
        positions = sinusoidal_encoding(T, d_model).double()
        x = embedded + positions if use_positions else embedded  # (1, T, d_model)
        Q, K, V = attention.query_projection(x), attention.key_projection(x), attention.value_projection(x)
        weights = attention.weights(x, x, mask)[0]  # (1, T, T)
        attended = attention(x, x, x, mask)
        found = {
            "embedded": embedded,
            "positions": positions[None],
            "x": x,
            "Q": Q,
            "K": K,
            "V": V,
            "scores": Q @ K.mT / d_model**0.5,
            "weights": weights,
            "averaged": weights @ V,
            "attended": attended,
            "added": x + attended,
            "normalised": residual(x, lambda _: attended),
        }
    return {name: matrix[0] for name, matrix in found.items()}


def worked_example_figure(labels: Mapping[str, str] | None = None) -> Interactive:
    """Show the worked example with every matrix, of which those that are given can be edited.

    Args:
        labels: texts that replace those of `LABELS`.
    """
    words = texts(LABELS, labels)
    found = rounded(with_package(START))
    features = ["1", "2", "3", "4"]
    fallback = "\n".join(
        table(found[name], TOKENS, TOKENS if name in ("scores", "weights") else features, words[name])
        for name in ("x", "weights", "attended", "normalised")
    )
    return Interactive("worked_example_figure", {"tokens": list(TOKENS), "start": START}, words, fallback)
