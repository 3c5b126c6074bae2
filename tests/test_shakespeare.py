"""The Shakespeare model: recipe, windows, training run, weights, and the text it writes."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import recipes, shakespeare
from annotated_transformer.data.shakespeare import CHARACTERS, TinyShakespeare, load_shakespeare
from annotated_transformer.generation import GPTStep, Int8Linear, TokenLayer, generate
from annotated_transformer.gpt import next_token_loss
from annotated_transformer.recipes import (
    ByteDropout,
    CastingLayerNorm,
    G2PRecipe,
    g2p_model,
    load_g2p,
    read_weights,
    save_weights,
)
from annotated_transformer.shakespeare import (
    ShakespeareRecipe,
    Windows,
    check_prompt,
    evaluate_shakespeare,
    learning_rate,
    load_shakespeare_gpt,
    load_writer,
    shakespeare_model,
    shakespeare_trainer,
    tokenizer,
    train_shakespeare,
    validation_batches,
    validation_loss,
    window_loss,
    write_text,
)
from annotated_transformer.training import cosine, evaluate, load_state

TINY = ShakespeareRecipe(
    d_model=14,
    num_layers=2,
    num_heads=2,
    max_len=11,
    batch=3,
    warmup=2,
    steps=9,
    horizon=13,
    fade=5,
    snapshots=3,
    snapshot_every=2,
)
VERSE = "ROMEO:\nShe speaks.\nO, speak again, bright angel! for thou art\nAs glorious to this night!\n\n"


@pytest.fixture
def small_world(monkeypatch):
    """A few lines instead of nine plays."""
    text = TinyShakespeare(VERSE * 5, VERSE[7:60])
    monkeypatch.setattr(shakespeare, "load_shakespeare", lambda: text)
    return text


@pytest.fixture
def model():
    """An untrained model of the tiny recipe, with logits far enough apart to be told from each other."""
    torch.manual_seed(0)
    model = shakespeare_model(TINY).eval()
    nn.init.normal_(model.tokens.weight, std=0.3)
    return model


# model and windows


def test_the_recipes_model_is_a_gpt_of_3_7_million_parameters():
    model = shakespeare_model()
    assert sum(p.numel() for p in model.parameters()) == 3_702_496
    assert model.generator.projection.weight is model.tokens.weight
    assert model.config.vocab_size == 65
    assert model.config.max_len == 256
    assert {type(part) for part in model.modules() if isinstance(part, nn.LayerNorm)} == {CastingLayerNorm}
    assert {type(part) for part in model.modules() if isinstance(part, nn.Dropout)} == {ByteDropout}
    assert [part.p for part in model.modules() if isinstance(part, nn.Dropout) and part.p] == [0.2] * 13


def test_the_tokenizer_has_the_usual_ids():
    assert len(tokenizer()) == 65
    assert tokenizer().encode("\n !Az") == [0, 1, 2, 13, 64]


@given(st.integers(0, 60), st.integers(1, 7), st.integers(1, 5))
def test_validation_windows_predict_each_character_but_the_first_once(length, block_size, batch):
    data = torch.arange(length)
    batches = validation_batches(data, block_size, batch)
    targets = [target for _, part in batches for target in part.flatten().tolist()]
    assert targets == list(range(1, length))
    for ids, part in batches:
        assert torch.equal(part, ids + 1)
        assert ids.shape[0] <= batch
        assert ids.shape[1] == block_size or (len(ids) == 1 and ids is batches[-1][0])


def test_windows_are_pieces_of_the_text_and_the_same_whenever_they_are_drawn():
    data = torch.arange(101)
    windows = Windows(data, block_size=7, batch=5, count=3, seed=11)
    assert len(windows) == 3
    drawn = [windows[i] for i in (2, 0, 1)]
    for ids, targets in drawn:
        assert ids.shape == targets.shape == (5, 7)
        assert torch.equal(targets, ids + 1)
        assert torch.equal(ids - ids[:, :1], torch.arange(7).expand(5, 7))
    torch.manual_seed(99)
    again = [Windows(data, 7, 5, 3, 11)[i] for i in (2, 0, 1)]
    assert all(torch.equal(torch.stack(a), torch.stack(b)) for a, b in zip(drawn, again, strict=True))
    assert not torch.equal(windows[0][0], windows[1][0])
    assert torch.equal(windows[1][0], Windows(data, 7, 5, 3, 12)[0][0])


def test_a_batch_beyond_the_epoch_is_named():
    with pytest.raises(IndexError, match=r"i \(3\) must be at least 0 and below the number of batches \(3\)"):
        Windows(torch.arange(50), 7, 5, 3, 0)[3]
    assert len(list(Windows(torch.arange(50), 7, 5, 3, 0))) == 3


def test_an_epoch_reads_as_much_as_the_text_holds_and_the_next_one_other_windows():
    trainer = shakespeare_trainer(VERSE * 5, TINY)
    size = math.ceil(len(VERSE * 5) / (3 * 11))
    assert len(trainer.batches(0)) == size
    seeds = {trainer.batches(epoch).seed + i for epoch in range(4) for i in range(size)}
    assert len(seeds) == 4 * size
    other = shakespeare_trainer(VERSE * 5, replace(TINY, seed=1)).batches(0)
    assert other.seed not in seeds


def test_the_rate_is_that_of_a_longer_run_until_it_fades():
    """Nine updates of a cosine over thirteen; in the last five a line from 1 to 0 is multiplied on."""
    rates = [learning_rate(step, TINY) for step in range(10)]
    long = [cosine(step, TINY.peak, 2, 13, TINY.floor) for step in range(10)]
    assert rates[:5] == long[:5]
    assert_close(rates[5:], [rate * share / 5 for rate, share in zip(long[5:], (4, 3, 2, 1, 0), strict=True)])
    assert rates[2] == TINY.peak
    assert learning_rate(2400) == cosine(2400, 1.5e-3, 100, 3600, 1e-5) * (100 / 1100)


def test_the_loss_is_the_sum_of_minus_log_p_of_the_next_characters(model):
    """Worked out from the probabilities, one character after the other."""
    ids = torch.tensor([tokenizer().encode("O, speak")])
    logs = [model(ids[:, : t + 1])[0, -1].softmax(0)[ids[0, t + 1]].log().item() for t in range(7)]
    summed, count = window_loss(model, (ids[:, :-1], ids[:, 1:]))
    assert count == 7
    assert_close(summed.item(), -sum(logs), rtol=1e-5, atol=0)


def test_the_validation_loss_is_that_of_each_window_alone(model):
    text = VERSE[:40]  # 39 targets: three windows of 11 and one of 6
    data = torch.tensor(tokenizer().encode(text))
    sums = [
        F.cross_entropy(model(data[None, i : i + 11][:, : 39 - i])[0], data[i + 1 : i + 12], reduction="sum")
        for i in (0, 11, 22, 33)
    ]
    assert_close(validation_loss(model, text), sum(sums).item() / 39, rtol=1e-5, atol=0)


def test_an_even_guess_costs_the_logarithm_of_the_alphabet():
    model = shakespeare_model(TINY)
    nn.init.zeros_(model.decoder.norm.weight)
    assert_close(validation_loss(model, VERSE), math.log(65), rtol=1e-6, atol=0)


def test_texts_without_anything_to_predict_are_named(model):
    for text in ("", "O"):
        with pytest.raises(ValueError, match="batches must hold at least one token"):
            validation_loss(model, text)
    with pytest.raises(ValueError, match="must have characters of the alphabet only, got '4'"):
        validation_loss(model, "4 witches")


def test_a_text_not_longer_than_the_context_cannot_be_trained_on():
    with pytest.raises(ValueError, match=r"data \(11 tokens\) must be longer than block_size \(11\)"):
        shakespeare_trainer(VERSE[:11], TINY)
    shakespeare_trainer(VERSE[:12], TINY).run(1)
    with pytest.raises(ValueError, match="must have characters of the alphabet only, got '4'"):
        shakespeare_trainer("4" + VERSE, TINY)


def test_the_trainer_learns_a_line_by_heart():
    recipe = replace(TINY, d_model=32, batch=16, dropout=0.0, peak=1e-2, steps=150, horizon=200)
    trainer = shakespeare_trainer(VERSE * 5, recipe, device=torch.device("cpu"))
    trainer.run(150)
    assert trainer.last_loss < 0.5
    text = "".join(write_text("ROMEO:\nShe ", 7, trainer.model, temperature=0.0))
    assert text == "speaks."


# the training run


def test_a_run_writes_state_snapshots_and_averaged_weights(tmp_path, small_world, capsys):
    path = train_shakespeare(tmp_path / "run", TINY, save_every=4, check_every=5)
    assert path == tmp_path / "run" / "shakespeare.safetensors"
    names = {file.name for file in path.parent.iterdir()}
    snapshots = {f"weights-{count:06}.safetensors" for count in (5, 7, 9)}
    assert names == {"shakespeare.safetensors", "state.pt", "state.pt.previous"} | snapshots
    weights, header = read_weights(path)
    assert header == {"format": "pt", "task": "shakespeare"} | {k: str(v) for k, v in asdict(TINY).items()}
    parts = [read_weights(path.parent / name)[0] for name in sorted(snapshots)]
    for name, weight in weights.items():
        assert weight.dtype == torch.bfloat16
        mean = sum(part[name].double() for part in parts) / 3
        assert_close(weight.double(), mean, rtol=2**-7, atol=1e-6)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "step 9/9  loss " in captured.err
    assert re.search(r"^step 5: validation loss \d\.\d{4}$", captured.err, re.MULTILINE)


def test_a_stopped_run_resumes_to_the_same_weights(tmp_path, small_world):
    whole = train_shakespeare(tmp_path / "whole", TINY, save_every=3)
    train_shakespeare(tmp_path / "half", TINY, steps=4, save_every=3)
    resumed = train_shakespeare(tmp_path / "half", TINY, resume=True, save_every=3)
    states = [load_state(path.parent / "state.pt")["model"] for path in (whole, resumed)]
    averages = [read_weights(path)[0] for path in (whole, resumed)]
    for one, other in (states, averages):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("steps", [0, -1, 10])
def test_steps_outside_the_recipe_are_named(tmp_path, small_world, steps):
    with pytest.raises(ValueError, match=rf"steps \({steps}\) must be from 1 to the recipe's 9"):
        train_shakespeare(tmp_path, TINY, steps=steps)
    assert list(tmp_path.iterdir()) == []


def test_a_training_state_is_kept_and_another_recipe_does_not_resume_it(tmp_path, small_world):
    with pytest.raises(FileNotFoundError, match=r"state.pt\) must be a checkpoint, got no such file"):
        train_shakespeare(tmp_path, TINY, resume=True)
    train_shakespeare(tmp_path, TINY, steps=3)
    with pytest.raises(FileExistsError, match="must hold no training state, unless it is to be resumed"):
        train_shakespeare(tmp_path, TINY)
    with pytest.raises(ValueError, match=r"state.pt\) must be a checkpoint of the same model"):
        train_shakespeare(tmp_path, replace(TINY, d_model=16), resume=True)
    with pytest.raises(ValueError, match=r"state.pt\) must be of the same schedule"):
        train_shakespeare(tmp_path, replace(TINY, peak=0.5), resume=True)


# weights


def test_weights_come_back_with_the_tied_matrix_stored_once(tmp_path, model):
    path = tmp_path / "w.safetensors"
    save_weights(model, path, TINY)
    stored, _ = read_weights(path)
    assert "tokens.weight" in stored
    assert "generator.projection.weight" not in stored
    assert sum(w.numel() for w in stored.values()) == sum(p.numel() for p in model.parameters())
    again = load_shakespeare_gpt(path)
    assert not again.training
    assert again.generator.projection.weight is again.tokens.weight
    ids = torch.tensor([tokenizer().encode("O, speak")])
    assert torch.equal(again(ids), model(ids))


def test_bfloat16_halves_the_file_and_loads_as_float32(tmp_path, model):
    save_weights(model, tmp_path / "half", TINY, torch.bfloat16)
    save_weights(model, tmp_path / "whole", TINY)
    halves, wholes = (read_weights(tmp_path / name)[0] for name in ("half", "whole"))
    assert all(w.dtype == torch.bfloat16 for w in halves.values())
    for name, p in load_shakespeare_gpt(tmp_path / "half").named_parameters():
        assert p.dtype == torch.float32
        assert torch.equal(p, wholes[name].bfloat16().float())


def test_broken_and_foreign_weights_are_named(tmp_path, model):
    path = tmp_path / "w.safetensors"
    missing = (
        r"w.safetensors\) must be a checkpoint, got no such file. "
        r"`python -m annotated_transformer train shakespeare` writes one to "
        r"runs/shakespeare/shakespeare.safetensors, in about \d+ minutes on one core"
    )
    with pytest.raises(FileNotFoundError, match=missing):
        load_shakespeare_gpt(path)
    save_weights(model, path, TINY)
    with pytest.raises(ValueError, match=r"must be a checkpoint of the task g2p, got shakespeare"):
        load_g2p(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"w.safetensors\) must be a complete safetensors file"):
        load_shakespeare_gpt(path)
    save_weights(g2p_model(G2PRecipe(d_model=12, num_heads=2, d_ff=13)), path, G2PRecipe())
    with pytest.raises(ValueError, match=r"must be a checkpoint of the task shakespeare, got g2p"):
        load_shakespeare_gpt(path)


@pytest.mark.parametrize("change", [{"d_model": 16}, {"num_layers": 3}, {"num_layers": 1}, {"max_len": 9}])
def test_weights_of_another_size_than_their_header_says_are_refused(tmp_path, model, change):
    path = tmp_path / "w.safetensors"
    save_weights(model, path, replace(TINY, **change))
    with pytest.raises(ValueError, match=r"w.safetensors\) must fit its own recipe and vocabulary: "):
        load_shakespeare_gpt(path)


def test_a_header_that_is_no_recipe_is_refused(tmp_path, model):
    from safetensors.torch import save_file

    path = tmp_path / "w.safetensors"
    save_file({"w": torch.zeros(3)}, path, {"task": "shakespeare", "d_model": "wide"})
    with pytest.raises(ValueError, match=r"must fit its own recipe and vocabulary: .*wide"):
        load_shakespeare_gpt(path)


# what all recipes share


def test_a_recipe_comes_back_from_its_header():
    assert ShakespeareRecipe.from_header(TINY.header()) == TINY
    assert ShakespeareRecipe.from_header({"format": "pt"}) == ShakespeareRecipe()
    assert TINY.header()["task"] == "shakespeare"


def test_faster_parts_keep_the_numbers_of_the_parts_they_replace():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7, eps=0.1), nn.Sequential(nn.Dropout(0.3)))
    nn.init.normal_(plain[1].weight)
    x = torch.randn(3, 5)
    before = plain.eval()(x)
    faster = recipes.use_fast_parts(plain)
    assert faster is plain
    assert (type(faster[1]), type(faster[2][0]), faster[2][0].p) == (CastingLayerNorm, ByteDropout, 0.3)
    assert_close(faster.eval()(x), before)


# writing


def test_characters_come_one_by_one_as_they_are_drawn(model, monkeypatch):
    calls = []
    step = GPTStep.__call__
    monkeypatch.setattr(GPTStep, "__call__", lambda self, ids: calls.append(ids.shape[1]) or step(self, ids))
    text = write_text("ROMEO:", 5, model, seed=1)
    assert calls == []
    pieces = []
    for piece in text:
        pieces.append(piece)
        assert len(calls) == len(pieces)
    assert calls == [6, 7, 8, 9, 10]
    assert [len(piece) for piece in pieces] == [1] * 5


def test_a_seed_repeats_the_text_and_none_gives_another(model):
    def text(seed):
        return "".join(write_text("O", 40, model, seed))

    assert text(3) == text(3)
    assert len({text(3), text(4), text(None), text(None)}) == 4


def test_writing_is_generation_and_goes_on_beyond_the_context(model):
    prompt = "O, speak again, bright angel!"  # 29 characters, the context holds 11
    ids = torch.tensor([tokenizer().encode(prompt)])
    options = {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "penalty": 1.2}
    expected = generate(model, ids, 30, generator=torch.Generator().manual_seed(5), **options)
    written = "".join(write_text(prompt, 30, model, 5, **options))
    assert prompt + written == tokenizer().decode(expected[0].tolist())


def test_writing_keeps_the_models_mode_and_leaves_gradients_on(model):
    model.train()
    text = write_text("O", 3, model, seed=0)
    first = next(text)
    assert model.training
    assert torch.is_grad_enabled()
    model.eval()
    assert first + "".join(text) == "".join(write_text("O", 3, model, seed=0))


def test_nothing_is_written_where_nothing_is_asked_for(model):
    assert list(write_text("O", 0, model)) == []


def test_temperature_zero_and_one_candidate_write_the_same(model):
    assert list(write_text("O", 9, model, temperature=0.0)) == list(write_text("O", 9, model, top_k=1))
    everything = list(write_text("O", 9, model, 2, top_k=65))
    assert everything == list(write_text("O", 9, model, 2, top_k=1000))  # more than there are keeps all


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": ""}, r"prompt \(''\) must have at least one character"),
        ({"prompt": "O 4é4"}, r"prompt \('O 4é4'\) must have the 65 characters .* only, got '4', 'é'$"),
        ({"max_new_tokens": -1}, r"max_new_tokens \(-1\) must be at least 0"),
        ({"temperature": -0.1}, r"temperature \(-0.1\) must be 0 or above and finite"),
        ({"temperature": math.nan}, r"temperature \(nan\) must be 0 or above and finite"),
        ({"top_k": 0}, r"top_k \(0\) must be at least 1"),
        ({"top_p": 0.0}, r"top_p \(0.0\) must be above 0 and at most 1"),
        ({"top_p": 1.1}, r"top_p \(1.1\) must be above 0 and at most 1"),
        ({"top_p": math.nan}, r"top_p \(nan\) must be above 0 and at most 1"),
        ({"min_p": -0.1}, r"min_p \(-0.1\) must be from 0 to 1"),
        ({"penalty": 0.0}, r"penalty \(0.0\) must be above 0"),
        ({"seed": -1}, r"seed \(-1\) must be from 0 to 2\*\*32 - 1"),
        ({"seed": 2**32}, r"seed \(4294967296\) must be from 0 to 2\*\*32 - 1"),
    ],
)
def test_bad_arguments_are_named_by_the_call_itself(model, arguments, message):
    for new in (5, 0):
        with pytest.raises(ValueError, match=message):
            write_text(**{"prompt": "O", "max_new_tokens": new, "model": model, **arguments})


def test_a_prompt_of_every_character_is_read():
    assert check_prompt(CHARACTERS) == list(range(65))


# scores


def test_the_table_shows_ours_the_goals_and_nanogpt(small_world, model):
    table, met = evaluate_shakespeare(model)
    loss = validation_loss(model, small_world.validation)
    assert not met
    lines = table.splitlines()
    assert lines[0].startswith("53 characters of the validation text ")
    assert lines[0].split()[6:] == ["ours", "must", "aim", "nanoGPT", "CPU", "nanoGPT", "GPU"]
    names = ["nats per character", "bits per character", "perplexity"]
    assert [line[:40].strip() for line in lines[1:]] == names
    values = [[float(value) for value in line[40:].split()] for line in lines[1:]]
    assert values[0] == [round(loss, 4), 1.52, 1.46, 1.88, 1.4697]
    assert_close(values[1], [value / math.log(2) for value in values[0]], rtol=0, atol=2e-4)
    assert_close(values[2][1:], [math.exp(value) for value in values[0][1:]], rtol=0, atol=1e-4)
    assert_close(math.log(values[2][0]), loss, rtol=0, atol=1e-4)
    assert len(lines[0]) == len(lines[1]) == len(lines[2])


def test_the_must_decides(small_world, model, monkeypatch):
    monkeypatch.setattr(shakespeare, "validation_loss", lambda model, text: 1.52)
    assert evaluate_shakespeare(model)[1]
    monkeypatch.setattr(shakespeare, "validation_loss", lambda model, text: 1.5201)
    assert not evaluate_shakespeare(model)[1]


# what is shipped


@pytest.fixture(scope="module")
def shipped():
    """The shipped model."""
    return load_shakespeare_gpt()


def card():
    """The text of the card beside the shipped weights."""
    return shakespeare.CHECKPOINT.with_suffix(".md").read_text(encoding="utf-8")


def test_the_shipped_checkpoint_is_small(shipped):
    assert shakespeare.CHECKPOINT.stat().st_size <= 12_000_000
    assert sum(p.numel() for p in shipped.parameters()) <= 4_000_000
    assert all(w.dtype == torch.bfloat16 for w in read_weights(shakespeare.CHECKPOINT)[0].values())


def test_the_card_repeats_the_recipe_of_the_shipped_weights():
    assert read_weights(shakespeare.CHECKPOINT)[1] == ShakespeareRecipe().header()
    for name, value in asdict(ShakespeareRecipe()).items():
        assert f"| `{name}` | {value} |" in card()
    assert "python -m annotated_transformer train shakespeare" in card()
    assert not re.search(r"/(home|root|tmp|work|opt)/", card())


def test_the_shipped_model_writes_lines_of_speakers_in_words(shipped):
    """Names in capitals and a colon; most words are those of the sentence that a reader would expect."""
    text = "ROMEO:" + "".join(write_text("ROMEO:", 240, shipped, seed=0, temperature=0.5))
    assert re.search(r"\n\n[A-Z][A-Za-z ]+:\n", text)
    words = re.findall(r"[a-z]+", text.lower())
    known = set("the and to of i my that a not in is me you thou with it for be his your this he".split())
    assert sum(word in known for word in words) >= len(words) / 5


def test_the_writer_is_the_shipped_model_prepared_for_single_tokens(shipped):
    writer = load_writer()
    assert {p.dtype for p in writer.parameters()} == {torch.bfloat16} and not writer.training
    assert all(isinstance(layer, TokenLayer) for layer in writer.decoder.layers)
    assert isinstance(writer.generator.projection, Int8Linear)
    ids = torch.tensor([tokenizer().encode("ROMEO:\nO, she doth teach the torches to burn bright!\n")])
    with torch.no_grad():
        losses = [next_token_loss(model(ids), ids).item() for model in (writer, shipped)]
    assert losses[0] == pytest.approx(losses[1], abs=0.02)
    by_default = "".join(write_text("ROMEO:", 40, seed=1))
    assert by_default == "".join(write_text("ROMEO:", 40, writer, seed=1))


@pytest.mark.network
def test_the_shipped_model_predicts_a_sixteenth_of_the_validation_text(shipped):
    """Every sixteenth window; the bound leaves room for so small a part."""
    data = torch.tensor(tokenizer().encode(load_shakespeare().validation))
    windows = [batch for batch in validation_batches(data, 256, batch=1) if len(batch[0][0]) == 256]
    assert evaluate(shipped, windows[::16], window_loss) <= 1.6


@pytest.mark.network
@pytest.mark.slow
def test_the_shipped_model_meets_the_must_and_scores_what_the_card_says(shipped):
    table, met = evaluate_shakespeare(shipped)
    assert met
    scores = card().split("## Scores")[1]
    title, *rows = table.splitlines()
    assert title in scores
    for row in rows:
        name, ours = row[:40].rstrip(), float(row[40:].split()[0])
        (stated,) = re.findall(rf"^{name} +([\d.]+) ", scores, re.MULTILINE)
        assert_close(float(stated), ours, rtol=5e-4, atol=0)
