"""The command line: `python -m annotated_transformer COMMAND`. Each command is one function below."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

PROGRAM = "python -m annotated_transformer"


def train(arguments: argparse.Namespace) -> int:
    """Run a recipe; an interrupted one says how it goes on."""
    from . import recipes
    from .distributed import process_group

    folder = arguments.folder or f"runs/{arguments.recipe}"
    try:
        with process_group() as process:
            path = recipes.train_g2p(
                folder, steps=arguments.steps, resume=arguments.resume, process=process
            )
    except KeyboardInterrupt:
        again = f"{PROGRAM} train {arguments.recipe} --folder {folder} --resume"
        print(f"\nstopped; this continues from the last saved state:\n  {again}", file=sys.stderr)
        return 130
    if process.rank > 0:
        return 0
    print(f"weights written to {path}")
    print(f"their scores: {PROGRAM} evaluate {arguments.recipe} --checkpoint {path}")
    return 0


def pronounce(arguments: argparse.Namespace) -> int:
    """Print each word, its phonemes in ARPAbet and in the International Phonetic Alphabet."""
    from . import recipes
    from .data import cmudict

    words = [recipes.check_word(word) for word in arguments.words]
    model = recipes.load_g2p(arguments.checkpoint or recipes.G2P_CHECKPOINT)
    spoken = recipes.pronounce(words, model)
    width = max(map(len, words))
    columns = max(len(" ".join(phonemes)) for phonemes in spoken)
    for word, phonemes in zip(words, spoken, strict=True):
        print(f"{word:<{width}}  {' '.join(phonemes):<{columns}}  {cmudict.ipa(phonemes)}")
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Print the scores beside the peer's and the goals; fail when a must is missed."""
    from . import recipes

    model = recipes.load_g2p(arguments.checkpoint or recipes.G2P_CHECKPOINT)
    table, met = recipes.evaluate_g2p(model, num_beams=arguments.beams, count=arguments.words)
    print(table)
    if not met:
        print("a must is missed", file=sys.stderr)
    return 0 if met else 1


def count(arguments: argparse.Namespace) -> int:
    """Print how many parameters a published model has, term by term, and whether the model itself agrees."""
    from . import parameter_count

    config = parameter_count.preset(arguments.model)
    print(parameter_count.format_table(config))
    built = parameter_count.count_model(parameter_count.build(config))
    print(f"the model itself has {built:,}")
    return 0 if built == parameter_count.parameter_count(config) else 1


def parser() -> argparse.ArgumentParser:
    """Describe every command. Nothing heavy is imported here, so that --help answers at once."""
    top = argparse.ArgumentParser(prog=PROGRAM, description="Train and use the models of the book.")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    command = commands.add_parser("train", help="train a model by its recipe")
    command.add_argument("recipe", choices=["g2p"])
    command.add_argument("--folder", help="where state and weights go (default: runs/RECIPE)")
    command.add_argument("--steps", type=int, metavar="N", help="stop after N updates in all")
    command.add_argument("--resume", action="store_true", help="continue from the state in the folder")
    command.set_defaults(run=train)

    command = commands.add_parser("pronounce", help="write how English words are spoken")
    command.add_argument("words", nargs="+", metavar="WORD", help="a word of the letters a to z")
    command.add_argument("--checkpoint", metavar="FILE", help="other weights than the shipped ones")
    command.set_defaults(run=pronounce)

    command = commands.add_parser("evaluate", help="score a trained model on its test data, beside a peer")
    command.add_argument("task", choices=["g2p"])
    command.add_argument("--checkpoint", metavar="FILE", help="other weights than the shipped ones")
    command.add_argument("--beams", type=int, default=5, metavar="N", help="hypotheses of beam search (5)")
    command.add_argument("--words", type=int, metavar="N", help="N test words only")
    command.set_defaults(run=evaluate)

    command = commands.add_parser("count", help="count the parameters of a published model")
    command.add_argument("model", metavar="MODEL", help="its name, such as gpt2 or transformer-base")
    command.set_defaults(run=count)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 1 for a missed goal, 2 for bad input, 130 when stopped."""
    arguments = parser().parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without the phonetic letters shows "?"
    from .data.carriers import CarrierError

    try:
        return arguments.run(arguments)
    except (CarrierError, OSError, ValueError) as error:  # ours say what is wrong; a traceback would bury it
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
