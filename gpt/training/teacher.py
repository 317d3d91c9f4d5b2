"""The teacher of a run (--teacher): a finished model whose prediction is half of each target.

A teacher's prediction says which other tokens could have followed, which keeps a student from memorizing a
small text. Source: Furlanello et al. 2018, Born Again Neural Networks, section 3.
"""

from pathlib import Path

import torch

from gpt.architectures.table import ModelConfig, Network, architecture_of
from gpt.checkpoint import find, load
from gpt.common.errors import Exit, UserError
from gpt.common.files import named_in
from gpt.common.progress import Progress
from gpt.common.words import printable
from gpt.machine.device import Machine
from gpt.ops.loss import TeacherOutput
from gpt.ops.options import Options


class Teacher:
    """A finished model that predicts for a student and is never changed."""

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


def choose_teacher(requested: str, config: ModelConfig, out: Progress) -> str:
    """The checkpoint that --teacher means. Raises UserError: exit 4 if it is no model, 3 if it has other ids than the
    student, 2 if it has too few positions.
    """
    if not named_in(Path(requested), Path("out"))[0].exists():  # out/best names a folder too
        raise UserError(Exit.CHECKPOINT, f"--teacher {printable(requested)} does not exist. Give --teacher with the "
                                         "folder where it is now.")
    folder = find.resolve(Path(requested), out.warn, to_train=False)
    with load.opening(f"--teacher {printable(requested)}"):
        theirs = load.read_config(folder)
    if theirs.vocab_size != config.vocab_size:
        raise UserError(Exit.DATA, f"--teacher {printable(requested)} has {theirs.vocab_size:,} ids, the corpus "
                                   f"{config.vocab_size:,}. Give one of the same tokenizer.")
    if theirs.seq_length < config.seq_length:
        raise UserError(Exit.FLAGS, f"--seq_length {config.seq_length}: --teacher has {theirs.seq_length} positions. "
                                    "Give as many at most.")
    return str(folder)


def load_teacher(path: str | None, options: Options, machine: Machine) -> Teacher | None:
    """Loads the teacher of a checkpoint, with the options of its student. Raises UserError (exit 4)."""
    if path is None:
        return None
    with load.opening(f"--teacher {printable(path)}"):
        config = load.read_config(Path(path))
        model = architecture_of(config).build(config, options)
        load.load_weights(Path(path), model)
    return Teacher(model.to(machine.device))
