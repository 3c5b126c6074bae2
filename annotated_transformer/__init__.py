"""Every part of the Transformer, each explained in the chapter of the same name."""

from __future__ import annotations

from .attention import causal_mask, padding_mask, scaled_dot_product_attention, target_mask
from .decoding import greedy_search
from .embeddings import Embeddings
from .encoder_decoder import Decoder, DecoderLayer, Encoder, EncoderLayer
from .feed_forward import PositionwiseFeedForward
from .multi_head_attention import MultiHeadAttention, attention_maps, merge_heads, split_heads
from .positional_encoding import PositionalEncoding, sinusoidal_encoding
from .residual import SublayerConnection
from .runtime import default_device, seed_everything
from .transformer import Generator, Transformer, make_model

__version__ = "0.1.0"

__all__ = [
    "Decoder",
    "DecoderLayer",
    "Embeddings",
    "Encoder",
    "EncoderLayer",
    "Generator",
    "MultiHeadAttention",
    "PositionalEncoding",
    "PositionwiseFeedForward",
    "SublayerConnection",
    "Transformer",
    "attention_maps",
    "causal_mask",
    "default_device",
    "greedy_search",
    "make_model",
    "merge_heads",
    "padding_mask",
    "scaled_dot_product_attention",
    "seed_everything",
    "sinusoidal_encoding",
    "split_heads",
    "target_mask",
]


def __getattr__(name: str):
    """Import `show` and `notebook_errors` on first use: they need IPython, the rest does not."""
    if name in ("show", "notebook_errors"):
        from . import notebook

        return getattr(notebook, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
