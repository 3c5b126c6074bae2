"""The whole model: every block, the shape at every arrow, and what other assemblies change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import torch
from torch import Tensor, nn

from ..parameter_count import CHOICES, as_shape, build, preset
from ..transformer import Transformer
from .base import Interactive, table, texts

ASSEMBLIES = {
    "paper": "transformer-base",
    "gpt": "gpt2",
    "bert": "bert-base",
    "t5": "t5-small",
    "llama": "llama-7b",
}
SIZES = {"batch": 32, "source": 10, "target": 20}

LABELS = {
    "title": "The architecture, block by block",
    "caption": "Numbers at the arrows are shapes: sequences, positions, width. Choose a block with a click "
    "or with Enter, or follow one token with the buttons.",
    "view": "stack",
    "encoder": "encoder",
    "decoder": "decoder",
    "encoder-decoder": "complete",
    "assembly": "parts of",
    "paper": "the paper",
    "gpt": "GPT-2",
    "bert": "BERT base",
    "t5": "T5 small",
    "llama": "LLaMA 7B",
    "batch": "sequences B",
    "source": "source S",
    "target": "target T",
    "d_model": "d_model",
    "num_heads": "heads",
    "num_layers": "layers N",
    "d_ff": "d_ff",
    "vocab_size": "vocabulary",
    "order": "order",
    "pre": "pre-norm",
    "post": "post-norm",
    "norm": "norm",
    "layer": "LayerNorm",
    "rms": "RMSNorm",
    "places": "positions",
    "learned": "learned",
    "sinusoidal": "sinusoidal",
    "rotary": "rotary",
    "relative": "relative",
    "gate": "feed-forward",
    "plain": "plain",
    "gated": "gated",
    "kind": "keys and values",
    "each": "for each head",
    "grouped": "for four heads",
    "single": "for all heads",
    "bias": "biases",
    "share_embeddings": "one matrix for embeddings and output",
    "cross": "the decoder reads a memory",
    "back": "previous block",
    "on": "next block",
    "times": "× {layers}",
    "memory": "memory",
    "picture": "{view}, from bottom to top: {blocks}.",
    "block": "{name}, gives {shape}",
    "name_ids": "ids",
    "name_tokens": "embedding",
    "name_places": "positions",
    "name_segments": "segments",
    "name_first_norm": "first norm",
    "name_self": "self-attention",
    "name_causal": "causal attention",
    "name_across": "cross-attention",
    "name_ff": "feed-forward",
    "name_norm": "norm",
    "name_last_norm": "last norm",
    "name_pooler": "pooler",
    "name_linear": "linear",
    "name_softmax": "softmax",
    "tell_ids": "The token is one whole number below {V}.",
    "tell_tokens": "The number picks one row of a table: the token is now {d} numbers.",
    "tell_places_learned": "A learned vector of the token's position is added.",
    "tell_places_sinusoidal": "A vector of sines and cosines of the token's position is added.",
    "tell_places_rotary": "Nothing is added here; inside each attention, queries and keys are turned by "
    "their position.",
    "tell_places_relative": "Nothing is added here; inside self-attention, each distance adds a number to "
    "the score.",
    "tell_segments": "A vector is added that says which of the two texts the token is in.",
    "tell_first_norm": "The sum is normalised before the first layer.",
    "tell_self": "The token asks all {S} positions of its own sequence with {H} queries of width {k} and "
    "adds what it finds to its vector.",
    "tell_causal": "The token asks itself and earlier positions, of {T} at most, with {H} queries of width "
    "{k}; what comes later is hidden.",
    "tell_across": "The token asks the {S} positions of the encoder's memory with {H} queries of width {k}.",
    "tell_ff": "The token alone is widened to {f} numbers, bent, and narrowed to {d} again.",
    "tell_norm_pre": "A copy of the vector is normalised for the next step; the residual path stays as it "
    "is.",
    "tell_norm_post": "What came in and what was found are summed, and the sum is normalised.",
    "tell_last_norm": "After the last layer the vector is normalised once.",
    "tell_pooler": "The first token's vector goes through one more matrix and stands for the whole text.",
    "tell_linear": "The vector is compared with {V} rows: one score for each token of the vocabulary.",
    "tell_softmax": "The scores become probabilities of the next token, which sum to one.",
    "none": "none",
    "tied": "a matrix that is counted already",
    "count": "{one}",
    "counts": "{one} a layer, {all} in {layers} layers",
    "formula": "formula",
    "parameters": "parameters",
    "chapter": "Open the chapter: {name}",
    "shape": "shape",
    "part": "part",
    "total": "total",
    "small": "{name} ({value}) must be a whole number of at least 1",
    "divide": "num_heads ({value}) must divide d_model ({whole})",
    "status": "Block {step} of {steps}, {name}: gives {shape}. The model has {total} parameters.",
    "same": "Block {step} of {steps}, {name}: gives {shape}. The model has {total} parameters, those of "
    "{model}.",
    "reset": "reset",
}


def parts(model: Transformer, batch: int, source: int, target: int) -> list[tuple[str, tuple[int, ...], int]]:
    """Run a Transformer once; return each part's name, the shape that it gives, and its parameters.

    The parts are those that the figure draws: of each stack the first layer. A parameter counts where it is
    first met. On the meta device this costs neither memory nor time.
    """
    seen, found = set(), []

    def own(module: nn.Module) -> int:
        new = {id(p): p.numel() for p in module.parameters() if id(p) not in seen}
        seen.update(new)
        return sum(new.values())

    def note(name: str, count: int):
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            found.append((name, tuple(output.shape), count))

        return hook

    kinds = ("tokens", "positions", "self_attention", "cross_attention", "feed_forward", "norm", "generator")
    hooks = []
    for name, module in model.named_modules():
        inside = name.split(".")
        later = "layers" in inside and "layers.0." not in name
        if inside[-1] in kinds and not later and not isinstance(module, nn.Identity):
            hooks.append(module.register_forward_hook(note(name, own(module))))
    device = next(model.parameters()).device
    ids = [torch.zeros(batch, length, dtype=torch.long, device=device) for length in (source, target)]
    with torch.no_grad():
        model(*ids)
    for hook in hooks:
        hook.remove()
    return found


def architecture(labels: Mapping[str, str] | None = None) -> Interactive:
    """Draw encoder, decoder or both, with shapes, parameters, one token's way, and the parts of other models.

    Args:
        labels: texts that replace those of `LABELS`.
    """
    words = texts(LABELS, labels)
    rows = parts(build(preset(ASSEMBLIES["paper"])), **SIZES)
    fallback = table(
        [[f"({', '.join(map(str, shape))})", f"{count:,}"] for _, shape, count in rows],
        [name for name, _, _ in rows],
        [words["shape"], words["parameters"]],
        words["part"],
    )
    data = {
        "shapes": {name: asdict(as_shape(preset(model))) for name, model in ASSEMBLIES.items()},
        "names": list(ASSEMBLIES),
        "sizes": SIZES,
        "positions": CHOICES["positions"],
    }
    return Interactive("architecture", data, words, fallback)
