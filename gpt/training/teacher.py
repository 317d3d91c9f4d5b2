"""The teacher of a run (--teacher), a finished model whose prediction is half of each target; a first model as one.

A teacher's prediction says which other tokens could have followed, which keeps a student from memorizing a
small text. Source: Furlanello et al. 2018, Born Again Neural Networks, section 3.

After some passes one model only learns a small text by heart, and the rest of --max_minutes would be idle. Then a
first model takes a part of the minutes, and is the teacher of a larger second one. Where the first one's validation
loss rose in the end, the second one has noise on its inputs instead. Both bear twice the passes (LOG.md, 2026-11-27,
Two models in the minutes of one).
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from gpt.architectures.table import Network
from gpt.checkpoint.find import newest_sound
from gpt.checkpoint.load import load_model
from gpt.common.children import PROGRAM, run_child
from gpt.common.flags import having
from gpt.common.names import TRAINS_NEXT
from gpt.common.words import percent, printable, shell_line
from gpt.machine.device import Machine
from gpt.machine.runtime import Runtime
from gpt.ops.loss import TeacherOutput
from gpt.planning.inputs import Inputs, choose_teacher
from gpt.planning.recipe import choose_config
from gpt.planning.relations import of_another_recipe
from gpt.planning.sizing import choose_sizing
from model import Options

FOLDER = "first_model"  # in the output folder
LEAST_SPARE = 0.25  # of the minutes, that one model would leave
FIRST_PART = 0.3  # of the minutes
NOISE = 0.1  # fraction of the input ids


class Teacher:
    """A finished model that predicts for a student; the given model's weights become fixed."""

    def __init__(self, model: Network):
        self._model = model.eval().requires_grad_(False)
        model.round_weights()
        self._trunk = model.trunk

    def compile(self) -> None:
        """Makes the next call compile the forward pass, for the shape of a micro-batch."""
        self._trunk = torch.compile(self._model.trunk, dynamic=False)

    def run_eagerly(self) -> None:
        """Undoes compile."""
        self._trunk = self._model.trunk

    @torch.no_grad()
    def __call__(self, inputs_BT: torch.Tensor) -> TeacherOutput:
        """The final hidden states, [B, T, C], and the padded output matrix, [P, C], for a student's loss."""
        return self._trunk(inputs_BT), self._model.head_weight


def load_teacher(path: str | None, options: Options, machine: Machine) -> Teacher | None:
    """Loads the model of a checkpoint as a teacher, with the options of its student; None for path None.

    Raises UserError (exit 4) if it cannot be opened.
    """
    if path is None:
        return None
    return Teacher(load_model(Path(path), machine.device, options, f"--teacher {printable(path)}"))


# ---------------------------------------------------------------- two models in the minutes of one


def after_first_model(inputs: Inputs, runtime: Runtime, argv: Sequence[str]) -> Inputs:
    """Trains a first model by the same command, where that pays, and returns the inputs of the second one.

    argv are the command's flags. A new run of the default recipe without a GPU has two models if one would leave
    LEAST_SPARE of its minutes; a dry run only says so. Raises SystemExit if the first one's training ends with
    another exit code than 0, or at a signal: then it goes on where the same command resumes.
    """
    args, sizing, out = inputs.args, inputs.sizing, runtime.out
    is_default = not (inputs.resumed or args.teacher or of_another_recipe(args.config.given))
    is_alone = not (args.overfit or args.mirror_to or runtime.processes.world_size > 1 or TRAINS_NEXT in os.environ)
    if not (is_default and is_alone and sizing and sizing.spare >= LEAST_SPARE):
        return inputs
    began = time.monotonic()
    minutes = FIRST_PART * args.max_minutes
    folder = Path(args.output_dir) / FOLDER
    out.say(f"models      two: one alone would learn the text by heart, and leave {percent(sizing.spare)} of the "
            f"minutes.\n            The first has {minutes:.3g} min, and {printable(folder)}")
    if args.dry_run:
        return inputs

    start = ["--overwrite"] if args.overwrite else ["--resume_from", "auto"] if folder.exists() else []
    command = [str(PROGRAM / "train.py"), *argv, "--output_dir", str(folder), "--max_minutes", str(minutes), *start]
    answer = run_child([sys.executable, *command], runtime.signals, shows=True,
                       env={TRAINS_NEXT: shell_line(["train.py", *argv])})
    if answer.returncode:
        raise SystemExit(answer.returncode)
    first = newest_sound(folder, out.warn)
    assert first
    args = having(args, teacher=str(first.folder))
    state = first.stored.state
    if state.best_val_loss is not None and state.best_step < state.step:
        args = having(args, teacher=None, input_noise=NOISE)
        out.say(f"noise       on {NOISE:.0%} of the inputs: the first model's validation loss rose in the end")

    corpus = inputs.corpus
    minutes_left = args.max_minutes - (time.monotonic() - began) / 60
    sizing = choose_sizing(args, corpus, args.use_gpu, minutes_left, args.use_amp)
    config = choose_config(args, corpus.vocab_size, corpus.train.length, sizing)
    if args.teacher:
        args = having(args, teacher=choose_teacher(args.teacher, config, corpus.tokenizer_path, out))
    return replace(inputs, args=args, sizing=sizing, config=config)
