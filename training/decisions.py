"""What a run's processes decide together: to stop, to save, to end. One process decides for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from machine.pinned import to_host
from machine.processes import Processes

DELAY = 2  # steps after which a decision of several processes is read: it has arrived by then, and nobody waits for it


@dataclass(frozen=True)
class Wishes:
    """What is asked at every step: is the run to stop, to save, and, as the first process's clock says, to end?"""

    stop: Callable[[], bool] = bool
    save: Callable[[], bool] = bool
    end: Callable[[], bool] = bool


class Decisions:
    """The wishes of all processes, in the same step of each.

    They travel with the loss of a step (Parallel.total), so they cost no message of their own. A wish that is fulfilled
    goes away; the others last until they are heard.
    """

    def __init__(self, processes: Processes):
        self._processes = processes
        self.num_asked = 0  # grows while the run goes on
        self._wishes, self._has_stopped = Wishes(), False
        self._on_the_way: list[tuple[torch.Tensor, torch.cuda.Event | None]] = []  # of the last steps, oldest first

    def ask(self, wishes: Wishes) -> None:
        """From now on these are the wishes."""
        self._wishes = wishes
        self._on_the_way.clear()

    def cast(self, device: torch.device) -> torch.Tensor:
        """This process's wishes as fp32 [3], to be added up over all, without a wait for the device."""
        self.num_asked += 1
        wishes, is_first = self._wishes, self._processes.is_first
        numbers = torch.tensor([wishes.stop(), wishes.save(), is_first and wishes.end()]).float()
        return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers

    def note(self, sums: torch.Tensor) -> None:
        """Takes the sums of a step, and copies them to the host while the device goes on."""
        numbers, copied = to_host(sums), None
        if sums.is_cuda:
            copied = torch.cuda.Event()
            copied.record()
        self._on_the_way.append((numbers, copied))
        del self._on_the_way[:-DELAY - 1]

    def stops(self) -> bool:
        """True once the run is to stop."""
        return self._has_stopped or self._decided(0, self._wishes.stop)

    def stops_now(self) -> bool:
        """The same without a step in between, for what may take long; all processes ask together, and wait."""
        self.num_asked += 1
        self._has_stopped = self._has_stopped or self._processes.any(self._wishes.stop())
        return self._has_stopped

    def saves(self) -> bool:
        """True if the run is to save now."""
        decided = self._decided(1, self._wishes.save)
        if decided:
            self._on_the_way.clear()  # the steps since have the same wish, which is fulfilled now
        return decided

    def ends(self) -> bool:
        """True once the time is over."""
        return self._decided(2, self._wishes.end)

    def _decided(self, which: int, wish: Callable[[], bool]) -> bool:
        if self._processes.world_size == 1:
            return wish()
        if len(self._on_the_way) <= DELAY:
            return False
        sums, copied = self._on_the_way[0]
        if copied is not None:
            copied.synchronize()
        return bool(sums[which])
