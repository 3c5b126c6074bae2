"""Residual connections and where the normalisation goes. Chapter: `residual`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from .runtime import check_dropout


class SublayerConnection(nn.Module):
    r"""Add what a sublayer computes to what came in, with a normalisation before or after.

    .. math::
        \text{pre-norm: } x + \mathrm{Dropout}(f(\mathrm{Norm}(x))) \qquad
        \text{post-norm: } \mathrm{Norm}(x + \mathrm{Dropout}(f(x)))

    The paper is post-norm. Pre-norm leaves a path from input to output that no normalisation touches,
    and needs one more norm after the last layer.

    Args:
        norm: the normalisation, such as `nn.LayerNorm(d_model)`.
        dropout: probability of zeroing an entry of the sublayer's output while training.
        norm_first: True for pre-norm, False for post-norm.

    Shape:
        - x (..., d_model)
        - output (..., d_model)

    Reference:
        Vaswani et al. 2017, section 3.1; Xiong et al. 2020.
    """

    def __init__(self, norm: nn.Module, dropout: float = 0.1, norm_first: bool = True):
        super().__init__()
        check_dropout(dropout)
        self.norm = norm
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm_first

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


def residuals(count: int, d_model: int, dropout: float = 0.1, norm_first: bool = True) -> nn.ModuleList:
    """Make the connections of one layer, each with a LayerNorm of its own: two for an encoder, three for a decoder."""
    return nn.ModuleList(SublayerConnection(nn.LayerNorm(d_model), dropout, norm_first) for _ in range(count))
