"""The pronunciation recipe: model, batches, training run, weights, and what they are used for."""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
from collections import defaultdict
from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from annotated_transformer import recipes
from annotated_transformer.attention import causal_mask, padding_mask
from annotated_transformer.data import cmudict
from annotated_transformer.decoding import KVCache
from annotated_transformer.joint_ngram import JointNGram, phonemes_of_pairs
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.pretrained import G2pEn
from annotated_transformer.recipes import (
    ByteDropout,
    G2PRecipe,
    Pronouncer,
    backwards,
    check_word,
    evaluate_g2p,
    faded,
    g2p_batches,
    g2p_model,
    g2p_pairs,
    g2p_scores,
    g2p_trainer,
    joint_search,
    load_g2p,
    load_pronouncer,
    log_probability,
    n_best,
    pronounce,
    quantized,
    read_weights,
    restored,
    save_g2p,
    save_weights,
    spread,
    train_g2p,
)
from annotated_transformer.training import load_state

TINY = G2PRecipe(
    d_model=12,
    num_heads=2,
    d_ff=13,
    encoder_layers=1,
    decoder_layers=2,
    max_tokens=60,
    warmup=2,
    steps=9,
    snapshots=3,
    snapshot_every=2,
)


def dictionary(count: int = 60) -> cmudict.Entries:
    """Syllables whose letters are their phonemes; every third word has a second pronunciation."""
    syllables = [("ba", ("B", "AA1")), ("de", ("D", "EH0")), ("ki", ("K", "IY2")), ("mo", ("M", "OW1"))]
    entries = {}
    for number in range(count):
        chosen = [syllables[number // 4**place % 4] for place in range(3)]
        variants = [sum((phonemes for _, phonemes in chosen), ())]
        if number % 3 == 0:
            variants.append((*variants[0], "Z"))
        entries["".join(letters for letters, _ in chosen)] = variants
    return entries


@pytest.fixture
def small_world(monkeypatch):
    """A dictionary of 60 words, 12 for testing and 8 for development, and a peer without its weights."""
    monkeypatch.setattr(cmudict, "load_cmudict", dictionary)
    monkeypatch.setattr(cmudict, "split_by_headword", partial(cmudict.split_by_headword, test=12, dev=8))
    torch.manual_seed(1)
    monkeypatch.setattr(G2pEn, "from_carrier", partial(G2pEn, 7))


# dropout


def merged(layer):
    return recipes.use_fast_parts(nn.Sequential(deepcopy(layer)))[0]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("across", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("precision", [None, torch.bfloat16], ids=str)
def test_merged_attention_has_the_numbers_and_gradients_of_attention(bias, across, precision):
    torch.manual_seed(0)
    plain = MultiHeadAttention(12, 3, bias=bias)
    quick = merged(plain)
    assert type(quick) is recipes.MergedAttention
    assert quick.state_dict().keys() == plain.state_dict().keys()
    tolerance = {} if precision is None else {"rtol": 2**-5, "atol": 2**-7}
    for mask in (None, causal_mask(5), padding_mask(torch.tensor([[1, 1, 1, 0, 0], [1] * 5]), 0)):
        results = []
        for layer in (plain, quick):
            torch.manual_seed(1)
            x, memory = (torch.randn(2, 5, 12, requires_grad=True) for _ in range(2))
            source = memory if across else x
            with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
                output = layer(x, source, source, mask)
            gradients = torch.autograd.grad(output.float().pow(2).sum(), [x, source, *layer.parameters()])
            results.append([output, *gradients])
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, **tolerance)


def test_merged_attention_is_plain_attention_everywhere_else():
    """With other values than keys, caches and in evaluation; and it names the same mistakes."""
    torch.manual_seed(0)
    plain = MultiHeadAttention(12, 3)
    quick, x, memory = merged(plain), torch.randn(2, 5, 12), torch.randn(2, 5, 12)
    assert torch.equal(quick(x, x, memory), plain(x, x, memory))
    assert_close(quick(x, x, x, None, KVCache(5)), plain(x, x, x, None, KVCache(5)))
    with torch.no_grad():
        assert torch.equal(quick(x, x, x), plain(x, x, x))
    for layer in (plain, quick):
        with pytest.raises(ValueError, match="must have four dimensions"):
            layer(x, x, x, torch.ones(2, 5, dtype=torch.bool))


def test_byte_dropout_keeps_the_mean_and_zeroes_its_share():
    torch.manual_seed(0)
    out = ByteDropout(0.25)(torch.ones(1000, 997))
    assert_close((out == 0).float().mean().item(), 0.25, rtol=0, atol=0.002)
    assert set(out.unique().tolist()) == {0.0, torch.tensor(256 / 192).item()}
    assert_close(out.mean().item(), 1.0, rtol=0, atol=0.003)


def test_byte_dropout_treats_neighbours_independently():
    """The eight entries that share a random number must not fall together."""
    torch.manual_seed(0)
    dropped = (ByteDropout(0.5)(torch.ones(100_000, 8)) == 0).float()
    assert_close(torch.corrcoef(dropped.T), torch.eye(8), rtol=0, atol=0.02)


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.floats(0, 1))
def test_byte_dropout_takes_any_shape_and_probability(shape, p):
    x = torch.full(shape, 3.0)
    out = ByteDropout(p)(x)
    assert out.shape == x.shape
    kept = 256 / max(256 - round(p * 256), 1)
    assert all(value == 0 or value == pytest.approx(3 * kept) for value in out.flatten().tolist())


def test_byte_dropout_is_nothing_in_eval_mode_and_all_at_probability_one():
    x = torch.ones(5, 7)
    assert torch.equal(ByteDropout(0.5).eval()(x), x)
    assert torch.equal(ByteDropout(0.0)(x), x)
    assert torch.equal(ByteDropout(1.0)(x), torch.zeros(5, 7))


def test_byte_dropout_has_the_gradient_of_what_it_kept():
    x = torch.ones(64, 8, requires_grad=True)
    out = ByteDropout(0.5)(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


# model, pairs, batches


def test_the_recipes_model_is_a_pre_norm_transformer_of_5_6_million_parameters():
    model = g2p_model()
    assert sum(p.numel() for p in model.parameters()) == 5_574_984
    assert all(r.norm_first for r in model.modules() if hasattr(r, "norm_first"))
    dropouts = [m for m in model.modules() if isinstance(m, nn.Dropout) and m.p > 0]
    assert len(dropouts) == 2 + 3 * 2 + 3 * 3  # the embeddings and every residual
    assert {type(m) for m in dropouts} == {ByteDropout}
    assert model.src_embed.tokens.table.weight[0].abs().sum() == 0  # padding


def test_pairs_hold_each_pronunciation_between_begin_and_end():
    letters, phonemes = cmudict.letters(), cmudict.phonemes()
    pairs = g2p_pairs({"ba": [("B", "AA1"), ("B", "AA0")], "de": [("D", "EH1")]})
    assert [letters.decode(src) for src, _ in pairs] == [("b", "a"), ("b", "a"), ("d", "e")]
    assert [src[-1] for src, _ in pairs] == [letters.eos_id] * 3
    assert [tgt[0] for _, tgt in pairs] == [phonemes.bos_id] * 3
    assert [phonemes.decode(tgt) for _, tgt in pairs] == [("B", "AA1"), ("B", "AA0"), ("D", "EH1")]


def test_pronunciations_that_differ_in_stress_alone_become_one_without_it():
    assert len(g2p_pairs({"ba": [("B", "AA1"), ("B", "AA0"), ("B", "AE1")]}, stress=False)) == 2


def test_batches_hold_every_pair_and_padding_at_the_end():
    pairs = g2p_pairs(dictionary())
    rows = [
        (tuple(i for i in src if i), tuple(i for i in tgt if i))
        for batch in g2p_batches(pairs, 60, epoch=3)
        for src, tgt in zip(*(part.tolist() for part in batch), strict=True)
    ]
    assert sorted(rows) == sorted((tuple(src), tuple(tgt)) for src, tgt in pairs)
    assert all(src[0] != 0 and tgt[0] == 1 for src, tgt in rows)


def test_an_empty_corpus_is_named():
    trainer = g2p_trainer([], TINY)
    with pytest.raises(ValueError, match=r"lengths \(\) must hold at least one item: the corpus is empty"):
        trainer.run(1)


def test_the_trainer_learns_the_small_dictionary():
    pairs = g2p_pairs(dictionary())
    recipe = replace(TINY, d_model=32, d_ff=64, dropout=0.0, peak=1e-2, steps=150)
    trainer = g2p_trainer(pairs, recipe, device=torch.device("cpu"))
    trainer.run(150)
    words = list(dictionary())[1::3]  # of one pronunciation
    spoken = pronounce(words, trainer.model, 1)
    right = [guess == dictionary()[word][0] for word, guess in zip(words, spoken, strict=True)]
    assert sum(right) >= 0.9 * len(words)


# the training run


def test_a_run_writes_state_snapshots_and_averaged_weights(tmp_path, small_world, capsys):
    path = train_g2p(tmp_path / "run", [TINY], save_every=4, check_every=5)
    assert path == tmp_path / "run" / "g2p.safetensors"
    own = tmp_path / "run" / "phase-1"
    names = {file.name for file in own.iterdir()}
    snapshots = {f"weights-{count:06}.safetensors" for count in (5, 7, 9)}
    assert names == {"g2p.safetensors", "state.pt", "state.pt.previous"} | snapshots
    assert load_state(own / "state.pt")["step"] == 9
    weights, header = read_weights(own / "g2p.safetensors")
    assert header["task"] == "g2p"
    assert header["d_model"] == "12"
    parts = [read_weights(own / name)[0] for name in sorted(snapshots)]
    for name, weight in weights.items():
        assert weight.dtype == torch.bfloat16
        mean = sum(part[name].double() for part in parts) / 3
        assert_close(weight.double(), mean, rtol=2**-7, atol=1e-6)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "step 9/9  loss " in captured.err
    assert re.search(r"step 5: \d+\.\d% of 8 development words wrong", captured.err)


def test_a_stopped_run_resumes_to_the_same_weights(tmp_path, small_world):
    whole = train_g2p(tmp_path / "whole", [TINY], save_every=3)
    train_g2p(tmp_path / "half", [TINY], steps=4, save_every=3)
    resumed = train_g2p(tmp_path / "half", [TINY], resume=True, save_every=3)
    states = [load_state(path.parent / "phase-1" / "state.pt")["model"] for path in (whole, resumed)]
    averages = [read_weights(path)[0] for path in (whole, resumed)]
    for one, other in (states, averages):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


SECOND = replace(TINY, steps=7, horizon=11, fade=3, seed=1, backwards=True)


def test_a_second_phase_begins_with_the_last_weights_of_the_first(tmp_path, small_world):
    path = train_g2p(tmp_path, [TINY, SECOND])
    assert path == tmp_path / "g2p.safetensors"
    folders = [tmp_path / "phase-1", tmp_path / "phase-2"]
    first, second = (load_state(folder / "state.pt") for folder in folders)
    assert (first["step"], second["step"]) == (9, 7)
    again = g2p_trainer(g2p_pairs(cmudict.split_by_headword(dictionary()).train), SECOND)
    again.model.load_state_dict(first["model"])
    again.run(7)
    for name, weight in again.model.state_dict().items():
        assert torch.equal(weight, second["model"][name])
    pronouncer = load_pronouncer(path)
    counted = JointNGram.fit(g2p_pairs(cmudict.split_by_headword(dictionary()).train))
    for name, part in counted.tensors().items():
        assert torch.equal(part, pronouncer.ngram.tensors()[name])
    models = pronouncer.models
    assert [model.backwards for model in models] == [False, True]
    for model, folder in zip(models, folders, strict=True):
        averaged = load_g2p(folder / "g2p.safetensors")
        assert averaged.backwards == model.backwards
        for name, weight in restored(quantized(averaged.state_dict())).items():
            assert torch.equal(weight, model.state_dict()[name])


def test_a_run_that_stops_in_the_first_phase_writes_one_model(tmp_path, small_world):
    path = train_g2p(tmp_path, [TINY, SECOND], steps=4)
    assert path == tmp_path / "g2p.safetensors"
    assert [model.backwards for model in load_pronouncer(path).models] == [False]
    assert not (tmp_path / "phase-2").exists()


@pytest.mark.parametrize("stop", [4, 9, 12])
def test_two_phases_stopped_anywhere_resume_to_the_same_weights(tmp_path, small_world, stop):
    whole = train_g2p(tmp_path / "whole", [TINY, SECOND], save_every=3)
    train_g2p(tmp_path / "half", [TINY, SECOND], steps=stop, save_every=3)
    with pytest.raises(FileExistsError, match="must hold no training state"):
        train_g2p(tmp_path / "half", [TINY, SECOND])
    resumed = train_g2p(tmp_path / "half", [TINY, SECOND], resume=True, save_every=3)
    states = [load_state(path.parent / "phase-2" / "state.pt")["model"] for path in (whole, resumed)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_schedule_cools_down_to_zero():
    assert [faded(2.0, step, 10, 4) for step in (0, 6, 7, 8, 10)] == [2.0, 2.0, 1.5, 1.0, 0.0]
    assert faded(2.0, 10, 10, 0) == 2.0
    with pytest.raises(ValueError, match=r"fade \(-1\) must be at least 0"):
        faded(1.0, 0, 1, -1)


def test_rows_are_turned_round_before_their_padding():
    rows = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0], [1, 2, 3, 4], [0, 0, 0, 0]])
    assert backwards(rows).tolist() == [[7, 6, 5, 0], [9, 8, 0, 0], [4, 3, 2, 1], [0, 0, 0, 0]]
    assert torch.equal(backwards(backwards(rows)), rows)


