"""Time and memory of recurrence, convolution and attention against the length of the sequence.

    python benchmarks/sequence_models.py            prints a table
    python benchmarks/sequence_models.py --save     also writes it, for the chapter `sequence_models`

The layers alternate, each is run several times, and the least time counts. Memory is what a forward pass
keeps for the backward pass, by the sizes of the tensors that autograd saves.
"""

from __future__ import annotations

import argparse
import time

import torch

from annotated_transformer.data.results import describe_machine, save_results
from annotated_transformer.sequence_models import Attention, Convolution, Recurrence

LENGTHS = (64, 128, 256, 512, 1024, 2048)
WIDTH = 128
REPEATS = 7


def seconds(layer: torch.nn.Module, x: torch.Tensor) -> float:
    begin = time.perf_counter()
    layer(x).sum().backward()
    return time.perf_counter() - begin


def saved_bytes(layer: torch.nn.Module, x: torch.Tensor) -> int:
    """Add up the tensors that are kept for the backward pass, each storage once, without the weights."""
    sizes: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in layer.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x)
    return sum(sizes.values())


def measure() -> list[dict]:
    torch.manual_seed(0)
    layers = {
        "recurrence": Recurrence(WIDTH),
        "convolution": Convolution(WIDTH),
        "attention": Attention(WIDTH),
    }
    rows = []
    for length in LENGTHS:
        x = torch.randn(1, length, WIDTH, requires_grad=True)
        times = {name: [] for name in layers}
        for _ in range(REPEATS):
            for name, layer in layers.items():
                times[name].append(seconds(layer, x))
        for name, layer in layers.items():
            row = {
                "layer": name,
                "length": length,
                "width": WIDTH,
                "milliseconds": round(1e3 * min(times[name]), 3),
            }
            rows.append(row | {"kibibytes": round(saved_bytes(layer, x) / 1024)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write the result as JSON for the chapter")
    arguments = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in describe_machine().items()))
    rows = measure()
    print(f"{'layer':12} {'length':>6} {'ms':>9} {'KiB kept':>9}")
    for row in rows:
        print(f"{row['layer']:12} {row['length']:6} {row['milliseconds']:9.3f} {row['kibibytes']:9}")
    if arguments.save:
        print("written to", save_results("sequence_models", rows))


if __name__ == "__main__":
    main()
