"""The whole encoder-decoder Transformer. Chapter: `transformer`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .attention import causal_mask
from .embeddings import Embeddings, check_ids
from .encoder_decoder import Decoder, Encoder, LayerCache, decoder_layer, encoder_layer
from .positional_encoding import PositionalEncoding
from .runtime import check_size


class InputEmbedding(nn.Module):
    """Turn ids into vectors that carry their position.

    Shape:
        - ids (B, T)
        - output (B, T, d_model)

    Raises:
        TypeError: when ids are not whole numbers.
        ValueError: when an id is outside the vocabulary or the sequence too long.
    """

    def __init__(self, tokens: Embeddings, positions: PositionalEncoding):
        super().__init__()
        self.tokens, self.positions = tokens, positions

    def forward(self, ids: Tensor, offset: int = 0) -> Tensor:
        """Embed `ids`, whose first token stands at position `offset`."""
        return self.positions(self.tokens(ids), offset)


class Generator(nn.Module):
    """Score every token of the vocabulary from a hidden state.

    The scores are logits: their softmax is the distribution of the next token.

    Shape:
        - x (..., d_model)
        - output (..., V)
    """

    def __init__(self, d_model: int, vocab_size: int, bias: bool = True):
        super().__init__()
        check_size("d_model", d_model)
        check_size("vocab_size", vocab_size)
        self.projection = nn.Linear(d_model, vocab_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x)


class Transformer(nn.Module):
    """Read a source sequence, then predict each next token of a target sequence.

    Args:
        src_embed: source ids to vectors.
        tgt_embed: target ids to vectors.
        encoder: called as (x, mask).
        decoder: called as (x, memory, src_mask, tgt_mask).
        generator: hidden states to logits.

    Shape:
        - src (B, S)
        - tgt (B, T)
        - src_mask (B or 1, H or 1, 1, S), boolean, True = may attend; encoder and decoder both use it
        - tgt_mask broadcasts to (B, H, T, T), boolean
        - output (B, T, V)

    Raises:
        TypeError: when ids are not whole numbers or a mask is not boolean.
        ValueError: when ids are not a batch of sequences, an id is outside the vocabulary, a sequence too
            long, the batches differ, or a mask does not fit.

    Reference:
        Vaswani et al. 2017, section 3.
    """

    def __init__(
        self,
        src_embed: InputEmbedding,
        tgt_embed: InputEmbedding,
        encoder: Encoder,
        decoder: Decoder,
        generator: Generator,
    ):
        super().__init__()
        self.src_embed, self.tgt_embed = src_embed, tgt_embed
        self.encoder, self.decoder = encoder, decoder
        self.generator = generator

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None
    ) -> Tensor:
        """Return the logits of the token after each target position.

        Without masks nothing is padding, and no target position sees a later one. A `tgt_mask` takes the
        place of that rule: `target_mask` makes one that keeps it.
        """
        return self.generator(self.decode(tgt, self.encode(src, src_mask), src_mask, tgt_mask))

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Return the encoder's output, the memory: (B, S) -> (B, S, d_model)."""
        _check_batch(src, self.src_embed, "src")
        return self.encoder(self.src_embed(src), src_mask)

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor | None,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        caches: Sequence[LayerCache] | None = None,
        offset: int = 0,
    ) -> Tensor:
        """Return the decoder's hidden states, before the generator: (B, T) -> (B, T, d_model).

        With caches, `tgt` holds only the newest tokens, of which the first stands at position `offset`.
        """
        if caches is None:
            _check_batch(tgt, self.tgt_embed, "tgt")
            if memory.size(0) != tgt.size(0):
                sizes = f"tgt (batch {tgt.size(0)}) must have the batch size of memory ({memory.size(0)})"
                raise ValueError(sizes)
        T = tgt.size(1)
        if tgt_mask is None and T > 1:
            tgt_mask = causal_mask(T, offset + T, device=tgt.device)
        return self.decoder(self.tgt_embed(tgt, offset), memory, src_mask, tgt_mask, caches)


def make_model(
    src_vocab: int,
    tgt_vocab: int,
    num_layers: int = 6,
    d_model: int = 512,
    d_ff: int = 2048,
    num_heads: int = 8,
    dropout: float = 0.1,
    norm_first: bool = True,
    share_embeddings: bool = False,
    padding_idx: int | None = None,
    max_len: int = 5000,
) -> Transformer:
    """Assemble a Transformer; without further arguments, of the size of the paper's base model.

    Every matrix starts with Xavier's uniform distribution, every bias with zero.

    Args:
        src_vocab: number of source tokens.
        tgt_vocab: number of target tokens.
        num_layers: encoder layers, and as many decoder layers.
        d_model: width of the residual stream.
        d_ff: width inside the feed-forward networks.
        num_heads: heads of each attention; must divide `d_model`.
        dropout: the rate of every dropout in the model.
        norm_first: True for pre-norm, False for the paper's post-norm.
        share_embeddings: one matrix for source, target and output, which then has no bias.
        padding_idx: id whose embedding starts at zero, or None. It stays zero in training, unless the matrix
            is shared with the output, which trains every row; masks hide padding either way.
        max_len: the longest sequence, for source and target alike.

    Raises:
        ValueError: when a size is impossible, or the vocabularies differ although embeddings are shared.

    Reference:
        Vaswani et al. 2017, table 3; Glorot and Bengio 2010; Press and Wolf 2017.
    """
    check_size("src_vocab", src_vocab)
    check_size("tgt_vocab", tgt_vocab)
    check_size("num_layers", num_layers)
    if share_embeddings and src_vocab != tgt_vocab:
        raise ValueError(f"src_vocab ({src_vocab}) must equal tgt_vocab ({tgt_vocab}) to share embeddings")
    shape = (d_model, num_heads, d_ff, dropout, norm_first)
    encoder_layers = [encoder_layer(*shape) for _ in range(num_layers)]
    decoder_layers = [decoder_layer(*shape) for _ in range(num_layers)]
    norms = [nn.LayerNorm(d_model) if norm_first else None for _ in range(2)]
    src_tokens = Embeddings(src_vocab, d_model, padding_idx)
    tgt_tokens = Embeddings(tgt_vocab, d_model, padding_idx)
    model = Transformer(
        InputEmbedding(src_tokens, PositionalEncoding(d_model, dropout, max_len)),
        InputEmbedding(tgt_tokens, PositionalEncoding(d_model, dropout, max_len)),
        Encoder(encoder_layers, norms[0]),
        Decoder(decoder_layers, norms[1]),
        Generator(d_model, tgt_vocab, bias=not share_embeddings),
    )
    if share_embeddings:
        tgt_tokens.table.weight = src_tokens.table.weight
        model.generator.projection.weight = src_tokens.table.weight
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    src_tokens.reset_padding()
    tgt_tokens.reset_padding()
    return model


def _check_batch(ids: Tensor, embedding: InputEmbedding, name: str) -> None:
    check_ids(ids, embedding.tokens.vocab_size, name)
    if ids.dim() != 2:
        raise ValueError(f"{name} (shape {tuple(ids.shape)}) must have two dimensions, (batch, length)")
