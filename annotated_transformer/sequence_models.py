"""Three ways to mix a sequence: recurrence, convolution, attention. Chapter: `sequence_models`.

The layers are as small as they can be, in torch's own modules where these exist. The attention here has one
head and no mask; the chapters that follow build the real one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from .runtime import check_size


class Recurrence(nn.Module):
    r"""Read one token after another, and carry a summary of all that came before.

    .. math:: h_t = \tanh(x_t W + h_{t-1} U + b)

    Shape:
        - x (B, T, d_model)
        - output (B, T, d_model)

    Reference:
        Elman 1990.
    """

    def __init__(self, d_model: int):
        super().__init__()
        check_size("d_model", d_model)
        self.layer = nn.RNN(d_model, d_model, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Convolution(nn.Module):
    r"""Mix each token with its neighbours, the same way everywhere.

    .. math:: y_t = \sum_{j=0}^{k-1} x_{t - j} W_j + b

    Only tokens to the left are seen, so that the last output, like that of the others, has read the past.

    Args:
        d_model: width.
        kernel: number k of tokens that an output sees, itself included.

    Shape:
        - x (B, T, d_model)
        - output (B, T, d_model)

    Reference:
        LeCun et al. 1989; Gehring et al. 2017.
    """

    def __init__(self, d_model: int, kernel: int = 3):
        super().__init__()
        check_size("d_model", d_model)
        check_size("kernel", kernel)
        self.kernel = kernel
        self.layer = nn.Conv1d(d_model, d_model, kernel)

    def forward(self, x: Tensor) -> Tensor:
        past = nn.functional.pad(x.transpose(1, 2), (self.kernel - 1, 0))  # (B, d_model, kernel - 1 + T)
        return self.layer(past).transpose(1, 2)


class Attention(nn.Module):
    r"""Let each token look at every other and take what fits.

    .. math:: \mathrm{softmax}\!\left(\frac{QK^\top}{\sqrt{d}}\right) V

    Args:
        d_model: width.
        projections: with False, queries, keys and values are the tokens themselves: the mixing alone.

    Shape:
        - x (B, T, d_model)
        - output (B, T, d_model)

    Reference:
        Vaswani et al. 2017, section 3.2.1.
    """

    def __init__(self, d_model: int, projections: bool = True):
        super().__init__()
        check_size("d_model", d_model)
        made = [nn.Linear(d_model, d_model) if projections else nn.Identity() for _ in range(4)]
        self.query, self.key, self.value, self.output = made

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2)  # (B, T, T)
        weights = (scores * x.size(-1) ** -0.5).softmax(dim=-1)
        return self.output(weights @ self.value(x))


def count_operations(layer: nn.Module, length: int, d_model: int) -> int:
    """Count the multiplications and additions of one forward pass over a sequence, with torch's counter.

    The counter sees matrix products: in `nn.RNN`, `nn.GRU`, convolutions and explicit attention. It returns 0
    for `nn.LSTM` and for torch's fused attention.

    Raises:
        ValueError: when `length` or `d_model` is below 1.
    """
    check_size("length", length)
    check_size("d_model", d_model)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        layer(torch.zeros(1, length, d_model))
    return counter.get_total_flops()


def fitted_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    r"""Fit costs to a power of the size, :math:`c \cdot n^p`, and return the exponent p.

    It is the slope of a straight line through the logarithms.

    Raises:
        ValueError: when there are fewer than two different sizes or a number is not above 0.
    """
    if len(sizes) != len(costs) or len(set(sizes)) < 2:
        raise ValueError(f"sizes ({len(sizes)}) must be two or more, with as many costs, got {len(costs)}")
    if min(*sizes, *costs) <= 0:
        raise ValueError(f"sizes and costs must be above 0, got {min(*sizes, *costs)}")
    x, y = (torch.tensor(values, dtype=torch.float64).log() for values in (sizes, costs))
    x, y = x - x.mean(), y - y.mean()
    return ((x * y).sum() / (x * x).sum()).item()


def sequential_steps(kind: str, length: int) -> int:
    """Count what cannot run at the same time: steps that wait for the step before.

    Args:
        kind: "recurrence", "convolution" or "attention".
        length: tokens in the sequence.

    Raises:
        ValueError: when the kind is unknown or `length` below 1.

    Reference:
        Vaswani et al. 2017, table 1.
    """
    check_size("length", length)
    return {"recurrence": length, "convolution": 1, "attention": 1}[_known(kind)]


def path_length(kind: str, distance: int, kernel: int = 3) -> int:
    """Count the layers or steps that a token passes on its way to one that stands `distance` further.

    Recurrence takes a step for each place. A convolution reaches kernel - 1 places a layer, so it takes
    several layers. Attention takes one.

    Args:
        kind: "recurrence", "convolution" or "attention".
        distance: places between the two tokens; 0 is the token itself.
        kernel: tokens that an output of the convolution sees.

    Raises:
        ValueError: when the kind is unknown, `distance` negative, or the kernel too narrow to get anywhere.

    Reference:
        Vaswani et al. 2017, table 1.
    """
    check_size("distance", distance, minimum=0)
    check_size("kernel", kernel, minimum=2)
    steps = {
        "recurrence": distance + 1,
        "convolution": max(1, math.ceil(distance / (kernel - 1))),
        "attention": 1,
    }
    return steps[_known(kind)]


def influence(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Measure how much the last output depends on each input: the norm of the gradient.

    Args:
        layer: any of the three, or several in a row.
        x: the inputs.

    Shape:
        - x (B, T, d_model)
        - output (T,), the mean over the batch
    """
    x = x.detach().clone().requires_grad_()
    weights = torch.randn(x.size(-1), generator=torch.Generator().manual_seed(0)).to(x)
    (layer(x)[:, -1] @ weights).sum().backward()
    return x.grad.norm(dim=-1).mean(dim=0)


def recall_batch(
    batch: int, length: int, distance: int, vocab_size: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw random sequences and, for each, the token that stands `distance` places before its end.

    Shape:
        - ids (batch, length)
        - answers (batch,)

    Raises:
        ValueError: when a size is below 1 or the distance reaches beyond the start.
    """
    for name, value in (("batch", batch), ("length", length), ("vocab_size", vocab_size)):
        check_size(name, value)
    check_size("distance", distance, minimum=0)
    if distance >= length:
        raise ValueError(f"distance ({distance}) must be below length ({length})")
    ids = torch.randint(vocab_size, (batch, length), generator=generator)
    return ids, ids[:, length - 1 - distance]


class Recaller(nn.Module):
    """Embed tokens and places, mix them by a layer, and name a token from the last output.

    Shape:
        - ids (B, T)
        - output (B, V)
    """

    def __init__(self, layer: nn.Module, vocab_size: int, d_model: int, length: int):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.places = nn.Embedding(length, d_model)
        self.layer = layer
        self.answer = nn.Linear(d_model, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.size(1)]
        return self.answer(self.layer(x)[:, -1])


def _known(kind: str) -> str:
    kinds = ("recurrence", "convolution", "attention")
    if kind not in kinds:
        raise ValueError(f"kind ({kind!r}) must be one of {', '.join(kinds)}")
    return kind
