"""Sinusoidal positions: where in the sequence a token stands. Chapter: `positional_encoding`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .runtime import check_dropout, check_size


def sinusoidal_encoding(length: int, d_model: int) -> Tensor:
    r"""Compute the table of sines and cosines that marks positions 0 to `length` - 1.

    .. math::
        PE_{(t, 2i)} = \sin(t / 10000^{2i/d_\text{model}}), \qquad
        PE_{(t, 2i+1)} = \cos(t / 10000^{2i/d_\text{model}})

    Sine and cosine alternate along the width. An odd width has one sine more than cosines.

    Args:
        length: number of positions; 0 gives an empty table.
        d_model: width of the encoding.

    Shape:
        output (length, d_model), float32

    Raises:
        ValueError: when `length` is negative or `d_model` is below 1.

    Reference:
        Vaswani et al. 2017, section 3.5.
    """
    check_size("length", length, minimum=0)
    check_size("d_model", d_model)
    position = torch.arange(length, dtype=torch.float64)[:, None]  # (T, 1)
    even = torch.arange(0, d_model, 2, dtype=torch.float64)  # (ceil(d_model / 2),)
    angle = position * torch.exp(even * (-math.log(10000.0) / d_model))  # (T, ceil(d_model / 2))
    table = torch.empty(length, d_model, dtype=torch.float64)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle[:, : d_model // 2].cos()
    return table.float()  # angles in float64: at position 5,000 float32 would be off by 4e-4


class PositionalEncoding(nn.Module):
    """Add the sinusoidal table to a sequence of vectors, then drop out.

    Args:
        d_model: width of the vectors.
        dropout: probability of zeroing an entry of the sum while training, from 0 to 1.
        max_len: positions in the table; it costs max_len * d_model floats and no parameters.

    Shape:
        - x (B, T, d_model)
        - output (B, T, d_model)

    Raises:
        TypeError: when `x` does not hold floating point numbers.
        ValueError: when `x` ends beyond `max_len`, or has another width than `d_model`.

    Reference:
        Vaswani et al. 2017, sections 3.5 and 5.4.
    """

    def __init__(self, d_model: int, dropout: float = 0.1, max_len: int = 5000):
        super().__init__()
        check_size("max_len", max_len)
        check_dropout(dropout)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("table", sinusoidal_encoding(max_len, d_model), persistent=False)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Encode `x`, whose first vector stands at position `offset`."""
        check_size("offset", offset, minimum=0)
        if x.dim() != 3:
            raise ValueError(f"x must have three dimensions (B, T, d_model), got {tuple(x.shape)}")
        if not x.is_floating_point():  # the encoding, cast to whole numbers, would be mostly zeros
            raise TypeError(f"x (dtype {x.dtype}) must hold floating point numbers")
        max_len, d_model = self.table.shape
        if x.size(-1) != d_model:
            raise ValueError(f"x (width {x.size(-1)}) must have the width d_model ({d_model})")
        end = offset + x.size(1)
        if end > max_len:
            raise ValueError(f"sequence length ({end}) must not exceed max_len ({max_len})")
        return self.dropout(x + self.table[offset:end].to(x.dtype))
