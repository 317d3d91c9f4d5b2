"""When and from where a run saves, and what stays."""

import itertools
import re
import time
from threading import Event
from types import SimpleNamespace

import train
from gpt.checkpoint.folder import prune
from gpt.checkpoint.load import chat_template, end_ids
from gpt.checkpoint.save import Snapshot, save, write_tensors
from gpt.checkpoint.steps import steps_in
from gpt.checkpoint.stored import verify
from gpt.common.errors import Exit
from gpt.common.words import size
from gpt.planning.memory import checkpoint_bytes_of, has_room_for_copy
from gpt.tokens.chat import START, template_of
from gpt.tokens.corpus import Corpus
from gpt.tokens.tokenizer import load_tokenizer
from gpt.training.checkpointing import Checkpointer, command_for_card
from gpt.training.validation import ValidationLoss
from model import GPTConfig
from tests.helpers.training import metrics_of, same_tensors


def test_training_goes_on_while_a_checkpoint_is_written_and_its_memory_is_there_before(run, monkeypatch):
    logged, room, real, take = [], [], save, Snapshot.take

    def slow(output_dir, step, *rest):
        deadline = time.monotonic() + 60
        while step == 2 and time.monotonic() < deadline:  # until later steps have been logged
            logged[:] = [line["step"] for line in metrics_of(output_dir)]
            if max(logged) >= 3:
                break
            time.sleep(0.01)
        return real(output_dir, step, *rest)

    monkeypatch.setattr("gpt.checkpoint.save.save", slow)
    monkeypatch.setattr(Snapshot, "take", lambda own, new: (
        room.append(own._buffer.bytes.nbytes - new.num_bytes) or take(own, new)))
    code, text = run("--max_steps", "5", "--checkpoint_every_steps", "2", "--log_interval", "1", "--eval_interval", "9")
    assert (code, room[0] >= 0) == (0, True)
    assert max(logged) >= 3
    num_bytes = sum(path.stat().st_size for path in (run.folder / "out/checkpoint-2").iterdir())
    assert re.search(rf"saved checkpoint-2: {size(num_bytes)} in \d+\.\d\d s, of which training waited \d\.\d\d s\n",
                     text)
    assert list(steps_in(run.folder / "out")) == [5, 4, 2]


def test_the_minutes_to_a_rolling_checkpoint_begin_at_the_last_save(run, monkeypatch):
    clock = itertools.count(0, 10)  # seconds, at each look
    fake = SimpleNamespace(monotonic=lambda: next(clock), perf_counter=float)
    monkeypatch.setattr("gpt.training.checkpointing.time", fake)
    run("--max_steps", "20", "--checkpoint_every_minutes", "1", "--keep_checkpoints", "9", "--eval_interval", "99")
    assert [*steps_in(run.folder / "out")] == [20, 18, 12, 6]


def test_there_is_a_copy_where_ram_has_room_for_two_of_the_checkpoint(monkeypatch):
    config = GPTConfig(300, 16, 2, 2, 16)
    size = checkpoint_bytes_of(config, 8)
    for free, copies in ((2 * size + 101, True), (2 * size + 100, False)):
        monkeypatch.setattr("gpt.planning.memory.available_ram", lambda free=free: free)
        assert has_room_for_copy(size, held_bytes=100) == copies


def test_without_memory_for_a_copy_training_waits_and_the_bytes_are_the_same(run, monkeypatch):
    flags = ("--max_steps", "4", "--checkpoint_every_steps", "2", "--eval_interval", "9", "--verbose")
    assert run(*flags)[0] == 0
    monkeypatch.setattr("gpt.planning.memory.available_ram", lambda: 0)
    text = run.ok(*flags, out="waiting")
    assert re.search(r"in ([\d.]+) s, of which training waited \1 s", text)
    for step in (2, 4):
        assert same_tensors(run.folder / f"out/checkpoint-{step}", run.folder / f"waiting/checkpoint-{step}")


