"""Writing text with a language model: sampling, caches, streams. Chapter: `generation`."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .decoding import KVCache, check_search
from .encoder_decoder import EncoderLayer
from .gpt import GPT
from .runtime import check_size, evaluating

FLOAT32 = torch.finfo(torch.float32)
LARGE_PAGE = 2**21  # bytes
FEW_ROWS = 8  # up to here weights in eight bits are multiplied as they are stored


def repetition_penalty(logits: Tensor, previous_ids: Tensor, penalty: float) -> Tensor:
    """Make tokens that already stand in the text less likely, each once, however often it stands there.

    Positive logits are divided by the penalty and negative ones multiplied: both get smaller.

    Args:
        logits: scores of the next token; left as they are.
        previous_ids: the tokens so far.
        penalty: above 0; 1 changes nothing, above 1 discourages, below 1 encourages.

    Shape:
        - logits (B, V)
        - previous_ids (B, n)
        - output (B, V)

    Raises:
        ValueError: when the penalty is not above 0.

    Reference:
        Keskar et al. 2019, section 4.1.
    """
    if not penalty > 0:
        raise ValueError(f"repetition_penalty ({penalty}) must be above 0")
    seen = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, previous_ids, True)
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def filter_top_k(logits: Tensor, top_k: int) -> Tensor:
    """Keep the `top_k` highest logits of each row and set the rest to -inf; more than V keeps all.

    Raises:
        ValueError: when `top_k` is below 1.

    Reference:
        Fan et al. 2018.
    """
    check_size("top_k", top_k)
    if top_k >= logits.size(-1):
        return logits.clone()
    values, kept = logits.topk(top_k, dim=-1)
    return torch.full_like(logits, -math.inf).scatter(-1, kept, values)


def filter_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Keep the fewest likeliest tokens whose probabilities sum to at least `top_p`; the rest becomes -inf.

    Raises:
        ValueError: when `top_p` is not above 0 and at most 1.

    Reference:
        Holtzman et al. 2020.
    """
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p ({top_p}) must be above 0 and at most 1")
    if top_p == 1:
        return logits.clone()
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # mass of the likelier tokens
    before[..., 0] = 0.0  # rounding must not drop the likeliest
    kept = ordered.masked_fill(before >= top_p, -math.inf)
    return torch.empty_like(logits).scatter_(-1, order, kept)


def filter_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Keep tokens at least `min_p` times as likely as the likeliest; the rest becomes -inf.

    Raises:
        ValueError: when `min_p` is not from 0 to 1.

    Reference:
        Nguyen et al. 2024.
    """
    if not 0 <= min_p <= 1:
        raise ValueError(f"min_p ({min_p}) must be from 0 to 1")
    if min_p == 0:
        return logits.clone()
    lowest = logits.amax(dim=-1, keepdim=True) + math.log(min_p)
    return logits.masked_fill(logits < lowest, -math.inf)


def check_logits(logits: Tensor) -> Tensor:
    """Return the highest logit of each row, if there is a token to choose in every row.

    Shape:
        - logits (..., V)
        - output (..., 1)

    Raises:
        ValueError: when a row has a NaN, or its highest logit is infinite.
    """
    highest = logits.amax(dim=-1, keepdim=True)
    if not bool(highest.isfinite().all()):
        if highest.isnan().any():
            raise ValueError("logits must be numbers, got NaN")
        raise ValueError("logits must leave a token to choose, got a row whose highest is infinite")
    return highest


def next_token_probabilities(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    r"""Turn logits into the distribution that is sampled from.

    .. math:: P(x_i) = \frac{\exp(z_i / T)}{\sum_j \exp(z_j / T)}

    First the temperature T, then top-k, top-p and min-p, then the softmax over what is left. Temperature 0
    is the limit: all the mass on the highest logit (on the first of them where several are equal).

    Args:
        logits: scores of the next token.
        temperature: 0 or above; below 1 sharpens, above 1 flattens.
        top_k: tokens kept, or None for all.
        top_p: mass kept, or None for all.
        min_p: least probability kept, as a share of the highest, or None for 0.

    Shape:
        - logits (..., V)
        - output (..., V), float32, each row sums to one

    Raises:
        ValueError: when an argument is out of its range, or a row of logits has a NaN or nothing to choose.

    Reference:
        Ackley et al. 1985 for the temperature.
    """
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature ({temperature}) must be 0 or above and finite")
    logits = logits.float()
    highest = check_logits(logits)
    first = logits.argmax(dim=-1, keepdim=True)
    # the highest logit becomes 0 before the division, so that a tiny temperature cannot overflow
    logits = (logits - highest) / min(max(temperature, FLOAT32.tiny), FLOAT32.max)
    if top_k is not None:
        logits = filter_top_k(logits, top_k)
    if top_p is not None:
        logits = filter_top_p(logits, top_p)
    if min_p is not None:
        logits = filter_min_p(logits, min_p)
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, first, 1.0)
    return logits.softmax(dim=-1)


def sample(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw the next token of each row; arguments and errors are those of `next_token_probabilities`.

    Args:
        generator: source of randomness on the CPU, so that a seed gives the same text on every device.

    Shape:
        - logits (B, V)
        - output (B,)
    """
    if temperature == 0 and top_k is top_p is min_p is None:
        check_logits(logits)
        return logits.max(dim=-1).indices  # as argmax, which takes four times as long in bfloat16
    probabilities = next_token_probabilities(logits, temperature, top_k, top_p, min_p)
    drawn = torch.multinomial(probabilities.cpu(), 1, generator=generator)
    return drawn[:, 0].to(logits.device)


