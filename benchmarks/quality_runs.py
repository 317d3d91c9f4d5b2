"""The runs of the quality ladder: training by a recipe with a seed, from where it stands, and the time of a step.

Each run is a train.py of its own, in a folder of its own below --quality_dir. A run that is complete there is not
repeated, one that was interrupted is resumed, one that another command works on is left to it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.answers import Material
from benchmarks.ladder import GPU_LOG_INTERVAL, SEED, Shape, as_flags
from benchmarks.losses import Learned, ValidationCurve, median_of_turns
from benchmarks.processes import ROOT, Children, Ended
from benchmarks.recipes import NamedRecipe, Scale
from common.config import read_toml
from common.errors import Exit, UserError
from common.files import read_text, write_whole
from common.locks import try_lock
from common.progress import Progress
from common.words import duration, printable, several
from watching.history import read_rows, read_run

VALIDATIONS = 20  # of a run: tokens to a loss are read between two of them
EVAL_TOKENS = 2**18  # of a validation, or all there are
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022
STEADY = 1.1  # times the shortest time of a step may be the longest of other turns
GRACE_SECONDS = 60.0  # in which a run that is asked to stop saves
TUNING, REPORTING = "tuning", "reporting"  # the first half of the validation tokens and the second one
LADDER, RUN, TIMING = "ladder.json", "recipe.json", "timing.json"
DONE, BUSY, FAILED = "done", "under way elsewhere", "failed"


@dataclass(frozen=True)
class Contest:
    """What the recipes are compared at: the model, the tokens, the steps, and where runs and data lie.

    half is the part of the validation tokens that is measured; flags are those of train.py for all runs.
    """

    shape: Shape
    material: Material
    data_dir: str
    folder: Path
    half: str
    steps: int
    flags: tuple[str, ...]

    @property
    def scale(self) -> Scale:
        material = self.material
        return Scale(material.n_layer, material.n_embd, self.shape.seq_length, material.num_block_weights,
                    self.shape.tokens_per_step, self.steps)

    @property
    def tokens(self) -> int:
        return self.steps * self.shape.tokens_per_step

    @property
    def data(self) -> Path:
        """The folder of the half of the validation tokens."""
        return self.folder / self.half

    def identity(self) -> dict[str, Any]:
        """What all runs in one folder share."""
        return {**asdict(self.shape), "steps": self.steps, "validation": self.half,
                "val_tokens": self.material.val_tokens, "train_sha256": self.material.train_sha256,
                "train_flags": list(self.flags)}

    def recipe_flags(self, recipe: NamedRecipe) -> list[str]:
        return list(as_flags(recipe.flags(self.scale)))

    def train_flags(self, recipe: NamedRecipe, seed: int, output_dir: Path) -> list[str]:
        """The whole command line of train.py for a run, those of the recipe last."""
        shape, data_dir = self.shape, Path(self.data_dir)
        return [*as_flags({
            "bin_file": self.data_dir, "val_bin_file": str(self.data / "val.bin"),
            "metadata_file": str(self.data / "metadata.json"), "tokenizer_file": _if_there(data_dir / "tokenizer.json"),
            "output_dir": str(output_dir), "model_size": shape.model_size, "seq_length": shape.seq_length,
            "batch_size": shape.batch_size, "max_steps": self.steps, "seed": seed, "eval_tokens": EVAL_TOKENS,
            "eval_interval": self.steps // VALIDATIONS, "sample_interval": 0, "keep_checkpoints": 1,
        }), *self.flags, *self.recipe_flags(recipe)]


def _if_there(path: Path) -> str | None:
    return str(path) if path.is_file() else None


def steps_of(tokens: int | None, num_parameters: int, tokens_per_step: int) -> int:
    """The steps of a run, a multiple of VALIDATIONS: those of --tokens, or 20 tokens a parameter."""
    wanted = tokens or TOKENS_PER_PARAMETER * num_parameters
    return VALIDATIONS * max(1, round(wanted / tokens_per_step / VALIDATIONS))


def check_folder(contest: Contest) -> None:
    """Writes what all runs of the folder share, and raises UserError (exit 2) if it holds runs of something else."""
    path, identity = contest.folder / LADDER, contest.identity()
    there = _read_json(path)
    if there is None:
        contest.folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(identity, indent=1) + "\n")
    elif there != identity:
        name = next(name for name in identity if there.get(name) != identity[name])
        raise UserError(Exit.FLAGS, f"--quality_dir {printable(str(contest.folder))} holds runs of another ladder: of "
                                    f"{name} {printable(str(there.get(name)))[:60]}, not "
                                    f"{printable(str(identity[name]))[:60]}. Give another folder.")


def _read_json(path: Path) -> Any:
    """The content of a file of ours; None if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return json.loads(read_text(path))
    return None


