"""The command line: `python -m annotated_transformer COMMAND`. Each command is one function below."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

PROGRAM = "python -m annotated_transformer"


def train(arguments: argparse.Namespace) -> int:
    """Run a recipe; an interrupted one says how it goes on."""
    from . import recipes, shakespeare
    from .distributed import process_group

    runs = {"g2p": recipes.train_g2p, "shakespeare": shakespeare.train_shakespeare}
    folder = arguments.folder or f"runs/{arguments.recipe}"
    try:
        with process_group() as process:
            path = runs[arguments.recipe](
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
    pronouncer = recipes.load_pronouncer(arguments.checkpoint or recipes.G2P_CHECKPOINT)
    spoken = recipes.pronounce(words, pronouncer)
    width = max(map(len, words))
    columns = max(len(" ".join(phonemes)) for phonemes in spoken)
    for word, phonemes in zip(words, spoken, strict=True):
        print(f"{word:<{width}}  {' '.join(phonemes):<{columns}}  {cmudict.ipa(phonemes)}")
    return 0


def generate(arguments: argparse.Namespace) -> int:
    """Print a prompt and its continuation, each character when it is drawn; an interrupt ends the text."""
    from . import shakespeare

    shakespeare.check_prompt(arguments.prompt)
    model = shakespeare.load_writer(arguments.checkpoint or shakespeare.CHECKPOINT)
    names = ("temperature", "top_k", "top_p", "min_p", "penalty")
    sampling = {name: getattr(arguments, name) for name in names}
    text = shakespeare.write_text(arguments.prompt, arguments.tokens, model, arguments.seed, **sampling)
    print(arguments.prompt, end="", flush=True)
    try:
        for characters in text:
            print(characters, end="", flush=True)
    except KeyboardInterrupt:
        print(flush=True)
        return 130
    print(flush=True)
    return 0


def evaluate_g2p(arguments: argparse.Namespace) -> int:
    """Print the error rates beside the peer's and the goals; fail when a must is missed."""
    from . import recipes

    pronouncer = recipes.load_pronouncer(arguments.checkpoint or recipes.G2P_CHECKPOINT)
    return _judged(*recipes.evaluate_g2p(pronouncer, num_beams=arguments.beams, count=arguments.words))


def evaluate_shakespeare(arguments: argparse.Namespace) -> int:
    """Print the validation loss beside nanoGPT's and the goals; fail when the must is missed."""
    from . import shakespeare

    model = shakespeare.load_shakespeare_gpt(arguments.checkpoint or shakespeare.CHECKPOINT)
    return _judged(*shakespeare.evaluate_shakespeare(model))


def _judged(table: str, met: bool) -> int:
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
    command.add_argument("recipe", choices=["g2p", "shakespeare"])
    command.add_argument("--folder", help="where state and weights go (default: runs/RECIPE)")
    command.add_argument("--steps", type=int, metavar="N", help="stop after N updates in all")
    command.add_argument("--resume", action="store_true", help="continue from the state in the folder")
    command.set_defaults(run=train)

    command = commands.add_parser("pronounce", help="write how English words are spoken")
    command.add_argument("words", nargs="+", metavar="WORD", help="a word of the letters a to z")
    command.add_argument("--checkpoint", metavar="FILE", help="other weights than the shipped ones")
    command.set_defaults(run=pronounce)

    command = commands.add_parser("generate", help="continue a text in the manner of Shakespeare's plays")
    command.add_argument("prompt", metavar="PROMPT", help='how the text begins, such as "ROMEO:"')
    command.add_argument("--tokens", type=int, default=500, metavar="N", help="characters to write (500)")
    command.add_argument("--temperature", type=float, default=0.8, metavar="T", help="0 or above (0.8)")
    command.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest only")
    command.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest that have mass P")
    command.add_argument("--min-p", type=float, metavar="P", help="nothing below P times the likeliest")
    command.add_argument("--penalty", type=float, default=1.0, help="for characters used (1: none)")
    command.add_argument("--seed", type=int, metavar="N", help="write the same text each time")
    command.add_argument("--checkpoint", metavar="FILE", help="other weights than the shipped ones")
    command.set_defaults(run=generate)

    command = commands.add_parser("evaluate", help="score a trained model on its test data, beside a peer")
    tasks = command.add_subparsers(title="tasks", metavar="TASK", required=True)
    command = tasks.add_parser("g2p", help="error rates of pronounced words")
    command.add_argument("--checkpoint", metavar="FILE", help="other weights than the shipped ones")
    command.add_argument("--beams", type=int, default=5, metavar="N", help="hypotheses of beam search (5)")
    command.add_argument("--words", type=int, metavar="N", help="N test words only")
    command.set_defaults(run=evaluate_g2p)
    command = tasks.add_parser("shakespeare", help="loss per character of the validation text")
    command.add_argument("--checkpoint", metavar="FILE", help="other weights than the shipped ones")
    command.set_defaults(run=evaluate_shakespeare)

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
    except BrokenPipeError:  # whoever read the output, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the last flush needs somewhere to go
        return 0
    except (CarrierError, OSError, ValueError) as error:  # ours say what is wrong; a traceback would bury it
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
