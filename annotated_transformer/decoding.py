"""Turning next-token scores into sequences. Chapter: `decoding`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .runtime import check_size


@torch.no_grad()
def greedy_search(
    step: Callable[[Tensor], Tensor], ids: Tensor, eos_id: int, pad_id: int, max_new_tokens: int
) -> Tensor:
    """Extend each sequence by its best next token until it has ended.

    Each row stops at its own end token and is padded from there on. The search ends with the last row.

    Args:
        step: takes all ids so far (B, T) and returns the logits of the next token (B, V).
        ids: where each sequence starts.
        eos_id: the token that ends a sequence.
        pad_id: what follows it.
        max_new_tokens: the most tokens added to a row.

    Shape:
        - ids (B, T)
        - output (B, T + n), with n up to `max_new_tokens`

    Raises:
        ValueError: when `max_new_tokens` is negative or `ids` is not (B, T) with at least one token.
    """
    check_size("max_new_tokens", max_new_tokens, minimum=0)
    if ids.dim() != 2 or ids.size(1) == 0:
        raise ValueError(f"ids must have two dimensions (B, T) and at least one token, got {tuple(ids.shape)}")
    ended = torch.zeros(ids.size(0), dtype=torch.bool, device=ids.device)
    for _ in range(max_new_tokens):
        if ended.all():
            break
        best = step(ids).argmax(dim=-1).masked_fill(ended, pad_id)  # (B,)
        ended |= best == eos_id
        ids = torch.cat([ids, best[:, None]], dim=1)
    return ids
