"""What the figures "sampling" and "GPT in the page" hold and compute, against the package."""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from figures import in_node
from torch.testing import assert_close

from annotated_transformer.data.shakespeare import CHARACTERS
from annotated_transformer.generation import next_token_probabilities
from annotated_transformer.gpt import GPT, GPTConfig
from annotated_transformer.interactive.gpt_in_page import (
    gpt_in_page,
    page_model,
    pick,
    stored_steps,
    uniform,
)
from annotated_transformer.interactive.gpt_weights import dequantized, digest, quantize, quantized, scripts
from annotated_transformer.interactive.sampling import CONTEXTS, exact_model, sampling
from annotated_transformer.multi_head_attention import attention_maps
from annotated_transformer.shakespeare import CHECKPOINT, tokenizer, write_text

ROOT = Path(__file__).parents[1]
TINY = GPTConfig(vocab_size=len(CHARACTERS), max_len=12, d_model=12, num_layers=2, num_heads=3, d_ff=10)


@pytest.fixture
def tiny() -> GPT:
    torch.manual_seed(0)
    model = GPT(TINY).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def held(figure) -> dict:
    return json.loads(figure.json)["data"]


# The settings of sampling, in the page's own language


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.35},
        {"temperature": 0.0},
        {"temperature": 2.0, "top_k": 7},
        {"top_k": 1},
        {"top_p": 0.8},
        {"temperature": 1.4, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
        {"min_p": 0.5},
        {"top_p": 0.05},
    ],
    ids=str,
)
def test_the_page_draws_from_the_distribution_of_the_package(settings):
    torch.manual_seed(3)
    logits = (3 * torch.randn(4, 65)).round(decimals=4)
    names = {"temperature": "temperature", "top_k": "topK", "top_p": "topP", "min_p": "minP"}
    given = json.dumps({names[name]: value for name, value in settings.items()})
    rows = in_node(
        "distribution", f"{json.dumps(logits.tolist())}.map((row) => module.distribution(row, {given}))"
    )
    after, before = (torch.tensor([row[name] for row in rows]).float() for name in ("after", "before"))
    assert_close(after, next_token_probabilities(logits, **settings), atol=1e-6, rtol=1e-5)
    assert_close(before, logits.softmax(-1), atol=1e-6, rtol=1e-5)
    kept = torch.tensor([row["kept"] for row in rows])
    if settings.get("temperature") != 0:
        assert torch.equal(kept, next_token_probabilities(logits, **settings) > 0)


def test_python_and_the_page_draw_the_same():
    places = [(seed, i) for seed in (0, 1, 12345, 2**32 - 1) for i in (0, 1, 999)]
    numbers = in_node("distribution", f"{json.dumps(places)}.map(([seed, i]) => module.uniform(seed, i))")
    assert numbers == [uniform(seed, i) for seed, i in places]
    assert len(set(numbers)) == len(places) and all(0 <= u < 1 for u in numbers)
    shares = [0.2, 0.0, 0.1, 0.69999]
    draws = [0.0, 0.19, 0.2, 0.31, 0.9, 0.999999]
    assert [pick(shares, u) for u in draws] == [0, 0, 2, 3, 3, 3]
    assert in_node("distribution", f"{draws}.map((u) => module.pick({shares}, u))") == [0, 0, 2, 3, 3, 3]


# The model, in the page's own language


def test_the_page_computes_what_a_gpt_of_any_shape_computes(tiny):
    shape = {"layers": 2, "heads": 3, "width": 12, "inner": 10, "context": 12, "vocabulary": 65}
    ids = torch.randint(65, (1, 12), generator=torch.Generator().manual_seed(1))
    text = base64.b64encode(quantized(tiny)).decode()
    make = f"new module.GPT(module.readWeights(module.decode('{text}')), {json.dumps(shape)})"
    each = "(_, i, ids) => { gpt.read(ids.slice(0, i + 1)); return [...gpt.logits]; }"
    read = f"{ids[0].tolist()}.map({each})"
    got = in_node("gpt_model", f"(() => {{ const gpt = {make}; return [{read}, gpt.attention()]; }})()")
    model = dequantized(tiny).double()
    with torch.no_grad():
        wanted = model(ids)[0]
        maps = [weights[0, :, -1] for weights in attention_maps(model, ids).values()]
    assert_close(torch.tensor(got[0], dtype=torch.float64), wanted, atol=1e-4, rtol=0)
    assert_close(torch.tensor(got[1], dtype=torch.float64), torch.stack(maps), atol=1e-5, rtol=0)


# What is stored


def test_sampling_holds_what_the_trained_model_says():
    places = held(sampling())["contexts"]
    assert [place["text"] for place in places] == list(CONTEXTS)
    for place in places:
        ids = torch.tensor([tokenizer().encode(place["text"])])
        with torch.no_grad():
            wanted = exact_model()(ids)[0, -1].softmax(-1)
        assert_close(torch.tensor(place["logits"]).exp(), wanted.float(), atol=1e-6, rtol=1e-4)


