"""How many parameters a model has, what a token costs, what memory it takes. Chapter: `parameter_count`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from .gpt import GPT, GPTConfig
from .gpt import PRESETS as GPT_PRESETS
from .runtime import check_size
from .transformer import make_model


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of an encoder-decoder Transformer: the arguments of `make_model` that decide its size.

    Raises:
        ValueError: when a size is impossible, as `make_model` would.
    """

    src_vocab: int = 37000
    tgt_vocab: int = 37000
    num_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    norm_first: bool = False
    share_embeddings: bool = True

    def __post_init__(self):
        for name in ("src_vocab", "tgt_vocab", "num_layers", "d_model", "d_ff", "num_heads"):
            check_size(name, getattr(self, name))
        if self.d_model % self.num_heads:
            raise ValueError(f"num_heads ({self.num_heads}) must divide d_model ({self.d_model})")
        if self.share_embeddings and self.src_vocab != self.tgt_vocab:
            vocabularies = f"src_vocab ({self.src_vocab}) must equal tgt_vocab ({self.tgt_vocab})"
            raise ValueError(f"{vocabularies} to share embeddings")


@dataclass(frozen=True)
class ModelShape:
    """What decides how many parameters a model of the family has; by default that of the smallest GPT-2.

    Args:
        architecture: "encoder", "decoder", or "encoder-decoder" with as many layers on each side.
        vocab_size: number of tokens; 0 for a model that reads no tokens.
        max_len: positions that a learned table holds.
        d_model: width of the residual stream.
        num_layers: layers of each stack.
        num_heads: heads of queries.
        num_kv_heads: heads of keys and values; as many as of queries where it is None.
        d_k: width of a head; `d_model / num_heads` where it is None.
        d_ff: width inside the feed-forward networks; four times `d_model` where it is None.
        gated: whether a third matrix gates the feed-forward network, as SwiGLU does.
        bias: whether projections and feed-forward networks add biases.
        norm: "layer" has a gain and a bias, "rms" a gain.
        norm_first: pre-norm, which needs one more norm after each stack.
        positions: "learned", "sinusoidal", "rotary", or "relative", a number for each bucket and head.
        buckets: buckets of relative positions.
        share_embeddings: one matrix for source, target and output; otherwise each has its own.
        output_bias: whether an output matrix of its own adds a bias.
        segments: segment embeddings, as BERT's two.
        embedding_norm: a norm after the embeddings.
        pooler: a square matrix with bias on top of the first token.
        patch_size: side of the square patches of an image, in pixels; 0 for none. A class token comes along.
        channels: colours of an image.
        classes: classes of a classification head; 0 for none.

    Raises:
        TypeError: when a size is not a whole number.
        ValueError: when a size or a choice is impossible.
    """

    architecture: str = "decoder"
    vocab_size: int = 50257
    max_len: int = 1024
    d_model: int = 768
    num_layers: int = 12
    num_heads: int = 12
    num_kv_heads: int | None = None
    d_k: int | None = None
    d_ff: int | None = None
    gated: bool = False
    bias: bool = True
    norm: str = "layer"
    norm_first: bool = True
    positions: str = "learned"
    buckets: int = 32
    share_embeddings: bool = True
    output_bias: bool = False
    segments: int = 0
    embedding_norm: bool = False
    pooler: bool = False
    patch_size: int = 0
    channels: int = 3
    classes: int = 0

    def __post_init__(self):
        for name in ("max_len", "d_model", "num_layers", "num_heads", "buckets", "channels"):
            check_size(name, getattr(self, name))
        for name in ("vocab_size", "segments", "patch_size", "classes"):
            check_size(name, getattr(self, name), minimum=0)
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} ({getattr(self, name)!r}) must be one of {', '.join(allowed)}")
        if self.d_k is None and self.d_model % self.num_heads:
            raise ValueError(f"num_heads ({self.num_heads}) must divide d_model ({self.d_model})")
        fallbacks = {
            "num_kv_heads": self.num_heads,
            "d_k": self.d_model // self.num_heads,
            "d_ff": 4 * self.d_model,
        }
        for name, value in fallbacks.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
            check_size(name, getattr(self, name))
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads ({self.num_kv_heads}) must divide num_heads ({self.num_heads})")


CHOICES = {
    "architecture": ("encoder", "decoder", "encoder-decoder"),
    "norm": ("layer", "rms"),
    "positions": ("learned", "sinusoidal", "rotary", "relative"),
}
Config = GPTConfig | TransformerConfig | ModelShape

