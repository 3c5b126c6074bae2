"""Training on many processes at once: shares, joined gradients, sharded models. Chapter: `distributed`.

Each process runs the same program. All draw the same batch, each computes with its share of the rows, and
`torch.distributed` joins what they found. So the number of processes decides how fast an update is made, and
not which update it is.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .encoder_decoder import DecoderLayer, EncoderLayer
from .runtime import check_size, seed_everything
from .training import Batch, Loss, Trainer, accumulate_gradients, save_state


class Process(NamedTuple):
    """Which process this is, and how many there are."""

    rank: int = 0
    world_size: int = 1


@contextmanager
def process_group(timeout: float = 600.0) -> Iterator[Process]:
    """Join the processes that torchrun started, and leave them at the end; without torchrun, be alone.

    torchrun writes into the environment of each process which one it is and where the first can be reached.
    GPUs talk through NCCL, each process has its own; CPUs talk through gloo.

    Args:
        timeout: seconds after which a process that waits for another one gives up with an error.

    Raises:
        ValueError: when `timeout` is not above 0.
        RuntimeError: when the others do not come, or vanish.
    """
    if not timeout > 0:
        raise ValueError(f"timeout ({timeout}) must be above 0")
    if "WORLD_SIZE" not in os.environ:
        yield Process()
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "nccl"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    try:
        yield Process(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def share(batch: Batch, rank: int, world_size: int) -> Batch:
    """Take one process's rows of a batch: row `rank` and every `world_size`-th after it, perhaps none.

    Shape:
        - batch: tensors (B, ...) whose first axis counts the rows
        - output: the same with about B / world_size rows

    Raises:
        ValueError: when there is no process of this rank.
    """
    check_size("world_size", world_size)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank ({rank}) must be from 0 to world_size - 1 ({world_size - 1})")
    return tuple(part[rank::world_size] for part in batch)


def joined_gradients(
    model: nn.Module, shares: Iterable[Batch], loss: Loss, autocast: torch.dtype | None = None
) -> tuple[Tensor, int]:
    r"""Do what `accumulate_gradients` does, for the shares of all processes together.

    .. math:: \frac{\sum_r \nabla L_r}{\sum_r N_r}

    with the summed loss and the tokens of each process r. Torch leaves the mean of the n processes' gradients
    in each of them; times n it is their sum. All processes end with exactly the same numbers, since each
    multiplies the same mean by the same factor.

    Args:
        model: wrapped by `DistributedDataParallel`, or treated by `shard`.
        shares: the batches of this process; as many in each process, and each may have no row.
        loss: as for `accumulate_gradients`.
        autocast: as for `accumulate_gradients`.

    Returns:
        The mean loss of a token and the number of tokens, of all processes.
    """
    tokens = 0

    def uncounted(model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        nonlocal tokens
        summed, count = loss(model, batch)
        tokens += count
        return summed, 0  # told of no token, accumulate_gradients leaves the sums undivided

    total, _ = accumulate_gradients(model, shares, uncounted, autocast)
    sums = torch.stack([total.double(), torch.full_like(total, tokens, dtype=torch.float64)])
    dist.all_reduce(sums)  # the sum over all processes
    tokens = max(int(sums[1].item()), 1)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    torch._foreach_mul_(gradients, dist.get_world_size() / tokens)
    return sums[0] / tokens, int(sums[1].item())


class DistributedTrainer(Trainer):
    """A `Trainer` whose updates are made by all processes together; each holds the whole model.

    Give it the batches of a single process: each process takes its share of their rows. A checkpoint has the
    form of `Trainer`'s, so it can be resumed by any number of processes. The random numbers of an update,
    such as dropout's, follow from seed, step and rank.

    Args:
        model: as for `Trainer`, the same in each process; the first one's weights are sent to all.
        loss: as for `Trainer`; it has to call the model as a whole.
        batches: as for `Trainer`, the same in each process.
        schedule: as for `Trainer`.
        optimizer: as for `Trainer`.
        seed: of the random numbers of all updates.
        options: what else `Trainer` takes.

    Raises:
        RuntimeError: outside `process_group`.

    Reference:
        Li et al. 2020.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Callable[[int], Sequence[Batch]],
        schedule: Callable[[int], float],
        optimizer: torch.optim.Optimizer | None = None,
        seed: int = 0,
        **options: Any,
    ):
        if not dist.is_initialized():
            raise RuntimeError(f"{type(self).__name__} must be made inside process_group(), under torchrun")
        super().__init__(model, loss, batches, schedule, optimizer, **options)
        self.seed = seed
        self.process = Process(dist.get_rank(), dist.get_world_size())
        self.parallel = self.spread(model)

    @classmethod
    def of(cls, trainer: Trainer, seed: int = 0) -> DistributedTrainer:
        """Go on with the parts of a trainer that was made for one process."""
        parts = (trainer.model, trainer.loss, trainer.batches, trainer.schedule, trainer.optimizer)
        options = {name: getattr(trainer, name) for name in ("accumulate", "clip", "autocast")}
        return cls(*parts, seed, **options)

    def spread(self, model: nn.Module) -> nn.Module:
        """Wrap the model so that a backward pass joins the gradients of all processes."""
        # no buffer of this book's models changes, so none is sent at each step; the option has two names
        names = signature(DistributedDataParallel).parameters
        option = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        return DistributedDataParallel(model, **{option: False})

    def update(self, batches: Sequence[Batch]) -> None:
        """Make one update, with random numbers that no other step and no other process draws."""
        seed_everything(random.Random(f"{self.seed} {self.step} {self.process.rank}").getrandbits(32))
        super().update(batches)

    def gradients(self, batches: Sequence[Batch]) -> tuple[Tensor, int]:
        """Gather the gradients of all shares; they are sent once, during the last backward pass."""
        return joined_gradients(self.parallel, self._shares(batches), self.loss, self.autocast)

    def _shares(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        silent = getattr(self.parallel, "no_sync", nullcontext)
        for number, batch in enumerate(batches, start=1):
            with silent() if number < len(batches) else nullcontext():
                yield share(batch, *self.process)

    def save(self, path: str | os.PathLike) -> None:
        """Write `state()` to `path`, in the first process only; all wait until it is there."""
        state = self.state()
        if self.process.rank == 0:
            save_state(state, path)
        dist.barrier()


def shard(model: nn.Module, layers: tuple[type[nn.Module], ...] = (EncoderLayer, DecoderLayer)) -> nn.Module:
    """Cut each parameter into as many pieces as there are processes, and keep one piece in each.

    A layer's pieces are collected when the layer is about to compute, and dropped when it has. Make the
    optimizer afterwards: it then holds its moments for the pieces only.

    Args:
        model: changed in place.
        layers: the modules that are collected as a whole; what is outside of them is collected together.

    Returns:
        the model.

    Raises:
        RuntimeError: outside `process_group`.

    Reference:
        Rajbhandari et al. 2020; Zhao et al. 2023.
    """
    if not dist.is_initialized():
        raise RuntimeError("shard must be called inside process_group(), under torchrun")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for module in model.modules():
        if isinstance(module, layers):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class ShardedTrainer(DistributedTrainer):
    """A `DistributedTrainer` for a model that `shard` has cut: no process holds the whole.

    Checkpoints still have the form of `Trainer`'s: the pieces are put together to be saved, and cut again
    when they are loaded.

    Raises:
        ValueError: when the model is not sharded.
    """

    def spread(self, model: nn.Module) -> nn.Module:
        """Take the model as it is: `shard` made its backward pass join the gradients."""
        from torch.distributed.fsdp import FSDPModule

        if not isinstance(model, FSDPModule):
            raise ValueError(f"model ({type(model).__name__}) must be sharded: call shard(model) first")
        return model

    def state(self) -> dict:
        """Collect the whole state, in all processes at once."""
        return _whole(super().state())

    def restore(self, weights: Mapping[str, Tensor], optimizer: Mapping) -> None:
        """Cut the whole weights and moments as the parameters are cut."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        moments = {
            index: {name: _cut_like(parameters[index], value) for name, value in entries.items()}
            for index, entries in optimizer["state"].items()
        }
        own = self.model.state_dict()
        super().restore(
            {name: _cut_like(own[name], value) if name in own else value for name, value in weights.items()},
            {**optimizer, "state": moments},
        )


def _whole(value: Any) -> Any:
    """Put every sharded tensor in nested dicts and lists together."""
    from torch.distributed.tensor import DTensor

    if isinstance(value, Mapping):
        return {key: _whole(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_whole(part) for part in value]
    return value.full_tensor() if isinstance(value, DTensor) else value


def _cut_like(model: Tensor, value: Tensor) -> Tensor:
    """Cut `value` as `model` is cut, where they are of one shape; counters and buffers stay whole."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(model, DTensor) or value.shape != model.shape:
        return value
    return distribute_tensor(value.to(model.device), model.device_mesh, model.placements)
