"""nanoGPT's recipe for a CPU, with this package's code: the validation loss reached, and the time taken.

    python benchmarks/shakespeare.py            trains for some minutes and prints a table
    python benchmarks/shakespeare.py --save     also writes it, for the chapter `performance`

Shape and numbers are nanoGPT's: 4 layers, 4 heads, width 128, context 64, 12 windows a batch, 2,000 updates,
no dropout, a rate that rises to 0.001 over 100 updates and falls along a cosine to 0.0001. The weights are
this package's, drawn from one seed. The loss is that of the whole validation text, in nats a character; its
time does not count. nanoGPT reports 1.88 after about 3 minutes, on the usual text, which this one nearly is.
"""

from __future__ import annotations

import argparse
import time

import torch
from peers import print_machine

from annotated_transformer.data.results import save_results
from annotated_transformer.data.shakespeare import load_shakespeare
from annotated_transformer.gpt import GPT, GPTConfig
from annotated_transformer.recipes import use_fast_parts
from annotated_transformer.runtime import seed_everything
from annotated_transformer.shakespeare import Windows, tokenizer, validation_loss, window_loss
from annotated_transformer.training import Trainer, autocast_dtype, cosine, decay_groups

CONFIG = GPTConfig(vocab_size=65, max_len=64, d_model=128, num_layers=4, num_heads=4, dropout=0.0)
ROWS, UPDATES = 12, 2000


def trainer(text: str) -> Trainer:
    seed_everything(0)
    model = use_fast_parts(GPT(CONFIG))
    data = torch.tensor(tokenizer().encode(text))
    windows = Windows(data, CONFIG.max_len, ROWS, UPDATES, seed=0)
    optimizer = torch.optim.AdamW(decay_groups(model, 0.1), lr=0.0, betas=(0.9, 0.99), fused=True)
    return Trainer(
        model,
        window_loss,
        lambda _: windows,
        lambda step: cosine(step, peak=1e-3, warmup=100, total=UPDATES, floor=1e-4),
        optimizer,
        autocast=autocast_dtype(torch.device("cpu")),
    )


def measure(updates: int, every: int) -> list[dict]:
    """Train, and look at the validation loss every so often; return a row for each look."""
    text = load_shakespeare()
    run = trainer(text.train)
    rows, wall, processor = [], 0.0, 0.0
    while run.step < updates:
        begin, worked = time.perf_counter(), time.process_time()
        run.run(min(every, updates - run.step))
        wall, processor = wall + time.perf_counter() - begin, processor + time.process_time() - worked
        rows.append({
            "updates": run.step, "tokens": run.tokens, "seconds": round(wall, 1),
            "processor seconds": round(processor, 1),
            "validation loss": round(validation_loss(run.model, text.validation), 4),
        })  # fmt: skip
        print("".join(f"{value:>{len(name) + 3},}" for name, value in rows[-1].items()), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write the result as JSON for the chapter")
    parser.add_argument("--updates", type=int, default=UPDATES, help="where to stop")
    parser.add_argument("--every", type=int, default=250, help="updates between two looks")
    arguments = parser.parse_args()
    print_machine()
    names = ("updates", "tokens", "seconds", "processor seconds", "validation loss")
    print("".join(f"{name:>{len(name) + 3}}" for name in names))
    rows = measure(arguments.updates, arguments.every)
    if arguments.save:
        print("written to", save_results("shakespeare", rows))


if __name__ == "__main__":
    main()
