"""GPT: a decoder without an encoder, trained to predict the next token. Chapter: `gpt`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import causal_mask
from .decoding import KVCache
from .embeddings import check_ids
from .encoder_decoder import Encoder, EncoderLayer
from .feed_forward import PositionwiseFeedForward, check_activation
from .multi_head_attention import MultiHeadAttention
from .residual import residuals
from .runtime import check_dropout, check_size
from .transformer import Generator

PRESETS = {
    "gpt2": {"d_model": 768, "num_layers": 12, "num_heads": 12},
    "gpt2-medium": {"d_model": 1024, "num_layers": 24, "num_heads": 16},
    "gpt2-large": {"d_model": 1280, "num_layers": 36, "num_heads": 20},
    "gpt2-xl": {"d_model": 1600, "num_layers": 48, "num_heads": 25},
}


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT; the defaults are those of the smallest GPT-2.

    Args:
        vocab_size: number of tokens V.
        max_len: the context, the most tokens the model sees at once.
        d_model: width of the residual stream.
        num_layers: number of layers.
        num_heads: heads of each attention; must divide `d_model`.
        d_ff: width inside the feed-forward networks; four times `d_model` where it is None.
        dropout: the rate on embeddings and on what each sublayer adds.
        attention_dropout: the rate on attention weights; `dropout` where it is None.
        activation: the bend of the feed-forward networks, one of `feed_forward.ACTIVATIONS`. GPT-2 has the
            tanh form of GELU; the exact form, "gelu", is several times as quick in bfloat16 on a CPU.

    Raises:
        TypeError: when a size is not a whole number.
        ValueError: when a size or a rate is impossible, or the activation unknown.

    Reference:
        Radford et al. 2019.
    """

    vocab_size: int = 50257
    max_len: int = 1024
    d_model: int = 768
    num_layers: int = 12
    num_heads: int = 12
    d_ff: int | None = None
    dropout: float = 0.1
    attention_dropout: float | None = None
    activation: str = "gelu_tanh"

    def __post_init__(self):
        if self.d_ff is None and isinstance(self.d_model, int):
            object.__setattr__(self, "d_ff", 4 * self.d_model)
        if self.attention_dropout is None:
            object.__setattr__(self, "attention_dropout", self.dropout)
        for name in ("vocab_size", "max_len", "d_model", "num_layers", "num_heads", "d_ff"):
            check_size(name, getattr(self, name))
        check_dropout(self.dropout)
        check_dropout(self.attention_dropout)
        check_activation(self.activation)
        if self.d_model % self.num_heads:
            raise ValueError(f"num_heads ({self.num_heads}) must divide d_model ({self.d_model})")

    @classmethod
    def preset(cls, name: str, **changes) -> GPTConfig:
        """Return a published size by name: gpt2, gpt2-medium, gpt2-large or gpt2-xl.

        Raises:
            ValueError: when the name is unknown.
        """
        if name not in PRESETS:
            raise ValueError(f"name ({name!r}) must be one of {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})


def padded_positions(keep: Tensor) -> Tensor:
    """Count the real tokens before each token: its position, wherever the padding is.

    Shape:
        - keep (B, T), boolean, True = real token
        - output (B, T)
    """
    return (keep.cumsum(dim=1) - 1).clamp(min=0)


def next_token_loss(logits: Tensor, ids: Tensor, keep: Tensor | None = None) -> Tensor:
    r"""Average how surprised the model is by each next token.

    .. math:: L = -\frac{1}{N} \sum_t \log P(x_{t+1} \mid x_{\le t})

    The shift by one happens here, and only here: logits and ids both come unshifted. The last position has
    no target, and padding is none.

    Shape:
        - logits (B, T, V)
        - ids (B, T)
        - keep (B, T), boolean, True = real token
        - output ()

    Raises:
        ValueError: when the shapes do not fit, or there is no next token to predict.

    Reference:
        Radford et al. 2018, section 3.1.
    """
    for name, got in (("logits", logits[..., 0]), ("keep", keep)):
        if got is not None and got.shape != ids.shape:
            raise ValueError(f"{name} (B, T = {tuple(got.shape)}) must fit ids {tuple(ids.shape)}")
    targets = ids[:, 1:]
    if keep is not None:
        targets = targets.masked_fill(~(keep[:, 1:] & keep[:, :-1]), -100)
    if not bool((targets != -100).any()):
        raise ValueError(f"ids (shape {tuple(ids.shape)}) must hold a token with a next token, got none")
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets.flatten(), ignore_index=-100)


