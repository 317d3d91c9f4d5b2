"""Steps that fail: out of memory, between micro-batches; a compiler that cannot."""

import json
import re
import types
from unittest import mock

import pytest
import torch

import train
from gpt.common.errors import Exit
from gpt.common.names import TRAINS_NEXT
from gpt.machine.backends import Backend
from gpt.machine.processes import Processes
from gpt.planning.memory import GIB
from gpt.training import compiling
from gpt.training.pacing import MEASURED_MICRO_BATCHES, WARM_STEPS
from gpt.training.run import Abandoned
from model import GPT
from tests.helpers.refusals import refused
from tests.helpers.training import (
    OUT_OF_MEMORY,
    QUIET,
    forward_that_needs,
    metrics_of,
    run_of,
    small_batch,
    small_model,
    trained,
)


def test_a_compiler_that_fails_costs_one_warning(run, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(Backend, "why_no_compile", lambda _: None)
    monkeypatch.setattr(GPT, "compile", broken)
    forward_that_needs(monkeypatch, 2, OUT_OF_MEMORY["cpu"])  # smaller micro-batches would compile again
    text = run.ok("--max_steps", "2", "--compile", "--batch_size", "4")
    assert text.count("torch.compile failed, running eagerly: no such kernel") == 1
    assert "going on with --batch_size 2 " in text


def test_a_compiler_that_fails_on_the_optimizer_leaves_the_model_compiled(run, monkeypatch):
    def broken(_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(Backend, "why_no_compile", lambda _: None)
    monkeypatch.setattr(GPT, "compile", lambda *_, **__: None)
    monkeypatch.setattr("gpt.training.compiling.compile_optimizer", broken)
    monkeypatch.setattr(torch.compiler, "set_stance", lambda _: pytest.fail("the model became eager"))
    text = run.ok("--max_steps", "2", "--compile", "--optimizer", "muon")
    assert text.count("torch.compile failed on the optimizer, running eagerly: no such kernel") == 1


def test_on_gpus_a_sharded_model_that_not_all_processes_can_compile_ends_the_run(monkeypatch):
    """The others wait on their GPUs for weights that the process which failed will not send."""
    class OneFails(Processes):
        def total(self, numbers):
            return [1.0]

    run, run_eagerly = mock.MagicMock(), mock.Mock()
    run.setup.memory.is_sharded, run.setup.runtime.processes = True, OneFails(rank=1, world_size=2)
    monkeypatch.setattr(compiling, "micro_batches", lambda *_: iter([small_batch(1)]))
    monkeypatch.setattr(compiling, "_run_eagerly", run_eagerly)
    monkeypatch.setattr(compiling, "_error_of", lambda *_: RuntimeError("no such kernel"))
    with refused("process 1: torch.compile failed, and not in all processes: no such kernel", Exit.MACHINE):
        compiling.compile_run(run)
    monkeypatch.setattr(compiling, "_error_of", lambda *_: None)
    with refused("torch.compile failed, and not in all processes: it failed in another process", Exit.MACHINE):
        compiling.compile_run(run)
    for is_sharded, runs_ahead in ((False, True), (True, False)):  # the latter on a CPU
        run.setup.memory.is_sharded, run.setup.runtime.machine.backend.runs_ahead = is_sharded, runs_ahead
        compiling.compile_run(run)
    assert run_eagerly.call_count == 2


@pytest.mark.parametrize(("kind", "preload"), [("gpu", "ram"), ("cpu", "mmap"), ("host", "ram")])
def test_a_step_that_does_not_fit_is_done_in_smaller_micro_batches(run, monkeypatch, kind, preload):
    """Ten samples a step as 10, then as 2 x 5 from the first step on, and as 2 x 5 from the flags: one mathematics."""
    flags = ["--max_steps", "6", "--log_interval", "1", "--eval_interval", "3", "--preload", preload,
             "--input_noise", "0.2"]
    assert run(*flags, "--batch_size", "10", out="whole")[0] == 0
    assert run(*flags, "--batch_size", "2", "--gradient_accumulation_steps", "5", out="fifths")[0] == 0
    rows = forward_that_needs(monkeypatch, 2, OUT_OF_MEMORY[kind])
    text = run.ok(*flags, "--batch_size", "10", out="shrunk")
    assert rows == [10, 5] + [2] * (1 + WARM_STEPS + 30)  # the time of a step is measured before the first one
    assert text.count("out of memory in step 1") == 2
    assert "going on with --batch_size 2 --gradient_accumulation_steps 5" in text
    whole, fifths, shrunk = (metrics_of(run.folder / name) for name in ("whole", "fifths", "shrunk"))
    for one, other in zip(whole, shrunk, strict=True):
        assert other == pytest.approx(one, rel=1e-4)  # validation alike: its windows do not depend on the batch
    assert [fields for fields in shrunk if "loss" in fields] == [fields for fields in fifths if "loss" in fields]


def test_a_step_that_fails_between_micro_batches_leaves_no_trace(run, monkeypatch):
    """Memory runs out in the third of four micro-batches of step 3, with dropout: steps 1 and 2 are those of before."""
    flags = ["--max_steps", "4", "--log_interval", "1", "--dropout", "0.2", "--gradient_accumulation_steps", "4"]
    run(*flags, out="clean")
    forward, calls, measured = GPT.forward, [], MEASURED_MICRO_BATCHES * (1 + WARM_STEPS)

    def once(model, *rest):
        calls.append(len(rest[0]))
        if len(calls) == measured + 11:
            raise OUT_OF_MEMORY["gpu"]
        return forward(model, *rest)

    monkeypatch.setattr(GPT, "forward", once)
    text = run.ok(*flags, out="failed")
    assert "out of memory in step 3 with 4 sequences at a time: going on with --batch_size 2 --gradient_acc" in text
    assert calls[measured + 10:measured + 20] == [4] + [2] * 8 + [2]
    clean, failed = (metrics_of(run.folder / name) for name in ("clean", "failed"))
    assert clean[:2] == failed[:2]
    assert failed[2]["loss"] == pytest.approx(clean[2]["loss"], abs=0.05)  # other neurons are dropped
    assert failed[2]["tokens"] == clean[2]["tokens"]
    # The flags of the file have the former micro-batch, the checkpoint has the smaller one.
    run.ok(*flags, "--max_steps", "6", "--resume_from", "auto", out="failed")
    state = json.loads((run.folder / "failed/checkpoint-6/trainer_state.json").read_text())
    assert (state["settings"]["batch_size"], state["settings"]["accumulation"]) == (2, 8)


def test_undoing_a_step_drops_unfinished_moments_and_scaler_notes():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    run = run_of(small_model(), scaler)
    train.try_step(run, [small_batch(4)], 1)
    parameter = next(iter(run.optimizer.state))
    scale = scaler.get_scale()

    def fails(seen, micro):
        del run.optimizer.state[parameter]["exp_avg_sq"]
        for p in run.model.parameters():
            p.grad = torch.zeros_like(p)
        scaler.scale(torch.ones(()))
        scaler.unscale_(run.optimizer)
        raise Abandoned

    run.batches = types.SimpleNamespace(batch_size=1, get=fails, mean_targets=lambda *_: None)  # type: ignore[assignment]
    with pytest.raises(Abandoned):
        train.take_step(run)
    assert parameter not in run.optimizer.state
    assert all(p.grad is None for p in run.model.parameters())
    assert scaler.get_scale() == scale
    assert torch.isfinite(train.try_step(run, [small_batch(4)], 1)["loss"])


@pytest.mark.parametrize("learning_rate", [0.0, 1e-2])
def test_memory_that_runs_out_while_weights_change_ends_the_run(monkeypatch, learning_rate):
    run = run_of(small_model(), learning_rate=learning_rate)  # 0 while steps are measured: no weight changes
    update, batches = run.optimizer.step, types.SimpleNamespace(
        batch_size=4, get=lambda *_: small_batch(4), mean_targets=lambda *_: None, first_sample=lambda *_: 0)
    batches.resize = lambda smaller: setattr(batches, "batch_size", smaller)
    run.batches = batches  # type: ignore[assignment]

    def fails_once():
        run.optimizer.step = update  # type: ignore[method-assign]
        raise OUT_OF_MEMORY["gpu"]

    run.optimizer.step = fails_once  # type: ignore[method-assign]
    monkeypatch.setattr(train.recovery, "halve_micro_batch", lambda run: batches.resize(2))
    if learning_rate:
        with pytest.raises(RuntimeError, match="out of memory"):
            train.take_step(run, 1)
    else:
        train.take_step(run, 1)
    assert batches.batch_size == (4 if learning_rate else 2)


def test_one_sequence_that_does_not_fit_ends_with_exit_5_and_the_cure(run, monkeypatch):
    rows = forward_that_needs(monkeypatch, 0, OUT_OF_MEMORY["gpu"])
    code, text = run("--max_steps", "2")
    assert code.code == Exit.MACHINE
    assert rows == [4, 2, 1]
    assert "out of memory with 1 sequence at a time" in str(code)
    assert "--seq_length" in str(code)
    assert "--gradient_accumulation_steps 4" in text


def test_what_other_programs_hold_of_the_gpu_is_said(run, monkeypatch):
    forward_that_needs(monkeypatch, 0, OUT_OF_MEMORY["gpu"])
    monkeypatch.setattr(Backend, "held_by_others", lambda _: 9 * GIB)
    code, text = run("--max_steps", "2")
    assert "Other programs hold 8.4 GiB of the GPU; nvidia-smi names them." in str(code)
    assert text.count("nvidia-smi") == 2  # warnings


def test_weights_that_do_not_fit_need_a_smaller_model(run, corpus, capsys, monkeypatch):
    run.ok("--max_steps", "1", out="base")

    def fails(*_):
        raise OUT_OF_MEMORY["gpu"]

    monkeypatch.setattr(train, "build_model", fails)
    message = run.refused(Exit.MACHINE)
    assert "Give a smaller --model_size, or" in message
    error, _ = trained(["--data_dir", str(corpus), "--no-use_gpu", *QUIET, "--init_from", str(run.folder / "base"),
                        "--output_dir", str(run.folder / "tuned")], capsys)
    assert "Give --init_from with a smaller model, or" in str(error)
    assert "ulimit -v unlimited" in message
    assert "--batch_size" not in message


def test_another_error_of_the_step_is_not_taken_for_want_of_memory(run, monkeypatch):
    forward_that_needs(monkeypatch, 0, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run("--max_steps", "2")


def test_a_first_of_two_models_that_diverges_is_not_resumed_with_other_flags(run, monkeypatch):
    def diverge(*_: object) -> None:
        raise FloatingPointError("the loss")

    monkeypatch.setenv(TRAINS_NEXT, "train.py")
    monkeypatch.setattr(train, "loop", diverge)
    said = run.refused(Exit.DIVERGED, "--max_steps", "4")
    assert re.search(r"Start again with --learning_rate \S+, which trains one model\.$", said)