def check_keep(keep: Tensor) -> None:
    """Raise unless `keep` marks prompts of at least one real token, padded on the left.

    Shape:
        - keep (B, T), boolean, True = real token

    Raises:
        TypeError: when it is not boolean.
        ValueError: when a row has padding after a real token, or no real token.
    """
    if keep.dtype != torch.bool:
        raise TypeError(f"keep must be a boolean tensor (True = real token), got {keep.dtype}")
    if bool((keep[:, :-1] & ~keep[:, 1:]).any()):
        raise ValueError("keep must have its padding on the left, got a real token before padding")
    if not bool(keep.any(dim=1).all()):
        raise ValueError("keep must leave a real token in each row, got a row of padding")


class GPTStep:
    """The step function of a GPT: keeps keys and values, so each call computes only what is new.

    When the context is full, `beyond` decides: "error" raises, "slide" drops the older half of the tokens and
    reads the newer half again, with positions from 0. Without a cache the same rule gives the same tokens.

    Args:
        model: the GPT; call `model.eval()` first.
        keep: real tokens of the prompt; padding stands on the left.
        beyond: "error" or "slide".
        use_cache: False computes everything anew at each step.
        prefill: the most tokens read at once; None reads a prompt in one piece.

    Shape:
        - ids of a call (B, T), all tokens so far; output (B, V)
        - keep (B, T of the first call), boolean

    Raises:
        TypeError: when `keep` is not boolean.
        ValueError: when an argument is out of its range, `keep` has another shape than the prompt, padding on
            the right or a row of nothing else, or the context is full and `beyond` is "error".
    """

    def __init__(
        self,
        model: GPT,
        keep: Tensor | None = None,
        beyond: str = "error",
        use_cache: bool = True,
        prefill: int | None = None,
    ):
        if beyond not in ("error", "slide"):
            raise ValueError(f"beyond ({beyond!r}) must be 'error' or 'slide'")
        if prefill is not None:
            check_size("prefill", prefill)
        if keep is not None:
            check_keep(keep)
        self.model, self.keep, self.beyond, self.prefill = model, keep, beyond, prefill
        self.start = 0  # where the window begins
        self.cache = model.new_cache() if use_cache else None

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> Tensor:
        max_len = self.model.config.max_len
        if ids.size(1) - self.start > max_len:
            if self.beyond == "error":
                raise ValueError(f"sequence length ({ids.size(1)}) must not exceed max_len ({max_len})")
            self.start = ids.size(1) - (max_len + 1) // 2
            self.cache = None if self.cache is None else self.model.new_cache()
        window, keep = ids[:, self.start :], self._keep(ids)
        if self.cache is None:
            return self.model(window, keep)[:, -1]
        end, length = self.cache[0].length, window.size(1)
        if end >= length:
            raise ValueError(
                f"ids (length {ids.size(1)}) must be longer than what was seen ({self.start + end})"
            )
        while end < length:
            begin, end = end, length if self.prefill is None else min(end + self.prefill, length)
            logits = self.model(
                window[:, begin:end], None if keep is None else keep[:, :end], cache=self.cache
            )
        return logits[:, -1]

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Let row `i` continue row `rows[i]`."""
        for cache in self.cache or ():
            cache.reorder(rows)
        if self.keep is not None:
            self.keep = self.keep[rows]

    def _keep(self, ids: Tensor) -> Tensor | None:
        if self.keep is None:
            return None
        if len(self.keep) != len(ids) or self.keep.size(1) > ids.size(1):
            raise ValueError(f"keep (shape {tuple(self.keep.shape)}) must be {tuple(ids.shape)}, as ids say")
        new = self.keep.new_ones(len(ids), ids.size(1) - self.keep.size(1))
        self.keep = torch.cat([self.keep, new], dim=1)
        return self.keep[:, self.start :]


def stream(
    step,
    ids: Tensor,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    penalty: float = 1.0,
    stop_ids: Sequence[int] = (),
    pad_id: int = 0,
    generator: torch.Generator | None = None,
    keep: Tensor | None = None,
) -> Iterator[Tensor]:
    """Yield the next token of each row as soon as it is drawn.

    A row that has drawn a stop token continues with `pad_id`; the stream ends when every row has, or after
    `max_new_tokens`. What is impossible is refused by the call itself, before the first token.

    Args:
        step: takes all ids so far (B, T) and returns logits (B, V), such as a `GPTStep`.
        ids: the prompts.
        max_new_tokens: the most tokens drawn for each row; 0 draws none.
        temperature: see `next_token_probabilities`, as for `top_k`, `top_p` and `min_p`.
        penalty: see `repetition_penalty`.
        stop_ids: tokens that end a row.
        pad_id: what follows a stop token.
        generator: source of randomness, on the CPU.
        keep: real tokens of the prompts; the penalty overlooks the others.

    Shape:
        - ids, keep (B, T)
        - each item (B,)

    Raises:
        ValueError: when an argument is out of its range or a prompt is empty.
    """
    check_search(ids, max_new_tokens)
    # one certain token tries the settings out
    logits = repetition_penalty(torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.long), penalty)
    next_token_probabilities(logits, temperature, top_k, top_p, min_p)

    @torch.no_grad()
    def draw(ids: Tensor, said: Tensor) -> Iterator[Tensor]:
        stops = torch.tensor(list(stop_ids), dtype=ids.dtype, device=ids.device)
        ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        for _ in range(max_new_tokens):
            if ended.all():
                return
            logits = step(ids)
            if penalty != 1.0:
                logits = repetition_penalty(logits, said, penalty)
            drawn = sample(logits, temperature, top_k, top_p, min_p, generator).masked_fill(ended, pad_id)
            ended |= torch.isin(drawn, stops)
            ids, said = (torch.cat([past, drawn[:, None]], dim=1) for past in (ids, said))
            yield drawn

    return draw(ids, ids if keep is None else torch.where(keep, ids, ids[:, -1:]))


def generate(
    model: GPT,
    ids: Tensor,
    max_new_tokens: int,
    keep: Tensor | None = None,
    beyond: str = "slide",
    use_cache: bool = True,
    prefill: int | None = None,
    **sampling,
) -> Tensor:
    """Continue each prompt and return it with what was drawn.

    The model is in eval mode for the call; afterwards each part is back in its own mode.

    Args:
        model: the GPT.
        ids: the prompts.
        max_new_tokens: the most tokens drawn for each row.
        keep: real tokens of the prompts; padding stands on the left.
        beyond: see `GPTStep`, as for `use_cache` and `prefill`.
        sampling: see `stream`.

    Shape:
        - ids, keep (B, T)
        - output (B, T + n), with n up to `max_new_tokens`

    Raises:
        TypeError: when `keep` is not boolean.
        ValueError: as in `GPTStep` and `stream`.
    """
    if keep is not None and keep.shape != ids.shape:
        raise ValueError(f"keep (shape {tuple(keep.shape)}) must be {tuple(ids.shape)}, as ids say")
    with evaluating(model):
        step = GPTStep(model, keep, beyond, use_cache, prefill)
        drawn = list(stream(step, ids, max_new_tokens, keep=keep, **sampling))
    return torch.cat([ids, *(column[:, None] for column in drawn)], dim=1)


class TokenLinear(nn.Linear):
    """Compute what `nn.Linear` does; a single token takes the product of a matrix and a vector.

    A CPU reads the weights once for it. In bfloat16 the product of two matrices would arrange them anew at
    each call first, for one token as for a thousand.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() != self.in_features or torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        return _product(self, x.reshape(-1)).view(*x.shape[:-1], -1)