def test_a_model_that_writes_from_the_end_is_taught_targets_turned_round():
    pairs = g2p_pairs(dictionary())
    front, end = (g2p_trainer(pairs, replace(TINY, backwards=way)) for way in (False, True))
    assert not front.model.backwards and end.model.backwards
    for (src, tgt), (same, turned) in zip(front.batches(0), end.batches(0), strict=True):
        assert torch.equal(src, same)
        assert torch.equal(backwards(tgt), turned)


@pytest.mark.parametrize("steps", [0, -1, 10])
def test_steps_outside_the_recipe_are_named(tmp_path, small_world, steps):
    with pytest.raises(ValueError, match=rf"steps \({steps}\) must be from 1 to the recipe's 9"):
        train_g2p(tmp_path, [TINY], steps=steps)
    assert list(tmp_path.iterdir()) == []


def test_a_training_state_is_neither_overwritten_nor_gone_back_on(tmp_path, small_world):
    train_g2p(tmp_path, [TINY], steps=3)
    with pytest.raises(FileExistsError, match="must hold no training state, unless it is to be resumed"):
        train_g2p(tmp_path, [TINY])
    with pytest.raises(ValueError, match=r"steps \(2\) must be at least 3, the updates already made"):
        train_g2p(tmp_path, [TINY], steps=2, resume=True)
    assert load_state(tmp_path / "phase-1" / "state.pt")["step"] == 3


