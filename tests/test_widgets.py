"""The live controls: their plain functions, what they show, and how their errors are found."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_code_cell, new_notebook

from annotated_transformer.generation import generate, next_token_probabilities
from annotated_transformer.gpt import GPT, GPTConfig
from annotated_transformer.interactive.widgets import (
    HEAD_COUNTS,
    VIEW,
    WRITING,
    NextToken,
    continue_text,
    fresh_heads,
    generation_control,
    head_weights,
    heads_control,
    heat_map_html,
    next_tokens,
    table_html,
    text_html,
)
from annotated_transformer.multi_head_attention import attention_maps
from annotated_transformer.notebook import notebook_errors
from annotated_transformer.tokenization import CharTokenizer
from tools import run_notebooks

LETTERS = "\n <Taceht"  # nine, so that heads, letters and layers all differ
CHARACTERS = CharTokenizer(LETTERS)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = GPT(GPTConfig(len(LETTERS), max_len=13, d_model=20, num_layers=3, num_heads=5, dropout=0.4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10.0)  # distributions far from even
    return model  # in training mode, as a reader may leave it


def ids(text):
    return torch.tensor([CHARACTERS.encode(text)])


# what the callbacks compute


def test_a_continuation_is_what_generate_draws_with_the_same_seed(model):
    chosen = {"temperature": 0.7, "top_k": 4, "top_p": 0.9}
    written, candidates = continue_text(model, CHARACTERS, "The cat", 17, seed=5, **chosen)
    generator = torch.Generator().manual_seed(5)
    want = generate(model, ids("The cat"), 17, generator=generator, **chosen)[0, 7:]
    assert written == CHARACTERS.decode(want.tolist()) and len(written) == 17
    assert candidates == next_tokens(model, CHARACTERS, "The cat", **chosen)
    assert written == continue_text(model, CHARACTERS, "The cat", 17, seed=5, **chosen)[0]
    assert written != continue_text(model, CHARACTERS, "The cat", 17, seed=6, **chosen)[0]


def test_candidates_have_the_probability_of_the_model_and_the_one_they_are_drawn_with(model):
    chosen = {"temperature": 0.5, "top_k": 3}
    model.eval()
    logits = model(ids("The cat"))[:, -1]
    model.train()
    got = next_tokens(model, CHARACTERS, "The cat", most=5, **chosen)
    before, after = next_token_probabilities(logits)[0], next_token_probabilities(logits, **chosen)[0]
    assert len(got) == 5 and [c.model for c in got] == sorted((c.model for c in got), reverse=True)
    for text, shown, drawn in got:
        i = LETTERS.index(text)
        assert shown == pytest.approx(before[i].item(), abs=1e-4)
        assert drawn == pytest.approx(after[i].item(), abs=1e-4)
    assert [c.drawn > 0 for c in got] == [True, True, True, False, False]
    assert len(next_tokens(model, CHARACTERS, "T", most=99)) == len(LETTERS)


@settings(max_examples=15, deadline=None)
@given(temperature=st.floats(0, 2), top_k=st.integers(1, 9), top_p=st.floats(0.05, 1))
def test_every_setting_of_the_sliders_gives_a_distribution(model, temperature, top_k, top_p):
    got = next_tokens(model, CHARACTERS, "cat", temperature=temperature, top_k=top_k, top_p=top_p)
    assert sum(c.drawn for c in got) == pytest.approx(1.0, abs=1e-5)
    assert sum(c.model for c in got) == pytest.approx(1.0, abs=1e-5)


def test_a_prompt_longer_than_the_context_is_continued(model):
    written, candidates = continue_text(model, CHARACTERS, "The cat ate the tea", 3)
    assert len(written) == 3 and len(candidates) == len(LETTERS)


def test_a_head_is_the_map_of_its_layer_and_needs_a_place_that_exists(model):
    maps = list(attention_maps(model, ids("The cat")).values())
    for layer in range(3):
        for head in range(5):
            got = head_weights(model, CHARACTERS, "The cat", layer, head)
            torch.testing.assert_close(got, maps[layer][0, head])
    assert model.training and (got.triu(1) == 0).all()
    for layer, head, message in (
        (3, 0, r"layer \(3\) must be below 3"),
        (0, 5, r"head \(5\) must be below 5"),
    ):
        with pytest.raises(ValueError, match=message):
            head_weights(model, CHARACTERS, "cat", layer, head)
    with pytest.raises(ValueError, match=r"layer \(-1\) must be at least 0"):
        head_weights(model, CHARACTERS, "cat", -1, 0)


@pytest.mark.parametrize("num_heads", HEAD_COUNTS)
def test_fresh_heads_are_as_many_as_asked_and_sum_to_one(num_heads):
    before = torch.get_rng_state()
    got = fresh_heads(CHARACTERS, "The cat", num_heads)
    assert got.shape == (num_heads, 7, 7) and torch.equal(before, torch.get_rng_state())
    torch.testing.assert_close(got.sum(-1), torch.ones(num_heads, 7))
    assert torch.equal(got, fresh_heads(CHARACTERS, "The cat", num_heads))
    assert not torch.equal(got, fresh_heads(CHARACTERS, "The cat", num_heads, seed=1))
    assert (got > 0).all()  # nothing is hidden


def test_the_head_counts_are_those_of_the_width_48():
    assert HEAD_COUNTS == (1, 2, 3, 4, 6, 8, 12, 16)


# bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": ""}, r"prompt \(''\) must have at least one token"),
        ({"prompt": "the dog"}, r"text must have characters of the alphabet only, got 'd', 'g', 'o'"),
        ({"temperature": -0.5}, r"temperature \(-0.5\) must be 0 or above and finite"),
        ({"top_k": 0}, r"top_k \(0\) must be at least 1"),
        ({"top_p": 0.0}, r"top_p \(0.0\) must be above 0 and at most 1"),
        ({"characters": -1}, r"max_new_tokens \(-1\) must be at least 0"),
    ],
)
def test_impossible_settings_are_refused(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        continue_text(model, CHARACTERS, **{"prompt": "The cat", "characters": 2, **arguments})


def test_texts_that_no_map_can_show_are_refused(model):
    for text, message in (
        ("", r"text \(''\) must have at least one token"),
        ("t" * 41, r"text \(41 tokens\) must have at most 40 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            head_weights(model, CHARACTERS, text, 0, 0)
        with pytest.raises(ValueError, match=message):
            fresh_heads(CHARACTERS, text, 4)
    with pytest.raises(ValueError, match=r"num_heads \(5\) must divide d_model \(48\)"):
        fresh_heads(CHARACTERS, "cat", 5)
    with pytest.raises(ValueError, match=r"most \(0\) must be at least 1"):
        next_tokens(model, CHARACTERS, "cat", most=0)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (generation_control, {"prompt": ""}, r"prompt \(''\) must have at least one token"),
        (generation_control, {"characters": 0}, r"characters \(0\) must be at least 1"),
        (heads_control, {"text": ""}, r"text \(''\) must have at least one token"),
        (heads_control, {"num_heads": 5}, r"num_heads \(5\) must be one of 1, 2, 3, 4, 6, 8, 12, 16"),
    ],
)
def test_a_control_that_could_show_nothing_is_refused_at_once(model, make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(model, CHARACTERS, **arguments)


# the controls


def test_the_button_writes_what_the_settings_say(model):
    control = generation_control(model, CHARACTERS, characters=9)
    parts = control.parts
    parts["temperature"].value, parts["top_k"].value, parts["top_p"].value = 0.5, 3, 0.9
    parts["characters"].value, parts["seed"].value, parts["prompt"].value = 11, 4, "The tea"
    chosen = {"temperature": 0.5, "top_k": 3, "top_p": 0.9}
    written, candidates = continue_text(model, CHARACTERS, "The tea", 11, seed=4, **chosen)
    assert parts["table"].widget.value == table_html(candidates)  # without pressing anything
    assert parts["written"].widget.value != text_html("The tea", written)
    parts["write"].click()
    assert parts["written"].widget.value == text_html("The tea", written)


def test_the_control_starts_as_the_document_does(model):
    parts = generation_control(model, CHARACTERS).parts
    start = {name: parts[name].value for name in ("prompt", "temperature", "top_k", "top_p")}
    assert start == {"prompt": "The cat", "temperature": 1.0, "top_k": len(LETTERS), "top_p": 1.0}
    assert (parts["temperature"].min, parts["temperature"].max) == (0.0, 2.0)


def test_temperature_zero_in_the_control_is_greedy(model):
    control = generation_control(model, CHARACTERS, characters=8)
    control.parts["temperature"].value = 0.0
    control.parts["write"].click()
    want = generate(model, ids("The cat"), 8, temperature=0)[0, 7:]
    assert control.parts["written"].widget.value == text_html("The cat", CHARACTERS.decode(want.tolist()))


def test_the_maps_follow_the_fields(model):
    control = heads_control(model, CHARACTERS, text="The cat")
    parts = control.parts
    parts["layer"].value, parts["head"].value, parts["heads"].value = 2, 4, 12
    names = ["T", "h", "e", "␣", "c", "a", "t"]
    want = heat_map_html(head_weights(model, CHARACTERS, "The cat", 1, 3), names, causal=True)
    assert parts["trained"].widget.value.endswith(want)
    fresh = parts["fresh"].widget.value
    assert "12 heads of width 4." in fresh and fresh.count("<table") == 12
    parts["text"].value = "tea"
    assert parts["trained"].widget.value.count('scope="row"') == 3
    assert parts["fresh"].widget.value.count('scope="row"') == 36


def test_an_error_is_shown_in_the_control_and_kept_until_it_is_mended(model):
    control = generation_control(model, CHARACTERS)
    written, table = control.parts["written"], control.parts["table"]
    control.parts["prompt"].value = "<dog>"
    control.parts["write"].click()
    for picture in (written, table):
        assert "<b>ValueError</b>: text must have characters of the alphabet" in picture.widget.value
        (error,) = picture.problem.outputs
        assert error["output_type"] == "error" and error["ename"] == "ValueError"
    control.parts["prompt"].value = "The hat"
    control.parts["write"].click()
    assert written.problem.outputs == table.problem.outputs == ()
    assert "The hat" in written.widget.value


def test_the_text_of_a_control_stands_in_for_it(model):
    control = generation_control(model, CHARACTERS, characters=5, seed=3)
    written, candidates = continue_text(model, CHARACTERS, "The cat", 5, seed=3)
    lines = repr(control).split("\n")
    assert lines[0] == "temperature 1.0, top-k 9, top-p 1.0, characters 5, seed 3"
    assert f"The cat{written}" in repr(control) and lines[-6].split()[0] == "next"
    assert lines[-5].split()[-1] == f"{candidates[0].drawn:.3f}"
    heads = repr(heads_control(model, CHARACTERS, text="The cat")).split("\n")
    assert heads[:2] == ["layer 1, head 1", "T looks mostly at T 1.00"] and len(heads) == 8


def test_what_is_displayed_is_a_view_and_a_text(model):
    control = heads_control(model, CHARACTERS, text="cat")
    shown, _ = InteractiveShell.instance().display_formatter.format(control)
    assert set(shown) == {"text/plain", VIEW} and shown["text/plain"] == repr(control)
    assert shown[VIEW] == {"version_major": 2, "version_minor": 0, "model_id": control.widget.model_id}


def test_every_word_comes_from_the_labels(model):
    words = {name: f"W{i}" for i, name in enumerate(WRITING)}
    control = generation_control(model, CHARACTERS, labels=words)
    described = [getattr(part, "description", "") for part in control.parts.values()]
    seen = " ".join([*described, control.parts["table"].widget.value])
    assert set(re.findall(r"W\d+", seen)) == set(words.values())


def test_text_becomes_no_markup(model):
    assert "<b>&lt;i&gt;&amp;</b>" in text_html("", "<i>&")
    control = generation_control(model, CHARACTERS, prompt="<the")
    assert "&lt;the" in control.parts["written"].widget.value
    assert "&lt;" in heat_map_html(torch.eye(1), ["<"])
    assert "<code>&lt;</code>" in table_html([NextToken("<", 0.5, 0.5)])


def test_shades_are_the_weights_and_hidden_cells_are_hatched():
    cells = heat_map_html(torch.tensor([[1.0, 0.0], [0.25, 0.75]]), ["a", "b"], causal=True)
    assert re.findall(r"rgba\(0,99,168,([\d.]+)\)", cells) == ["1.00", "0.25", "0.75"]
    assert cells.count("repeating-linear-gradient") == 1 and 'title="b → a: 0.25"' in cells
    half = heat_map_html(torch.tensor([[0.5]]), ["a"], highest=0.5)
    assert "rgba(0,99,168,1.00)" in half and 'title="a → a: 0.50"' in half


SETUP = """from annotated_transformer.gpt import GPT, GPTConfig
from annotated_transformer.interactive.widgets import generation_control
from annotated_transformer.tokenization import CharTokenizer
model = GPT(GPTConfig(5, max_len=9, d_model=4, num_layers=1, num_heads=2))
control = generation_control(model, CharTokenizer(" acht"), "hat", characters=4)
control"""


@pytest.mark.parametrize("prompt, wrong", [("dog", True), ("cat", False)])
def test_the_check_of_notebooks_finds_what_a_callback_raised(prompt, wrong):
    body = f"control.parts['prompt'].value = {prompt!r}\ncontrol.parts['write'].click()"
    nb = new_notebook(cells=[new_code_cell(SETUP), new_code_cell(body)])
    run_notebooks.attentive_client(nb, 120).execute(env=run_notebooks.environment())
    message = "OutputModel: ValueError: text must have characters of the alphabet only, got 'd', 'g', 'o'"
    assert notebook_errors(nb) == ([message] * 2 if wrong else [])
    assert nb.cells[1].outputs == [] and VIEW in nb.cells[0].outputs[0].data


def test_the_plain_functions_need_no_ipywidgets():
    code = (
        "import sys; sys.modules['ipywidgets'] = None\n"
        "from annotated_transformer.interactive.widgets import fresh_heads\n"
        "from annotated_transformer.tokenization import CharTokenizer\n"
        "print(tuple(fresh_heads(CharTokenizer('acht'), 'hat', 2).shape))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(2, 3, 3)\n"
