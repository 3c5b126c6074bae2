"""Decoding at equal size: words per second of this package, Marian and torch.nn.Transformer.

    python benchmarks/decoding.py            prints a table
    python benchmarks/decoding.py --save     also writes it, for the chapter `performance`

The weights are random, so the end token is ruled out by a bias of -10,000 in every model: all of them decode
exactly 16 tokens for each of 256 sources of 16 tokens, greedily or with 5 beams. Marian uses its own
`generate` with its caches; torch.nn.Transformer has none and computes every position again at each step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import transformers
from peers import (
    BEGIN,
    END,
    LENGTH,
    PAD,
    VOCAB,
    Marian,
    TorchTransformer,
    least_seconds,
    our_recipe,
    print_machine,
)
from torch import Tensor

from annotated_transformer.data.results import save_results
from annotated_transformer.decoding import TransformerStep, beam_search, greedy_search
from annotated_transformer.transformer import Transformer

WORDS, BEAMS, NEVER = 256, 5, -1e4
PRECISIONS = ("float32", "bfloat16")


def our_search(model: Transformer, src: Tensor, beams: int) -> Tensor:
    start = torch.full((len(src), 1), BEGIN)
    step = TransformerStep(model, src, max_len=LENGTH + 1)
    if beams == 1:
        return greedy_search(step, start, END, PAD, LENGTH)
    return beam_search(step, start, END, PAD, LENGTH, beams)[0]


def searches(words: int) -> dict[tuple[str, str], Callable[[], Tensor]]:
    """Make the searches by model and kind; each returns ids (words, 1 + LENGTH)."""
    src = torch.randint(3, VOCAB, (words, LENGTH))
    ours, marian, plain = our_recipe().eval(), Marian().eval(), TorchTransformer().eval()
    with torch.no_grad():
        for bias in (ours.generator.projection.bias, marian.core.final_logits_bias[0], plain.generator.bias):
            bias[END] = NEVER
    return {
        ("ours", "greedy"): lambda: our_search(ours, src, 1),
        ("ours", "beam 5"): lambda: our_search(ours, src, BEAMS),
        ("Marian", "greedy"): lambda: marian.generate(src, LENGTH, 1),
        ("Marian", "beam 5"): lambda: marian.generate(src, LENGTH, BEAMS),
        ("torch.nn", "greedy"): lambda: plain.greedy(src, LENGTH),
    }


def under(precision: str, search: Callable[[], Tensor]) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        return search()


def measure(repeats: int, words: int) -> list[dict]:
    torch.manual_seed(0)
    kinds = searches(words)
    for name, search in kinds.items():
        assert search().shape == (words, 1 + LENGTH), name
    runs = {(*key, p): lambda p=p, s=s: under(p, s) for key, s in kinds.items() for p in PRECISIONS}
    speed = {key: words / value for key, value in least_seconds(runs, repeats).items()}
    version = {"torch.nn": f"torch {torch.__version__}", "Marian": f"transformers {transformers.__version__}"}
    return [
        {
            "model": model,
            "search": search,
            "precision": precision,
            "version": version.get(model, ""),
            "words per second": round(value),
        }
        for (model, search, precision), value in speed.items()
    ]


def goals(rows: list[dict]) -> list[dict]:
    """Compare with what was asked for; the default is bfloat16 here and float32 in Marian."""
    speed = {(row["model"], row["search"], row["precision"]): row["words per second"] for row in rows}
    wanted = [
        ("greedy, both bfloat16", "greedy", "bfloat16", 1.15, 1.5),
        ("beam 5, both bfloat16", "beam 5", "bfloat16", 1.2, 2.0),
        ("greedy, both by default", "greedy", "float32", 2.0, 2.5),
        ("beam 5, both by default", "beam 5", "float32", 2.0, 2.5),
    ]
    return [
        {
            "goal": f"ours / Marian, {name}",
            "ratio": round(speed["ours", search, "bfloat16"] / speed["Marian", search, precision], 2),
            "must": must,
            "aim": aim,
        }
        for name, search, precision, must, aim in wanted
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write the result as JSON for the chapter")
    parser.add_argument("--repeats", type=int, default=7, help="rounds, of which the fastest counts")
    parser.add_argument("--words", type=int, default=WORDS, help="sources decoded together")
    arguments = parser.parse_args()
    print_machine()
    rows = measure(arguments.repeats, arguments.words)
    print(f"{'model':10}{'search':10}{'precision':12}{'words/s':>10}")
    for row in rows:
        print(f"{row['model']:10}{row['search']:10}{row['precision']:12}{row['words per second']:10,}")
    met = goals(rows)
    print(f"\n{'ratio':40}{'measured':>10}{'must':>8}{'aim':>8}")
    for row in met:
        print(f"{row['goal']:40}{row['ratio']:10.2f}{row['must']:8.2f}{row['aim']:8.2f}")
    if arguments.save:
        print("written to", save_results("decoding", rows + met))


if __name__ == "__main__":
    main()
