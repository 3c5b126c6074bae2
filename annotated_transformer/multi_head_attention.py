"""Multi-head attention: several attentions side by side. Chapter: `multi_head_attention`."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from .attention import attention_weights, fused_attention, scaled_dot_product_attention
from .runtime import check_dropout, check_size, evaluating

# Forward alone the fused kernel is hardly ever slower on a CPU. Forward and backward together it wins from
# about this many keys on; below, its backward pass is no faster in float32, much slower in bfloat16.
FUSED_FROM = 512


class Cache(Protocol):
    """Anything that stores the keys and values of earlier tokens and returns all of them."""

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]: ...


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Cut the width into `num_heads` pieces and put them on an axis of their own.

    Shape:
        - x (B, T, H * D)
        - output (B, H, T, D)

    Raises:
        ValueError: when `num_heads` does not divide the width, or `x` does not have three dimensions.
    """
    check_size("num_heads", num_heads)
    if x.dim() != 3:
        raise ValueError(f"x (shape {tuple(x.shape)}) must have three dimensions (B, T, d_model)")
    B, T, width = x.shape
    if width % num_heads:
        raise ValueError(f"num_heads ({num_heads}) must divide the width of x ({width})")
    return x.view(B, T, num_heads, width // num_heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Put the heads side by side again; the inverse of `split_heads`.

    Shape:
        - x (B, H, T, D)
        - output (B, T, H * D)
    """
    B, H, T, D = x.shape
    return x.transpose(1, 2).reshape(B, T, H * D)


class MultiHeadAttention(nn.Module):
    r"""Attend in `num_heads` subspaces at once, then mix what they found.

    .. math::
        \mathrm{head}_i = \mathrm{Attention}(Q W_i^Q, K W_i^K, V W_i^V), \qquad
        \mathrm{MultiHead}(Q, K, V) = [\mathrm{head}_1; \dots; \mathrm{head}_h]\, W^O

    One matrix holds the projections of all heads: head `i` owns columns `i * d_k` to `(i + 1) * d_k`.

    Args:
        d_model: width of input and output.
        num_heads: number of heads H; each has the width d_k = d_model / H.
        dropout: probability of zeroing a weight while training.
        bias: whether the four projections add a bias.

    Shape:
        - query (B, T, d_model)
        - key, value (B, S, d_model)
        - mask (B or 1, H or 1, T or 1, S or 1), boolean, True = may attend
        - output (B, T, d_model)

    Raises:
        TypeError: when the mask is not boolean.
        ValueError: when `num_heads` does not divide `d_model`, or the mask does not have four dimensions
            or does not broadcast.

    Reference:
        Vaswani et al. 2017, section 3.2.2.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0, bias: bool = True):
        super().__init__()
        check_size("d_model", d_model)
        check_size("num_heads", num_heads)
        check_dropout(dropout)
        if d_model % num_heads:
            raise ValueError(f"num_heads ({num_heads}) must divide d_model ({d_model})")
        self.num_heads, self.dropout = num_heads, dropout
        self.query_projection = nn.Linear(d_model, d_model, bias)
        self.key_projection = nn.Linear(d_model, d_model, bias)
        self.value_projection = nn.Linear(d_model, d_model, bias)
        self.output_projection = nn.Linear(d_model, d_model, bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Attend from `query` to `key`; with a cache also to all that it holds."""
        keys, values = self.project(key, value)
        if cache is not None:
            keys, values = cache.update(keys, values)
        return self.attend(query, keys, values, mask)

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Make the keys and values of every head: twice (B, S, d_model) -> (B, H, S, D)."""
        keys = split_heads(self.key_projection(key), self.num_heads)
        values = split_heads(self.value_projection(value), self.num_heads)
        return keys, values

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from `query` (B, T, d_model) to projected keys and values (B, H, S, D)."""
        return self.mix(self._queries(query, mask), keys, values, mask)

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend in every head, (B, H, T, D) to (B, H, S, D), and mix the heads: (B, T, d_model)."""
        dropout = self.dropout if self.training else 0.0
        if fused_is_faster(queries, keys, dropout):
            output = fused_attention(queries, keys, values, mask, dropout)
        else:
            output, _ = scaled_dot_product_attention(queries, keys, values, mask, dropout)
        return self.output_projection(merge_heads(output))  # (B, H, T, D) -> (B, T, d_model)

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return what `forward` would attend to, (B, H, T, S), without dropout."""
        keys = split_heads(self.key_projection(key), self.num_heads)
        return attention_weights(self._queries(query, mask), keys, mask)

    def _queries(self, query: Tensor, mask: Tensor | None) -> Tensor:
        check_four_dimensions(mask)
        return split_heads(self.query_projection(query), self.num_heads)  # (B, T, d_model) -> (B, H, T, D)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """Copy torch's module; both then give the same numbers. Inputs stay batch-first here.

        Raises:
            TypeError: when `module` is not torch's attention.
            ValueError: when it uses an option that has no counterpart here.
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(f"module must be a torch.nn.MultiheadAttention, got {type(module).__name__}")
        if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
            raise ValueError("module must have kdim = vdim = embed_dim, no add_bias_kv and no add_zero_attn")
        ours = cls(module.embed_dim, module.num_heads, module.dropout, bias=module.in_proj_bias is not None)
        parts = (ours.query_projection, ours.key_projection, ours.value_projection)
        with torch.no_grad():
            for part, weight in zip(parts, module.in_proj_weight.chunk(3), strict=True):
                part.weight.copy_(weight)
            ours.output_projection.weight.copy_(module.out_proj.weight)
            if module.in_proj_bias is not None:
                for part, bias in zip(parts, module.in_proj_bias.chunk(3), strict=True):
                    part.bias.copy_(bias)
                ours.output_projection.bias.copy_(module.out_proj.bias)
        return ours.to(module.out_proj.weight).train(module.training)


def check_four_dimensions(mask: Tensor | None) -> None:
    """Raise unless a mask, where there is one, names every axis of the scores.

    Raises:
        ValueError: when it does not have four dimensions: (B, S) would be read as (T, S).
    """
    if isinstance(mask, Tensor) and mask.dim() != 4:
        raise ValueError(
            f"mask (shape {tuple(mask.shape)}) must have four dimensions (B, H, T, S): "
            "padding_mask(ids, pad_id) and causal_mask(length) make such masks"
        )


def fused_is_faster(queries: Tensor, keys: Tensor, dropout: float) -> bool:
    """Say whether the fused kernel should compute this attention, by where and how long it is."""
    if queries.device.type != "cpu":
        return True
    # the CPU's kernel has no dropout
    return not dropout and (not torch.is_grad_enabled() or keys.size(-2) >= FUSED_FROM)


def attention_maps(model: nn.Module, *inputs: Tensor, **named: Tensor) -> dict[str, Tensor]:
    """Run `model` once and collect the weights of every attention layer.

    The model is in eval mode for the call, so the weights are those it uses to predict: before dropout,
    every row that may attend sums to one. Afterwards each part is back in the mode it was in.

    Args:
        model: any module with `MultiHeadAttention` inside.
        inputs: what the model is called with.
        named: the same by name, such as masks.

    Returns:
        The weights (B, H, T, S) by dotted module name, in the order of the forward pass. A layer that is
        called again appears again, as `name#2`.

    Raises:
        ValueError: when the model has no such layer.
    """
    layers = {name: part for name, part in model.named_modules() if isinstance(part, MultiHeadAttention)}
    if not layers:
        raise ValueError(f"model ({type(model).__name__}) must contain MultiHeadAttention, got none")
    maps: dict[str, Tensor] = {}

    def recorder(name: str):
        def record(layer: MultiHeadAttention, args: tuple, kwargs: dict, output: Tensor) -> None:
            given = dict(zip(("query", "key", "value", "mask"), args, strict=False)) | kwargs
            calls = sum(seen.split("#")[0] == name for seen in maps)
            label = name if calls == 0 else f"{name}#{calls + 1}"
            maps[label] = layer.weights(given["query"], given["key"], given.get("mask"))

        return record

    hooks = [part.register_forward_hook(recorder(name), with_kwargs=True) for name, part in layers.items()]
    try:
        with evaluating(model):
            model(*inputs, **named)
    finally:
        for hook in hooks:
            hook.remove()
    return maps
