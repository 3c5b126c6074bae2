"""Teaching a model: losses, schedules, batches, the training loop, checkpoints. Chapter: `training`.

Every piece works alone; `Trainer` at the end puts them together.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import padding_mask
from .embeddings import check_ids
from .runtime import check_size, evaluating

Batch = tuple[Tensor, ...]
Loss = Callable[[nn.Module, Batch], tuple[Tensor, int]]
FORMAT = "annotated_transformer training state 1"
ENTRIES = ("step", "epoch", "position", "tokens", "rate", "model", "optimizer", "generators")


# --- losses -----------------------------------------------------------------------------------------------


def cross_entropy(logits: Tensor, target: Tensor, pad_id: int, smoothing: float = 0.0) -> tuple[Tensor, int]:
    r"""Sum the surprise at each right token, and count the tokens that are not padding.

    .. math:: -\sum_t \Big[(1 - s) \log p_t(y_t) + \frac{s}{V} \sum_v \log p_t(v)\Big]

    The mean over a batch is the sum divided by the count. Batches of different sizes are joined by adding
    their sums and their counts, never by averaging their means. Only padding gives 0 and a count of 0.

    Args:
        logits: scores of the next token; the sum is taken in float32.
        target: the token that came next.
        pad_id: the target that does not count.
        smoothing: the share s of each target that is spread over the whole vocabulary.

    Shape:
        - logits (..., V)
        - target (...)
        - output (), and the count

    Raises:
        ValueError: when `smoothing` is outside [0, 1) or the shapes do not fit.

    Reference:
        Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4.
    """
    _check_smoothing(smoothing)
    if logits.shape[:-1] != target.shape:
        raise ValueError(
            f"logits (shape {tuple(logits.shape)}) must have the shape of target, "
            f"{tuple(target.shape)}, and one more axis"
        )
    flat = logits.float().reshape(-1, logits.size(-1))  # (..., V) -> (N, V)
    total = F.cross_entropy(
        flat, target.reshape(-1), ignore_index=pad_id, label_smoothing=smoothing, reduction="sum"
    )
    return total, int((target != pad_id).sum())


def smoothed_targets(target: Tensor, vocab_size: int, smoothing: float, pad_id: int) -> Tensor:
    """Write each target as a distribution: 1 - smoothing for the right token, the rest for the other words.

    This is the form of the well-known tutorial. The rest is shared by the vocab_size - 2 tokens that are
    neither right nor padding, while torch's form shares it among all. A padding target gets a row of zeros.

    Shape:
        - target (...)
        - output (..., V)

    Raises:
        ValueError: when `smoothing` is outside [0, 1), a target or `pad_id` outside the vocabulary, or
            `vocab_size` below 3.
    """
    _check_smoothing(smoothing)
    check_size("vocab_size", vocab_size, minimum=3)
    check_ids(target, vocab_size, "target")
    check_ids(torch.tensor(pad_id), vocab_size, "pad_id")
    rows = torch.full((*target.shape, vocab_size), smoothing / (vocab_size - 2), device=target.device)
    rows.scatter_(-1, target[..., None], 1.0 - smoothing)
    rows[..., pad_id] = 0.0
    return rows.masked_fill((target == pad_id)[..., None], 0.0)


def smoothed_loss(log_probs: Tensor, target: Tensor, smoothing: float, pad_id: int) -> Tensor:
    r"""Sum the Kullback-Leibler divergence of the prediction from `smoothed_targets`.

    .. math:: \sum_t \sum_v q_t(v) \, \big(\log q_t(v) - \log p_t(v)\big)

    A token without mass adds nothing, even where its log-probability is minus infinity.

    Shape:
        - log_probs (..., V)
        - target (...)
        - output ()

    Raises:
        ValueError: as `smoothed_targets`, and when the shapes do not fit.
    """
    if log_probs.shape[:-1] != target.shape:
        raise ValueError(
            f"log_probs (shape {tuple(log_probs.shape)}) must have the shape of target, "
            f"{tuple(target.shape)}, and one more axis"
        )
    rows = smoothed_targets(target, log_probs.size(-1), smoothing, pad_id)
    reached = log_probs.masked_fill(rows == 0, 0.0)  # 0 * -inf would be NaN
    return (torch.xlogy(rows, rows) - rows * reached).sum()


class SequenceLoss:
    """Score a model that reads `src` and predicts each token of `tgt` from those before it.

    The decoder's input is `tgt` without its last token, the target `tgt` without its first.

    Args:
        pad_id: padding, in source and target alike.
        smoothing: as in `cross_entropy`.
    """

    def __init__(self, pad_id: int, smoothing: float = 0.0):
        _check_smoothing(smoothing)
        self.pad_id, self.smoothing = pad_id, smoothing

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Return the summed loss and the number of tokens, from (B, S) and (B, T)."""
        src, tgt = batch
        # padding comes last, so the causal mask alone keeps every real token from seeing it
        logits = model(src, tgt[:, :-1], padding_mask(src, self.pad_id))
        return cross_entropy(logits, tgt[:, 1:], self.pad_id, self.smoothing)


