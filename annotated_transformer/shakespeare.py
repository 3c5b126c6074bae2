"""The Shakespeare model: a small GPT that reads and writes plays, character by character.

`python -m annotated_transformer train shakespeare` runs its recipe, `generate "ROMEO:"` lets it write, and
`evaluate shakespeare` measures it. The card beside the checkpoint repeats the recipe.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from .data.shakespeare import CHARACTERS, load_shakespeare
from .distributed import Process
from .generation import GPTStep, for_single_tokens, stream
from .gpt import GPT, GPTConfig
from .recipes import CHECKPOINTS, Goal, Recipe, faded, load_model, train_recipe, use_fast_parts
from .runtime import default_device, evaluating, seed_everything
from .tokenization import CharTokenizer
from .training import (
    Batch,
    Trainer,
    autocast_dtype,
    cosine,
    cross_entropy,
    decay_groups,
    evaluate,
    random_windows,
)

CHECKPOINT = CHECKPOINTS / "shakespeare.safetensors"
NO_PADDING = -100  # a target that never occurs: every character counts
GOAL = Goal(must=1.52, aim=1.46)  # nats per character on the validation text
NANOGPT = {"nanoGPT CPU": 1.88, "nanoGPT GPU": 1.4697}  # what its README reports for its two recipes


@dataclass(frozen=True)
class ShakespeareRecipe(Recipe):
    """The shape of the model and how it is trained.

    Args:
        d_model, num_layers, num_heads, max_len: the shape, see `GPTConfig`.
        dropout: rate on the embeddings and on what each sublayer adds to the residual stream.
        batch: windows of `max_len` characters in an update.
        peak: highest learning rate.
        warmup: updates until it is reached.
        steps: updates in all.
        horizon: the update at which the rate's cosine would reach `floor`.
        floor: lowest rate of the cosine.
        fade: last updates, over which the rate is drawn to 0 in a line besides.
        weight_decay: of the matrices.
        snapshots: weights averaged at the end.
        snapshot_every: updates between two of them.
        seed: of everything random.
    """

    task: ClassVar[str] = "shakespeare"
    minutes: ClassVar[int] = 60

    d_model: int = 224
    num_layers: int = 6
    num_heads: int = 7
    max_len: int = 256
    dropout: float = 0.2
    batch: int = 32
    peak: float = 1.5e-3
    warmup: int = 100
    steps: int = 2500
    horizon: int = 3600
    floor: float = 1e-5
    fade: int = 1100
    weight_decay: float = 0.1
    snapshots: int = 5
    snapshot_every: int = 50
    seed: int = 0


def tokenizer() -> CharTokenizer:
    """Return the tokenizer of the plays: the usual 65 characters in their usual order."""
    return CharTokenizer(CHARACTERS)


def shakespeare_model(recipe: ShakespeareRecipe = ShakespeareRecipe()) -> GPT:
    """Assemble the recipe's GPT with fresh weights."""
    config = GPTConfig(
        vocab_size=len(CHARACTERS),
        max_len=recipe.max_len,
        d_model=recipe.d_model,
        num_layers=recipe.num_layers,
        num_heads=recipe.num_heads,
        dropout=recipe.dropout,
        attention_dropout=0.0,
    )
    return use_fast_parts(GPT(config))


def window_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
    """Sum the loss over windows whose targets are already one character further: (B, T) twice."""
    ids, targets = batch
    return cross_entropy(model(ids), targets, NO_PADDING)


def validation_batches(data: Tensor, block_size: int, batch: int = 32) -> list[Batch]:
    """Cut a text into windows side by side, so that each character but the first is predicted once.

    A character is predicted from those before it in its window: half a window on average.

    Shape:
        - data (N,)
        - output: pairs of ids and targets (B, block_size); the last pair may be of one shorter window
    """
    count = (len(data) - 1) // block_size
    whole = count * block_size
    ids, targets = (part.view(count, block_size) for part in (data[:whole], data[1 : whole + 1]))
    batches = [(ids[i : i + batch], targets[i : i + batch]) for i in range(0, count, batch)]
    if whole < len(data) - 1:
        batches.append((data[None, whole:-1], data[None, whole + 1 :]))
    return batches


