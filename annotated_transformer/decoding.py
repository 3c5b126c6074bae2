"""Turning next-token scores into sequences: greedy search, beam search, caches. Chapter: `decoding`.

A search takes a step function: `step(ids)` gets all ids so far, (B, T), and returns the logits of the next
token, (B, V). A step that keeps a state, such as `TransformerStep`, also has `reorder(rows, sources)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .embeddings import check_ids
from .runtime import check_size
from .transformer import Transformer


class KVCache:
    """Keep the keys and values of earlier tokens, in memory that is allocated once.

    Args:
        max_len: the most tokens it holds.

    Shape:
        - key, value of `update` (B, H, T, D), the newest T tokens
        - output (B, H, length, D), all tokens so far

    Raises:
        ValueError: when more than `max_len` tokens come in.
    """

    def __init__(self, max_len: int):
        check_size("max_len", max_len)
        self.max_len, self.length = max_len, 0
        # positions come first in memory: what is filled is one block, quick to read and to reorder
        self._keys: Tensor | None = None  # (max_len, B, H, D)
        self._values: Tensor | None = None
        self._spare: list[Tensor] = []

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append the newest keys and values and return all of them."""
        end = self.length + key.size(2)
        if end > self.max_len:
            raise ValueError(f"cache length ({end}) must not exceed max_len ({self.max_len})")
        if self._keys is None:
            B, H, _, D = key.shape
            self._keys = key.new_empty(self.max_len, B, H, D)
            self._values = value.new_empty(self.max_len, B, H, value.size(-1))
        self._keys[self.length : end] = key.permute(2, 0, 1, 3)
        self._values[self.length : end] = value.permute(2, 0, 1, 3)
        self.length = end
        return self._keys[:end].permute(1, 2, 0, 3), self._values[:end].permute(1, 2, 0, 3)

    @torch.no_grad()
    def reorder(self, rows: Tensor) -> None:
        """Make row `i` continue what row `rows[i]` held; `rows` may repeat or drop some.

        What `update` returned before is then out of date: its memory is used again.
        """
        if self._keys is None:
            return
        old = [self._keys, self._values]
        if not self._spare or self._spare[0].size(1) != len(rows):
            self._spare = [part.new_empty(self.max_len, len(rows), *part.shape[2:]) for part in old]
        for part, new in zip(old, self._spare, strict=True):
            torch.index_select(part[: self.length], 1, rows, out=new[: self.length])
        (self._keys, self._values), self._spare = self._spare, old


@dataclass
class DecoderCache:
    """What one decoder layer keeps: its own past, and the projected memory, which never changes."""

    self_attention: KVCache
    memory: tuple[Tensor, Tensor]  # keys and values, each (sources, H, S, D)


