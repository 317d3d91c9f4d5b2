"""Which of the processes of a run this one is: rank and world size.

train.py's main makes it, and Runtime (training/state.py) carries it to what must know: data.Batches, the Checkpointer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Processes:
    """The place of this process among those that train one model together.

    rank counts from 0 to world_size - 1.
    """

    rank: int = 0
    world_size: int = 1

    @property
    def is_first(self) -> bool:
        """True for the one process that prints and saves."""
        return self.rank == 0


ALONE = Processes()
