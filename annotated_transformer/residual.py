"""Residual connections and where the normalisation goes. Chapter: `residual`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from .runtime import check_dropout, check_size


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

    Raises:
        ValueError: when `dropout` is outside 0 to 1, `x` does not have the norm's width, or the sublayer
            changes the shape.

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
        check_width(x, self.norm)
        if self.norm_first:
            return x + self._branch(sublayer(self.norm(x)), x)
        return self.norm(x + self._branch(sublayer(x), x))

    def _branch(self, output: Tensor, x: Tensor) -> Tensor:
        if output.shape != x.shape:  # the sum would broadcast without a word
            got = tuple(output.shape)
            raise ValueError(f"sublayer (output {got}) must keep the shape of x, got x {tuple(x.shape)}")
        return self.dropout(output)


def residuals(count: int, d_model: int, dropout: float = 0.1, norm_first: bool = True) -> nn.ModuleList:
    """Make a layer's connections, each with a LayerNorm of its own: two for an encoder, three for a decoder.

    Raises:
        ValueError: when a size is below 1 or `dropout` outside 0 to 1.
    """
    check_size("count", count)
    check_size("d_model", d_model)
    return nn.ModuleList(SublayerConnection(nn.LayerNorm(d_model), dropout, norm_first) for _ in range(count))


def check_width(x: Tensor, norm: nn.Module) -> None:
    """Raise unless `x` ends in the axes that `norm` normalises, where the norm says which these are.

    Raises:
        ValueError: when it does not.
    """
    shape = tuple(getattr(norm, "normalized_shape", ()))
    if shape != tuple(x.shape[x.dim() - len(shape) :]):
        raise ValueError(f"x (shape {tuple(x.shape)}) must end in the width of the norm {shape}")
