"""tests/gpu.sh without a GPU: what it runs first, what it leaves, does again, and keeps of a call that was killed."""

import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import data
from gpt.tokens.layouts import Part
from gpt.tokens.stream import TokenStream
from tests import gpu_kernels, gpu_profile
from tests.helpers.commands import ROOT

PYTHON = """#!/bin/bash
case "$*" in *--check*) echo "attention ";; *collect_env*) echo "PyTorch version";; *rungs*) [ -e GO ] || sleep 9;; esac
echo "$*" >> CALLS
"""


def test_a_killed_call_is_kept_and_goes_on_and_an_empty_result_is_a_failure(tmp_path):
    (tmp_path / "python").write_text(PYTHON.replace("GO", f"{tmp_path}/go").replace("CALLS", f"{tmp_path}/calls"))
    (tmp_path / "python").chmod(0o755)
    env = {**os.environ, "SMALL": "1", "PYTHON": str(tmp_path / "python"), "OUT": str(tmp_path / "out")}
    words, kept = ["bash", ROOT / "tests/gpu.sh", "facts", "ladder"], tmp_path / "out/gpu-figures.tgz"
    first = subprocess.Popen(words, env={**env, "FIGURES": str(tmp_path / "a")}, start_new_session=True)
    while not (tmp_path / "a/ladder-tiny,32,4,512-0.txt").exists():
        assert first.poll() is None
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    kept.rename(tmp_path / "old.tgz").with_name("calls").unlink()
    again = subprocess.run(words, env={**env, "FIGURES": str(tmp_path / "b"), "RESTORE": str(tmp_path / "old.tgz")},
                           capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "--check" not in (tmp_path / "calls").read_text()
    assert "--rungs 0" in (tmp_path / "calls").read_text()
    assert "FAILED: no line like" in again.stdout
    with tarfile.open(kept) as archive:
        names = {name.removeprefix("./") for name in archive.getnames()}
    assert {"facts-check.txt", "facts-check.status", "ladder-tiny,32,4,512-0.status"} <= names


FIRST = ("--check", "pretokenize.py --demo", "train.py --use_gpu --use_amp --compile", *["generate.py"] * 3,
         "evaluate.py", *["-m pytest"] * 3, "tests.gpu_kernels", "--optimizer adamw", "--optimizer muon")
TIMEOUT = """#!/bin/bash
echo "$4" >> LIMITS
shift 4
exec "$@"
"""


@pytest.mark.slow
def test_first_needs_no_file_and_each_of_its_commands_has_a_limit(tmp_path):
    for name, text in (("python", PYTHON), ("timeout", TIMEOUT)):
        (tmp_path / name).write_text(text.replace("CALLS", f"{tmp_path}/calls").replace("LIMITS", f"{tmp_path}/limits"))
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PYTHON": str(tmp_path / "python"), "FIGURES": str(tmp_path / "figures"),
           "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", ROOT / "tests/gpu.sh", "first"], env=env, capture_output=True, check=False)
    called = iter((tmp_path / "calls").read_text().splitlines())
    assert all(any(words in line for line in called) for words in FIRST)  # in this order
    limits = [int(limit) for limit in (tmp_path / "limits").read_text().split()]
    assert len(limits) == len(FIRST) + 1
    assert max(limits) <= 260


@pytest.mark.slow
@pytest.mark.parametrize("part", ["decode", "saving"])
def test_a_part_shows_its_figures_on_a_processor_too(part, tmp_path):
    pytest.importorskip("transformers")
    env = {**os.environ, "SMALL": "1", "PYTHON": sys.executable, "FIGURES": str(tmp_path)}
    found = subprocess.run(["bash", "tests/gpu.sh", part], cwd=ROOT, env=env,
                           capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
    assert "FAILED" not in found.stdout


def test_the_flop_of_each_kernel_are_those_that_torch_counts():
    draw = partial(torch.randn, dtype=torch.bfloat16)
    num_products = 0
    for name, work, flop, _ in gpu_kernels.of_a_step(2, 16, 2, 8, 1, 64, draw):
        if "attention" in name or name.endswith((" dw", "GELU")):  # the future counts in torch; a CPU lacks the others
            continue
        with FlopCounterMode(display=False) as counter:
            work()
        assert "dw added" in name or counter.get_total_flops() == flop, name
        num_products += flop > 0
    assert num_products == 23


def test_a_kernel_that_the_device_lacks_does_not_end_the_others(monkeypatch, capsys):
    def fails() -> None:
        raise RuntimeError("no kernel image")

    kernels = [("one", fails, 1.0, 1.0), ("two", lambda: None, 1.0, 1.0)]
    monkeypatch.setattr(gpu_kernels, "of_a_step", lambda *shape: kernels)
    monkeypatch.setattr(sys, "argv", ["gpu_kernels.py", "--no-use_gpu"])
    assert gpu_kernels.main() == 0
    one, two = capsys.readouterr().out.splitlines()
    assert "no kernel image" in one
    assert re.fullmatch(r"two +[\d.,]+ us +[\d.]+ TFLOP/s +[\d.]+ TB/s", two)


def test_the_kernels_of_late_steps_are_summed_up_by_their_kind(tmp_path, capsys):
    np.zeros(999, "<u2").tofile(tmp_path / "0.bin")
    stream, cpu = TokenStream((Part(tmp_path / "0.bin", "uint16", 999),), 2**16), torch.device("cpu")
    batches = gpu_profile.ProfiledBatches(data.CorpusWindows(stream, "ram", 16, 5, cpu), 4, cpu)
    for step in range(gpu_profile.FIRST_RECORDED + gpu_profile.NUM_RECORDED):
        batches.get(4 * step, 0)
        torch.mm(torch.ones(9, 9), torch.ones(9, 9))
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[3:] for words in said if words[5] in ("products", "aten::mm")] == [
        ["1", "x", "products"], ["1", "x", "aten::mm"]]

    events = [SimpleNamespace(key=name, device_type=f"DeviceType.{place}", self_device_time_total=6e3 * ms, count=12,
                              is_user_annotation=name == "step")
              for name, place, ms in (("nvjet_tst", "CUDA", 3), ("step", "CUDA", 9), ("aten::mm", "CPU", 0),
                                      ("cudnn_sdpa_flash", "CUDA", 2), ("triton_red_fused", "CUDA", 1))]
    gpu_profile.print_kernels(events, on_gpu=True)
    text = re.sub(" +", " ", capsys.readouterr().out)
    for row in ("6.000 ms 6 x a step", "2.000 ms 2 x attention", "3.000 ms 2 x products", "1.000 ms 2 x compiled"):
        assert f"profile {row}\n" in text
    assert "aten::mm" not in text
