"""The Shakespeare model in the reader's browser: it writes, and shows what it chooses from and looks at.

The weights come with the book as scripts, which `gpt_weights` makes when the book is built; the page loads
them when the reader asks. Until then the figure goes through an example that is stored in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch

from ..data.shakespeare import CHARACTERS
from ..generation import GPTStep, next_token_probabilities
from ..gpt import GPT
from ..multi_head_attention import attention_maps
from ..runtime import check_size
from ..shakespeare import check_prompt, load_shakespeare_gpt
from .base import Interactive, rounded, table, texts
from .gpt_weights import PARTS, dequantized, digest, quantized
from .sampling import decimal_places
from .widgets import visible

FOLDER = "../_static/gpt/"  # of the scripts with the weights, from a page of the book
LONGEST_PROMPT = 200  # characters
MOST_CHARACTERS = 1000  # in one run
LABELS = {
    "title": "A GPT in this page",
    "caption": "The Shakespeare model, with weights of eight bits. It runs in your browser and sends nothing "
    "anywhere. The same seed and settings write the same text.",
    "load": "load the model ({size} MB)",
    "loading": "The model is loading: {done} of {all} parts.",
    "progress": "loading",
    "loaded": "The model is loaded: {parameters} parameters in {layers} layers.",
    "missing": "The model's weights are not beside this page: they come with the built book. In a notebook, "
    "the control with the button “Write” runs the model.",
    "prompt": "prompt (\\n begins a line)",
    "temperature": "temperature",
    "top_k": "top-k",
    "all": "all",
    "top_p": "top-p",
    "seed": "seed",
    "step": "step",
    "run": "run",
    "stop": "stop",
    "again": "start over",
    "layer": "layer",
    "head": "head",
    "log": "logarithmic",
    "text": "The text so far: the deeper the blue, the likelier the character was when it was drawn.",
    "drawn": "The last characters drawn",
    "probability": "probability",
    "next": "The next character, of the whole vocabulary. The seed's number {u} draws “{character}”.",
    "before": "the model's",
    "after": "drawn from",
    "cut": "cut",
    "bars": "Bars of the next character; {kept} characters are left. Likeliest to be drawn: {top}.",
    "tip": "{character}: {before} → {after}",
    "attention": "Where the last character looks, layer {layer}, head {head}: most at “{at}”, {weight}.",
    "heads": "All heads: one row each, a column for each character above. The frame marks the chosen head.",
    "rows": "layer {layer}",
    "foreign": "The prompt must have at least one character, all of them from the plays. "
    "The model does not know: {characters}",
    "needs": "What follows this text is not stored in the page: load the model, and it is computed.",
    "reading": "The model reads: {done} of {all} characters.",
    "writing": "The model is writing.",
    "status": "{text} characters of text. The likeliest next one is “{character}”: the model gives it "
    "{before}, the settings make that {after}.",
    "rate": "{count} characters in {seconds} s: {rate} a second.",
    "reset": "reset",
}


def uniform(seed: int, i: int) -> float:
    """Number `i` of a seed, from 0 to below 1: the generator mulberry32, as `distribution.js` has it."""
    mask = 2**32 - 1
    t = (seed + (i + 1) * 0x6D2B79F5) & mask
    t = (t ^ t >> 15) * (t | 1) & mask
    t ^= (t + (t ^ t >> 7) * (t | 61)) & mask
    return ((t ^ t >> 14) & mask) / 2**32


def pick(probabilities: list[float], u: float) -> int:
    """The first token whose probability, added to those before it in the vocabulary, exceeds `u`."""
    total = 0.0
    for i, probability in enumerate(probabilities):
        total += probability
        if u < total:
            return i
    return max(i for i, probability in enumerate(probabilities) if probability > 0)


@lru_cache(maxsize=1)
def page_model() -> tuple[GPT, bytes]:
    """What the page computes with: the shipped model with quantised weights, in float64; and the weights."""
    model = load_shakespeare_gpt()
    return dequantized(model).double(), quantized(model)


@torch.no_grad()
def stored_steps(model: GPT, prompt: str, seed: int, steps: int) -> dict:
    """Continue a prompt as the page does, and keep what it shows at each step.

    Returns:
        The text drawn, and for each of `steps` + 1 places the logarithms of the probabilities of the next
        character, and the attention of the last one to its window: by layer and head, in thousandths.
    """
    ids = torch.tensor([check_prompt(prompt)])
    step = GPTStep(model, beyond="slide")
    logits, attention = [], []
    for i in range(steps + 1):
        scores = step(ids)[0].log_softmax(-1)
        logits.append(decimal_places(scores))
        maps = attention_maps(model, ids[:, step.start :]).values()
        maps = torch.stack([weights[0, :, -1] for weights in maps])
        attention.append((1000 * maps).round().int().tolist())
        if i < steps:
            drawn = pick(next_token_probabilities(scores).tolist(), uniform(seed, i))
            ids = torch.cat([ids, torch.tensor([[drawn]])], dim=1)
    text = "".join(CHARACTERS[i] for i in ids[0, len(prompt) :].tolist())
    return {"text": text, "logits": logits, "attention": attention}


def gpt_in_page(
    prompt: str = "The cat",
    seed: int = 1,
    steps: int = 16,
    folder: str = FOLDER,
    labels: Mapping[str, str] | None = None,
) -> Interactive:
    """Let the Shakespeare model write in the reader's browser.

    Args:
        prompt: the text at the start, of the plays' characters.
        seed: of the draws at the start.
        steps: characters whose distributions are stored, to be seen before the model is loaded.
        folder: where the scripts with the weights lie, seen from the page.
        labels: texts that replace those of `LABELS`.

    Raises:
        ValueError: when the prompt is empty, too long or has other characters, or a number is impossible.
    """
    check_prompt(prompt)
    if len(prompt) > LONGEST_PROMPT:
        raise ValueError(f"prompt (length {len(prompt)}) must have at most {LONGEST_PROMPT} characters")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed ({seed}) must be from 0 to 2**32 - 1")
    check_size("steps", steps, minimum=0)
    model, weights = page_model()
    config = model.config
    words = texts(LABELS, labels)
    stored = stored_steps(model, prompt, seed, steps)
    data = {
        "characters": CHARACTERS,
        "prompt": prompt,
        "seed": seed,
        "longest": LONGEST_PROMPT,
        "most": MOST_CHARACTERS,
        "stored": stored,
        "shape": {
            "layers": config.num_layers,
            "heads": config.num_heads,
            "width": config.d_model,
            "inner": config.d_ff,
            "context": config.max_len,
            "vocabulary": config.vocab_size,
        },
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights": {
            "folder": folder,
            "digest": digest(weights),
            "parts": PARTS,
            "megabytes": rounded(len(weights) * 4 / 3e6, 2),
        },
    }
    probabilities = next_token_probabilities(torch.tensor(stored["logits"][0]))
    likeliest = probabilities.argsort(descending=True, stable=True)[:12].tolist()
    fallback = table(
        [rounded([probabilities[i].item() for i in likeliest])],
        [words["probability"]],
        [visible(CHARACTERS[i]) for i in likeliest],
        f"{prompt} …",
        3,
    )
    return Interactive("gpt_in_page", data, words, fallback)
