"""What is decided for a run as a whole: dropout by its passes over the text, the same when it goes on."""

import json
import os
import re
import shutil
import signal
import types
from typing import Any

import pytest

import train
from gpt.checkpoint.steps import steps_in
from gpt.common.errors import Exit, UserError
from gpt.common.names import TRAINS_NEXT
from gpt.machine.processes import ALONE
from gpt.planning.setup import choose_place, choose_preload
from gpt.training.validation import Validator
from tests.helpers.training import QUIET, TINY, trained


@pytest.mark.parametrize(("flags", "dropout"), [
    ("--epochs 3", 0.0), ("--epochs 9", 0.1), ("--epochs 9 --max_steps 9", 0.0), ("--epochs 9 --dropout 0", 0.0),
    ("--max_minutes 0.02", 0.1), ("--max_minutes 1e-9", 0.0),
    ("--epochs 9 --n_embd 4", 0.0), ("--epochs 9 --lr_schedule constant", 0.0),
    ("--epochs 9 --optimizer adamw", 0.0)])
def test_a_small_text_that_muon_reads_often_gets_dropout(run, flags, dropout):
    run.ok("--optimizer", "muon", "--batch_size", "50", *flags.split())
    newest = next(iter(steps_in(run.folder / "out").values()))
    assert json.loads((newest / "config.json").read_text())["resid_pdrop"] == dropout
    assert json.loads((newest / "trainer_state.json").read_text())["settings"]["dropout"] == dropout
    assert f"\ndropout = {dropout}\n" in (newest.parent / "config.toml").read_text()


def test_a_resumed_run_keeps_its_dropout_where_its_passes_become_fewer(run, monkeypatch):
    muon = ["--optimizer", "muon", "--batch_size", "50"]
    run.ok(*muon, "--epochs", "7", "--max_steps", "9999")
    monkeypatch.setattr("gpt.planning.defaults.MANY_PASSES", 9)
    run.ok(*muon, "--epochs", "8", "--resume_from", "auto")
    newest = next(iter(steps_in(run.folder / "out").values()))
    assert json.loads((newest / "trainer_state.json").read_text())["settings"]["dropout"] == 0.1


def test_a_folder_that_cannot_be_resumed_is_refused_before_a_size_is_chosen(run, monkeypatch):
    (run.folder / "hf").mkdir()
    (run.folder / "hf/config.json").write_text("{}")
    monkeypatch.setattr("gpt.planning.inputs.choose_sizing", lambda *_: pytest.fail("measures the processor"))
    run.refused(Exit.CHECKPOINT, "--resume_from", str(run.folder / "hf"))


def test_a_small_text_ends_a_run_before_its_minutes_and_more_minutes_name_what_leads_further(run, monkeypatch):
    assert "the run ends before its 1 min: after 10 passes" in run.ok("--optimizer", "muon", "--max_minutes", "1")
    teacher = str(run.folder / "out")
    text = run.ok("--optimizer", "muon", "--max_minutes", "1", "--teacher", teacher, "--dry_run", out="taught")
    assert "warning: the run ends before its 1 min: after 20 passes" in text
    for minutes in ("1", "2"):
        text = run.ok("--max_minutes", minutes, "--resume_from", "auto")
        assert re.search(r"already at step (\d+) of \1; raise --epochs or --max_steps to continue", text)
    with monkeypatch.context() as patch:
        patch.setenv(TRAINS_NEXT, "train.py")
        assert "; the second model follows" in run.ok("--max_minutes", "1", "--resume_from", "auto")
    newest = max(steps_in(run.folder / "out"))
    run.ok("--epochs", "11", "--resume_from", "auto")
    assert max(steps_in(run.folder / "out")) > newest


def test_a_run_that_patience_ended_takes_no_further_step_until_it_has_more(run, corpus):
    still = ["--eval_interval", "2", "--learning_rate", "1e-30", "--min_lr", "0"]
    assert "the run ends here" in run.ok("--max_steps", "40", "--patience", "2", *still)
    ended, resume = max(steps_in(run.folder / "out")), ["--resume_from", "auto", *still]
    for more in ("40", "80"):
        text = run.ok(*resume, "--max_steps", more)
        assert f"already at step {ended} of {more}; 2 validations brought no new best; raise --patience" in text
    assert max(steps_in(run.folder / "out")) == ended < 40
    assert "already at step" not in run.ok(*resume, "--max_steps", "40", "--eval_tokens", "32", "--dry_run")
    run.ok("--cooldown_from", str(run.folder / "out"), "--cooldown", "4", "--eval_interval", "2", "--min_lr", "0",
           out="cooled")
    assert max(steps_in(run.folder / "cooled")) == ended + 4, "its patience begins anew"
    run.ok(*resume, "--patience", "3")
    assert max(steps_in(run.folder / "out")) == ended + 2
    run.ok(*resume, "--val_bin_file", f"{corpus}/train.bin")  # whose validations count anew
    assert max(steps_in(run.folder / "out")) > ended + 2


