"""The processes that train one model together: which of them this one is, and how they agree.

torchrun starts them and says in the environment who is who. A process on its own is ALONE, for which every method here
is a no-op: the same line of train.py serves both.
"""

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from gpt.common import ranks
from gpt.common.errors import ENDED, Exit, UserError
from gpt.common.ranks import MEETING, PLACE, is_one_of_several
from gpt.common.signals import Signals
from gpt.common.terminal import print_line
from gpt.machine.backends import CPU, gpu_in_use

# How long one process may wait for another: as long as a save from a process without RAM for a copy may take. One that
# dies is noticed at once, by its closed connections and by torchrun.
PATIENCE = timedelta(minutes=30)
WATCH_SECONDS = 1.0
ANSWER_SECONDS = 0.05
STANDSTILL_SECONDS, STANDSTILL_STEPS = 20.0, 3  # after a signal: so long, and as many steps
T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """The place of this process among those that train one model together.

    rank counts from 0 to world_size - 1, local_rank the same on one machine.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def num_machines(self) -> int:
        return self.world_size // self.local_world_size

    @property
    def is_first(self) -> bool:
        """True for the one process that prints and saves."""
        return self.rank == 0

    def agree(self, decide: Callable[[], T]) -> T:
        """What decide() returns in the first process, in all of them; the others do not call it.

        Its UserError is raised in all of them. Whatever else it raises ends the others with exit 70.
        """
        if self.world_size == 1:
            return decide()
        told: list[Any] = [None, UserError(Exit.BUG, "it ended without a message")]  # the value, or an error
        try:
            if self.is_first:
                told = [decide(), None]
        except (UserError, SystemExit) as error:
            told = [None, error]
            raise
        finally:
            dist.broadcast_object_list(told, device=CPU.device())
        if told[1] is not None:
            raise told[1]
        return told[0]

    def any(self, here: bool) -> bool:
        """True in all processes if it is true in one of them."""
        return self.total([here])[0] > 0

    def total(self, numbers: Sequence[float], largest: bool = False) -> list[float]:
        """Each of the numbers added up over all processes, or the largest of them all."""
        found = torch.tensor(numbers, dtype=torch.float64)
        if self.world_size > 1:
            dist.all_reduce(found, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
        return found.tolist()

    def largest(self, number: float) -> float:
        """The largest of all processes' numbers."""
        return self.total([number], largest=True)[0]

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Raises UserError (exit 5) in a process in which one of the facts is another one than in the first."""
        theirs = self.agree(lambda: {name: str(fact) for name, fact in facts.items()})
        with self.errors_of_this_rank():
            for name, fact in facts.items():
                if str(fact) != theirs[name]:
                    raise UserError(Exit.MACHINE, f"{name}: {fact} here, {theirs[name]} in process 0. Give all "
                                                  "machines the same program, packages, tokens and flags.")

    @contextlib.contextmanager
    def errors_of_this_rank(self) -> Iterator[None]:
        """While inside, a UserError is taken for one of this process alone: it is printed with the process's number."""
        try:
            yield
        except UserError as error:
            if self.is_first:
                raise
            raise UserError(error.code, f"process {self.rank}: {error}", on_all_ranks=False) from error

    def watch(self, signals: Signals, beat: Callable[[], object], is_busy: Callable[[], bool],
              step_seconds: float) -> None:
        """Starts the watchdog, where there is somebody to wait for.

        beat() changes while there is progress; is_busy() says that something is under way that may take long.
        """
        if self.world_size > 1:
            patience = STANDSTILL_SECONDS + STANDSTILL_STEPS * step_seconds
            threading.Thread(target=_end_when_stuck, args=(signals, beat, is_busy, patience), daemon=True).start()


ALONE = Processes()


