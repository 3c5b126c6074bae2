"""Pronunciation by counting: pairs of letters and their phonemes, and n-grams of pairs. Chapter: `decoding`.

No network, and no gradient but the one that counts. It stands beside the Transformer as a second opinion.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .data import cmudict
from .runtime import check_size
from .training import pad

LOWEST = -1e9  # log-probability of what cannot be; finite, so that gradients are
EARLY = 1e-3  # log-probability in favour of the earlier of two letters that may both write a phoneme
UNSEEN = 1e-6  # what is added to the count of each pair of a letter
LETTERS, PHONEMES = len(cmudict.letters()), len(cmudict.phonemes())
Word = tuple[Sequence[int], Sequence[int]]  # ids of letters with their end, of phonemes with begin and end
PAIRS = (LETTERS, PHONEMES, PHONEMES)  # a letter and the two phonemes that it writes; 0 stands for none


def pair_log_probabilities(counts: Tensor) -> Tensor:
    """Turn how often each letter wrote which phonemes into log-probabilities: (letters, first, second).

    A second phoneme without a first is ruled out.
    """
    counts = counts + UNSEEN
    counts[:, 0, 1:] = 0
    table = (counts / counts.sum(dim=(1, 2), keepdim=True)).log()
    table[:, 0, 1:] = LOWEST
    return table


def lattice(table: Tensor, src: Tensor, tgt: Tensor, hard: bool) -> tuple[Tensor, list[Tensor]]:
    """Compute how likely it is that the letters wrote the first m phonemes, for each m, letter by letter.

    Args:
        table: from `pair_log_probabilities`.
        hard: whether only the likeliest way counts, in place of the sum over all ways. Where two are about as
            likely, as for the two l of "bell", phonemes are written early.

    Returns:
        Log-probabilities after the last letter; and with `hard`, for each letter, how many phonemes it wrote
        on the likeliest way to each m.

    Shape:
        - src (B, S)
        - tgt (B, T)
        - output (B, T + 1), and S times the same
    """
    letters, first, second = src[:, :, None], tgt[:, None, :-1], tgt[:, None, 1:]
    none, one, two = table[src, 0, 0], table[letters, tgt[:, None], 0], table[letters, first, second]
    reached = F.pad(table.new_zeros(len(src), 1), (0, tgt.size(1)), value=LOWEST)
    sizes = []
    for i in range(src.size(1)):
        ways = torch.stack([
            reached + none[:, i, None],
            F.pad(reached[:, :-1] + one[:, i], (1, 0), value=LOWEST),
            F.pad(reached[:, :-2] + two[:, i], (2, 0), value=LOWEST),
        ])  # fmt: skip
        if hard:
            size = torch.where(ways[0] + EARLY > ways.amax(dim=0), 0, ways.argmax(dim=0))
            reached = ways.gather(0, size[None])[0]
            sizes.append(size)
        else:
            reached = ways.logsumexp(dim=0)
    return reached, sizes


def alignment_log_probability(table: Tensor, src: Tensor, tgt: Tensor) -> Tensor:
    r"""Add up the probabilities of all ways to share the phonemes out among the letters.

    .. math:: \log \sum_{\text{ways}} \prod_i P(\text{phonemes of letter } i \mid \text{letter } i)

    Each letter writes none, one or two phonemes, and the order stays. The gradient with respect to `table` is
    how often each pair is expected: what expectation maximisation needs.

    Args:
        table: from `pair_log_probabilities`.

    Shape:
        - table (letters, phonemes, phonemes)
        - src (B, S)
        - tgt (B, T), padded with 0
        - output (B,)

    Reference:
        Bisani & Ney 2008, section 2.3; Dempster et al. 1977.
    """
    reached, _ = lattice(table, src, tgt, hard=False)
    return reached.gather(1, (tgt != 0).sum(dim=1, keepdim=True))[:, 0]


def best_pairs(table: Tensor, src: Tensor, tgt: Tensor) -> Tensor:
    """Share the phonemes out in the likeliest way; each letter's pair is one number, -1 where none fits.

    Shape:
        - src (B, S)
        - tgt (B, T), padded with 0
        - output (B, S)
    """
    reached, sizes = lattice(table, src, tgt, hard=True)
    end = (tgt != 0).sum(dim=1, keepdim=True)  # (B, 1)
    fits = reached.gather(1, end) > LOWEST / 2
    padded, found = F.pad(tgt, (0, 2)), []
    for i in reversed(range(src.size(1))):
        size = sizes[i].gather(1, end)
        end = end - size
        written = padded.gather(1, end + torch.arange(2)) * (torch.arange(2) < size)  # (B, 2)
        found.append((src[:, i] * PHONEMES + written[:, 0]) * PHONEMES + written[:, 1])
    return torch.stack(found[::-1], dim=1).masked_fill(~fits, -1)


def phonemes_of_pairs(pairs: Tensor) -> Tensor:
    """Take the numbers of pairs apart: (...) to the ids of their two phonemes (..., 2), 0 for none."""
    return torch.stack([pairs // PHONEMES % PHONEMES, pairs % PHONEMES], dim=-1)


class Level(NamedTuple):
    """The n-grams of one length, in the order of their keys."""

    keys: Tensor  # number of the n-gram without its last token, times V, plus its last token
    shares: Tensor  # discounted count over that of all n-grams that begin alike
    left: Tensor  # by the number of the beginning: what the discounts leave to shorter n-grams


class KneserNey:
    r"""Predict a token from those before it by counting, with interpolated modified Kneser-Ney smoothing.

    .. math::
        P_n(w \mid h) = \frac{\max(c(hw) - D, 0)}{\sum_v c(hv)} + \lambda(h)\, P_{n-1}(w \mid h')

    Every count is made smaller by a discount D, and what that frees goes to the n-grams that are one shorter,
    whose history h' forgets the oldest token. A shorter n-gram counts how many different tokens stand before
    it, not how often it occurs, unless it opens a sequence.

    Args:
        tokens: all sequences, one after the other, each opened by a 0.
        vocab_size: number of tokens V, the opening one included.
        order: tokens of the longest n-gram.

    Shape:
        - tokens (n,)

    Raises:
        ValueError: when there is no sequence, or `order` is below 1.

    Reference:
        Kneser & Ney 1995; Chen & Goodman 1999, section 3.
    """

    def __init__(self, tokens: Tensor, vocab_size: int, order: int):
        check_size("order", order)
        if not len(tokens) or tokens[0] != 0 or not tokens.any():
            raise ValueError(f"tokens ({len(tokens)}) must hold sequences, each opened by a 0")
        self.vocab_size, self.levels = vocab_size, []
        n, V = len(tokens), vocab_size
        place = torch.arange(n)
        place = place - torch.where(tokens == 0, place, 0).cummax(dim=0).values  # in its sequence
        grams = [(torch.arange(V), tokens, torch.zeros(V).long().scatter(0, tokens, torch.arange(n)))]
        for length in range(2, order + 1):
            at = (place >= length - 1).nonzero()[:, 0]  # where an n-gram of this length ends
            if not len(at):
                break
            before = grams[-1][1][at - 1]
            keys, which = (before * V + tokens[at]).unique(return_inverse=True)
            number = torch.full((n,), -1).scatter(0, at, which)
            grams.append((keys, number, torch.zeros(len(keys)).long().scatter(0, which, at)))
        for length, (keys, number, end) in enumerate(grams, 1):  # `end`: a place where each one ends
            counts = torch.bincount(number[number >= 0], minlength=len(keys))
            if length < len(grams):
                kinds = torch.bincount(number[grams[length][2]], minlength=len(keys))
                counts = torch.where(place[end] == length - 1, counts, kinds)
            if length == 1:
                counts[0] = 0  # nothing is followed by an opening
            histories = 1 if length == 1 else len(grams[length - 2][0])
            self.levels.append(_smoothed(keys, counts.double(), keys // V, histories))

    def log_probability(self, rows: Tensor) -> Tensor:
        """Return the log-probability of each token after its row's first, -1 being a token never seen.

        Shape:
            - rows (B, T), opened by 0
            - output (B, T - 1), float64
        """
        tokens, number = rows[:, 1:], rows
        probability = torch.full(tokens.shape, 1 / self.vocab_size, dtype=torch.float64)
        for length, (keys, shares, left) in enumerate(self.levels, 1):
            history = torch.zeros_like(tokens) if length == 1 else number[:, :-1]
            wanted = torch.where((history < 0) | (tokens < 0), -1, history * self.vocab_size + tokens)
            found = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
            known = keys[found] == wanted
            longer = torch.where(known, shares[found], 0.0) + left[history.clamp(min=0)] * probability
            probability = torch.where(history < 0, probability, longer)
            ends = torch.where(known, found, -1)  # the number of the n-gram that ends here
            number = F.pad(ends, (1, 0), value=0 if length == 1 else -1)
        return probability.log()


def _smoothed(keys: Tensor, counts: Tensor, history: Tensor, histories: int) -> Level:
    """Discount the counts of n-grams, by how many of them occur once, twice, three and four times."""
    times = [max(int((counts == j).sum()), 1) for j in (1, 2, 3, 4)]
    share = times[0] / (times[0] + 2 * times[1])
    discounts = [0.0]
    for j in (1, 2, 3):  # in small texts the formula may leave the range
        discounts.append(min(max(j - (j + 1) * share * times[j] / times[j - 1], 0.1), 0.9 * j))
    taken = torch.tensor(discounts).double()[counts.clamp(max=3).long()]
    total, freed = (torch.zeros(histories).double().index_add(0, history, part) for part in (counts, taken))
    left = torch.where(total > 0, freed / total, 1.0)
    return Level(keys, (counts - taken) / total.clamp(min=1)[history], left)


class JointNGram:
    """Score pronunciations by how often the dictionary writes such letters and phonemes in a row.

    A word and its pronunciation become one sequence of pairs: each letter with the none, one or two phonemes
    that it writes. `KneserNey` says how likely each pair is after those before it.

    Args:
        pairs: each pair that occurs, as one number, in rising order.
        tokens: the words as sequences of pairs, each opened by 0; pair `i` of `pairs` is token `i + 1`.
        order: pairs of the longest n-gram.

    Shape:
        - pairs (V - 1,)
        - tokens (n,)

    Raises:
        ValueError: when the pairs are not in rising order or not of the two vocabularies, a token is outside
            them, or as in `KneserNey`.

    Reference:
        Bisani & Ney 2008; the n-grams are those of Chen & Goodman 1999.
    """

    def __init__(self, pairs: Tensor, tokens: Tensor, order: int = 8):
        self.pairs, self.tokens, self.order = pairs.long(), tokens.long(), order
        inside = (self.pairs >= 0) & (self.pairs < LETTERS * PHONEMES**2)
        if not bool(inside.all() and (self.pairs.diff() > 0).all()):
            raise ValueError(f"pairs must rise, from 0 to below {LETTERS * PHONEMES**2:,}")
        if not bool(((self.tokens >= 0) & (self.tokens <= len(pairs))).all()):
            raise ValueError(f"tokens must be from 0 to the number of pairs ({len(pairs)})")
        used = self.pairs[self.tokens[self.tokens > 0] - 1]
        counts = torch.bincount(used, minlength=LETTERS * PHONEMES**2)
        self.table = pair_log_probabilities(counts.view(PAIRS).double())

    @cached_property
    def ngrams(self) -> KneserNey:
        """The counts, made when they are first asked for."""
        return KneserNey(self.tokens, len(self.pairs) + 1, self.order)

    @classmethod
    def fit(cls, words: Sequence[Word], rounds: int = 10, order: int = 8) -> JointNGram:
        """Cut words into pairs by expectation maximisation, and count.

        At first every letter may write everything. Each round adds up how often each pair is expected under
        the probabilities of the round before. Words with more than two phonemes for each letter are left out.

        Args:
            words: ids of the letters with their end, and of the phonemes with begin and end.
            rounds: of expectation maximisation.

        Raises:
            ValueError: when no word can be cut.
        """
        words = sorted((w for w in words if len(w[1]) - 1 <= 2 * len(w[0])), key=lambda word: len(word[0]))
        if not words:
            raise ValueError("words must hold one with at most two phonemes for each letter")
        batches = [_batch(list(same)) for _, same in groupby(words, key=lambda word: len(word[0]))]
        counts = torch.ones(PAIRS).double()  # torch adds gradients up in a fixed order in float64 only
        for _ in range(rounds):
            table, counts = pair_log_probabilities(counts).requires_grad_(), torch.zeros_like(counts)
            for src, tgt in batches:
                with torch.enable_grad():
                    (expected,) = torch.autograd.grad(alignment_log_probability(table, src, tgt).sum(), table)
                counts += expected
        rows = [best_pairs(pair_log_probabilities(counts), src, tgt) for src, tgt in batches]
        pairs = torch.cat([row.flatten() for row in rows]).unique()
        tokens = [F.pad(torch.searchsorted(pairs, row) + 1, (1, 0)).flatten() for row in rows]
        return cls(pairs, torch.cat(tokens), order)

    def cut(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Turn words into rows of tokens, opened by 0: (B, S + 1). A pair that never occurred is -1."""
        found = best_pairs(self.table, src, tgt[:, 1:])
        token = torch.searchsorted(self.pairs, found).clamp(max=len(self.pairs) - 1)
        return F.pad(torch.where(self.pairs[token] == found, token + 1, -1), (1, 0))

    @torch.no_grad()
    def log_probability(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Score words of one length together with pronunciations of theirs, on the CPU.

        Shape:
            - src (B, S), letters with their end
            - tgt (B, T), phonemes with begin and end, padded with 0
            - output (B,)
        """
        rows = self.cut(src.cpu(), tgt.cpu())
        return self.ngrams.log_probability(rows).sum(dim=1).float().to(src.device)

    def tensors(self) -> dict[str, Tensor]:
        """What has to be stored: the arguments of the class, in 32 and 16 bits."""
        return {"pairs": self.pairs.int(), "tokens": self.tokens.short()}


def _batch(words: Sequence[Word]) -> tuple[Tensor, Tensor]:
    """Words of one length as tensors, the phonemes without their begin."""
    return torch.tensor([letters for letters, _ in words]), pad([tgt[1:] for _, tgt in words], 0)
