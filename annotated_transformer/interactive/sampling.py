"""Temperature, top-k, top-p and min-p on distributions of the trained Shakespeare model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ..data.shakespeare import CHARACTERS
from ..generation import next_token_probabilities
from ..gpt import GPT
from ..shakespeare import check_prompt, load_shakespeare_gpt
from .base import Interactive, rounded, table, texts
from .widgets import visible

# Places where the model is sure of the next character, and others where it is not.
CONTEXTS = (
    "The cat",
    "Good morrow, ",
    "First Citize",
    "What say you to m",
    "O, speak again, bright angel! for thou ar",
    "He is gone.\n\n",
)
LABELS = {
    "title": "What the settings leave of a distribution",
    "caption": "Temperature changes all probabilities and cuts none. Top-k, top-p and min-p cut the hatched "
    "characters; the probability of those left grows until it sums to one.",
    "context": "after",
    "temperature": "temperature",
    "top_k": "top-k",
    "all": "all",
    "top_p": "top-p",
    "min_p": "min-p",
    "sorted": "likeliest first",
    "log": "logarithmic",
    "before": "the model's",
    "after": "drawn from",
    "cut": "cut",
    "bars": "Bars of the next character; {kept} characters are left. Likeliest to be drawn: {top}.",
    "tip": "{character}: {before} → {after}",
    "numbers": "The two distributions",
    "entropy": "entropy, bits",
    "choices": "as open as … equal choices",
    "highest": "highest probability",
    "status": "{kept} of {all} characters are left; the model gave them {mass}. Entropy {from} → {to} bits, "
    "as with {choices} equally likely characters.",
    "reset": "reset",
}


@lru_cache(maxsize=1)
def exact_model() -> GPT:
    """The shipped model in float64, so that its figures are the same on every machine."""
    return load_shakespeare_gpt().double()


@torch.no_grad()
def log_probabilities(model: GPT, ids: Sequence[int]) -> Tensor:
    """Logarithms of the next token's probabilities (V,), from the last tokens that the context holds."""
    window = torch.tensor([ids[-model.config.max_len :]], device=model.tokens.weight.device)
    return model(window)[0, -1].log_softmax(-1)


def decimal_places(values: Tensor, places: int = 4) -> list[float]:
    """Round to so many decimal places: as logits, all are then equally exact."""
    return [round(value, places) + 0.0 for value in values.tolist()]


def sampling(
    contexts: Sequence[str] = CONTEXTS, model: GPT | None = None, labels: Mapping[str, str] | None = None
) -> Interactive:
    """Show `generation.next_token_probabilities` on what the model says after some texts.

    Args:
        contexts: texts of the plays' characters, of which one can be chosen.
        model: a GPT of the plays' characters in eval mode; the shipped one where it is None.
        labels: texts that replace those of `LABELS`.

    Raises:
        ValueError: when there is no context, or one is empty or has other characters.
    """
    if not contexts:
        raise ValueError(f"contexts ({contexts!r}) must hold at least one text")
    ids = [check_prompt(text) for text in contexts]
    model = exact_model() if model is None else model
    words = texts(LABELS, labels)
    places = [
        {"text": text, "logits": decimal_places(log_probabilities(model, each))}
        for text, each in zip(contexts, ids, strict=True)
    ]
    logits = torch.tensor(places[0]["logits"])
    temperatures = [0.5, 1.0, 1.5]
    likeliest = logits.argsort(descending=True, stable=True)[:10].tolist()
    columns = [next_token_probabilities(logits, temperature)[likeliest] for temperature in temperatures]
    fallback = table(
        rounded(torch.stack(columns, dim=1)),
        [visible(CHARACTERS[i]) for i in likeliest],
        [f"{words['temperature']} {temperature}" for temperature in temperatures],
        f"{words['context']} {contexts[0]}",
        3,
    )
    return Interactive("sampling", {"characters": CHARACTERS, "contexts": places}, words, fallback)
