"""The processes that train one model together: their ranks, and the decisions that they share.

torchrun starts them, with their ranks in the environment. A single process is ALONE: no method
communicates for it, so that train.py has the same lines for one process and for several.
"""

import contextlib
import os
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
from gpt.common.children import end_with_parent
from gpt.common.ending import SKIP_SHUTDOWN
from gpt.common.errors import Exit, UserError
from gpt.common.names import TRAINS_NEXT
from gpt.common.words import first_line, several
from gpt.machine.backends import CPU, gpu_in_use

# The longest wait of one process for another: a save takes so long if the RAM is too small for a copy. The
# death of a process is noticed at once, by its closed connections and by torchrun.
PATIENCE = timedelta(minutes=30)
POLL_SECONDS = 0.05
T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """The place of this process among the processes of one run.

    rank is from 0 to world_size - 1; local_rank counts the processes of one machine in the same way. All
    processes must call from_main, total, largest and check_same, in the same order: each waits for the others.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def num_machines(self) -> int:
        return self.world_size // self.local_world_size

    @property
    def is_main(self) -> bool:
        """True for the one process that prints and saves."""
        return self.rank == 0

    def from_main(self, decide: Callable[[], T]) -> T:
        """Returns in all processes the result of decide(), which the main process alone calls.

        Its UserError or SystemExit is raised in all of them. Any other error ends the others with exit 70.
        """
        if self.world_size == 1:
            return decide()
        outcome: list[Any] = [None, UserError(Exit.BUG, "it ended without a message")]  # the value, or an error
        try:
            if self.is_main:
                outcome = [decide(), None]
        except (UserError, SystemExit) as error:
            outcome = [None, error]
            raise
        finally:
            dist.broadcast_object_list(outcome, device=CPU.device())
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Returns, in all processes, each number's sum over the processes."""
        totals = torch.tensor(numbers, dtype=torch.float64)
        if self.world_size > 1:
            dist.all_reduce(totals)
        return totals.tolist()

    def largest(self, number: int) -> int:
        """Returns, in all processes, the largest of their numbers."""
        found = torch.tensor(number)
        if self.world_size > 1:
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Raises UserError (exit 5) in each process where a fact differs, as text, from the main process's."""
        theirs = self.from_main(lambda: {name: str(fact) for name, fact in facts.items()})
        with self.errors_of_this_rank():
            for name, fact in facts.items():
                if str(fact) != theirs[name]:
                    raise UserError(Exit.MACHINE, f"{name}: {fact} here, {theirs[name]} in process 0. Give all "
                                                  "machines the same program, packages, tokens and flags.")

    @contextlib.contextmanager
    def errors_of_this_rank(self) -> Iterator[None]:
        """Makes a UserError of the block an error of this process alone, printed with the process's number.

        In the main process the error stays as it is.
        """
        try:
            yield
        except UserError as error:
            if self.is_main:
                raise
            raise UserError(error.code, f"process {self.rank}: {error}", on_all_ranks=False) from error


ALONE = Processes()


def of_environment() -> Processes:
    """Reads this process's place from torchrun's environment; ALONE without torchrun.

    Raises UserError (exit 5) for values that contradict each other.
    """
    if not ranks.is_one_of_several():
        return ALONE
    with contextlib.suppress(ValueError):
        place = Processes(*(int(os.environ[name]) for name in ranks.RANK_VARIABLES))
        is_in_machine = 0 <= place.local_rank < place.local_world_size
        if 0 <= place.rank < place.world_size and is_in_machine and place.num_machines >= 1:
            return place
    values = ", ".join(f"{name}={os.environ[name]}" for name in (*ranks.RANK_VARIABLES, *ranks.RENDEZVOUS_VARIABLES))
    raise UserError(Exit.MACHINE, f"the environment describes several processes, but {values} makes no "
                                  "sense. Start them by torchrun, or unset RANK to train in one process.")


@contextlib.contextmanager
def joined(processes: Processes, use_gpu: bool | None) -> Iterator[None]:
    """Connects the processes while inside: by gloo, and by NCCL too if each has a GPU.

    Connects nothing for ALONE. use_gpu is the flag. Each process takes the GPU of its local_rank. A process
    that torchrun or train.py started gets SIGTERM when they end. After an error connections are not closed in
    order, because that would wait for processes that may be dead. Raises UserError (exit 5) if a machine has
    fewer GPUs than processes. A process that cannot be reached or is lost raises it too, also inside the block.
    """
    if processes is not ALONE or TRAINS_NEXT in os.environ:
        end_with_parent()
    if processes is ALONE:
        yield
        return
    gpu = gpu_in_use(use_gpu)
    device = None
    if gpu:
        num_gpus = gpu.num_devices()
        if processes.local_world_size > num_gpus:
            raise UserError(Exit.MACHINE, f"{processes.local_world_size} processes were started on a "
                                          f"machine with {several(num_gpus, 'GPU')}. Give torchrun --nproc_per_node "
                                          f"{num_gpus}.")
        device = torch.device(gpu.type, processes.local_rank)
        gpu.api.set_device(device)
    try:
        store, rank, world_size = next(rendezvous("env://", timeout=PATIENCE))
        dist.init_process_group((gpu or CPU).collectives, timeout=PATIENCE, device_id=device,
                                store=_store_of_this_start(store, rank, world_size), rank=rank,
                                world_size=world_size)
        yield
    except RuntimeError as error:
        if not is_of_lost_process(error):
            raise
        last = str(error).rpartition("Last error:")[2].strip()  # NCCL's cause stands last, and may be empty
        why = first_line(RuntimeError(last) if last else error)
        raise UserError(Exit.MACHINE, f"another process of this run has ended, or cannot be reached any more: {why}. "
                                      "What was saved is safe. Start again with --resume_from auto; torchrun "
                                      "--max_restarts 3 does that by itself.") from error
    dist.destroy_process_group()
    SKIP_SHUTDOWN.set()  # gloo may leave a thread running, and C++'s destructors abort then


def _store_of_this_start(store: Store, rank: int, world_size: int) -> Store:
    """Returns the part of torchrun's store that belongs to this start of the processes.

    After a restart torchrun keeps the store, with the addresses of dead processes. Its count of restarts may
    differ between machines. So process 0 stores a name for the start, and answers every process that writes
    under that name. A process that reads the name of an earlier start gets no answer and reads again.
    """
    own_name = uuid.uuid4().hex
    if rank == 0:
        store.set("start", own_name)
        part = PrefixStore(own_name, store)
        for other in range(1, world_size):
            part.set(part.get(f"process {other}").decode(), "")
        return part
    while True:
        part = PrefixStore(store.get("start").decode(), store)
        part.set(f"process {rank}", own_name)
        if part.check([own_name]):
            return part
        time.sleep(POLL_SECONDS)


def is_of_lost_process(error: RuntimeError) -> bool:
    """True for a collective's error after the connection to another process was lost."""
    words = ("gloo", "Connection closed by peer", "Connection reset by peer")
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)