# ---------------------------------------------------------------- the runs


@dataclass(frozen=True)
class Run:
    """One run of a recipe: what it has come to. decided holds the defaults that train.py chose, by flag."""

    recipe: str
    seed: int
    status: str
    reason: str = ""
    curve: ValidationCurve | None = None
    decided: Mapping[str, Any] = field(default_factory=dict)


def train_all(contest: Contest, recipes: Sequence[NamedRecipe], num_seeds: int, children: Children, out: Progress,
              ) -> list[Run]:
    """Trains by every recipe with every seed, seed after seed, and returns what is there now.

    Raises Stopped after a signal, and UserError (exit 3) for tokens that no run can train on.
    """
    pairs = [(recipe, SEED + number) for number in range(num_seeds) for recipe in recipes]
    runs = [train_one(contest, recipe, seed, children, out, f"{number} of {len(pairs)}")
            for number, (recipe, seed) in enumerate(pairs, 1)]
    # Meanwhile another command may have ended those that it worked on.
    return [found_run(contest, recipe, run.seed) or run for run, (recipe, _) in zip(runs, pairs, strict=True)]


def train_one(contest: Contest, recipe: NamedRecipe, seed: int, children: Children, out: Progress, which: str) -> Run:
    """One run from where it stands to its end, with a line about it."""
    folder = folder_of(contest, recipe, seed)
    name = f"{recipe.name}, seed {seed}"
    check_run(contest, recipe, folder)
    if run := found_run(contest, recipe, seed):
        out.say(f"{name}: {run.curve.final:.4f}, complete before" if run.curve else name)
        return run

    folder.mkdir(exist_ok=True)
    write_whole(folder / RUN, json.dumps({"recipe": recipe.name, "flags": contest.recipe_flags(recipe)}) + "\n")
    words = [str(ROOT / "train.py"), *contest.train_flags(recipe, seed, folder), "--resume_from", "auto"]
    watch = RunWatch(folder / "metrics.jsonl", f"run {which}, {name}", contest.steps, out)
    with out.phase(f"run {which}, {name}"):
        ended = children.run(words, None, GRACE_SECONDS, watch.look)
    run = found_run(contest, recipe, seed) or Run(recipe.name, seed, *_why_not(ended))
    if run.curve is None:
        out.say(f"{name}: {run.status}{f': {run.reason}' if run.reason else ''}")
    else:
        out.say(f"{name}: {run.curve.final:.4f} after {contest.tokens:,} tokens, {duration(watch.seconds)}")
    return run


def folder_of(contest: Contest, recipe: NamedRecipe, seed: int) -> Path:
    return contest.folder / f"{recipe.name}-{seed}"


def check_run(contest: Contest, recipe: NamedRecipe, folder: Path) -> None:
    """Raises UserError (exit 2) if the folder holds a run of other flags."""
    there, flags = _read_json(folder / RUN), contest.recipe_flags(recipe)
    if isinstance(there, dict) and there.get("flags") != flags:
        raise UserError(Exit.FLAGS, f"{printable(str(folder))} holds a run with other flags than {recipe.name} has "
                                    f"now: {printable(shlex.join(map(str, there.get('flags', ()))))[:160]}. Delete it, "
                                    "or give another --quality_dir.")


