"""What a run's processes decide together, in the same step of each: to stop, to save, to end."""

from __future__ import annotations

from collections import defaultdict, deque

import torch
import torch.distributed as dist

from machine.processes import Processes

DELAY = 2  # asks after which an answer of several processes is read: it has arrived by then, and nobody waits for it


class Decisions:
    """Questions that all processes ask in the same order. One process decides for itself, at once."""

    def __init__(self, processes: Processes):
        self._processes = processes
        self.num_asked = 0  # grows while the run goes on
        self._decided: set[str] = set()  # by agree_now, for good
        self._sent: defaultdict[str, deque[tuple[torch.Tensor, dist.Work]]] = defaultdict(deque)  # oldest first

    def agree(self, what: str, here: bool) -> bool:
        """True in all processes if one of them said so, DELAY asks ago.

        The votes travel between the hosts while the devices compute. Who votes yes does so until it is decided.
        """
        self.num_asked += 1
        if self._processes.world_size == 1 or what in self._decided:
            return here or what in self._decided
        vote, sent = torch.tensor(float(here)), self._sent[what]
        work = dist.all_reduce(vote, async_op=True)
        assert work
        sent.append((vote, work))
        if len(sent) <= DELAY:
            return False
        vote, work = sent.popleft()
        work.wait()
        if decided := vote.item() > 0:
            sent.clear()  # those asked since then are the same vote, which is decided now
        return decided

    def agree_now(self, what: str, here: bool) -> bool:
        """The same at once and for good, for what may take long between steps: all processes wait for each other."""
        self.num_asked += 1
        if self._processes.any(here):
            self._decided.add(what)
        return what in self._decided
