"""The runs of bench.py --scaling: which processes train together, how long their steps take, what losses they reach.

A team is so many processes that share a model in one way. Every process has the same micro-batch, however many there
are, so that a step of W processes has W times the tokens (weak scaling). Losses are compared in other runs, of train.py
itself, whose steps have the same samples for every team.
"""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.answers import Probe, SharingTimes
from benchmarks.ladder import GPU_LOG_INTERVAL, Losses, Setting, as_flags, common_flags, loss_difference
from benchmarks.processes import ROOT, Children, Launch
from benchmarks.quality_runs import STEADY
from common.errors import Exit, UserError
from watching.history import read_rows

ALONE, UNDER_TORCHRUN = "alone", "torchrun"  # one process
COMPARED_STEPS = 10  # in fp32: after many more, rounding has grown into another run
EXACT = 1e-5  # relative difference of such losses that the order of sums explains
SPINS = "1000"  # of a thread that waits, as in train.py: it takes the processor from the one it waits for


@dataclass(frozen=True)
class Team:
    """So many processes, and the way in which they share the model: 'ddp' or 'fsdp', or one process's."""

    way: str
    num_processes: int = 1

    @property
    def is_shared(self) -> bool:
        return self.num_processes > 1

    @property
    def name(self) -> str:
        return f"{self.way} x {self.num_processes}"

    def launch(self, machine: Probe) -> Launch:
        """How its processes are started: on a CPU each gets its share of the threads."""
        environment: Mapping[str, str] = {}
        if not machine.on_gpu:
            threads = max(1, machine.num_threads // self.num_processes)
            environment = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": SPINS}
        return Launch(0 if self.way == ALONE else self.num_processes, environment)


def teams_of(processes: Sequence[int], ways: Sequence[str]) -> list[Team]:
    """One process by itself, with which all are compared, and under torchrun; then the others, by number."""
    teams = [Team(ALONE), Team(UNDER_TORCHRUN)]
    return teams + [Team(way, number) for number in processes if number > 1 for way in ways]


@dataclass
class Measured:
    """What is known about a team; problem says why there is no more, loss_difference is from one process's losses."""

    team: Team
    turns: list[SharingTimes] = field(default_factory=list)
    losses: Losses = field(default_factory=dict)
    loss_difference: float | None = None
    problem: str = ""

    @property
    def is_good(self) -> bool:
        """False if a run failed, or if the losses are others."""
        return not self.problem and (self.loss_difference is None or self.loss_difference <= EXACT)


# ---------------------------------------------------------------- running


class Runs:
    """Runs teams; train_flags are what the user adds, num_micro_batches those of a step whose losses are compared."""

    def __init__(self, setting: Setting, train_flags: Sequence[str], num_micro_batches: int, children: Children):
        self.setting = setting
        self.samples = num_micro_batches * setting.shape.batch_size
        self._train_flags, self._num_micro_batches, self._children = train_flags, num_micro_batches, children

    def time(self, measured: Measured) -> None:
        """Adds a turn. Raises UserError (exit 3) for tokens that cannot be trained on, Stopped after a signal."""
        team, setting = measured.team, self.setting
        at_a_time = GPU_LOG_INTERVAL if setting.machine.on_gpu else 1
        try:
            measured.turns.append(self._children.ask(
                SharingTimes, "sharing", launch=team.launch(setting.machine), flags=self.timed_flags(team),
                warmup=setting.warmup, steps=setting.steps, steps_at_a_time=at_a_time))
        except UserError as error:
            if error.code == Exit.DATA:
                raise
            measured.problem = str(error)

    def compare_losses(self, measured: Measured, alone: Measured) -> None:
        """Trains by train.py, and compares the losses with those of one process. Raises as time() does."""
        folder = self._children.folder / "losses"
        words = [str(ROOT / "train.py"), *self.compared_flags(measured.team), "--output_dir", str(folder)]
        try:
            ended = self._children.run(words, "cache", launch=measured.team.launch(self.setting.machine))
            if ended.code == Exit.DATA:
                raise UserError(Exit.DATA, ended.problem)
            measured.problem = ended.problem
            if not ended.code:
                rows = read_rows(folder / "metrics.jsonl")
                measured.losses = {int(row["step"]): row["loss"] for row in rows if "loss" in row}
                if len(measured.losses) < COMPARED_STEPS:
                    measured.problem = f"train.py logged {len(measured.losses)} losses of {COMPARED_STEPS} steps"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if measured is not alone and measured.losses:
            measured.loss_difference = loss_difference(measured.losses, alone.losses)

    def timed_flags(self, team: Team) -> list[str]:
        """Flags of train.py for a team that is timed: its default precision and, on a GPU, compiled."""
        machine = self.setting.machine
        return [*common_flags(self.setting, self._children.folder), *as_flags({
            "batch_size": self.setting.shape.batch_size, "gradient_accumulation_steps": team.num_processes,
            "use_amp": machine.half != "fp32", "compile": machine.on_gpu and not machine.why_no_compile,
            "model_parallel": team.way if team.is_shared else None}), *self._train_flags]

    def compared_flags(self, team: Team) -> list[str]:
        """Flags of train.py for a team whose losses are compared: fp32, eager, the same samples a step for all."""
        return [*common_flags(self.setting, self._children.folder), *as_flags({
            "batch_size": self.setting.shape.batch_size, "gradient_accumulation_steps": self._num_micro_batches,
            "model_parallel": team.way if team.is_shared else None}), *self._train_flags, *as_flags({
                "max_steps": COMPARED_STEPS, "log_interval": 1, "use_amp": False, "tf32": False, "compile": False})]


def samples_for_all(processes: Sequence[int]) -> int:
    """The fewest micro-batches of a step that all numbers of processes can share evenly."""
    return math.lcm(*processes)


# ---------------------------------------------------------------- what it comes to


@dataclass(frozen=True)
class TeamFigures:
    """Medians of the turns. exposed is the share of a step that is gone without the exchange.

    efficiency is the tokens a second of each GPU as a share of one process's; on a CPU, whose cores all teams use,
    those of all processes together. message and agreement are seconds; of one process they and exposed are None.
    """

    seconds: float
    tokens_per_second: float
    efficiency: float
    efficiency_by_turn: list[float]
    exposed: float | None
    message: float | None
    agreement: float | None
    peak_memory_bytes: int


def figures_of(measured: Measured, alone: Measured, setting: Setting) -> TeamFigures | None:
    """The figures of a team; None where there is no turn of it or none of one process."""
    if not measured.turns or not alone.turns:
        return None
    number, turns = measured.team.num_processes, measured.turns
    seconds = [statistics.median(turn.seconds) for turn in turns]
    of_one = [statistics.median(turn.seconds) for turn in alone.turns]
    # Ratios are those of one turn, in which the machine was in one state.
    devices = number if setting.machine.on_gpu else 1
    gains = [number / devices * one / all_ for one, all_ in zip(of_one, seconds, strict=False)]
    shares = [1 - statistics.median(turn.silent_seconds) / all_
              for turn, all_ in zip(turns, seconds, strict=True) if turn.silent_seconds]
    median = statistics.median(seconds)
    return TeamFigures(median, number * setting.shape.tokens_per_step / median, statistics.median(gains), gains,
                   statistics.median(shares) if shares else None,
                   _median_of([turn.message_seconds for turn in turns]),
                   _median_of([turn.agreement_seconds for turn in turns]),
                   max(bytes_ for turn in turns for bytes_ in turn.peak_memory_bytes))


def unsteady(all_measured: Sequence[Measured]) -> str:
    """A sentence about the team whose step took the most different times in different turns; empty if all agree."""
    worst, least, most = "", 1.0, STEADY
    for measured in all_measured:
        medians = [statistics.median(turn.seconds) for turn in measured.turns]
        if medians and max(medians) / min(medians) > most / least:
            worst, least, most = measured.team.name, min(medians), max(medians)
    return worst and (f"a step of {worst} took {1e3 * least:,.1f} ms in one turn and {1e3 * most:,.1f} ms in another: "
                      "other work was under way. Repeat this on a quiet machine.")


def _median_of(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None
