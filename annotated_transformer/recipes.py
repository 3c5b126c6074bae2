"""Recipes: how the shipped models were trained, and what they are used for.

A recipe is a frozen set of numbers and the functions that turn it into a model, batches and a training run.
`python -m annotated_transformer train NAME` runs it; the card beside each checkpoint repeats it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from .attention import padding_mask
from .data import cmudict
from .decoding import TransformerStep, beam_search, greedy_search
from .embeddings import Embeddings
from .encoder_decoder import Decoder, DecoderLayer, Encoder, EncoderLayer
from .feed_forward import PositionwiseFeedForward
from .metrics import word_error_rate
from .multi_head_attention import MultiHeadAttention
from .positional_encoding import PositionalEncoding
from .residual import residuals
from .runtime import default_device, seed_everything
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
    pad,
)
from .transformer import Generator, InputEmbedding, Transformer

G2P_CHECKPOINT = Path(__file__).parent / "checkpoints" / "g2p.safetensors"
LONGEST_WORD = 48  # letters; the longest in the dictionary has 28

Pairs = list[tuple[list[int], list[int]]]


class ByteDropout(nn.Dropout):
    """Drop out like `nn.Dropout`, from eight bits of randomness an entry instead of a number each.

    One 64-bit random number decides eight entries, which takes a third of the time on a CPU. The probability
    is rounded to a multiple of 1/256; what is kept is scaled by the exact inverse.
    """

    def forward(self, x: Tensor) -> Tensor:
        dropped = round(self.p * 256)
        if not self.training or dropped == 0 or x.numel() == 0:
            return x
        draws = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        kept = draws.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
        return x * kept.to(x.dtype).mul_(256 / max(256 - dropped, 1))


@dataclass(frozen=True)
class G2PRecipe:
    """The model that reads a word's letters and writes its phonemes, and how it is trained.

    Args:
        d_model, num_heads, d_ff, encoder_layers, decoder_layers: the shape of the pre-norm Transformer.
        dropout: rate on the embeddings and on what each sublayer adds to the residual stream.
        smoothing: label smoothing in torch's form.
        max_tokens: bound of rows times length of a batch.
        peak: highest learning rate.
        warmup: updates until it is reached.
        steps: updates in all; the rate falls in a line to 0.
        weight_decay: of the matrices.
        snapshots: weights averaged at the end.
        snapshot_every: updates between two of them.
        seed: of everything random.
    """

    d_model: int = 256
    num_heads: int = 4
    d_ff: int = 1024
    encoder_layers: int = 3
    decoder_layers: int = 3
    dropout: float = 0.1
    smoothing: float = 0.1
    max_tokens: int = 2500
    peak: float = 1.5e-3
    warmup: int = 500
    steps: int = 10_000
    weight_decay: float = 0.01
    snapshots: int = 8
    snapshot_every: int = 200
    seed: int = 0


def g2p_model(recipe: G2PRecipe = G2PRecipe(), stress: bool = True) -> Transformer:
    """Assemble the recipe's Transformer, from letters to phonemes, with fresh weights."""
    d, rate = recipe.d_model, recipe.dropout

    def attention() -> MultiHeadAttention:
        return MultiHeadAttention(d, recipe.num_heads)

    def feed_forward() -> PositionwiseFeedForward:
        return PositionwiseFeedForward(d, recipe.d_ff, dropout=0.0)

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
        for name, part in module.named_children():
            if type(part) is nn.Dropout:
                setattr(module, name, ByteDropout(part.p))
    return model


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
    """Make the trainer of the recipe, in bfloat16 where the device multiplies it."""
    seed_everything(recipe.seed)
    device = device or default_device()
    model = g2p_model(recipe, stress).to(device)
    return Trainer(
        model,
        SequenceLoss(pad_id=0, smoothing=recipe.smoothing),
        lambda epoch: g2p_batches(pairs, recipe.max_tokens, recipe.seed, epoch),
        lambda step: linear(step, recipe.peak, recipe.warmup, recipe.steps),
        torch.optim.AdamW(decay_groups(model, recipe.weight_decay), lr=0.0, betas=(0.9, 0.98), fused=True),
        autocast=autocast_dtype(device),
    )