class Windows:
    """The batches of an epoch: windows cut at random, each batch from a random generator of its own.

    No batch depends on those drawn before it, so a run can be resumed at any of them.

    Args:
        data: the text as ids.
        block_size: characters of a window.
        batch: windows of a batch.
        count: batches of the epoch.
        seed: of the first batch; the others get the numbers after it.

    Shape:
        - data (N,)
        - each item twice (batch, block_size)
    """

    def __init__(self, data: Tensor, block_size: int, batch: int, count: int, seed: int):
        self.data, self.block_size, self.batch = data, block_size, batch
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Batch:
        if not 0 <= i < self.count:
            raise IndexError(f"i ({i}) must be at least 0 and below the number of batches ({self.count})")
        generator = torch.Generator().manual_seed(self.seed + i)
        return random_windows(self.data, self.block_size, self.batch, generator)


def learning_rate(step: int, recipe: ShakespeareRecipe = ShakespeareRecipe()) -> float:
    """Rise in a line, fall along a cosine, and over the last `fade` updates fall to 0 before its end.

    So a run can be ended early: until the fade begins it is the run of `horizon` updates.
    """
    rate = cosine(step, recipe.peak, recipe.warmup, recipe.horizon, recipe.floor)
    return faded(rate, step, recipe.steps, recipe.fade)


def shakespeare_trainer(
    text: str, recipe: ShakespeareRecipe = ShakespeareRecipe(), device: torch.device | None = None
) -> Trainer:
    """Make the trainer of the recipe, in bfloat16 where the device multiplies it.

    Raises:
        ValueError: when the text has characters outside the alphabet, or is not longer than the context.
    """
    seed_everything(recipe.seed)
    device = device or default_device()
    model = shakespeare_model(recipe).to(device)
    data = torch.tensor(tokenizer().encode(text), dtype=torch.long)
    random_windows(data, recipe.max_len, 1)  # raises now where the text is too short
    size = math.ceil(len(data) / (recipe.batch * recipe.max_len))  # an epoch reads as much as the text holds

    def batches(epoch: int) -> Windows:
        return Windows(data, recipe.max_len, recipe.batch, size, seed=(recipe.seed * 10_000 + epoch) * size)

    return Trainer(
        model,
        window_loss,
        batches,
        lambda step: learning_rate(step, recipe),
        torch.optim.AdamW(decay_groups(model, recipe.weight_decay), lr=0.0, betas=(0.9, 0.99), fused=True),
        autocast=autocast_dtype(device),
    )


def validation_loss(model: nn.Module, text: str | None = None, block_size: int | None = None) -> float:
    """Return the mean loss in nats per character of the whole validation text, in float32.

    Args:
        model: predicts the next character at each place.
        text: what is predicted; the validation text where it is None.
        block_size: characters of a window; the model's context where it is None.

    Raises:
        ValueError: when the text has no second character, or one outside the alphabet.
    """
    text = load_shakespeare().validation if text is None else text
    data = torch.tensor(tokenizer().encode(text), dtype=torch.long)
    return evaluate(model, validation_batches(data, block_size or model.config.max_len), window_loss)


def train_shakespeare(
    folder: str | os.PathLike,
    recipe: ShakespeareRecipe = ShakespeareRecipe(),
    steps: int | None = None,
    resume: bool = False,
    save_every: int = 100,
    check_every: int = 500,
    process: Process | None = None,
) -> Path:
    """Train the model and write its averaged weights to `<folder>/shakespeare.safetensors`.

    Progress and the validation loss go to the standard error stream. Arguments and errors are those of
    `recipes.train_recipe`.
    """
    text = load_shakespeare()

    def check(model: GPT) -> str:
        return f"validation loss {validation_loss(model, text.validation):.4f}"

    trainer = shakespeare_trainer(text.train, recipe)
    return train_recipe(trainer, folder, recipe, check, steps, resume, save_every, check_every, process)