def found_run(contest: Contest, recipe: NamedRecipe, seed: int) -> Run | None:
    """A run that is complete: validated after its last step. None for any other."""
    folder = folder_of(contest, recipe, seed)
    try:
        curve = ValidationCurve.of(read_run(str(folder)).val_loss)
    except UserError:  # there is none, or it has not logged anything yet
        return None
    if not curve.steps or curve.steps[-1] < contest.steps:
        return None
    decided: dict[str, Any] = {}
    with contextlib.suppress(UserError):
        decided = read_toml(folder / "config.toml", "").decided
    return Run(recipe.name, seed, DONE, curve=curve, decided=decided)


def _why_not(ended: Ended) -> tuple[str, str]:
    """The status of a run that is not complete, and the reason."""
    if ended.code == Exit.BUSY:
        return BUSY, ""
    if ended.code == Exit.DATA:
        raise UserError(Exit.DATA, ended.problem)
    return FAILED, ended.problem or "it ended before its last step"


class RunWatch:
    """Looks at what a run logs, and tells the heartbeat how far it is."""

    def __init__(self, path: Path, name: str, steps: int, out: Progress):
        self._path, self._name, self._steps, self._out = path, name, steps, out
        self._seen = 0
        self._read_at = 0.0

    def look(self) -> None:
        """Reads the file if it has grown."""
        with contextlib.suppress(OSError, UserError):
            status = self._path.stat()
            if status.st_mtime > self._read_at:
                self._read_at = status.st_mtime
                last = read_rows(self._path)[-1]
                self._out.now(f"{self._name}, step {last['step']:,.0f} of {self._steps:,}")

    @property
    def seconds(self) -> float:
        """Of training alone, by what was logged."""
        with contextlib.suppress(UserError):
            return sum(read_run(str(self._path)).seconds.values[-1:])
        return 0.0


# ---------------------------------------------------------------- the time of a step


def time_steps(contest: Contest, recipes: Sequence[NamedRecipe], turns: int, steps: tuple[int, int], children: Children,
               out: Progress) -> dict[str, list[float]]:
    """Seconds of a step of each recipe, the median of each turn; steps are those of the warm-up and those timed.

    In a turn all recipes are run one after the other, so that a machine whose speed changes does so for all of them.
    Turns that are there already are not repeated. Raises Stopped after a signal.
    """
    path = contest.folder / TIMING
    stored = _read_json(path) or {}
    about = {recipe.name: {"machine": contest.material.machine, "flags": contest.recipe_flags(recipe)}
             for recipe in recipes}
    known = {name: list(stored[name]["turns"]) if name in stored and about[name].items() <= stored[name].items()
             else [] for name in about}
    while (turn := min(map(len, known.values()))) < turns:
        for recipe in recipes:
            if len(known[recipe.name]) == turn:
                with out.phase(f"timing turn {turn + 1} of {turns}, {recipe.name}"):
                    known[recipe.name].append(time_one(contest, recipe, steps, children))
        found = {name: {**about[name], "turns": known[name]} for name in known}
        write_whole(path, json.dumps({**stored, **found}, indent=1) + "\n")
    return known


