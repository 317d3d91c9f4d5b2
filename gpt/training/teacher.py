"""The teacher of a run (--teacher): a finished model whose prediction is half of each target.

A teacher's prediction says which other tokens could have followed, which keeps a student from memorizing a
small text. Source: Furlanello et al. 2018, Born Again Neural Networks, section 3.
"""

from dataclasses import replace
from pathlib import Path

import torch

from gpt.checkpoint.load import load_model
from gpt.common.words import printable
from gpt.machine.device import Machine
from gpt.ops.loss import TeacherOutput
from model import LanguageModel, Options


class Teacher:
    """A finished model that predicts for a student; the given model's weights become fixed."""

    def __init__(self, model: LanguageModel):
        self._model = model.eval().requires_grad_(False)
        model.round_weights()
        self._trunk = model.trunk

    def compile(self) -> None:
        """Makes the next call compile the forward pass, for the shape of a micro-batch."""
        self._trunk = torch.compile(self._model.trunk, dynamic=False)

    @torch.no_grad()
    def __call__(self, inputs_BT: torch.Tensor) -> TeacherOutput:
        """The final hidden states, [B, T, C], and the padded output matrix, [P, C], for a student's loss."""
        return self._trunk(inputs_BT), self._model.head_weight


def load_teacher(path: str, options: Options, machine: Machine) -> Teacher:
    """Loads the model of a checkpoint as a teacher, with the options of its student.

    Raises UserError (exit 4) if it cannot be opened.
    """
    if machine.precision == "fp16":  # trained weights can make activations beyond its largest number
        options = replace(options, residual_dtype=None)
    return Teacher(load_model(Path(path), machine.device, options, f"--teacher {printable(path)}"))
