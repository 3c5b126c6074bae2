"""What the benchmarks of the Transformer compare: models of one size, and how they take turns.

Marian is the translation model of Hugging Face's transformers. It and `torch.nn.Transformer` are called here
as this package's model is: (src, tgt, src_mask) to logits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import transformers
from torch import Tensor, nn

from annotated_transformer import Transformer, causal_mask, make_model, sinusoidal_encoding
from annotated_transformer.data.results import describe_machine
from annotated_transformer.embeddings import Embeddings
from annotated_transformer.recipes import G2PRecipe, g2p_model
from annotated_transformer.transformer import Generator

D_MODEL, HEADS, LAYERS, D_FF, VOCAB, DROPOUT = 256, 4, 3, 1024, 64, 0.1
PAD, BEGIN, END = 0, 1, 2
BATCH, LENGTH = 128, 16


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` with what it lacks: embeddings, positions, a generator."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, D_MODEL)
        self.target_embedding = nn.Embedding(VOCAB, D_MODEL)
        self.register_buffer("positions", sinusoidal_encoding(64, D_MODEL))
        self.dropout = nn.Dropout(DROPOUT)
        self.core = nn.Transformer(D_MODEL, HEADS, LAYERS, LAYERS, D_FF, DROPOUT, batch_first=True)
        self.generator = nn.Linear(D_MODEL, VOCAB)

    def embed(self, ids: Tensor, table: nn.Embedding) -> Tensor:
        return self.dropout(table(ids) * math.sqrt(D_MODEL) + self.positions[: ids.size(1)])

    def encode(self, src: Tensor, hidden: Tensor | None) -> Tensor:
        return self.core.encoder(self.embed(src, self.embedding), src_key_padding_mask=hidden)

    def decode(self, tgt: Tensor, memory: Tensor, hidden: Tensor | None) -> Tensor:
        future = ~causal_mask(tgt.size(1))[0, 0]  # torch's masks mark what is hidden
        x = self.embed(tgt, self.target_embedding)
        x = self.core.decoder(x, memory, tgt_mask=future, tgt_is_causal=True, memory_key_padding_mask=hidden)
        return self.generator(x)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None) -> Tensor:
        hidden = None if src_mask is None else ~src_mask[:, 0, 0]
        return self.decode(tgt, self.encode(src, hidden), hidden)

    @torch.no_grad()
    def greedy(self, src: Tensor, steps: int) -> Tensor:
        """Decode without a cache: each step computes all positions again."""
        memory = self.encode(src, None)
        ids = torch.full((len(src), 1), BEGIN)
        for _ in range(steps):
            newest = self.decode(ids, memory, None)[:, -1].argmax(dim=-1)
            ids = torch.cat([ids, newest[:, None]], dim=1)
        return ids


class Marian(nn.Module):
    """Hugging Face's Marian, called as ours; attention "sdpa" is torch's fused one, "eager" the explicit."""

    def __init__(self, attention: str = "sdpa"):
        super().__init__()
        config = transformers.MarianConfig(
            vocab_size=VOCAB, d_model=D_MODEL, max_position_embeddings=64, dropout=DROPOUT,
            encoder_layers=LAYERS, encoder_attention_heads=HEADS, encoder_ffn_dim=D_FF,
            decoder_layers=LAYERS, decoder_attention_heads=HEADS, decoder_ffn_dim=D_FF,
            activation_function="relu", scale_embedding=True,
            pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=BEGIN, forced_eos_token_id=None,
            attn_implementation=attention,
        )  # fmt: skip
        self.core = transformers.MarianMTModel(config)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None) -> Tensor:
        seen = None if src_mask is None else src_mask[:, 0, 0].long()
        return self.core(input_ids=src, attention_mask=seen, decoder_input_ids=tgt, use_cache=False).logits

    def generate(self, src: Tensor, steps: int, beams: int) -> Tensor:
        seen = torch.ones_like(src)  # what a tokenizer would hand over
        return self.core.generate(
            input_ids=src, attention_mask=seen, max_new_tokens=steps, num_beams=beams, do_sample=False
        )


def our_model() -> Transformer:
    """Make the model of the same size with this package's plain factory."""
    return make_model(VOCAB, VOCAB, LAYERS, D_MODEL, D_FF, HEADS, DROPOUT, max_len=64)


def our_recipe() -> Transformer:
    """Make the project's default recipe, with vocabularies and dropout of the same size."""
    model = g2p_model(G2PRecipe(dropout=DROPOUT))
    model.src_embed.tokens, model.tgt_embed.tokens = (
        Embeddings(VOCAB, D_MODEL, PAD),
        Embeddings(VOCAB, D_MODEL, PAD),
    )
    model.generator = Generator(D_MODEL, VOCAB)
    return model


def least_seconds(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Run all in turn, `repeats` times, and return the least time of each: neighbours only ever add to it."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()  # the first call allocates
    for _ in range(repeats):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - begin)
    return {name: min(measured) for name, measured in times.items()}


def print_machine() -> None:
    """Print what the numbers depend on."""
    print(", ".join(f"{name} {value}" for name, value in describe_machine().items()), end=", ")
    print(f"transformers {transformers.__version__}, matmul {torch.get_float32_matmul_precision()}")


def print_goals(rows: list[dict]) -> None:
    """Print the ratios that were reached beside those asked for."""
    names = [f"{row['shape']:18}{row['goal']}" if "shape" in row else row["goal"] for row in rows]
    width = max(map(len, names)) + 2
    print(f"\n{'ratio':{width}}{'least':>7}{'median':>8}{'must':>6}{'aim':>6}")
    for name, row in zip(names, rows, strict=True):
        asked = "".join(f"{row[which] or '':>6}" for which in ("must", "aim"))
        print(f"{name:{width}}{row['ratio']:7.2f}{row['median']:8.2f}{asked}")
