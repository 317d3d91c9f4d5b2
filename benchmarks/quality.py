"""The quality ladder: the same model on the same tokens by recipe after recipe, and what each learns from them.

Each run is a train.py of its own, in a folder of its own below --quality_dir: what is complete there is not repeated,
what was interrupted is resumed, and what another command works on is left to it.
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.ladder import SEED, Bench, as_flags, problem_of
from common.children import PROGRAM
from common.errors import Exit, UserError
from common.files import write_whole
from common.flags import ValueKind
from common.words import count, duration, printable, shell_line
from watching.history import Curve, numbers_of, read_lines, read_run

VALIDATIONS = 20  # of a run: tokens to a loss are read between two of them
EVAL_TOKENS = 2**18  # of a validation, or all there are
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022
GRACE_SECONDS = 60.0  # in which a run that is asked to stop saves
ROW = "{:<14}{:>6}{:>9}{:>9}{:>9}{:>10}{:>9}{:>10}"  # 76 columns

Recipe = Callable[[int], list[str]]  # the flags of train.py for so many steps


# ---------------------------------------------------------------- recipes


def recipe_of_nanogpt(steps: int) -> list[str]:
    """The defaults of nanoGPT's train.py (3adf61e). Its 2,000 steps of warm-up become 2% of a run below 100,000."""
    return as_flags({
        "arch": "gpt2", "optimizer": "adamw", "lr_schedule": "cosine", "learning_rate": 6e-4, "min_lr": 6e-5,
        "warmup_steps": max(1, min(2000, steps // 50)), "embedding_learning_rate": 6e-4, "beta1": 0.9, "beta2": 0.95,
        "weight_decay": 0.1, "grad_clip": 1.0, "init_std": 0.02})


RECIPES: dict[str, Recipe] = {
    "nanogpt": recipe_of_nanogpt,
    "ours": lambda _: ["--arch", "gpt2", "--optimizer", "adamw"],  # with today's defaults, like the next three
    "muon": lambda _: ["--arch", "gpt2", "--optimizer", "muon"],
    "modern": lambda _: ["--arch", "qwen3", "--optimizer", "adamw"],
    "modern-muon": lambda _: ["--arch", "qwen3", "--optimizer", "muon"],
}


def recipes() -> ValueKind:
    """'ours; hot: ours --learning_rate 0.01' as two recipes by name; of a flag given twice the last one counts."""

    def parse(text: str) -> dict[str, Recipe]:
        found: dict[str, Recipe] = {}
        for entry in text.split(";"):
            name, colon, rest = (part.strip() for part in entry.partition(":"))
            known = {**RECIPES, **found}
            below, *words = shlex.split(rest) if colon else [name]
            if below not in known or (colon and (name in known or not name.replace("-", "").isalnum())):
                raise ValueError(text)
            found[name] = partial(lambda below, words, steps: [*below(steps), *words], known[below], words)
        return found

    return ValueKind(parse, f"some of {', '.join(RECIPES)} with semicolons between, or new ones: a name, a colon, the "
                            "name of another, and flags of train.py, such as 'warm: ours --warmup_steps 500'",
                     "'NAME; NAME: NAME FLAGS'")


# ---------------------------------------------------------------- the runs


@dataclass(frozen=True)
class Learned:
    """What a recipe has come to: the validation of each seed whose run is complete, and the seconds of a step."""

    curves: dict[int, Curve]
    seconds_per_step: float

    @property
    def mean(self) -> Curve:
        curves = list(self.curves.values())  # as far as the shortest goes
        losses = [statistics.fmean(values) for values in zip(*(curve.ys for curve in curves), strict=False)]
        return Curve(curves[0].xs[:len(losses)], losses)

    def steps_to(self, loss: float) -> float | None:
        """The first step at which the mean loss is this one or lower, on straight lines; None if it never is."""
        steps, losses = self.mean.xs, self.mean.ys
        index = next((index for index, found in enumerate(losses) if found <= loss), None)
        if not index:
            return None if index is None else steps[0]
        share = (losses[index - 1] - loss) / (losses[index - 1] - losses[index])
        return steps[index - 1] + share * (steps[index] - steps[index - 1])


def compare_recipes(bench: Bench, chosen: Mapping[str, Recipe], num_seeds: int, steps: int, folder: Path,
                    ) -> bool:
    """Trains by every recipe with every seed, then prints what each learned; False if a run failed.
    """
    bench.out.say(f"quality   {bench.shape.model_size}, {count(steps * bench.shape.tokens_per_step)} tokens in "
                  f"{steps:,} steps, {num_seeds} seeds of each recipe, in {printable(str(folder))}")
    learned: dict[str, Learned] = {}
    problems = []
    for seed in range(SEED, SEED + num_seeds):
        for name, recipe in chosen.items():
            place = folder / f"{name}-{seed}"
            flags = [*run_flags(bench, steps, seed), *recipe(steps)]
            if problem := train_one(bench, place, flags, steps):
                problems.append(problem)
                bench.out.say(f"{name}, seed {seed}: {problem}")
                continue
            run = read_run(str(place))
            before = learned[name].curves if name in learned else {}
            # Recipes take turns, so a machine whose speed changes does so for all of them.
            learned[name] = Learned({**before, seed: run["val_loss"]}, statistics.median(
                [row["seconds"] for of in (*before, seed)
                 for row in numbers_of(read_lines(folder / f"{name}-{of}" / "metrics.jsonl")) if "seconds" in row]))
            bench.out.say(f"{name}, seed {seed}: {run['val_loss'].ys[-1]:.4f}, {duration(run['seconds'].ys[-1])}")
    if learned:
        report(bench, learned, steps)
        places = [(f"{folder}/{name}-{seed}", name) for name, one in learned.items() for seed in one.curves]
        bench.out.say("to draw them: " + shell_line([
            "python", "plot.py", *(place for place, _ in places), "--names", ",".join(name for _, name in places),
            "--x", "tokens", "--output", "quality.png"]))
    bench.found["problems"] = problems
    return not any(problem != BUSY for problem in problems)


BUSY = "under way in another command"


def run_flags(bench: Bench, steps: int, seed: int) -> list[str]:
    """The flags of train.py that all recipes have in common."""
    shape = bench.shape
    return as_flags({
        "data_dir": bench.data_dir, "model_size": shape.model_size, "seq_length": shape.seq_length,
        "batch_size": shape.batch_size, "use_gpu": bench.machine.on_gpu,
        "max_steps": steps, "seed": seed, "eval_tokens": EVAL_TOKENS, "eval_interval": steps // VALIDATIONS,
        "sample_interval": 0, "keep_checkpoints": 1})


def train_one(bench: Bench, folder: Path, flags: list[str], steps: int) -> str:
    """One run from where it stands to its end; returns what is wrong with it, '' if it is complete.

    Raises UserError: exit 2 if the folder holds a run of other flags, exit 3 for tokens that no run can train on.
    """
    path = folder / "recipe.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(flags))
    elif json.loads(path.read_text(encoding="utf-8")) != flags:
        raise UserError(Exit.FLAGS, f"{printable(str(folder))} holds a run with other flags. Delete it, or give "
                                    "another --quality_dir.")
    if is_run_complete(folder, steps):
        return ""
    with bench.out.phase(folder.name):
        answer = bench.children.run([str(PROGRAM / "train.py"), *flags, "--output_dir", str(folder), "--resume_from",
                                    "auto"], grace_seconds=GRACE_SECONDS)
    if answer.code == Exit.DATA:
        raise UserError(Exit.DATA, problem_of(answer))
    if answer.code == Exit.BUSY:
        return BUSY
    if is_run_complete(folder, steps):
        return ""
    return problem_of(answer) or "no validation after its last step: run pretokenize.py with --val_fraction 0.01"


def is_run_complete(folder: Path, steps: int) -> bool:
    """True for a run that was validated after its last step."""
    return (folder / "metrics.jsonl").is_file() and read_run(str(folder))["val_loss"].last_x >= steps


def report(bench: Bench, learned: Mapping[str, Learned], steps: int) -> None:
    """A line for each recipe: its loss, and the tokens and the time in which it reaches the loss of the first one."""
    first = next(iter(learned.values()))
    until = min(one.seconds_per_step for one in learned.values()) * steps
    bench.out.say(ROW.format("", "seeds", "nats", "spread", "ms/step", "tokens to", "time to", "at equal"))
    for name, one in learned.items():
        finals = [curve.ys[-1] for curve in one.curves.values()]
        reached = one.steps_to(first.mean.ys[-1])
        tokens = None if reached is None else reached / steps
        speed = one.seconds_per_step / first.seconds_per_step
        equal = float(np.interp(until / one.seconds_per_step, one.mean.xs, one.mean.ys))
        bench.out.say(ROW.format(
            name[:13], len(finals), f"{statistics.fmean(finals):.4f}",
            f"{max(finals) - min(finals):.4f}" if len(finals) > 1 else "-", f"{1e3 * one.seconds_per_step:,.1f}",
            "never" if tokens is None else f"{tokens:.1%}", "never" if tokens is None else f"{tokens * speed:.1%}",
            f"{equal:.4f}"))
        bench.found.setdefault("recipes", {})[name] = {
            "steps": one.mean.xs, "val_losses": {seed: curve.ys for seed, curve in one.curves.items()},
            "seconds_per_step": one.seconds_per_step, "share_of_tokens": tokens, "loss_in_equal_time": equal}
    bench.found["shape"] = asdict(bench.shape)
    bench.out.say(f"spread: between seeds; tokens, time to: the final loss of {next(iter(learned))}, as a share of its "
                  f"own; at equal: the loss after {duration(until)}, in which the quickest one ends")
