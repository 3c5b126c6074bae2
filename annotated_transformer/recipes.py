"""Recipes: how the shipped models were trained, and what they are used for.

A recipe is a frozen set of numbers and the functions that turn it into a model, batches and a training run.
`python -m annotated_transformer train NAME` runs it; the card beside each checkpoint repeats it.

First comes what all recipes share, then the recipe of the pronunciation model.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import metrics
from .data import cmudict
from .decoding import TransformerStep, greedy_search, n_best_search
from .distributed import DistributedTrainer, Process
from .embeddings import Embeddings
from .encoder_decoder import Decoder, DecoderLayer, Encoder, EncoderLayer
from .feed_forward import PositionwiseFeedForward
from .joint_ngram import JointNGram
from .multi_head_attention import Cache, MultiHeadAttention, check_four_dimensions, split_heads
from .positional_encoding import PositionalEncoding
from .residual import residuals
from .runtime import check_size, default_device, seed_everything
from .training import (
    Progress,
    SequenceLoss,
    Trainer,
    autocast_dtype,
    average_weights,
    bucketed_batches,
    decay_groups,
    evaluating,
    linear,
    load_state,
    pad,
    previous,
)
from .transformer import Generator, InputEmbedding, Transformer

CHECKPOINTS = Path(__file__).parent / "checkpoints"
G2P_CHECKPOINT = CHECKPOINTS / "g2p.safetensors"
FLOAT32 = torch.finfo(torch.float32)
LEVELS = 19  # a stored weight is a number from -19 to 19
BASE = 2 * LEVELS + 1
PLACES = (1, BASE, BASE**2)  # of three of them in 16 bits: 39 ** 3 is 59,319
NGRAM_WEIGHT = 0.3  # of the n-grams beside the Transformers; chosen on the development words
LONGEST_WORD = 48  # letters; the longest in the dictionary has 28

Pairs = list[tuple[list[int], list[int]]]


# --- what all recipes share -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """What every recipe says of its training run; a subclass gives the defaults and adds the model's numbers.

    Args:
        steps: updates in all.
        snapshots: weights averaged at the end.
        snapshot_every: updates between two of them.
        seed: of everything random.
    """

    task: ClassVar[str]  # names the recipe on the command line, its files and what they hold
    minutes: ClassVar[int]  # what the run takes on one core, about

    steps: int
    snapshots: int
    snapshot_every: int
    seed: int

    def header(self) -> dict[str, str]:
        """Write the recipe down as a checkpoint's header does: text by name."""
        return {"format": "pt", "task": self.task} | {name: str(v) for name, v in asdict(self).items()}

    @classmethod
    def from_header(cls, header: Mapping[str, str]) -> Recipe:
        """Read a recipe from a checkpoint's header; what that does not say is as in the shipped recipe."""
        kinds = {field.name: type(field.default) for field in fields(cls)}
        given = {name: kind for name, kind in kinds.items() if name in header}
        return cls(
            **{n: header[n] == "True" if kind is bool else kind(header[n]) for n, kind in given.items()}
        )


class ByteDropout(nn.Dropout):
    """Drop out like `nn.Dropout`, from eight bits of randomness an entry instead of a number each.

    One 64-bit random number decides eight entries, which takes a third of the time on a CPU. The probability
    is rounded to a multiple of 1/256; what is kept is scaled by the exact inverse.
    """

    def forward(self, x: Tensor) -> Tensor:
        dropped = round(self.p * 256)
        if not self.training or dropped == 0:
            return x
        if dropped == 256:  # beyond what a byte can be compared with
            return x * 0.0
        draws = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        # compared in place: bytes go through vector instructions, booleans one by one
        kept = draws.view(torch.uint8)[: x.numel()].view(x.shape).ge_(dropped)
        return x * kept.to(x.dtype).mul_(256 / (256 - dropped))


class CastingLayerNorm(nn.LayerNorm):
    """Normalise like `nn.LayerNorm`; under autocast hand on the lower precision.

    Autocast normalises in float32, and each of the projections that follow casts the result for itself. Here
    it is cast once, which gives them the same numbers.
    """

    def forward(self, x: Tensor) -> Tensor:
        normed, device = super().forward(x), x.device.type
        return normed.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else normed


class MergedAttention(MultiHeadAttention):
    """Compute what `MultiHeadAttention` does; in training, one product makes all that one input is made into.

    That is query, key and value in self-attention, key and value in cross-attention. One wide product keeps a
    CPU busier than several narrow ones, forward and backward.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        if key is not value or cache is not None or not torch.is_grad_enabled():
            return super().forward(query, key, value, mask, cache)
        check_four_dimensions(mask)
        parts = [self.key_projection, self.value_projection]
        if query is key:
            parts = [self.query_projection, *parts]
        weight, bias = (joined([getattr(part, name) for part in parts]) for name in ("weight", "bias"))
        B, S, _ = key.shape
        projected = F.linear(key, weight, bias).view(B, S, len(parts), self.num_heads, -1)
        *queries, keys, values = projected.permute(2, 0, 3, 1, 4).contiguous()  # each (B, H, S, D)
        if not queries:
            queries = [split_heads(self.query_projection(query), self.num_heads)]
        return self.mix(queries[0], keys, values, mask)


def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Put parameters below each other, in the precision of autocast; None where there are none."""
    if parts[0] is None:
        return None
    device = parts[0].device.type
    if torch.is_autocast_enabled(device):
        parts = [part.to(torch.get_autocast_dtype(device)) for part in parts]
    return torch.cat(parts)