def _check_smoothing(smoothing: float) -> None:
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing ({smoothing}) must be at least 0 and below 1")


# --- schedules: the learning rate of an update, from the number of updates made before it -----------------


def noam(step: int, d_model: int, warmup: int, factor: float = 1.0) -> float:
    r"""Rise for `warmup` steps, then fall with the root of the step: the paper's schedule.

    .. math:: \mathrm{factor} \cdot d_\text{model}^{-1/2} \min(n^{-1/2},\; n \cdot \mathrm{warmup}^{-3/2})

    The formula has no value at step 0, which gets that of step 1.

    Raises:
        ValueError: when `step` is negative, or `d_model` or `warmup` is below 1.

    Reference:
        Vaswani et al. 2017, section 5.3.
    """
    check_size("step", step, minimum=0)
    check_size("d_model", d_model)
    check_size("warmup", warmup)
    n = max(step, 1)
    return factor * d_model**-0.5 * min(n**-0.5, n * warmup**-1.5)


def cosine(step: int, peak: float, warmup: int, total: int, floor: float = 0.0) -> float:
    """Rise in a line to `peak`, which the update after `warmup` others gets, then fall along half a cosine.

    The first update already moves: step 0 gets peak / (warmup + 1). From `total` on the rate is `floor`.

    Raises:
        ValueError: when `step` or `warmup` is negative, or `total` does not exceed `warmup`.
    """
    progress = _progress(step, warmup, total)
    if progress < 0:
        return peak * (1 + progress)
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def linear(step: int, peak: float, warmup: int, total: int, floor: float = 0.0) -> float:
    """Rise as `cosine` does, then fall in a line; arguments and errors are those of `cosine`."""
    progress = _progress(step, warmup, total)
    return peak * (1 + progress) if progress < 0 else floor + (peak - floor) * (1 - progress)


def _progress(step: int, warmup: int, total: int) -> float:
    """From above -1 to 0 while warming up, from 0 to 1 after."""
    check_size("step", step, minimum=0)
    check_size("warmup", warmup, minimum=0)
    if total <= warmup:
        raise ValueError(f"total ({total}) must exceed warmup ({warmup})")
    if step < warmup:
        return (step + 1) / (warmup + 1) - 1
    return min((step - warmup) / (total - warmup), 1.0)