class TransformerStep:
    """The step function of a Transformer, which computes only what is new.

    The source is encoded once, and its keys and values are projected once for each layer. Several rows may
    belong to one source: row `i` of `n * sources` rows belongs to source `i // n`. They share its keys.

    Args:
        model: the Transformer; call `model.eval()` first.
        src: source ids.
        src_mask: boolean, True = may attend; None when nothing is padding.
        max_len: the longest target, with its first token.

    Shape:
        - src (sources, S)
        - src_mask (sources, 1, 1, S)
        - ids of a call (n * sources, T); output (n * sources, V)

    Raises:
        ValueError: when a target grows beyond `max_len`, or a call's ids do not continue the last call's.
    """

    @torch.no_grad()
    def __init__(self, model: Transformer, src: Tensor, src_mask: Tensor | None = None, max_len: int = 256):
        memory = model.encode(src, src_mask)
        self.model, self.src_mask, self.length = model, src_mask, 0
        self.caches = [
            DecoderCache(KVCache(max_len), layer.cross_attention.project(memory, memory))
            for layer in model.decoder.layers
        ]

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> Tensor:
        if ids.size(1) <= self.length:
            raise ValueError(f"ids (length {ids.size(1)}) must be longer than what was seen ({self.length})")
        if self.length == 0:
            check_ids(ids, self.model.tgt_embed.tokens.vocab_size)
        newest = ids[:, self.length :]
        hidden = self.model.decode(newest, None, self.src_mask, caches=self.caches, offset=self.length)
        self.length = ids.size(1)
        return self.model.generator(hidden[:, -1])

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Let row `i` continue row `rows[i]`; with `sources`, keep only those sources, in that order."""
        for cache in self.caches:
            cache.self_attention.reorder(rows)
            if sources is not None:
                cache.memory = tuple(part[sources] for part in cache.memory)
        if sources is not None and self.src_mask is not None and self.src_mask.size(0) > 1:
            self.src_mask = self.src_mask[sources]


def check_search(ids: Tensor, max_new_tokens: int) -> None:
    """Raise unless a search can start from `ids`.

    Raises:
        ValueError: when `max_new_tokens` is negative or `ids` is not (B, T) with at least one token.
    """
    check_size("max_new_tokens", max_new_tokens, minimum=0)
    if ids.dim() != 2 or ids.size(1) == 0:
        raise ValueError(
            f"ids must have two dimensions (B, T) and at least one token, got {tuple(ids.shape)}"
        )


@torch.no_grad()
def greedy_search(
    step: Callable[[Tensor], Tensor], ids: Tensor, eos_id: int, pad_id: int, max_new_tokens: int
) -> Tensor:
    """Extend each sequence by its best next token until it has ended.

    Each row stops at its own end token and is padded from there on. The search ends with the last row.
    A step that can reorder is spared the rows that have ended.

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
    check_search(ids, max_new_tokens)
    reorder = getattr(step, "reorder", None)
    length = ids.size(1)
    result = ids.new_full((len(ids), length + max_new_tokens), pad_id)
    result[:, :length] = ids
    rows = torch.arange(len(ids), device=ids.device)  # the rows of the result that are still computed
    ended = torch.zeros_like(rows, dtype=torch.bool)
    for _ in range(max_new_tokens):
        if ended.all():
            break
        if reorder is not None and 4 * ended.sum() >= len(ended):
            kept = (~ended).nonzero()[:, 0]
            reorder(kept, kept)
            rows, ended = rows[kept], ended[kept]
        best = step(result[rows, :length]).argmax(dim=-1).masked_fill(ended, pad_id)  # (rows,)
        ended |= best == eos_id
        result[rows, length] = best
        length += 1
    return result[:, :length]


def length_normalized(log_prob: Tensor | float, length: int, alpha: float) -> Tensor | float:
    r"""Score a finished hypothesis by its log-probability and its length.

    .. math:: \mathrm{score} = \frac{\log P(y)}{|y|^\alpha}

    Log-probabilities are negative, so a larger `alpha` favours longer hypotheses; 0 leaves the plain sum.

    Args:
        log_prob: sum of the log-probabilities of the generated tokens.
        length: number of generated tokens, the end token included and the prompt not.
        alpha: exponent, 0 or above.

    Raises:
        ValueError: when `length` is below 1 or `alpha` is negative or NaN.

    Reference:
        Wu et al. 2016, section 7, which divides by ((5 + length) / 6)^alpha instead.
    """
    check_size("length", length)
    if not alpha >= 0:
        raise ValueError(f"alpha ({alpha}) must be at least 0")
    return log_prob / length**alpha


