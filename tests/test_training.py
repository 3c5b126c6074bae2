"""Losses, schedules, batches, the training loop and its checkpoints."""

from __future__ import annotations

import errno
import io
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import training
from annotated_transformer.decoding import greedy_search
from annotated_transformer.training import (
    Progress,
    SequenceLoss,
    Trainer,
    accumulate_gradients,
    autocast_dtype,
    average_weights,
    bucketed_batches,
    copy_batch,
    cosine,
    cross_entropy,
    decay_groups,
    evaluate,
    evaluating,
    linear,
    load_state,
    noam,
    pad,
    previous,
    random_windows,
    save_state,
    smoothed_loss,
    smoothed_targets,
)
from annotated_transformer.transformer import make_model

INF = float("inf")


# losses


def test_cross_entropy_by_hand():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.2, 0.2, 0.6]]))
    total, count = cross_entropy(logits, torch.tensor([1, 2, 0]), pad_id=0)
    assert count == 2
    assert_close(total.item(), math.log(4) + math.log(1.25), rtol=1e-6, atol=0)


def test_smoothed_cross_entropy_by_hand():
    """A share of 0.3 over three tokens leaves 0.8 on the right one and 0.1 on each other."""
    log_probs = torch.log(torch.tensor([[0.5, 0.25, 0.25]]))
    total, _ = cross_entropy(log_probs, torch.tensor([1]), pad_id=0, smoothing=0.3)
    assert_close(total.item(), 0.8 * math.log(4) + 0.1 * math.log(2) + 0.1 * math.log(4), rtol=1e-6, atol=0)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 7), st.sampled_from([0.0, 0.1, 0.4]), st.integers(0, 99))
def test_sum_over_count_is_torchs_mean_wherever_a_token_is_real(rows, length, smoothing, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, length, 11, generator=generator)
    target = torch.randint(11, (rows, length), generator=generator)
    target[0, 0] = 3
    total, count = cross_entropy(logits, target, pad_id=0, smoothing=smoothing)
    want = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, label_smoothing=smoothing)
    assert_close(total / count, want)


def test_bfloat16_logits_are_summed_in_float32():
    total, _ = cross_entropy(torch.zeros(700, 3, dtype=torch.bfloat16), torch.ones(700, dtype=torch.long), 0)
    assert total.dtype == torch.float32
    assert_close(total.item(), 700 * math.log(3), rtol=1e-5, atol=0)


def test_a_batch_of_padding_has_loss_zero_and_finite_gradients():
    logits = torch.randn(2, 3, 5, requires_grad=True)
    total, count = cross_entropy(logits, torch.zeros(2, 3, dtype=torch.long), pad_id=0, smoothing=0.1)
    total.backward()
    assert (total.item(), count) == (0.0, 0)
    assert_close(logits.grad, torch.zeros(2, 3, 5))


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 1.5, float("nan")])
def test_smoothing_outside_its_range_is_named(smoothing):
    logits, target = torch.zeros(1, 5), torch.tensor([1])
    for call in (
        lambda: cross_entropy(logits, target, 0, smoothing),
        lambda: smoothed_targets(target, 5, smoothing, 0),
        lambda: SequenceLoss(0, smoothing),
    ):
        with pytest.raises(ValueError, match=rf"smoothing \({smoothing}\) must be at least 0 and below 1"):
            call()


def test_shapes_of_logits_and_target_are_named_where_they_do_not_fit():
    with pytest.raises(ValueError, match=r"logits \(shape \(2, 3, 5\)\) must have .* of target, \(2, 4\),"):
        cross_entropy(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.long), 0)
    with pytest.raises(ValueError, match=r"log_probs \(shape \(3, 5\)\) must have .* of target, \(2,\),"):
        smoothed_loss(torch.zeros(3, 5), torch.tensor([1, 2]), 0.1, 0)


def test_smoothed_targets_by_hand():
    share = 0.4 / 3
    want = [[0, share, 0.6, share, share], [0, 0.6, share, share, share], [0, 0, 0, 0, 0]]
    assert_close(smoothed_targets(torch.tensor([2, 1, 0]), 5, 0.4, 0), torch.tensor(want))


