"""Trains a first model in a part of --max_minutes; its predictions teach the second one.

After some passes one model only learns a small text by heart, and the rest of --max_minutes would be
idle. If the idle minutes are enough for a first model, the second one may make up to twice the passes
(LOG.md, 2026-11-27, Two models in the minutes of one). Where one model would have many parameters
for each token, two learn more in the same time, also without idle minutes (LOG.md, 2026-11-29, One
large model or two smaller ones).
"""

import contextlib
import math
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from gpt.checkpoint import find, load
from gpt.checkpoint.folder import delete_checkpoints
from gpt.checkpoint.history import read_run
from gpt.checkpoint.steps import steps_in
from gpt.checkpoint.stored import FoundCheckpoint
from gpt.common.children import PROGRAM_FOLDER, run_child
from gpt.common.config import Layer, write_toml
from gpt.common.errors import UserError
from gpt.common.flags import with_values
from gpt.common.names import FIRST_MODEL, RUN_CONFIG, TRAINS_NEXT, TWO_MODELS_TITLE
from gpt.common.progress import Progress
from gpt.common.ranks import trains_first_of_two
from gpt.common.words import percent, printable, shell_line
from gpt.machine.runtime import Runtime
from gpt.planning.inputs import Inputs, inputs_for
from gpt.planning.relations import flags_of_scope, of_another_recipe
from gpt.tokens.mixture import mixture_in_words

LEAST_MINUTES = 2.0  # of a run with two models: each builds and compiles
# Fractions of --max_minutes that the first model gets: usually, and where one model alone would be large (is_large).
FIRST_PART, FIRST_PART_OF_LARGE = 0.15, 0.25
# In a short run it gets FIRST_MINUTES instead, but never more than MOST_FIRST_PART of all minutes.
FIRST_MINUTES, MOST_FIRST_PART = 2.0, 0.3
NOISE = 0.1  # fraction of the input ids
NOISE_GAP = 1.1  # nats between the losses of a first model, above which noise helps the second one too


def after_first_model(inputs: Inputs, runtime: Runtime, argv: Sequence[str]) -> Inputs:
    """Trains a first model by the same command, where that pays; returns the inputs of the second one.

    Any other run keeps its inputs, and a dry run only says that there are two. argv are the command's flags.
    Earlier starts of the first model count for --max_minutes: runtime.began moves back by their minutes. Raises
    UserError (exit 3) if the first one learned other tokens. Raises SystemExit if its training ends with
    another exit code than 0, or at a signal: then it goes on where the same command resumes.
    """
    args, out = inputs.args, runtime.out
    folder = Path(args.output_dir) / FIRST_MODEL
    has_begun = bool(args.resume_from and steps_in(folder))
    total = args.max_minutes or 0.0
    part = FIRST_PART_OF_LARGE if inputs.sizing and inputs.sizing.is_large else FIRST_PART
    minutes = max(part * total, min(MOST_FIRST_PART * total, FIRST_MINUTES))
    why = _why_two(inputs, runtime, minutes, has_begun)
    if not why:
        if has_begun and not inputs.resumed:
            _go_on_without(inputs, runtime, folder)
        return inputs
    found = find.newest_sound(folder, out.warn) if has_begun else None
    if found:
        minutes = found.stored.settings.get("max_minutes", minutes)  # it keeps its schedule
    out.say(f"models      two: {why}.\n"
            f"            The first trains for {minutes:.3g} min in {printable(folder)}, to help the second")
    if args.dry_run:
        return inputs

    first = _train_first(inputs, runtime, argv, folder, minutes)
    runtime.signals.at_once = ("before the second model's first step; the first one is kept: to go on, add "
                               "--resume_from auto")
    now = time.monotonic()
    runtime.began = min(runtime.began, now - first.stored.state.seconds)
    minutes_left = max(1.0, total - (now - runtime.began) / 60)
    out.say(f"models      the second one has {minutes_left:.3g} min")
    return inputs_for(_flags_of_second(first.folder, args, out), inputs.corpus, minutes_left, out)


