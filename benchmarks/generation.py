"""Writing token by token: milliseconds of a token, in this package and in Hugging Face's transformers.

    python benchmarks/generation.py            prints a table
    python benchmarks/generation.py --save     also writes it, for the chapters `generation` and `performance`

One prompt is continued greedily with key/value caches, by models with the same random weights: nanoGPT's
character model (6 layers, 6 heads, width 384) writes 512 tokens, one of GPT-2's smallest shape 64. Everyone
writes in turn, several times, and each token's time is stamped. The time of a token is the mean over the text
of each token's least time over the rounds: neighbours on the machine only ever add to it.

`ours` is a model that `for_single_tokens` has prepared, whose default is int8: matrices in eight bits, the
rest in bfloat16. `ours, plain` is the model as it was built, and `ours, no cache` the same without keys and
values kept (once). The floor is the least time in which as many bytes as the model's weights are read once,
by the product of one float32 matrix with a vector, several times in a row between the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from copy import deepcopy

import torch
from gpt_peers import LIBRARIES, HuggingFace
from peers import print_goals, print_machine
from torch import Tensor

from annotated_transformer.data.results import save_results
from annotated_transformer.generation import GPTStep, for_single_tokens, stream
from annotated_transformer.gpt import GPT, GPTConfig

PROMPT, MIB = 8, 2**20
SHAPES = {
    "character model": (GPTConfig(65, max_len=PROMPT + 512, d_model=384, num_layers=6, num_heads=6), 512),
    "GPT-2's smallest": (GPTConfig.preset("gpt2"), 64),
}
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DEFAULT = {"int8": torch.int8}  # of `for_single_tokens`
READINGS = 16  # in a row: what a cache of the processor holds for a model, it holds for them too
NO_CACHE = ("ours, no cache", "float32")
NEAR, FAR = 10, 1000  # positions that are compared

Writer = Callable[[], list[float]]


class Stamps:
    """Note when each token is there; transformers' `generate` calls it as a streamer."""

    def __init__(self):
        self.times = [time.perf_counter()]

    def put(self, ids: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass

    def seconds(self) -> list[float]:
        """Return the time of each token."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


def our_writer(model: GPT, ids: Tensor, steps: int, use_cache: bool = True) -> Writer:
    def write() -> list[float]:
        stamps = Stamps()
        for token in stream(GPTStep(model, use_cache=use_cache), ids, steps, temperature=0):
            stamps.put(token)
        return stamps.seconds()

    return write


def their_writer(model: HuggingFace, ids: Tensor, steps: int) -> Writer:
    def write() -> list[float]:
        stamps = Stamps()
        model.generate(ids, steps, streamer=stamps)
        first, *rest = stamps.seconds()  # the prompt comes first, before the model has read it
        return [first + rest[0], *rest[1:]]

    return write


def writers(config: GPTConfig, steps: int) -> dict[tuple[str, str], Writer]:
    """Make everyone who writes, by model and precision, with the same weights."""
    theirs = HuggingFace(config).eval()
    plain = GPT.from_state_dict(config, theirs.core.state_dict()).eval()
    ids = torch.randint(config.vocab_size, (1, PROMPT))
    with torch.no_grad():
        torch.testing.assert_close(plain(ids), theirs(ids), rtol=1e-4, atol=1e-4)
    made = {}
    for name, dtype in PRECISIONS.items():
        made["ours", name] = our_writer(for_single_tokens(deepcopy(plain), dtype), ids, steps)
        made["ours, plain", name] = our_writer(deepcopy(plain).to(dtype), ids, steps)
        made["transformers", name] = their_writer(deepcopy(theirs).to(dtype), ids, steps)
    made["ours", "int8"] = our_writer(for_single_tokens(deepcopy(plain)), ids, steps)
    made[NO_CACHE] = our_writer(plain, ids, steps, use_cache=False)
    return made


def weight_bytes(config: GPTConfig, dtype: torch.dtype) -> int:
    """Count what one token reads: all weights but the tables of embeddings, of which the tied one is read."""
    model = GPT(config)
    return (sum(p.numel() for p in model.parameters()) - model.positions.weight.numel()) * dtype.itemsize


def reader(size: int) -> Writer:
    """Make what reads `size` bytes, again and again as a model reads its weights, and times each reading."""
    matrix, vector = torch.ones(size // 4096, 1024), torch.ones(1024)

    def read() -> list[float]:
        stamps = Stamps()
        for _ in range(READINGS):
            stamps.put(matrix.mv(vector))
        return stamps.seconds()

    return read


def measure(shape: str, rounds: int) -> list[dict]:
    """Let everyone write in turn; return a row for each."""
    config, steps = SHAPES[shape]
    made = writers(config, steps)
    sizes = {name: weight_bytes(config, dtype) for name, dtype in (PRECISIONS | DEFAULT).items()}
    readers = {name: reader(size) for name, size in sizes.items()}
    times: dict[tuple[str, str], list[list[float]]] = {key: [] for key in made}
    floors: dict[str, list[float]] = {name: [] for name in readers}
    times[NO_CACHE].append(made.pop(NO_CACHE)())  # once: it is far from the others, and takes long
    for writer in made.values():
        writer()  # the first call allocates
    for _ in range(rounds):
        for key, writer in made.items():
            times[key].append(writer())
            assert len(times[key][-1]) == steps, key
            for name, read in readers.items():
                floors[name] += read()
    rows = []
    for (model, precision), rounds_of in times.items():
        least = [min(same) for same in zip(*rounds_of, strict=True)]
        floor, milliseconds = 1e3 * min(floors[precision]), 1e3 * sum(least) / steps
        rows.append({
            "shape": shape, "model": model, "precision": precision, "tokens": steps,
            "version": LIBRARIES.get(model, ""),
            "milliseconds": round(milliseconds, 3),
            "floor": round(floor, 3), "to floor": round(milliseconds / floor, 2),
            "mebibytes": round(sizes[precision] / MIB, 1),
            "gigabytes per second": round(sizes[precision] / floor / 1e6, 1),
            "rounds": [round(1e3 * sum(each) / steps, 3) for each in rounds_of],
        })  # fmt: skip
    return rows


def positions(rounds: int) -> dict:
    """Compare the time of a token far into the context with one near its beginning, in turn, by default."""
    config = GPTConfig.preset("gpt2")
    model = for_single_tokens(GPT(config).eval())
    texts, steps = {}, {}
    for position in (NEAR, FAR):
        texts[position], steps[position] = torch.randint(config.vocab_size, (1, position)), GPTStep(model)
        steps[position](texts[position][:, :-1])  # the caches hold what comes before
    times: dict[int, list[float]] = {NEAR: [], FAR: []}
    for _ in range(rounds):
        for position, step in steps.items():
            begin = time.perf_counter()
            logits = step(texts[position])
            times[position].append(time.perf_counter() - begin)
            texts[position] = torch.cat([texts[position], logits.argmax(dim=-1, keepdim=True)], dim=1)
    near, far = (1e3 * min(times[position]) for position in (NEAR, FAR))
    return {
        "shape": "GPT-2's smallest", "precision": "int8",
        f"milliseconds at {NEAR}": round(near, 3), f"milliseconds at {FAR}": round(far, 3),
        "goal": f"time of a token at position {FAR:,} / at {NEAR}, at most", "ratio": round(far / near, 2),
        "median": round(statistics.median(f / n for n, f in zip(*times.values(), strict=True)), 2),
        "must": 1.5, "aim": 1.5,
    }  # fmt: skip


def goals(rows: list[dict]) -> list[dict]:
    """Compare with what was asked for: by least times, and by the median of the rounds."""
    found = {(row["shape"], row["model"], row["precision"]): row for row in rows}
    wanted = [
        ("both float32", "float32", "float32", None, None),
        ("both bfloat16", "bfloat16", "bfloat16", 1.25, 1.8),
        ("both by default", "int8", "float32", 2.0, 2.8),
    ]
    met = []
    for shape in SHAPES:
        for name, ours, theirs, must, aim in wanted:
            mine, other = found[shape, "ours", ours], found[shape, "transformers", theirs]
            in_turn = (b / a for a, b in zip(mine["rounds"], other["rounds"], strict=True))
            met.append({
                "shape": shape, "goal": f"ours / transformers, {name}", "must": must, "aim": aim,
                "ratio": round(other["milliseconds"] / mine["milliseconds"], 2),
                "median": round(statistics.median(in_turn), 2),
            })  # fmt: skip
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write the result as JSON for the chapters")
    parser.add_argument("--rounds", type=int, default=5, help="how often everyone writes")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print_machine()
    rows = [row for shape in SHAPES for row in measure(shape, arguments.rounds)]
    print(f"{'shape':18}{'model':16}{'precision':11}{'ms':>9}{'floor ms':>10}{'to floor':>10}{'GB/s':>7}")
    for row in rows:
        print(f"{row['shape']:18}{row['model']:16}{row['precision']:11}{row['milliseconds']:9.2f}", end="")
        print(f"{row['floor']:10.2f}{row['to floor']:10.2f}{row['gigabytes per second']:7.1f}")
    met = [*goals(rows), positions(4 * arguments.rounds)]
    print_goals(met)
    if arguments.save:
        print("written to", save_results("generation", rows + met))


if __name__ == "__main__":
    main()