def time_one(contest: Contest, recipe: NamedRecipe, steps: tuple[int, int], children: Children) -> float:
    """The median seconds of a recipe's steps. Raises UserError (exit 5) if train.py fails."""
    warmup, timed = steps
    folder = children.folder / f"timing-{recipe.name}"
    has_warmup = "warmup_steps" in recipe.flags(contest.scale)  # which must be shorter than this run
    words = [str(ROOT / "train.py"), *contest.train_flags(recipe, SEED, folder), *as_flags({
        "max_steps": warmup + timed, "warmup_steps": 1 if has_warmup else None, "eval_interval": 10**9,
        "eval_tokens": 1, "checkpoint_every_minutes": 0,
        "log_interval": GPU_LOG_INTERVAL if contest.material.on_gpu else 1})]
    try:
        ended = children.run(words, None)
        if ended.code:
            raise UserError(Exit.MACHINE, f"timing {recipe.name} failed: {ended.problem}")
        rows = [row for row in read_rows(folder / "metrics.jsonl") if "loss" in row]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    # A line's seconds are the mean since the line before, which must not lie within the warm-up.
    found = [row["seconds"] for before, row in itertools.pairwise(rows) if before["step"] >= warmup]
    if not found:
        raise UserError(Exit.MACHINE, f"timing {recipe.name}: no step was logged after the warm-up. Give more --steps.")
    return statistics.median(found)


def is_busy(folder: Path) -> bool:
    """True while train.py works on any run in the folder: it holds the lock of its output folder."""
    for path in folder.glob("*/.lock"):
        with contextlib.suppress(OSError), path.open("a") as file:  # or a file system without locks
            if not try_lock(file.fileno()):
                return True
    return False


def seconds_known(contest: Contest, recipes: Sequence[NamedRecipe]) -> dict[str, list[float]]:
    """The turns that were timed before, by recipe."""
    stored = _read_json(contest.folder / TIMING) or {}
    return {recipe.name: stored[recipe.name]["turns"] for recipe in recipes if recipe.name in stored}


def learned_from(contest: Contest, recipes: Sequence[NamedRecipe], runs: Sequence[Run],
                 turns: Mapping[str, Sequence[float]]) -> list[Learned]:
    """What each recipe with a complete run has come to, in the order of the recipes."""
    found = []
    for recipe in recipes:
        curves = {run.seed: run.curve for run in runs if run.recipe == recipe.name and run.curve is not None}
        if curves:
            found.append(Learned(recipe.name, curves, contest.steps, median_of_turns(turns.get(recipe.name, ()))))
    return found


def differing_defaults(runs: Sequence[Run]) -> list[str]:
    """A sentence for each recipe whose seeds were trained with other defaults: train.py changed between them."""
    lines = []
    for name in dict.fromkeys(run.recipe for run in runs):
        decided = [run.decided for run in runs if run.recipe == name and run.decided]
        flags = {flag for one in decided for flag in one if one[flag] != decided[0].get(flag)}
        if flags:
            lines.append(f"{name}: its seeds were trained with different defaults of {', '.join(sorted(flags))}. "
                         f"Delete its runs and repeat them.")
    return lines


def unsteady_times(contest: Contest, turns: Mapping[str, Sequence[float]]) -> str:
    """A sentence about the recipe whose step took the most different times in different turns; empty if all agree."""
    ratios = {name: max(found) / min(found) for name, found in turns.items() if found}
    worst = max(ratios, key=ratios.__getitem__, default="")
    if not worst or ratios[worst] <= STEADY:
        return ""
    least, most = min(turns[worst]), max(turns[worst])
    return (f"a step of {worst} took {1e3 * least:,.1f} ms in one turn and {1e3 * most:,.1f} ms in another: other work "
            f"was under way. Delete {printable(str(contest.folder / TIMING))} and repeat this on a quiet machine.")


def what_is_missing(runs: Sequence[Run]) -> str:
    """A sentence about runs that are not there yet; empty if all are."""
    busy = sum(run.status == BUSY for run in runs)
    failed = sum(run.status == FAILED for run in runs)
    parts = [f"{several(busy, 'run')} under way in another command"] * bool(busy)
    parts += [f"{several(failed, 'run')} failed"] * bool(failed)
    complete = f"{len(runs) - busy - failed} of {several(len(runs), 'run')} are complete"
    return f"{complete}; {', '.join(parts)}" if parts else ""