@given(st.integers(3, 11), st.data())
def test_each_row_of_smoothed_targets_sums_to_one_and_padding_gets_nothing(vocab_size, data):
    pad_id = data.draw(st.integers(0, vocab_size - 1))
    target = torch.tensor(data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=7)))
    rows = smoothed_targets(target, vocab_size, data.draw(st.floats(0, 0.9)), pad_id)
    assert_close(rows.sum(dim=-1), (target != pad_id).float())
    assert (rows[:, pad_id] == 0).all()
    assert (rows >= 0).all()


def test_smoothed_targets_keep_leading_dimensions():
    assert smoothed_targets(torch.ones(2, 3, dtype=torch.long), 5, 0.1, 0).shape == (2, 3, 5)


LOG_PROBS = torch.log(torch.tensor([[0.05, 0.2, 0.6, 0.1, 0.05]] * 3))


@pytest.mark.parametrize("target", [[2, 1, 0], [2, 1]], ids=["with padding", "without padding"])
@pytest.mark.parametrize("padding_score", [math.log(0.05), -INF])
def test_smoothed_loss_by_hand(target, padding_score):
    log_probs = LOG_PROBS[: len(target)].clone()
    log_probs[:, 0] = padding_score
    assert_close(smoothed_loss(log_probs, torch.tensor(target), 0.4, 0).item(), 0.7428314, rtol=0, atol=2e-6)


def test_smoothed_loss_is_torchs_divergence_and_has_finite_gradients_at_minus_infinity():
    target = torch.tensor([2, 1, 4])
    want = F.kl_div(LOG_PROBS, smoothed_targets(target, 5, 0.4, 0), reduction="sum")
    assert_close(smoothed_loss(LOG_PROBS, target, 0.4, 0), want)
    log_probs = LOG_PROBS.clone()
    log_probs[:, 0] = -INF
    log_probs.requires_grad_()
    smoothed_loss(log_probs, target, 0.4, 0).backward()
    assert log_probs.grad.isfinite().all()
    assert (log_probs.grad[:, 0] == 0).all()


def test_smoothed_loss_of_padding_only_and_without_smoothing():
    assert smoothed_loss(LOG_PROBS, torch.zeros(3, dtype=torch.long), 0.4, 0).item() == 0.0
    total, _ = cross_entropy(LOG_PROBS, torch.tensor([2, 1, 3]), 0)
    assert_close(smoothed_loss(LOG_PROBS, torch.tensor([2, 1, 3]), 0.0, 0), total)


def test_smoothed_targets_reject_what_is_outside_the_vocabulary():
    with pytest.raises(ValueError, match=r"target \(7\) must be at least 0 and below"):
        smoothed_targets(torch.tensor([1, 7]), 7, 0.1, 0)
    with pytest.raises(ValueError, match=r"target \(-100\) must be at least 0 and below"):
        smoothed_targets(torch.tensor([1, -100]), 7, 0.1, 0)
    with pytest.raises(ValueError, match=r"pad_id \(7\) must be at least 0 and below"):
        smoothed_targets(torch.tensor([1]), 7, 0.1, 7)
    with pytest.raises(ValueError, match=r"vocab_size \(2\) must be at least 3"):
        smoothed_targets(torch.tensor([1]), 2, 0.1, 0)


def test_sequence_loss_feeds_each_target_token_and_asks_for_the_next():
    seen = {}

    class Spy(nn.Module):
        def forward(self, src, tgt, src_mask):
            seen.update(src=src, tgt=tgt, src_mask=src_mask)
            return torch.zeros(*tgt.shape, 7)

    src, tgt = torch.tensor([[3, 4, 2], [5, 2, 0]]), torch.tensor([[1, 3, 4, 2], [1, 6, 2, 0]])
    total, count = SequenceLoss(pad_id=0)(Spy(), (src, tgt))
    assert seen["tgt"].tolist() == [[1, 3, 4], [1, 6, 2]]
    assert seen["src_mask"].tolist() == [[[[True, True, True]]], [[[True, True, False]]]]
    assert count == 5
    assert_close(total.item(), 5 * math.log(7), rtol=1e-6, atol=0)


# schedules


def test_noam_by_hand():
    rates = {1: 1.746928107e-07, 100: 1.746928107e-05, 4000: 6.987712430e-04, 16000: 3.493856215e-04}
    for step, rate in rates.items():
        assert noam(step, 512, 4000) == pytest.approx(rate, rel=1e-8)
    assert noam(1, 512, 4000, factor=2.0) == pytest.approx(3.493856215e-07, rel=1e-8)