def test_nothing_to_resume_and_another_recipe_are_named(tmp_path, small_world):
    with pytest.raises(FileNotFoundError, match=r"state.pt\) must be a checkpoint, got no such file"):
        train_g2p(tmp_path, [TINY], resume=True)
    train_g2p(tmp_path, [TINY], steps=3)
    with pytest.raises(ValueError, match=r"state.pt\) must be a checkpoint of the same model"):
        train_g2p(tmp_path, [replace(TINY, d_model=14)], resume=True)
    with pytest.raises(ValueError, match=r"state.pt\) must be of the same schedule"):
        train_g2p(tmp_path, [replace(TINY, peak=0.5)], resume=True)


# weights


def test_weights_come_back_in_float32_with_the_recipes_shape(tmp_path):
    torch.manual_seed(0)
    model = g2p_model(TINY)
    save_weights(model, tmp_path / "deep" / "w.safetensors", TINY)
    again = load_g2p(tmp_path / "deep" / "w.safetensors")
    assert not again.training
    for (name, p), (other, q) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(p, q)


def test_several_models_come_back_from_one_file(tmp_path):
    torch.manual_seed(0)
    models = [g2p_model(recipe) for recipe in (TINY, SECOND)]
    ngram = JointNGram.fit(g2p_pairs(dictionary()), order=3)
    path = tmp_path / "w.safetensors"
    save_g2p(Pronouncer(models, ngram), path, [TINY, SECOND])
    weights, header = read_weights(path)
    assert header["2.backwards"] == "True" and header["1.steps"] == "9" and header["ngram.order"] == "3"
    assert {w.dtype for name, w in weights.items() if w.dim() == 2} == {torch.int16}
    again = load_pronouncer(path)
    assert len(again.models) == 2 and not any(model.training for model in again.models)
    for model, loaded in zip(models, again.models, strict=True):
        expected = restored(quantized(model.state_dict()))
        for name, weight in loaded.state_dict().items():
            assert torch.equal(weight, expected[name])
    src, tgt = (torch.tensor([row]) for row in g2p_pairs(dictionary())[7])
    assert torch.equal(again.ngram.log_probability(src, tgt), ngram.log_probability(src, tgt))
    save_g2p(Pronouncer(models), path, [TINY, SECOND])
    assert load_pronouncer(path).ngram is None


