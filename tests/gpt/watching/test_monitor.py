"""What a run says and records while it trains."""

import contextlib
import itertools
import json
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import generate
import train
from gpt.checkpoint.find import resolve
from gpt.checkpoint.stored import TrainState
from gpt.machine.backends import Backend
from gpt.machine.device import Machine
from gpt.machine.runtime import Gauge, Mark, TrainingClock
from gpt.training.validation import ValidationLoss
from gpt.watching.curve import LossCurve
from gpt.watching.improvement import LONGER
from gpt.watching.monitor import Monitor
from tests.helpers.checkpoints import no_warning
from tests.helpers.machines import CPU
from tests.helpers.terminals import drawn, terminal
from tests.helpers.training import QUIET, TINY

ROOT = Path(train.__file__).parent


BOWL = [5.0, 4.0, 3.5, 3.3, 3.4, 3.6, 3.9, 4.2, 4.5, 4.8]  # the best at the fourth validation


def falling(step: int) -> float:
    """A training loss that goes on falling."""
    return 4.0 - 0.1 * step


@pytest.fixture
def overfitting(run, monkeypatch):
    """A function: a run of 10 validations that overfits from the fourth on."""
    taken = iter(())
    read_curve = Monitor._read_curve
    monkeypatch.setattr(Monitor, "_read_curve", lambda monitor, losses, last: read_curve(
        monitor, [falling(step) for step in range(last - len(losses) + 1, last + 1)], last))
    monkeypatch.setattr("gpt.training.validation.Validator.measure", lambda _, windows=None: (
        ValidationLoss(1.0 if windows else next(taken), None)))

    def start(*flags, first=0, out="out"):
        nonlocal taken
        taken = iter(BOWL[first:])
        return run("--epochs", "9", "--log_interval", "1", "--eval_interval", "2", *flags, out=out)

    start.folder = run.folder  # type: ignore[attr-defined]
    return start


def test_overfitting_is_said_once_with_the_step_the_figures_and_the_cures(overfitting):
    code, text = overfitting("--max_steps", "20")
    assert code == 0
    assert re.findall(r"warning: (overfitting.*)", text) == [
        "overfitting since step 8: the validation loss rose from 3.3000 to 3.9000 while the training loss fell from "
        "3.2500 to 2.6500. What helps the next run: more text, --input_noise 0.1 or --patience 3."]
    assert resolve(overfitting.folder / "out/best", no_warning).name == "checkpoint-8"
    assert resolve(overfitting.folder / "out/last", no_warning).name == "checkpoint-20"


def test_a_resumed_run_remembers_that_overfitting_was_said_or_that_it_was_not(overfitting):
    for steps, first, said in ((12, 0, 0), (16, 6, 1), (20, 8, 0)):
        code, text = overfitting("--max_steps", str(steps), "--no-use_lr_scheduler", "--resume_from", "auto",
                                 first=first)
        assert code == 0
        assert text.count("overfitting since step 8") == said, steps


def test_the_closing_lines_name_best_and_last_and_how_to_improve(overfitting, corpus, monkeypatch):
    monkeypatch.chdir(overfitting.folder)
    for room in ("improvement", "monitor"):
        monkeypatch.setattr(f"gpt.watching.{room}.times_too_short", lambda *_: 1)
    _, text = overfitting("--max_steps", "20", out="my run")
    folder = f"'{overfitting.folder}/my run'"
    assert (f"\nnext: python generate.py --ckpt {folder}/best\n"
            f"      the best by validation, step 8; {folder} alone is the last one\n"
            "To improve: the model learns the text by heart: its validation loss rose from 3.30 at step 8 to 4.80\n"
            f"python pretokenize.py MORE --output_dir more-20 \\\n    --tokenizer_file {corpus}/tokenizer.json\n"
            f"python train.py --resume_from {folder} \\\n"
            f"    --data_dir {corpus} more-20 --allow_new_data --max_steps 40\n") in text
    _, text = overfitting("--max_steps", "8", out="falling")
    folder = f"{overfitting.folder}/falling"
    assert f"\nnext: python generate.py --ckpt {folder}\nTo improve: still learning: " in text
    assert max(len(line) for line in text.splitlines() if "| val loss " in line) <= 80
    assert f"\npython train.py --resume_from {folder} --max_steps 16 --epochs 18\n" in text
    monkeypatch.setattr("gpt.watching.monitor.best_improvement", lambda *_: ("mini", "its size"))
    _, text = overfitting("--max_steps", "2", out="small")
    folder = f"{overfitting.folder}/small"
    assert (f"\nTo improve: its size\npython train.py --config {folder}/config.toml \\\n"
            f"    --model_size mini --output_dir {folder}-mini\n") in text


