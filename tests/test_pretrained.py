"""The peer: against a plain NumPy version, over batches, and its error rates on the frozen test words."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer import pretrained
from annotated_transformer.data import carriers, cmudict
from annotated_transformer.gpt import GPT
from annotated_transformer.metrics import phoneme_error_rate, word_error_rate
from annotated_transformer.pretrained import G2pEn

WIDTH = 5
SHAPES = {
    "enc_emb": (29, WIDTH),
    "dec_emb": (74, WIDTH),
    "fc_w": (74, WIDTH),
    "fc_b": (74,),
    **{f"{side}_w_{part}": (3 * WIDTH, WIDTH) for side in ("enc", "dec") for part in ("ih", "hh")},
    **{f"{side}_b_{part}": (3 * WIDTH,) for side in ("enc", "dec") for part in ("ih", "hh")},
}
# As listed in the package's documentation: alphabetical, stresses 0 to 2, and one UW without stress.
PHONEMES = ["<pad>", "<unk>", "<s>", "</s>", *sorted([*cmudict.phonemes().symbols, "UW"])]


def small_arrays(seed=9):
    generator = np.random.default_rng(seed)
    arrays = {name: generator.normal(size=shape).astype(np.float32) for name, shape in sorted(SHAPES.items())}
    arrays["fc_w"][3] *= 3  # the end comes now and then, with phonemes before it
    return arrays


def small_model():
    return G2pEn.from_arrays({name: torch.from_numpy(array) for name, array in small_arrays().items()})


def numpy_pronounce(arrays, word):
    """One word with plain matrix products, gate by gate."""

    def step(side, x, state):
        inward = arrays[f"{side}_w_ih"] @ x + arrays[f"{side}_b_ih"]
        onward = arrays[f"{side}_w_hh"] @ state + arrays[f"{side}_b_hh"]
        gates = 1 / (1 + np.exp(-inward[: 2 * WIDTH] - onward[: 2 * WIDTH]))
        reset, update = gates[:WIDTH], gates[WIDTH:]
        candidate = np.tanh(inward[2 * WIDTH :] + reset * onward[2 * WIDTH :])
        return (1 - update) * candidate + update * state

    state = np.zeros(WIDTH, dtype=np.float32)
    for number in [*(ord(letter) - ord("a") + 3 for letter in word), 2]:
        state = step("enc", arrays["enc_emb"][number], state)
    found, number = [], 2
    for _ in range(20):
        state = step("dec", arrays["dec_emb"][number], state)
        number = int((arrays["fc_w"] @ state + arrays["fc_b"]).argmax())
        if number == 3:
            break
        found.append(number)
    return tuple(PHONEMES[number] for number in found if number > 3)


WORDS = ["a", "bee", "cat", "zebra", "transformer", "q", "mississippi", "of", "xylophone"]


def test_batched_torch_equals_one_word_at_a_time_in_numpy():
    expected = [numpy_pronounce(small_arrays(), word) for word in WORDS]
    assert small_model().pronounce(WORDS) == expected
    assert len(set(map(len, expected))) > 1, "the words of the batch end at different steps"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=9), max_size=9), st.integers(1, 5))
def test_a_pronunciation_does_not_depend_on_the_batch(words, batch_size):
    model = small_model()
    together = model.pronounce(words, batch_size=batch_size)
    assert together == [model.pronounce([word])[0] for word in words]


def test_decoding_stops_after_the_given_number_of_phonemes():
    lengths = [len(phonemes) for phonemes in small_model().pronounce(WORDS, max_phonemes=2)]
    assert max(lengths) == 2


def test_a_model_that_ends_at_once_says_nothing():
    arrays = small_arrays()
    arrays["fc_b"][3] = 1e6
    model = G2pEn.from_arrays({name: torch.from_numpy(array) for name, array in arrays.items()})
    assert model.pronounce(WORDS) == [()] * len(WORDS)


def test_bad_words_and_sizes_are_named():
    model = small_model()
    with pytest.raises(ValueError, match=r"words \('naïve42'\) must be made of the letters a to z"):
        model.pronounce(["cat", "naïve42"])
    with pytest.raises(ValueError, match=r"words \(''\) must be made of the letters a to z"):
        model.pronounce([""])
    with pytest.raises(TypeError, match=r"words \('cat'\) must be a list of words"):
        model.pronounce("cat")
    with pytest.raises(ValueError, match=r"batch_size \(0\) must be at least 1"):
        model.pronounce(["cat"], batch_size=0)
    with pytest.raises(ValueError, match=r"max_phonemes \(-1\) must be at least 1"):
        model.pronounce(["cat"], max_phonemes=-1)


def test_arrays_that_do_not_fit_are_named():
    arrays = {name: torch.from_numpy(array) for name, array in small_arrays().items()}
    renamed = {"other" if name == "fc_b" else name: array for name, array in arrays.items()}
    with pytest.raises(ValueError, match=r"arrays \(missing or unknown: fc_b, other\) must be exactly dec_b"):
        G2pEn.from_arrays(renamed)
    with pytest.raises(ValueError, match=r"fc_b \(73,\) must have shape \(74,\)"):
        G2pEn.from_arrays(arrays | {"fc_b": torch.zeros(73)})


def test_arrays_come_out_of_the_carrier_unpickled(monkeypatch):
    content = io.BytesIO()
    np.savez(content, **small_arrays())
    monkeypatch.setattr(carriers, "read_member", lambda carrier, member: content.getvalue())
    torch.testing.assert_close(G2pEn.from_carrier().state_dict(), small_model().state_dict())
    pickled = io.BytesIO()
    np.savez(pickled, enc_emb=np.array([print], dtype=object))
    monkeypatch.setattr(carriers, "read_member", lambda carrier, member: pickled.getvalue())
    with pytest.raises(ValueError, match="allow_pickle=False"):
        G2pEn.from_carrier()


@pytest.mark.network
def test_the_published_weights_reach_their_known_error_rates():
    split = cmudict.split_by_headword(cmudict.load_cmudict())
    references = list(split.test.values())
    predictions = G2pEn.from_carrier().pronounce(list(split.test))
    assert word_error_rate(predictions, references) == pytest.approx(0.316, abs=0.002)
    assert phoneme_error_rate(predictions, references) == pytest.approx(0.1005, abs=0.001)
    predictions = [cmudict.strip_stress(phonemes) for phonemes in predictions]
    references = [[cmudict.strip_stress(variant) for variant in variants] for variants in references]
    assert word_error_rate(predictions, references) == pytest.approx(0.2727, abs=0.002)
    assert phoneme_error_rate(predictions, references) == pytest.approx(0.0814, abs=0.001)


def test_an_unknown_gpt2_is_refused_and_a_missing_network_says_what_to_do(monkeypatch, tmp_path):
    import huggingface_hub

    def offline(repository, filename, revision):
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(ValueError, match=r"name \('gpt5'\) must be one of gpt2, gpt2-medium"):
        pretrained.download_gpt2("gpt5")
    with pytest.raises(ConnectionError, match=r"gpt2 could not be fetched .*\n.*--revision 607a30d"):
        GPT.from_pretrained("gpt2")


def test_gpt2_weights_on_disk_are_read_and_loaded(monkeypatch, tmp_path):
    import huggingface_hub
    from safetensors.torch import save_file

    asked = []
    state = {"wte.weight": torch.ones(3, 2), "wpe.weight": torch.zeros(2, 2)}
    save_file(state, tmp_path / "model.safetensors")

    def on_disk(repository, filename, revision):
        asked.append((repository, filename, len(revision)))
        return tmp_path / "model.safetensors"

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", on_disk)
    assert torch.equal(pretrained.download_gpt2("gpt2-xl")["wte.weight"], torch.ones(3, 2))
    assert asked == [("openai-community/gpt2-xl", "model.safetensors", 40)]
    with pytest.raises(ValueError, match=r"missing \['h.0.attn.c_attn.bias'"):
        GPT.from_pretrained("gpt2")
