"""Heads: maps recomputed for every number of heads, and the maps of models, equal to the package's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import MOVE_SLIDER, in_node  # noqa: E402

from annotated_transformer import attention_maps, causal_mask, split_heads  # noqa: E402
from annotated_transformer.attention import attention_weights  # noqa: E402
from annotated_transformer.data import cmudict  # noqa: E402
from annotated_transformer.interactive import heads as module  # noqa: E402
from annotated_transformer.interactive.heads import (  # noqa: E402
    COUNTS,
    LINE,
    SPOKEN,
    fresh_projections,
    heads,
)
from annotated_transformer.recipes import G2PRecipe, g2p_model  # noqa: E402
from annotated_transformer.shakespeare import ShakespeareRecipe, shakespeare_model, tokenizer  # noqa: E402


@pytest.fixture(scope="module")
def models():
    """Small models with random weights."""
    torch.manual_seed(1)
    gpt = shakespeare_model(ShakespeareRecipe(d_model=24, num_layers=2, num_heads=3, max_len=32)).eval()
    recipe = G2PRecipe(d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=2)
    speaker = g2p_model(recipe).eval()
    return gpt, speaker


@pytest.fixture(scope="module")
def figure(models):
    return heads(*models)


@pytest.fixture(scope="module")
def data(figure):
    return json.loads(figure.json)["data"]


def test_maps_of_every_number_of_heads_are_those_of_the_package(data):
    query, key = json.dumps(data["query"]), json.dumps(data["key"])
    script = f"{json.dumps(COUNTS)}.map((n) => module.headMaps({query}, {key}, n))"
    x, layer = fresh_projections()
    stored = [torch.tensor([data[name]], dtype=torch.float64) for name in ("query", "key")]
    for count, got in zip(COUNTS, in_node("heads", script), strict=True):
        ours = torch.tensor(got, dtype=torch.float64)
        exact = attention_weights(*(split_heads(each, count) for each in stored))[0]
        torch.testing.assert_close(ours, exact, atol=1e-12, rtol=0)
        layer.num_heads = count
        torch.testing.assert_close(ours, layer.weights(x, x)[0], atol=1e-3, rtol=0)


def test_maps_of_the_line_are_those_of_the_model(models, data):
    ids = torch.tensor([tokenizer().encode(LINE)])
    maps = torch.cat(list(attention_maps(models[0], ids).values()))
    item = data["trained"][0]
    assert item["causal"] and "".join(item["queries"]).replace("␣", " ") == LINE
    script = f"module.unpack({json.dumps(item)}, 1, 2)"
    ours = torch.tensor(in_node("heads", script))
    torch.testing.assert_close(ours, maps[1, 2], atol=6e-4, rtol=0)
    assert (len(item["maps"]), len(item["maps"][0])) == tuple(maps.shape[:2])


def test_maps_of_a_word_are_those_of_the_cross_attentions(models, data):
    letters, phonemes = cmudict.letters(), cmudict.phonemes()
    for word, item in zip(SPOKEN, data["trained"][1:], strict=True):
        assert item["keys"] == [*word, "end"]
        tgt = torch.tensor([[phonemes.bos_id, *phonemes.encode(item["queries"][:-1])]])
        src = torch.tensor([[*letters.encode(word), letters.eos_id]])
        maps = attention_maps(models[1], src, tgt, tgt_mask=causal_mask(tgt.size(1)))
        wanted = maps["decoder.layers.1.cross_attention"][0, 1]
        ours = torch.tensor(in_node("heads", f"module.unpack({json.dumps(item)}, 1, 1)"))
        torch.testing.assert_close(ours, wanted, atol=6e-4, rtol=0)


def test_without_checkpoints_the_fresh_heads_are_left(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "CHECKPOINT", tmp_path / "none")
    monkeypatch.setattr(module, "G2P_CHECKPOINT", tmp_path / "none")
    assert json.loads(heads().json)["data"]["trained"] == []


def test_the_callers_random_numbers_stay(models):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    heads(*models)
    assert torch.equal(torch.rand(3), wanted)


def test_refuses_a_number_of_heads_that_its_slider_lacks():
    with pytest.raises(ValueError, match=r"num_heads \(5\) must be one of 1, 2, 3, 4, 6, 8, 12, 16"):
        heads(num_heads=5)


@pytest.mark.browser
def test_controls_show_the_maps_of_the_package(shown, figure, data):
    with shown(figure) as (page, seen):
        x, layer = fresh_projections()

        def check_fresh(count):
            layer.num_heads = count
            weights = layer.weights(x, x)[0]
            if count == 1:
                cells = page.locator(".at-drawing table").first.locator("td[data-row]").all_text_contents()
                assert [float(c) for c in cells] == pytest.approx(weights.flatten().tolist(), abs=0.0061)
            else:
                script = "(all) => all.map((canvas) => canvas.ariaLabel)"
                labels = page.locator(".at-fresh canvas").evaluate_all(script)
                got = [float(label.split()[-1].rstrip(".")) for label in labels]
                assert got == pytest.approx(weights.amax(dim=(1, 2)).tolist(), abs=0.0061)
            assert f"{count} heads of width {48 // count}" in page.locator(".at-status").inner_text()

        def check_trained(number, layer, head, token):
            item = data["trained"][number]
            assert page.locator(".at-thumbs canvas").count() == len(item["maps"][0])
            flat = iter(item["maps"][layer - 1][head - 1])
            width = len(item["keys"])
            row = [
                [next(flat) for _ in range(i + 1 if item["causal"] else width)]
                for i in range(len(item["queries"]))
            ][token - 1]
            status = page.locator(".at-status").inner_text()
            key = item["keys"][row.index(max(row))]
            token_name = item["queries"][token - 1]
            assert f"Layer {layer}, head {head}: “{token_name}” looks mostly at “{key}”" in status
            assert status.endswith(f"{max(row) / 1000:.2f}.")

        check_fresh(4)
        check_trained(0, 1, 1, 6)
        for index in (0, 2, 7):
            page.evaluate(MOVE_SLIDER, [0, index])
            check_fresh(COUNTS[index])
        for i, value in ((1, 2), (2, 3), (3, 11)):
            page.evaluate(MOVE_SLIDER, [i, value])
        check_trained(0, 2, 3, 11)
        page.locator(".at-queries .at-chip").nth(3).hover()
        check_trained(0, 2, 3, 4)
        page.locator("input[type=radio]").nth(2).check()  # fewer heads: the slider must follow
        check_trained(2, 2, 2, 4)
        page.locator(".at-trained td[data-row='0']").first.hover()
        check_trained(2, 2, 2, 1)
        page.locator(".at-reset").click()
        check_fresh(4)
        check_trained(0, 1, 1, 6)
        assert (seen.outside, seen.errors, seen.failed) == ([], [], [])