def test_noam_has_its_peak_at_the_end_of_the_warmup_and_a_value_at_step_zero():
    assert max(range(9000), key=lambda step: noam(step, 512, 4000)) == 4000
    assert noam(0, 512, 4000) == noam(1, 512, 4000) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 512, 4000), r"step \(-1\) must be at least 0"),
        ((1, 512, 0), r"warmup \(0\) must be at least 1"),
        ((1, 512, -4000), r"warmup \(-4000\) must be at least 1"),
        ((1, 0, 4000), r"d_model \(0\) must be at least 1"),
    ],
)
def test_noam_names_what_is_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        noam(*arguments)


@pytest.mark.parametrize("schedule", [cosine, linear])
def test_schedules_rise_to_the_peak_and_fall_to_the_floor(schedule):
    rates = [schedule(step, 0.8, warmup=3, total=13, floor=0.2) for step in range(17)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[8] == pytest.approx(0.5)  # half way down
    assert rates[13:] == [pytest.approx(0.2)] * 4
    assert rates[3:14] == sorted(rates[3:14], reverse=True)


@pytest.mark.parametrize("schedule", [cosine, linear])
def test_without_warmup_the_first_update_gets_the_peak(schedule):
    assert schedule(0, 0.8, warmup=0, total=5) == 0.8


def test_cosine_is_torchs_annealing_after_the_warmup():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.7)
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=11, eta_min=0.1)
    for step in range(12):
        rate = optimizer.param_groups[0]["lr"]
        assert cosine(step, 0.7, warmup=0, total=11, floor=0.1) == pytest.approx(rate)
        optimizer.step()
        annealing.step()


@pytest.mark.parametrize("schedule", [cosine, linear])
def test_schedules_name_what_is_out_of_range(schedule):
    with pytest.raises(ValueError, match=r"step \(-1\) must be at least 0"):
        schedule(-1, 1.0, 2, 5)
    with pytest.raises(ValueError, match=r"warmup \(-2\) must be at least 0"):
        schedule(1, 1.0, -2, 5)
    with pytest.raises(ValueError, match=r"total \(5\) must exceed warmup \(5\)"):
        schedule(1, 1.0, 5, 5)


# groups


def tiny_model(**options) -> nn.Module:
    torch.manual_seed(0)
    return make_model(7, 7, num_layers=1, d_model=12, d_ff=23, num_heads=2, **{"dropout": 0.0, **options})


@pytest.mark.parametrize("shared", [False, True])
def test_decay_groups_hold_each_parameter_once(shared):
    model = tiny_model(share_embeddings=shared)
    decayed, others = decay_groups(model, 0.3)
    seen = [*decayed["params"], *others["params"]]
    assert len({id(p) for p in seen}) == len(seen)
    assert {id(p) for p in seen} == {id(p) for p in model.parameters()}
    assert all(p.dim() >= 2 for p in decayed["params"])
    assert all(p.dim() < 2 for p in others["params"])
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    torch.optim.AdamW([decayed, others], lr=1e-3)


def test_decay_groups_leave_out_what_is_frozen_and_name_a_negative_decay():
    model = nn.Linear(3, 5)
    model.bias.requires_grad_(False)
    assert [len(group["params"]) for group in decay_groups(model)] == [1, 0]
    with pytest.raises(ValueError, match=r"weight_decay \(-0.1\) must be 0 or more"):
        decay_groups(model, -0.1)


# batches


def test_pad_by_hand():
    assert pad([[5, 6], [7], []], pad_id=0).tolist() == [[5, 6], [7, 0], [0, 0]]
    with pytest.raises(ValueError, match=r"sequences \(\) must hold at least one sequence"):
        pad([], 0)


lengths_of_items = st.lists(st.tuples(st.integers(1, 19), st.integers(1, 23)), min_size=1, max_size=60)


