"""The teacher of a run (--teacher): a finished model whose prediction is half of each target.

A teacher's prediction says which other tokens could have followed, which keeps a student from memorizing a
small text. Source: Furlanello et al. 2018, Born Again Neural Networks, section 3.
"""

from pathlib import Path

import torch

from gpt.architectures.table import Network, architecture_of
from gpt.checkpoint import load
from gpt.common.words import printable
from gpt.machine.device import Machine
from gpt.ops.loss import TeacherOutput
from model import Options


class Teacher:
    """A finished model with fixed weights that predicts for a student."""

    def __init__(self, model: Network):
        self._model = model.eval().requires_grad_(False)
        model.round_weights()
        self._trunk = model.trunk

    def compile(self) -> None:
        """Compiles the forward pass for the shape of a micro-batch."""
        self._trunk = torch.compile(self._model.trunk, dynamic=False)

    def run_eagerly(self) -> None:
        """Undoes compile."""
        self._trunk = self._model.trunk

    @torch.no_grad()
    def __call__(self, inputs_BT: torch.Tensor) -> TeacherOutput:
        """The teacher's final hidden states and output matrix, for a student's loss."""
        return self._trunk(inputs_BT), self._model.head_weight


def load_teacher(path: str | None, options: Options, machine: Machine) -> Teacher | None:
    """Loads the teacher of a checkpoint, with the options of its student. Raises UserError (exit 4)."""
    if path is None:
        return None
    with load.opening(f"--teacher {printable(path)}"):
        config = load.read_config(Path(path))
        model = architecture_of(config).build(config, options)
        load.load_weights(Path(path), model)
    return Teacher(model.to(machine.device))