def test_what_pronounces_together_has_one_vocabulary():
    with_stress, without = g2p_model(TINY), g2p_model(TINY, stress=False)
    with pytest.raises(ValueError, match=r"must have one vocabulary of phonemes, got sizes \[42, 72\]"):
        Pronouncer([with_stress, without])
    with pytest.raises(ValueError, match=r"got sizes \[\]"):
        Pronouncer([])
    ngram = JointNGram.fit(g2p_pairs(dictionary()), order=3)
    with pytest.raises(ValueError, match=r"models \(phonemes: 42\) must write stress where n-grams judge"):
        Pronouncer([without], ngram)


@pytest.mark.parametrize("lost", ["pairs", "tokens", "order"])
def test_n_grams_that_are_not_whole_are_refused(tmp_path, lost):
    from safetensors.torch import save_file

    path = tmp_path / "w.safetensors"
    ngram = JointNGram.fit(g2p_pairs(dictionary()), order=3)
    save_g2p(Pronouncer([g2p_model(TINY)], ngram), path, [TINY])
    weights, header = read_weights(path)
    (header if lost == "order" else weights).pop(f"ngram.{lost}")
    save_file(weights, path, header)
    with pytest.raises(ValueError, match=r"w.safetensors\) must hold n-grams as they are saved"):
        load_pronouncer(path)


