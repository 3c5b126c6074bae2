"""Several processes together: joined gradients, sharded models, checkpoints, and what happens when one dies.

Run as a program, this file is one of the processes that the tests start.
"""

import itertools
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed as dist

from annotated_transformer import make_model
from annotated_transformer.data import cmudict
from annotated_transformer.distributed import (
    DistributedTrainer,
    Process,
    ShardedTrainer,
    joined_gradients,
    process_group,
    shard,
    share,
)
from annotated_transformer.recipes import G2PRecipe, g2p_pairs, g2p_trainer, train_g2p
from annotated_transformer.training import (
    SequenceLoss,
    Trainer,
    accumulate_gradients,
    decay_groups,
    load_state,
)

PAD = 0


def tiny_model(dropout=0.0):
    torch.manual_seed(7)
    sizes = {"num_layers": 1, "d_model": 8, "d_ff": 12, "num_heads": 2, "max_len": 16}
    return make_model(11, 13, dropout=dropout, padding_idx=PAD, **sizes)


def pairs(rows, seed, length=5):
    """Source and target ids whose rows end at different places."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(1, 11, (rows, length), generator=generator)
    tgt = torch.randint(1, 13, (rows, length + 2), generator=generator)
    ends = torch.randint(2, length + 3, (rows, 1), generator=generator)
    return src, tgt.masked_fill(torch.arange(length + 2) >= ends, PAD)


def gradient_cases():
    """Lists of batches; the rows are dealt out in turn, so that row 1 goes to the second process."""
    src, tgt = pairs(4, 3)
    only_padding = tgt.clone()
    only_padding[1::2] = PAD
    return {
        "equal shares": [pairs(6, 1)],
        "unequal shares": [pairs(5, 2)],
        "a share of padding": [(src, only_padding)],
        "a share without rows": [pairs(1, 4)],
        "several batches": [pairs(3, 5), pairs(7, 6, length=3), pairs(1, 7)],
        "no token at all": [(src, torch.zeros_like(tgt))],
    }


TINY = G2PRecipe(
    d_model=12, num_heads=2, d_ff=13, encoder_layers=1, decoder_layers=1, max_tokens=60, warmup=2,
    steps=9, snapshots=2, snapshot_every=2,
)  # fmt: skip


def syllables():
    """64 words whose letters are their phonemes."""
    sounds = {"ba": ("B", "AA1"), "de": ("D", "EH0"), "ki": ("K", "IY2"), "mo": ("M", "OW1")}
    words = itertools.product(sounds, repeat=3)
    return {"".join(word): [sum((sounds[part] for part in word), ())] for word in words}


def trainer_of(kind, model):
    # a large eps: the bias of the keys has no gradient but noise, which Adam would blow up to full steps
    optimizer = torch.optim.AdamW(decay_groups(model, 0.1), lr=0.0, betas=(0.9, 0.98), eps=1e-3)
    batches = [pairs(5, 10), pairs(1, 11), pairs(4, 12), pairs(3, 13)]
    options = {"accumulate": 2, "clip": 0.5}
    return kind(model, SequenceLoss(PAD, 0.1), lambda epoch: batches, lambda step: 0.01, optimizer, **options)


def weights_of(model):
    return {name: weight.clone() for name, weight in model.state_dict().items()}


# --- what one of two processes does -----------------------------------------------------------------------


def work(folder):
    with process_group(timeout=120) as process:
        results = {"process": tuple(process)}
        for name, batches in gradient_cases().items():
            model = tiny_model()
            parallel = torch.nn.parallel.DistributedDataParallel(model)
            mine = [share(batch, *process) for batch in batches]
            loss, tokens = joined_gradients(parallel, mine, SequenceLoss(PAD))
            results[name] = (loss, tokens, [p.grad for p in model.parameters()])

        trainer = trainer_of(DistributedTrainer, tiny_model())
        trainer.run(3)
        trainer.save(folder / "by-two.pt")
        trainer.run(3)
        results["uninterrupted"], results["loss"] = weights_of(trainer.model), trainer.last_loss

        trainer = trainer_of(DistributedTrainer, tiny_model())
        trainer.load(folder / "by-one.pt")
        trainer.run(3)
        results["resumed"] = weights_of(trainer.model)

        model = shard(tiny_model())
        trainer = trainer_of(ShardedTrainer, model)
        results["pieces"] = sum(p.to_local().numel() for p in model.parameters())
        trainer.run(3)
        moments = [s["exp_avg"].to_local().numel() for s in trainer.optimizer.state.values()]
        results["pieces of moments"] = sum(moments)
        trainer.save(folder / "sharded.pt")
        trainer = trainer_of(ShardedTrainer, shard(tiny_model()))
        trainer.load(folder / "sharded.pt")
        trainer.run(3)
        results["sharded"], results["sharded loss"] = trainer.state()["model"], trainer.last_loss
        with pytest.raises(ValueError, match=r"model \(Transformer\) must be sharded: call shard"):
            trainer_of(ShardedTrainer, tiny_model())

        draws = []

        def drawing(model, batch):
            draws.append(torch.rand(()).item())
            return SequenceLoss(PAD)(model, batch)

        trainer = trainer_of(DistributedTrainer, tiny_model(dropout=0.5))
        trainer.loss = drawing
        trainer.run(2)
        results["draws"], results["with dropout"] = draws, weights_of(trainer.model)
        torch.save(results, folder / f"{process.rank}.results")

        cmudict.load_cmudict, split = syllables, cmudict.split_by_headword
        cmudict.split_by_headword = partial(split, test=12, dev=8)
        path = train_g2p(folder / "run", [TINY], save_every=4, check_every=5, process=process)
        assert path == folder / "run" / "g2p.safetensors"


def save_apart(folder):
    """Each process saves under a name of its own; only the first one's file may appear."""
    with process_group(timeout=120) as process:
        trainer = trainer_of(DistributedTrainer, tiny_model())
        trainer.save(folder / f"state-{process.rank}.pt")
        assert (folder / "state-0.pt").exists()  # nobody goes on before it is there


