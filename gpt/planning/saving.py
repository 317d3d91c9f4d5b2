"""The plan of saving, before the first step: the bytes of a checkpoint, and whether training waits for the disk."""

from argparse import Namespace
from dataclasses import dataclass

from gpt.architectures.table import ModelConfig
from gpt.machine.memory import available_ram
from gpt.planning.recipe import Recipe

TEXT_BYTES = 2**20  # of a checkpoint's files besides its tensors


@dataclass(frozen=True)
class SavingPlan:
    """How a run saves; checkpoint_bytes is the size of each checkpoint.

    With copies a thread writes a copy in RAM, and training waits only for the copy. Otherwise it waits for
    the disk.
    """

    checkpoint_bytes: int
    copies: bool


def plan_saving(config: ModelConfig, optimizer_bytes: float, held_bytes: int) -> SavingPlan:
    """Decides whether saves go through a copy in RAM.

    The run holds held_bytes in RAM before its first step. A checkpoint has fp32 weights, and
    optimizer_bytes of optimizer state for each parameter.
    """
    checkpoint_bytes = int((4 + optimizer_bytes) * config.num_parameters) + TEXT_BYTES
    # Beside the copy there must be room for the optimizer's state and the gradients, which a CPU keeps in
    # RAM.
    return SavingPlan(checkpoint_bytes, copies=available_ram() > held_bytes + 2 * checkpoint_bytes)


def most_checkpoints(args: Namespace, recipe: Recipe) -> int:
    """The largest number of checkpoints that the output folder can hold at once."""
    rolling = args.keep_checkpoints + 2  # besides: the best, and one being written
    permanent = int(recipe.passes) // args.checkpoint_interval + (recipe.plateau_end is not None)
    mirrored = args.mirror_to is not None  # one stays until its copy is verified
    return min(rolling + permanent + mirrored, max(1, recipe.total_steps))  # one a step