@given(st.integers(1, 3), st.integers(1, 8), st.data())
def test_stored_weights_are_no_further_off_than_rounding_to_39_steps(rows, columns, data):
    count = rows * columns
    numbers = data.draw(st.lists(st.floats(-1e6, 1e6, width=32), min_size=count, max_size=count))
    matrix = torch.tensor(numbers).view(rows, columns)
    stored = quantized({"m": matrix, "v": matrix[0]})
    assert stored["m"].dtype == torch.int16 and stored["m"].shape == (rows, math.ceil(columns / 3))
    back = restored(stored)
    assert back.keys() == {"m", "v"} and torch.equal(back["v"], matrix[0])
    step = matrix.abs().amax(dim=1, keepdim=True).double() / 19
    plain = (matrix / step.clamp(min=1e-300)).round() * step
    errors = [(found - matrix).double().square().sum(dim=1) for found in (back["m"], plain)]
    assert (errors[0] <= errors[1] * 1.001 + 1e-9 * step[:, 0] ** 2 + 1e-70).all()


def test_weights_that_are_whole_numbers_of_steps_are_stored_exactly():
    matrix = torch.arange(-19, 20).flip(0).repeat(3, 1) * torch.tensor([[0.25], [-8.0], [2.0**-90]])
    assert torch.equal(restored(quantized({"m": matrix}))["m"], matrix)


def test_one_weight_far_from_the_others_does_not_spoil_them():
    matrix = torch.linspace(-1, 1, 1000).view(1, -1)
    matrix[0, 0] = 1.7
    error = (restored(quantized({"m": matrix}))["m"] - matrix)[0, 1:].square().mean()
    assert error < 0.8 * (1.7 / 19) ** 2 / 12