@given(lengths_of_items, st.integers(23, 90), st.integers(0, 5), st.integers(0, 5))
def test_buckets_hold_each_item_once_within_the_bound(lengths, max_tokens, seed, epoch):
    batches = bucketed_batches(lengths, max_tokens, seed, epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * max(max(lengths[i]) for i in batch) <= max_tokens


def test_buckets_depend_on_seed_and_epoch_alone():
    generator = random.Random(0)
    lengths = [(generator.randint(2, 9), generator.randint(2, 9)) for _ in range(300)]
    first = bucketed_batches(lengths, 60, seed=3, epoch=1)
    random.seed(99)
    random.random()
    assert bucketed_batches(lengths, 60, seed=3, epoch=1) == first
    assert bucketed_batches(lengths, 60, seed=3, epoch=2) != first
    assert bucketed_batches(lengths, 60, seed=4, epoch=1) != first


def test_buckets_hardly_need_padding():
    generator = random.Random(0)
    lengths = [(generator.randint(3, 20),) for _ in range(3000)]
    batches = bucketed_batches(lengths, 400)
    padded = sum(len(batch) * max(lengths[i][0] for i in batch) for batch in batches)
    assert padded < 1.03 * sum(length for (length,) in lengths)


def test_buckets_name_an_empty_corpus_and_an_item_that_fits_nowhere():
    with pytest.raises(ValueError, match=r"lengths \(\) must hold at least one item: the corpus is empty"):
        bucketed_batches([], 100)
    with pytest.raises(ValueError, match=r"max_tokens \(7\) must hold the longest sequence \(11\)"):
        bucketed_batches([(3, 11)], 7)
    with pytest.raises(ValueError, match=r"max_tokens \(0\) must be at least 1"):
        bucketed_batches([(3, 11)], 0)


def test_random_windows_reach_every_start_and_targets_are_one_later():
    x, y = random_windows(torch.arange(10), 4, 500, torch.Generator().manual_seed(0))
    assert x.shape == y.shape == (500, 4)
    assert torch.equal(y, x + 1)
    assert set(x[:, 0].tolist()) == {0, 1, 2, 3, 4, 5}


def test_the_shortest_data_give_the_only_window():
    x, y = random_windows(torch.arange(5), 4, 3)
    assert x.tolist() == [[0, 1, 2, 3]] * 3
    assert y.tolist() == [[1, 2, 3, 4]] * 3


def test_random_windows_name_the_tokens_and_the_block_size():
    with pytest.raises(ValueError, match=r"data \(4 tokens\) must be longer than block_size \(4\)"):
        random_windows(torch.arange(4), 4, 1)
    with pytest.raises(ValueError, match=r"data \(0 tokens\) must be longer than block_size \(4\)"):
        random_windows(torch.arange(0), 4, 1)
    with pytest.raises(ValueError, match=r"block_size \(0\) must be at least 1"):
        random_windows(torch.arange(9), 0, 1)
    with pytest.raises(ValueError, match=r"data must have one dimension \(N,\), got \(3, 3\)"):
        random_windows(torch.arange(9).view(3, 3), 2, 1)


def test_copy_batches_repeat_the_source_behind_a_first_token():
    src, tgt = copy_batch(13, 5, vocab_size=7, generator=torch.Generator().manual_seed(0))
    assert src.shape == (13, 5)
    assert set(src.flatten().tolist()) == {2, 3, 4, 5, 6}
    assert torch.equal(tgt, torch.cat([torch.ones(13, 1, dtype=torch.long), src], dim=1))
    with pytest.raises(ValueError, match=r"vocab_size \(2\) must be at least 3"):
        copy_batch(13, 5, vocab_size=2)


# one update


def test_autocast_is_bfloat16_or_none():
    assert autocast_dtype(torch.device("cpu")) in (torch.bfloat16, None)
    assert autocast_dtype(torch.device("mps")) is None


def test_autocast_is_off_where_the_processor_lacks_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False, raising=False)
    assert autocast_dtype(torch.device("cpu")) is None
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    assert autocast_dtype(torch.device("cpu")) == torch.bfloat16


def bigram_loss(pad_id: int):
    return lambda model, batch: cross_entropy(model(batch[0]), batch[1], pad_id)


def wave(*shape: int) -> torch.Tensor:
    return torch.arange(1, math.prod(shape) + 1, dtype=torch.float64).sin().float().view(shape)


def bigram() -> nn.Module:
    model = nn.Embedding(5, 5)
    model.weight.data.copy_(wave(5, 5))
    return model


X, Y = torch.tensor([[1, 2, 3], [1, 0, 0]]), torch.tensor([[2, 3, 4], [3, -100, -100]])


def test_accumulated_gradients_equal_those_of_the_big_batch():
    whole, parts = bigram(), bigram()
    want = F.cross_entropy(whole(X).flatten(0, 1), Y.flatten(), ignore_index=-100)
    want.backward()
    loss, tokens = accumulate_gradients(parts, [(X[:1], Y[:1]), (X[1:], Y[1:])], bigram_loss(-100))
    assert_close(want.item(), 1.0832276, rtol=0, atol=1e-6)
    assert_close(loss, want.detach())
    assert tokens == 4
    assert_close(parts.weight.grad, whole.weight.grad, rtol=0, atol=1e-7)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5), st.integers(0, 9))
