"""What bench.py --scaling shows: what is measured on this machine, the table, the agreement's cost, the picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.answers import Probe
from benchmarks.ladder import Setting
from benchmarks.scaling_runs import ALONE, COMPARED_STEPS, EXACT, UNDER_TORCHRUN, Measured, Team, TeamFigures
from common.words import percent, several, size

ROW = "{:<9}{:>10}{:>11}{:>11}{:>12}{:>9}{:>11}  {}"
HEADER = ROW.format("way", "processes", "ms", "tok/s", "efficiency", "exposed", "memory", "losses")
NARROW_ROW = "{:<9}{:>9}{:>10}{:>12}{:>9}{:>11}  {}"  # 77 columns
NARROW_HEADER = NARROW_ROW.format("way", "processes", "tok/s", "efficiency", "exposed", "memory", "losses")
LOSSES = "same, to 1e-08"

Found = Mapping[Team, TeamFigures | None]


def scaling_lines(setting: Setting, teams: Sequence[Team], samples: int) -> list[str]:
    """The lines before any run: the machine, the shape, and what these figures are about."""
    machine, shape = setting.machine, setting.shape
    numbers = sorted({team.num_processes for team in teams})
    losses = [f"losses      of {several(COMPARED_STEPS, 'step')} of train.py in fp32, with the same "
              f"{several(samples, 'sequence')} a step for every number of processes"]
    return [
        f"machine     {machine.name}, {machine.software}",
        f"shape       {shape.model_size}, {shape.vocab_size:,} ids, T {shape.seq_length:,}, {machine.half}"
        f"{', compiled' if machine.on_gpu and not machine.why_no_compile else ''}",
        f"a step      {several(shape.batch_size, 'sequence')} of each process: {shape.tokens_per_step:,} tokens of "
        "one, W times as many of W processes (weak scaling)",
        f"measured    {what_is_measured(machine, numbers)}",
        *(losses if numbers[-1] > 1 else []),
    ]


def what_is_measured(machine: Probe, numbers: Sequence[int]) -> str:
    """What figures of this machine can say about several processes, and what they cannot."""
    if numbers[-1] == 1:
        more = ("; what several gain can be measured where there are several GPUs, and that they compute the same with "
                "--no-use_gpu") if machine.on_gpu else ""
        return f"one process, by itself and under torchrun{more}"
    if machine.on_gpu:
        return f"{_listed(numbers)} processes on one machine, each with a GPU of its own, by NCCL"
    shared = [number for number in numbers if number > machine.num_threads]
    crowd = f"; {_listed(shared)} take turns on them" if shared else ""
    return (f"{_listed(numbers)} processes on the {several(machine.num_threads, 'core')} of one machine, by gloo, all "
            f"of which every row uses{crowd}: this shows that each way works and what its messages cost, not what as "
            "many GPUs would gain")


def _listed(numbers: Sequence[int]) -> str:
    """'1, 2 and 4'."""
    words = [str(number) for number in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# ---------------------------------------------------------------- the table


def table(all_measured: Sequence[Measured], found: Found, columns: int | None = None) -> list[str]:
    """A line for each team. In a terminal of few columns it has one figure less; --json has everything."""
    is_narrow = columns is not None and columns < len(HEADER) + len(LOSSES)
    lines = [NARROW_HEADER if is_narrow else HEADER]
    for measured in all_measured:
        team, figures = measured.team, found[measured.team]
        if measured.problem or figures is None:
            lines.append(f"{team.way:<9}{team.num_processes:>{9 if is_narrow else 10}}  failed: {measured.problem}")
            continue
        cells = [f"{1e3 * figures.seconds:,.1f}", f"{figures.tokens_per_second:,.0f}", percent(figures.efficiency),
                 "-" if figures.exposed is None else percent(figures.exposed), size(figures.peak_memory_bytes),
                 _losses(measured)]
        row = NARROW_ROW if is_narrow else ROW
        lines.append(row.format(team.way, team.num_processes, *cells[is_narrow:]).rstrip())
    return lines


def _losses(measured: Measured) -> str:
    if measured.loss_difference is None:
        return ""
    return f"{'same' if measured.is_good else 'DIFFERENT'}, to {measured.loss_difference:.0e}"


def closing_lines(all_measured: Sequence[Measured], found: Found, setting: Setting) -> list[str]:
    """The lines after the table: what its columns are, what torchrun costs, what the agreement of each step costs."""
    where = ("of each GPU as a share of one process's" if setting.machine.on_gpu else
             "of all processes as a share of one's on the same cores, which may make less of them")
    held = "PyTorch's, on its GPU" if setting.machine.on_gpu else "its program included"
    return [
        f"efficiency  tokens/s {where}",
        "exposed     share of a step that is gone where nothing is exchanged: ddp averages no gradients, fsdp neither "
        "gathers weights nor adds up gradients; steps with and without it in turns, in the same processes",
        f"memory      the most that one process held, {held}",
        f"losses      called the same if they are one process's to {EXACT:.0e}",
        *_torchrun_line(found), *_agreement_lines(all_measured, found)]


def _torchrun_line(found: Found) -> list[str]:
    figures = found.get(Team(UNDER_TORCHRUN))
    if figures is None:
        return []
    turns = sorted(1 / gain for gain in figures.efficiency_by_turn)
    return [f"torchrun    a step of one process takes {1 / figures.efficiency:.3f}x as long under torchrun as without, "
            f"{turns[0]:.3f}x to {turns[-1]:.3f}x in {several(len(turns), 'turn')}"]


def _agreement_lines(all_measured: Sequence[Measured], found: Found) -> list[str]:
    """What a step's message costs alone, with every process waiting for it, as it never has to in a run on a GPU."""
    lines = []
    for measured in all_measured:
        figures = found[measured.team]
        if figures is not None and figures.message is not None and figures.agreement is not None:
            lines.append(f"agreement   {measured.team.name}: the sum of five numbers takes {1e3 * figures.message:.3f} "
                         f"ms, {figures.message / figures.seconds:.2%} of a step; with what is decided by it "
                         f"{1e3 * figures.agreement:.3f} ms, {figures.agreement / figures.seconds:.2%}")
    return lines


