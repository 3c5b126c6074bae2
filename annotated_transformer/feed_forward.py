"""The position-wise feed-forward network. Chapter: `feed_forward`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from .runtime import check_dropout, check_size

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # the exact form, x times the normal distribution function: BERT
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # the tanh approximation: GPT-2
    "silu": F.silu,
}


def check_activation(name: str) -> None:
    """Raise unless `name` is one of `ACTIVATIONS`.

    Raises:
        ValueError: when it is not.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation ({name!r}) must be one of {', '.join(sorted(ACTIVATIONS))}")


class PositionwiseFeedForward(nn.Module):
    r"""Transform each position on its own: widen, bend, narrow.

    .. math:: \mathrm{FFN}(x) = \max(0, x W_1 + b_1) W_2 + b_2

    Args:
        d_model: width of input and output.
        d_ff: width in the middle, usually four times `d_model`.
        dropout: probability of zeroing a middle entry while training. The paper has no dropout here.
        activation: name of the bend, one of `ACTIVATIONS`.

    Shape:
        - x (..., d_model)
        - output (..., d_model)

    Raises:
        ValueError: when a size is below 1 or `dropout` outside 0 to 1, or the activation unknown.

    Reference:
        Vaswani et al. 2017, section 3.3.
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1, activation: str = "relu"):
        super().__init__()
        check_size("d_model", d_model)
        check_size("d_ff", d_ff)
        check_dropout(dropout)
        check_activation(activation)
        self.activation = ACTIVATIONS[activation]
        self.widen = nn.Linear(d_model, d_ff)
        self.narrow = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.widen(x))  # (..., d_model) -> (..., d_ff)
        return self.narrow(self.dropout(hidden))  # (..., d_ff) -> (..., d_model)
