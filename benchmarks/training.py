"""One training step at equal size: tokens per second of this package, torch.nn.Transformer and Marian.

    python benchmarks/training.py            prints a table
    python benchmarks/training.py --save     also writes it, for the chapter `performance`

Everyone gets the same batch with the same source mask, the same loss, the same trainer with a fused AdamW and
clipping, and the same precision. `ours` is `make_model`, which drops attention weights too, as torch.nn does.
`ours, recipe` is the project's default recipe, which drops where Marian does, and its default is bfloat16.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
import transformers
from peers import (
    BATCH,
    LENGTH,
    VOCAB,
    Marian,
    TorchTransformer,
    least_seconds,
    our_model,
    our_recipe,
    print_machine,
)
from torch import nn

from annotated_transformer.data.results import save_results
from annotated_transformer.training import SequenceLoss, Trainer, copy_batch, decay_groups

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
MAKERS = {
    "ours": our_model,
    "ours, recipe": our_recipe,
    "torch.nn": TorchTransformer,
    "Marian": Marian,
    "Marian, eager": partial(Marian, "eager"),
}


def trainer(model: nn.Module, precision: str) -> Trainer:
    src, tgt = copy_batch(BATCH, LENGTH, VOCAB)
    optimizer = torch.optim.AdamW(decay_groups(model), lr=0.0, betas=(0.9, 0.98), fused=True)
    loss, autocast = SequenceLoss(pad_id=0, smoothing=0.1), PRECISIONS[precision]
    return Trainer(model.train(), loss, lambda _: [(src, tgt)], lambda _: 1e-4, optimizer, autocast=autocast)


def measure(repeats: int, steps: int) -> list[dict]:
    torch.manual_seed(0)
    runs = {
        (name, precision): trainer(make(), precision)
        for name, make in MAKERS.items()
        for precision in PRECISIONS
    }
    seconds = least_seconds({key: lambda t=t: t.run(steps) for key, t in runs.items()}, repeats)
    speed = {key: BATCH * LENGTH * steps / value for key, value in seconds.items()}
    libraries = {
        "torch.nn": f"torch {torch.__version__}",
        "Marian": f"transformers {transformers.__version__}",
    }
    return [
        {
            "model": name,
            "precision": precision,
            "version": libraries.get(name.partition(",")[0], ""),
            "tokens per second": round(value),
            "ratio": round(value / speed["torch.nn", "float32"], 2),
        }
        for (name, precision), value in speed.items()
    ]


def goals(rows: list[dict]) -> list[dict]:
    """Compare with what was asked for."""
    speed = {(row["model"], row["precision"]): row["tokens per second"] for row in rows}
    peer = max(speed[name, "bfloat16"] for name in MAKERS if not name.startswith("ours"))
    ratios = {
        "ours / torch.nn, bfloat16": (speed["ours", "bfloat16"] / speed["torch.nn", "bfloat16"], 1.1, 1.4),
        "ours, recipe / fastest peer, bfloat16": (speed["ours, recipe", "bfloat16"] / peer, 1.1, 1.4),
        "default recipe / torch.nn float32": (
            speed["ours, recipe", "bfloat16"] / speed["torch.nn", "float32"], 3.0, 3.8
        ),
    }  # fmt: skip
    return [
        {"goal": name, "ratio": round(ratio, 2), "must": must, "aim": aim}
        for name, (ratio, must, aim) in ratios.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write the result as JSON for the chapter")
    parser.add_argument("--repeats", type=int, default=12, help="rounds, of which the fastest counts")
    parser.add_argument("--steps", type=int, default=3, help="training steps of a round")
    arguments = parser.parse_args()
    print_machine()
    rows = measure(arguments.repeats, arguments.steps)
    print(f"{'model':14}{'precision':12}{'tokens/s':>10}{'to torch.nn float32':>22}")
    for row in rows:
        print(f"{row['model']:14}{row['precision']:12}{row['tokens per second']:10,}{row['ratio']:22.2f}")
    met = goals(rows)
    print(f"\n{'ratio':40}{'measured':>10}{'must':>8}{'aim':>8}")
    for row in met:
        print(f"{row['goal']:40}{row['ratio']:10.2f}{row['must']:8.2f}{row['aim']:8.2f}")
    if arguments.save:
        print("written to", save_results("training", rows + met))


if __name__ == "__main__":
    main()