def test_any_way_of_cutting_a_batch_gives_the_same_gradients(cut, seed):
    model, generator = tiny_model(), torch.Generator().manual_seed(seed)
    src, tgt = torch.randint(1, 7, (2, 6, 5), generator=generator)
    tgt[: cut + 1, 3:] = 0
    accumulate_gradients(model, [(src, tgt)], SequenceLoss(0, 0.1))
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    accumulate_gradients(model, [(src[:cut], tgt[:cut]), (src[cut:], tgt[cut:])], SequenceLoss(0, 0.1))
    for p, gradient in zip(model.parameters(), want, strict=True):
        assert_close(p.grad, gradient, rtol=1e-4, atol=1e-6)


def test_without_a_real_token_the_gradients_are_zero():
    model = bigram()
    nothing = torch.full((1, 3), -100)
    loss, tokens = accumulate_gradients(model, [(X[:1], nothing)] * 2, bigram_loss(-100))
    assert (loss.item(), tokens) == (0.0, 0)
    assert_close(model.weight.grad, torch.zeros(5, 5))


def test_evaluating_restores_the_mode_of_each_part_even_after_an_error():
    model = tiny_model(dropout=0.5)
    model.train()
    model.encoder.eval()
    before = [module.training for module in model.modules()]
    with pytest.raises(RuntimeError, match="inside"), evaluating(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        raise RuntimeError("inside")
    assert [module.training for module in model.modules()] == before
    assert torch.is_grad_enabled()


def test_evaluate_is_the_mean_over_all_tokens_without_dropout():
    model = tiny_model(dropout=0.5).train()
    batches = [copy_batch(5, 3, 7), copy_batch(2, 6, 7)]
    loss = SequenceLoss(0)
    first = evaluate(model, batches, loss)
    assert first == evaluate(model, batches, loss)
    with evaluating(model):
        sums, counts = zip(*(loss(model, batch) for batch in batches), strict=True)
    assert first == pytest.approx(sum(sums).item() / (5 * 3 + 2 * 6), rel=1e-6)
    assert sum(counts) == 27
    assert model.training


def test_evaluate_names_that_there_is_nothing_to_score():
    with pytest.raises(ValueError, match="batches must hold at least one token that is not padding"):
        evaluate(tiny_model(), [], SequenceLoss(0))


def test_average_weights_by_hand():
    first = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    second = {"w": torch.tensor([2.0, 6.0]), "n": torch.tensor(5)}
    average = average_weights([first, second])
    assert average["w"].tolist() == [1.5, 4.0]
    assert average["n"].item() == 5
    assert first["w"].tolist() == [1.0, 2.0]


def test_average_weights_keep_the_type_and_add_in_float64():
    states = [{"w": torch.tensor([value], dtype=torch.bfloat16)} for value in (256.0, 1.0, 1.0, 1.0)]
    average = average_weights(iter(states))["w"]
    assert average.dtype == torch.bfloat16
    assert average.item() == 65.0  # 64.75 rounded once; adding in bfloat16 would lose the ones: 64.0


def test_average_weights_name_what_does_not_fit():
    with pytest.raises(ValueError, match=r"states \(\) must hold at least one state"):
        average_weights([])
    with pytest.raises(ValueError, match=r"states must have the same entries, got b in some only"):
        average_weights([{"a": torch.zeros(1)}, {"a": torch.zeros(1), "b": torch.zeros(1)}])


# the trainer


def copy_trainer(seed: int = 0, dropout: float = 0.1, total: int = 12, **options) -> Trainer:
    torch.manual_seed(seed)
    model = make_model(7, 7, num_layers=1, d_model=12, d_ff=23, num_heads=2, dropout=dropout)

    def batches(epoch: int):
        generator = torch.Generator().manual_seed(epoch)
        return [copy_batch(5, 4, 7, generator=generator) for _ in range(4)]

    return Trainer(model, SequenceLoss(0), batches, lambda step: cosine(step, 1e-2, 2, total), **options)


def same_parameters(one: Trainer, other: Trainer) -> bool:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return all(torch.equal(p, q) for p, q in pairs)


def test_a_single_update_is_adamw_by_hand():
    """The first step of Adam moves each weight by the rate against the sign of its gradient."""
    model = bigram()
    trainer = Trainer(model, bigram_loss(-100), lambda epoch: [(X, Y)], lambda step: 0.25, clip=None)
    for group in trainer.optimizer.param_groups:
        group["weight_decay"] = 0.0
    trainer.run(1)
    moved = wave(5, 5) - model.weight.detach()
    assert_close(moved, 0.25 * model.weight.grad.sign(), rtol=1e-4, atol=1e-4)
    assert (trainer.step, trainer.tokens, trainer.rate) == (1, 4, 0.25)
    assert trainer.last_loss == pytest.approx(1.0832276, abs=1e-6)


def test_clipping_limits_the_mean_gradient_not_the_sum():
    model = bigram()
    trainer = Trainer(model, bigram_loss(-100), lambda epoch: [(X, Y)], lambda step: 0.0, clip=INF)
    trainer.run(1)
    norm = model.weight.grad.norm()
    trainer.clip = 2 * norm.item()  # above the norm of the mean, below that of the sum over four tokens
    trainer.run(1)
    assert_close(model.weight.grad.norm(), norm)
    trainer.clip = 0.5 * norm.item()
    trainer.run(1)
    assert_close(model.weight.grad.norm(), 0.5 * norm, rtol=1e-4, atol=0)


def test_accumulation_in_the_trainer_is_the_big_batch():
    parts, whole = copy_trainer(dropout=0.0, accumulate=2), copy_trainer(dropout=0.0)
    for trainer in (parts, whole):  # Adam makes a whole step of a rounding error
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.0)
    halves = whole.batches

    def joined(epoch):
        a, b, c, d = halves(epoch)
        return [tuple(torch.cat(pair) for pair in zip(*two, strict=True)) for two in ((a, b), (c, d))]

    whole.batches = joined
    parts.run(3)
    whole.run(3)
    assert parts.tokens == whole.tokens
    for p, q in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
        assert_close(p, q, rtol=1e-5, atol=1e-7)