def test_the_best_stays_until_a_better_one_is_on_the_disk(run, monkeypatch):
    losses, real = iter([3.0, 2.0, 1.0]), save

    def full_from_step_4(output_dir, step, *rest):
        if step >= 4:
            raise OSError(28, "No space left on device")
        return real(output_dir, step, *rest)

    monkeypatch.setattr("gpt.checkpoint.save.save", full_from_step_4)
    monkeypatch.setattr("gpt.training.validation.Validator.measure", lambda _, windows=None: (
        ValidationLoss(1.0 if windows else next(losses), None)))
    run("--max_steps", "6", "--eval_interval", "2", "--checkpoint_every_steps", "1", "--keep_checkpoints", "1")
    assert list(steps_in(run.folder / "out")) == [3, 2]


def test_the_template_of_a_run_on_conversations_stays_in_later_runs_on_text(run, corpus, monkeypatch, capsys):
    monkeypatch.setattr(Corpus, "converses", True)
    run.ok("--max_steps", "1")
    folder = run.folder / "out/checkpoint-1"
    template = template_of(load_tokenizer(folder))
    assert chat_template(folder) == template
    monkeypatch.undo()
    text = run.folder / "text"
    start = ["--data_dir", str(corpus), "--output_dir", str(text), "--no-use_gpu", "--init_from", str(folder)]
    for flags in ([*start, "--max_steps", "1"], ["--resume_from", str(text), "--max_steps", "2"]):
        assert train.main(flags) == 0
        assert chat_template(text / f"checkpoint-{flags[-1]}") == template
        assert end_ids(text / f"checkpoint-{flags[-1]}", 500) == end_ids(folder, 500)
    assert START not in capsys.readouterr().err
    monkeypatch.setattr("gpt.training.checkpointing.can_converse", lambda tokenizer: False)
    assert train.main([*start, "--overwrite", "--max_steps", "1"]) == 0
    assert chat_template(text / "checkpoint-1") is None
    assert START in capsys.readouterr().err


def test_a_slow_disk_changes_nothing_in_what_a_save_prunes(run, monkeypatch):
    losses, kept, is_late, real, settle = iter([3.0, 2.0, 1.0]), [], Event(), save, Checkpointer.settle
    # That of step 4, the best then, ends when step 6 is the best.
    monkeypatch.setattr("gpt.checkpoint.save.save", lambda folder, step, *rest: (
        step != 4 or is_late.wait(60), real(folder, step, *rest)))
    monkeypatch.setattr(Checkpointer, "settle", lambda own, wait: (
        own._run.state.best_step == 6 and is_late.set(), settle(own, wait)))
    monkeypatch.setattr("gpt.training.checkpointing.prune", lambda folder, *rest: (
        prune(folder, *rest), kept.append([*steps_in(folder)])))
    monkeypatch.setattr("gpt.training.validation.Validator.measure", lambda _, windows=None: (
        ValidationLoss(1.0 if windows else next(losses), None)))
    run("--max_steps", "6", "--eval_interval", "2", "--checkpoint_every_steps", "3", "--keep_checkpoints", "1")
    assert kept == [[2], [3, 2], [4, 3], [6, 4]]


def test_a_model_card_tells_the_data_the_curve_and_the_command_without_paths(run):
    run("--max_steps", "4", "--eval_interval", "2", "--checkpoint_every_steps", "2")
    run("--max_steps", "6", "--eval_interval", "2", "--resume_from", "auto", "--epochs", "9")
    card = (run.folder / "out/checkpoint-6/README.md").read_text()
    losses = {line["step"]: line["val_loss"] for line in metrics_of(run.folder / "out") if "val_loss" in line}
    rows = dict(re.findall(r"^\| (\d) \| ([\d.]+) \|", card, re.MULTILINE))
    assert rows == {str(step): f"{losses[step]:.4f}" for step in (2, 4, 6)}
    assert re.search(r"training tokens: 8\d\d, sha256 [0-9a-f]{64}", card)
    assert re.search(r"    python train\.py --data_dir data --n_layer .*--max_steps 6", card)
    assert str(run.folder) not in card


