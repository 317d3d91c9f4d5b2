"""What is recorded of a run, step by step: metrics.jsonl always, and the trackers that the flags request.

To add a tracker, write a recorder in trackers/ and enter it in RECORDERS in trackers/child.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import operator
import os
import re
import secrets
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from architectures.table import ModelConfig
from common.config import Layer
from common.errors import warn
from common.files import append_line, read_text, sync, write_whole
from common.progress import Progress
from planning.recipe import Recipe
from trackers.feed import TrackerFeed
from trackers.names import requested_trackers
from trackers.start import Fields, Start
from training.state import TrainState

UNREADABLE = (ValueError, KeyError, TypeError, RecursionError)  # what a line that is no row of ours may raise
METRICS = "metrics.jsonl"
IDENTITY = "trackers.json"  # holds the id under which trackers know the run


def sync_metrics(output_dir: Path) -> None:
    """Waits until the lines of metrics.jsonl that were written so far are on the disk, where that can be done."""
    with contextlib.suppress(OSError):
        sync(output_dir / METRICS)


class MetricsFile:
    """metrics.jsonl: one JSON object a line. A full disk costs the line, not the run."""

    def __init__(self, path: Path, state: TrainState):
        """Opens the file, cut back to the step resumed from, so that it never holds a step twice.

        rows holds what stays of an earlier run, in num_bytes of the file.
        """
        self._path = path
        self._lock = threading.Lock()  # a warning may come from another thread
        self.rows: list[Fields] = []
        kept_lines = []
        if path.exists() and state.step:
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(*UNREADABLE):  # the last line of a killed run may be torn
                    fields = json.loads(line)
                    last_step = state.validated_step if "val_loss" in fields else state.step
                    if operator.index(fields["step"]) <= last_step:
                        kept_lines.append(line)
                        self.rows.append(fields)
        kept = "".join(line + "\n" for line in kept_lines)
        self.num_bytes = len(kept.encode())
        write_whole(path, kept)

    def log(self, step: int, fields: Fields) -> None:
        """Appends one line; the folder may have been deleted meanwhile."""
        try:
            with self._lock:
                append_line(self._path, json.dumps({"step": step, **fields}).encode())
        except OSError as error:
            warn(f"metrics.jsonl: {error.strerror}; the line of step {step} is lost")


def run_id(output_dir: Path, is_resumed: bool) -> str:
    """The id under which trackers know the run in a folder: a new one unless it is resumed there."""
    path = output_dir / IDENTITY
    if is_resumed:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(read_text(path))["id"]
            if isinstance(known, str) and re.fullmatch(r"[0-9a-z]{1,32}", known):
                return known
    new = secrets.token_hex(4)
    try:
        write_whole(path, json.dumps({"id": new}) + "\n")
    except OSError as error:
        warn(f"{IDENTITY}: {error.strerror}; when the run is resumed, trackers will take it for another one")
    return new


def told_of_run(flags: Layer, environment: Fields, config: ModelConfig, recipe: Recipe) -> Fields:
    """The configuration of a run as trackers show it: its flags, what it runs on, and what follows from both."""
    tokens = recipe.samples_per_step * config.seq_length
    derived = {"parameters": config.num_parameters, "flops_per_token": config.flops_per_token,
               "total_steps": recipe.total_steps, "tokens_per_step": tokens, "tokens": tokens * recipe.total_steps}
    return {**{name: flags.values[name] for name in sorted(flags.values)}, **environment, **derived}


class Trackers:
    """All trackers of a run; metrics.jsonl comes first, and rows is what it kept of an earlier run.

    settings are what the other trackers are told of the run. With is_silent there are no trackers, as in all but the
    first of several processes.
    """

    def __init__(self, args: argparse.Namespace, output_dir: Path, state: TrainState, out: Progress,
                 settings: Fields | None = None, is_silent: bool = False):
        self.rows: list[Fields] = []
        self._metrics: MetricsFile | None = None
        self._feeds: list[TrackerFeed] = []
        self._out = out
        if is_silent:
            return
        self._metrics = MetricsFile(output_dir / METRICS, state)
        self.rows = self._metrics.rows
        names = requested_trackers(args)
        if names:
            here, is_resumed = Path.cwd(), bool(state.step or args.resume_from)
            begin = partial(Start, id=run_id(output_dir, is_resumed), name=(here / output_dir).resolve().name,
                            step=state.step, config=settings or {}, metrics=str(here / output_dir / METRICS),
                            metrics_bytes=self._metrics.num_bytes, process=os.getpid(), here=str(here))
            for name in names:
                start = begin(folder=str(here / output_dir / name), shown=f"{args.output_dir}/{name}")
                self._feeds.append(TrackerFeed(name, start, out.say, lambda message: out.note(f"warning: {message}")))

    def log(self, step: int, **fields: Any) -> None:
        """Gives every tracker what is recorded of a step, what is not finite as None.

        A logged step has the field loss, a validation val_loss, a sample of text sample, a warning or advice advice.
        """
        finite = {name: None if isinstance(value, float) and not math.isfinite(value) else value
                  for name, value in fields.items()}
        for tracker in (self._metrics, *self._feeds):
            if tracker is not None:
                tracker.log(step, finite)

    def close(self, is_done: bool, until: Callable[[], float]) -> None:
        """Ends the run for all trackers, and waits for them until a point in time, by time.monotonic().

        is_done is False for a run that was stopped or has failed, and may go on later.
        """
        for feed in self._feeds:
            feed.end(is_done)
        for feed in self._feeds:
            with self._out.phase(f"waiting for {feed.name}"):
                feed.wait(until)
        self._feeds.clear()