def _why_two(inputs: Inputs, runtime: Runtime, minutes: float, has_begun: bool) -> str:
    """Why this run trains two models, the first one for these minutes; '' for one model.

    Two are for a new run without an NVIDIA GPU, of the default recipe and length.
    """
    args, sizing = inputs.args, inputs.sizing
    total = args.max_minutes or 0.0
    is_default = not (inputs.resumed or args.teacher or args.input_noise or args.epochs or args.max_steps
                      or of_another_recipe(args.origin.given))
    is_alone = not (args.overfit or args.mirror_to or runtime.processes.world_size > 1 or trains_first_of_two())
    if not (sizing and is_default and is_alone and total >= LEAST_MINUTES):
        return ""
    if sizing.spare * total >= minutes:
        return f"one alone would learn the text by heart, and leave {percent(sizing.spare)} of the minutes"
    if sizing.is_large and FIRST_PART * total >= FIRST_MINUTES:  # from 13 min 20 s on: shorter ones were not tried
        return "they learn more in this time than one large model"
    return "the first one has begun" if has_begun else ""  # this start measures another speed


def _go_on_without(inputs: Inputs, runtime: Runtime, folder: Path) -> None:
    """Counts the minutes of the first model in a start of the second one; warns where it is not used."""
    args, out = inputs.args, runtime.out
    if args.teacher and find.is_inside(Path(args.teacher), folder):  # by its recorded flags
        found = find.newest_sound(folder, out.warn)
        runtime.began -= found.stored.state.seconds if found else 0.0
    else:
        out.warn(f"the model in {printable(folder)} is not used, as this command has other flags than the one "
                 "that began it: it trains one model, from step 0.")


def _train_first(inputs: Inputs, runtime: Runtime, argv: Sequence[str], folder: Path,
                 minutes: float) -> FoundCheckpoint:
    """Trains or continues the first model in a folder; returns its last checkpoint. Raises like its caller."""
    args, corpus = inputs.args, inputs.corpus
    if args.overwrite:
        delete_checkpoints([*steps_in(Path(args.output_dir)).values()], runtime.out)
    # Until the second model writes its own file, --resume_from goes on with both by this one.
    file = Path(args.output_dir) / RUN_CONFIG
    given = {name: getattr(args, name) for name in sorted(args.origin.given - flags_of_scope("call"))}
    with contextlib.suppress(OSError):
        write_toml(file, Layer("", given, {}), f"{TWO_MODELS_TITLE}, the first of which is in training.", {})
    words = argv if args.resume_from in (None, "auto") else ["--config", str(file), "--resume_from", "auto"]
    command = [str(PROGRAM_FOLDER / "train.py"), *words, f"--output_dir={folder}", "--max_minutes", f"{minutes:.6g}"]
    to_resume = shell_line(["train.py", *(word for word in argv if word != "--overwrite")])
    returncode = run_child([sys.executable, *command], runtime.signals, {TRAINS_NEXT: to_resume})
    if returncode:
        raise SystemExit(returncode)

    first = find.newest_sound(folder, runtime.out.warn)
    assert first
    find.check_same(first, load.read_config(first.folder), corpus.identity, corpus.tokenizer_sha256,
                    args.allow_new_data, mixture_in_words(corpus.components))
    return first


def _flags_of_second(first: Path, args: Namespace, out: Progress) -> Namespace:
    """The flags of the second model: its teacher is the first one's checkpoint, and its inputs may get noise.

    The inputs get noise where the first one's validation loss is NOISE_GAP above its training loss: the first one
    then learned the text by heart (LOG.md, 2026-11-30, A teacher and noise).
    """
    gap = 0.0
    with contextlib.suppress(UserError):  # there is no metrics.jsonl any more
        gap = read_run(str(first.parent)).gap
    if gap > NOISE_GAP:
        out.say(f"noise       on {NOISE:.0%} of the second one's inputs: the first one's validation loss is {gap:.1f} "
                "nats above its training loss, so it learned the text by heart")
    return with_values(args, teacher=str(first), input_noise=NOISE if gap > NOISE_GAP else 0.0)


def lowest_loss(args: Namespace) -> float:
    """The first model's lowest validation loss in nats, in a run of the second one; else infinity."""
    folder = Path(args.output_dir) / FIRST_MODEL
    with contextlib.suppress(UserError):  # it has no metrics.jsonl any more
        if args.teacher and find.is_inside(Path(args.teacher), folder):
            return min(read_run(str(folder))["val_loss"].ys, default=math.inf)
    return math.inf