def test_the_trainer_uses_the_rate_of_each_step_and_goes_through_the_epochs():
    trainer, rates, places = copy_trainer(), [], []
    trainer.run(6, lambda t: (rates.append(t.rate), places.append((t.epoch, t.position))))
    assert rates == [cosine(step, 1e-2, 2, 12) for step in range(6)]
    assert places == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]


def test_zero_steps_change_nothing_and_fewer_are_named():
    trainer = copy_trainer()
    before = [p.clone() for p in trainer.model.parameters()]
    trainer.run(0)
    assert trainer.step == 0
    assert all(torch.equal(p, q) for p, q in zip(before, trainer.model.parameters(), strict=True))
    with pytest.raises(ValueError, match=r"steps \(-1\) must be at least 0"):
        trainer.run(-1)
    with pytest.raises(ValueError, match=r"accumulate \(0\) must be at least 1"):
        copy_trainer(accumulate=0)


def test_an_epoch_without_batches_is_named():
    trainer = Trainer(bigram(), bigram_loss(-100), lambda epoch: [], lambda step: 0.1)
    with pytest.raises(ValueError, match=r"batches \(epoch 0\) must hold at least one batch"):
        trainer.run(1)


def test_a_batch_of_padding_leaves_finite_weights():
    trainer = copy_trainer()
    trainer.batches = lambda epoch: [(torch.full((2, 3), 4), torch.zeros(2, 4, dtype=torch.long))]
    trainer.run(2)
    assert trainer.last_loss == 0.0
    assert all(p.isfinite().all() for p in trainer.model.parameters())


def test_bfloat16_autocast_trains_float32_weights():
    trainer = copy_trainer(autocast=torch.bfloat16, dropout=0.0)
    exact = copy_trainer(dropout=0.0)
    trainer.run(1)
    exact.run(1)
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in trainer.model.parameters())
    assert trainer.last_loss == pytest.approx(exact.last_loss, rel=0.02)
    assert trainer.last_loss != exact.last_loss


