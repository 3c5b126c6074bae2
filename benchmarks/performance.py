"""What made the difference: each measure of the package alone, with and without it.

    python benchmarks/performance.py            prints a table
    python benchmarks/performance.py --save     also writes it, for the chapter `performance`

Every pair does the same work on the same weights, in turn, and the least time of several rounds counts.
The model is the project's recipe at the size of the other benchmarks: width 256, 4 heads, 3 + 3 layers.
Training and decoding run in bfloat16 autocast; the products for one token have the matrices of
GPT-2's smallest shape.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial

import torch
from peers import (
    BATCH,
    BEGIN,
    D_MODEL,
    END,
    HEADS,
    LENGTH,
    PAD,
    VOCAB,
    least_seconds,
    our_recipe,
    print_machine,
)
from torch import Tensor, nn

from annotated_transformer.attention import fused_attention, scaled_dot_product_attention
from annotated_transformer.data import cmudict
from annotated_transformer.data.results import save_results
from annotated_transformer.decoding import KVCache, TransformerStep, beam_search, greedy_search
from annotated_transformer.generation import Int8Linear, for_single_tokens
from annotated_transformer.recipes import ByteDropout, g2p_model, g2p_pairs
from annotated_transformer.training import (
    SequenceLoss,
    Trainer,
    bucketed_batches,
    copy_batch,
    decay_groups,
    pad,
)

WORDS, BEAMS, NEVER = (
    256,
    5,
    -1e4,
)  # the bias rules the end token out, so that all searches take as many steps
TOKENS = 2000  # of a batch of words
LENGTHS = (16, 64, 256, 512, 1024, 2048)


def trainer(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Trainer:
    optimizer = torch.optim.AdamW(decay_groups(model), lr=0.0, betas=(0.9, 0.98), fused=True)
    loss = SequenceLoss(PAD, smoothing=0.1)
    return Trainer(model, loss, lambda _: batches, lambda _: 1e-4, optimizer, autocast=torch.bfloat16)


def pair(measure: str, unit: str, amount: float, runs: dict[str, Callable[[], object]], repeats: int) -> dict:
    """Compare two ways, the measure first; the result is the amount done in a second."""
    (better, best), (plain, worst) = least_seconds(runs, repeats).items()
    return {
        "measure": measure, "unit": unit, "with": better, "without": plain,
        "speed with": round(amount / best), "speed without": round(amount / worst),
        "ratio": round(worst / best, 2),
    }  # fmt: skip


def buckets(repeats: int) -> list[dict]:
    """Train on words of the dictionary, in batches of like length or of any; only real tokens count."""
    pairs = g2p_pairs(cmudict.split_by_headword(cmudict.load_cmudict()).dev)[:1000]
    lengths = [(len(tgt), len(src)) for src, tgt in pairs]
    order = random.Random(0).sample(range(len(pairs)), len(pairs))
    rows = TOKENS // max(map(max, lengths))  # what fits, whatever the lengths
    plans = {
        "batches of like length": bucketed_batches(lengths, TOKENS),
        "batches of any length": [order[i : i + rows] for i in range(0, len(order), rows)],
    }
    runs, padding = {}, {}
    for name, plan in plans.items():
        batches = [tuple(pad([pairs[i][side] for i in batch], PAD) for side in (0, 1)) for batch in plan]
        ids = torch.cat([part.flatten() for batch in batches for part in batch])
        padding[name] = round((ids == PAD).double().mean().item(), 3)
        runs[name] = partial(trainer(g2p_model(), batches).run, len(batches))
    tokens = sum(tgt - 1 for tgt, _ in lengths)
    return [pair("length buckets", "tokens", tokens, runs, repeats) | {"padding": padding}]


def dropout(repeats: int) -> list[dict]:
    """Train with eight bits a decision, with torch's dropout, and without any."""
    runs = {}
    for name in ("eight bits", "torch's dropout", "no dropout"):
        model = our_recipe()
        for module in model.modules():
            for child, part in module.named_children():
                if isinstance(part, ByteDropout):
                    kind = {
                        "eight bits": part,
                        "torch's dropout": nn.Dropout(part.p),
                        "no dropout": nn.Dropout(0.0),
                    }
                    setattr(module, child, kind[name])
        run = trainer(model, [copy_batch(BATCH, LENGTH, VOCAB)])
        runs[name] = partial(run.run, 2)
    seconds = least_seconds(runs, repeats)
    speed = {name: round(2 * BATCH * LENGTH / value) for name, value in seconds.items()}
    ratio = seconds["torch's dropout"] / seconds["eight bits"]
    return [{
        "measure": "random bits", "unit": "tokens", "with": "eight bits", "without": "torch's dropout",
        "speed with": speed["eight bits"], "speed without": speed["torch's dropout"],
        "ratio": round(ratio, 2), "no dropout": speed["no dropout"],
    }]  # fmt: skip