class Int8Linear(nn.Module):
    r"""Compute what `nn.Linear` does, nearly, with each weight stored in eight bits.

    .. math:: y_i = s_i \sum_j q_{ij} x_j + b_i \qquad q_{ij} = \mathrm{round}(w_{ij} / s_i)

    A row of the matrix has one scale, and its largest weight is 127 times that. So a weight is off by at most
    half a scale. Inputs and outputs are bfloat16; nothing is rounded to eight bits but the weights. It is for
    writing, not for training: there are no gradients.

    Args:
        layer: what is stored; its bias is used, not copied.

    Shape:
        - x (..., d_in)
        - output (..., d_out)

    Reference:
        Dettmers et al. 2022, for a scale for each row.
    """

    def __init__(self, layer: nn.Linear):
        super().__init__()
        weight = layer.weight.detach().float()
        scale = (weight.abs().amax(dim=1) / 127 * (1 + 2**-8)).bfloat16()  # not below 1/127 when rounded
        scale = scale.clamp(min=torch.finfo(torch.bfloat16).tiny)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.register_buffer("weight", _arranged((weight / scale[:, None].float()).round().to(torch.int8)))
        self.register_buffer("scale", scale)  # (d_out,)
        self.bias = layer.bias
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        return _product(self, x.reshape(-1, self.in_features)).view(*x.shape[:-1], -1)