@pytest.mark.parametrize(("flags", "best"), [([], ""), (["--patience", "9"], "/best")])
def test_of_a_few_conversations_the_last_checkpoint_is_named_the_best_is_so_by_chance(overfitting, chats, flags, best):
    _, text = overfitting("--data_dir", str(chats), "--max_steps", "20", *flags)
    assert f"\nnext: python generate.py --ckpt {overfitting.folder}/out{best} --chat\n" in text


def test_advice_to_go_on_raises_a_used_up_patience_and_is_not_given_for_a_loss_worse_than_guessing(
        overfitting, monkeypatch):
    monkeypatch.setattr("gpt.watching.monitor.best_improvement", lambda *_: (LONGER, "it may"))
    _, text = overfitting("--max_steps", "20", "--patience", "2", out="ended")
    assert (f"\npython train.py --resume_from {overfitting.folder}/ended --max_steps 100 --epochs 45 --patience 4\n"
            in text)
    monkeypatch.setattr("gpt.watching.curve.LossCurve.worse_than_guessing", lambda *_: "worse than guessing")
    assert "To improve" not in overfitting("--max_steps", "20", out="diverged")[1]


def test_a_run_without_a_tokenizer_says_where_to_copy_one(corpus, tmp_path, capsys):
    shutil.copy(corpus / "train.bin", tmp_path)
    out = str(tmp_path / "out")
    assert train.main(["--bin_file", f"{tmp_path}/train.bin", "--vocab_size", "300", "--output_dir", out, *TINY, *QUIET,
                       "--no-use_gpu", "--max_steps", "1"]) == 0
    copy = re.findall(r"\ncp TOKENIZER (.*)", capsys.readouterr().out)
    shutil.copy(corpus / "tokenizer.json", *copy)
    assert generate.main(["--ckpt", out, "--max_new_tokens", "1", "--no-use_gpu"]) == 0


def test_after_many_passes_the_model_may_teach_a_new_one(run, monkeypatch):
    monkeypatch.setattr("gpt.watching.monitor.best_improvement", lambda *_: ("more text", "its text"))
    folder, flags = run.folder / "out", ["--epochs", "5", "--eval_interval", "50", "--optimizer", "muon"]
    ((teacher, out),) = re.findall(rf"To improve: its text\. .*:\npython train.py --config {folder} \\\n"
                                   "    --teacher (.*) --output_dir (.*)\nTo add text:\n", run.ok(*flags))
    assert (teacher, out) == (f"{folder}/best", f"{folder}-taught")
    assert "--teacher" not in run.ok("--config", str(folder), "--teacher", teacher, out="out-taught")


def test_an_epoch_counts_as_the_whole_text_though_its_windows_leave_some_out(run, monkeypatch):
    asked = []
    monkeypatch.setattr("gpt.watching.monitor.best_improvement",
                        lambda *figures: asked.append(figures[2:4]) or ("", ""))
    run.ok("--epochs", "3", "--max_steps", "1000")
    ((tokens_seen, num_tokens),) = asked
    assert 3 * num_tokens <= tokens_seen < 3.1 * num_tokens


# ---------------------------------------------------------------- what is recorded


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_logged_step_is_recorded_with_time_speed_mfu_memory_and_gpu(run, monkeypatch):
    before = time.time()
    run("--max_steps", "2", "--log_interval", "1", out="cpu")
    steps = [row for row in rows_of(run.folder / "cpu") if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2]
    for row in steps:
        assert before < row["time"] < time.time()
        assert row["tokens_per_second"] == pytest.approx(4 * 8 / row["seconds"])
        assert row["memory_bytes"] > 2**20
        assert (row["mfu"], row["gpu"], row["gpu_utilization"]) == (None, None, None), "a processor's are not known"
    assert all("time" in row for row in rows_of(run.folder / "cpu"))

    monkeypatch.setattr(Machine, "peak_flops", property(lambda self: 1e12))
    monkeypatch.setattr(Backend, "utilization", lambda self: 0.97)
    _, text = run("--max_steps", "1", out="known")
    row = rows_of(run.folder / "known")[0]
    assert 0 < row["mfu"] < 1
    assert row["gpu_utilization"] == 0.97
    assert f"mfu {row['mfu']:.1%} | gpu 97% | " in text


