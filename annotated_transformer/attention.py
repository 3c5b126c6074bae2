"""Masks and scaled dot-product attention. Chapter: `attention`.

A mask is boolean everywhere in this package, and True means "may attend".
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .runtime import check_dropout, check_size


def causal_mask(length: int, key_length: int | None = None, device: torch.device | None = None) -> Tensor:
    """Let each query see the keys up to its own position, never a later one.

    With more keys than queries the last query is aligned with the last key: the queries are the newest
    tokens of a longer sequence.

    Args:
        length: number of queries T.
        key_length: number of keys S; T where it is None.
        device: where the mask is built.

    Shape:
        output (1, 1, T, S), boolean

    Raises:
        ValueError: when there are more queries than keys.
    """
    key_length = length if key_length is None else key_length
    check_size("length", length, minimum=0)
    check_size("key_length", key_length, minimum=0)
    if length > key_length:
        raise ValueError(f"length ({length}) must not exceed key_length ({key_length})")
    ones = torch.ones(1, 1, length, key_length, dtype=torch.bool, device=device)
    return ones.tril(key_length - length)


def padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """Hide the padding of a batch from every query.

    Args:
        ids: token ids, padded to one length.
        pad_id: the id that marks padding.

    Shape:
        - ids (B, S)
        - output (B, 1, 1, S), boolean

    Raises:
        ValueError: when `ids` does not have two dimensions.
    """
    if ids.dim() != 2:
        raise ValueError(f"ids must have two dimensions (B, S), got {tuple(ids.shape)}")
    return (ids != pad_id)[:, None, None, :]  # (B, S) -> (B, 1, 1, S)


def target_mask(tgt: Tensor, pad_id: int) -> Tensor:
    """Combine both rules for a decoder's input: no padding and no future.

    Shape:
        - tgt (B, T)
        - output (B, 1, T, T), boolean

    Raises:
        ValueError: when `tgt` does not have two dimensions.
    """
    return padding_mask(tgt, pad_id) & causal_mask(tgt.size(-1), device=tgt.device)


def check_mask(mask: Tensor, scores_shape: tuple[int, ...]) -> None:
    """Raise unless `mask` is boolean and broadcasts to the scores.

    Raises:
        TypeError: when the mask is not a boolean tensor.
        ValueError: when it does not broadcast.
    """
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a boolean tensor (True = may attend), got {got}")
    aligned = zip(reversed(mask.shape), reversed(scores_shape), strict=False)
    if mask.dim() > len(scores_shape) or any(m not in (1, s) for m, s in aligned):
        shape = tuple(mask.shape)
        raise ValueError(f"mask (shape {shape}) must broadcast to the scores, got {tuple(scores_shape)}")


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Compute how much each query takes from each key.

    .. math:: W = \mathrm{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right)

    Masked keys get exactly 0. A query that may attend to nothing gets a row of zeros, with zero gradients.

    Shape:
        - query (..., T, d_k)
        - key (..., S, d_k)
        - mask broadcasts to (..., T, S)
        - output (..., T, S)

    Raises:
        TypeError: when the mask is not boolean.
        ValueError: when the widths differ or the mask does not broadcast.
    """
    _check_shapes(query, key)
    # dividing the query, not the scores, keeps float16 products in range
    scores = (query * query.size(-1) ** -0.5) @ key.contiguous().transpose(-2, -1)  # (..., T, S)
    if mask is None:
        return scores.softmax(dim=-1)
    check_mask(mask, scores.shape)
    # softmax of a row without any allowed key would be NaN: open such a row, then make it zero
    blind = ~mask.any(dim=-1, keepdim=True)  # (..., T, 1)
    # -inf loses to every allowed score, however low; the scores are ours, so they are filled in place
    with torch.no_grad():  # a weight of 0 has a gradient of 0, whether or not autograd knows of the filling
        scores.masked_fill_(~(mask | blind), float("-inf"))
    weights = scores.softmax(dim=-1)
    return weights.masked_fill(blind, 0.0) if _some(blind) else weights


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    r"""Average the values, weighted by how well each key answers each query.

    .. math:: \mathrm{Attention}(Q, K, V) = \mathrm{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right) V

    Args:
        query: what each position asks.
        key: what each position is asked for.
        value: what each position passes on.
        mask: boolean, True = may attend; None lets every query see every key.
        dropout: probability of zeroing a weight; always applied, so pass 0 outside training.

    Shape:
        - query (..., T, d_k)
        - key (..., S, d_k)
        - value (..., S, d_v)
        - mask broadcasts to (..., T, S)
        - output (..., T, d_v)
        - weights (..., T, S)

    Returns:
        The output and the weights before dropout. A query that may attend to nothing gets zeros in both.

    Raises:
        TypeError: when the mask is not boolean.
        ValueError: when shapes do not fit or `dropout` is not a probability.

    Reference:
        Vaswani et al. 2017, section 3.2.1.
    """
    check_dropout(dropout)
    _check_shapes(query, key, value)
    weights = attention_weights(query, key, mask)
    kept = F.dropout(weights, dropout) if dropout else weights
    return kept @ value, weights


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Compute the same output with torch's fused kernel, which never stores the weights.

    Arguments, shapes and errors are those of `scaled_dot_product_attention`; only the output comes back.
    """
    check_dropout(dropout)
    _check_shapes(query, key, value)
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
    check_mask(mask, (*query.shape[:-1], key.size(-2)))
    # kernels disagree about a row without any allowed key: open it, then make its output zero
    blind = ~mask.any(dim=-1, keepdim=True)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask | blind, dropout_p=dropout)
    return output.masked_fill(blind, 0.0) if _some(blind) else output


def _some(rows: Tensor) -> bool:
    """Say whether any is True; where asking would wait for a GPU or is impossible, assume so."""
    return rows.device.type != "cpu" or torch.compiler.is_compiling() or bool(rows.any())


def _check_shapes(query: Tensor, key: Tensor, value: Tensor | None = None) -> None:
    if query.size(-1) != key.size(-1):
        raise ValueError(f"query (width {query.size(-1)}) must have the width of key ({key.size(-1)})")
    if value is not None and key.size(-2) != value.size(-2):
        raise ValueError(f"key (length {key.size(-2)}) must be as long as value ({value.size(-2)})")