def test_the_copy_task_is_learned_to_the_last_token():
    torch.manual_seed(0)
    model = make_model(11, 11, num_layers=1, d_model=64, d_ff=128, num_heads=4, dropout=0.0)
    generator = torch.Generator().manual_seed(0)
    trainer = Trainer(
        model,
        SequenceLoss(0),
        lambda epoch: [copy_batch(64, 8, 11, generator=generator)],
        lambda step: cosine(step, 4e-3, 20, 250),
    )
    trainer.run(250)
    src, tgt = copy_batch(200, 8, 11, generator=generator)
    with evaluating(model):
        memory = model.encode(src)
        step = lambda ids: model.generator(model.decode(ids, memory)[:, -1])  # noqa: E731
        out = greedy_search(step, tgt[:, :1], eos_id=0, pad_id=0, max_new_tokens=8)
    assert torch.equal(out, tgt)


# checkpoints


@pytest.mark.parametrize("cut", [1, 3, 4, 7])
def test_stopping_and_resuming_makes_no_difference(tmp_path, cut):
    whole, rates = copy_trainer(), []
    whole.run(9, lambda t: rates.append(t.rate))
    half = copy_trainer()
    half.run(cut)
    half.save(tmp_path / "state.pt")
    torch.manual_seed(99)
    random.seed(99)
    again, resumed = copy_trainer(seed=5), []
    again.load(tmp_path / "state.pt")
    again.run(9 - cut, lambda t: resumed.append(t.rate))
    assert resumed == rates[cut:]
    assert (again.step, again.epoch, again.position, again.tokens) == (9, 2, 1, whole.tokens)
    assert same_parameters(again, whole)
    ours, theirs = (t.optimizer.state_dict()["state"] for t in (again, whole))
    assert all(torch.equal(ours[i][k], theirs[i][k]) for i in ours for k in ours[i])


def test_pythons_generator_is_part_of_the_state(tmp_path):
    trainer = copy_trainer()
    trainer.save(tmp_path / "state.pt")
    want = (random.random(), torch.rand(1).item())
    random.seed(5)
    torch.manual_seed(5)
    trainer.load(tmp_path / "state.pt")
    assert (random.random(), torch.rand(1).item()) == want


@pytest.mark.parametrize("entry", training.ENTRIES)
def test_a_missing_entry_is_named(tmp_path, entry):
    state = copy_trainer().state()
    del state[entry]
    torch.save(state, tmp_path / "state.pt")
    with pytest.raises(ValueError, match=rf"state.pt\) must be a whole state, missing: {entry}"):
        copy_trainer().load(tmp_path / "state.pt")


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_named_together_with_the_one_before(tmp_path, kept):
    path, trainer = tmp_path / "state.pt", copy_trainer()
    trainer.save(path)
    trainer.run(1)
    trainer.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=r"state.pt\) must be a complete checkpoint.*state.pt.previous is"):
        copy_trainer().load(path)
    again = copy_trainer()
    again.load(previous(path))
    assert again.step == 0


def test_foreign_files_are_refused_and_run_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "executed"),))

    path = tmp_path / "state.pt"
    torch.save({"format": training.FORMAT, "model": Evil()}, path)
    with pytest.raises(ValueError, match=r"state.pt\) must be a complete checkpoint, got UnpicklingError"):
        load_state(path)
    assert not (tmp_path / "executed").exists()
    path.write_text("not a checkpoint")
    with pytest.raises(ValueError, match=r"state.pt\) must be a complete checkpoint"):
        load_state(path)
    torch.save({"weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"state.pt\) must be a training state of this package, got"):
        load_state(path)
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match="must be a training state of this package"):
        load_state(path)


def test_a_checkpoint_of_another_model_or_schedule_is_refused(tmp_path):
    trainer = copy_trainer()
    trainer.run(3)
    trainer.save(tmp_path / "state.pt")
    other = copy_trainer()
    other.model = make_model(7, 13, num_layers=1, d_model=12, d_ff=23, num_heads=2)
    with pytest.raises(ValueError, match=r"(?s)must be a checkpoint of the same model: .*size mismatch"):
        other.load(tmp_path / "state.pt")
    with pytest.raises(ValueError, match=r"must be of the same schedule: its rate at step 3 is 0.01, here"):
        Trainer(trainer.model, trainer.loss, trainer.batches, lambda step: 0.5).load(tmp_path / "state.pt")


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing.pt\) must be a checkpoint, got no such file"):
        copy_trainer().load(tmp_path / "nothing.pt")


def test_the_checkpoint_before_is_kept_and_read_where_it_is_the_only_one(tmp_path):
    path, trainer = tmp_path / "deep" / "state.pt", copy_trainer()
    for _ in range(3):
        trainer.save(path)
        trainer.run(1)
    assert (load_state(path)["step"], load_state(previous(path))["step"]) == (2, 1)
    path.unlink()  # as after a crash between the two moves
    assert load_state(path)["step"] == 1
    assert sorted(p.name for p in path.parent.iterdir()) == ["state.pt.previous"]