def faded(rate: float, step: int, steps: int, fade: int) -> float:
    """Let the rate of any schedule fall to 0 in a line over the last `fade` updates of a run; 0 for none.

    A long schedule can so be ended early: what is learned in its last part needs the low rate, not the time.

    Raises:
        ValueError: when `fade` is negative.

    Reference:
        Hägele et al. 2024.
    """
    check_size("fade", fade, minimum=0)
    return rate * min(1.0, (steps - step) / fade) if fade else rate


def use_fast_parts(model: nn.Module) -> nn.Module:
    """Replace each plain dropout, layer norm and attention of a model by the three above; return the model.

    They have the same parameters by the same names, and compute the same.
    """
    for module in list(model.modules()):
        for name, part in module.named_children():
            if type(part) is nn.Dropout:
                setattr(module, name, ByteDropout(part.p))
            elif type(part) is nn.LayerNorm:
                norm = CastingLayerNorm(part.normalized_shape, part.eps)
                norm.load_state_dict(part.state_dict())
                setattr(module, name, norm)
            elif type(part) is MultiHeadAttention:
                part.__class__ = MergedAttention  # it differs in the order of its work only
    return model


def train_recipe(
    trainer: Trainer,
    folder: str | os.PathLike,
    recipe: Recipe,
    check: Callable[[nn.Module], str],
    steps: int | None = None,
    resume: bool = False,
    save_every: int = 250,
    check_every: int = 1000,
    process: Process | None = None,
) -> Path:
    """Run a recipe's training and write its averaged weights to `<folder>/<task>.safetensors`.

    Progress and the checks go to the standard error stream. The training state is saved to
    `<folder>/state.pt`. Several processes train together; the first of them reports and writes.

    Args:
        trainer: makes the updates; at its beginning.
        folder: where everything is written.
        recipe: what is trained.
        check: says in a few words how good a model is; draws no random numbers.
        steps: stop after so many updates in all; the schedule stays that of the recipe.
        resume: continue from the folder's training state.
        save_every: updates between two savings of the training state.
        check_every: updates between two checks.
        process: which process this is, from `process_group`; the only one where it is None.

    Raises:
        FileExistsError: when the folder holds a training state that is not to be resumed.
        FileNotFoundError: when there is nothing to resume.
        ValueError: when `steps` is below 1 or above the recipe's, or the training state does not fit.
    """
    process = process or Process()
    folder = Path(folder)
    state = folder / "state.pt"
    last = recipe.steps if steps is None else steps
    if not 1 <= last <= recipe.steps:
        raise ValueError(f"steps ({steps}) must be from 1 to the recipe's {recipe.steps}")
    if not resume and (state.exists() or previous(state).exists()):
        raise FileExistsError(f"folder ({folder}) must hold no training state, unless it is to be resumed")
    if process.world_size > 1:
        trainer = DistributedTrainer.of(trainer, recipe.seed)
    first = process.rank == 0
    if resume:
        trainer.load(state)
        if trainer.step > last:
            raise ValueError(f"steps ({last}) must be at least {trainer.step}, the updates already made")
    progress = Progress(last)
    counts = [last - i * recipe.snapshot_every for i in range(recipe.snapshots)]
    snapshots = {count: folder / f"weights-{count:06}.safetensors" for count in counts if count > 0}

    def after_step(trainer: Trainer) -> None:
        if trainer.step % save_every == 0 or trainer.step == last:
            trainer.save(state)
        if not first:
            return
        progress(trainer)
        if trainer.step in snapshots:
            save_weights(trainer.model, snapshots[trainer.step], recipe)
        if trainer.step % check_every == 0:
            print(f"step {trainer.step:,}: {check(trainer.model)}", file=sys.stderr, flush=True)

    trainer.run(last - trainer.step, after_step)
    path = folder / f"{recipe.task}.safetensors"
    if not first:
        return path
    written = [read_weights(path)[0] for path in snapshots.values() if path.exists()]
    if written:
        load_weights(trainer.model, average_weights(written))
    save_weights(trainer.model, path, recipe, torch.bfloat16)
    return path


def save_weights(
    model: nn.Module, path: str | os.PathLike, recipe: Recipe, dtype: torch.dtype | None = None
) -> None:
    """Write weights as safetensors with the recipe in the header, complete or not at all.

    A matrix that serves in two places is written once, under its first name.

    Raises:
        OSError: when the file cannot be written.
    """
    twice = second_names(model)
    weights = {
        name: weight.to("cpu", dtype).contiguous()
        for name, weight in model.state_dict().items()
        if name not in twice
    }
    write_weights(weights, recipe.header(), path)


