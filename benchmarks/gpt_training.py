"""One training step of a GPT: tokens per second of this package, transformers and x-transformers.

    python benchmarks/gpt_training.py            prints a table
    python benchmarks/gpt_training.py --save     also writes it, for the chapter `performance`

The shape is nanoGPT's character model: 6 layers, 6 heads, width 384, context 256, 8 rows. Everyone gets the
same batch, the same loss, the same trainer with a fused AdamW and clipping, and the same precision. Nobody
drops anything out, because each library does so in other places. Peers run with the explicit and with the
fused attention, and the faster one counts. `ours` is `GPT` as it is built. `ours, recipe` has the parts that
the project's recipes put in for speed, norms that round once for all that follow and one product for query,
key and value, and the exact form of GELU, which x-transformers has too; `ours` and transformers have GPT-2's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from functools import partial

import torch
from gpt_peers import LIBRARIES, HuggingFace, XTransformers
from peers import print_goals, print_machine
from torch import Tensor, nn

from annotated_transformer.data.results import save_results
from annotated_transformer.gpt import GPT, GPTConfig
from annotated_transformer.recipes import use_fast_parts
from annotated_transformer.training import Trainer, cross_entropy, decay_groups

CONFIG = GPTConfig(vocab_size=65, max_len=256, d_model=384, num_layers=6, num_heads=6, dropout=0.0)
ROWS, EVERY = 8, -100  # every character counts: no target has this id
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
MAKERS = {
    "ours": GPT,
    "ours, recipe": lambda config: use_fast_parts(GPT(replace(config, activation="gelu"))),
    "transformers": HuggingFace,
    "transformers, eager": partial(HuggingFace, attention="eager"),
    "x-transformers": XTransformers,
    "x-transformers, fused": partial(XTransformers, fused=True),
}


def window_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
    ids, targets = batch
    return cross_entropy(model(ids), targets, EVERY)


def trainer(model: nn.Module, precision: str, batch: tuple[Tensor, Tensor]) -> Trainer:
    optimizer = torch.optim.AdamW(decay_groups(model), lr=0.0, betas=(0.9, 0.99), fused=True)
    settings = (window_loss, lambda _: [batch], lambda _: 1e-4, optimizer)
    return Trainer(model.train(), *settings, autocast=PRECISIONS[precision])


def measure(rounds: int, precisions: list[str]) -> list[dict]:
    """Let everyone make a step in turn; return a row for each."""
    torch.manual_seed(0)
    window = torch.randint(CONFIG.vocab_size, (ROWS, CONFIG.max_len + 1))
    batch = (window[:, :-1].contiguous(), window[:, 1:].contiguous())
    runs = {
        (name, precision): trainer(make(CONFIG), precision, batch)
        for name, make in MAKERS.items()
        for precision in precisions
    }
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for run in runs.values():
        run.run(1)  # the first step allocates
    for _ in range(rounds):
        for key, run in runs.items():
            begin = time.perf_counter()
            run.run(1)
            seconds[key].append(time.perf_counter() - begin)
    return [
        {
            "model": name,
            "precision": precision,
            "version": LIBRARIES.get(name.partition(",")[0], ""),
            "parameters": sum(p.numel() for p in runs[name, precision].model.parameters()),
            "tokens per second": round(ROWS * CONFIG.max_len / min(measured)),
            "rounds": [round(value, 4) for value in measured],
        }
        for (name, precision), measured in seconds.items()
    ]


def goals(rows: list[dict]) -> list[dict]:
    """Compare with what was asked for: by least times, and by the median of the rounds."""
    found = {(row["model"], row["precision"]): row for row in rows}
    met = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        speed = {name: found[name, precision]["tokens per second"] for name in MAKERS}
        peer = max((name for name in MAKERS if not name.startswith("ours")), key=speed.get)
        for name, must, aim in (("ours", None, None), ("ours, recipe", 1.2, 1.5)):
            asked = (must, aim) if precision == "bfloat16" else (None, None)
            in_turn = zip(*(found[key, precision]["rounds"] for key in (peer, name)), strict=True)
            met.append({
                "goal": f"{name} / fastest peer, {precision}", "must": asked[0], "aim": asked[1],
                "peer": peer, "ratio": round(speed[name] / speed[peer], 2),
                "median": round(statistics.median(theirs / mine for theirs, mine in in_turn), 2),
            })  # fmt: skip
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write the result as JSON for the chapter")
    parser.add_argument("--rounds", type=int, default=10, help="steps of everyone, in turn")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    arguments = parser.parse_args()
    print_machine()
    rows = measure(arguments.rounds, arguments.precisions)
    print(f"{'model':24}{'precision':12}{'parameters':>12}{'tokens/s':>10}")
    for row in rows:
        print(f"{row['model']:24}{row['precision']:12}{row['parameters']:12,}{row['tokens per second']:10,}")
    met = goals(rows)
    print_goals(met)
    if arguments.save:
        print("written to", save_results("gpt_training", rows + met))


if __name__ == "__main__":
    main()
