"""check.py: without data and without a GPU it says what the machine can do; what fails is a line, not an end."""

import contextlib
import io
import os
import re
import sys
import time

import pytest
import torch

import train
from common.errors import Exit, UserError
from common.progress import Progress
from common.signals import Signals
from machine import facts
from model import GPTConfig
from planning import check
from planning.memory import GIB, MemorySetting
from tests.helpers.commands import run
from tests.helpers.training import on_cpu


def child(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def say(tmp_path, monkeypatch):
    """A function: what --check with these words says, with products of small matrices, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setattr(check, "matmul_flops", lambda *_: 1e12)
    monkeypatch.setattr(check, "measure_disk", lambda folder: facts.measure_disk(folder, most_bytes=2**20))

    def said(*words: str) -> str:
        printed = io.StringIO()
        with contextlib.closing(Progress(printed)) as out:
            args = train.read_flags(["--check", *words])
            assert check.check_machine(args, on_cpu(), out, Signals(), child("print(1.2)")) == 0
        return printed.getvalue()

    return said


# ---------------------------------------------------------------- the whole


def test_everything_is_said_and_nothing_stays_behind(say, tmp_path):
    said = say()
    labels = re.findall(r"^(\w+) {2,}\S", said.split("\n\n")[0], re.MULTILINE)
    assert labels == ["device", "precision", "attention", "compile", "software", "compiler", "matmul"]
    assert "compiler    works: a small function took 1.2 s" in said
    assert re.search(r"^ +tiny +mini +small +medium +large +xl$", said, re.MULTILINE)
    assert re.search(r"^H100, 80 GB( +[\d.,]+){6}$", said, re.MULTILINE)
    assert re.search(r"^disk        writes .*/s, fsync included; ", said, re.MULTILINE)
    assert list(tmp_path.iterdir()) == [tmp_path / "compiled"]
    assert list((tmp_path / "compiled").iterdir()) == []


def test_the_flags_of_a_shape_make_it_the_only_one(say):
    said = say("--n_layer", "3", "--n_head", "2", "--n_embd", "64", "--vocab_size", "1024")
    assert "1,024 ids" in said
    assert re.search("^ +your shape$", said, re.MULTILINE)
    with pytest.raises(UserError, match="is not a multiple") as caught:
        say("--n_head", "5")
    assert caught.value.code == Exit.FLAGS


def test_hours_are_those_of_the_floating_point_operations_and_need_memory():
    config = GPTConfig()
    setting = MemorySetting("cuda", torch.bfloat16, True, logit_rows=2048)
    flops = 20 * config.num_parameters * config.flops_per_token
    found = [check._hours(config, setting, room * GIB, flops / 3600, price)
             for room, price in ((80, 1.0), (80, 7.0), (2.6, 1.0), (0.1, 1.0))]
    assert found == ["1", "7", "1.3*", "-"]
    assert check._hours(config, setting, 80 * GIB, 0.0, 1.0) == "n/a"


def test_a_disk_that_cannot_be_written_ends_with_5(say, monkeypatch):
    def refuse(folder):
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(check, "measure_disk", refuse)
    with pytest.raises(UserError, match=r"^--output_dir x: Read-only file system\. Free some space") as caught:
        say("--output_dir", "x")
    assert caught.value.code == Exit.MACHINE


@pytest.mark.slow
def test_the_command_itself_checks_a_machine_without_data_in_half_a_minute(tmp_path):
    done = run("train", "--check", "--no-use_gpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^compiler    (works|not known): ", done.stdout, re.MULTILINE), done.stdout
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- compiling


@pytest.mark.parametrize(("code", "words"), [
    ("import sys; sys.exit('first\\nlast\\x1b')", r"does not work: last\x1b. A run does without it"),
    ("import os; os.kill(os.getpid(), 9)", "does not work: exit code -9. A run does without it")])
def test_what_the_child_fails_with_is_said(tmp_path, monkeypatch, code, words):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert check.try_compiling(on_cpu(), child(code), Signals()) == words


def test_a_compiler_that_hangs_is_ended_with_what_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "new"))
    monkeypatch.setattr(check, "COMPILE_SECONDS", 1)
    code = ("import pathlib, subprocess, sys, os; "
            "held = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
            f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(held.pid)); held.wait()")
    found = check.try_compiling(on_cpu(), child(code), Signals())
    assert found == "not known: a small function took more than 1 s. A run waits as long as it takes"
    assert list((tmp_path / "new").iterdir()) == []
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


def test_the_child_says_why_a_function_cannot_be_compiled(monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("no compiler\nmore")

    monkeypatch.setattr(check.torch, "compile", lambda function, dynamic: fail)
    assert check.compile_something(on_cpu()) == Exit.MACHINE
    assert capsys.readouterr().err == "no compiler\n"
    monkeypatch.setattr(check.torch, "compile", lambda function, dynamic: function)
    assert check.compile_something(on_cpu()) == 0
    assert float(capsys.readouterr().out) < 60