# ---------------------------------------------------------------- --json and --png


def scaling_json(all_measured: Sequence[Measured], found: Found) -> list[dict[str, Any]]:
    """All figures, turn by turn."""
    rows = []
    for measured in all_measured:
        figures = found[measured.team]
        rows.append({**asdict(measured), **(asdict(figures) if figures else {}), "is_good": measured.is_good})
    return rows


def scaling_picture(found: Found, setting: Setting, title: str, ending: str) -> bytes:
    """Tokens a second over the number of processes, a line for each way; ending is the kind of picture."""
    from matplotlib.figure import Figure  # type: ignore[import-not-found] - the one package that is not required

    alone = found[Team(ALONE)]
    assert alone is not None
    figure = Figure((7, 4.5), layout="constrained")
    axes = figure.subplots()
    for way in dict.fromkeys(team.way for team in found if team.is_shared):
        points = [(1, alone)] + [(team.num_processes, figures) for team, figures in found.items()
                                 if team.way == way and figures is not None]
        axes.plot([number for number, _ in points], [each.tokens_per_second for _, each in points], "o-", label=way)
        for number, each in points[1:]:
            axes.annotate(percent(each.efficiency), (number, each.tokens_per_second), textcoords="offset points",
                          xytext=(6, -12 if way == "fsdp" else 6))
    numbers = sorted({team.num_processes for team in found})
    ideal = [alone.tokens_per_second * (number if setting.machine.on_gpu else 1) for number in numbers]
    axes.plot(numbers, ideal, "--", color="gray", label="nothing lost")
    axes.set(xlabel="processes", ylabel="tokens a second", title=title, xticks=numbers)
    axes.margins(0.15)
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower left")
    content = io.BytesIO()
    figure.savefig(content, dpi=150, format=ending)
    return content.getvalue()
