"""Token embeddings: a learned vector for each id. Chapter: `embeddings`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .runtime import check_size


def check_ids(ids: Tensor, vocab_size: int, name: str = "ids") -> None:
    """Raise unless `ids` are whole numbers from 0 to `vocab_size` - 1.

    Whole models call this once, where ids enter. It reads the values, so it does nothing on the
    meta device and while a graph is compiled.

    Args:
        ids: token ids.
        vocab_size: the number of rows in the embedding table.
        name: what the message calls the tensor.

    Shape:
        ids: any

    Raises:
        TypeError: when `ids` is not a tensor of dtype int64 or int32.
        ValueError: when an id is negative or not below `vocab_size`.
    """
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name} must be a tensor of token ids, got {type(ids).__name__}")
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} (dtype {ids.dtype}) must hold whole numbers as int64 or int32")
    if ids.is_meta or torch.compiler.is_compiling() or ids.numel() == 0:
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} ({wrong}) must be at least 0 and below vocab_size ({vocab_size})")


class Embeddings(nn.Module):
    r"""Look up a learned vector for each token id, times the root of the model width.

    .. math:: \mathrm{Embeddings}(i) = \sqrt{d_\text{model}}\; E_i

    Entries of `E` start with a standard deviation of :math:`1/\sqrt{d_\text{model}}`. The factor brings them
    to 1, comparable with the positional encoding that is added next, whose root mean square is 0.71. Another
    initialisation gives another ratio: under Xavier's, as in `make_model`, positions are larger at first.

    Args:
        vocab_size: number of tokens, the rows of the table.
        d_model: width of a vector.
        padding_idx: id whose row is zero and stays zero, or None.

    Shape:
        - ids (B, T)
        - output (B, T, d_model)

    Raises:
        ValueError: when a size is below 1, `padding_idx` is outside the vocabulary or, when called,
            an id is.

    Reference:
        Vaswani et al. 2017, section 3.4.
    """

    def __init__(self, vocab_size: int, d_model: int, padding_idx: int | None = None):
        super().__init__()
        check_size("vocab_size", vocab_size)
        check_size("d_model", d_model)
        if padding_idx is not None:
            check_size("padding_idx", padding_idx, minimum=0)
            if padding_idx >= vocab_size:
                raise ValueError(f"padding_idx ({padding_idx}) must be below vocab_size ({vocab_size})")
        self.vocab_size, self.d_model = vocab_size, d_model
        self.table = nn.Embedding(vocab_size, d_model, padding_idx=padding_idx)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw rows with deviation 1/√d_model; the padding row is zero."""
        nn.init.normal_(self.table.weight, std=self.d_model**-0.5)
        self.reset_padding()

    @torch.no_grad()
    def reset_padding(self) -> None:
        """Set the padding row to zero, as after any initialisation that does not know about it."""
        if self.table.padding_idx is not None:
            self.table.weight[self.table.padding_idx].zero_()

    def forward(self, ids: Tensor) -> Tensor:
        try:
            vectors = self.table(ids)  # (B, T) -> (B, T, d_model)
        except (IndexError, RuntimeError, TypeError):
            check_ids(ids, self.vocab_size)  # the reason, where it is one of ours
            raise
        return vectors * math.sqrt(self.d_model)