def beam_search(
    step: Callable[[Tensor], Tensor],
    ids: Tensor,
    eos_id: int,
    pad_id: int,
    max_new_tokens: int,
    num_beams: int = 5,
    alpha: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Follow the `num_beams` likeliest hypotheses of each sequence and return the best finished one.

    Arguments, errors and source are those of `n_best_search`, of which this is the first answer.

    Shape:
        - ids (B, T)
        - output ids (B, T + n), with n up to `max_new_tokens`; scores (B,)

    Returns:
        The best hypothesis of each sequence and its score. Where none could end, the best one cut off.
    """
    best, scores = n_best_search(step, ids, eos_id, pad_id, max_new_tokens, num_beams, alpha, count=1)
    return best[:, 0], scores[:, 0]


@torch.no_grad()
def n_best_search(
    step: Callable[[Tensor], Tensor],
    ids: Tensor,
    eos_id: int,
    pad_id: int,
    max_new_tokens: int,
    num_beams: int = 5,
    alpha: float = 1.0,
    count: int = 5,
) -> tuple[Tensor, Tensor]:
    """Follow the `num_beams` likeliest hypotheses of each sequence and return the best finished ones.

    At each step every live hypothesis may end, which is scored by `length_normalized`, or go on. The search
    of a sequence stops when no live hypothesis can still beat the last of the `count` best finished ones, not
    when so many have finished. Sequences that are done are dropped, where the step can reorder.

    Args:
        step: takes ids (num_beams * B, T), the hypotheses of a sequence side by side, and returns logits
            (num_beams * B, V). One that can reorder first gets (B, T), and fewer sequences as they finish.
        ids: where each sequence starts.
        eos_id: the token that ends a hypothesis.
        pad_id: what follows it.
        max_new_tokens: the most tokens of a hypothesis, with its end token.
        num_beams: hypotheses kept for each sequence.
        alpha: exponent of the length in the score.
        count: answers for each sequence.

    Shape:
        - ids (B, T)
        - output ids (B, count, T + n), with n up to `max_new_tokens`; scores (B, count)

    Returns:
        The hypotheses of each sequence, the best first, and their scores. Where none could end, the first is
        the best one cut off; where fewer ended, the rest is padding with a score of -inf.

    Raises:
        ValueError: when an argument is out of range.

    Reference:
        Graves 2012; Wu et al. 2016, section 7.
    """
    check_search(ids, max_new_tokens)
    check_size("num_beams", num_beams)
    check_size("count", count)
    length_normalized(0.0, 1, alpha)
    B, start = ids.shape
    reorder = getattr(step, "reorder", None)
    best = ids.new_full((B, count, start + max_new_tokens), pad_id)
    best[:, :, :start] = ids[:, None]
    best_scores = torch.full((B, count), -math.inf, device=ids.device)
    if max_new_tokens == 0:
        best_scores[:, 0] = 0.0  # nothing has probability one
        return best, best_scores
    longest = start
    sources = torch.arange(B, device=ids.device)  # the sequences that are still searched
    n = 1 if reorder is not None else num_beams  # hypotheses of each; at first all are the same
    live = ids.repeat_interleave(n, dim=0)
    scores = torch.full((B, n), -math.inf, device=ids.device)
    scores[:, 0] = 0.0
    for length in range(1, max_new_tokens + 1):
        if len(sources) == 0:
            break
        log_probs = step(live).float().log_softmax(dim=-1)  # (sources * n, V)
        log_probs = log_probs.view(len(sources), n, -1) + scores[:, :, None]
        V = log_probs.size(-1)

        ended = length_normalized(log_probs[:, :, eos_id], length, alpha)  # (sources, n)
        better = ended.amax(dim=1) > best_scores[sources, -1]
        if better.any():
            winners = sources[better]
            finished = best.new_full((len(winners), n, best.size(2)), pad_id)
            finished[:, :, : start + length - 1] = live.view(len(sources), n, -1)[better]
            finished[:, :, start + length - 1] = eos_id
            finished[ended[better].isinf(), start:] = pad_id  # impossible ones only fill the list up
            pool = torch.cat([best[winners], finished], dim=1)  # (winners, count + n, T)
            best_scores[winners], places = torch.cat([best_scores[winners], ended[better]], dim=1).topk(count)
            best[winners] = pool.gather(1, places[:, :, None].expand(-1, -1, pool.size(2)))
            longest = start + length

        log_probs[:, :, eos_id] = -math.inf
        scores, chosen = log_probs.flatten(1).topk(min(num_beams, n * V))  # (sources, n)
        # log-probabilities only fall, so this is the best that a live hypothesis can still reach
        bound = length_normalized(scores[:, 0], max_new_tokens, alpha)
        going = (bound > best_scores[sources, -1]).nonzero()[:, 0]
        if reorder is None:
            going = going if len(going) == 0 else torch.arange(len(sources), device=ids.device)
        rows = (going[:, None] * n + chosen[going] // V).flatten()
        live = torch.cat([live[rows], (chosen[going] % V).view(-1, 1)], dim=1)
        if reorder is not None:
            reorder(rows, going if len(going) < len(sources) else None)
        sources, scores = sources[going], scores[going]
        n = scores.size(1)

    unfinished = best_scores[sources, 0].isinf()
    if unfinished.any():
        cut = sources[unfinished]
        best[cut, 0, : live.size(1)] = live.view(len(sources), n, -1)[unfinished, 0]
        best_scores[cut, 0] = length_normalized(scores[unfinished, 0], max_new_tokens, alpha)
        longest = live.size(1)
    return best[:, :, :longest], best_scores
