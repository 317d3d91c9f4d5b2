"""The quality ladder: the same model on the same tokens by recipe after recipe, and what each learns from them.

First come the runs; then, once all of them are complete and the machine is free, the time of a step of every recipe,
in turns; then the report. Several commands may share a folder of runs: each takes the runs that no other works on.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from benchmarks import quality_report
from benchmarks.answers import Material
from benchmarks.ladder import Shape
from benchmarks.processes import Children
from benchmarks.quality_runs import (
    DONE,
    FAILED,
    REPORTING,
    TUNING,
    Contest,
    Run,
    check_folder,
    differing_defaults,
    is_busy,
    learned_from,
    seconds_known,
    steps_of,
    time_steps,
    train_all,
    unsteady_times,
    what_is_missing,
)
from benchmarks.recipes import RECIPES, NamedRecipe
from common.errors import Exit, UserError
from common.outputs import Output
from common.progress import Progress

FAILED_EXIT = 1  # a run failed


def compare_recipes(args: argparse.Namespace, shape: Shape, children: Children, out: Progress,
                    json_file: Output | None, png: Output | None) -> int:
    """The whole ladder: runs, times, report; returns the exit code. Raises Stopped after a signal."""
    recipes = chosen_recipes(args)
    contest = make_contest(args, shape, children, out)
    check_folder(contest)
    for line in quality_report.opening_lines(contest, recipes, args.seeds):
        out.say(line)

    runs = train_all(contest, recipes, args.seeds, children, out)
    turns = measure_seconds(args, contest, recipes, runs, children, out)

    learned = learned_from(contest, recipes, runs, turns)
    for line in quality_report.lines(learned, recipes):
        out.say(line)
    for line in (*differing_defaults(runs), unsteady_times(contest, turns), what_is_missing(runs)):
        if line:
            out.warn(line)
    if json_file is not None:
        json_file.write(quality_report.quality_json(contest, recipes, runs, turns, learned))
    if png is not None and learned:
        png.write(quality_report.quality_picture(learned, contest, png.ending))
    return FAILED_EXIT if any(run.status == FAILED for run in runs) else Exit.DONE


def chosen_recipes(args: argparse.Namespace) -> list[NamedRecipe]:
    """The recipes of --recipes, then those of --own_recipes. Raises UserError (exit 2) for a name that is neither."""
    own: dict[str, NamedRecipe] = args.own_recipes or {}
    known = {**RECIPES, **own}
    names = args.recipes or list(known)
    if unknown := [name for name in names if name not in known]:
        raise UserError(Exit.FLAGS, f"--recipes {unknown[0]}: no such recipe. Give some of {', '.join(known)}.")
    return [known[name] for name in dict.fromkeys([*names, *own])]


def make_contest(args: argparse.Namespace, shape: Shape, children: Children, out: Progress) -> Contest:
    """What all runs share; on the way the tokens are checked, and those of the half that is measured written."""
    half, folder = TUNING if args.tune else REPORTING, Path(args.quality_dir)
    with out.phase("checking the tokens"):
        material = children.ask(Material, "material", data_dir=args.data_dir, folder=str(folder / half), half=half,
                                model_size=shape.model_size, seq_length=shape.seq_length, use_gpu=args.use_gpu)
    flags = shlex.split(args.train_flags or "")
    if args.use_gpu is not None:
        flags.insert(0, "--use_gpu" if args.use_gpu else "--no-use_gpu")
    if args.precision is not None:
        flags[:0] = ["--use_amp", "--amp_dtype", "bf16"] if args.precision == "bf16" else ["--no-use_amp"]
    steps = steps_of(args.tokens, material.num_parameters, shape.tokens_per_step)
    return Contest(shape, material, args.data_dir, folder, half, steps, tuple(flags))


def measure_seconds(args: argparse.Namespace, contest: Contest, recipes: Sequence[NamedRecipe], runs: Sequence[Run],
                    children: Children, out: Progress) -> dict[str, list[float]]:
    """The turns of --timing_turns; while another command trains in the folder only those that were measured before.

    A step that is timed beside other work says little.
    """
    is_ready = all(run.status in (DONE, FAILED) for run in runs) and not is_busy(contest.folder)
    good = [recipe for recipe in recipes if all(run.status == DONE for run in runs if run.recipe == recipe.name)]
    if args.timing_turns and good and not is_ready:
        out.say("steps are not timed now: another command trains in this folder, and the last one will time them")
    if not args.timing_turns or not is_ready or not good:
        return seconds_known(contest, recipes)
    steps, warmup = (50, 20) if contest.material.on_gpu else (12, 4)
    return time_steps(contest, good, args.timing_turns, (args.warmup or warmup, args.steps or steps), children, out)
