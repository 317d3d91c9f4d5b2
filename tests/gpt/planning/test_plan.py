"""The printed plan, its objections, the dry run."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import train
from gpt.machine.backends import NVIDIA
from gpt.machine.device import Machine
from gpt.machine.processes import ALONE, Processes
from gpt.machine.runtime import TrainingClock
from gpt.planning.deadline import Pace
from gpt.planning.defaults import times_too_short
from gpt.planning.memory import MemorySetting, has_room_for_sample
from gpt.planning.plan import describe_sharing, objections
from model import GPTConfig, Options
from tests.helpers.machines import CPU
from tests.helpers.training import QUIET, trained


def test_a_dry_run_prints_the_whole_plan_and_writes_nothing(run):
    code, text = run("--dry_run", "--gpu_cost_per_hour", "2.5", "--epochs", "1", "--batch_size", "3")
    assert code == 0
    assert {"step_seconds:", "tokens_per_second:", "hours_per_epoch:", "peak_memory:", "time", "cost:", "device",
            "precision", "attention", "model", "memory", "step", "length", "schedule", "default"} <= {
                line.split(" ")[0] for line in text.splitlines()}
    assert "the validation set has only 92 tokens" in text
    assert "mfu" not in text  # of a CPU
    assert re.search(r" parameters: 1 layer, \d heads, .*\n(.*\n)+length .*, 1 epoch\n", text)
    assert "cost: n/a, no GPU was used. On common GPUs: --check --gpu_cost_per_hour 2.5\n" in text
    assert re.search(r"^validation_seconds: 0\.\d*[1-9]", text, re.MULTILINE)
    assert not (run.folder / "out").exists()


def test_a_corpus_shorter_than_a_sequence_trains_on_a_shorter_one(tmp_path, capsys):
    np.arange(20, dtype="<i2").tofile(tmp_path / "short.bin")
    assert train.main(["--bin_file", f"{tmp_path}/short.bin", "--vocab_size", "32", "--model_size", "tiny",
                       "--max_steps", "2", "--output_dir", f"{tmp_path}/out"]) == 0
    text = capsys.readouterr().err
    assert "sequences have only 19 tokens, as the text has 20." in text
    assert "no validation tokens" in text


def test_a_batch_larger_than_the_text_is_said_before_a_step_is_measured(run, monkeypatch, capsys):
    monkeypatch.setattr(train, "measure_pace", lambda *_: pytest.fail("measured"))
    for number, cure in ((1, ""), (2, " --gradient_accumulation_steps 1")):
        with pytest.raises(pytest.fail.Exception):
            run("--batch_size", "1000000", "--gradient_accumulation_steps", str(number))
        text = capsys.readouterr().err
        assert re.search(rf"warning: each step reads the text [\d,]{{3,}} times: .* --batch_size \d+{cure}\.\n", text)


def test_a_first_step_that_compiles_for_long_is_no_measure_of_the_next_ones(run, monkeypatch):
    laps = iter([15.0, 0.25, 0.25, 0.25])
    monkeypatch.setattr(TrainingClock, "lap", lambda clock, end=None: next(laps, 0.25))
    assert re.search(r"^time .*, estimated: 2 steps of 0\.25 s, ", run.ok("--max_steps", "2"), re.MULTILINE)


def test_minutes_that_allow_few_steps_of_a_named_size_name_enough_of_them(run, monkeypatch):
    pace = Pace(step_seconds=2.5, val_token_seconds=0.0, num_val_tokens=0, sample_seconds=0.0, save_seconds=0.0,
                last_save_seconds=0.0)
    monkeypatch.setattr(train, "measure_pace", lambda *_: pace)
    text = run.ok("--max_minutes", "0.5", "--dry_run")
    minutes, steps, enough = re.findall(r"--max_minutes (\S+) allows only (\d+) steps .* --max_minutes (\d+)", text)[0]
    assert (minutes, int(steps) < 12, 4 <= int(enough) <= 6) == ("0.5", True, True)
    assert times_too_short(100, 10**6, 10**6, 10**7) <= 1
    assert times_too_short(100, 10**6 // 4, 10**6, 10**7) == 4  # a quarter of the text, far from a token a parameter
    assert times_too_short(100, 10**6, 10**9, 10**6) <= 1


@pytest.mark.parametrize(("init_from", "noise", "width", "cures"), [
    (None, 0.0, 768, ["Try a smaller --model_size"]), (None, 0.0, 12, ["Add text"]), ("out", 0.0, 768, []),
    (None, 0.1, 768, [])])
def test_what_helps_a_small_corpus_are_flags_that_the_run_takes(init_from, noise, width, cures):
    args = SimpleNamespace(init_from=init_from, epochs=3, max_steps=None, max_minutes=None, teacher=None,
                           input_noise=noise)
    setup: Any = SimpleNamespace(args=args, is_pretrained=bool(init_from), resumed=None,
                                 config=GPTConfig(50257, 64, 12, 12, width, dropout=0.1),
                                 sizing=None, recipe=SimpleNamespace(passes=3.0, num_samples=3, total_steps=999,
                                                                     learning_rate=1, usual_learning_rate=1),
                                 corpus=SimpleNamespace(train=SimpleNamespace(length=1000), components=()),
                                 tokens_per_step=512)
    assert [re.findall(r"parameters\. (.*); a second run", line)[0] for line in objections(setup)] == cures


def test_a_resumed_run_from_pretrained_weights_ends_at_its_minutes_as_a_new_one_does(run, corpus, capsys, monkeypatch):
    pace = Pace(step_seconds=1e-3, val_token_seconds=0.0, num_val_tokens=0, sample_seconds=0.0, save_seconds=0.0,
                last_save_seconds=0.0)
    monkeypatch.setattr(train, "measure_pace", lambda *_: pace)
    run.ok("--max_steps", "1", out="base")
    base, tuned = str(run.folder / "base"), str(run.folder / "tuned")
    flags = ["--data_dir", str(corpus), "--no-use_gpu", *QUIET]
    assert trained([*flags, "--init_from", base, "--output_dir", tuned, "--max_steps", "1"], capsys)[0] == 0
    for out, ends_early in ((base, True), (tuned, False)):
        text = trained([*flags, "--resume_from", out, "--max_minutes", "5", "--dry_run"], capsys)[1]
        assert ("the run ends before its 5 min" in text) == ends_early, text


def test_a_flag_that_is_given_is_no_default(run):
    text = run.ok("--max_steps", "2", "--dry_run")
    assert "default     warmup_steps" in text
    assert "default     seq_length" not in text


def test_a_first_run_on_a_laptop_prints_size_time_and_disk_and_few_words_before_its_first_step(
        corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert train.main(["--data_dir", str(corpus), "--no-use_gpu", "--max_steps", "1"]) == 0
    printed = capsys.readouterr()
    before = re.sub(r"^\.\.\. .*\n", "", printed.out.partition("step 1/")[0], flags=re.MULTILINE)  # on a busy machine
    assert [line.split()[0] for line in before.splitlines()] == ["size", "Qwen3's", "time", "disk"]
    assert max(map(len, before.splitlines())) <= 80
    assert len(f"{before} {printed.err}".split()) <= 200
    assert re.search(r"^size        2 x 128: \S+ parameters for \S+ tokens; another: --model_size\n", before)
    assert "\n            Qwen3's network on a CPU; --arch gpt2 for GPT-2\n" in before
    assert re.search(r"^time        about .*, estimated: 1 step of [\d.]+ s, \S+ epochs$", before, re.MULTILINE)


def test_eager_steps_are_warned_of_where_compiled_ones_are_usual(run, monkeypatch):
    monkeypatch.setattr(type(CPU.backend), "compiles_by_default", True)
    assert "expect half the speed" in run.ok("--max_steps", "1", "--no-compile", "--dry_run")


def test_flags_of_compiled_steps_and_of_several_processes_are_not_silent_without_them(run):
    assert "--compile_mode blocks: has no effect here without --compile" in run.ok(
        "--max_steps", "1", "--compile_mode", "blocks")
    sharded = ["--max_steps", "1", "--model_parallel", "fsdp", "--overwrite"]
    assert "--model_parallel fsdp: has no effect in one process" in run.ok(*sharded)
    assert "has no effect" not in run.ok("--max_steps", "2", "--resume_from", "auto")


def test_tokens_that_do_not_fit_the_ram_are_mapped_and_this_is_said(run, monkeypatch):
    monkeypatch.setattr("gpt.planning.setup.available_ram", lambda: 1000)
    for flags, times in (("--preload ram", 1), ("--preload auto", 0)):
        text = run.ok("--max_steps", "1", "--overwrite", *flags.split())
        assert text.count("--preload ram: the tokens are mapped from the disk instead: ") == times


def test_too_little_disk_is_said_in_figures_and_with_the_flag_that_saves_most(run, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**20))
    _, text = run("--epochs", "9", "--batch_size", "50")
    saved = re.search(r"^disk        ([\d.]+ MiB) at most in .*, for 14 checkpoints; 1.0 MiB free$", text, re.MULTILINE)
    assert saved
    assert f"disk        {saved[1]} at most" in text
    assert "--output_dir has too little free" in text


@pytest.mark.parametrize(("strategy", "local_world_size", "words"), [
    ("ddp", 4, "processes   4, ddp: asked for; 5.9 GiB of memory for each"),
    ("hsdp", 2, "processes   4, hsdp: asked for; 4.9 GiB of memory for each")])
def test_a_line_says_how_processes_share_and_what_each_holds(strategy, local_world_size, words):
    assert sharing(GPU, Processes(0, 4, 0, local_world_size), strategy) == [words]


@pytest.mark.parametrize(("gib", "interval", "num_lines"), [(0.5, 10, 2), (0.5, 0, 1), (80, 10, 1)])
def test_a_model_too_large_to_be_gathered_gives_no_samples(monkeypatch, gib, interval, num_lines):
    monkeypatch.setattr(NVIDIA, "total_memory", lambda: int(gib * 2**30))
    lines = sharing(GPU, Processes(0, 4, 0, 4), "fsdp", interval)
    assert len(lines) == num_lines
    assert all("--sample_interval 0" in line and " 474.7 MiB " in line for line in lines[1:])


def test_gpus_that_are_idle_are_said_with_the_command_that_uses_them(monkeypatch):
    monkeypatch.setattr(NVIDIA, "num_devices", lambda: 2)
    assert sharing(GPU, ALONE) == ["GPUs        1 of 2 is used. All, by: torchrun --nproc_per_node gpu train.py ..."]
    assert sharing(CPU, ALONE) == []
    assert len(sharing(GPU, Processes(0, 2, 0, 2))) == 1
    monkeypatch.setattr(NVIDIA, "num_devices", lambda: 1)
    assert sharing(GPU, ALONE) == []


GPU = replace(CPU, device=torch.device("cuda"), dtype=torch.float16, compile=True)


def sharing(machine: Machine, processes: Processes, strategy: str = "ddp", interval: int = 0,
            ) -> list[str]:
    setting = MemorySetting.of(GPU, Options(residual_dtype=GPU.dtype), 8, strategy, processes)
    config = GPTConfig(50257, 1024, 12, 12, 768)
    shows_samples = interval > 0 and has_room_for_sample(config, setting, machine, processes)
    setup: Any = SimpleNamespace(config=config, recipe=SimpleNamespace(sample_interval=interval),
                                 shows_samples=shows_samples,
                                 memory=setting, micro_batch=8, why_strategy="asked for",
                                 corpus=SimpleNamespace(components=()),
                                 runtime=SimpleNamespace(processes=processes, machine=machine))
    return describe_sharing(setup)