def write_weights(
    weights: Mapping[str, Tensor], header: Mapping[str, str], path: str | os.PathLike
) -> None:
    """Write a safetensors file, complete or not at all.

    Raises:
        OSError: when the file cannot be written.
    """
    from safetensors.torch import save

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".writing")
    try:
        with open(temporary, "wb") as file:
            file.write(save(dict(weights), dict(header)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(f"path ({path}) must be writable, with room for the weights: {error}") from error


def read_weights(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read weights and header of a safetensors file.

    Raises:
        FileNotFoundError: when there is none.
        ValueError: when the file is truncated or of another kind.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise FileNotFoundError(f"path ({path}) must be a checkpoint, got no such file") from None
    except SafetensorError as error:
        raise ValueError(f"path ({path}) must be a complete safetensors file: {error}") from error


def second_names(model: nn.Module) -> dict[str, str]:
    """Map each further name of a weight that has several, such as a tied output matrix, to its first one."""
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(w), name) for name, w in model.state_dict(keep_vars=True).items()}
    return {name: other for name, other in names.items() if name != other}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights as `save_weights` writes them into a model.

    Raises:
        RuntimeError: when names or shapes do not fit.
    """
    twice = {name: weights[other] for name, other in second_names(model).items() if other in weights}
    model.load_state_dict({**weights, **twice})


def read_checkpoint(
    path: str | os.PathLike, kind: type[Recipe]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read weights and header of a checkpoint of a task.

    Args:
        path: a checkpoint.
        kind: the class of the recipe that it was trained by.

    Raises:
        FileNotFoundError: when there is no such file; the message says how to train one.
        ValueError: when it is truncated or of another task.
    """
    task = kind.task
    try:
        weights, header = read_weights(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error}. `python -m annotated_transformer train {task}` writes one to "
            f"runs/{task}/{task}.safetensors, in about {kind.minutes} minutes on one core; "
            "pass that file with --checkpoint"
        ) from None
    if header.get("task") != task:
        raise ValueError(f"path ({path}) must be a checkpoint of the task {task}, got {header.get('task')}")
    return weights, header


def fit_model(
    path: str | os.PathLike,
    weights: Mapping[str, Tensor],
    header: Mapping[str, str],
    kind: type[Recipe],
    build: Callable[[Recipe], nn.Module],
) -> nn.Module:
    """Build the model that a checkpoint's header describes, and give it the weights, in eval mode.

    Raises:
        ValueError: when they do not fit; the message names the path.
    """
    try:
        model = build(kind.from_header(header))
        load_weights(model, weights)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"path ({path}) must fit its own recipe and vocabulary: {error}") from error
    return model.eval()


def load_model(
    path: str | os.PathLike, kind: type[Recipe], build: Callable[[Recipe], nn.Module]
) -> nn.Module:
    """Load a trained model, in float32 and in eval mode.

    Args:
        path: a checkpoint.
        kind: the class of the recipe that it was trained by.
        build: assembles the model of a recipe.

    Raises:
        FileNotFoundError: when there is no such file; the message says how to train one.
        ValueError: when it is truncated, of another task or does not fit its own header.
    """
    return fit_model(path, *read_checkpoint(path, kind), kind, build)


