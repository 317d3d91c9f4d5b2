"""How several processes train one model: what they share in a step, and what they decide together.

Every process has its own micro-batches of the step. With DataParallel each holds the whole model, and gradients are
averaged as the last micro-batch's backward pass finds them (Li et al. 2020, PyTorch Distributed). Alone does nothing
of this: a step of one process goes through the same lines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from architectures.table import Network
from common.errors import Exit, UserError
from machine.device import Machine
from machine.processes import Processes
from ops.shards import local

BUCKET_MIB = 25  # of gradients that are averaged at a time
DELAY = 2  # steps after which a decision is known to all, so that nobody waits for it


@dataclass(frozen=True)
class Wishes:
    """What each process is asked in every step: has a signal come? And the first one's clock: a save, the end?"""

    stop: Callable[[], bool]
    save: Callable[[], bool]
    end: Callable[[], bool]


class Parallel(Protocol):
    """What a step shares with other processes, and what they decide together."""

    forward: Callable[..., torch.Tensor]  # the model, called to train

    def compile(self, **options: Any) -> None:
        """Compiles the model in place."""
        ...

    def micro_batch(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """The context of a forward and backward pass; in the last one of a step gradients are averaged."""
        ...

    def total(self, loss: torch.Tensor, gradients: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean loss and the norm of the gradient of all processes, fp32 [] each."""
        ...

    def ask(self, wishes: Wishes) -> None:
        """From now on the processes decide together what the wishes are about."""
        ...

    def stops(self) -> bool:
        """True once the processes have decided to stop."""
        ...

    def saves(self) -> bool:
        """True, once for each wish, if they have decided to save now."""
        ...

    def ends(self) -> bool:
        """True once they have decided that the time is over."""
        ...


class Alone:
    """One process: the model as it is, and every decision its own."""

    def __init__(self, model: Network):
        self.forward = model
        self._wishes = Wishes(*3 * [lambda: False])

    def compile(self, **options: Any) -> None:
        self.forward.compile(dynamic=False, **options)

    def micro_batch(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def total(self, loss: torch.Tensor, gradients: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return loss, torch.nn.utils.get_total_norm(gradients, foreach=True)

    def ask(self, wishes: Wishes) -> None:
        self._wishes = wishes

    def stops(self) -> bool:
        return self._wishes.stop()

    def saves(self) -> bool:
        return self._wishes.save()

    def ends(self) -> bool:
        return self._wishes.end()


class DataParallel:
    """Several processes, each with the whole model and its share of a step's sequences."""

    def __init__(self, model: Network, processes: Processes):
        # Gradients are averaged while the backward pass goes on: with one graph for the whole model, all of them would
        # come at its end. So blocks are compiled one by one.
        self.forward = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=BUCKET_MIB)
        self._prepare(model, processes)

    def _prepare(self, model: Network, processes: Processes) -> None:
        self._model, self._processes = model, processes
        self._copies = processes.world_size  # processes that hold the same gradients
        self._wishes = Wishes(*3 * [lambda: False])
        self._on_the_way: list[tuple[torch.Tensor, torch.cuda.Event | None]] = []

    def compile(self, **options: Any) -> None:
        for block in self._model.blocks:
            block.compile(dynamic=False, **options)

    def micro_batch(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if is_last else self.forward.no_sync()

    def total(self, loss: torch.Tensor, gradients: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        wishes, first = self._wishes, self._processes.is_first
        asked = [float(wishes.stop()), float(first and wishes.save()), float(first and wishes.end())]
        here = torch.nn.utils.get_total_norm([local(gradient) for gradient in gradients], foreach=True)
        numbers = torch.cat([torch.stack([loss, here * here]), _to_device(asked, loss)])
        dist.all_reduce(numbers)
        self._on_the_way.append(_to_host(numbers[2:]))
        return numbers[0] / self._processes.world_size, (numbers[1] / self._copies).sqrt()

    def ask(self, wishes: Wishes) -> None:
        self._wishes = wishes
        self._on_the_way.clear()

    def _decision(self, which: int) -> bool:
        """What the step DELAY before the last one has decided."""
        if len(self._on_the_way) <= DELAY:
            return False
        del self._on_the_way[:-DELAY - 1]
        numbers, copied = self._on_the_way[0]
        if copied is not None:
            copied.synchronize()
        return bool(numbers[which])

    def stops(self) -> bool:
        return self._decision(0)

    def saves(self) -> bool:
        decided = self._decision(1)
        if decided:
            self._on_the_way.clear()  # the same wish is in the steps since; the others' wishes last, and come again
        return decided

    def ends(self) -> bool:
        return self._decision(2)


class FullySharded(DataParallel):
    """Several processes, each with some rows of every weight, gradient and moment (Zhao et al. 2023, PyTorch FSDP).

    A block's weights are gathered when it is computed. groups: so many processes hold the same rows, as machines of
    which each has all of them.
    """

    def __init__(self, model: Network, processes: Processes, machine: Machine, groups: int = 1):
        shape = (processes.world_size,) if groups == 1 else (groups, processes.world_size // groups)
        names = ("shard",) if groups == 1 else ("replicate", "shard")
        mesh = init_device_mesh(machine.device.type, shape, mesh_dim_names=names)
        is_fp32 = machine.dtype == torch.float32
        policy = MixedPrecisionPolicy(None if is_fp32 else machine.dtype, torch.float32)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        self.forward = model
        self._prepare(model, processes)
        self._copies = groups

    def micro_batch(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        self.forward.set_requires_gradient_sync(is_last)
        self.forward.set_is_last_backward(is_last)
        return contextlib.nullcontext()


def _to_device(numbers: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """fp32 numbers beside a tensor, without a wait for its device."""
    there = torch.tensor(numbers)
    return there.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else there


def _to_host(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """A copy on the host, and the event after which it is complete."""
    if not numbers.is_cuda:
        return numbers, None
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return host, event


def share(model: Network, way: str, processes: Processes, machine: Machine) -> Parallel:
    """The way in which these processes train the model: 'ddp', 'fsdp' or 'hsdp', where there are several."""
    if processes.world_size == 1:
        return Alone(model)
    if way in ("auto", "ddp"):
        return DataParallel(model, processes)
    return FullySharded(model, processes, machine, processes.num_machines if way == "hsdp" else 1)


def sequences_at_a_time(samples_per_step: int, batch_size: int, processes: Processes) -> int:
    """The micro-batch of each process: at most batch_size, and a divisor of its share of a step's sequences.

    Raises UserError (exit 2) where the processes do not divide the step.
    """
    each, rest = divmod(samples_per_step, processes.world_size)
    if rest or not each:
        low, high = each * processes.world_size, (each + 1) * processes.world_size
        nearest = high if not low or high - samples_per_step <= samples_per_step - low else low
        raise UserError(Exit.FLAGS, f"a step has {samples_per_step:,} sequences, which {processes.world_size:,} "
                                    f"processes cannot share evenly. Give --batch_size and "
                                    f"--gradient_accumulation_steps whose product is {nearest:,}, for example.")
    return max(n for n in range(1, min(batch_size, each) + 1) if each % n == 0)