def test_broken_and_foreign_weights_are_named(tmp_path):
    path = tmp_path / "w.safetensors"
    with pytest.raises(FileNotFoundError, match=r"w.safetensors\) must be a checkpoint, got no such file"):
        load_g2p(path)
    save_weights(g2p_model(TINY), path, TINY)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"w.safetensors\) must be a complete safetensors file"):
        load_g2p(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"w.safetensors\) must be a complete safetensors file"):
        load_g2p(path)
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(3)}, path, {"task": "shakespeare"})
    with pytest.raises(ValueError, match=r"must be a checkpoint of the task g2p, got shakespeare"):
        load_g2p(path)
    save_file({"w": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"must be a checkpoint of the task g2p, got None"):
        load_g2p(path)


def test_weights_of_another_vocabulary_are_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    save_weights(g2p_model(TINY, stress=False), path, TINY)
    with pytest.raises(ValueError, match=r"(?s)must fit its own recipe and vocabulary: .*42"):
        load_g2p(path)


def test_a_full_disk_leaves_the_weights_before(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    save_weights(g2p_model(TINY), path, TINY)
    before = path.read_bytes()

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"w.safetensors\) must be writable, with room .*No space left"):
        save_weights(g2p_model(TINY), path, TINY)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["w.safetensors"]


# use


@pytest.mark.parametrize("num_beams", [1, 3])
def test_words_are_pronounced_alike_alone_and_in_any_company(num_beams):
    torch.manual_seed(0)
    model = g2p_model(TINY).eval()
    words = ["ba", "kimode", "demo", "a", "bakimodebaki"]
    together = pronounce(words, model, num_beams, batch=3)
    assert together == [pronounce([word], model, num_beams)[0] for word in words]
    assert pronounce(reversed(words), model, num_beams) == together[::-1]
    assert all(set(spoken) <= set(cmudict.phonemes().symbols) for spoken in together)


def test_pronouncing_lower_cases_and_keeps_the_models_mode():
    torch.manual_seed(0)
    model = g2p_model(TINY).train()
    assert pronounce(["BaKi"], model, 1) == pronounce(["baki"], model, 1)
    assert model.training
    assert pronounce([], model) == []


def test_a_model_without_stress_speaks_without_it():
    torch.manual_seed(0)
    spoken = pronounce(["baki", "mo"], g2p_model(TINY, stress=False), 1)
    assert set(sum(spoken, ())) <= set(cmudict.phonemes(stress=False).symbols)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("naïve42", r"word \(naïve42\) must have the letters a to z only, got 'ï', '4', '2'"),
        ("don't", r"""word \(don't\) must have the letters a to z only, got "'"$"""),
        ("two words", r"word \(two words\) must have the letters a to z only, got ' '"),
        ("", r"word \(''\) must have 1 to 48 letters, got 0"),
        ("a" * 49, r"must have 1 to 48 letters, got 49"),
    ],
)
def test_words_that_cannot_be_read_are_named(word, message):
    with pytest.raises(ValueError, match=message):
        check_word(word)
    with pytest.raises(ValueError, match=message):
        pronounce(["ba", word], g2p_model(TINY))


def test_the_longest_word_allowed_is_pronounced():
    assert len(pronounce(["ab" * 24], g2p_model(TINY), 2)[0]) <= 49


VOWELS = cmudict.Vocabulary(["B", "AA0", "AA1"])
BA = torch.tensor([[*cmudict.letters().encode("ba"), 2]])


@pytest.fixture
def pair(monkeypatch):
    """Two models over three phonemes with opinions: one that writes from the front, one from the end."""
    monkeypatch.setattr(cmudict, "phonemes", lambda stress=True: VOWELS)

    def made(seed):
        torch.manual_seed(seed)
        models = [g2p_model(replace(TINY, backwards=way)).eval() for way in (False, True)]
        for model in models:
            for parameter in model.generator.parameters():
                parameter.data.mul_(3)
        return models

    return made


def enumerated(models, longest):
    """Mean log-probabilities of all short answers, by plain forward passes."""
    found = {}
    for n in range(longest):
        for body in itertools.product((3, 4, 5), repeat=n):
            row = torch.tensor([[1, *body, 2]])
            ways = [log_probability(m, m.encode(BA), row.flip(1) if m.backwards else row) for m in models]
            found[VOWELS.decode(body)] = (sum(ways) / len(ways)).item()
    return found


@torch.no_grad()
@pytest.mark.parametrize("backward", [False, True])
def test_the_n_best_answers_of_one_model_are_those_of_an_enumeration(pair, backward, monkeypatch):
    monkeypatch.setattr(recipes, "LONGEST_WORD", 3)
    for seed in range(4):
        model = pair(seed)[backward]
        every = enumerated([model], 4)
        rows = n_best(model, BA, num_beams=250, count=60)[0].tolist()
        texts = [" ".join(map(str, row)).rstrip(" 0") for row in rows]
        # a model without training also writes padding, begin and end in the middle
        said = [VOWELS.decode(map(int, text.split())) for text in texts if re.fullmatch("1( [345])* 2", text)]
        assert said[:5] == sorted(every, key=every.get, reverse=True)[:5]
        assert n_best(model, BA, num_beams=1, count=1).shape[:2] == (1, 1)


