"""A run's own teacher: a model that is trained first, where --max_minutes leaves the text minutes to spare.

After some passes one model only learns a small text by heart. A student of a finished model bears more of them, and
ends lower than the same minutes of one model (LOG.md, 2026-11-27, A teacher within the minutes).
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpt.common.children import PROGRAM, run_child
from gpt.common.flags import having
from gpt.common.names import TRAINS_NEXT
from gpt.common.words import percent, printable, shell_line
from gpt.machine.runtime import Runtime
from gpt.planning.inputs import Inputs, choose_teacher
from gpt.planning.recipe import choose_config
from gpt.planning.relations import of_another_recipe
from gpt.planning.sizing import choose_sizing

FOLDER = "own_teacher"  # in the output folder
LEAST_SPARE = 0.25  # of the minutes, that one model would leave
TEACHERS_PART = 0.3  # of the minutes


def with_own_teacher(inputs: Inputs, runtime: Runtime, argv: Sequence[str]) -> Inputs:
    """Trains a teacher by the same command, where that pays, and returns the inputs of its student.

    argv are the command's flags. A new run of the default recipe without a GPU has a teacher if one model would
    leave LEAST_SPARE of its minutes; a dry run only says so. Raises SystemExit if the teacher's training ends with
    another exit code than 0, or at a signal: then it goes on where the same command resumes.
    """
    args, sizing, out = inputs.args, inputs.sizing, runtime.out
    is_default = not (inputs.resumed or args.teacher or of_another_recipe(args.config.given))
    is_alone = not (args.overfit or args.mirror_to or runtime.processes.world_size > 1 or TRAINS_NEXT in os.environ)
    if not (is_default and is_alone and sizing and sizing.spare >= LEAST_SPARE):
        return inputs
    began = time.monotonic()
    minutes = TEACHERS_PART * args.max_minutes
    folder = Path(args.output_dir) / FOLDER
    out.say(f"teacher     one model would learn the text by heart, and leave {percent(sizing.spare)} of the minutes:\n"
            f"            first {minutes:.3g} min for a model in {printable(folder)}, which then teaches another")
    if args.dry_run:
        return inputs

    start = ["--overwrite"] if args.overwrite else ["--resume_from", "auto"] if folder.exists() else []
    command = [str(PROGRAM / "train.py"), *argv, "--output_dir", str(folder), "--max_minutes", str(minutes), *start]
    answer = run_child([sys.executable, *command], runtime.signals, shows=True,
                       env={TRAINS_NEXT: shell_line(["train.py", *argv])})
    if answer.returncode:
        raise SystemExit(answer.returncode)
    args = having(args, teacher=str(folder))
    corpus = inputs.corpus
    minutes_left = args.max_minutes - (time.monotonic() - began) / 60
    sizing = choose_sizing(args, corpus, args.use_gpu, minutes_left, args.use_amp)
    config = choose_config(args, corpus.vocab_size, corpus.train.length, sizing)
    args = having(args, teacher=choose_teacher(str(folder), config, corpus.tokenizer_path, out))
    return replace(inputs, args=args, sizing=sizing, config=config)
