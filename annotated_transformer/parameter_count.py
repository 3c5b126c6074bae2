"""How many parameters a model has, what a token costs, what memory it takes. Chapter: `parameter_count`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from .gpt import GPT, GPTConfig
from .gpt import PRESETS as GPT_PRESETS
from .runtime import check_size
from .transformer import Transformer, make_model


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


Config = GPTConfig | TransformerConfig

# The presets of every model in the package; the two Transformers are table 3 of Vaswani et al. 2017.
PRESETS: dict[str, Callable[[], Config]] = {
    "transformer-base": TransformerConfig,
    "transformer-big": lambda: TransformerConfig(d_model=1024, d_ff=4096, num_heads=16),
    **{name: (lambda name=name: GPTConfig.preset(name)) for name in GPT_PRESETS},
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
    raise TypeError(f"config must be a GPTConfig or a TransformerConfig, got {type(config).__name__}")


def parameter_count(config: Config) -> int:
    """Return the exact number of parameters of a shape, without building it."""
    return sum(term.count for term in parameter_terms(config))


def build(config: Config) -> GPT | Transformer:
    """Build the model of a shape on the meta device, where weights have a shape and no memory."""
    with torch.device("meta"):
        if isinstance(config, GPTConfig):
            return GPT(config)
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


def cache_bytes(config: GPTConfig, tokens: int, batch: int = 1, bytes_per_number: int = 2) -> int:
    """Return the bytes of a key/value cache: two vectors of width d for each layer and token."""
    check_size("tokens", tokens, minimum=0)
    check_size("batch", batch)
    check_size("bytes_per_number", bytes_per_number)
    return 2 * config.num_layers * config.d_model * tokens * batch * bytes_per_number


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