# The two Transformers are table 3 of Vaswani et al. 2017; a ModelShape stands for models of other families.
PRESETS: dict[str, Callable[[], Config]] = {
    "transformer-base": TransformerConfig,
    "transformer-big": lambda: TransformerConfig(d_model=1024, d_ff=4096, num_heads=16),
    **{name: (lambda name=name: GPTConfig.preset(name)) for name in GPT_PRESETS},
    "bert-base": lambda: ModelShape(
        "encoder", 30522, 512, norm_first=False, segments=2, embedding_norm=True, pooler=True
    ),
    "t5-small": lambda: ModelShape(
        "encoder-decoder", 32128, 512, 512, 6, 8, bias=False, norm="rms", positions="relative"
    ),
    "vit-b16": lambda: ModelShape("encoder", 0, 14 * 14 + 1, patch_size=16, classes=1000),
    "llama-7b": lambda: ModelShape(
        vocab_size=32000,
        max_len=2048,
        d_model=4096,
        num_layers=32,
        num_heads=32,
        d_ff=11008,
        gated=True,
        bias=False,
        norm="rms",
        positions="rotary",
        share_embeddings=False,
    ),
}


@dataclass(frozen=True)
class Term:
    """One line of the sum: what is counted, as which product, and how many parameters that makes."""

    name: str
    formula: str
    count: int


def preset(name: str) -> Config:
    """Return the shape of a published model by name.

    Raises:
        ValueError: when the name is unknown.
    """
    if name not in PRESETS:
        raise ValueError(f"name ({name!r}) must be one of {', '.join(PRESETS)}")
    return PRESETS[name]()


def parameter_terms(config: Config) -> list[Term]:
    """Count every parameter of a shape, by the part it belongs to.

    With N layers, width d, feed-forward width f, vocabulary V and context L: an attention has four d × d
    matrices and four biases, a feed-forward network two matrices of d × f and biases of f and d, a norm a
    gain and a bias of d each. A matrix that serves in two places counts once.

    Raises:
        TypeError: when `config` is not the shape of a model of this package.
    """
    if isinstance(config, GPTConfig):
        return _gpt_terms(config)
    if isinstance(config, TransformerConfig):
        return _transformer_terms(config)
    return _shape_terms(as_shape(config))


def as_shape(config: Config) -> ModelShape:
    """Say the shape of any model in the words of `ModelShape`; the count stays the same.

    Raises:
        TypeError: when `config` is not the shape of a model of this package.
        ValueError: when source and target have vocabularies of different size, which a `ModelShape` lacks.
    """
    if isinstance(config, ModelShape):
        return config
    sizes = ("d_model", "num_layers", "num_heads", "d_ff")
    if isinstance(config, GPTConfig):
        sizes += ("vocab_size", "max_len")
        return ModelShape(**{name: getattr(config, name) for name in sizes})
    if not isinstance(config, TransformerConfig):
        kinds = "a GPTConfig, a TransformerConfig or a ModelShape"
        raise TypeError(f"config must be {kinds}, got {type(config).__name__}")
    if config.src_vocab != config.tgt_vocab:
        raise ValueError(f"src_vocab ({config.src_vocab}) must equal tgt_vocab ({config.tgt_vocab})")
    return ModelShape(
        "encoder-decoder",
        vocab_size=config.src_vocab,
        norm_first=config.norm_first,
        positions="sinusoidal",
        share_embeddings=config.share_embeddings,
        output_bias=True,
        **{name: getattr(config, name) for name in sizes},
    )


def parameter_count(config: Config) -> int:
    """Return the exact number of parameters of a shape, without building it."""
    return sum(term.count for term in parameter_terms(config))


def build(config: Config) -> nn.Module:
    """Build the model of a shape on the meta device, where weights have a shape and no memory.

    A `ModelShape` names no class; what comes back holds torch's layers of that shape, for counting alone.
    """
    with torch.device("meta"):
        if isinstance(config, GPTConfig):
            return GPT(config)
        if isinstance(config, ModelShape):
            return nn.ModuleList(_layers(config))
        return make_model(
            config.src_vocab,
            config.tgt_vocab,
            config.num_layers,
            config.d_model,
            config.d_ff,
            config.num_heads,
            norm_first=config.norm_first,
            share_embeddings=config.share_embeddings,
        )


def count_model(model: nn.Module) -> int:
    """Count the parameters that a model really has, each shared one once."""
    return sum(parameter.numel() for parameter in model.parameters())


def rough_terms(
    num_layers: int = 12, d_model: int = 768, num_heads: int = 12, vocab_size: int = 50_000
) -> list[Term]:
    """Count as rules of thumb do: matrices and norm gains, without biases, positions and the last norm.

    The number of heads is checked and changes nothing: heads share the width.

    Raises:
        ValueError: when a size is impossible.
    """
    GPTConfig(vocab_size=vocab_size, d_model=d_model, num_layers=num_layers, num_heads=num_heads)
    N, d, V = num_layers, d_model, vocab_size
    return [
        Term("embeddings", "V · d", V * d),
        Term("attention", "N · 4d²", N * 4 * d * d),
        Term("feed-forward", "N · 8d²", N * 8 * d * d),
        Term("norms", "N · 2d", N * 2 * d),
    ]


