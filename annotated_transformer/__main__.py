"""The command line: `python -m annotated_transformer COMMAND`. Each command is one function below."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

PROGRAM = "python -m annotated_transformer"


def train(arguments: argparse.Namespace) -> int:
    """Run a recipe."""
    from . import recipes

    path = recipes.train_g2p(arguments.folder, steps=arguments.steps, resume=arguments.resume)
    print(f"weights written to {path}")
    return 0


def parser() -> argparse.ArgumentParser:
    """Describe every command. Nothing heavy is imported, so that --help answers at once."""
    top = argparse.ArgumentParser(prog=PROGRAM, description="Train and use the models of the book.")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    command = commands.add_parser("train", help="train a model by its recipe")
    command.add_argument("recipe", choices=["g2p"])
    command.add_argument("--folder", help="where state and weights go (default: runs/RECIPE)")
    command.add_argument("--steps", type=int, metavar="N", help="stop after N updates in all")
    command.add_argument("--resume", action="store_true", help="continue from the state in the folder")
    command.set_defaults(run=train)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = parser().parse_args(argv)
    if getattr(arguments, "folder", "") is None:
        arguments.folder = f"runs/{arguments.recipe}"
    try:
        return arguments.run(arguments)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