def train_g2p(
    folder: str | os.PathLike,
    recipe: G2PRecipe = G2PRecipe(),
    steps: int | None = None,
    resume: bool = False,
    save_every: int = 250,
    check_every: int = 1000,
) -> Path:
    """Train the pronunciation model and write its averaged weights to `<folder>/g2p.safetensors`.

    Progress and the error on 500 development words go to the standard error stream. The training state is
    saved to `<folder>/state.pt` every `save_every` updates.

    Args:
        folder: where everything is written.
        recipe: what is trained.
        steps: stop after so many updates in all; the schedule stays that of the recipe.
        resume: continue from the folder's training state.

    Raises:
        FileNotFoundError: when there is nothing to resume.
        ValueError: when `steps` is negative or above the recipe's, or the training state is of another model.
    """
    folder = Path(folder)
    last = recipe.steps if steps is None else steps
    if not 0 <= last <= recipe.steps:
        raise ValueError(f"steps ({steps}) must be from 0 to the recipe's {recipe.steps}")
    split = cmudict.split_by_headword(cmudict.load_cmudict())
    trainer = g2p_trainer(g2p_pairs(split.train), recipe)
    if resume:
        trainer.load(folder / "state.pt")
    words = list(split.dev)[:: len(split.dev) // 500]
    progress = Progress(last)
    counts = [last - i * recipe.snapshot_every for i in range(recipe.snapshots)]
    snapshots = {count: folder / f"weights-{count:06}.safetensors" for count in counts if count > 0}

    def after_step(trainer: Trainer) -> None:
        progress(trainer)
        if trainer.step % save_every == 0 or trainer.step == last:
            trainer.save(folder / "state.pt")
        if trainer.step in snapshots:
            save_weights(trainer.model, snapshots[trainer.step], recipe)
        if trainer.step % check_every == 0:
            spoken = pronounce(words, trainer.model, num_beams=1)
            wrong = word_error_rate(spoken, [split.dev[word] for word in words])
            line = f"step {trainer.step:,}: {wrong:.1%} of {len(words)} development words wrong"
            print(line, file=sys.stderr, flush=True)

    trainer.run(max(last - trainer.step, 0), after_step)
    written = [read_weights(path)[0] for path in snapshots.values() if path.exists()]
    if written:
        trainer.model.load_state_dict(average_weights(written))
    path = folder / "g2p.safetensors"
    save_weights(trainer.model, path, recipe, torch.bfloat16)
    return path


def save_weights(
    model: nn.Module, path: str | os.PathLike, recipe: G2PRecipe, dtype: torch.dtype | None = None
) -> None:
    """Write weights as safetensors with the recipe in the header, complete or not at all.

    Raises:
        OSError: when the file cannot be written.
    """
    from safetensors.torch import save

    weights = {name: weight.to("cpu", dtype).contiguous() for name, weight in model.state_dict().items()}
    header = {"format": "pt", "task": "g2p"} | {name: str(value) for name, value in asdict(recipe).items()}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".writing")
    try:
        with open(temporary, "wb") as file:
            file.write(save(weights, header))
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


def load_g2p(path: str | os.PathLike = G2P_CHECKPOINT) -> Transformer:
    """Load the trained pronunciation model, in float32 and in eval mode.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is truncated, of another task or of another vocabulary.
    """
    weights, header = read_weights(path)
    if header.get("task") != "g2p":
        raise ValueError(f"path ({path}) must be a checkpoint of the task g2p, got {header.get('task')}")
    kinds = {field: type(value) for field, value in asdict(G2PRecipe()).items()}
    recipe = G2PRecipe(**{name: kinds[name](value) for name, value in header.items() if name in kinds})
    model = g2p_model(recipe)
    try:
        model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    except RuntimeError as error:
        raise ValueError(f"path ({path}) must fit its own recipe and the vocabularies: {error}") from error
    return model.eval()


def pronounce(
    words: Iterable[str], model: Transformer | None = None, num_beams: int = 5, batch: int = 256
) -> list[tuple[str, ...]]:
    """Pronounce words, each as a tuple of phonemes.

    Args:
        words: lower or upper case, the letters a to z only.
        model: what pronounces them; the shipped one where it is None.
        num_beams: hypotheses kept by beam search; 1 for greedy search.
        batch: words decoded together, ordered by length.

    Raises:
        ValueError: when a word is empty, too long or has other characters; the message names them.
    """
    words = [check_word(word) for word in words]
    model = load_g2p() if model is None else model
    letters = cmudict.letters()
    phonemes = cmudict.phonemes(stress=model.generator.projection.out_features == len(cmudict.phonemes()))
    order = sorted(range(len(words)), key=lambda i: len(words[i]))
    spoken: list[tuple[str, ...]] = [()] * len(words)
    for begin in range(0, len(order), batch):
        rows = order[begin : begin + batch]
        src = pad([[*letters.encode(words[i]), letters.eos_id] for i in rows], letters.pad_id)
        for i, ids in zip(rows, _decode(model, src, num_beams), strict=True):
            spoken[i] = phonemes.decode(ids)
    return spoken


def _decode(model: Transformer, src: Tensor, num_beams: int) -> Sequence[Tensor]:
    """Write the phonemes of a batch of words: (B, S) -> (B, T), on the CPU."""
    src = src.to(next(model.parameters()).device)
    longest = min(src.size(1) + 10, LONGEST_WORD + 1)  # few words have more phonemes than letters
    start = torch.full((len(src), 1), cmudict.Vocabulary.bos_id, device=src.device)
    ends = (cmudict.Vocabulary.eos_id, cmudict.Vocabulary.pad_id)
    with evaluating(model):
        step = TransformerStep(model, src, padding_mask(src, 0), max_len=LONGEST_WORD + 2)
        if num_beams == 1:
            return greedy_search(step, start, *ends, longest).cpu()
        return beam_search(step, start, *ends, longest, num_beams)[0].cpu()


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
