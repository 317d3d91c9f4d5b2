"""check.py: without data and without a GPU it says what the machine can do; what fails is a line, not an end."""

import contextlib
import importlib.util
import io
import json
import os
import re
import sys
import time
from dataclasses import replace

import pytest
import torch

import train
from common.errors import Exit, UserError
from common.progress import Progress
from common.signals import Signals
from machine import facts
from machine.device import Machine
from planning import check
from planning.estimates import Estimate
from tests.helpers.commands import run
from tests.helpers.training import on_cpu

ANSWER = [sys.executable, "-c", 'print("{\\"seconds\\": 1.25}")']


@pytest.fixture
def say(tmp_path, monkeypatch):
    """A function: what a machine check with these words says, with products of small matrices, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(check, "matmul_width", lambda machine: 64)
    measure = facts.measure_disk
    monkeypatch.setattr(check, "measure_disk", lambda folder: measure(folder, most_bytes=2**20))

    def told(*words: str, trial=ANSWER) -> str:
        printed = io.StringIO()
        with contextlib.closing(Progress(printed)) as out:
            assert check.check_machine(train.read_flags(["--check", *words]), on_cpu(), out, Signals(), trial) == 0
        return printed.getvalue()

    return told


# ---------------------------------------------------------------- the whole


def test_everything_is_said_in_80_columns_and_nothing_stays_behind(say, tmp_path):
    said = say()
    assert max(map(len, said.replace(str(tmp_path), "here").splitlines())) <= 80
    labels = re.findall(r"^(\w+) {2,}\S", said.split("\n\n")[0], re.MULTILINE)
    assert labels == ["device", "software", "precision", "matmul", "attention", "compile", "RAM", "disk"]
    assert "compile     works: a small function took 1.2 s" in said
    for name in ("tiny", "gpt2_xl", "141 GB", "RTX 4060", "--gradient_accumulation_steps", "--dry_run"):
        assert name in said
    assert list(tmp_path.iterdir()) == []


def test_flags_that_a_check_does_not_use_are_named(say, capsys):
    say("--batch_size", "4", "--epochs", "3", "--data_dir", "nowhere", "--tokens", "1B", "--no-use_gpu")
    assert capsys.readouterr().err == ("warning: --check reads no data and trains nothing. These flags have no effect: "
                                       "--batch_size, --data_dir, --epochs.\n")
    say("--seq_length", "256")
    assert capsys.readouterr().err == ""


def test_every_flag_that_a_check_uses_exists():
    assert vars(train.read_flags([])).keys() >= check.READ


def test_the_flags_of_a_shape_make_it_the_only_one(say):
    said = say("--n_layer", "3", "--n_head", "2", "--n_embd", "64", "--vocab_size", "1024")
    assert "your shape" in said
    assert "1,024 ids" in said
    assert "gpt2_xl" not in said
    assert "gpt2_xl" in say("--model_size", "gpt2_xl")
    with pytest.raises(UserError, match="is not a multiple") as caught:
        say("--n_head", "5")
    assert caught.value.code == Exit.FLAGS


def test_the_largest_size_for_this_machine_is_named_with_its_flags(imagined_gpu):
    configs = check.models_of(train.read_flags(["--check"]))
    here = {"tiny": Estimate(16, 1, False, 1.0), "mini": Estimate(8, 1, True, 40.0),
            "gpt2_xl": Estimate(1, 1, False, 49.0)}
    processor = replace(imagined_gpu, device=torch.device("cpu"))
    assert check.recommended_here(processor, configs, here, " --use_amp") == (
        "Largest in less than 48 hours: mini, with --model_size mini --use_amp")
    assert check.recommended_here(imagined_gpu, configs, here, "").endswith(
        "mini, with --model_size mini --batch_size 8 --gradient_accumulation_steps 8 --activation_checkpointing")
    for none in ({"gpt2_xl": here["gpt2_xl"]}, {"gpt2_xl": Estimate(0, 0, False, None)}):
        assert check.recommended_here(processor, configs, none, "").startswith("No size is trained in less than 48")


def test_the_figures_can_be_had_as_json(say, tmp_path):
    say("--json", "found.json", "--tokens", "2.6B", "--model_size", "gpt2_small")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["compile"] == {"seconds": 1.25, "reason": "", "gave_up": False}
    assert set(found["cards"]) == {"8", "12", "16", "24", "40", "48", "80", "141"}
    assert found["cards"]["80"]["card"] == "H100"
    assert found["cards"]["80"]["gpt2_small"]["batch_size"] == 16
    assert found["disk"]["bytes_per_second"] > 0
    assert found["matmul_flops"]["fp32"] > 0


def test_a_disk_that_cannot_be_written_is_said_among_the_rest_and_ends_with_5(tmp_path, capsys, say, monkeypatch):
    def refuse(folder):
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(check, "measure_disk", refuse)
    with pytest.raises(UserError, match=r"^--output_dir x: Read-only file system\. Free some space") as caught:
        say("--output_dir", "x", "--json", "found.json")
    assert caught.value.code == Exit.MACHINE
    assert json.loads((tmp_path / "found.json").read_text())["disk"] == {"problem": "Read-only file system"}


@pytest.mark.slow
def test_the_command_itself_checks_a_machine_without_data_in_half_a_minute(tmp_path):
    done = run("train", "--check", "--no-use_gpu", cwd=tmp_path, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^compile     (works|not known): ", done.stdout, re.MULTILINE), done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def imagined_gpu(monkeypatch):
    """A machine with an H100 that answers every question, but multiplies nothing."""
    answers = {"device_count": 2, "mem_get_info": (79 * 2**30, 80 * 2**30), "is_tf32_supported": True,
               "is_bf16_supported": True, "is_available": True, "get_device_capability": (9, 0),
               "get_arch_list": ["sm_90"]}
    for name, answer in answers.items():
        monkeypatch.setattr(check.torch.cuda, name, lambda *_, answer=answer, **__: answer)
    monkeypatch.setattr(check.device, "attention_backend", lambda *_: "flash")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(check, "driver_version", lambda: "570.86.10")
    return Machine(torch.device("cuda"), "NVIDIA H100 80GB HBM3", "a GPU is available", torch.bfloat16, "native", True,
                   "default on a GPU", ())


def test_a_gpu_is_described_with_its_driver_and_its_precisions(imagined_gpu):
    args = train.read_flags(["--check"])
    products = {"fp32": 5e13, "bf16": 7e14}
    said = dict(check.facts(args, imagined_gpu, check.Compiling(3.0), "no room", products))
    assert said["device"].endswith("H100 80GB HBM3, 80.0 GiB, and 1 more GPU that this run leaves idle (a GPU is "
                                   "available)")
    assert said["driver"].startswith("570.86.10; cuDNN ")
    assert said["precision"].startswith("bf16 native, fp16 with loss scaling, TF32 yes, 8 bits yes; bf16 here")
    assert said["matmul"] == "TFLOP/s, two matrices of 8,192 x 8,192: fp32 50, bf16 700"
    assert said["attention"] == "flash at T 1,024"
    assert check.fastest(args, imagined_gpu, check.Compiling(None, "x")).compile is False
    assert check.fastest(args, imagined_gpu, check.Compiling(3.0)) == imagined_gpu


def test_products_for_which_there_is_no_memory_are_left_out(monkeypatch):
    def run_out(machine, dtype, *_):
        if dtype == torch.bfloat16:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 1e12

    monkeypatch.setattr(check, "matmul_flops", run_out)
    monkeypatch.setattr(check.device, "has_bf16", lambda device: True)
    before = torch.get_float32_matmul_precision()
    assert check.measure_products(on_cpu()) == {"fp32": 1e12}
    assert torch.get_float32_matmul_precision() == before


# ---------------------------------------------------------------- compiling


def child(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(("code", "words"), [
    ('print("{\\"seconds\\": null, \\"reason\\": \\"no room\\"}")', "does not work: no room. A run does without it"),
    ("import sys; sys.exit('first\\nlast\\x1b')", r"does not work: last\x1b. A run does without it"),
    ("print('[1]')", "does not work: exit code 0. A run does without it"),
    ("import os; os.kill(os.getpid(), 9)", "does not work: exit code -9. A run does without it")])
def test_what_the_child_answers_or_fails_with_is_said(tmp_path, code, words):
    assert str(check.run_trial_of_compiling(child(code), str(tmp_path), Signals())) == words


def test_a_compiler_that_hangs_is_ended_with_what_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "COMPILE_SECONDS", 1)
    started = time.monotonic()
    code = ("import pathlib, subprocess, sys, os; "
            "held = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
            f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(held.pid)); held.wait()")
    found = check.run_trial_of_compiling(child(code), str(tmp_path), Signals())
    assert str(found) == "not known: a small function took more than 1 second. A run waits as long as it takes"
    assert time.monotonic() - started < 10
    held = int((tmp_path / "pid").read_text())
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{held}/stat") as status:
            if status.read().rsplit(")", 1)[1].split()[0] != "Z":
                time.sleep(0.05)
                continue
        break
    else:
        raise AssertionError("it still runs")


def test_a_signal_ends_the_child_and_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    signals = Signals()
    signals.number = 15
    with pytest.raises(SystemExit) as caught:
        check.try_compiling(on_cpu(), child("import time; time.sleep(60)"), signals)
    assert caught.value.code == 128 + 15
    assert list(tmp_path.iterdir()) == []


def test_kernels_that_cannot_be_kept_are_a_reason(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file"))
    found = check.try_compiling(on_cpu(), ANSWER, Signals())
    assert found.reason.startswith(f"kernels cannot be kept in {tmp_path / 'file'}: ")


def test_a_machine_on_which_nothing_was_ever_compiled_has_no_cache_yet(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    assert check.try_compiling(on_cpu(), ANSWER, Signals()) == check.Compiling(1.25)
    assert list((tmp_path / "new/text-to-gpt2/compiled").iterdir()) == []


def test_the_child_says_why_a_function_cannot_be_compiled(monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("no compiler\nmore")

    monkeypatch.setattr(check.torch, "compile", lambda function, dynamic: fail)
    assert check.compile_something(on_cpu()) == 0
    assert json.loads(capsys.readouterr().out) == {"seconds": None, "reason": "no compiler", "gave_up": False}
    monkeypatch.setattr(check.torch, "compile", lambda function, dynamic: function)
    assert check.compile_something(on_cpu()) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] > 0