def load_shakespeare_gpt(path: str | os.PathLike = CHECKPOINT) -> GPT:
    """Load the trained Shakespeare model, in float32 and in eval mode.

    Raises:
        FileNotFoundError: when there is no such file; the message says how to train one.
        ValueError: when it is truncated, of another task or of another shape.
    """
    return load_model(path, ShakespeareRecipe, shakespeare_model)


def load_writer(path: str | os.PathLike = CHECKPOINT) -> GPT:
    """Load the Shakespeare model as it writes fastest: prepared by `for_single_tokens`.

    Its matrices are in eight bits and it computes in bfloat16. That rounds, so a text may go another way than
    with the model of `load_shakespeare_gpt`, or on another processor.

    Raises:
        FileNotFoundError, ValueError: as `load_shakespeare_gpt`.
    """
    return for_single_tokens(load_shakespeare_gpt(path))


def evaluate_shakespeare(model: GPT | None = None) -> tuple[str, bool]:
    """Compare the model's validation loss with the goals and with what nanoGPT reports.

    nanoGPT's numbers are of the usual file, whose validation part begins at the same line and is a little
    shorter.

    Args:
        model: what is evaluated; the shipped one where it is None.

    Returns:
        A table, and whether the must is met.
    """
    text = load_shakespeare().validation
    loss = validation_loss(load_shakespeare_gpt() if model is None else model, text)
    columns = {"ours": loss, **GOAL._asdict(), **NANOGPT}
    title = f"{len(text):,} characters of the validation text"
    rows = {
        "nats per character": columns.values(),
        "bits per character": [nats / math.log(2) for nats in columns.values()],
        "perplexity": [math.exp(nats) for nats in columns.values()],
    }
    widths = [max(len(name), 6) + 2 for name in columns]
    lines = [f"{title:<40}" + "".join(f"{name:>{w}}" for name, w in zip(columns, widths, strict=True))]
    for name, values in rows.items():
        lines.append(f"{name:<40}" + "".join(f"{v:{w}.4f}" for v, w in zip(values, widths, strict=True)))
    return "\n".join(lines), loss <= GOAL.must


def write_text(
    prompt: str, max_new_tokens: int = 500, model: GPT | None = None, seed: int | None = None, **sampling
) -> Iterator[str]:
    """Continue a prompt: an iterator that gives each character as soon as it is drawn.

    What is older than the context is forgotten by the rule "slide" of `generation.GPTStep`.

    Args:
        prompt: at least one of the 65 characters of the plays.
        max_new_tokens: characters to write; 0 writes none.
        model: what writes; the shipped one, by `load_writer`, where it is None.
        seed: the same seed writes the same text; None for another text each time.
        sampling: temperature, top_k, top_p, min_p and penalty, see `generation.stream`.

    Raises:
        ValueError: when the prompt is empty or has other characters, or an argument is out of its range.
            It is raised by the call, not by the first character.
    """
    ids = torch.tensor([check_prompt(prompt)])
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    elif 0 <= seed < 2**32:
        generator.manual_seed(seed)
    else:
        raise ValueError(f"seed ({seed}) must be from 0 to 2**32 - 1")
    model = load_writer() if model is None else model
    step = GPTStep(model, beyond="slide")

    def quiet_step(ids: Tensor) -> Tensor:
        with evaluating(model):
            return step(ids)

    ids = ids.to(model.tokens.weight.device)
    drawn = stream(quiet_step, ids, max_new_tokens, generator=generator, **sampling)
    return (tokenizer().decode(character.tolist()) for character in drawn)


def check_prompt(prompt: str) -> list[int]:
    """Return the ids of a prompt, if the model can read it.

    Raises:
        ValueError: when it is empty or has characters outside the alphabet.
    """
    foreign = list(dict.fromkeys(c for c in prompt if c not in CHARACTERS))
    if foreign:
        named = ", ".join(map(repr, foreign))
        raise ValueError(f"prompt ({prompt!r}) must have the 65 characters of the plays only, got {named}")
    if not prompt:
        raise ValueError("prompt ('') must have at least one character")
    return tokenizer().encode(prompt)