class TokenLayer(EncoderLayer):
    """A layer of a GPT that computes a single token in one go, and everything else as `EncoderLayer`.

    For one token the calls cost as much as the numbers. So query, key and value are one product, whose matrix
    the three projections share, and in floating point the residual is added by the product that writes to it.

    Args:
        layer: a layer of a `GPT`; its parts are used, not copied.

    Shape:
        As `EncoderLayer`. The short way is taken for x (1, 1, d_model) with a cache and without mask, in eval
        mode, without gradients and outside autocast.
    """

    def __init__(self, layer: EncoderLayer):
        super().__init__(layer.self_attention, layer.feed_forward, layer.residuals)
        self.train(layer.training)
        self.register_load_state_dict_post_hook(_merge_again)
        self.merge()

    @torch.no_grad()
    def merge(self) -> None:
        """Store the three projections one below the other; each parameter becomes a part of the whole."""
        attention = self.self_attention
        projections = (attention.query_projection, attention.key_projection, attention.value_projection)
        for name in ("weight", "scale", "bias"):  # (3 d_model, d_model), (3 d_model,) and again
            parts = [getattr(projection, name, None) for projection in projections]
            whole = None if parts[0] is None else torch.cat(parts)
            if name == "weight":
                whole = _arranged(whole)
            setattr(self, name, whole)
            for i, part in enumerate(parts):
                if part is not None:
                    part.data = whole.chunk(3)[i]

    def _apply(self, fn, recurse: bool = True):  # another device or precision
        super()._apply(fn, recurse)
        self.merge()
        return self

    def __setstate__(self, state: dict) -> None:  # a copy
        super().__setstate__(state)
        self.merge()

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: KVCache | None = None) -> Tensor:
        single = x.shape[:2] == (1, 1) and mask is None and cache is not None
        plain = not (self.training or torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type))
        if not (single and plain):
            return super().forward(x, mask, cache)
        attention, feed_forward = self.self_attention, self.feed_forward
        row = x.view(-1)  # (d_model,)
        projected = _product(self, self.residuals[0].norm(row))
        query, key, value = projected.view(3, 1, attention.num_heads, 1, -1)  # each (1, H, 1, D)
        mixed = F.scaled_dot_product_attention(query, *cache.update(key, value)).view(-1)
        row = _product(attention.output_projection, mixed, row)
        hidden = _product(feed_forward.widen, self.residuals[1].norm(row))  # (d_ff,)
        return _product(feed_forward.narrow, feed_forward.activation(hidden), row).view_as(x)