def test_samples_warnings_and_advice_are_recorded(run, monkeypatch):
    monkeypatch.setattr(LossCurve, "add", lambda self, step, loss: f"spike {step}" if step in (3, 5) else None)
    monkeypatch.setattr(LossCurve, "advice", lambda *_: "the loss explodes: so")
    _, text = run("--max_steps", "6", "--log_interval", "1", "--sample_interval", "2", "--checkpoint_every_steps", "4",
                  "--epochs", "9")
    rows = rows_of(run.folder / "out")
    assert [row["step"] for row in rows if "sample" in row] == [2, 4, 6]
    advice = [(row["step"], row["advice"]) for row in rows if "advice" in row]
    assert advice == [(1, "advice at step 1: the loss explodes: so"), (3, "spike 3"), (5, "spike 5")]
    sample = next(row["sample"] for row in rows if "sample" in row)
    assert "\n  | ".join(["sample at step 2", *sample.split("\n")]) in text
    assert text.count("warning: spike 3\n") == text.count("the loss explodes") == 1


def test_at_80_columns_a_run_shows_the_time_left_its_speed_and_memory(run, monkeypatch):
    with terminal(80, monkeypatch) as opened:
        monkeypatch.setattr(sys, "stdout", opened.stream)
        code, _ = run("--max_steps", "6", "--log_interval", "2", "--sample_interval", "6")
        monkeypatch.undo()
        lines = drawn(opened.close())
    assert code == 0
    steps = [line.rstrip() for line in lines if " s left | loss " in line]
    assert steps
    for line in steps:
        assert re.match(r"[ \d]+%.{12} \d+ s left \| loss [\d.]+ \| [\d,]+ tok/s \| [\d.]+ GiB", line)


# ---------------------------------------------------------------- who waits for whom


def test_what_holds_the_device_back_is_said_once(run, monkeypatch):
    _, text = run("--max_steps", "4", out="idle")
    assert re.search(r"\ntrained     4 steps, 128 .*\nloss  .*\nval loss  .*\ncheckpoint  .*\n", text)
    assert "holds the device back" not in text

    @contextlib.contextmanager
    def wait_long(gauge, what):
        yield
        gauge.waited[what] += 100.0

    monkeypatch.setattr(Gauge, "waiting", wait_long)
    monkeypatch.setattr("gpt.watching.monitor.WATCHED_SECONDS", -1)
    text = run.ok("--max_steps", "6", "--log_interval", "1", out="busy")
    assert len(re.findall(r"the loader holds the device back: \d+% of the time", text)) == 1
    assert "the GPU waits" not in text  # this is a CPU


# ---------------------------------------------------------------- figures of a GPU


class SlowMark(Mark):
    """A mark that notes who waited for it."""

    waited: ClassVar[list[float]] = []

    def wait(self):
        self.waited.append(self.host)


def test_on_a_gpu_a_step_is_logged_when_the_next_one_has_been_given_to_it(monkeypatch):
    state, steps = TrainState(), itertools.count(1)
    clock = TrainingClock(CPU)
    monkeypatch.setattr(clock, "mark", lambda: SlowMark(float(next(steps)), None, 0.0))
    monkeypatch.setattr(SlowMark, "waited", [])

    def monitor_on(kind: str) -> Monitor:
        machine = replace(CPU, device=torch.device(kind))
        runtime: Any = SimpleNamespace(machine=machine, out=None, clock=clock, gauge=Gauge(machine))
        args: Any = SimpleNamespace()
        recipe: Any = SimpleNamespace(log_interval=1, total_steps=4, lower_rate_argument='')
        setup = SimpleNamespace(args=args, recipe=recipe, config=SimpleNamespace(vocab_size=9), runtime=runtime)
        run: Any = SimpleNamespace(setup=setup, state=state, micro_batch=7, recipe=recipe)
        trackers: Any = SimpleNamespace(rows=[])
        return Monitor(run, trackers)

    for name in ("_log_step", "_watch", "_read_curve"):
        def note(monitor, noted, *rest, name=name):
            if name == "_log_step":
                logged.append((noted.step, *rest[0].items(), monitor._skipped_in_a_row, state.skipped_steps))

        monkeypatch.setattr(Monitor, name, note)
    logged: list[tuple] = []
    on_gpu, on_cpu = monitor_on("cuda"), monitor_on("cpu")
    for step in (1, 2, 3, 4):
        state.step = step
        loss, norm, skipped = torch.tensor([step, 0.5, step == 2])
        for monitor in (on_gpu, on_cpu):
            monitor.add({"loss": loss, "grad_norm": norm, "skipped": skipped})
        on_cpu.log()
        assert [row[0] for row in logged] == [step]
        logged.clear()
        SlowMark.waited.clear()
        state.skipped_steps = 0
        on_gpu.log(includes_latest=step == 4)
        assert len(set(SlowMark.waited)) == len(logged)
        figures = [(step, ("loss", step), ("grad_norm", 0.5), step == 2, step == 2)
                   for step in (1, 2, 3, 4)]
        assert logged == {1: [], 2: figures[:1], 3: figures[1:2], 4: figures[2:]}[step]
        logged.clear()
