"""What the quality ladder shows: the lines before it, its tables of losses, tokens and time, its picture, its JSON."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import plot
from benchmarks.ladder import SEED
from benchmarks.losses import QUARTERS, Learned, equal_seconds
from benchmarks.quality_runs import EVAL_TOKENS, Contest, Run
from benchmarks.recipes import NamedRecipe
from common.words import count, duration, several
from watching.axes import XAxis

NAME_WIDTH, SHARE_WIDTH = 13, 11
COLUMNS_PER_TABLE = 6  # within 80 columns
LOSSES = "{:<13}{:>8}{:>8}{:>8}{:>8}{:>8}{:>9}{:>7}{:>9}"
FEWEST_EVAL_TOKENS = 2**17  # below which a loss is 0.01 nats off by chance
STEEP = 0.1  # of a run, which the picture's loss axis leaves out


def opening_lines(contest: Contest, recipes: Sequence[NamedRecipe], num_seeds: int) -> list[str]:
    """The lines before any run: the machine, the model, the tokens, what is measured, the recipes."""
    shape, material = contest.shape, contest.material
    measured = min(EVAL_TOKENS, material.val_tokens)
    epochs = contest.tokens / material.train_tokens
    again = f"; {epochs:.1f} epochs of the corpus" if epochs > 1 else ""
    few = ": few, 0.01 nats off by chance" if measured < FEWEST_EVAL_TOKENS else ""
    return [
        f"machine     {material.machine}, {material.software}",
        f"model       {shape.model_size}, {count(material.num_parameters)} parameters, {shape.vocab_size:,} ids, "
        f"T {shape.seq_length:,}",
        f"tokens      {count(contest.tokens)}, {contest.tokens / material.num_parameters:.1f} a parameter, in "
        f"{several(contest.steps, 'step')} of {shape.tokens_per_step:,}{again}",
        f"validation  {measured:,} tokens of the {contest.half} half of the validation tokens{few}",
        f"runs        {several(len(recipes), 'recipe')}, {several(num_seeds, 'seed')} of each from {SEED} on, in "
        f"{contest.folder}",
        *(f"recipe      {recipe.name}: {recipe.words}" for recipe in recipes),
    ]


# ---------------------------------------------------------------- the tables


def lines(learned: Sequence[Learned], recipes: Sequence[NamedRecipe]) -> list[str]:
    """The report: losses, then tokens and time to each other's final loss. There are none without a complete run."""
    if not learned:
        return []
    found = ["", *losses_table(learned)]
    if len(learned) > 1:
        found += ["", "tokens to the final loss of the recipe above, as a share of its own",
                  *shares_table(learned, Learned.share_of_tokens)]
    if sum(one.seconds is not None for one in learned) > 1:
        timed = [one for one in learned if one.seconds is not None]
        found += ["", "time to the final loss of the recipe above, as a share of its own",
                  *shares_table(timed, Learned.share_of_seconds)]
    return found


def losses_table(learned: Sequence[Learned]) -> list[str]:
    """Validation losses after each quarter of the tokens, the spread of the seeds, the time, the loss in equal time."""
    until = equal_seconds(learned)
    table = [LOSSES.format("nats, mean", *(f"{share:.0%}" for share in QUARTERS), "spread", "ms/step", "time",
                           "at equal")]
    cheapest = next((one for one in learned if one.seconds == until), None)
    for one in learned:
        ms = "-" if one.seconds_per_step is None else f"{1e3 * one.seconds_per_step:,.1f}"
        ratio = "-" if one.seconds is None or until is None else f"{one.seconds / until:.2f}x"
        equal = one.loss_after(until) if until is not None else None
        table.append(LOSSES.format(
            one.name[:NAME_WIDTH - 1], *(f"{loss:.4f}" for loss in one.quarters),
            f"{one.spread:.4f}" if len(one.curves) > 1 else "-", ms, ratio, "-" if equal is None else f"{equal:.4f}"))
    if cheapest is not None and until is not None:
        table.append(f"at equal: the loss after {duration(until)}, in which {cheapest.name} ends; time is that of the "
                     "steps alone")
    return table


def shares_table(learned: Sequence[Learned], share: Callable[[Learned, Learned], float | None]) -> list[str]:
    """One line for each recipe, one column for each: what the line needs to the column's final loss, as a share."""
    table = []
    for first in range(0, len(learned), COLUMNS_PER_TABLE):
        others = learned[first:first + COLUMNS_PER_TABLE]
        names = "".join(f"{one.name[:SHARE_WIDTH - 1]:>{SHARE_WIDTH}}" for one in others)
        table.append(f"{'':<{NAME_WIDTH}}{names}")
        for one in learned:
            cells = ["-" if other is one else _percent(share(one, other)) for other in others]
            table.append(f"{one.name[:NAME_WIDTH - 1]:<{NAME_WIDTH}}" + "".join(f"{c:>{SHARE_WIDTH}}" for c in cells))
    return table


def _percent(share: float | None) -> str:
    return "never" if share is None else f"{share:.1%}"


