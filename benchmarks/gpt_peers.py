"""What the benchmarks of the language model compare: GPTs of one shape from several libraries.

Each is called as this package's `GPT` is: ids (B, T) to logits (B, T, V).
"""

from __future__ import annotations

from importlib.metadata import version

import torch
import transformers
from torch import Tensor, nn
from x_transformers import Decoder, TransformerWrapper

from annotated_transformer.gpt import GPTConfig

LIBRARIES = {
    "transformers": f"transformers {transformers.__version__}",
    "x-transformers": f"x-transformers {version('x-transformers')}",
}


class HuggingFace(nn.Module):
    """GPT-2 of Hugging Face's transformers; attention "sdpa" is torch's fused one, "eager" the explicit."""

    def __init__(self, config: GPTConfig, attention: str = "sdpa"):
        super().__init__()
        self.core = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=config.vocab_size, n_positions=config.max_len, n_embd=config.d_model,
                n_layer=config.num_layers, n_head=config.num_heads, n_inner=config.d_ff,
                resid_pdrop=config.dropout, embd_pdrop=config.dropout, attn_pdrop=config.attention_dropout,
                bos_token_id=0, eos_token_id=None, pad_token_id=0, attn_implementation=attention,
            )
        )  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        return self.core(input_ids=ids, use_cache=False).logits

    def generate(self, ids: Tensor, steps: int, **options) -> Tensor:
        """Continue the prompts greedily, as a tokenizer's output would be continued."""
        seen = torch.ones_like(ids)
        return self.core.generate(
            ids, attention_mask=seen, max_new_tokens=steps, do_sample=False, **options
        )


class XTransformers(nn.Module):
    """The decoder of x-transformers; `fused` takes torch's fused attention."""

    def __init__(self, config: GPTConfig, fused: bool = False):
        super().__init__()
        layers = Decoder(
            dim=config.d_model, depth=config.num_layers, heads=config.num_heads, attn_flash=fused,
            attn_dim_head=config.d_model // config.num_heads, attn_dropout=config.attention_dropout,
            ff_mult=config.d_ff // config.d_model, ff_dropout=config.dropout,
        )  # fmt: skip
        self.core = TransformerWrapper(
            num_tokens=config.vocab_size, max_seq_len=config.max_len, attn_layers=layers,
            emb_dropout=config.dropout, tie_embedding=True,
        )  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        return self.core(ids)