def test_a_checkpoint_knows_the_validation_of_its_step_and_is_never_changed(run, monkeypatch):
    losses, renamed, real = iter([3.0, 2.5, 2.6]), {}, save

    def watched(output_dir, step, *rest):
        path = real(output_dir, step, *rest)
        renamed[step] = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()}
        return path

    monkeypatch.setattr("gpt.checkpoint.save.save", watched)
    monkeypatch.setattr("gpt.training.validation.Validator.measure", lambda _, windows=None: (
        ValidationLoss(1.0 if windows else next(losses), None)))
    assert run("--max_steps", "6", "--eval_interval", "2", "--checkpoint_every_steps", "2")[0] == 0
    for step, loss, best in ((2, 3.0, 2), (4, 2.5, 4), (6, 2.5, 4)):
        path = run.folder / f"out/checkpoint-{step}"
        assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()} == renamed[step]
        stored = verify(path)
        assert stored.state.best_val_loss == loss
        assert stored.state.best_step == best
        assert stored.state.validated_step == step
        assert stored.permanent == (step == 6)
        assert f"best validation loss in nats: {loss:.4f} at step {best}" in (path / "README.md").read_text()


def test_the_plan_counts_the_checkpoints_that_are_there_at_once(run, monkeypatch):
    most, real = [], prune

    def counted(output_dir, *rest):
        most.append(len(steps_in(output_dir)))  # the new one is there, and nothing is pruned yet
        real(output_dir, *rest)

    losses = iter([1.0, *range(2, 99)])  # the first is the best
    monkeypatch.setattr("gpt.training.validation.Validator.measure", lambda _, windows=None: (
        ValidationLoss(1.0 if windows else next(losses), None)))
    monkeypatch.setattr("gpt.training.checkpointing.prune", counted)
    text = run.ok("--epochs", "5", "--batch_size", "50", "--eval_interval", "2", "--checkpoint_every_steps", "1",
                  "--keep_checkpoints", "1", "--lr_schedule", "constant")
    assert max(most) <= int(re.search(r"^disk .* for (\d+) checkpoints;", text, re.M)[1])  # type: ignore[index]
    assert sum(verify(path).permanent for path in steps_in(run.folder / "out").values()) == 5


def test_a_disk_that_fills_up_costs_the_checkpoint_and_not_the_run(run, monkeypatch):
    real, calls = write_tensors, []

    def full(*a, **k):
        calls.append(1)
        if len(calls) <= 4:  # two files a save
            raise OSError(28, "No space left on device")
        return real(*a, **k)

    monkeypatch.setattr("gpt.checkpoint.save.write_tensors", full)
    text = run.ok("--max_steps", "6", "--checkpoint_every_steps", "2", "--eval_interval", "100")
    assert text.count(": No space left on device. ") == 2
    assert list(steps_in(run.folder / "out")) == [6]
    assert not list((run.folder / "out").glob(".tmp*"))
    calls[:] = []
    run.refused(Exit.MACHINE, "--max_steps", "2", out="full")


def test_the_command_of_the_card_shows_names_without_folders_and_weights_and_prompts_as_they_are():
    given = {"data_dir": ["/home/me/prose:1/3", "tok:0.5", "last:2e-1"], "sample_prompt": "yes/no?", "compile": False,
             "init_from": "hf://a/b", "bin_file": "../x/train.bin"}
    assert command_for_card(given) == ("python train.py --data_dir prose:1/3 tok:0.5 last:2e-1 --sample_prompt "
                                       "'yes/no?' --no-compile --init_from hf://a/b --bin_file train.bin")
