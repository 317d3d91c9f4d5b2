"""The time that a run will take, measured before the first step, and the end of --max_minutes."""

import dataclasses
import itertools
import json
import os
import re
import signal
import time
import types

import pytest

import train
from gpt.checkpoint.steps import steps_in
from gpt.checkpoint.stored import NEW_RUN, StoredState, TrainState
from gpt.planning.deadline import Deadline, Pace, recipe_within
from gpt.planning.recipe import Recipe
from gpt.training.checkpointing import Checkpointer
from gpt.watching.monitor import Monitor
from model import GPTConfig
from tests.helpers.training import metrics_of, recipe, same_tensors

PACE = Pace(step_seconds=2.5, val_token_seconds=0.01, num_val_tokens=100, sample_seconds=0.0, save_seconds=0.5,
            last_save_seconds=2.0)


@pytest.mark.parametrize("flags", [["--dropout", "0.1", "--gradient_accumulation_steps", "3"],
                                   ["--use_amp", "--amp_dtype", "fp16"], ["--optimizer", "adamw8bit"]], ids=" ".join)
def test_measuring_steps_leaves_no_trace(run, monkeypatch, flags):
    flags = ["--max_steps", "5", "--log_interval", "1", *flags]
    assert run(*flags, out="measured")[0] == 0
    monkeypatch.setattr(train, "measure_pace", lambda *_: PACE)
    assert run(*flags, out="assumed")[0] == 0
    assert metrics_of(run.folder / "measured") == metrics_of(run.folder / "assumed")
    assert same_tensors(run.folder / "measured/checkpoint-5", run.folder / "assumed/checkpoint-5")


