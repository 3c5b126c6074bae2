"""Layers and stacks of the encoder and the decoder. Chapter: `encoder_decoder`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .feed_forward import PositionwiseFeedForward
from .multi_head_attention import Cache, MultiHeadAttention
from .residual import SublayerConnection, residuals


class LayerCache(Protocol):
    """What a decoder layer keeps between steps of decoding."""

    self_attention: Cache
    memory: tuple[Tensor, Tensor]  # keys and values of the encoder's output, each (B, H, S, D)


class EncoderLayer(nn.Module):
    """Mix the positions by self-attention, then transform each position, each step inside a residual.

    Args:
        self_attention: called as (query, key, value, mask).
        feed_forward: called on each position.
        residuals: two `SublayerConnection` modules, in the order of use.

    Shape:
        - x (B, S, d_model)
        - mask broadcasts to (B, H, S, S), boolean
        - output (B, S, d_model)

    Raises:
        ValueError: when there are not exactly two residuals.

    Reference:
        Vaswani et al. 2017, section 3.1.
    """

    def __init__(
        self, self_attention: nn.Module, feed_forward: nn.Module, residuals: Sequence[SublayerConnection]
    ):
        super().__init__()
        check_count(residuals, 2)
        self.self_attention, self.feed_forward = self_attention, feed_forward
        self.residuals = nn.ModuleList(residuals)

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        x = self.residuals[0](x, lambda y: self.self_attention(y, y, y, mask, **_given(cache)))
        return self.residuals[1](x, self.feed_forward)

    @classmethod
    def from_torch(cls, module: nn.TransformerEncoderLayer) -> EncoderLayer:
        """Copy torch's layer, in its order of normalisation. Inputs stay batch-first here.

        Raises:
            TypeError: when `module` is not torch's layer.
            ValueError: when it uses an option that has no counterpart here.
        """
        check_type(module, nn.TransformerEncoderLayer)
        return cls(
            MultiHeadAttention.from_torch(module.self_attn),
            _feed_forward_from_torch(module),
            _residuals_from_torch(module, 2),
        ).train(module.training)


class DecoderLayer(nn.Module):
    """Self-attention over the target, cross-attention to the encoder's output, then the feed-forward network.

    Args:
        self_attention: called as (query, key, value, mask).
        cross_attention: the same, with the encoder's output as key and value.
        feed_forward: called on each position.
        residuals: three `SublayerConnection` modules, in the order of use.

    Shape:
        - x (B, T, d_model)
        - memory (B, S, d_model)
        - src_mask broadcasts to (B, H, T, S), tgt_mask to (B, H, T, T), boolean
        - output (B, T, d_model)

    Raises:
        ValueError: when there are not exactly three residuals.

    Reference:
        Vaswani et al. 2017, section 3.1.
    """

    def __init__(
        self,
        self_attention: nn.Module,
        cross_attention: nn.Module,
        feed_forward: nn.Module,
        residuals: Sequence[SublayerConnection],
    ):
        super().__init__()
        check_count(residuals, 3)
        self.self_attention, self.cross_attention = self_attention, cross_attention
        self.feed_forward = feed_forward
        self.residuals = nn.ModuleList(residuals)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Transform `x`; with a cache, `x` holds the newest tokens and the cache stands for `memory`."""

        def look_back(y: Tensor) -> Tensor:
            past = None if cache is None else cache.self_attention
            return self.self_attention(y, y, y, tgt_mask, **_given(past))

        def look_across(y: Tensor) -> Tensor:
            if cache is None:
                return self.cross_attention(y, memory, memory, src_mask)
            keys, values = cache.memory
            # several hypotheses of one source are several queries to it: (B * n, T, d) -> (B, n * T, d)
            queries = y.reshape(keys.size(0), -1, y.size(-1))
            return self.cross_attention.attend(queries, keys, values, src_mask).view_as(y)

        x = self.residuals[0](x, look_back)
        x = self.residuals[1](x, look_across)
        return self.residuals[2](x, self.feed_forward)

    @classmethod
    def from_torch(cls, module: nn.TransformerDecoderLayer) -> DecoderLayer:
        """Copy torch's layer, in its order of normalisation. Inputs stay batch-first here.

        Raises:
            TypeError: when `module` is not torch's layer.
            ValueError: when it uses an option that has no counterpart here.
        """
        check_type(module, nn.TransformerDecoderLayer)
        return cls(
            MultiHeadAttention.from_torch(module.self_attn),
            MultiHeadAttention.from_torch(module.multihead_attn),
            _feed_forward_from_torch(module),
            _residuals_from_torch(module, 3),
        ).train(module.training)