def test_there_are_certain_and_uncertain_places():
    places = [torch.tensor(place["logits"]) for place in held(sampling())["contexts"]]
    entropies = [-(logits.exp() * logits).sum().item() for logits in places]
    assert min(entropies) < 0.5 and max(entropies) > 2  # nats


def test_sampling_takes_other_texts_and_models(tiny):
    figure = sampling(["To be", "Or not"], tiny)
    with torch.no_grad():
        wanted = tiny(torch.tensor([tokenizer().encode("Or not")]))[0, -1].log_softmax(-1)
    assert_close(torch.tensor(held(figure)["contexts"][1]["logits"]), wanted, atol=6e-5, rtol=0)
    assert "after To be" in figure.fallback


def test_sampling_refuses_texts_that_the_model_cannot_read():
    with pytest.raises(ValueError, match=r"contexts \(\[\]\) must hold at least one text"):
        sampling([])
    with pytest.raises(ValueError, match=r"must have the 65 characters of the plays only, got '€'"):
        sampling(["fine", "a €"])


def test_the_stored_example_is_what_the_package_draws(tiny):
    prompt = "The cat"
    stored = stored_steps(tiny, prompt, seed=4, steps=9)  # the context of 12 is full after 5
    text = prompt + stored["text"]
    assert len(stored["text"]) == 9 and len(stored["logits"]) == len(stored["attention"]) == 10
    for i in range(10):
        start = 0 if i <= 5 else 7  # the rule "slide" drops the older half
        ids = torch.tensor([tokenizer().encode(text[start : len(prompt) + i])])
        with torch.no_grad():
            logits = tiny(ids)[0, -1]
        assert_close(torch.tensor(stored["logits"][i]), logits.log_softmax(-1), atol=1e-3, rtol=0)
        maps = torch.stack([weights[0, :, -1] for weights in attention_maps(tiny, ids).values()])
        assert_close(torch.tensor(stored["attention"][i]) / 1000, maps, atol=6e-4, rtol=0)
        drawn = pick(logits.softmax(-1).tolist(), uniform(4, i))
        assert i == 9 or CHARACTERS[drawn] == stored["text"][i]


def test_the_page_says_which_weights_it_needs():
    weights = held(gpt_in_page())["weights"]
    assert weights["digest"] == digest(quantize(CHECKPOINT.read_bytes()))
    size = sum(map(len, scripts(page_model()[1]).values()))
    assert weights["megabytes"] == pytest.approx(size / 1e6, rel=0.02)
    assert weights["parts"] == len(scripts(b""))


def test_the_stored_example_starts_with_the_trained_model():
    data = held(gpt_in_page(steps=2))
    model = page_model()[0]
    wanted = write_text(data["prompt"], 1, model, 0, temperature=0)
    assert CHARACTERS[max(range(65), key=data["stored"]["logits"][0].__getitem__)] == next(wanted)
    assert data["shape"]["layers"] == model.config.num_layers


def test_gpt_in_page_refuses_what_it_cannot_show():
    with pytest.raises(ValueError, match=r"must have the 65 characters of the plays only, got '€'"):
        gpt_in_page("a €")
    with pytest.raises(ValueError, match=r"prompt \(length 201\) must have at most 200 characters"):
        gpt_in_page("a" * 201)
    with pytest.raises(ValueError, match=r"seed \(-1\) must be from 0 to 2\*\*32 - 1"):
        gpt_in_page(seed=-1)
    with pytest.raises(ValueError, match=r"steps \(-1\) must be at least 0"):
        gpt_in_page(steps=-1)


# The book


def test_the_build_writes_the_scripts_that_the_figure_asks_for(tmp_path):
    from sphinx.builders.html import StandaloneHTMLBuilder

    spec = importlib.util.spec_from_file_location("book_fixes", ROOT / "book" / "_ext" / "book_fixes.py")
    book_fixes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(book_fixes)
    pages = StandaloneHTMLBuilder.__new__(StandaloneHTMLBuilder)
    book_fixes.write_weights(SimpleNamespace(builder=pages, srcdir=ROOT, outdir=tmp_path))
    weights = held(gpt_in_page(steps=0))["weights"]
    folder = tmp_path / "book" / weights["folder"]  # as a page of the book sees it
    files = sorted(path.name for path in folder.resolve().iterdir())
    assert files == [f"weights-{i + 1}.js" for i in range(weights["parts"])]
    assert all(weights["digest"] in path.read_text() for path in folder.resolve().iterdir())
    book_fixes.write_weights(SimpleNamespace(builder=object(), srcdir=ROOT, outdir=tmp_path / "text"))
    assert not (tmp_path / "text").exists()