class GPT(nn.Module):
    """Predict each next token from the tokens before it.

    A layer is the encoder's: self-attention and feed-forward, pre-norm. What makes it a decoder is the causal
    mask. Positions are learned, and the output reads the token embeddings: one matrix serves both.

    Args:
        config: the shape of the model.

    Shape:
        - ids (B, T)
        - keep (B, T), boolean, True = real token; with a cache (B, length), all tokens so far
        - positions (B or 1, T)
        - output (B, T, V)

    Raises:
        TypeError: when ids are not whole numbers or `keep` is not boolean.
        ValueError: when an id or a position is outside its table, the sequence longer than the context,
            `keep` or `positions` of another shape, or `cache` not one for each layer.

    Reference:
        Radford et al. 2018 and 2019.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        d_model, dropout = config.d_model, config.dropout
        self.tokens = nn.Embedding(config.vocab_size, d_model)
        self.positions = nn.Embedding(config.max_len, d_model)
        self.dropout = nn.Dropout(dropout)
        self.decoder = Encoder(
            [
                EncoderLayer(
                    MultiHeadAttention(d_model, config.num_heads, config.attention_dropout),
                    PositionwiseFeedForward(d_model, config.d_ff, 0.0, config.activation),
                    residuals(2, d_model, dropout, norm_first=True),
                )
                for _ in range(config.num_layers)
            ],
            norm=nn.LayerNorm(d_model),
        )
        self.generator = Generator(d_model, config.vocab_size, bias=False)
        self.generator.projection.weight = self.tokens.weight
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw weights with deviation 0.02, those that write to the residual stream with 0.02/√(2 · layers).

        Each layer adds twice to the stream; the smaller deviation keeps its variance from growing with depth.
        """
        deep = 0.02 / (2 * self.config.num_layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                writes = name.endswith(("output_projection.weight", "narrow.weight"))
                nn.init.normal_(parameter, std=deep if writes else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self,
        ids: Tensor,
        keep: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Sequence[KVCache] | None = None,
    ) -> Tensor:
        """Return the logits of the token after each position.

        Args:
            ids: token ids; with a cache only the newest.
            keep: real tokens; None when nothing is padding. Padding may stand on either side.
            positions: where each token stands; counted from `keep` or the cache where None.
            cache: one `KVCache` for each layer, as `new_cache` makes them.
        """
        N = len(self.decoder.layers)
        if cache is not None and len(cache) != N:
            raise ValueError(f"cache ({len(cache)}) must hold one for each layer ({N})")
        past = 0 if cache is None else cache[0].length
        x = self.embed(ids, past, keep, positions)
        mask = self.mask(ids, past, keep)
        for i, layer in enumerate(self.decoder.layers):
            x = layer(x, mask) if cache is None else layer(x, mask, cache[i])
        return self.generator(self.decoder.norm(x))

    def embed(
        self, ids: Tensor, past: int = 0, keep: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Add the vector of each token and that of its position: (B, T) -> (B, T, d_model)."""
        if ids.dim() != 2:
            raise ValueError(f"ids must have two dimensions (B, T), got {tuple(ids.shape)}")
        T = ids.size(1)
        if past == 0:
            check_ids(ids, self.config.vocab_size)
        if keep is not None and keep.shape != (ids.size(0), past + T):
            raise ValueError(
                f"keep (shape {tuple(keep.shape)}) must be {(ids.size(0), past + T)}, as ids say"
            )
        if positions is None:
            if past + T > self.config.max_len:
                raise ValueError(
                    f"sequence length ({past + T}) must not exceed max_len ({self.config.max_len})"
                )
            if keep is None:
                positions = torch.arange(past, past + T, device=ids.device)[None]  # (1, T)
            else:
                positions = padded_positions(keep)[:, past:]  # (B, T)
        else:
            check_ids(positions, self.config.max_len, "positions")
            if positions.shape not in ((ids.size(0), T), (1, T)):
                raise ValueError(
                    f"positions (shape {tuple(positions.shape)}) must be {(ids.size(0), T)} or {(1, T)}"
                )
        return self.dropout(self.tokens(ids) + self.positions(positions))

    @staticmethod
    def mask(ids: Tensor, past: int, keep: Tensor | None) -> Tensor | None:
        """Hide the future and the padding: (B or 1, 1, T, past + T), or None where nothing is hidden."""
        T = ids.size(1)
        if keep is not None and keep.dtype != torch.bool:
            raise TypeError(f"keep must be a boolean tensor (True = real token), got {keep.dtype}")
        if T == 1:
            return None if keep is None else keep[:, None, None, :]
        causal = causal_mask(T, past + T, device=ids.device)
        return causal if keep is None else causal & keep[:, None, None, :]

    def new_cache(self, max_len: int | None = None) -> list[KVCache]:
        """Make an empty cache for each layer, for up to `max_len` tokens (the context where None)."""
        max_len = self.config.max_len if max_len is None else max_len
        return [KVCache(max_len) for _ in self.decoder.layers]

    @classmethod
    def from_state_dict(cls, config: GPTConfig, state: Mapping[str, Tensor]) -> GPT:
        """Build a model from weights in the naming of GPT-2's published files.

        Those store matrices as (in, out), the transpose of `nn.Linear`, and query, key and value as one. The
        output matrix may be missing: it is the token embedding. Stored masks are skipped.

        Args:
            config: the shape of the weights.
            state: tensors by name, with or without the prefix `transformer.`.

        Raises:
            ValueError: when a name is missing or unknown, a shape does not fit, or the output matrix differs
                from the token embedding. The message lists the names.
        """
        model = cls(config)
        state = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
        head = state.pop("lm_head.weight", None)
        if head is not None and not torch.equal(head, state.get("wte.weight", head)):
            raise ValueError(
                "lm_head.weight must equal wte.weight: the output is tied to the token embedding"
            )
        state = {
            name: t for name, t in state.items() if not re.fullmatch(r"h\.\d+\.attn\.(masked_)?bias", name)
        }
        targets = _published_names(model)
        missing, unknown = sorted(targets.keys() - state.keys()), sorted(state.keys() - targets.keys())
        if missing or unknown:
            raise ValueError(
                f"state must have the names of GPT-2, got missing {missing} and unknown {unknown}"
            )
        with torch.no_grad():
            for name, parameters in targets.items():
                tensor, turned = state[name], ""
                if tensor.dim() == 2 and name.startswith("h."):
                    tensor, turned = tensor.t(), ", as (out, in)"  # the file has (in, out)
                shape = (sum(p.size(0) for p in parameters), *parameters[0].shape[1:])
                if tensor.shape != shape:
                    raise ValueError(f"{name} (shape {tuple(tensor.shape)}) must be {shape}{turned}")
                for parameter, part in zip(parameters, tensor.chunk(len(parameters)), strict=True):
                    parameter.copy_(part)
        return model

    @classmethod
    def from_pretrained(cls, name: str = "gpt2") -> GPT:
        """Download published GPT-2 weights by name (0.5 to 6 GB, once) and load them.

        Raises:
            ValueError: when the name is unknown.
            ConnectionError: when there is no network and the weights are not in the cache.
        """
        config = GPTConfig.preset(name)
        from .pretrained import download_gpt2

        return cls.from_state_dict(config, download_gpt2(name))


def _published_names(model: GPT) -> dict[str, list[nn.Parameter]]:
    """Map each name in a GPT-2 file to our parameters, in the order in which the file joins them."""
    names = {"wte.weight": [model.tokens.weight], "wpe.weight": [model.positions.weight]}
    modules = {"ln_f": [model.decoder.norm]}
    for i, layer in enumerate(model.decoder.layers):
        attention, ff = layer.self_attention, layer.feed_forward
        modules[f"h.{i}.ln_1"] = [layer.residuals[0].norm]
        modules[f"h.{i}.attn.c_attn"] = [
            attention.query_projection,
            attention.key_projection,
            attention.value_projection,
        ]
        modules[f"h.{i}.attn.c_proj"] = [attention.output_projection]
        modules[f"h.{i}.ln_2"] = [layer.residuals[1].norm]
        modules[f"h.{i}.mlp.c_fc"] = [ff.widen]
        modules[f"h.{i}.mlp.c_proj"] = [ff.narrow]
    for name, parts in modules.items():
        for kind in ("weight", "bias"):
            names[f"{name}.{kind}"] = [getattr(part, kind) for part in parts]
    return names
