"""The architecture in the page: shapes and counts are those of the package's modules, in every state."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import in_node  # noqa: E402

from annotated_transformer.interactive.architecture import (  # noqa: E402
    ASSEMBLIES,
    LABELS,
    SIZES,
    architecture,
    parts,
)
from annotated_transformer.parameter_count import (  # noqa: E402
    TransformerConfig,
    as_shape,
    build,
    count_model,
    parameter_count,
    preset,
)

TRANSFORMERS = [
    TransformerConfig(),
    TransformerConfig(37, 37, 3, 24, 41, 6, norm_first=True, share_embeddings=False),
    TransformerConfig(37, 37, 1, 20, 41, 5, norm_first=True, share_embeddings=True),
    TransformerConfig(37, 37, 2, 20, 11, 1, norm_first=False, share_embeddings=False),
]


def planned(shape, view: str, sizes: dict, cross: bool, then: str):
    arguments = ", ".join(json.dumps(each) for each in (dataclasses.asdict(shape), view, sizes, cross))
    return in_node("architecture", then.replace("PLAN", f"module.plan({arguments})"))


@pytest.mark.parametrize("config", TRANSFORMERS)
def test_each_block_has_the_shape_and_the_count_of_the_package_s_module(config):
    sizes = {"batch": 2, "source": 3, "target": 7}
    rows = "PLAN.flat().filter((b) => b.path).map((b) => [b.path, b.shape, b.count])"
    got = planned(as_shape(config), "encoder-decoder", sizes, True, rows)
    wanted = [[name, list(shape), count] for name, shape, count in parts(build(config), **sizes)]
    assert sorted(got) == sorted(wanted)


@pytest.mark.parametrize("config", TRANSFORMERS)
def test_the_blocks_sum_to_the_model_and_to_its_stacks(config):
    shape, model = as_shape(config), build(config)
    summed = f"module.sumOf(PLAN, {config.num_layers})"
    assert planned(shape, "encoder-decoder", SIZES, True, summed) == count_model(model)
    alone = count_model(model.encoder) + count_model(model.src_embed)
    assert planned(shape, "encoder", SIZES, True, summed) == alone
    output = 0 if config.share_embeddings else count_model(model.generator)
    alone = count_model(model.decoder) + count_model(model.tgt_embed) + output
    assert planned(shape, "decoder", SIZES, True, summed) == alone


@pytest.mark.parametrize("name", ASSEMBLIES.values())
def test_every_assembly_sums_to_its_published_count(name):
    shape = as_shape(preset(name))
    summed = f"module.sumOf(PLAN, {shape.num_layers})"
    assert planned(shape, shape.architecture, SIZES, False, summed) == parameter_count(shape)


@pytest.mark.browser
def test_tabs_blocks_parts_and_the_journey(shown):
    with shown(architecture()) as (page, seen):
        status, drawing = page.locator(".at-status"), page.locator(".at-drawing")
        blocks = page.locator(".at-drawing [data-block]")
        assert "The model has 63,082,496 parameters, those of the paper." in status.inner_text()
        assert "(32, 20, 37000)" in drawing.inner_text() and blocks.count() == 18
        # the journey, step by step
        page.get_by_role("button", name=LABELS["on"]).click(click_count=3)
        assert status.inner_text().startswith("Block 4 of 18, self-attention: gives (32, 10, 512).")
        assert "1,050,624 a layer, 6,303,744 in 6 layers" in drawing.inner_text()
        page.get_by_role("button", name=LABELS["back"]).click()
        assert status.inner_text().startswith("Block 3 of 18, positions")
        # a block by keyboard and by click
        block = page.locator('[data-block="decoder-5"]')
        block.focus()
        page.keyboard.press("Enter")
        assert "cross-attention" in status.inner_text()
        assert page.evaluate("document.activeElement.dataset.block") == "decoder-5"
        assert page.locator(".at-drawing a").get_attribute("href") == "encoder_decoder.html"
        page.locator('[data-block="encoder-5"]').click()
        assert "2,099,712 a layer" in drawing.inner_text()
        # tabs by arrow keys
        page.get_by_role("tab", name="complete").focus()
        page.keyboard.press("ArrowRight")
        assert page.get_by_role("tab", name="encoder").get_attribute("aria-selected") == "true"
        assert blocks.count() == 7
        page.keyboard.press("ArrowRight")
        assert page.get_by_role("tab", name="decoder").get_attribute("aria-selected") == "true"
        assert blocks.count() == 11 and "(32, 10, 512)" in drawing.inner_text()
        page.get_by_label(LABELS["cross"]).uncheck()
        assert blocks.count() == 9
        # other assemblies, with their exact counts
        for name in ("gpt", "bert", "t5", "paper", "llama"):
            model = ASSEMBLIES[name]
            page.get_by_label(LABELS[name], exact=True).check()
            wanted = f"{parameter_count(preset(model)):,} parameters, those of {LABELS[name]}."
            assert wanted in status.inner_text()
        # parts switched one by one: LLaMA with keys and values for all heads, and with its output tied
        grouped = dataclasses.replace(as_shape(preset("llama-7b")), num_kv_heads=1, share_embeddings=True)
        page.get_by_label(LABELS["single"]).check()
        page.get_by_label(LABELS["share_embeddings"]).check()
        assert f"{parameter_count(grouped):,} parameters" in status.inner_text()
        # pre-norm, another batch, and sizes that do not fit
        page.locator(".at-reset").click()
        page.get_by_label(LABELS["pre"]).check()
        pre = parameter_count(TransformerConfig(norm_first=True))
        assert f"{pre:,} parameters" in status.inner_text() and blocks.count() == 20
        page.get_by_label(LABELS["batch"]).press("Home")
        assert "(1, 20, 512)" in drawing.inner_text()
        page.get_by_role("slider", name=LABELS["num_heads"]).press("ArrowRight")
        assert status.inner_text() == "num_heads (12) must divide d_model (512)"
        assert (seen.outside, seen.errors, seen.failed) == ([], [], [])
