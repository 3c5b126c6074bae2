"""The parameter calculator in the page: its counts equal the package's, for presets and for other shapes."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import in_node  # noqa: E402

from annotated_transformer.interactive.parameter_calculator import (  # noqa: E402
    KEYS,
    LABELS,
    RULE_OF_THUMB,
    parameter_calculator,
)
from annotated_transformer.parameter_count import (  # noqa: E402
    PRESETS,
    ModelShape,
    as_shape,
    cache_bytes,
    memory_bytes,
    parameter_count,
    parameter_terms,
    preset,
)

OTHERS = [
    RULE_OF_THUMB,
    ModelShape("encoder-decoder", 101, 9, 24, 2, 6, 2, d_k=5, d_ff=41, gated=True, share_embeddings=False),
    ModelShape("encoder-decoder", 7, 5, 12, 3, 3, positions="relative", buckets=11, output_bias=True),
    ModelShape("decoder", 101, 9, 24, 2, 6, 3, share_embeddings=False, output_bias=True, norm="rms"),
    ModelShape("encoder", 11, 5, 14, 1, 7, 7, segments=3, embedding_norm=True, pooler=True, classes=13),
]
SHAPES = [*(as_shape(preset(name)) for name in PRESETS), *OTHERS]


def test_the_script_s_formulas_and_counts_are_the_package_s():
    shapes = json.dumps([dataclasses.asdict(shape) for shape in SHAPES])
    got = in_node("parameters", f"{shapes}.map(module.terms)")
    for shape, terms in zip(SHAPES, got, strict=True):
        wanted = [[KEYS.get(t.name, t.name), t.formula, t.count] for t in parameter_terms(shape)]
        assert terms == wanted


def test_the_script_s_memory_is_the_package_s():
    shapes = json.dumps([dataclasses.asdict(shape) for shape in SHAPES])
    both = "[module.cache(s, 70, 3, 2, 50), module.memory(9, 2)]"
    got = in_node("parameters", f"{shapes}.map((s) => {both})")
    assert [cached for cached, _ in got] == [cache_bytes(shape, 70, 3, 2, 50) for shape in SHAPES]
    assert list(got[0][1].values()) == list(memory_bytes(9, 2).values())


def test_an_unknown_start_is_refused():
    with pytest.raises(ValueError, match=r"start \('gpt9'\) must be rule-of-thumb or one of"):
        parameter_calculator("gpt9")


def counts(page) -> dict[str, int]:
    """The parameters of the table of terms, by part."""
    lines = page.locator(".at-drawing table").first.locator("tbody tr").all()
    cells = [line.locator("th, td").all_inner_texts() for line in lines]
    return {name: int(count.replace(",", "")) for name, _, count, _ in cells}


def wanted(shape: ModelShape) -> dict[str, int]:
    terms = {LABELS[KEYS.get(t.name, t.name)]: t.count for t in parameter_terms(shape)}
    return {**terms, LABELS["total"]: parameter_count(shape)}


@pytest.mark.browser
def test_presets_switches_and_numbers_give_the_package_s_counts(shown):
    with shown(parameter_calculator()) as (page, seen):
        status = page.locator(".at-status")
        assert counts(page) == wanted(RULE_OF_THUMB)
        drawing = page.locator(".at-drawing").inner_text()
        assert "rounded terms sum to 123.3 million" in drawing and "rounds to 123.4 million" in drawing
        for figure in ("38.4", "28.3", "56.6", "0.02"):
            assert figure in page.locator(".at-drawing svg").get_attribute("aria-label")
        for name in PRESETS:
            page.get_by_label(LABELS["preset"]).select_option(name)
            assert counts(page) == wanted(as_shape(preset(name))), name
            total = f"{parameter_count(preset(name)):,}"
            assert f"{total} parameters, exactly those of {LABELS[name]}" in status.inner_text()
        page.locator(".at-reset").click()
        assert counts(page) == wanted(RULE_OF_THUMB)
        # what the rule of thumb leaves out, one by one, makes GPT-2
        change = {"bias": True, "norm_first": True, "norm": "layer", "positions": "learned"}
        page.get_by_label(LABELS["bias"]).check()
        page.get_by_label(LABELS["norm_first"]).check()
        page.get_by_label(LABELS["layer"]).check()
        page.get_by_label(LABELS["learned"]).check()
        assert counts(page) == wanted(dataclasses.replace(RULE_OF_THUMB, **change))
        page.get_by_label(LABELS["vocab_size"]).fill("50257")
        assert counts(page)["total"] == 124_439_808
        # grouped heads, a gate, an output of its own; then a width, which the feed-forward network follows
        page.get_by_label(LABELS["num_kv_heads"]).fill("4")
        page.get_by_label(LABELS["gated"]).check()
        page.get_by_label(LABELS["share_embeddings"]).uncheck()
        page.get_by_label(LABELS["d_model"]).fill("384")
        small = ModelShape(
            d_model=384, num_heads=12, num_kv_heads=4, d_ff=1536, gated=True, share_embeddings=False
        )
        assert counts(page) == wanted(small)
        assert page.get_by_label(LABELS["d_ff"]).input_value() == "1536"
        # memory
        kept = memory_bytes(parameter_count(small), 2)
        page.get_by_label("2", exact=True).check()
        cells = page.locator(".at-drawing table").nth(1).locator("td").all_inner_texts()
        cached = cache_bytes(small, 1024, 1, 2)
        sizes = [*kept.values(), sum(kept.values()), cached]
        assert cells == [f"{size / 1e9:.{4 if size < 1e8 else 2}f}" for size in sizes]
        # what cannot be is said as the package says it
        page.get_by_label(LABELS["num_heads"]).fill("7")
        assert status.inner_text() == "num_heads (7) must divide d_model (384)"
        assert page.get_by_label(LABELS["num_heads"]).get_attribute("aria-invalid") == "true"
        assert (seen.outside, seen.errors, seen.failed) == ([], [], [])
