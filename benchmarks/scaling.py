"""What several processes gain and cost: one model trained by 1, 2, 4, ... of them, by each way of sharing it, in turns.

First come the losses, which must be those of one process, then the times.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import scaling_report
from benchmarks.answers import Probe
from benchmarks.ladder import Setting
from benchmarks.processes import Children
from benchmarks.report import Record
from benchmarks.scaling_runs import Measured, Runs, Team, TeamFigures, figures_of, samples_for_all, teams_of, unsteady
from common.errors import Exit, UserError
from common.flags import ValueKind
from common.outputs import Output
from common.progress import Progress

WAYS = ("ddp", "fsdp")
MOST_PROCESSES = 1024
FAILED_EXIT = 1  # a run failed, or its losses are not those of one process


def process_numbers() -> ValueKind:
    """'1,2,4' as (1, 2, 4)."""

    def parse(text: str) -> tuple[int, ...]:
        numbers = tuple(sorted({int(number) for number in text.split(",")}))
        if not 1 <= numbers[0] <= numbers[-1] <= MOST_PROCESSES:
            raise ValueError(text)
        return numbers

    return ValueKind(parse, f"numbers from 1 to {MOST_PROCESSES:,} with commas between", "N,N,...")


def ways_of_sharing() -> ValueKind:
    """'fsdp,ddp' as ('fsdp', 'ddp')."""

    def parse(text: str) -> tuple[str, ...]:
        ways = tuple(dict.fromkeys(text.split(",")))
        if not set(ways) <= {*WAYS}:
            raise ValueError(text)
        return ways

    return ValueKind(parse, f"some of {', '.join(WAYS)} with commas between", "WAY,WAY")


def compare_processes(args: argparse.Namespace, setting: Setting, children: Children, out: Progress, record: Record,
                      png: Output | None) -> int:
    """The whole comparison; returns the exit code. Raises UserError for more processes than GPUs, Stopped after a
    signal.
    """
    processes = chosen_processes(args.processes, setting.machine)
    setting = replace(setting, data_dir=str(Path(setting.data_dir).resolve()))  # torchrun starts in another folder
    runs = Runs(setting, shlex.split(args.train_flags or ""), samples_for_all(processes), children)
    teams = teams_of(processes, args.ways or WAYS)
    for line in scaling_report.scaling_lines(setting, teams, runs.samples):
        out.say(line)

    all_measured = [Measured(team) for team in teams]
    compare_losses(all_measured, runs, out)
    for turn in range(args.timing_turns):
        time_turn(turn, args.timing_turns, all_measured, runs, out)
        found = figures_of_teams(all_measured, setting)
        record.keep(scaling=scaling_report.scaling_json(all_measured, found))

    found = figures_of_teams(all_measured, setting)
    for line in (*scaling_report.table(all_measured, found, out.columns),
                 *scaling_report.closing_lines(all_measured, found, setting)):
        out.say(line)
    if line := unsteady(all_measured):
        out.warn(line)
    if png is not None and found[teams[0]] is not None:
        shape = setting.shape
        title = f"{setting.machine.name}, {shape.model_size}, {shape.tokens_per_step:,} tokens a step of each process"
        png.write(scaling_report.scaling_picture(found, setting, title, png.ending))
    return Exit.DONE if all(measured.is_good for measured in all_measured) else FAILED_EXIT


def chosen_processes(requested: Sequence[int] | None, machine: Probe) -> tuple[int, ...]:
    """The numbers of --processes with 1, by default powers of two up to the number of GPUs, on a CPU 1 and 2.

    Raises UserError (exit 5) for more processes than GPUs.
    """
    most = machine.num_gpus if machine.on_gpu else 2
    if requested is None:
        return tuple(2**power for power in range(most.bit_length()))
    if machine.on_gpu and requested[-1] > most:
        raise UserError(Exit.MACHINE, f"--processes {requested[-1]}: each process takes a GPU, and this machine has "
                                      f"{most}. Give fewer, or --no-use_gpu to see on the CPU that they compute the "
                                      "same.")
    return tuple(sorted({1, *requested}))


def compare_losses(all_measured: Sequence[Measured], runs: Runs, out: Progress) -> None:
    """The losses of one process and of each team that shares a model, where there is one."""
    alone = all_measured[0]
    shared = [measured for measured in all_measured if measured.team.is_shared]
    for measured in [alone, *shared] if shared else []:
        if measured is alone or not alone.problem:
            with out.phase(f"losses of {measured.team.name}"):
                runs.compare_losses(measured, alone)


def time_turn(turn: int, turns: int, all_measured: Sequence[Measured], runs: Runs, out: Progress) -> None:
    """Times each team once that has not failed, every other turn in the opposite order."""
    for measured in all_measured if turn % 2 == 0 else reversed(all_measured):
        if not measured.problem:
            with out.phase(f"timing turn {turn + 1} of {turns}, {measured.team.name}"):
                runs.time(measured)


def figures_of_teams(all_measured: Sequence[Measured], setting: Setting) -> Mapping[Team, TeamFigures | None]:
    """The figures of each team that has some, None for the others."""
    return {measured.team: figures_of(measured, all_measured[0], setting) for measured in all_measured}