def flops_per_token(config: GPTConfig, context: int | None = None) -> dict[str, int]:
    """Count the multiplications and additions of a forward pass, for one token of a sequence.

    A matrix product takes two operations for each weight. On top, each token is compared with `context` keys
    and averages as many values: 4 · context · d in each layer. Training takes three times as much: the
    backward pass has two products for each one of the forward pass.

    Args:
        config: the shape of the model.
        context: keys that each token is compared with; the model's context where it is None.

    Returns:
        The operations of the projections, of attention itself, of the feed-forward networks and the output.

    Reference:
        Kaplan et al. 2020, section 2.1.
    """
    context = config.max_len if context is None else context
    check_size("context", context)
    N, d, f = config.num_layers, config.d_model, config.d_ff
    return {
        "projections": N * 2 * 4 * d * d,
        "attention": N * 4 * context * d,
        "feed-forward": N * 2 * 2 * d * f,
        "output": 2 * d * config.vocab_size,
    }


def memory_bytes(parameters: int, bytes_per_number: int = 4) -> dict[str, int]:
    """Return the bytes that training keeps for each kind of number, without activations.

    Adam keeps two running means for each parameter, always in float32.

    Raises:
        ValueError: when a number is below 1.
    """
    check_size("parameters", parameters)
    check_size("bytes_per_number", bytes_per_number)
    return {
        "weights": parameters * bytes_per_number,
        "gradients": parameters * bytes_per_number,
        "Adam": parameters * 8,
    }


def cache_bytes(
    config: Config, tokens: int, batch: int = 1, bytes_per_number: int = 2, source_tokens: int = 0
) -> int:
    """Return the bytes of a key/value cache: a key and a value for each layer, token and key/value head.

    An encoder generates nothing and keeps no cache.

    Args:
        config: the shape of the model.
        tokens: tokens so far.
        batch: sequences at once.
        bytes_per_number: 4 for float32, 2 for bfloat16.
        source_tokens: tokens of the source, whose keys and values an encoder-decoder keeps as well.

    Raises:
        ValueError: when a number is too small.
    """
    check_size("tokens", tokens, minimum=0)
    check_size("batch", batch)
    check_size("bytes_per_number", bytes_per_number)
    check_size("source_tokens", source_tokens, minimum=0)
    shape = as_shape(config)
    if shape.architecture == "encoder":
        return 0
    kept = tokens + (source_tokens if shape.architecture == "encoder-decoder" else 0)
    return 2 * shape.num_layers * shape.num_kv_heads * shape.d_k * kept * batch * bytes_per_number