@pytest.mark.parametrize("where", ["write", "sync", "move"])
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch, where):
    path, trainer = tmp_path / "state.pt", copy_trainer()
    trainer.run(1)
    trainer.save(path)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = {"write": (torch, "save"), "sync": (os, "fsync"), "move": (os, "replace")}[where]
    monkeypatch.setattr(*target, full)
    trainer.run(1)
    with pytest.raises(OSError, match=r"state.pt\) must be writable, with room .*No space left"):
        trainer.save(path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["state.pt"]
    assert load_state(path)["step"] == 1


def test_a_file_size_limit_met_in_the_middle_of_a_write_leaves_the_checkpoint_before(tmp_path):
    """The limit is real here, and the kernel refuses the write after the first bytes."""
    path = tmp_path / "state.pt"
    save_state({"step": 1}, path)
    script = f"""
        import resource, signal, torch
        from annotated_transformer.training import save_state
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            save_state({{"weights": torch.zeros(1_000_000)}}, {str(path)!r})
        except OSError as error:
            print(error)
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert "state.pt) must be writable, with room for the checkpoint" in result.stdout, result.stderr
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["state.pt"]


CHILD = """
    import sys
    from pathlib import Path
    import torch
    from tests.test_training import copy_trainer
    torch.set_num_threads(1)
    path, steps = Path(sys.argv[1]), int(sys.argv[2])
    trainer = copy_trainer(total=steps)
    if path.exists() or Path(f"{path}.previous").exists():
        trainer.load(path)
    print("ready", flush=True)
    trainer.run(steps - trainer.step, lambda t: t.save(path))
    print("done", flush=True)
"""


def start_child(path: Path, steps: int) -> subprocess.Popen:
    root = Path(__file__).parent.parent
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(path), str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_training_resumes_to_the_same_bits(tmp_path, how):
    path, steps = tmp_path / "state.pt", 60
    child = start_child(path, steps)
    assert child.stdout.readline() == "ready\n"
    while not previous(path).exists():  # it writes after every update, so the signal often meets it writing
        assert child.poll() is None
        time.sleep(0.001)
    time.sleep(0.05)
    child.send_signal(how)
    assert child.wait() == -how
    child.stdout.close()
    stopped = load_state(path)["step"]
    assert 1 <= stopped < steps

    again = start_child(path, steps)
    assert again.communicate()[0] == "ready\ndone\n"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    whole = copy_trainer(total=steps)
    whole.run(steps)
    torch.set_num_threads(threads)
    resumed = load_state(path)
    assert resumed["step"] == steps
    assert all(torch.equal(resumed["model"][name], p) for name, p in whole.model.state_dict().items())


# progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def trainer_at(step: int, tokens: int, loss: float) -> Trainer:
    trainer = copy_trainer()
    trainer.step, trainer.tokens, trainer.last_loss = step, tokens, loss
    return trainer


def test_progress_in_a_file_is_a_line_each_half_minute_with_speed_and_time_left():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(1000, stream, clock)
    progress(trainer_at(1, 50, 4.0))
    clock.now = 10.0
    progress(trainer_at(2, 1000, 3.0))
    clock.now = 50.0
    progress(trainer_at(101, 5050, 2.0))
    clock.now = 51.0
    progress(trainer_at(1000, 50050, 1.0))
    assert stream.getvalue().splitlines() == [
        "step 1/1,000  loss 4.000",
        "step 101/1,000  loss 2.500  100 tokens/s  ETA 7:30",
        "step 1,000/1,000  loss 1.000  980 tokens/s  ETA 0:00",
    ]


def test_progress_on_a_terminal_renews_one_line():
    stream, clock = Terminal(), Clock()
    progress = Progress(20, stream, clock)
    for step in range(1, 21):
        clock.now += 0.2
        progress(trainer_at(step, 10 * step, 1.0))
    assert stream.getvalue().count("\r") == 8  # the first, one each 0.6 s, the last
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().rstrip().endswith("step 20/20  loss 1.000  50 tokens/s  ETA 0:00")


def test_progress_goes_to_the_standard_error_stream(capsys):
    copy_trainer().run(2, Progress(2))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "step 2/2  loss " in captured.err
