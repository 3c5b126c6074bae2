"""The command line, called as a function and once as a program."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from annotated_transformer import __main__ as command
from annotated_transformer import recipes
from annotated_transformer.data import carriers, cmudict
from annotated_transformer.recipes import G2PRecipe, g2p_model, save_weights

TINY = replace(G2PRecipe(), d_model=12, num_heads=2, d_ff=13, encoder_layers=1, decoder_layers=1)


def write_untrained(path: Path, seed: int) -> None:
    torch.manual_seed(seed)
    model = g2p_model(TINY)
    model.generator.projection.bias.data[:3] = -300.0  # silence would be likelier than any phonemes
    save_weights(model, path, TINY)


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Untrained weights in the place of the shipped ones."""
    path = tmp_path / "g2p.safetensors"
    write_untrained(path, seed=0)
    monkeypatch.setattr(recipes, "G2P_CHECKPOINT", path)
    return path


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("train", "pronounce", "evaluate"))


@pytest.mark.parametrize("arguments", [[], ["sing"], ["train", "bread"], ["train", "g2p", "--steps", "many"]])
def test_a_wrong_command_line_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert "usage: python -m annotated_transformer" in capsys.readouterr().err


def test_the_program_runs_without_installing_anything():
    result = subprocess.run(
        [sys.executable, "-m", "annotated_transformer", "pronounce", "naïve42"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={"PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parent.parent,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    message = "word (naïve42) must have the letters a to z only, got 'ï', '4', '2'"
    assert result.stderr == f"python -m annotated_transformer: error: {message}\n"


def test_pronounce_prints_a_line_a_word_in_both_alphabets(weights, capsys):
    assert command.main(["pronounce", "Cat", "transformer"]) == 0
    lines = capsys.readouterr().out.splitlines()
    spoken = recipes.pronounce(["cat", "transformer"], recipes.load_g2p(weights))
    assert [line.split()[0] for line in lines] == ["cat", "transformer"]
    for line, phonemes in zip(lines, spoken, strict=True):
        assert phonemes
        assert line.split()[1:-1] == list(phonemes)
        assert line.split()[-1] == cmudict.ipa(phonemes)


def test_pronounce_takes_other_weights(weights, tmp_path, capsys):
    other = tmp_path / "other.safetensors"
    write_untrained(other, seed=1)
    command.main(["pronounce", "cat"])
    first = capsys.readouterr().out
    assert command.main(["pronounce", "cat", "--checkpoint", str(other)]) == 0
    assert capsys.readouterr().out != first


def test_missing_and_broken_weights_are_named(weights, capsys):
    weights.write_bytes(weights.read_bytes()[:-1])
    assert command.main(["pronounce", "cat"]) == 2
    assert "g2p.safetensors) must be a complete safetensors file" in capsys.readouterr().err
    assert command.main(["pronounce", "cat", "--checkpoint", "nowhere"]) == 2
    assert "path (nowhere) must be a checkpoint, got no such file" in capsys.readouterr().err


def test_a_terminal_without_phonetic_letters_still_gets_its_line(weights):
    result = subprocess.run(
        [sys.executable, "-m", "annotated_transformer", "pronounce", "cat", "--checkpoint", str(weights)],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parent.parent,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(b"cat ")


@pytest.mark.parametrize("met", [True, False])
def test_evaluate_prints_the_table_and_fails_when_a_must_is_missed(weights, monkeypatch, capsys, met):
    seen = {}

    def evaluate(model, **options):
        seen.update(options, model=model)
        return "the table", met

    monkeypatch.setattr(recipes, "evaluate_g2p", evaluate)
    assert command.main(["evaluate", "g2p", "--beams", "3", "--words", "7"]) == (0 if met else 1)
    captured = capsys.readouterr()
    assert captured.out == "the table\n"
    assert ("a must is missed" in captured.err) == (not met)
    assert (seen["num_beams"], seen["count"], seen["model"].training) == (3, 7, False)


def test_train_hands_its_options_on_and_says_what_comes_next(monkeypatch, capsys):
    seen = {}

    def run(folder, **options):
        seen.update(options, folder=folder)
        return f"{folder}/g2p.safetensors"

    monkeypatch.setattr(recipes, "train_g2p", run)
    assert command.main(["train", "g2p", "--steps", "5", "--resume"]) == 0
    assert seen == {"folder": "runs/g2p", "steps": 5, "resume": True}
    assert "evaluate g2p --checkpoint runs/g2p/g2p.safetensors" in capsys.readouterr().out
    command.main(["train", "g2p", "--folder", "elsewhere"])
    assert seen == {"folder": "elsewhere", "steps": None, "resume": False}


def test_a_stopped_training_says_how_it_goes_on(monkeypatch, capsys):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(recipes, "train_g2p", stop)
    assert command.main(["train", "g2p", "--folder", "there"]) == 130
    assert "python -m annotated_transformer train g2p --folder there --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], r"steps \(0\) must be from 1 to the recipe's \d+"),
        (["--resume"], r"state.pt\) must be a checkpoint, got no such file"),
    ],
)
def test_train_names_what_it_cannot_do(tmp_path, monkeypatch, capsys, arguments, message):
    entries = {"a": [("AH0",)], "b": [("B", "IY1")]}
    monkeypatch.setattr(cmudict, "load_cmudict", lambda: entries)
    monkeypatch.setattr(cmudict, "split_by_headword", lambda whole: cmudict.Split(whole, whole, whole))
    assert command.main(["train", "g2p", "--folder", str(tmp_path), *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_no_network_and_no_cache_is_an_error_with_advice_not_a_traceback(monkeypatch, tmp_path, capsys):
    def offline():
        raise carriers.CarrierError("cmudict 1.1.3 could not be fetched")

    monkeypatch.setattr(cmudict, "load_cmudict", offline)
    assert command.main(["train", "g2p", "--folder", str(tmp_path)]) == 2
    assert "error: cmudict 1.1.3 could not be fetched" in capsys.readouterr().err