def agreed(every):
    """The likeliest answer of those that differ in stress only from the likeliest without stress."""
    mass = defaultdict(float)
    for said, score in every.items():
        mass[cmudict.strip_stress(said)] += math.exp(score)
    best = max(mass, key=mass.get)
    return max((said for said in every if cmudict.strip_stress(said) == best), key=every.get)


@torch.no_grad()
def test_joint_search_chooses_what_an_enumeration_chooses(pair, monkeypatch):
    monkeypatch.setattr(recipes, "LONGEST_WORD", 3)
    for seed in range(4):
        models = pair(seed)
        want = agreed(enumerated(models, 4))
        assert joint_search(models, BA, num_beams=60) == [want]
        assert pronounce(["ba"], models, num_beams=60) == [want]
        assert pronounce(["ba"], models, num_beams=1) == pronounce(["ba"], models[0], num_beams=1)


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 2])
def test_n_grams_judge_what_the_models_propose(pair, monkeypatch, count):
    monkeypatch.setattr(recipes, "LONGEST_WORD", 3)
    monkeypatch.setattr(recipes, "NGRAM_WEIGHT", 5.0)
    ngram = JointNGram.fit([(BA[0].tolist(), [1, *VOWELS.encode(["B", "AA0"]), 2])] * 3, order=3)
    changed = 0
    for seed in range(4):
        models = pair(seed)[:count]
        every = enumerated(models, 4)
        before = agreed(every)
        for said in every:
            row = torch.tensor([[1, *VOWELS.encode(said), 2]])
            every[said] += recipes.NGRAM_WEIGHT * ngram.log_probability(BA, row).item()
        assert pronounce(["ba"], Pronouncer(models, ngram), num_beams=250) == [agreed(every)]
        assert pronounce(["ba"], Pronouncer(models, ngram), num_beams=1) == pronounce(["ba"], models, 1)
        changed += agreed(every) != before
    assert changed


@torch.no_grad()
def test_joint_search_says_something_where_nothing_can_end(pair):
    models = pair(0)
    for model in models:
        model.generator.projection.bias[1:3] = -1e9
    assert len(pronounce(["ba"], models, num_beams=2)[0]) > 0


# scores


def test_scores_by_hand():
    """One word of two is right; the other has a wrong stress and a wrong phoneme, of five phonemes in all."""
    spoken = [("B", "AA1"), ("K", "IY0", "T")]
    references = [[("P", "AA1"), ("B", "AA1")], [("K", "IY1", "D")]]
    assert g2p_scores(spoken, references) == {
        "word error rate with stress": 0.5,
        "word error rate without stress": 0.5,
        "phoneme error rate with stress": 2 / 5,
        "phoneme error rate without stress": 1 / 5,
    }


def test_stress_alone_is_forgiven_in_the_scores_without_it():
    scores = g2p_scores([("B", "AA1")], [[("B", "AA0")]])
    assert [scores[f"word error rate {kind} stress"] for kind in ("with", "without")] == [1.0, 0.0]


def test_spread_takes_words_at_equal_distances():
    assert spread("abcdefghij", 5) == list("acegi")
    assert spread("abc", 5) == list("abc")
    assert len(spread(range(12_000), 1_000)) == 1_000


def test_the_table_shows_ours_the_goals_and_the_peer(small_world, monkeypatch, capsys):
    table, met = evaluate_g2p(g2p_model(TINY), num_beams=1)
    assert not met
    lines = table.splitlines()
    assert re.fullmatch(r"12 test words +ours +must +aim +g2p-en", lines[0])
    assert re.fullmatch(r"word error rate with stress +[\d.]+% +28.5% +26.0% +[\d.]+%", lines[1])
    assert re.fullmatch(r"word error rate without stress +[\d.]+% +23.5% +21.5% +[\d.]+%", lines[2])
    assert re.fullmatch(r"phoneme error rate with stress +[\d.]+% +[\d.]+%", lines[3])
    assert re.fullmatch(r"phoneme error rate without stress +[\d.]+% +6.0% +5.2% +[\d.]+%", lines[4])
    assert "12 of 12 words pronounced" in capsys.readouterr().err