def kernels(repeats: int) -> list[dict]:
    """Attend forward and backward, and forward alone, explicitly and with torch's fused kernel."""
    rows = []
    for length in LENGTHS:
        for precision in (torch.float32, torch.bfloat16):
            shape = (max(1, 4096 // length), HEADS, length, D_MODEL // HEADS)
            q, k, v = (torch.randn(shape, dtype=precision, requires_grad=True) for _ in range(3))
            both = {
                "explicit": lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v)[0].sum().backward(),
                "fused": lambda q=q, k=k, v=v: fused_attention(q, k, v).sum().backward(),
            }
            a, b, c = (part.detach() for part in (q, k, v))
            forward = {
                "explicit forward": lambda a=a, b=b, c=c: scaled_dot_product_attention(a, b, c),
                "fused forward": lambda a=a, b=b, c=c: fused_attention(a, b, c),
            }
            seconds = least_seconds(both | forward, repeats)
            milliseconds = {f"{name} ms": round(1e3 * value, 2) for name, value in seconds.items()}
            name = str(precision).removeprefix("torch.")
            rows.append({"measure": "attention kernel", "length": length, "precision": name} | milliseconds)
    return rows


class RowsFirst(KVCache):
    """A cache that keeps the positions of a row together: (B, H, max_len, D) in memory."""

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        end = self.length + key.size(2)
        if self._keys is None:
            B, H, _, D = key.shape
            self._keys, self._values = (key.new_empty(B, H, self.max_len, D) for _ in range(2))
        self._keys[:, :, self.length : end], self._values[:, :, self.length : end] = key, value
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def reorder(self, rows: Tensor) -> None:
        old = [self._keys, self._values]
        self._keys, self._values = (part.new_empty(len(rows), *part.shape[1:]) for part in old)
        for part, new in zip(old, (self._keys, self._values), strict=True):
            new[:, :, : self.length] = part[rows, :, : self.length]


class OwnKeys(TransformerStep):
    """A step in which each hypothesis has its own copy of the source's keys and values."""

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        super().reorder(rows)
        for cache in self.caches:
            if len(cache.memory[0]) != len(rows):
                cache.memory = tuple(part[rows] for part in cache.memory)


def searches(repeats: int) -> list[dict]:
    """Decode with and without what spares work."""
    model = our_recipe().eval()
    with torch.no_grad():
        model.generator.projection.bias[END] = NEVER
    src, start = torch.randint(3, VOCAB, (WORDS, LENGTH)), torch.full((WORDS, 1), BEGIN)
    limits = (END, PAD, LENGTH)

    def uncached() -> Tensor:
        memory = model.encode(src)
        step = lambda ids: model.generator(model.decode(ids, memory)[:, -1])  # noqa: E731
        return greedy_search(step, start, *limits)

    def beam(kind: type[TransformerStep], cache: type[KVCache] = KVCache) -> Tensor:
        step = kind(model, src, max_len=LENGTH + 1)
        for layer in step.caches:
            layer.self_attention = cache(LENGTH + 1)
        return beam_search(step, start, *limits, BEAMS)[0]

    def lower(search: Callable[..., Tensor], *arguments: object) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                return search(*arguments)

        return run

    greedy = lower(lambda: greedy_search(TransformerStep(model, src, max_len=LENGTH + 1), start, *limits))
    beams = lower(beam, TransformerStep)
    comparisons = {
        "key/value caches": {"cached": greedy, "all positions again": lower(uncached)},
        "cross-attention keys": {"shared by the beams": beams, "one copy a beam": lower(beam, OwnKeys)},
        "order of the cache": {
            "positions first": beams,
            "rows first": lower(beam, TransformerStep, RowsFirst),
        },
    }
    return [pair(name, "words", WORDS, runs, repeats) for name, runs in comparisons.items()]


def matrices(repeats: int) -> list[dict]:
    """Multiply one token by every matrix of GPT-2's smallest shape, stored in several ways."""
    widths = [(768, 2304), (768, 768), (768, 3072), (3072, 768)] * 12 + [(768, 50257)]
    plain = [nn.Linear(*width, bias=False, dtype=torch.bfloat16) for width in widths]
    eight = [Int8Linear(layer) for layer in plain]
    small_pages = [Int8Linear(layer) for layer in plain]
    for layer in small_pages:
        layer.weight = layer.weight.clone()  # memory as torch allocates it
    vector = for_single_tokens(nn.Sequential(*(deepcopy(layer) for layer in plain)), torch.bfloat16)
    tokens = {width: torch.randn(1, width, dtype=torch.bfloat16) for width, _ in widths}

    @torch.no_grad()
    def multiply(layers: Iterable[nn.Module]) -> None:
        for layer in layers:
            layer(tokens[layer.in_features])

    ways = {
        "product for one token": {"matrix and vector": vector, "two matrices": plain},
        "bits of a weight": {"eight": eight, "sixteen": vector},
        "size of a page": {"2 MB": eight, "4 KB": small_pages},
    }
    return [
        pair(name, "tokens", 1, {way: partial(multiply, layers) for way, layers in both.items()}, repeats)
        for name, both in ways.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write the result as JSON for the chapter")
    parser.add_argument("--repeats", type=int, default=5, help="rounds, of which the fastest counts")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print_machine()
    parts = (buckets, dropout, searches, matrices, kernels)
    rows = [row for part in parts for row in part(arguments.repeats)]
    print(f"{'measure':22}{'with':>22}{'without':>22}{'with/s':>9}{'without/s':>10}{'ratio':>7}")
    for row in (row for row in rows if "ratio" in row):
        print(f"{row['measure']:22}{row['with']:>22}{row['without']:>22}", end="")
        print(f"{row['speed with']:9,}{row['speed without']:10,}{row['ratio']:7.2f}")
    columns = f"{'explicit':>10}{'fused':>8}"
    print(f"\n{'length':>6}{'precision':>10}{columns}   forward alone{columns}")
    for row in (row for row in rows if "length" in row):
        print(
            f"{row['length']:6}{row['precision']:>10}{row['explicit ms']:10.2f}{row['fused ms']:8.2f}", end=""
        )
        print(f"{row['explicit forward ms']:26.2f}{row['fused forward ms']:8.2f}")
    if arguments.save:
        print("written to", save_results("performance", rows))


if __name__ == "__main__":
    main()