def die(folder, how):
    """The second process dies, or falls silent, in the middle of the training."""
    with process_group(timeout=20) as process:
        trainer = trainer_of(DistributedTrainer, tiny_model())

        def after_step(trainer):
            if trainer.step == 2 and process.rank == 1:
                (folder / "gone").touch()
                os.kill(os.getpid(), getattr(signal, how))

        trainer.run(1000, after_step)


def start(folder, *arguments):
    """Start two processes with what torchrun would tell them, and no torchrun to end them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    address |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, __file__, str(folder), *arguments]
    return [
        subprocess.Popen(
            command, env=os.environ | address | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]


# --- the tests --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The results of both processes, the folder where they worked, and what each wrote to stderr."""
    folder = tmp_path_factory.mktemp("together")
    alone = trainer_of(Trainer, tiny_model())
    alone.run(3)
    alone.save(folder / "by-one.pt")
    errors = []
    for process in start(folder, "work"):
        errors.append(process.communicate(timeout=300)[1])
        assert process.returncode == 0, errors[-1][-2000:]
    results = [torch.load(folder / f"{rank}.results", weights_only=True) for rank in range(2)]
    return *results, folder, errors


@pytest.mark.parametrize("case", gradient_cases())
def test_gradients_equal_those_of_one_process_with_the_joined_batch(together, case):
    model = tiny_model()
    loss, tokens = accumulate_gradients(model, gradient_cases()[case], SequenceLoss(PAD))
    for results in together[:2]:
        assert results[case][1] == tokens
        torch.testing.assert_close(results[case][0], loss.double(), atol=1e-6, rtol=1e-6)
        for ours, parameter in zip(results[case][2], model.parameters(), strict=True):
            torch.testing.assert_close(ours, parameter.grad, atol=1e-6, rtol=0)
    assert all(map(torch.equal, together[0][case][2], together[1][case][2]))


@pytest.fixture(scope="module")
def uninterrupted():
    alone = trainer_of(Trainer, tiny_model())
    alone.run(6)
    return alone


@pytest.mark.parametrize("how", ["uninterrupted", "resumed", "sharded"])
def test_processes_make_the_updates_that_one_makes_and_resume_its_training(together, uninterrupted, how):
    for results in together[:2]:
        torch.testing.assert_close(results[how], uninterrupted.model.state_dict(), atol=1e-6, rtol=0)
        assert results["loss"] == pytest.approx(uninterrupted.last_loss, abs=1e-6)
        assert results["sharded loss"] == pytest.approx(uninterrupted.last_loss, abs=1e-6)