@pytest.mark.parametrize(("seconds", "done", "eval_interval"), [(300, 0, None), (300, 40, None), (3000, 7, 3)])
def test_the_steps_planned_fill_the_time_and_one_more_would_be_too_long(seconds, done, eval_interval):
    args = train.read_flags(["--eval_interval", str(eval_interval)] if eval_interval else [])
    open_end, config = recipe(total_steps=2**50, epochs=2**50, eval_tokens=50), GPTConfig(70, 8, 1, 2, 16)

    def planned_within(seconds: float, limit: Recipe) -> Recipe:
        setup = types.SimpleNamespace(args=args, recipe=limit, config=config)
        return recipe_within(seconds, setup, PACE, done)  # type: ignore[arg-type]

    def takes(steps: int) -> float:
        every = eval_interval or max(1, min(1000, steps // 10))
        tokens = 50 if done else 16_384
        shorter = dataclasses.replace(open_end, total_steps=steps, eval_interval=every, eval_tokens=tokens)
        return PACE.seconds_left(shorter, done)

    steps = planned_within(seconds, open_end).total_steps
    assert takes(steps) <= seconds < takes(steps + 1)
    assert takes(steps) == pytest.approx(PACE.step_seconds * (steps - done), rel=0.7)
    assert planned_within(seconds, recipe(total_steps=done + 9)).total_steps == done + 9  # --max_steps, --epochs
    assert planned_within(0, open_end).total_steps == done + 1
    assert planned_within(0, recipe(total_steps=done)).total_steps == done


def test_validations_and_samples_take_a_tenth_of_the_minutes_and_each_is_in_the_hours():
    setup = types.SimpleNamespace(args=train.read_flags([]), recipe=recipe(total_steps=2**50, eval_tokens=50),
                                  config=GPTConfig(70, 8, 1, 2, 16))
    slow = dataclasses.replace(PACE, val_token_seconds=0.06, sample_seconds=2.5)  # 6, half and 2.5 seconds
    found = recipe_within(300, setup, slow, 0)  # type: ignore[arg-type]
    assert [found.num_times(every) for every in (found.eval_interval, found.sample_interval)] == [3, 3]
    assert slow.seconds_left(found) == pytest.approx(found.total_steps * 2.5 + 3 * 9 + 2 + 0.5 * int(found.passes))


def planned(text: str) -> int:
    (steps,) = re.findall(r"^time .*: ([\d,]+) steps? of ", text, re.MULTILINE)
    return int(steps.replace(",", ""))


def test_a_run_of_some_minutes_that_was_stopped_has_the_schedule_of_one_that_was_not(run, monkeypatch):
    flags = ["--max_minutes", "2", "--log_interval", "1", "--dropout", "0.1"]  # the text allows fewer steps
    monkeypatch.setattr(train, "measure_pace", lambda *_: PACE)
    code, text = run(*flags, out="whole")
    length = planned(text)
    assert (code, max(steps_in(run.folder / "whole")), length > 10) == (0, length, True)
    assert re.search(r"^time .* of 2 min, estimated: \d\d steps of 2\.5 s, ", text, re.MULTILINE)

    log_step = Monitor.add
    monkeypatch.setattr(Monitor, "add", lambda monitor, *rest: (
        log_step(monitor, *rest), monitor.state.step == 7 and os.kill(os.getpid(), signal.SIGTERM)))
    assert run(*flags, out="parts")[0] == 128 + signal.SIGTERM
    monkeypatch.setattr(Monitor, "add", log_step)
    monkeypatch.setattr(train, "measure_pace", lambda *_: dataclasses.replace(PACE, step_seconds=0.01))
    code, text = run(*flags, "--resume_from", "auto", out="parts")
    assert (code, planned(text)) == (0, length - 7)
    assert metrics_of(run.folder / "whole") == metrics_of(run.folder / "parts")
    assert same_tensors(run.folder / f"whole/checkpoint-{length}", run.folder / f"parts/checkpoint-{length}")
    _, text = run(*flags, "--resume_from", "auto", out="parts")
    assert f"already at step {length} of {length}; raise --max_minutes to continue" in text


def test_a_run_that_goes_on_on_a_much_slower_machine_still_ends_its_schedule(run, monkeypatch):
    flags = ["--max_minutes", "2", "--max_steps", "40"]
    monkeypatch.setattr(train, "measure_pace", lambda *_: PACE)
    monkeypatch.setattr(train.Run, "must_stop", lambda run: run.state.step == 3)  # as by a signal
    run(*flags)
    monkeypatch.undo()
    monkeypatch.setattr(train, "measure_pace", lambda *_: dataclasses.replace(PACE, step_seconds=25.0))
    _, text = run(*flags, "--resume_from", "auto")
    assert planned(text) == 4  # steps of 25 s, not 37
    assert re.search(r"^step 7/7 ", text, re.MULTILINE)


def test_a_raised_limit_is_planned_within_the_same_minutes(run, monkeypatch):
    monkeypatch.setattr(train, "measure_pace", lambda *_: PACE)
    run("--max_minutes", "60", "--max_steps", "5")
    run("--max_minutes", "60", "--max_steps", "9", "--resume_from", "auto")
    assert max(steps_in(run.folder / "out")) == 9


def test_a_limit_of_passes_stays_recorded_where_the_minutes_end_the_run_sooner(run, monkeypatch):
    monkeypatch.setattr(train, "measure_pace", lambda *_: dataclasses.replace(PACE, step_seconds=20.0))
    run("--max_minutes", "2", "--epochs", "50")
    state = json.loads((max(steps_in(run.folder / "out").values()) / "trainer_state.json").read_text())
    assert state["flags"]["given"]["epochs"] == 50
    assert state["settings"]["limits"] == [50, None]


def test_a_larger_step_keeps_the_last_step(run, monkeypatch):
    monkeypatch.setattr(train.Run, "must_stop", lambda run: run.state.step == 3)  # as by a signal
    run("--max_steps", "8", "--batch_size", "2")
    monkeypatch.undo()
    run("--batch_size", "4", "--resume_from", "auto")
    assert max(steps_in(run.folder / "out")) == 8


@pytest.fixture(params=[1e-6])
def slower(request, monkeypatch):
    """Steps that turn out slower than measured: each look at the clock takes 0.1 s, however busy the machine is."""
    quick = dataclasses.replace(PACE, step_seconds=request.param, val_token_seconds=0.0, save_seconds=0.0,
                                last_save_seconds=0.01)
    monkeypatch.setattr(train, "measure_pace", lambda *_: quick)
    monkeypatch.setattr(Checkpointer, "save_seconds", property(lambda _: 0.0, lambda *_: None), raising=False)
    ticks = itertools.count(0.0, 0.1)
    for module in ("gpt.machine.runtime", "gpt.planning.deadline"):
        monkeypatch.setattr(f"{module}.time", types.SimpleNamespace(
            monotonic=ticks.__next__, perf_counter=time.perf_counter))


@pytest.mark.parametrize("slower", [1e-6, 2.0], indirect=True)
def test_the_schedule_of_slower_or_quicker_steps_ends_with_the_minutes(run, slower):
    flags = ["--max_minutes", "0.3", "--max_steps", "1000", "--log_interval", "1", "--warmup_steps", "5"]
    _, text = run(*flags, "--eval_interval", "5")
    step = max(steps_in(run.folder / "out"))
    assert step > planned(text) if planned(text) < 1000 else step < planned(text)
    assert f"step {step}/{step} " in text
    assert "epochs" not in (run.folder / "out/config.toml").read_text()  # they would end a resumed run
    rates = [row["lr"] for row in metrics_of(run.folder / "out") if "lr" in row]
    assert rates[-1] < 0.1 * max(rates)
    assert f"already at step {step} of {step}" in run(*flags, "--resume_from", "auto")[1]


def test_steps_that_turn_out_slower_end_in_time_with_one_command_to_go_on_in_minutes(run, slower):
    _, text = run("--max_minutes", "0.2")
    step = max(steps_in(run.folder / "out"))
    assert step < planned(text)
    (command,) = re.findall(rf"0.2 min were over at step {step} of [^\n]+\n(python train.py .*)\n", text)
    resumes, minutes = command.rsplit(" ", 1)
    assert resumes == f"python train.py --resume_from {run.folder}/out --max_minutes"
    assert float(minutes) == 0.2 * max(2, -(-100 // step))
    assert text.count("--resume_from") == 1


def stored(step: int, **settings) -> StoredState:
    return StoredState(TrainState(step, seconds=50.0), {"total_steps": 100, "max_minutes": 1.0, **settings})


@pytest.mark.parametrize(("minutes", "state", "length"), [
    (1.0, stored(40), 100),  # killed
    (2.0, stored(40), None),  # other minutes plan another schedule
    (0.5, stored(100), 100),
    (1.0, stored(100), 100),  # finished
    (2.0, stored(100), None),  # more minutes after the end: a new one is planned
    (1.0, stored(40, max_minutes=None), None),  # the first start had no limit
    (1.0, NEW_RUN, None), (None, stored(40), None)])
def test_the_length_is_planned_once(minutes, state, length):
    deadline = Deadline(minutes, state, began=0.0)
    assert deadline.length == length
    assert deadline.plans_length == (minutes is not None and length is None)


@pytest.mark.parametrize("before", [1.0, None])
def test_a_resumed_run_has_the_minutes_that_all_starts_left_and_loading_does_not_count(monkeypatch, before):
    clock = [1000.0]
    monkeypatch.setattr("gpt.planning.deadline.time.monotonic", lambda: clock[0])
    deadline = Deadline(1.0, stored(40, max_minutes=before), began=1000.0)
    clock[0] += 30  # loading and compiling
    deadline.start(step=40, seconds_before=50.0)
    assert (deadline.seconds_used, deadline.ends_within(9.9)) == (50, False)
    clock[0] += 1
    assert deadline.ends_within(9.9)
    new = Deadline(1.0, NEW_RUN, began=clock[0] - 20)
    new.start(step=0, seconds_before=0.0)
    assert new.seconds_used == 20
    assert not Deadline(None, NEW_RUN, 0.0).ends_within(1e12)