def quantized(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Store matrices in 5 1/3 bits a weight: whole numbers from -19 to 19, three of them in each 16 bits.

    A weight is its number times the scale of its row, `name.scale`: of some scales the one with the least
    squared error. `name.columns` says how many weights a row has. Vectors become float32.

    Shape:
        - a matrix (rows, columns)
        - stored (rows, columns / 3, rounded up)
    """
    stored = {}
    for name, weight in weights.items():
        weight = weight.float().cpu()
        if weight.dim() == 2:
            most = weight.abs().amax(dim=1, keepdim=True).clamp(min=FLOAT32.tiny) / LEVELS
            scales = torch.stack([most * share / 20 for share in range(12, 21)])  # (9, rows, 1)
            numbers = (weight / scales).round().clamp(-LEVELS, LEVELS)
            errors = (numbers * scales - weight) / most  # tiny weights would have squares of 0
            best = errors.square().sum(dim=-1).argmin(dim=0)  # (rows,)
            rows = torch.arange(len(weight))
            stored[f"{name}.scale"] = scales[best, rows, 0]
            stored[f"{name}.columns"] = torch.tensor([weight.size(1)])
            digits = F.pad(numbers[best, rows].long() + LEVELS, (0, -weight.size(1) % 3))
            threes = digits.unflatten(1, (-1, 3)) @ torch.tensor(PLACES)
            weight = (threes - 2**15).to(torch.int16)
        stored[name] = weight
    return stored


def restored(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo `quantized` up to its rounding; what is not quantised stays as it is."""
    whole = {name: w for name, w in weights.items() if not name.endswith((".scale", ".columns"))}
    for name in whole:
        if f"{name}.scale" in weights:
            threes = whole[name].int() + 2**15
            digits = torch.stack([threes // place % BASE for place in PLACES], dim=-1).flatten(1)
            numbers = digits[:, : int(weights[f"{name}.columns"])] - LEVELS
            whole[name] = numbers * weights[f"{name}.scale"][:, None]
    return whole


class Goal(NamedTuple):
    """A score that the shipped checkpoint has to reach, and one that would be good."""

    must: float
    aim: float


# --- the pronunciation model ------------------------------------------------------------------------------


@dataclass(frozen=True)
class G2PRecipe(Recipe):
    """The model that reads a word's letters and writes its phonemes, and how it is trained.

    Args:
        d_model, num_heads, d_ff, encoder_layers, decoder_layers: the shape of the pre-norm Transformer.
        dropout: rate on the embeddings and on what each sublayer adds to the residual stream.
        smoothing: label smoothing in torch's form.
        max_tokens: bound of rows times length of a batch.
        peak: highest learning rate.
        warmup: updates until it is reached.
        horizon: updates after which the rate, falling in a line, would be 0; `steps` where it is 0.
        steps: updates in all.
        fade: updates at the end over which the rate falls to 0 all the same.
        weight_decay: of the matrices.
        snapshots: weights averaged at the end.
        snapshot_every: updates between two of them.
        seed: of everything random.
        backwards: whether the model writes the last phoneme first.
    """

    task: ClassVar[str] = "g2p"
    minutes: ClassVar[int] = 140

    d_model: int = 256
    num_heads: int = 4
    d_ff: int = 1024
    encoder_layers: int = 3
    decoder_layers: int = 3
    dropout: float = 0.15
    smoothing: float = 0.1
    max_tokens: int = 2000
    peak: float = 1.5e-3
    warmup: int = 500
    horizon: int = 0
    steps: int = 13_500
    fade: int = 0
    weight_decay: float = 0.01
    snapshots: int = 8
    snapshot_every: int = 200
    seed: int = 0
    backwards: bool = False


# Two Transformers are shipped: one writes from the front, the other, which starts as its copy, from the end.
G2P_PHASES = (G2PRecipe(), G2PRecipe(horizon=13_000, steps=11_000, fade=2700, seed=1, backwards=True))


def backwards(rows: Tensor, pad_id: int = 0) -> Tensor:
    """Turn each row round and leave its padding at the end: 5 6 7 0 becomes 7 6 5 0.

    Shape:
        - rows (B, T)
        - output (B, T)
    """
    places = (rows != pad_id).sum(dim=1, keepdim=True) - 1 - torch.arange(rows.size(1), device=rows.device)
    return rows.gather(1, places.clamp(min=0)).masked_fill(places < 0, pad_id)


def g2p_model(recipe: G2PRecipe = G2PRecipe(), stress: bool = True) -> Transformer:
    """Assemble the recipe's Transformer, from letters to phonemes, with fresh weights.

    Its attribute `backwards` says where it begins to write.
    """
    d, rate = recipe.d_model, recipe.dropout

    def attention() -> MultiHeadAttention:
        return MultiHeadAttention(d, recipe.num_heads)

    def feed_forward() -> PositionwiseFeedForward:
        part = PositionwiseFeedForward(d, recipe.d_ff, dropout=0.0)
        part.activation = F.relu_  # in place: nothing needs the values before it again
        return part

    def embedding(vocabulary: cmudict.Vocabulary) -> InputEmbedding:
        positions = PositionalEncoding(d, rate, max_len=LONGEST_WORD + 2)
        return InputEmbedding(Embeddings(len(vocabulary), d, padding_idx=vocabulary.pad_id), positions)

    encoder_layers = [
        EncoderLayer(attention(), feed_forward(), residuals(2, d, rate)) for _ in range(recipe.encoder_layers)
    ]
    decoder_layers = [
        DecoderLayer(attention(), attention(), feed_forward(), residuals(3, d, rate))
        for _ in range(recipe.decoder_layers)
    ]
    letters, phonemes = cmudict.letters(), cmudict.phonemes(stress)
    model = Transformer(
        embedding(letters),
        embedding(phonemes),
        Encoder(encoder_layers, nn.LayerNorm(d)),
        Decoder(decoder_layers, nn.LayerNorm(d)),
        Generator(d, len(phonemes)),
    )
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    model.backwards = recipe.backwards
    return use_fast_parts(model)


def g2p_pairs(entries: cmudict.Entries, stress: bool = True) -> Pairs:
    """Turn a dictionary into pairs of ids, one for each pronunciation: letters, end; begin, phonemes, end."""
    letters, phonemes = cmudict.letters(), cmudict.phonemes(stress)
    pairs = []
    for word, variants in entries.items():
        src = [*letters.encode(word), letters.eos_id]
        for variant in dict.fromkeys(variants if stress else map(cmudict.strip_stress, variants)):
            pairs.append((src, [phonemes.bos_id, *phonemes.encode(variant), phonemes.eos_id]))
    return pairs


def g2p_batches(pairs: Pairs, max_tokens: int, seed: int = 0, epoch: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Make the padded batches of an epoch, each of words of about one length."""
    lengths = [(len(tgt), len(src)) for src, tgt in pairs]
    return [
        (pad([pairs[i][0] for i in batch], 0), pad([pairs[i][1] for i in batch], 0))
        for batch in bucketed_batches(lengths, max_tokens, seed, epoch)
    ]


def g2p_trainer(
    pairs: Pairs, recipe: G2PRecipe = G2PRecipe(), stress: bool = True, device: torch.device | None = None
) -> Trainer:
    """Make the trainer of the recipe, in bfloat16 where the device multiplies it.

    A model that writes from the end learns targets that are turned round: from the end token to the begin.
    """
    seed_everything(recipe.seed)
    device = device or default_device()
    model = g2p_model(recipe, stress).to(device)
    if recipe.backwards:
        pairs = [(src, tgt[::-1]) for src, tgt in pairs]

    def schedule(step: int) -> float:
        rate = linear(step, recipe.peak, recipe.warmup, recipe.horizon or recipe.steps)
        return faded(rate, step, recipe.steps, recipe.fade)

    return Trainer(
        model,
        SequenceLoss(0, recipe.smoothing),
        lambda epoch: g2p_batches(pairs, recipe.max_tokens, recipe.seed, epoch),
        schedule,
        torch.optim.AdamW(decay_groups(model, recipe.weight_decay), lr=0.0, betas=(0.9, 0.98), fused=True),
        autocast=autocast_dtype(device),
    )


def train_g2p(
    folder: str | os.PathLike,
    phases: Sequence[G2PRecipe] = G2P_PHASES,
    steps: int | None = None,
    resume: bool = False,
    save_every: int = 250,
    check_every: int = 1000,
    process: Process | None = None,
) -> Path:
    """Train the pronunciation models and write their averaged weights to `<folder>/g2p.safetensors`.

    Each phase trains a model; it begins with the last weights of the phase before, a new optimizer and a
    schedule of its own, and writes to a folder of its own, `<folder>/phase-1` and so on. Progress and the
    error on 500 development words go to the standard error stream. The n-grams of the training words, which
    are only counted, are written to the same file.

    Args:
        folder: where everything is written.
        phases: what is trained, one after the other; all have the same shape.
        steps: stop after so many updates in all, those of earlier phases included.
        resume: continue from the training states in the folder.
        save_every, check_every, process: as in `train_recipe`.

    Raises:
        FileExistsError, FileNotFoundError, ValueError: as `train_recipe`.
    """
    total = sum(recipe.steps for recipe in phases)
    left = total if steps is None else steps
    if not 1 <= left <= total:
        raise ValueError(f"steps ({steps}) must be from 1 to the recipe's {total}")
    folders = [Path(folder) / f"phase-{i + 1}" for i in range(len(phases))]
    begun = [(own / "state.pt").exists() or previous(own / "state.pt").exists() for own in folders]
    if any(begun) and not resume:
        raise FileExistsError(f"folder ({folder}) must hold no training state, unless it is to be resumed")
    split = cmudict.split_by_headword(cmudict.load_cmudict())
    words = spread(list(split.dev), 500)

    def check(model: Transformer) -> str:
        spoken = pronounce(words, model, num_beams=1)
        wrong = metrics.word_error_rate(spoken, [split.dev[word] for word in words])
        return f"{wrong:.1%} of {len(words)} development words wrong"

    weights, paths = None, []
    for i, (recipe, own) in enumerate(zip(phases, folders, strict=True)):
        going_on = resume and (begun[i] or i == 0)
        if not (going_on and any(begun[i + 1 :])):  # else it was finished before
            trainer = g2p_trainer(g2p_pairs(split.train), recipe)
            if weights is not None:
                trainer.model.load_state_dict(weights)
            count = min(left, recipe.steps)
            train_recipe(trainer, own, recipe, check, count, going_on, save_every, check_every, process)
        paths.append(own / f"{recipe.task}.safetensors")
        left -= recipe.steps
        if left <= 0:
            break
        weights = load_state(own / "state.pt")["model"]
    path = Path(folder) / f"{G2PRecipe.task}.safetensors"
    if process is None or process.rank == 0:
        ngram = JointNGram.fit(g2p_pairs(split.train))
        save_g2p(Pronouncer([load_g2p(own) for own in paths], ngram), path, phases)
    return path


def spread(words: Sequence[str], count: int) -> list[str]:
    """Choose `count` words at equal distances, or all of them where there are not more."""
    return [words[i * len(words) // count] for i in range(count)] if count < len(words) else list(words)


@dataclass(frozen=True)
class Pronouncer:
    """What pronounces words together.

    Args:
        models: Transformers in eval mode, all of one vocabulary; the first is asked where one is enough.
        ngram: judges what the models propose, or None; it knows phonemes with stress.

    Raises:
        ValueError: when there is no model, or their vocabularies differ, or the n-grams have another one.
    """

    models: Sequence[Transformer]
    ngram: JointNGram | None = None

    def __post_init__(self):
        sizes = sorted({model.generator.projection.out_features for model in self.models})
        if len(sizes) != 1:
            raise ValueError(f"models must have one vocabulary of phonemes, got sizes {sizes}")
        if self.ngram is not None and sizes != [len(cmudict.phonemes())]:
            raise ValueError(f"models (phonemes: {sizes[0]}) must write stress where n-grams judge them")


def save_g2p(
    pronouncer: Pronouncer, path: str | os.PathLike, recipes: Sequence[G2PRecipe] = G2P_PHASES
) -> None:
    """Write several models as one safetensors file, their matrices `quantized`, and the n-grams with them.

    The names of the first model begin with `1.`, as do those of its recipe in the header, and so on; those of
    the n-grams begin with `ngram.`.

    Raises:
        OSError: when the file cannot be written.
    """
    weights, header = {}, {"format": "pt", "task": G2PRecipe.task}
    for i, (model, recipe) in enumerate(zip(pronouncer.models, recipes, strict=False), 1):
        weights |= {f"{i}.{name}": w for name, w in quantized(model.state_dict()).items()}
        header |= {f"{i}.{name}": text for name, text in recipe.header().items()}
    if pronouncer.ngram is not None:
        weights |= {f"ngram.{name}": part for name, part in pronouncer.ngram.tensors().items()}
        header["ngram.order"] = str(pronouncer.ngram.order)
    write_weights(weights, header, path)


def load_pronouncer(path: str | os.PathLike = G2P_CHECKPOINT) -> Pronouncer:
    """Load what pronounces words: the models of a file, in float32 and in eval mode, and its n-grams if any.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is truncated, of another task or of another vocabulary.
    """
    weights, header = read_checkpoint(path, G2PRecipe)

    def of(prefix: str, entries: Mapping) -> dict:
        return {name[len(prefix) :]: entry for name, entry in entries.items() if name.startswith(prefix)}

    counted = of("ngram.", weights)
    prefixes = sorted({name.partition(".")[0] + "." for name in weights if name[0].isdecimal()}) or [""]
    models = [
        fit_model(path, restored(of(prefix, weights)), of(prefix, header), G2PRecipe, g2p_model)
        for prefix in prefixes
    ]
    if not counted:
        return Pronouncer(models)
    try:
        return Pronouncer(models, JointNGram(**counted, order=int(header["ngram.order"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"path ({path}) must hold n-grams as they are saved: {error}") from error


def load_g2p(path: str | os.PathLike = G2P_CHECKPOINT) -> Transformer:
    """Load the first Transformer of a file, which writes from the front: see `load_pronouncer`."""
    return load_pronouncer(path).models[0]


def pronounce(
    words: Iterable[str],
    model: Transformer | Sequence[Transformer] | Pronouncer | None = None,
    num_beams: int = 5,
    alpha: float = 0.0,
    batch: int = 256,
    autocast: torch.dtype | None = None,
) -> list[tuple[str, ...]]:
    """Pronounce words, each as a tuple of phonemes.

    Args:
        words: lower or upper case, the letters a to z only.
        model: what pronounces them, or several that do so together; what is shipped where it is None.
        num_beams: 1 for greedy search by the first model; more for beam search, or for `joint_search` where
            there are several models, or n-grams.
        alpha: exponent of the length in the score of a hypothesis.
        batch: the most words decoded together; they are of one length.
        autocast: lower precision for the matrix products, as from `autocast_dtype`; None for float32, which
            says the same on every machine.

    Raises:
        ValueError: when a word is empty, too long or has other characters; the message names them.
    """
    words = [check_word(word) for word in words]
    pronouncer = _together(model)
    letters = cmudict.letters()
    order = sorted(range(len(words)), key=lambda i: len(words[i]))
    spoken: list[tuple[str, ...]] = [()] * len(words)
    # words of one length need no padding, and none is limited by its neighbours
    for group in (list(same) for _, same in groupby(order, key=lambda i: len(words[i]))):
        for rows in (group[begin : begin + batch] for begin in range(0, len(group), batch)):
            src = torch.tensor([[*letters.encode(words[i]), letters.eos_id] for i in rows])
            for i, said in zip(rows, _decode(pronouncer, src, num_beams, alpha, autocast), strict=True):
                spoken[i] = said
    return spoken


def _together(model: Transformer | Sequence[Transformer] | Pronouncer | None) -> Pronouncer:
    """One model, several, or what is shipped."""
    if model is None:
        return load_pronouncer()
    if isinstance(model, Pronouncer):
        return model
    return Pronouncer([model] if isinstance(model, Transformer) else list(model))


def _decode(
    pronouncer: Pronouncer, src: Tensor, num_beams: int, alpha: float, autocast: torch.dtype | None
) -> list[tuple[str, ...]]:
    """Write the phonemes of words of one length, from their letters (B, S)."""
    models, ngram = pronouncer.models, pronouncer.ngram
    first = models[0]
    src = src.to(next(first.parameters()).device)
    lower = torch.autocast(src.device.type, autocast or torch.bfloat16, enabled=autocast is not None)
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(evaluating(model))
        stack.enter_context(lower)
        if num_beams > 1 and (len(models) > 1 or ngram is not None):
            return joint_search(models, src, num_beams, alpha, ngram)
        rows = n_best(first, src, num_beams, alpha, count=1)[:, 0]
    return [phonemes_of(first).decode(row) for row in rows.tolist()]


def n_best(
    model: Transformer, src: Tensor, num_beams: int = 5, alpha: float = 0.0, count: int = 5
) -> Tensor:
    """Write words of one length: the ids of the best pronunciations of each, from front to end.

    Args:
        model: in eval mode; one that writes from the end has its rows turned round.
        src: letters, with the end.
        num_beams, alpha, count: see `n_best_search`; greedy search for one hypothesis.

    Shape:
        - src (B, S)
        - output (B, count, T), with begin and end, padded
    """
    vocabulary = phonemes_of(model)
    begin, end, pad_id = vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id
    first, last = (end, begin) if model.backwards else (begin, end)
    longest = min(src.size(1) + 10, LONGEST_WORD + 1)  # few words have more phonemes than letters
    step = TransformerStep(model, src, max_len=longest + 1)
    start = torch.full((len(src), 1), first, device=src.device)
    if num_beams == count == 1:
        ids = greedy_search(step, start, last, pad_id, longest)[:, None]
    else:
        ids, _ = n_best_search(step, start, last, pad_id, longest, num_beams, alpha, count)
    return backwards(ids.flatten(0, 1), pad_id).view_as(ids) if model.backwards else ids


def joint_search(
    models: Sequence[Transformer],
    src: Tensor,
    num_beams: int = 5,
    alpha: float = 0.0,
    ngram: JointNGram | None = None,
) -> list[tuple[str, ...]]:
    """Let several models propose pronunciations of words, and choose what all of them find likely.

    Each model proposes its best answers, from the front or from the end, as it has learned to. Every proposal
    is scored by all, with the mean of the log-probabilities; that of the n-grams is added `NGRAM_WEIGHT`
    times. The probabilities of proposals that differ in stress only are added up before the best is chosen.

    Args:
        models: in eval mode, all of one vocabulary.
        src: letters of words of one length, with the end, (B, S).
        num_beams: hypotheses kept by each search, and proposals of each.
        alpha: exponent of the length in the score of each search.
        ngram: another judge of the proposals, or None.

    Reference:
        Liu et al. 2016.
    """
    vocabulary = phonemes_of(models[0])
    begin, end, pad_id = vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id
    proposals = [n_best(model, src, num_beams, alpha, num_beams) for model in models]
    longest, count = max(ids.size(2) for ids in proposals), len(models) * num_beams
    rows = torch.cat([F.pad(ids, (0, longest - ids.size(2)), value=pad_id) for ids in proposals], dim=1)
    rows = rows.flatten(0, 1)  # (B * count, T)
    scores = torch.zeros(len(rows), device=src.device)
    for model in models:
        memory = model.encode(src).repeat_interleave(count, dim=0)
        way = backwards(rows, pad_id) if model.backwards else rows
        scores += log_probability(model, memory, way, pad_id) / len(models)
    if ngram is not None:
        scores += NGRAM_WEIGHT * ngram.log_probability(src.repeat_interleave(count, dim=0), rows)
    # others were cut off, fill up a list or hold what is no phoneme
    last = rows.gather(1, (rows != pad_id).sum(dim=1, keepdim=True) - 1)[:, 0]
    whole = (rows[:, 0] == begin) & (last == end) & (((rows == begin) | (rows == end)).sum(dim=1) == 2)
    whole |= ~whole.view(-1, count).any(dim=1).repeat_interleave(count)  # unless nothing could end
    scores = scores.masked_fill(~whole, -math.inf)
    spoken = [vocabulary.decode(row) for row in rows.tolist()]
    groups = zip(_split(spoken, count), _split(scores.tolist(), count), strict=True)
    return [_agreed(*group) for group in groups]


def log_probability(model: Transformer, memory: Tensor, tgt: Tensor, pad_id: int = 0) -> Tensor:
    """Sum the log-probabilities of each target's tokens after its first.

    Shape:
        - memory (B, S, d_model)
        - tgt (B, T)
        - output (B,)
    """
    logits = model.generator(model.decode(tgt[:, :-1], memory))
    log_probs = logits.float().log_softmax(dim=-1)  # (B, T - 1, V)
    chosen = log_probs.gather(-1, tgt[:, 1:, None])[..., 0]
    return chosen.masked_fill(tgt[:, 1:] == pad_id, 0.0).sum(dim=-1)


def _agreed(proposals: Sequence[tuple[str, ...]], scores: Sequence[float]) -> tuple[str, ...]:
    """The best of the proposals whose probabilities, added up over stress, are the highest."""
    best: dict[tuple[str, ...], float] = {}
    for proposal, score in zip(proposals, scores, strict=True):
        best[proposal] = max(score, best.get(proposal, -math.inf))  # several models may propose the same
    mass: dict[tuple[str, ...], float] = {}
    for proposal, score in best.items():
        bare = cmudict.strip_stress(proposal)
        mass[bare] = mass.get(bare, 0.0) + math.exp(score)
    heaviest = max(mass, key=mass.__getitem__)
    return max((p for p in best if cmudict.strip_stress(p) == heaviest), key=best.__getitem__)


def _split(items: Sequence, size: int) -> list:
    return [items[i : i + size] for i in range(0, len(items), size)]


def phonemes_of(model: Transformer) -> cmudict.Vocabulary:
    """Return what a pronunciation model writes: phonemes with stress marks or without."""
    return cmudict.phonemes(stress=model.generator.projection.out_features == len(cmudict.phonemes()))


def check_word(word: str) -> str:
    """Return the word in lower case, if the model can read it.

    Raises:
        ValueError: when it is empty, too long or has characters other than the letters a to z.
    """
    lower = word.lower()
    foreign = list(dict.fromkeys(c for c in lower if c not in cmudict.LETTERS))
    if foreign:
        named = ", ".join(map(repr, foreign))
        raise ValueError(f"word ({word}) must have the letters a to z only, got {named}")
    if not 0 < len(lower) <= LONGEST_WORD:
        raise ValueError(f"word ({word!r}) must have 1 to {LONGEST_WORD} letters, got {len(lower)}")
    return lower


G2P_GOALS = {
    "word error rate with stress": Goal(0.285, 0.260),
    "word error rate without stress": Goal(0.235, 0.215),
    "phoneme error rate without stress": Goal(0.060, 0.052),
}


def g2p_scores(spoken: Sequence[tuple[str, ...]], references: Sequence[metrics.Variants]) -> dict[str, float]:
    """Compute the error rates of pronunciations, with stress marks and after stripping them.

    A pronunciation is right when it is one of the listed variants.

    Raises:
        ValueError: when the two differ in length or there is no word.
    """
    bare = [cmudict.strip_stress(phonemes) for phonemes in spoken]
    bare_references = [[cmudict.strip_stress(variant) for variant in variants] for variants in references]
    return {
        "word error rate with stress": metrics.word_error_rate(spoken, references),
        "word error rate without stress": metrics.word_error_rate(bare, bare_references),
        "phoneme error rate with stress": metrics.phoneme_error_rate(spoken, references),
        "phoneme error rate without stress": metrics.phoneme_error_rate(bare, bare_references),
    }


def evaluate_g2p(
    model: Transformer | Sequence[Transformer] | Pronouncer | None = None,
    num_beams: int = 5,
    count: int | None = None,
) -> tuple[str, bool]:
    """Compare the model with g2p-en on the test words, and with the goals.

    It decodes in bfloat16 where the processor multiplies it. Progress goes to the standard error stream.

    Args:
        model: what is evaluated, see `pronounce`.
        num_beams: hypotheses kept by each search.
        count: use only so many test words, spread over the alphabet.

    Returns:
        A table, and whether every must is met.

    Raises:
        ValueError: when `count` is below 1.
    """
    from .pretrained import G2pEn

    if count is not None:
        check_size("count", count)
    split = cmudict.split_by_headword(cmudict.load_cmudict())
    words = spread(list(split.test), count or len(split.test))
    pronouncer = _together(model)
    peer, autocast = G2pEn.from_carrier(), autocast_dtype(next(pronouncer.models[0].parameters()).device)
    ours: dict[str, tuple[str, ...]] = {}
    theirs: dict[str, tuple[str, ...]] = {}
    for begin in range(0, len(words), 2048):
        part = words[begin : begin + 2048]
        ours.update(zip(part, pronounce(part, pronouncer, num_beams, 0.0, 256, autocast), strict=True))
        theirs.update(zip(part, peer.pronounce(part), strict=True))
        print(f"{len(ours):,} of {len(words):,} words pronounced", file=sys.stderr, flush=True)
    scores = [_scores_of(words, spoken, split.test) for spoken in (ours, theirs)]
    table = _table(f"{len(words):,} test words", *scores, G2P_GOALS)
    apart = cmudict.words_without_kin(words, split.train)
    if apart:
        parts = [_scores_of(apart, spoken, split.test) for spoken in (ours, theirs)]
        table += "\n\n" + _table(f"{len(apart):,} of them share no base with a training word", *parts, {})
    return table, all(scores[0][name] <= goal.must for name, goal in G2P_GOALS.items())


def _scores_of(
    words: Sequence[str], spoken: Mapping[str, tuple[str, ...]], entries: cmudict.Entries
) -> dict[str, float]:
    return g2p_scores([spoken[word] for word in words], [entries[word] for word in words])


def _table(title: str, ours: dict[str, float], theirs: dict[str, float], goals: dict[str, Goal]) -> str:
    """One line for each score: ours, the two goals where there are some, the peer's."""
    lines = [f"{title:<48}{'ours':>8}{'must':>8}{'aim':>8}{'g2p-en':>8}"]
    for name, score in ours.items():
        limits = f"{goals[name].must:8.1%}{goals[name].aim:8.1%}" if name in goals else " " * 16
        lines.append(f"{name:<48}{score:8.2%}{limits}{theirs[name]:8.2%}")
    return "\n".join(lines)
