"""The command line, called as a function and once as a program."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from annotated_transformer import __main__ as command
from annotated_transformer import distributed, recipes
from annotated_transformer.data import carriers, cmudict
from annotated_transformer.recipes import G2PRecipe, g2p_model, save_weights

TINY = replace(G2PRecipe(), d_model=12, num_heads=2, d_ff=13, encoder_layers=1, decoder_layers=1)


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Untrained weights in the place of the shipped ones."""
    path = tmp_path / "g2p.safetensors"
    save_weights(g2p_model(TINY), path, TINY)
    monkeypatch.setattr(recipes, "G2P_CHECKPOINT", path)
    return path


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("train", "pronounce", "evaluate", "count"))


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


@pytest.mark.parametrize("given", [True, False])
def test_pronounce_prints_a_line_a_word_in_both_alphabets(weights, monkeypatch, capsys, given):
    """With the weights that are asked for, or the shipped ones."""
    known, seen = {"cat": ("K", "AE1", "T"), "robot": ("R", "OW1", "B", "AA2", "T")}, []
    monkeypatch.setattr(recipes, "load_g2p", seen.append)
    monkeypatch.setattr(recipes, "pronounce", lambda words, model: [known[word] for word in words])
    options = ["--checkpoint", "other.safetensors"] if given else []
    assert command.main(["pronounce", "Cat", "roBot", *options]) == 0
    assert seen == ["other.safetensors" if given else weights]
    assert capsys.readouterr().out == "cat    K AE1 T        kæt\nrobot  R OW1 B AA2 T  ˈɹoʊˌbɑt\n"


def test_missing_and_broken_weights_are_named(weights, capsys):
    weights.write_bytes(weights.read_bytes()[:-1])
    assert command.main(["pronounce", "cat"]) == 2
    assert "g2p.safetensors) must be a complete safetensors file" in capsys.readouterr().err
    assert command.main(["pronounce", "cat", "--checkpoint", "nowhere"]) == 2
    assert "path (nowhere) must be a checkpoint, got no such file" in capsys.readouterr().err
    weights.unlink()
    assert command.main(["pronounce", "cat"]) == 2
    assert "train g2p` writes one to runs/g2p/g2p.safetensors" in capsys.readouterr().err


def test_a_terminal_without_phonetic_letters_still_gets_its_line(weights, monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(recipes, "pronounce", lambda words, model: [("K", "AE1", "T")])
    assert command.main(["pronounce", "cat"]) == 0
    stdout.flush()
    assert stdout.buffer.getvalue() == b"cat  K AE1 T  k?t\n"


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
    assert seen == {"folder": "runs/g2p", "steps": 5, "resume": True, "process": (0, 1)}
    assert "evaluate g2p --checkpoint runs/g2p/g2p.safetensors" in capsys.readouterr().out
    command.main(["train", "g2p", "--folder", "elsewhere"])
    assert seen == {"folder": "elsewhere", "steps": None, "resume": False, "process": (0, 1)}


def test_of_several_processes_only_the_first_reports(monkeypatch, capsys):
    monkeypatch.setattr(distributed, "process_group", lambda: nullcontext(distributed.Process(1, 2)))
    monkeypatch.setattr(recipes, "train_g2p", lambda folder, process, **options: f"{folder} {process.rank}")
    assert command.main(["train", "g2p"]) == 0
    assert capsys.readouterr().out == ""


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


@pytest.mark.parametrize(("name", "total"), [("gpt2", "124,439,808"), ("transformer-base", "63,082,496")])
def test_count_prints_the_terms_and_the_total_of_the_model_itself(name, total, capsys):
    assert command.main(["count", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split()[:2] == ["total", total]
    assert lines[-1] == f"the model itself has {total}"
    assert any(line.startswith("norms") for line in lines)


def test_count_lists_the_names_it_knows(capsys):
    assert command.main(["count", "gpt5"]) == 2
    assert "must be one of transformer-base, transformer-big, gpt2" in capsys.readouterr().err