@pytest.mark.parametrize("file", ["by-two.pt", "sharded.pt"])
def test_one_process_resumes_what_two_have_begun(together, uninterrupted, file):
    alone = trainer_of(Trainer, tiny_model())
    alone.load(together[2] / file)
    assert (alone.step, alone.epoch, alone.position) == (3, 1, 2)
    alone.run(3)
    torch.testing.assert_close(alone.model.state_dict(), uninterrupted.model.state_dict(), atol=1e-6, rtol=0)
    assert alone.tokens == uninterrupted.tokens


def test_each_process_of_a_sharded_model_holds_half_of_it(together):
    size = sum(p.numel() for p in tiny_model().parameters())
    for what in ("pieces", "pieces of moments"):
        assert sum(results[what] for results in together[:2]) == size
        assert all(0.4 * size < results[what] < 0.6 * size for results in together[:2])


def test_processes_draw_different_numbers_and_keep_the_same_weights(together):
    first, second = together[:2]
    assert first["process"] == (0, 2) and second["process"] == (1, 2)
    draws = first["draws"] + second["draws"]
    assert len(draws) == 8 and len(set(draws)) == 8
    weights = zip(first["with dropout"].values(), second["with dropout"].values(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)


def test_a_recipe_is_trained_by_all_and_written_and_reported_by_the_first(together):
    assert {file.name for file in (together[2] / "run").iterdir()} == {"g2p.safetensors", "phase-1"}
    folder, (first, second) = together[2] / "run" / "phase-1", together[3]
    snapshots = {f"weights-{count:06}.safetensors" for count in (7, 9)}
    assert {file.name for file in folder.iterdir()} == snapshots | {
        "g2p.safetensors", "state.pt", "state.pt.previous",
    }  # fmt: skip
    assert "step 9/9  loss " in first and "development words wrong" in first
    assert "FutureWarning" not in first + second  # torch deprecates options now and then
    assert "step 9/9" not in second and "development words wrong" not in second
    pairs = g2p_pairs(cmudict.split_by_headword(syllables(), test=12, dev=8).train)
    alone = g2p_trainer(pairs, TINY, device=torch.device("cpu"))
    alone.run(9)
    state = load_state(folder / "state.pt")
    assert (state["step"], state["tokens"]) == (9, alone.tokens)


def test_only_the_first_process_writes_a_checkpoint(tmp_path):
    for process in start(tmp_path, "save_apart"):
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-2000:]
    assert [path.name for path in tmp_path.iterdir()] == ["state-0.pt"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_all_stop_with_an_error_when_one_is_gone(tmp_path, how):
    first, second = start(tmp_path, "die", how)
    try:
        _, errors = first.communicate(timeout=300)
        assert (tmp_path / "gone").exists(), errors[-2000:]  # it happened in the middle of the training
        assert first.returncode == 1 and "Error" in errors, errors[-2000:]
    finally:
        second.kill()
        second.communicate()


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(0, 7), world_size=st.integers(1, 5))
def test_shares_hold_every_row_once_and_differ_by_one_row_at_most(rows, world_size):
    batch = (torch.arange(rows), torch.arange(rows * 3).view(rows, 3))
    parts = [share(batch, rank, world_size) for rank in range(world_size)]
    sizes = [len(part[0]) for part in parts]
    assert sorted(torch.cat([part[0] for part in parts]).tolist()) == list(range(rows))
    assert max(sizes) - min(sizes) <= 1
    for first, second in parts:
        assert torch.equal(second, batch[1][first])


def test_bad_shares_and_timeouts_are_refused():
    batch = (torch.arange(4),)
    with pytest.raises(ValueError, match=r"rank \(2\) must be from 0 to world_size - 1 \(1\)"):
        share(batch, 2, 2)
    with pytest.raises(ValueError, match=r"rank \(-1\) must be from 0"):
        share(batch, -1, 2)
    with pytest.raises(ValueError, match=r"world_size \(0\) must be at least 1"):
        share(batch, 0, 0)
    for timeout in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"timeout \(.*\) must be above 0"), process_group(timeout):
            pass


def test_without_torchrun_a_process_is_alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with process_group() as process:
        assert process == Process(0, 1) and not dist.is_initialized()
    with pytest.raises(RuntimeError, match="DistributedTrainer must be made inside process_group"):
        trainer_of(DistributedTrainer, tiny_model())
    with pytest.raises(RuntimeError, match="shard must be called inside process_group"):
        shard(tiny_model())


if __name__ == "__main__":
    globals()[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