def of_environment() -> Processes:
    """What torchrun says in the environment, ALONE without it. Raises UserError (exit 5) for what makes no sense."""
    if not is_one_of_several():
        return ALONE
    with contextlib.suppress(ValueError):
        rank, world_size, local_rank, local_world_size = (int(os.environ[name]) for name in PLACE)
        if 0 <= rank < world_size and 0 <= local_rank < local_world_size <= world_size:
            return Processes(rank, world_size, local_rank, local_world_size)
    found = ", ".join(f"{name}={os.environ[name]}" for name in (*PLACE, *MEETING))
    raise UserError(Exit.MACHINE, f"the environment speaks of several processes, but {found} makes no sense. Start "
                                  "them by torchrun, or unset RANK to train in one.")


@contextlib.contextmanager
def joined(processes: Processes, use_gpu: bool | None) -> Iterator[None]:
    """While inside, the processes can speak with each other: by gloo, and on GPUs, of which each has one, by NCCL too.

    use_gpu is the flag. On an error nothing is taken down in order, which would wait for processes that may be gone.
    Raises UserError (exit 5) for more processes than GPUs, and where one of them is lost or cannot be reached.
    """
    if processes is ALONE:
        yield
        return
    threading.Thread(target=_stop_without_torchrun, daemon=True, name="parent").start()
    gpu, here = gpu_in_use(use_gpu), None
    if gpu:
        if processes.local_world_size > (num := gpu.num_devices()):
            raise UserError(Exit.MACHINE, f"{processes.local_world_size} processes were started on a machine with "
                                          f"{num} GPUs. Give torchrun --nproc_per_node {num}.")
        here = torch.device(gpu.type, processes.local_rank)
        gpu.api.set_device(here)
    try:
        store, rank, world_size = next(rendezvous("env://", timeout=PATIENCE))
        dist.init_process_group((gpu or CPU).collectives, timeout=PATIENCE, device_id=here,
                                store=_store_of_this_start(store, rank, world_size), rank=rank, world_size=world_size)
        yield
    except RuntimeError as error:
        if not is_of_lost_process(error):
            raise
        raise UserError(Exit.MACHINE, "another process of this run has ended, or cannot be reached any more. What was "
                                      "saved is safe. Start again with --resume_from auto; torchrun --max_restarts 3 "
                                      "does that by itself.") from error
    dist.destroy_process_group()
    ENDED.append(True)  # gloo may leave a thread, and C++'s destructors abort where one runs


def _store_of_this_start(store: Store, rank: int, world_size: int) -> Store:
    """The part of torchrun's store that belongs to this start of the processes.

    torchrun keeps the store when it restarts them: there they would find addresses of processes that have died. Its
    count of restarts may differ between machines. So process 0 names the start, and answers each that asks under
    that name; one that finds the name of an earlier start gets no answer.
    """
    mine = uuid.uuid4().hex
    if rank == 0:
        store.set("start", mine)
        part = PrefixStore(mine, store)
        for other in range(1, world_size):
            part.set(part.get(f"process {other}").decode(), "")
        return part
    while True:
        part = PrefixStore(store.get("start").decode(), store)
        part.set(f"process {rank}", mine)
        if part.check([mine]):
            return part
        time.sleep(ANSWER_SECONDS)


def _stop_without_torchrun() -> None:
    """Asks this process to stop once torchrun is gone: nobody would end it when another process is lost."""
    while os.getppid() == ranks.STARTED_BY:
        time.sleep(WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def is_of_lost_process(error: RuntimeError) -> bool:
    """True for what a collective raises when the connection to another process is gone."""
    words = ("gloo", "Connection closed by peer", "Connection reset by peer")
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)


def _end_when_stuck(signals: Signals, beat: Callable[[], object], is_busy: Callable[[], bool], patience: float) -> None:
    """Ends this process when it was asked to stop but has to wait, for more than patience seconds, for another one.

    A collective on a GPU does not notice that the other one is gone.
    """
    seen, since = beat(), time.monotonic()
    while True:
        time.sleep(WATCH_SECONDS)
        now = beat()
        if now != seen or is_busy() or signals.number is None:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > patience:
            print_line(f"error: stopped by {signals.name}, but another process has not answered for {patience:.0f} s. "
                       "What was saved is safe. Start again with --resume_from auto.")
            os._exit(128 + signals.number)