def decay_groups(model: nn.Module, weight_decay: float = 0.01) -> list[dict]:
    """Split the parameters for AdamW: matrices and embeddings decay, biases and norm gains do not.

    A parameter that serves in two places, such as a tied embedding, is listed once. What does not require
    gradients is left out.

    Raises:
        ValueError: when `weight_decay` is negative.

    Reference:
        Loshchilov and Hutter 2019.
    """
    if not weight_decay >= 0:
        raise ValueError(f"weight_decay ({weight_decay}) must be 0 or more")
    trained = [p for p in model.parameters() if p.requires_grad]  # parameters() names each object once
    matrices = [p for p in trained if p.dim() >= 2]
    vectors = [p for p in trained if p.dim() < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


# --- batches ----------------------------------------------------------------------------------------------


def pad(sequences: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """Write sequences of different lengths into one tensor, filled up with `pad_id`: (B, longest)."""
    if not sequences:
        raise ValueError("sequences () must hold at least one sequence")
    longest = max(map(len, sequences))
    return torch.tensor([[*s, *[pad_id] * (longest - len(s))] for s in sequences], dtype=torch.long)


def bucketed_batches(
    lengths: Sequence[tuple[int, ...]], max_tokens: int, seed: int = 0, epoch: int = 0
) -> list[list[int]]:
    """Group items of like length into batches, as many as `max_tokens` allow once padded.

    Items of equal length meet in another order in each epoch, and the batches are shuffled. The same seed
    and epoch always give the same batches, whatever other random numbers were drawn.

    Args:
        lengths: for each item the length of its sequences, such as (target, source). The first sorts most.
        max_tokens: bound of rows times the longest sequence of any kind in a batch.
        seed: which shuffle.
        epoch: which pass over the data.

    Returns:
        For each batch the indices of its items; each item is in exactly one batch.

    Raises:
        ValueError: when there is no item, or one is longer than `max_tokens`.
    """
    check_size("max_tokens", max_tokens)
    if not lengths:
        raise ValueError("lengths () must hold at least one item: the corpus is empty")
    longest = max(map(max, lengths))
    if longest > max_tokens:
        raise ValueError(f"max_tokens ({max_tokens}) must hold the longest sequence ({longest})")
    shuffle = random.Random(f"{seed} {epoch}")
    order = list(range(len(lengths)))
    shuffle.shuffle(order)
    order.sort(key=lengths.__getitem__)  # stable: equal lengths stay shuffled
    batches: list[list[int]] = [[]]
    longest = 0
    for i in order:
        longest = max(longest, *lengths[i])
        if longest * (len(batches[-1]) + 1) > max_tokens:
            batches.append([])
            longest = max(lengths[i])
        batches[-1].append(i)
    shuffle.shuffle(batches)
    return batches


def random_windows(
    data: Tensor, block_size: int, batch: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Cut windows at random out of one long sequence; the targets are the same windows one token later.

    Shape:
        - data (N,)
        - output twice (batch, block_size)

    Raises:
        ValueError: when `data` is not one sequence or shorter than block_size + 1.
    """
    check_size("block_size", block_size)
    check_size("batch", batch)
    if data.dim() != 1:
        raise ValueError(f"data must have one dimension (N,), got {tuple(data.shape)}")
    if len(data) <= block_size:
        raise ValueError(f"data ({len(data)} tokens) must be longer than block_size ({block_size})")
    starts = torch.randint(len(data) - block_size, (batch, 1), generator=generator)
    windows = data[starts + torch.arange(block_size + 1)]  # (batch, block_size + 1)
    return windows[:, :-1], windows[:, 1:]


def copy_batch(
    batch: int, length: int, vocab_size: int, bos_id: int = 1, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw random sequences that are to be repeated: the smallest task a Transformer can be tested on.

    Padding is 0 and `bos_id` starts each target; both never occur inside.

    Shape:
        - src (batch, length)
        - tgt (batch, length + 1)

    Raises:
        ValueError: when a size is impossible: the vocabulary needs a symbol beside padding and `bos_id`.
    """
    check_size("batch", batch)
    check_size("length", length)
    check_size("bos_id", bos_id)
    check_size("vocab_size", vocab_size, minimum=bos_id + 2)
    src = torch.randint(bos_id + 1, vocab_size, (batch, length), generator=generator)
    return src, torch.cat([torch.full((batch, 1), bos_id), src], dim=1)


# --- one update -------------------------------------------------------------------------------------------


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return bfloat16 where the device multiplies it in hardware, else None.

    It halves the bits of every matrix product, which is two to five times as fast, and keeps float32's range,
    so no loss scaling is needed. Elsewhere it is emulated and slower than float32.
    """
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else None
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    native = device.type == "cpu" and any(getattr(torch.cpu, name, bool)() for name in checks)
    return torch.bfloat16 if native else None


def accumulate_gradients(
    model: nn.Module, batches: Iterable[Batch], loss: Loss, autocast: torch.dtype | None = None
) -> tuple[Tensor, int]:
    """Add up the gradients of several batches, so that they equal those of one batch holding them all.

    The sums of the losses are differentiated, then everything is divided by the number of tokens. Averaging
    the means instead would give the tokens of short batches more weight.

    Returns:
        The mean loss of a token and the number of tokens. Without any token: 0, 0 and gradients of zero.
    """
    device = next(model.parameters()).device
    total, tokens = torch.zeros((), device=device), 0
    for batch in batches:
        with torch.autocast(device.type, dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            summed, count = loss(model, tuple(part.to(device) for part in batch))
        summed.backward()
        total, tokens = total + summed.detach(), tokens + count
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    torch._foreach_div_(gradients, max(tokens, 1))
    return total / max(tokens, 1), tokens


def evaluate(model: nn.Module, batches: Iterable[Batch], loss: Loss) -> float:
    """Return the mean loss of a token over all batches, without dropout and without gradients.

    Raises:
        ValueError: when there is no token to score.
    """
    device = next(model.parameters()).device
    total, tokens = 0.0, 0
    with evaluating(model):
        for batch in batches:
            summed, count = loss(model, tuple(part.to(device) for part in batch))
            total, tokens = total + summed.item(), tokens + count
    if tokens == 0:
        raise ValueError("batches must hold at least one token that is not padding, got none")
    return total / tokens


def average_weights(states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Average the weights of several checkpoints of one run, entry by entry, in float64.

    Each of the last checkpoints circles the minimum at some distance; their mean is nearer to it. Entries
    that are not floating point are taken from the last one.

    Raises:
        ValueError: when there is no state or one has other entries than the first.

    Reference:
        Vaswani et al. 2017, section 6.1; Izmailov et al. 2018.
    """
    states = list(states)
    if not states:
        raise ValueError("states () must hold at least one state")
    for state in states:
        if state.keys() != states[0].keys():
            differing = sorted(state.keys() ^ states[0].keys())
            raise ValueError(f"states must have the same entries, got {', '.join(differing)} in some only")
    average = {}
    for name, last in states[-1].items():
        if last.is_floating_point():
            average[name] = torch.stack([s[name].double() for s in states]).mean(dim=0).to(last.dtype)
        else:
            average[name] = last.clone()
    return average


# --- checkpoints ------------------------------------------------------------------------------------------


def save_state(state: Mapping, path: str | os.PathLike) -> None:
    """Write a training state so that at any moment a complete file is there; keep the one before.

    The state goes to a temporary file beside `path`, reaches the disk, and takes the name in one move. What
    had the name before is kept as `<path>.previous`.

    Raises:
        OSError: when it cannot be written, as on a full disk; what was there before is untouched.
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            os.replace(path, previous(path))
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch reports a failed write as either
        temporary.unlink(missing_ok=True)
        raise OSError(f"path ({path}) must be writable, with room for the checkpoint: {error}") from error


def previous(path: str | os.PathLike) -> Path:
    """Name the checkpoint before the one at `path`."""
    return Path(f"{path}.previous")


def load_state(path: str | os.PathLike) -> dict:
    """Read a training state; where a crash left only the one before it, read that.

    Raises:
        FileNotFoundError: when neither is there.
        ValueError: when the file is truncated, not a training state or lacks an entry.
    """
    path = Path(path)
    if not path.exists() and previous(path).exists():
        path = previous(path)
    hint = f"; {previous(path)} is the one before it" if previous(path).exists() else ""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"path ({path}) must be a checkpoint, got no such file") from None
    except Exception as error:  # zipfile, pickle and torch each have errors of their own
        broken = f"path ({path}) must be a complete checkpoint, got {type(error).__name__}{hint}"
        raise ValueError(broken) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"path ({path}) must be a training state of this package, got another file{hint}")
    missing = [entry for entry in ENTRIES if entry not in state]
    if missing:
        raise ValueError(f"path ({path}) must be a whole state, missing: {', '.join(missing)}{hint}")
    return state


# --- the loop ---------------------------------------------------------------------------------------------


class Trainer:
    """Train a model update by update, in a way that can be stopped and resumed without a difference.

    All that decides the next update is in `state()`: weights, optimizer, step, place in the data, random
    generators. The schedule is a function of the step alone, and the batches of the epoch alone.

    Args:
        model: what is trained, on its device.
        loss: called as (model, batch), returns the summed loss and the number of tokens.
        batches: the batches of an epoch, from its number; draws no global random numbers.
        schedule: the learning rate, from the number of updates made so far.
        optimizer: steps the model's parameters; AdamW with `decay_groups` where it is None.
        accumulate: batches of one update.
        clip: largest norm of all gradients together, after the division by the tokens; None for no limit.
        autocast: lower precision for the forward pass, as from `autocast_dtype`, or None.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Callable[[int], Sequence[Batch]],
        schedule: Callable[[int], float],
        optimizer: torch.optim.Optimizer | None = None,
        accumulate: int = 1,
        clip: float | None = 1.0,
        autocast: torch.dtype | None = None,
    ):
        check_size("accumulate", accumulate)
        self.model, self.loss, self.batches, self.schedule = model, loss, batches, schedule
        self.optimizer = optimizer or torch.optim.AdamW(decay_groups(model), lr=0.0, betas=(0.9, 0.98))
        self.accumulate, self.clip, self.autocast = accumulate, clip, autocast
        self.step = self.epoch = self.position = self.tokens = 0
        self.rate, self.last_loss = 0.0, math.nan
        self._drawn: tuple[int, Sequence[Batch]] | None = None

    def run(self, steps: int, after_step: Callable[[Trainer], None] | None = None) -> None:
        """Make `steps` more updates; `after_step` is called after each, to report or to save."""
        check_size("steps", steps, minimum=0)
        self.model.train()
        for _ in range(steps):
            self.update([self.next_batch() for _ in range(self.accumulate)])
            if after_step is not None:
                after_step(self)

    def update(self, batches: Sequence[Batch]) -> None:
        """Set the rate, gather the gradients, limit them, move the weights."""
        self.rate = self.schedule(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self.optimizer.zero_grad(set_to_none=True)
        loss, tokens = self.gradients(batches)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.step, self.tokens, self.last_loss = self.step + 1, self.tokens + tokens, loss.item()

    def gradients(self, batches: Sequence[Batch]) -> tuple[Tensor, int]:
        """Gather the gradients; return the mean loss of a token and the number of tokens."""
        return accumulate_gradients(self.model, batches, self.loss, self.autocast)

    def next_batch(self) -> Batch:
        """Return the next batch of the epoch, or the first of the next epoch."""
        if self._drawn is None or self._drawn[0] != self.epoch:
            self._drawn = (self.epoch, self.batches(self.epoch))
            if not self._drawn[1]:
                raise ValueError(f"batches (epoch {self.epoch}) must hold at least one batch, got none")
        batch = self._drawn[1][self.position]
        self.position += 1
        if self.position == len(self._drawn[1]):
            self.epoch, self.position = self.epoch + 1, 0
        return batch

    def state(self) -> dict:
        """Collect everything that the next update depends on."""
        version, words, gauss = random.getstate()
        generators = {"torch": torch.get_rng_state(), "python": [version, list(words), gauss]}
        if torch.cuda.is_available():
            generators["cuda"] = torch.cuda.get_rng_state_all()
        counts = {name: getattr(self, name) for name in ("step", "epoch", "position", "tokens", "rate")}
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {"format": FORMAT, **counts, **parts, "generators": generators}

    def save(self, path: str | os.PathLike) -> None:
        """Write `state()` to `path`, as `save_state` does."""
        save_state(self.state(), path)

    def load(self, path: str | os.PathLike) -> None:
        """Continue where the checkpoint at `path` was written.

        Raises:
            FileNotFoundError: when there is none.
            ValueError: when it is broken, or of another model or schedule.
        """
        state = load_state(path)
        rate = self.schedule(state["step"] - 1) if state["step"] else state["rate"]
        if not math.isclose(rate, state["rate"]):
            rates = f"its rate at step {state['step']} is {state['rate']:g}, here {rate:g}"
            raise ValueError(f"path ({path}) must be of the same schedule: {rates}")
        try:
            self.restore(state["model"], state["optimizer"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise ValueError(f"path ({path}) must be a checkpoint of the same model: {error}") from error
        for name in ("step", "epoch", "position", "tokens", "rate"):
            setattr(self, name, state[name])
        version, words, gauss = state["generators"]["python"]
        random.setstate((version, tuple(words), gauss))
        torch.set_rng_state(state["generators"]["torch"])
        if torch.cuda.is_available() and "cuda" in state["generators"]:
            torch.cuda.set_rng_state_all(state["generators"]["cuda"])

    def restore(self, weights: Mapping[str, Tensor], optimizer: Mapping) -> None:
        """Take over the weights and the optimizer's state of a checkpoint."""
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(optimizer)


class Progress:
    """Write one line about the running training: step, loss, tokens per second, time left.

    On a terminal the line is renewed twice a second, in a file one is written every half minute.

    Args:
        total: the step at which training ends.
        stream: where to write; the standard error stream where it is None.
        clock: returns seconds.
    """

    def __init__(self, total: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self.total, self.stream, self.clock = total, stream, clock
        self._first: tuple[float, int, int] | None = None
        self._shown, self._losses = -math.inf, []

    def __call__(self, trainer: Trainer) -> None:
        """Take note of an update, and write where it is time or the last one."""
        stream, now = self.stream or sys.stderr, self.clock()
        self._losses.append(trainer.last_loss)
        if self._first is None:
            self._first = (now, trainer.step, trainer.tokens)
        live = stream.isatty()
        if trainer.step < self.total and now - self._shown < (0.5 if live else 30):
            return
        line = self._line(trainer, now)
        self._shown, self._losses = now, []
        end = "\n" if trainer.step >= self.total or not live else ""
        stream.write(f"\r{line:<78}{end}" if live else line + end)
        stream.flush()

    def _line(self, trainer: Trainer, now: float) -> str:
        began, step, tokens = self._first
        seconds = max(now - began, 1e-9)
        line = f"step {trainer.step:,}/{self.total:,}  loss {sum(self._losses) / len(self._losses):.3f}"
        if trainer.step == step:  # the first update has nothing to be timed against
            return line
        left = round(seconds / (trainer.step - step) * max(self.total - trainer.step, 0))
        return f"{line}  {(trainer.tokens - tokens) / seconds:,.0f} tokens/s  ETA {left // 60}:{left % 60:02}"