def _merge_again(layer: TokenLayer, keys: object) -> None:
    layer.merge()


def _product(layer: nn.Module, x: Tensor, added: Tensor | None = None) -> Tensor:
    """The layer's matrix times one row, (d_in,) to (d_out,), plus its bias and what else is added.

    With weights in eight bits it may be several rows.
    """
    weight, scale, bias = layer.weight, getattr(layer, "scale", None), layer.bias
    if scale is not None:
        y = _int8_product(x.view(-1, x.size(-1)), weight, scale).view(*x.shape[:-1], -1)
        y = y if bias is None else y.add_(bias)
        return y if added is None else y.add_(added)
    if added is not None:
        bias = added if bias is None else added + bias
    return weight.mv(x) if bias is None else torch.addmv(bias, weight, x)


def _int8_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Rows times a matrix in eight bits: (n, d_in) to (n, d_out).

    For a few rows torch reads the weights as they are stored. Its function is not public. It crashes where
    the width is not a multiple of 16, and for many rows it is slower than to write the weights out first.
    """
    few = len(x) <= FEW_ROWS and x.size(1) % 32 == 0 and x.device.type == "cpu"
    if few and x.dtype == scale.dtype == torch.bfloat16 and hasattr(torch, "_weight_int8pack_mm"):
        return torch._weight_int8pack_mm(x, weight, scale)
    return F.linear(x, weight.to(x.dtype)) * scale.to(x.dtype)  # the whole numbers are exact


def _arranged(weight: Tensor) -> Tensor:
    """Lay a matrix in memory as a product with a vector reads it fastest: float32 column by column."""
    if weight.dtype == torch.float32:
        return _in_large_pages(weight.t()).t()
    return _in_large_pages(weight)


def _in_large_pages(weight: Tensor) -> Tensor:
    """Copy a matrix to memory of its own, in pages of 2 MB where the system has such.

    A processor looks up where each page lies. With the usual 4 KB it does so once for every few rows.
    """
    size = weight.numel() * weight.element_size()
    if weight.device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE") or size < LARGE_PAGE // 2:
        return weight.contiguous()
    memory = mmap.mmap(-1, size + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    free = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -free.data_ptr() % LARGE_PAGE  # where a page begins
    return free[begin : begin + size].view(weight.dtype).view(weight.shape).copy_(weight)


def for_single_tokens(model: nn.Module, dtype: torch.dtype | None = torch.int8) -> nn.Module:
    """Prepare a model, in place, to write token by token on a CPU, and return it.

    Reading the weights is most of that work, so what counts is how many bytes they have and how they lie in
    memory: float32 is read faster when each matrix is stored transposed.

    Args:
        model: any model; its `nn.Linear` layers become `TokenLinear` or `Int8Linear`, the layers of a `GPT`
            `TokenLayer`.
        dtype: torch.int8 stores matrices in eight bits and computes in bfloat16, which rounds: see
            `Int8Linear`. The matrix of a tied output is then a copy. In another precision, and with None,
            which leaves it, parameters keep their names and shapes and those that were tied stay tied.
    """
    eight = dtype == torch.int8
    for module in list(model.modules()):
        for name, part in module.named_children():
            if eight and isinstance(part, nn.Linear):
                setattr(module, name, Int8Linear(part))
            elif not eight and type(part) is nn.Linear:
                quick = TokenLinear(part.in_features, part.out_features, device="meta").train(part.training)
                quick.weight, quick.bias = part.weight, part.bias
                setattr(module, name, quick)
    if dtype is not None:
        model.to(torch.bfloat16 if eight else dtype)
    for module in model.modules():
        if isinstance(module, TokenLinear):
            module.weight.data = _arranged(module.weight.data)
    if isinstance(model, GPT):
        model.decoder.layers = nn.ModuleList(map(TokenLayer, model.decoder.layers))
    return model