def format_table(config: Config) -> str:
    """Write the terms, their formulas and shares, and the total, as a text table."""
    terms = parameter_terms(config)
    total = sum(term.count for term in terms)
    rows = [("part", "formula", "parameters", "share")]
    rows += [(t.name, t.formula, f"{t.count:,}", f"{t.count / total:.1%}") for t in terms]
    rows.append(("total", "", f"{total:,}", "100.0%"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip()
        for a, b, c, d in rows
    ]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def _gpt_terms(config: GPTConfig) -> list[Term]:
    V, L, d, f, N = config.vocab_size, config.max_len, config.d_model, config.d_ff, config.num_layers
    return [
        Term("token embeddings", "V · d", V * d),
        Term("position embeddings", "L · d", L * d),
        Term("attention", "N · (4d² + 4d)", N * (4 * d * d + 4 * d)),
        Term("feed-forward", "N · (2df + f + d)", N * (2 * d * f + f + d)),
        Term("norms", "N · 4d", N * 4 * d),
        Term("last norm", "2d", 2 * d),
        Term("output", "tied to the token embeddings", 0),
    ]


def _transformer_terms(config: TransformerConfig) -> list[Term]:
    S, V, d, f, N = config.src_vocab, config.tgt_vocab, config.d_model, config.d_ff, config.num_layers
    tied = config.share_embeddings
    return [
        Term("source embeddings", "S · d", S * d),
        Term("target embeddings", "tied" if tied else "V · d", 0 if tied else V * d),
        Term("encoder attention", "N · (4d² + 4d)", N * (4 * d * d + 4 * d)),
        Term("decoder attention", "N · 2(4d² + 4d)", N * 2 * (4 * d * d + 4 * d)),
        Term("feed-forward", "2N · (2df + f + d)", 2 * N * (2 * d * f + f + d)),
        Term("norms", "N · (4d + 6d)", N * 10 * d),
        Term("last norms", "4d" if config.norm_first else "none", 4 * d if config.norm_first else 0),
        Term("output", "tied" if tied else "V · d + V", 0 if tied else V * d + V),
    ]


def _shape_terms(s: ModelShape) -> list[Term]:
    V, L, d, f, N = s.vocab_size, s.max_len, s.d_model, s.d_ff, s.num_layers
    H, G, k, R = s.num_heads, s.num_kv_heads, s.d_k, s.buckets
    both = s.architecture == "encoder-decoder"
    stacks, two = (2, "2") if both else (1, "")
    tables = 2 if both and not s.share_embeddings else 1
    attention = 2 * d * H * k + 2 * d * G * k + ((H + 2 * G) * k + d if s.bias else 0)
    projections = "2dHk + 2dGk + Hk + 2Gk + d" if s.bias else "2dHk + 2dGk"
    wide = 2 if s.gated else 1  # matrices up
    feed_forward = (wide + 1) * d * f + (wide * f + d if s.bias else 0)
    matrices = f"{wide + 1}df + {'2f' if s.gated else 'f'} + d" if s.bias else f"{wide + 1}df"
    size = 2 if s.norm == "layer" else 1  # numbers of a norm for each feature
    norms = (5 if both else 2) * size
    learned, relative = s.positions == "learned", s.positions == "relative"
    output = 0 if s.share_embeddings else V * d + (V if s.output_bias else 0)
    terms = [
        Term("token embeddings", "2V · d" if tables == 2 else "V · d", tables * V * d),
        Term(
            "position embeddings",
            f"{two}L · d" if learned else f"{two}R · H" if relative else "none",
            stacks * (L * d if learned else R * H if relative else 0),
        ),
        Term("segment embeddings", f"{s.segments} · d", s.segments * d),
        Term("patches, class token", "(p²c + 2) · d", (s.patch_size**2 * s.channels + 2) * d),
        Term("embedding norm", f"{size}d", size * d),
        Term("attention", f"{two}N · ({projections})", stacks * N * attention),
        Term("cross-attention", f"N · ({projections})", N * attention),
        Term("feed-forward", f"{two}N · ({matrices})", stacks * N * feed_forward),
        Term("norms", f"N · {norms}d", N * norms * d),
        Term("last norms", f"{stacks * size}d" if s.norm_first else "none", s.norm_first * stacks * size * d),
        Term("pooler", "d² + d", d * d + d),
        Term("classes", "C · d + C", s.classes * d + s.classes),
        Term("output", "tied" if s.share_embeddings else "V · d + V" if s.output_bias else "V · d", output),
    ]
    absent = {
        "segment embeddings": not s.segments,
        "patches, class token": not s.patch_size,
        "embedding norm": not s.embedding_norm,
        "cross-attention": not both,
        "pooler": not s.pooler,
        "classes": not s.classes,
    }
    return [term for term in terms if not absent.get(term.name)]


def _layers(s: ModelShape) -> Iterator[nn.Module]:
    """Make every layer that a shape has, with nothing in between."""
    d, heads, groups = s.d_model, s.num_heads * s.d_k, s.num_kv_heads * s.d_k
    both = s.architecture == "encoder-decoder"
    norm = nn.LayerNorm if s.norm == "layer" else nn.RMSNorm
    for _ in range(2 if both and not s.share_embeddings else 1):
        yield nn.Embedding(s.vocab_size, d)
    for _ in range(2 if both else 1):
        if s.positions == "learned":
            yield nn.Embedding(s.max_len, d)
        if s.positions == "relative":
            yield nn.Embedding(s.buckets, s.num_heads)
        if s.norm_first:
            yield norm(d)
    yield nn.Embedding(s.segments, d)
    if s.embedding_norm:
        yield norm(d)
    if s.patch_size:
        yield nn.Conv2d(s.channels, d, s.patch_size, s.patch_size)
        yield nn.Embedding(1, d)  # the class token
    attentions = 3 if both else 1
    for _ in range(s.num_layers * attentions):
        yield from (nn.Linear(d, heads, s.bias), nn.Linear(heads, d, s.bias))
        yield from (nn.Linear(d, groups, s.bias) for _ in range(2))
    for _ in range(s.num_layers * (2 if both else 1)):
        yield from (nn.Linear(d, s.d_ff, s.bias) for _ in range(2 if s.gated else 1))
        yield nn.Linear(s.d_ff, d, s.bias)
    for _ in range(s.num_layers * (5 if both else 2)):
        yield norm(d)
    if s.pooler:
        yield nn.Linear(d, d)
    if s.classes:
        yield nn.Linear(d, s.classes)
    if not s.share_embeddings:
        yield nn.Linear(d, s.vocab_size, s.output_bias)
