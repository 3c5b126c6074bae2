"""The weights of the GPT in the page: small, close to the model's, the same from file and from model."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch.testing import assert_close

from annotated_transformer.gpt import GPT, GPTConfig
from annotated_transformer.interactive import gpt_weights
from annotated_transformer.interactive.gpt_weights import (
    MOST,
    dequantized,
    digest,
    quantize,
    quantize_row,
    quantized,
    read_tensors,
    scripts,
)
from annotated_transformer.recipes import save_weights
from annotated_transformer.shakespeare import CHECKPOINT, ShakespeareRecipe, load_shakespeare_gpt

TINY = GPTConfig(vocab_size=5, max_len=6, d_model=8, num_layers=2, num_heads=2)


@pytest.fixture
def tiny() -> GPT:
    torch.manual_seed(0)
    return GPT(TINY).eval()


def joined(texts: dict[str, str]) -> bytes:
    """The weights that a page puts together from the scripts."""
    parts = [re.search(r'\[(\d)\] = "([^"]*)";\n$', text).groups() for text in texts.values()]
    assert [int(number) for number, _ in parts] == list(range(len(texts)))
    return b"".join(base64.b64decode(text) for _, text in parts)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20))
def test_a_weight_is_off_by_half_a_step_at_most(values):
    scale, whole = quantize_row(array("f", values))
    assert scale > 0 and max(map(abs, whole)) <= 127
    for value, number in zip(array("f", values), whole, strict=True):
        assert abs(value - number * scale) <= 0.5001 * scale + 1e-44


def test_the_highest_magnitude_becomes_127_and_zeros_stay():
    assert quantize_row(array("f", [0.5, -2.0, 1.0]))[1].tolist() == [32, -127, 64]
    assert quantize_row(array("f", [0.0, 0.0])) == (1.0, array("b", [0, 0]))


def test_reads_what_the_safetensors_package_writes():
    torch.manual_seed(0)
    tensors = {"a": torch.randn(3, 4), "b": torch.randn(5), "c": torch.randn(2, 3).bfloat16()}
    read = read_tensors(save(tensors, {"format": "pt"}))
    assert set(read) == set(tensors)
    for name, (shape, numbers) in read.items():
        assert_close(torch.tensor(numbers).view(shape), tensors[name].float(), rtol=0, atol=0)


def test_writes_what_the_safetensors_package_reads(tiny):
    weights = load(quantized(tiny))
    matrix = weights["decoder.layers.1.feed_forward.widen.weight"]
    assert matrix.dtype == torch.int8 and matrix.shape == (32, 8)
    assert weights["decoder.layers.1.feed_forward.widen.weight.scale"].shape == (32,)
    assert weights["decoder.norm.bias"].dtype == torch.float32
    assert "generator.projection.weight" not in weights


def test_the_copy_has_the_quantised_weights_and_the_model_its_own(tiny):
    before = {name: weight.clone() for name, weight in tiny.state_dict().items()}
    copied = dequantized(tiny)
    assert copied.generator.projection.weight is copied.tokens.weight
    for name, weight in tiny.state_dict().items():
        assert torch.equal(weight, before[name])
        if weight.dim() == 2:
            step = weight.abs().amax(dim=1, keepdim=True) / 127
            assert bool(((copied.state_dict()[name] - weight).abs() <= 0.501 * step).all())
        else:
            assert torch.equal(copied.state_dict()[name], weight)
    assert not torch.equal(copied.tokens.weight, tiny.tokens.weight)


def test_quantising_twice_changes_nothing_more(tiny):
    once = dequantized(tiny)
    for got, wanted in zip(dequantized(once).parameters(), once.parameters(), strict=True):
        assert_close(got, wanted, rtol=1e-6, atol=0)


def test_a_checkpoint_and_its_model_give_the_same_bytes(tmp_path, tiny):
    path = tmp_path / "tiny.safetensors"
    save_weights(tiny, path, ShakespeareRecipe(), torch.bfloat16)
    tiny.load_state_dict({name: weight.bfloat16().float() for name, weight in tiny.state_dict().items()})
    assert quantize(path.read_bytes()) == quantized(tiny)


def test_the_scripts_hold_the_weights(tiny):
    content = quantized(tiny)
    texts = scripts(content, 3)
    assert list(texts) == ["weights-1.js", "weights-2.js", "weights-3.js"]
    assert all(digest(content) in text for text in texts.values())
    assert joined(texts) == content


def test_refuses_what_is_no_file_of_weights_or_too_large(tiny):
    whole = save({"a": torch.ones(2, 2)})
    with pytest.raises(ValueError, match="content must be a safetensors file"):
        quantize(b"none")
    with pytest.raises(ValueError, match="must be a whole safetensors file, a is cut off"):
        quantize(whole[:-1])
    with pytest.raises(ValueError, match="bfloat16 or float32 numbers, got F64 in a"):
        quantize(save({"a": torch.ones(2, 2, dtype=torch.float64)}))
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="row must have finite numbers"):
            quantize(save({"a": torch.tensor([[1.0, wrong]])}))
    with pytest.raises(ValueError, match=r"content \(4,000,001 bytes\) must not exceed 4,000,000 bytes"):
        scripts(bytes(MOST + 1))


def test_needs_no_torch():
    """The book's environment has the standard library only."""
    code = (
        "import importlib.util, sys; sys.modules['torch'] = sys.modules['numpy'] = None; "
        f"spec = importlib.util.spec_from_file_location('weights', {gpt_weights.__file__!r}); "
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module); "
        f"print(module.digest(module.quantize(open({str(CHECKPOINT)!r}, 'rb').read())))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == digest(quantize(Path(CHECKPOINT).read_bytes())), done.stderr[-500:]


def test_the_trained_model_stays_itself_in_four_megabytes():
    model = load_shakespeare_gpt()
    content = quantize(CHECKPOINT.read_bytes())
    assert content == quantized(model)
    assert len(content) <= MOST
    torch.manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (2, 60))
    with torch.no_grad():
        wanted, got = (each(ids).log_softmax(-1) for each in (model, dequantized(model)))
    surprise = (wanted.exp() * (wanted - got)).sum(-1)  # Kullback-Leibler divergence, nats
    assert surprise.mean() < 0.01
