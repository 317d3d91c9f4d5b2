"""The quality ladder: trains the same model on the same tokens by each recipe, and compares their losses.

Each run of train.py has its own folder in --quality_dir. A complete run is not repeated, an interrupted one
resumes.
"""

import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpt.benchmarks.ladder import SEED, Bench, as_flags, problem_of
from gpt.common.children import PROGRAM
from gpt.common.errors import Exit, UserError
from gpt.common.files import write_whole
from gpt.common.flags import ValueKind
from gpt.common.names import RECIPE
from gpt.common.words import printable, several
from gpt.watching.history import Curve, LoggedRun, read_run

VALIDATIONS = 20  # of a run; between two of them the tokens to a loss are interpolated
EVAL_TOKENS = 2**18  # of a validation, at most
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022
GRACE_SECONDS = 60.0  # for a stopped run to save
ROW = "{:<15}{:>6}{:>9}{:>9}{:>9}{:>9}{:>11}{:>9}"  # 77 columns

Recipe = Callable[[int], list[str]]  # from the number of steps to flags of train.py


# ---------------------------------------------------------------- recipes


RECIPES: dict[str, Recipe] = {
    # The defaults of nanoGPT's train.py (3adf61e). Its 2,000 steps of warm-up become 2% of a run below
    # 100,000.
    "nanogpt": lambda steps: as_flags({
        "arch": "gpt2", "optimizer": "adamw", "lr_schedule": "cosine", "learning_rate": 6e-4, "min_lr": 6e-5,
        "warmup_steps": max(1, min(2000, steps // 50)), "embedding_learning_rate": 6e-4, "beta1": 0.9, "beta2": 0.95,
        "weight_decay": 0.1, "grad_clip": 1.0, "init_std": 0.02}),
    "ours": lambda _: ["--arch", "gpt2", "--optimizer", "adamw"],  # today's defaults, like the next three
    "muon": lambda _: ["--arch", "gpt2", "--optimizer", "muon"],
    "modern": lambda _: ["--arch", "qwen3", "--optimizer", "adamw"],
    "modern-muon": lambda _: ["--arch", "qwen3", "--optimizer", "muon"],
    # modern-muon with the settings of a text that is read once.
    "plain": lambda _: ["--arch", "qwen3", "--optimizer", "muon", "--dropout", "0", "--weight_decay", "0.1"],
}


def recipes() -> ValueKind:
    """The kind of flag whose value is a list of recipes: 'ours,muon'."""
    return ValueKind(lambda text: {name: RECIPES[name] for name in text.split(",")},
                     f"some of {', '.join(RECIPES)} with commas between", "NAME,NAME,...")


def whole_steps(tokens: float, tokens_per_step: int) -> int:
    """The number of steps for some tokens, rounded to a multiple of VALIDATIONS."""
    return VALIDATIONS * max(1, round(tokens / tokens_per_step / VALIDATIONS))


# ---------------------------------------------------------------- the runs


def compare_recipes(bench: Bench, chosen: Mapping[str, Recipe], num_seeds: int, lengths: Mapping[str, int],
                    folder: Path) -> bool:
    """Trains by every recipe with every seed and prints their losses; returns False if a run failed.

    lengths maps the part of a run's name after the recipe to its number of steps.
    """
    bench.out.say(f"quality   {bench.shape.model_size}, {several(num_seeds, 'seed')} of each recipe, in "
                  f"{printable(folder)}")
    runs = {}
    problems = bench.figures["problems"] = []
    # Recipes take turns, so a machine whose speed changes does so for all of them.
    for seed in range(SEED, SEED + num_seeds):
        for (recipe, flags), (length, steps) in itertools.product(chosen.items(), lengths.items()):
            name = recipe + length
            place = folder / f"{name}-{seed}"
            problem = train_one(bench, place, [*run_flags(bench, steps, seed), *flags(steps)], steps)
            if problem:
                problems.append(f"{place.name}: {problem}")
            else:
                runs.setdefault(name, []).append(read_run(str(place)))
            bench.out.say(f"{name}, seed {seed}: {problem or format(runs[name][-1]['val_loss'].ys[-1], '.4f')}")
    if runs:
        report(bench, runs)
    return not problems


def run_flags(bench: Bench, steps: int, seed: int) -> list[str]:
    """The flags of train.py that every recipe shares."""
    return as_flags({**bench.flags, "max_steps": steps, "seed": seed, "eval_tokens": EVAL_TOKENS,
                     "eval_interval": steps // VALIDATIONS, "keep_checkpoints": 1})


def train_one(bench: Bench, folder: Path, flags: list[str], steps: int) -> str:
    """Starts or resumes a run and trains it to its end; returns its problem, '' if it is complete.

    Raises UserError: exit 2 if the folder holds a run with other flags, exit 3 for tokens that no run can
    train on.
    """
    path = folder / RECIPE
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(flags))
    elif json.loads(path.read_bytes()) != flags:
        raise UserError(Exit.FLAGS, f"{printable(folder)} holds a run with other flags. Delete it, or give "
                                    "another --quality_dir.")
    if is_run_complete(folder, steps):
        return ""
    with bench.out.phase(folder.name):
        answer = bench.run([str(PROGRAM / "train.py"), *flags, "--output_dir", str(folder), "--resume_from", "auto"],
                           math.inf, grace_seconds=GRACE_SECONDS)
    if is_run_complete(folder, steps):
        return ""
    return problem_of(answer) or "no validation after its last step: run pretokenize.py with --val_fraction 0.01"


def is_run_complete(folder: Path, steps: int) -> bool:
    """True if a run was validated after its last step."""
    return (folder / "metrics.jsonl").is_file() and read_run(str(folder))["val_loss"].last_x >= steps


# ---------------------------------------------------------------- the table


def steps_to(curve: Curve, loss: float) -> float | None:
    """The first step at which a curve reaches a loss, by linear interpolation; None if it never does."""
    index = next((index for index, y in enumerate(curve.ys) if y <= loss), None)
    if index is None:
        return None
    if index == 0:
        return curve.xs[0]
    fraction = (curve.ys[index - 1] - loss) / (curve.ys[index - 1] - curve.ys[index])
    return curve.xs[index - 1] + fraction * (curve.xs[index] - curve.xs[index - 1])


def report(bench: Bench, runs: Mapping[str, Sequence[LoggedRun]]) -> None:
    """Prints a line for each recipe: its loss, and its tokens and time to the last loss of the first recipe."""
    say = bench.out.say
    say(ROW.format("", "seeds", "nats", "+-", "best", "ms/step", "tokens to", "time to"))
    target, first_speed = math.nan, math.nan
    for name, seeds in runs.items():
        curves = [run["val_loss"] for run in seeds]
        mean = Curve(curves[0].xs, [statistics.fmean(ys) for ys in zip(*(curve.ys for curve in curves), strict=False)])
        finals = [curve.ys[-1] for curve in curves]
        error = statistics.stdev(finals) / math.sqrt(len(finals)) if len(finals) > 1 else None
        speed = statistics.fmean(run["seconds"].ys[-1] / run["seconds"].last_x for run in seeds)
        if math.isnan(target):
            target, first_speed = mean.ys[-1], speed
        reached = steps_to(mean, target)
        tokens = None if reached is None else reached / mean.last_x
        say(ROW.format(
            name[:14], len(seeds), f"{mean.ys[-1]:.4f}", "-" if error is None else f"{error:.4f}",
            f"{min(mean.ys):.4f}", f"{1e3 * speed:,.1f}",
            *("never" if tokens is None else f"{share * tokens:.1%}" for share in (1, speed / first_speed))))
        bench.figures.setdefault("recipes", {})[name] = {
            "steps": mean.xs, "val_losses": [curve.ys for curve in curves], "standard_error": error,
            "seconds_per_step": speed, "share_of_tokens": tokens}
    say(f"+-: standard error over seeds; best: on the way; tokens, time to: the end of {next(iter(runs))}, as a share")
