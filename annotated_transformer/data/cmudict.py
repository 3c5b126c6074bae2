"""The CMU pronouncing dictionary: words, their pronunciations, a frozen split and two vocabularies."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from . import carriers

Entries = dict[str, list[tuple[str, ...]]]

LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
VOWELS = tuple("AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split())
CONSONANTS = tuple("B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH".split())
STRESSES = ("0", "1", "2")

TEST_WORDS = 12_000
DEV_WORDS = 2_000


def parse_cmudict(text: str) -> Entries:
    """Headword → its pronunciations in the order of the file.

    A line is ``word PH ON EMES # comment``; further pronunciations of a word follow as ``word(2)``,
    ``word(3)``.

    Raises:
        ValueError: when a line has no pronunciation.
    """
    entries: Entries = {}
    for number, line in enumerate(text.splitlines(), start=1):
        word, *phonemes = line.split("#")[0].split() or [""]
        if not word:
            continue
        if not phonemes:
            raise ValueError(f"line {number} ({line}) must hold a word and its phonemes")
        entries.setdefault(re.sub(r"\(\d+\)$", "", word), []).append(tuple(phonemes))
    return entries


def load_cmudict() -> Entries:
    """The dictionary's 117,493 words that are spelled with the letters a to z alone.

    Words with apostrophes, digits, dots or hyphens are left out.

    Raises:
        CarrierError: when the dictionary is not cached and cannot be fetched.
    """
    text = carriers.read_member(carriers.CMUDICT, "cmudict/data/cmudict.dict").decode("utf-8")
    return {word: variants for word, variants in parse_cmudict(text).items() if re.fullmatch("[a-z]+", word)}


class Split(NamedTuple):
    """Three dictionaries without a common headword."""

    train: Entries
    dev: Entries
    test: Entries


def split_by_headword(
    entries: Mapping[str, list[tuple[str, ...]]], test: int = TEST_WORDS, dev: int = DEV_WORDS
) -> Split:
    """Split so that all variants of a word stay together, the same way on every machine and Python version.

    The headwords are ordered by the SHA-256 of their UTF-8 bytes. The first ``test`` of them are the test
    words, the next ``dev`` the development words, the rest is for training.

    Raises:
        ValueError: when no headword would be left for training, or a size is negative.
    """
    if test < 0 or dev < 0:
        raise ValueError(f"test ({test}) and dev ({dev}) must be 0 or more")
    if len(entries) <= test + dev:
        raise ValueError(f"entries ({len(entries)} headwords) must hold more than test + dev ({test + dev})")
    order = sorted(entries, key=lambda word: hashlib.sha256(word.encode("utf-8")).digest())
    parts = (order[test + dev :], order[test : test + dev], order[:test])
    return Split(*({word: list(entries[word]) for word in sorted(part)} for part in parts))


def strip_stress(phonemes: Iterable[str]) -> tuple[str, ...]:
    """The phonemes without the stress digit of their vowels: ("HH", "AH0") → ("HH", "AH")."""
    return tuple(phoneme.rstrip("012") for phoneme in phonemes)


class Vocabulary:
    """Symbols and their ids: 0 padding, 1 beginning, 2 end, then the symbols in the order given.

    Args:
        symbols: distinct strings.

    Raises:
        ValueError: when there is no symbol or one occurs twice.
    """

    pad_id = 0
    bos_id = 1
    eos_id = 2

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols = tuple(symbols)
        if not self.symbols:
            raise ValueError("symbols () must hold at least one symbol")
        self._ids = {symbol: number for number, symbol in enumerate(self.symbols, start=3)}
        if len(self._ids) != len(self.symbols):
            repeated = sorted({symbol for symbol in self.symbols if self.symbols.count(symbol) > 1})
            raise ValueError(f"symbols ({', '.join(map(repr, repeated))}) must each be given once")

    def __len__(self) -> int:
        return 3 + len(self.symbols)

    def encode(self, symbols: Iterable[str]) -> list[int]:
        """Ids of a word's letters or of a sequence of phonemes, without beginning and end.

        Raises:
            ValueError: when a symbol is not in the vocabulary; the message names each such symbol.
        """
        symbols = tuple(symbols)
        unknown = [symbol for symbol in dict.fromkeys(symbols) if symbol not in self._ids]
        if unknown:
            named = ", ".join(map(repr, unknown))
            raise ValueError(f"symbols ({named}) must be in the vocabulary: {' '.join(self.symbols)}")
        return [self._ids[symbol] for symbol in symbols]

    def decode(self, ids: Iterable[int]) -> tuple[str, ...]:
        """Symbols up to the first end; padding and beginning are left out.

        Raises:
            ValueError: when an id is outside the vocabulary.
        """
        symbols = []
        for number in map(int, ids):
            if not 0 <= number < len(self):
                raise ValueError(f"ids ({number}) must be from 0 to {len(self) - 1}")
            if number == self.eos_id:
                break
            if number > self.eos_id:
                symbols.append(self.symbols[number - 3])
        return tuple(symbols)


def letters() -> Vocabulary:
    """The 26 letters, 29 ids in all."""
    return Vocabulary(LETTERS)


def phonemes(stress: bool = True) -> Vocabulary:
    """The dictionary's phonemes: 24 consonants and 15 vowels, each vowel three times where stress is written.

    The order is fixed here and does not depend on the data: 72 ids with stress, 42 without.
    """
    vowels = [vowel + digit for vowel in VOWELS for digit in STRESSES] if stress else list(VOWELS)
    return Vocabulary((*CONSONANTS, *vowels))


_IPA = dict(
    pair.split("=")
    for pair in (
        "AA=ɑ AE=æ AH=ʌ AH0=ə AO=ɔ AW=aʊ AY=aɪ EH=ɛ ER=ɝ ER0=ɚ EY=eɪ IH=ɪ IY=i OW=oʊ OY=ɔɪ UH=ʊ UW=u "
        "B=b CH=tʃ D=d DH=ð F=f G=ɡ HH=h JH=dʒ K=k L=l M=m N=n NG=ŋ P=p R=ɹ S=s SH=ʃ T=t TH=θ V=v W=w Y=j "
        "Z=z ZH=ʒ"
    ).split()
)
_STRESS_MARKS = {"1": "ˈ", "2": "ˌ"}
# Consonant groups that may begin an English syllable; a single consonant may, but for NG.
_ONSETS = {
    tuple(group.split("-"))
    for group in (
        "P-L P-R P-Y B-L B-R B-Y T-R T-W D-R D-W K-L K-R K-W K-Y G-L G-R G-W F-L F-R F-Y V-Y TH-R TH-W SH-R "
        "HH-Y M-Y S-P S-T S-K S-M S-N S-L S-W S-F S-P-L S-P-R S-T-R S-K-R S-K-W"
    ).split()
}


def ipa(phonemes: Sequence[str]) -> str:
    """ARPAbet → International Phonetic Alphabet, with stress marks before the syllable that carries them.

    A syllable takes as many of the consonants before its vowel as can begin an English word. A word of one
    syllable gets no mark. Without stress digits AH is written ʌ, as the digit is what tells it from ə.

    Raises:
        ValueError: when a phoneme is unknown.
    """
    unknown = [phoneme for phoneme in phonemes if phoneme.rstrip("012") not in _IPA]
    if unknown:
        named = ", ".join(map(repr, unknown))
        raise ValueError(f"phonemes ({named}) must be ARPAbet symbols of the dictionary")
    written = [_IPA.get(phoneme, _IPA[phoneme.rstrip("012")]) for phoneme in phonemes]
    nuclei = [position for position, phoneme in enumerate(phonemes) if phoneme.rstrip("012") in VOWELS]
    if len(nuclei) > 1:
        for previous, nucleus in zip([-1, *nuclei[:-1]], nuclei, strict=True):
            mark = _STRESS_MARKS.get(phonemes[nucleus][-1])
            if mark:
                start = _onset(phonemes, previous, nucleus)
                written[start] = mark + written[start]
    return "".join(written)


def _onset(phonemes: Sequence[str], previous: int, nucleus: int) -> int:
    """Where the syllable of the vowel at ``nucleus`` begins; ``previous`` is the vowel before it or -1."""
    if previous < 0:
        return 0
    for start in range(previous + 1, nucleus):
        group = tuple(phonemes[start:nucleus])
        if group in _ONSETS or (len(group) == 1 and group != ("NG",)):
            return start
    return nucleus


PREFIXES = tuple("anti counter dis inter mis non out over pre re semi sub super un under".split())
SUFFIXES = tuple(
    (
        "s es ies d ed ied r er ier rs ers iers st est iest ing ings or ors y ly ily ness iness nesses "
        "inesses less lessly lessness ful fully fulness able ably ability ment ments ingly edly ish ist "
        "ists ism en ens ened ening"
    ).split()
)


def bases(word: str) -> set[str]:
    """The word and what is left of it without one affix, or one prefix and one suffix, of the lists above.

    A base has at least three letters and a vowel. Where the suffix begins with a vowel its spelling rules are
    undone: a doubled consonant (stopped → stop), a dropped e (hoping → hope), and y written i (tries,
    happiness → try, happy).
    """
    stems = {word} | {word[len(prefix) :] for prefix in PREFIXES if word.startswith(prefix)}
    found = set(stems)
    for stem in stems:
        for suffix in SUFFIXES:
            if stem.endswith(suffix):
                found |= _restored(stem[: -len(suffix)], suffix)
    return {base for base in found if base == word or (len(base) >= 3 and re.search("[aeiouy]", base))}


def _restored(stem: str, suffix: str) -> set[str]:
    """Spellings that ``stem`` may have had before ``suffix`` was added."""
    if suffix[0] == "i" and suffix not in ("ing", "ings", "ingly", "ish", "ist", "ists", "ism"):
        return {stem + "y"}
    restored = {stem}
    if suffix[0] in "aeioy" and stem:
        restored.add(stem + "e")
        if len(stem) > 2 and stem[-1] == stem[-2] and stem[-1] not in "aeiou":
            restored.add(stem[:-1])
    return restored


def affix_kin(word: str, training_words: Iterable[str]) -> bool:
    """Whether a training word has a base in common with ``word``, in the sense of `bases`.

    "painters" has kin where "repainted" is among the training words: both have the base "paint". The rule
    looks at spelling only, so it also finds false kin ("corner" and "corn"); what it calls free of kin is so
    all the more.
    """
    own = bases(word)
    return any(own & bases(other) for other in training_words)


def words_without_kin(words: Iterable[str], training_words: Iterable[str]) -> list[str]:
    """Those of ``words`` for which `affix_kin` is false, in their order; the training words are read once."""
    known = set().union(*map(bases, training_words))
    return [word for word in words if not known & bases(word)]
