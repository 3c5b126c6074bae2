"""From text to ids and back: characters, and byte-level byte-pair encoding. Chapter: `tokenization`."""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .runtime import check_size

BYTES = 256  # every text is a sequence of these in UTF-8


class CharTokenizer:
    """Give each character of a fixed alphabet its own id.

    Args:
        characters: the alphabet; the place of a character is its id.

    Raises:
        TypeError: in `encode`, when the text is not a string; in `decode`, when an id is not an integer.
        ValueError: when the alphabet is empty, repeats a character or has an entry of another length; in
            `encode`, when the text has a character outside it; in `decode`, when an id is.
    """

    def __init__(self, characters: Iterable[str]):
        self.characters = list(characters)
        self._ids = {character: i for i, character in enumerate(self.characters)}
        if not self.characters or len(self._ids) != len(self.characters):
            raise ValueError("characters must be at least one, each once")
        longer = [character for character in self.characters if len(character) != 1]
        if longer:
            raise ValueError(f"characters ({longer[0]!r}) must be one character each")

    @classmethod
    def from_text(cls, text: str) -> CharTokenizer:
        """Take the characters of a text, in the order of their code points."""
        return cls(sorted(set(text)))

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> list[int]:
        """Return one id for each character."""
        _check_text(text)
        unknown = sorted(set(text) - self._ids.keys())
        if unknown:
            named = ", ".join(map(repr, unknown))
            raise ValueError(f"text must have characters of the alphabet only, got {named}")
        return [self._ids[character] for character in text]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids."""
        return "".join(self.characters[i] for i in _checked(ids, len(self)))


def count_pairs(words: Mapping[Sequence[str], int]) -> Counter[tuple[str, str]]:
    """Count how often two symbols stand side by side.

    Args:
        words: each word as its symbols, with the number of times it occurs.

    Reference:
        Sennrich et al. 2016, section 3.2.
    """
    pairs: Counter[tuple[str, str]] = Counter()
    for symbols, count in words.items():
        for pair in zip(symbols, symbols[1:], strict=False):
            pairs[pair] += count
    return pairs


def merge_pair(symbols: Sequence[str], pair: tuple[str, str]) -> tuple[str, ...]:
    """Replace each occurrence of `pair`, from the left, by one symbol."""
    merged: list[str] = []
    for symbol in symbols:
        # a symbol that was itself just merged is longer than the pair's first half, so it cannot match again
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return tuple(merged)


class BPETokenizer:
    """Byte-level byte-pair encoding: any text becomes bytes, frequent neighbours become one token.

    Every string that is valid Unicode comes back unchanged. Special tokens have ids of their own, which no
    text can produce: `encode` reads their names as ordinary characters.

    Args:
        vocabulary: the id of each token, spelled with one printable character for each byte, as GPT-2 does.
        merges: pairs of tokens, in the order in which they are joined.
        special_tokens: names of special tokens. One that the vocabulary holds, though no merge makes it,
            keeps its id; the others get the next free ones.

    Raises:
        TypeError: in `encode`, when the text is not a string; in `decode`, when an id is not an integer.
        ValueError: when special tokens repeat, two tokens share an id, or the vocabulary lacks a byte or a
            token of a merge; in `encode`, when the text is not valid Unicode; in `decode`, when an id is
            unknown.

    Reference:
        Sennrich et al. 2016; Radford et al. 2019, section 2.2.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        special_tokens: Sequence[str] = (),
    ):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        _check_list("special_tokens", special_tokens)
        if len(set(special_tokens)) != len(special_tokens):
            raise ValueError(f"special_tokens ({', '.join(special_tokens)}) must each occur once")
        self.merges = [tuple(pair) for pair in merges]
        ids = dict(vocabulary)
        if len(set(ids.values())) != len(ids):
            raise ValueError("vocabulary must give each token an id of its own, got one id twice")
        parts = {part for left, right in self.merges for part in (left, right, left + right)}
        ordinary = {*pre_tokenizers.ByteLevel.alphabet(), *parts}  # what a text can produce
        missing = sorted(ordinary - ids.keys())
        if missing:
            raise ValueError(f"vocabulary must hold each byte and each token of a merge, not {missing[0]!r}")
        self.special_ids: dict[str, int] = {}
        for name in special_tokens:
            free = max([*ids.values(), *self.special_ids.values()]) + 1
            # a word of the texts may have the same name: then there are two tokens, and text gives the other
            self.special_ids[name] = free if name in ordinary else ids.pop(name, free)
        self._names = {i: name for name, i in self.special_ids.items()}
        self._library = Tokenizer(models.BPE(vocab=ids, merges=self.merges))
        self._library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._library.decoder = decoders.ByteLevel()
        self._size = max([*ids.values(), *self._names]) + 1

    def __len__(self) -> int:
        return self._size

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; never a special one."""
        _check_text(text)
        return self._library.encode(text).ids

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text in GPT-2's spelling, where `Ġ` is a space."""
        return [self._library.id_to_token(i) for i in self.encode(text)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids, special tokens by their name; half a character becomes `\\ufffd`."""
        text, run = [], []
        for i in _checked(ids, self._size):
            if i in self._names:
                text += [self._library.decode(run, skip_special_tokens=False), self._names[i]]
                run = []
            elif self._library.id_to_token(i) is None:
                raise ValueError(f"ids ({i}) must be tokens, got one without a token")
            else:
                run.append(i)
        return "".join([*text, self._library.decode(run, skip_special_tokens=False)])


def train_bpe(texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str] = ()) -> BPETokenizer:
    """Learn merges from texts until there are `vocab_size` tokens, special ones included.

    Args:
        texts: what the merges are learned from; no merge reaches from one text into the next.
        vocab_size: at least the 256 bytes and the special tokens; fewer come out where the texts are short.
        special_tokens: names of special tokens, which get the last ids.

    Raises:
        TypeError: when `texts` is one string, or a text or a name is not a string.
        ValueError: when `vocab_size` is too small, the texts are empty or one is not valid Unicode.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    _check_list("special_tokens", special_tokens)
    check_size("vocab_size", vocab_size, minimum=BYTES + len(special_tokens))
    _check_list("texts", texts)
    texts = list(texts)
    for text in texts:
        _check_text(text)
    if not any(texts):
        raise ValueError("texts must hold at least one character, got none")
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    model = json.loads(learner.to_str())["model"]
    return BPETokenizer(model["vocab"], [tuple(pair) for pair in model["merges"]], special_tokens)


def _check_list(name: str, values: Iterable[str]) -> None:
    if isinstance(values, str):  # a string is a sequence of strings too: of its characters
        raise TypeError(f"{name} ({values[:20]!r}) must be a list of strings, got one string")


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = f"{text[error.start]!r} at place {error.start}"
        raise ValueError(f"text must be valid Unicode, got the lone surrogate {bad}") from None


def _checked(ids: Iterable[int], size: int) -> list[int]:
    checked = []
    for i in ids:
        try:
            checked.append(operator.index(i))  # takes a tensor's integers too, but does not round
        except TypeError:
            raise TypeError(f"ids ({i!r}) must be integers, got {type(i).__name__}") from None
        if not 0 <= checked[-1] < size:
            allowed = f"at least 0 and below the number of tokens ({size})"
            raise ValueError(f"ids ({checked[-1]}) must be {allowed}")
    return checked
