"""When and from where a run saves, and what stays."""

import dataclasses
import re
import time

import torch

import train
from checkpoint.contents import bytes_needed
from checkpoint.find import steps_in
from checkpoint.save import Snapshot, save, write_tensors
from common.errors import Exit
from model import GPTConfig
from tests.helpers.training import metrics_of, on_cpu, recipe, same_tensors
from training.checkpointing import plan_saving
from training.validation import ValidationLoss


def test_training_goes_on_while_a_checkpoint_is_written(run, monkeypatch):
    logged, real = [], save

    def slow(output_dir, step, *rest):
        deadline = time.monotonic() + 60
        while step == 2 and time.monotonic() < deadline:  # until later steps have been logged
            logged[:] = [line["step"] for line in metrics_of(output_dir)]
            if max(logged) >= 3:
                break
            time.sleep(0.01)
        return real(output_dir, step, *rest)

    monkeypatch.setattr("checkpoint.save.save", slow)
    code, text = run("--max_steps", "5", "--checkpoint_every_steps", "2", "--log_interval", "1", "--eval_interval", "9")
    assert code == 0
    assert max(logged) >= 3
    assert re.search(r"saved checkpoint-2: .* in \d+\.\d\d s, of which training waited \d\.\d\d s \(later", text)
    assert list(steps_in(run.folder / "out")) == [5, 4, 2]


def test_no_copy_is_held_where_only_the_end_is_saved(run, monkeypatch):
    flags = ("--max_steps", "3", "--eval_interval", "9", "--checkpoint_every_minutes", "0")
    code, text = run(*flags, "--checkpoint_every_steps", "2")
    assert code == 0
    assert "written in the background, from a copy" in text
    assert "copy " in next(line for line in text.splitlines() if line.startswith("memory"))
    monkeypatch.setattr("checkpoint.save.Snapshot", None)
    code, text = run(*flags, out="other")
    assert code == 0
    assert "written at the end" in text
    assert "copy " not in next(line for line in text.splitlines() if line.startswith("memory"))
    assert list(steps_in(run.folder / "other")) == [3]


def test_a_copy_in_pinned_memory_takes_a_power_of_two(monkeypatch):
    config, args = GPTConfig(300, 16, 2, 2, 16), train.read_flags([])
    on_gpu = dataclasses.replace(on_cpu(), device=torch.device("cuda"))
    size = bytes_needed(config)
    rounded = 1 << (size - 1).bit_length()
    assert rounded > size
    for machine, copy in ((on_cpu(), size), (on_gpu, rounded)):
        for free, copies in ((copy + size + 101, True), (copy + size + 100, False)):
            monkeypatch.setattr("training.checkpointing.available_ram", lambda free=free: free)
            plan = plan_saving(args, config, recipe(), machine, 8, held_bytes=100)
            assert (plan.copy_bytes, plan.copies) == (copy, copies)


def test_a_copy_takes_as_much_whether_or_not_there_are_moments(run, monkeypatch):
    reserved, real = [], Snapshot.reserve

    def reserve(self, num_bytes, pinned):
        reserved.append(num_bytes)
        real(self, num_bytes, pinned)

    monkeypatch.setattr(Snapshot, "reserve", reserve)
    flags = ("--checkpoint_every_steps", "2", "--eval_interval", "9")
    for more in (("--max_steps", "3"), ("--max_steps", "5", "--resume_from", "auto")):
        reserved.clear()
        assert run(*flags, *more)[0] == 0
        first, *saves = reserved  # what is taken ahead suffices for each save, and is not much more
        assert max(saves) <= first < max(saves) + 2**16


def test_without_memory_for_a_copy_training_waits_and_the_bytes_are_the_same(run, monkeypatch):
    flags = ("--max_steps", "4", "--checkpoint_every_steps", "2", "--eval_interval", "9")
    assert run(*flags)[0] == 0
    monkeypatch.setattr("training.checkpointing.available_ram", lambda: 0)
    code, text = run(*flags, out="waiting")
    assert code == 0
    assert "written while training waits" in text
    for step in (2, 4):
        assert same_tensors(run.folder / f"out/checkpoint-{step}", run.folder / f"waiting/checkpoint-{step}")


def test_the_best_stays_until_a_better_one_is_on_the_disk(run, monkeypatch):
    losses, real = iter([3.0, 2.0, 1.0]), save

    def full_from_step_4(output_dir, step, *rest):
        if step >= 4:
            raise OSError(28, "No space left on device")
        return real(output_dir, step, *rest)

    monkeypatch.setattr("checkpoint.save.save", full_from_step_4)
    monkeypatch.setattr("training.validation.evaluate", lambda *_: ValidationLoss(next(losses), None))
    run("--max_steps", "6", "--eval_interval", "2", "--checkpoint_every_steps", "1", "--keep_checkpoints", "1")
    assert list(steps_in(run.folder / "out")) == [3, 2]


def test_a_model_card_tells_the_data_the_curve_and_the_command_without_paths(run):
    run("--max_steps", "4", "--eval_interval", "2", "--checkpoint_every_steps", "2")
    run("--max_steps", "6", "--eval_interval", "2", "--resume_from", "auto", "--epochs", "9")
    card = (run.folder / "out/checkpoint-6/README.md").read_text()
    losses = {line["step"]: line["val_loss"] for line in metrics_of(run.folder / "out") if "val_loss" in line}
    rows = dict(re.findall(r"^\| (\d) \| ([\d.]+) \|", card, re.MULTILINE))
    assert rows == {str(step): f"{losses[step]:.4f}" for step in (2, 4)}  # a save comes before its validation
    assert re.search(r"training tokens: 8\d\d, sha256 [0-9a-f]{64}", card)
    assert re.search(r"    python train\.py --data_dir data --output_dir out .*--max_steps 6", card)
    assert str(run.folder) not in card


def test_a_disk_that_fills_up_costs_the_checkpoint_and_not_the_run(run, monkeypatch):
    real, calls = write_tensors, []

    def full(*a, **k):
        calls.append(1)
        if len(calls) <= 4:  # two files a save
            raise OSError(28, "No space left on device")
        return real(*a, **k)

    monkeypatch.setattr("checkpoint.save.write_tensors", full)
    code, text = run("--max_steps", "6", "--checkpoint_every_steps", "2", "--eval_interval", "100")
    assert code == 0
    assert text.count("could not be saved: No space left on device") == 2
    assert list(steps_in(run.folder / "out")) == [6]
    assert not list((run.folder / "out").glob(".tmp*"))
    monkeypatch.setattr("checkpoint.save.write_tensors", lambda *_, **__: full_always())
    code, _ = run("--max_steps", "2", out="full")
    assert code.code == Exit.MACHINE


def full_always():
    raise OSError(28, "No space left on device")