def test_a_perfect_model_meets_every_must_and_one_miss_fails(small_world, monkeypatch):
    entries = dictionary()
    monkeypatch.setattr(recipes, "pronounce", lambda words, *rest: [entries[word][-1] for word in words])
    table, met = evaluate_g2p(g2p_model(TINY))
    assert met
    assert re.search(r"word error rate with stress +0.00% +28.5%", table)
    goal = recipes.Goal(-0.001, -0.001)
    monkeypatch.setitem(recipes.G2P_GOALS, "phoneme error rate without stress", goal)
    assert not evaluate_g2p(g2p_model(TINY))[1]


def test_evaluating_some_words_only(small_world):
    assert evaluate_g2p(g2p_model(TINY), num_beams=1, count=5)[0].startswith("5 test words")
    with pytest.raises(ValueError, match=r"count \(0\) must be at least 1"):
        evaluate_g2p(g2p_model(TINY), count=0)


def test_the_casting_norm_gives_the_numbers_of_layer_norm_and_the_lower_precision_under_autocast():
    norm, plain, x = recipes.CastingLayerNorm(8), torch.nn.LayerNorm(8), torch.randn(3, 5, 8)
    plain.load_state_dict(norm.state_dict())
    torch.testing.assert_close(norm(x), plain(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x).dtype == torch.bfloat16
        torch.testing.assert_close(norm(x), plain(x).bfloat16())


# what is shipped


@pytest.fixture(scope="module")
def shipped():
    """The shipped models and n-grams."""
    return load_pronouncer()


def card():
    """The text of the card beside the shipped weights."""
    return recipes.G2P_CHECKPOINT.with_suffix(".md").read_text(encoding="utf-8")


def test_the_shipped_models_are_small_and_pronounce_what_everybody_can(shipped):
    assert recipes.G2P_CHECKPOINT.stat().st_size <= 12_000_000
    assert [model.backwards for model in shipped.models] == [False, True]
    words = {"cat": "K AE1 T", "phone": "F OW1 N", "night": "N AY1 T", "station": "S T EY1 SH AH0 N"}
    for num_beams in (1, 5):
        assert [" ".join(said) for said in pronounce(words, shipped, num_beams)] == list(words.values())
    assert [" ".join(said) for said in pronounce(words, shipped.models[1], 1)] == list(words.values())
    assert pronounce(["cat"]) == [("K", "AE1", "T")]


def test_the_card_repeats_the_recipes_of_the_shipped_weights():
    _, header = read_weights(recipes.G2P_CHECKPOINT)
    front, end = (recipe.header() for recipe in recipes.G2P_PHASES)
    for name in vars(G2PRecipe()):
        assert (header[f"1.{name}"], header[f"2.{name}"]) == (front[name], end[name])
        assert f"| `{name}` | {front[name]} | {end[name]} |" in card()
    assert "python -m annotated_transformer train g2p" in card()
    assert "python -m annotated_transformer evaluate g2p" in card()
    assert not re.search(r"/(home|root|tmp|work|opt)/", card())


@pytest.mark.network
def test_the_shipped_models_are_as_good_as_the_card_says_and_better_together(shipped):
    """On 500 test words; the bounds leave room for so small a part."""
    split = cmudict.split_by_headword(cmudict.load_cmudict())
    words = list(split.test)[::24]
    listed = [split.test[word] for word in words]
    models = shipped.models
    spoken = [pronounce(words, those) for those in (shipped, models, models[0])]
    together, without, alone = (g2p_scores(said, listed)["word error rate with stress"] for said in spoken)
    assert together < 0.30
    assert together < without < alone
    assert g2p_scores(spoken[0], listed)["phoneme error rate without stress"] < 0.065


@pytest.mark.network
def test_the_shipped_n_grams_are_those_of_the_training_words(shipped):
    split = cmudict.split_by_headword(cmudict.load_cmudict())
    src, tgt = (torch.tensor([row]) for row in g2p_pairs({"mixer": split.train["mixer"]})[0])
    tokens = shipped.ngram.cut(src, tgt)[0, 1:]
    written = phonemes_of_pairs(shipped.ngram.pairs[tokens - 1]).tolist()
    said = [cmudict.phonemes().decode(two) for two in written]
    assert said == [("M",), ("IH1",), ("K", "S"), (), ("ER0",), ()]
    words = sum(len(g2p_pairs({word: variants})) for word, variants in split.train.items())
    assert 0.99 * words < (shipped.ngram.tokens == 0).sum() <= words