# ---------------------------------------------------------------- --json


def quality_json(contest: Contest, recipes: Sequence[NamedRecipe], runs: Sequence[Run], turns: dict[str, list[float]],
            learned: Sequence[Learned]) -> bytes:
    """All figures: every validation of every run, the turns in which steps were timed, and what follows from them."""
    found = {one.name: one for one in learned}
    fields = {
        "argv": sys.argv[1:],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "contest": {**contest.identity(), "tokens_per_run": contest.tokens, **asdict(contest.material)},
        "recipes": {recipe.name: {
            "words": recipe.words, "flags": contest.recipe_flags(recipe),
            "runs": [_run_fields(run) for run in runs if run.recipe == recipe.name],
            **(_figures(found[recipe.name], learned) if recipe.name in found else {}),
        } for recipe in recipes},
        "seconds_per_step_by_turn": turns,
        "equal_seconds": equal_seconds(learned),
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def _run_fields(run: Run) -> dict[str, Any]:
    curve = {"steps": run.curve.steps, "val_losses": run.curve.losses} if run.curve else {"reason": run.reason}
    return {"seed": run.seed, "status": run.status, **curve, "defaults": dict(run.decided)}


def _figures(one: Learned, learned: Sequence[Learned]) -> dict[str, Any]:
    """The means of a recipe, and its shares of every other's tokens and time; the ranges are those of its seeds."""
    until = equal_seconds(learned)
    return {
        "final_loss": one.mean.final,
        "final_losses": {seed: curve.final for seed, curve in one.curves.items()},
        "spread": one.spread,
        "quarters": one.quarters,
        "seconds_per_step": one.seconds_per_step,
        "seconds": one.seconds,
        "loss_in_equal_time": None if until is None else one.loss_after(until),
        "share_of_tokens_to": {other.name: one.share_of_tokens(other) for other in learned},
        "share_of_tokens_to_of_seeds": {other.name: one.range_of_tokens(other) for other in learned},
        "share_of_seconds_to": {other.name: one.share_of_seconds(other) for other in learned},
    }


# ---------------------------------------------------------------- the picture


def quality_picture(learned: Sequence[Learned], contest: Contest, ending: str) -> bytes:
    """Validation loss against tokens and, where steps were timed, against time; shaded between the seeds."""
    matplotlib = importlib.import_module("matplotlib")  # the one package that is not required
    figure_class = importlib.import_module("matplotlib.figure").Figure
    timed = [one for one in learned if one.seconds is not None]
    longest = max((one.seconds or 0.0 for one in timed), default=0.0)
    unit, seconds = next(((unit, seconds) for unit, seconds in (("hours", 3600.0), ("minutes", 60.0))
                          if longest >= 3 * seconds), ("seconds", 1.0))
    by_tokens = {one.name: float(contest.shape.tokens_per_step) for one in learned}
    panels = [(XAxis("tokens", "tokens"), by_tokens)]
    if timed:
        panels.append((XAxis("hours", f"{unit} of training"),
                       {one.name: (one.seconds_per_step or 0.0) / seconds for one in timed}))

    with matplotlib.rc_context(plot.LOOKS):
        figure = figure_class((4.8 * len(panels), 4.2), layout="constrained")
        low, high = _limits(learned)
        for axes, (x_axis, per_step) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for number, one in enumerate(learned):
                if one.name in per_step:
                    _draw(axes, one, per_step[one.name], plot.Style.of(number))
            axes.set(ylim=(low, high), ylabel="validation loss, nats per token")
            plot.draw_scales(axes, x_axis, is_large=True)
            axes.legend(loc="upper right")
        figure.suptitle(f"{contest.shape.model_size}, {count(contest.material.num_parameters)} parameters, "
                        f"{contest.shape.tokens_per_step:,} tokens a step, {contest.material.machine}", fontsize=10)
        return plot.picture_bytes(figure, ending)


def _draw(axes: Any, one: Learned, x_per_step: float, style: plot.Style) -> None:
    mean = one.mean
    xs = [x_per_step * step for step in mean.steps]
    axes.plot(xs, mean.losses, color=style.color, linestyle=style.line, linewidth=1.5, marker=style.marker,
              markersize=4, markerfacecolor="white", markeredgewidth=1.1, label=f"{one.name} {mean.final:.3f}")
    if len(one.curves) > 1:
        seeds = [[curve.at(step) for curve in one.curves.values()] for step in mean.steps]
        axes.fill_between(xs, [min(losses) for losses in seeds], [max(losses) for losses in seeds], color=style.color,
                          alpha=plot.FAINT, linewidth=0)


def _limits(learned: Sequence[Learned]) -> tuple[float, float]:
    """Limits of the loss axis: all but the steep beginning of the worst curve."""
    low = min(min(one.mean.losses) for one in learned)
    high = max(one.mean.at(STEEP * one.steps) for one in learned)
    margin = 0.05 * (high - low) or 0.1
    return low - margin, high + margin