def test_a_signal_in_the_validation_that_ends_the_patience_costs_no_further_step(run, monkeypatch):
    measure, validations = Validator.measure, []

    def stopping(validator, *rest):
        validations.extend([] if rest else ["a whole one"])  # those of the pace have an argument
        if not rest and len(validations) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return measure(validator, *rest)

    flags = ["--max_steps", "40", "--patience", "1", "--eval_interval", "2", "--learning_rate", "1e-30", "--min_lr",
             "0"]
    run.ok(*flags, out="whole")
    monkeypatch.setattr(Validator, "measure", stopping)
    assert run(*flags)[0] == 128 + signal.SIGTERM
    assert "1 validation" in run.ok(*flags, "--resume_from", "auto")
    assert max(steps_in(run.folder / "out")) == max(steps_in(run.folder / "whole")) < 40


def test_a_resumed_run_has_the_minutes_that_were_left_however_long_it_loads(run, monkeypatch):
    choose_inputs, try_step = train.choose_inputs, train.try_step

    def slowly(args, runtime):
        runtime.began -= 3600
        return choose_inputs(args, runtime)

    def stopping(run, *rest):
        if run.state.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return try_step(run, *rest)

    flags = ["--max_steps", "6", "--max_minutes", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(train, "try_step", stopping)
        assert run(*flags)[0] == 128 + signal.SIGTERM
    assert max(steps_in(run.folder / "out")) < 6
    monkeypatch.setattr(train, "choose_inputs", slowly)
    run.ok(*flags, "--resume_from", "auto")
    assert max(steps_in(run.folder / "out")) == 6


def test_a_warm_up_is_not_refused_by_the_estimate_of_the_length(run, monkeypatch):
    monkeypatch.setattr("gpt.planning.sizing.FLOPS_PER_THREAD", 1.0)
    run.ok("--max_minutes", "1", "--warmup_steps", "3", "--max_steps", "5", "--optimizer", "muon", "--dry_run")


@pytest.mark.parametrize(("free_bytes", "place"), [(10**9, "gpu"), (1, None)])
def test_tokens_that_the_gpu_has_no_room_for_are_refused_there(free_bytes, place):
    backend = types.SimpleNamespace(has_own_memory=True, free_memory=lambda: free_bytes)
    runtime: Any = types.SimpleNamespace(machine=types.SimpleNamespace(backend=backend), processes=ALONE)
    corpus: Any = types.SimpleNamespace(train=types.SimpleNamespace(num_bytes=2000))
    if place:
        assert choose_place("gpu", corpus, runtime)[0] == place
    else:
        with pytest.raises(UserError, match=r"2000 bytes, and 1 bytes of the GPU are free. Give --preload auto"):
            choose_place("gpu", corpus, runtime)


@pytest.mark.parametrize(("requested", "num_bytes", "gpu_free", "ram_free", "expected"), [
    ("auto", 100, 1000, 200, "gpu"), ("auto", 101, 1000, 202, "ram"), ("auto", 101, 1000, 201, "mmap"),
    ("auto", 100, None, 200, "ram"), ("auto", 100, None, 199, "mmap"), ("ram", 100, 1000, 200, "ram"),
    ("ram", 100, 1000, 199, "mmap"), ("mmap", 1, 1000, 1000, "mmap"), ("gpu", 999, 1000, 1, "gpu")])
def test_the_tokens_live_where_they_fit_and_the_reason_is_given(requested, num_bytes, gpu_free, ram_free, expected):
    where, why = choose_preload(requested, num_bytes, gpu_free, ram_free)
    assert where == expected
    assert (why == "as requested") == (requested == where)


def test_a_file_whose_validation_file_is_gone_is_another_training_text(corpus, tmp_path, capsys):
    """Without it the end of the training file would be validation text, and all windows would lie elsewhere."""
    for name in ("train.bin", "val.bin"):
        shutil.copy(corpus / name, tmp_path)
    resume = ["--bin_file", f"{tmp_path}/train.bin", "--vocab_size", "400", "--output_dir", f"{tmp_path}/out", *TINY,
              *QUIET, "--no-use_gpu", "--resume_from", "auto", "--max_steps"]
    assert trained([*resume, "2"], capsys)[0] == 0
    (tmp_path / "val.bin").unlink()
    error, _ = trained([*resume, "3"], capsys)
    assert isinstance(error, UserError)
    assert error.code == Exit.DATA
    assert "Give the same validation file as before, or none if there was none, or --allow_new_data." in str(error)
    assert trained([*resume, "3", "--val_bin_file", f"{corpus}/val.bin"], capsys)[0] == 0
    assert trained([*resume, "4", "--allow_new_data"], capsys)[0] == 0