class Encoder(nn.Module):
    """Run the encoder layers one after another.

    Args:
        layers: modules called as (x, mask).
        norm: what comes after the last layer: a norm for a pre-norm stack, None for a post-norm one.

    Shape:
        - x (B, S, d_model)
        - mask broadcasts to (B, H, S, S), boolean
        - output (B, S, d_model)
    """

    def __init__(self, layers: Iterable[nn.Module], norm: nn.Module | None = None):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm if norm is not None else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)

    @classmethod
    def from_torch(cls, module: nn.TransformerEncoder) -> Encoder:
        """Copy torch's stack with its final norm, where it has one.

        Raises:
            TypeError: when `module` is not torch's stack.
            ValueError: when a layer uses an option that has no counterpart here.
        """
        check_type(module, nn.TransformerEncoder)
        return cls(map(EncoderLayer.from_torch, module.layers), deepcopy(module.norm)).train(module.training)


class Decoder(nn.Module):
    """Run the decoder layers one after another, each looking at the same `memory`.

    Args:
        layers: modules called as (x, memory, src_mask, tgt_mask).
        norm: what comes after the last layer: a norm for a pre-norm stack, None for a post-norm one.

    Shape:
        - x (B, T, d_model)
        - memory (B, S, d_model)
        - output (B, T, d_model)
    """

    def __init__(self, layers: Iterable[nn.Module], norm: nn.Module | None = None):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm if norm is not None else nn.Identity()

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        caches: Sequence[LayerCache] | None = None,
    ) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x, memory, src_mask, tgt_mask, **_given(None if caches is None else caches[i]))
        return self.norm(x)

    @classmethod
    def from_torch(cls, module: nn.TransformerDecoder) -> Decoder:
        """Copy torch's stack with its final norm, where it has one.

        Raises:
            TypeError: when `module` is not torch's stack.
            ValueError: when a layer uses an option that has no counterpart here.
        """
        check_type(module, nn.TransformerDecoder)
        return cls(map(DecoderLayer.from_torch, module.layers), deepcopy(module.norm)).train(module.training)


def encoder_layer(
    d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1, norm_first: bool = True
) -> EncoderLayer:
    """Assemble the paper's encoder layer from the parts of the earlier chapters."""
    return EncoderLayer(
        MultiHeadAttention(d_model, num_heads, dropout),
        PositionwiseFeedForward(d_model, d_ff, dropout),
        residuals(2, d_model, dropout, norm_first),
    )


def decoder_layer(
    d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1, norm_first: bool = True
) -> DecoderLayer:
    """Assemble the paper's decoder layer from the parts of the earlier chapters."""
    return DecoderLayer(
        MultiHeadAttention(d_model, num_heads, dropout),
        MultiHeadAttention(d_model, num_heads, dropout),
        PositionwiseFeedForward(d_model, d_ff, dropout),
        residuals(3, d_model, dropout, norm_first),
    )


def check_count(residuals: Sequence[SublayerConnection], count: int) -> None:
    """Raise unless there are `count` residuals.

    Raises:
        ValueError: when there are fewer or more.
    """
    if len(residuals) != count:
        raise ValueError(f"residuals ({len(residuals)}) must be {count} SublayerConnections, one a sublayer")


def check_type(module: nn.Module, kind: type[nn.Module]) -> None:
    """Raise unless `module` is of the `kind` of torch module to copy.

    Raises:
        TypeError: when it is another one.
    """
    if not isinstance(module, kind):
        raise TypeError(f"module must be a torch.nn.{kind.__name__}, got {type(module).__name__}")


def _given(cache: object | None) -> dict:
    """Pass a cache on only where there is one: injected parts need not know about caches."""
    return {} if cache is None else {"cache": cache}


def _feed_forward_from_torch(module: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> nn.Module:
    names = {F.relu: "relu", torch.relu: "relu", F.gelu: "gelu", F.silu: "silu"}
    if module.activation not in names:
        got = getattr(module.activation, "__name__", module.activation)
        raise ValueError(f"module (activation {got}) must use one of the functions relu, gelu and silu")
    if module.linear1.bias is None:
        raise ValueError("module (bias=False) must have biases")
    ours = PositionwiseFeedForward(
        module.linear1.in_features, module.linear1.out_features, module.dropout.p, names[module.activation]
    )
    ours.widen, ours.narrow = deepcopy(module.linear1), deepcopy(module.linear2)
    return ours


def _residuals_from_torch(
    module: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, count: int
) -> list[SublayerConnection]:
    dropouts = (module.dropout1, module.dropout2, getattr(module, "dropout3", None))
    norms = (module.norm1, module.norm2, getattr(module, "norm3", None))
    return [SublayerConnection(deepcopy(norms[i]), dropouts[i].p, module.norm_first) for i in range(count)]
