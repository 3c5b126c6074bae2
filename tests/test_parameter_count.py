"""Counts by formula against the models themselves, operations against torch's counter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.gpt import GPT, GPTConfig
from annotated_transformer.parameter_count import (
    CHOICES,
    PRESETS,
    ModelShape,
    TransformerConfig,
    as_shape,
    build,
    cache_bytes,
    count_model,
    flops_per_token,
    format_table,
    memory_bytes,
    parameter_count,
    parameter_terms,
    preset,
    rough_terms,
)


@pytest.mark.parametrize("name", PRESETS)
def test_formula_equals_the_model_for_every_preset(name):
    assert parameter_count(preset(name)) == count_model(build(preset(name)))


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("transformer-base", 63_082_496),
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("transformer-big", 214_245_376),
        ("bert-base", 109_482_240),
        ("t5-small", 60_506_624),
        ("vit-b16", 86_567_656),
        ("llama-7b", 6_738_415_616),
    ],
)
def test_published_models_have_their_exact_counts(name, total):
    assert parameter_count(preset(name)) == total


@settings(max_examples=12, deadline=None)
@given(
    vocab=st.integers(1, 31),
    length=st.integers(1, 17),
    heads=st.integers(1, 3),
    d_k=st.integers(1, 5),
    layers=st.integers(1, 3),
    d_ff=st.none() | st.integers(1, 13),
)
def test_gpt_formula_holds_for_any_shape(vocab, length, heads, d_k, layers, d_ff):
    config = GPTConfig(vocab, length, heads * d_k, layers, heads, d_ff)
    assert parameter_count(config) == count_model(build(config))


@settings(max_examples=12, deadline=None)
@given(
    vocabs=st.tuples(st.integers(2, 31), st.integers(2, 31)),
    heads=st.integers(1, 3),
    layers=st.integers(1, 2),
    d_ff=st.integers(1, 13),
    norm_first=st.booleans(),
    shared=st.booleans(),
)
def test_transformer_formula_holds_for_any_shape(vocabs, heads, layers, d_ff, norm_first, shared):
    src, tgt = (vocabs[0], vocabs[0]) if shared else vocabs
    config = TransformerConfig(src, tgt, layers, 4 * heads, d_ff, heads, norm_first, shared)
    assert parameter_count(config) == count_model(build(config))


SHAPES = st.builds(
    ModelShape,
    **{name: st.sampled_from(allowed) for name, allowed in CHOICES.items()},
    vocab_size=st.integers(1, 31),
    max_len=st.integers(1, 17),
    d_model=st.integers(1, 13),
    num_layers=st.integers(1, 3),
    num_heads=st.just(6),
    num_kv_heads=st.sampled_from([1, 2, 3, 6]),
    d_k=st.integers(1, 5),
    d_ff=st.integers(1, 19),
    segments=st.integers(0, 2),
    patch_size=st.integers(0, 3),
    classes=st.integers(0, 7),
    **{
        name: st.booleans()
        for name in (
            "gated", "bias", "norm_first", "share_embeddings", "output_bias", "embedding_norm", "pooler"
        )
    },
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(shape=SHAPES)
def test_shape_formula_equals_the_sum_over_torch_s_layers(shape):
    assert parameter_count(shape) == count_model(build(shape))
    assert all(term.count >= 0 for term in parameter_terms(shape))


@pytest.mark.parametrize("name", PRESETS)
def test_every_model_can_be_said_as_a_shape(name):
    assert parameter_count(as_shape(preset(name))) == parameter_count(preset(name))


def counted(name: str, **sizes) -> int:
    """The parameters of a model of the peer with a small configuration, built without memory."""
    transformers = pytest.importorskip("transformers")
    kind = {"T5ForConditionalGeneration": "T5", "LlamaForCausalLM": "Llama"}.get(name, name.split("For")[0])
    config = getattr(transformers, f"{kind.removesuffix('Model')}Config")(**sizes)
    with torch.device("meta"):
        return count_model(getattr(transformers, name)(config))


def test_shapes_count_what_the_models_of_transformers_have():
    bert = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 41}
    ours = ModelShape(
        "encoder", 101, 17, 24, 2, 3, d_ff=41, norm_first=False, segments=2, embedding_norm=True, pooler=True
    )
    assert parameter_count(ours) == counted("BertModel", vocab_size=101, max_position_embeddings=17, **bert)
    ours = ModelShape("encoder", 0, 5, 24, 2, 3, d_ff=41, patch_size=7, classes=11)
    assert parameter_count(ours) == counted(
        "ViTForImageClassification", image_size=14, patch_size=7, num_labels=11, **bert
    )
    t5 = {"d_model": 24, "d_kv": 5, "d_ff": 41, "num_layers": 2, "num_heads": 3, "vocab_size": 101}
    for gated in (False, True):
        ours = ModelShape(
            "encoder-decoder", 101, 9, 24, 2, 3, d_k=5, d_ff=41, gated=gated, bias=False, norm="rms",
            positions="relative", buckets=13,
        )  # fmt: skip
        kind = "gated-gelu" if gated else "relu"
        theirs = counted(
            "T5ForConditionalGeneration", relative_attention_num_buckets=13, feed_forward_proj=kind,
            tie_word_embeddings=True, **t5,
        )  # fmt: skip
        assert parameter_count(ours) == theirs
    for tied in (False, True):
        ours = ModelShape(
            "decoder", 101, 9, 24, 2, 6, 2, d_ff=41, gated=True, bias=False, norm="rms", positions="rotary",
            share_embeddings=tied,
        )  # fmt: skip
        theirs = counted(
            "LlamaForCausalLM", vocab_size=101, hidden_size=24, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=2, intermediate_size=41, tie_word_embeddings=tied,
        )  # fmt: skip
        assert parameter_count(ours) == theirs


def test_the_rule_of_thumb_is_a_shape_without_what_it_leaves_out():
    bare = ModelShape(vocab_size=50_000, bias=False, norm="rms", norm_first=False, positions="sinusoidal")
    terms = {term.name: term.count for term in parameter_terms(bare)}
    rough = [term.count for term in rough_terms()]
    assert [terms[name] for name in ("token embeddings", "attention", "feed-forward", "norms")] == rough
    assert parameter_count(bare) == sum(rough)


def test_an_impossible_shape_raises():
    with pytest.raises(ValueError, match=r"num_heads \(5\) must divide d_model \(768\)"):
        ModelShape(num_heads=5)
    with pytest.raises(ValueError, match=r"num_kv_heads \(5\) must divide num_heads \(12\)"):
        ModelShape(num_kv_heads=5)
    with pytest.raises(ValueError, match=r"norm \('batch'\) must be one of layer, rms"):
        ModelShape(norm="batch")
    with pytest.raises(ValueError, match=r"segments \(-1\) must be at least 0"):
        ModelShape(segments=-1)
    with pytest.raises(ValueError, match=r"d_ff \(0\) must be at least 1"):
        ModelShape(d_ff=0)
    with pytest.raises(TypeError, match=r"classes \(2.5\) must be a whole number"):
        ModelShape(classes=2.5)
    with pytest.raises(ValueError, match=r"src_vocab \(7\) must equal tgt_vocab \(9\)"):
        as_shape(TransformerConfig(7, 9, share_embeddings=False))


def test_rule_of_thumb_gives_the_document_s_terms_and_both_of_its_sums():
    counts = [term.count for term in rough_terms()]
    millions = [round(count / 1e6, 1) for count in counts[:3]] + [round(counts[3] / 1e6, 2)]
    assert millions == [38.4, 28.3, 56.6, 0.02]
    assert round(sum(millions), 1) == 123.3  # the sum of rounded terms
    assert round(sum(counts) / 1e6, 1) == 123.4 and sum(counts) == 123_353_088  # the rounded sum


def test_what_the_rule_of_thumb_leaves_out_is_the_difference_to_gpt2():
    exact = parameter_count(GPTConfig.preset("gpt2"))
    rough = sum(term.count for term in rough_terms())
    d, N = 768, 12
    missing = {
        "257 more tokens": 257 * d,
        "positions": 1024 * d,
        "attention biases": N * 4 * d,
        "feed-forward biases": N * 5 * d,
        "norm biases": N * 2 * d,
        "last norm": 2 * d,
    }
    assert exact - rough == sum(missing.values())


def test_heads_change_no_count():
    assert rough_terms(num_heads=1) == rough_terms(num_heads=12)
    one, many = (GPTConfig(11, 7, 24, 2, heads) for heads in (1, 8))
    assert parameter_count(one) == parameter_count(many)


@pytest.mark.parametrize("make", [rough_terms, TransformerConfig])
def test_impossible_shapes_raise_as_the_model_would(make):
    with pytest.raises(ValueError, match=r"num_heads \(5\) must divide d_model \(768\)"):
        make(d_model=768, num_heads=5)
    with pytest.raises(ValueError, match=r"num_layers \(0\) must be at least 1"):
        make(num_layers=0)
    with pytest.raises(ValueError, match=r"src_vocab \(7\) must equal tgt_vocab \(9\)"):
        TransformerConfig(7, 9)
    with pytest.raises(ValueError, match=r"name \('gpt9'\) must be one of transformer-base"):
        preset("gpt9")
    with pytest.raises(
        TypeError, match="config must be a GPTConfig, a TransformerConfig or a ModelShape, got dict"
    ):
        parameter_terms({})


def test_operations_equal_what_torch_counts():
    config = GPTConfig(vocab_size=37, max_len=16, d_model=24, num_layers=3, num_heads=2, d_ff=40)
    model, T = GPT(config), 13
    counter = FlopCounterMode(display=False)
    with counter:  # gradients on: the explicit attention, whose products the counter sees
        model(torch.zeros(2, T, dtype=torch.long))
    assert counter.get_total_flops() == 2 * T * sum(flops_per_token(config, context=T).values())


def test_rule_of_six_operations_a_parameter():
    config = GPTConfig.preset("gpt2")
    forward = sum(flops_per_token(config, context=1).values())
    weights = parameter_count(config) - config.max_len * config.d_model
    assert forward / (2 * weights) == pytest.approx(1.0, abs=0.01)


def test_memory_of_training_and_of_the_cache():
    assert sum(memory_bytes(10).values()) == 160
    assert memory_bytes(10, bytes_per_number=2) == {"weights": 20, "gradients": 20, "Adam": 80}
    config = GPTConfig.preset("gpt2")
    assert cache_bytes(config, tokens=1024, bytes_per_number=4) == 2 * 12 * 768 * 1024 * 4
    grouped = ModelShape(num_heads=12, num_kv_heads=3)
    assert 4 * cache_bytes(grouped, tokens=1024, bytes_per_number=4) == cache_bytes(config, 1024, 1, 4)
    assert cache_bytes(preset("bert-base"), 512) == 0  # an encoder writes nothing
    base = preset("transformer-base")
    assert cache_bytes(base, 10, source_tokens=7) == 2 * 6 * 512 * (10 + 7) * 2
    for call in (
        lambda: memory_bytes(0),
        lambda: cache_bytes(config, -1),
        lambda: flops_per_token(config, 0),
    ):
        with pytest.raises(ValueError, match=r"must be at least"):
            call()


def test_table_lists_every_term_and_its_total_is_the_model_s():
    table = format_table(preset("gpt2"))
    assert table.splitlines()[-1].split() == ["total", "124,439,808", "100.0%"]
    for term in parameter_terms(preset("gpt2")):
        assert term.name in table and term.formula in table and f"{term.count:,}" in table
