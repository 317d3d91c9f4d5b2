"""together.py: what the plan says of several processes, and of GPUs that one process leaves idle."""

import contextlib
import re
import shlex
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from machine.processes import Processes
from model import GPTConfig
from planning import together
from planning.memory import MemorySetting
from planning.sharing import Sharing
from planning.together import describe_idle_gpus, describe_processes
from tests.helpers.machines import CPU

T4 = replace(CPU, device=torch.device("cuda"), name="Tesla T4", dtype=torch.float16)


def plan_of(way, processes) -> Any:
    recipe = SimpleNamespace(samples_per_step=512, batch_size=8, accumulation=64)
    setting = MemorySetting("cuda", torch.float16, True, sharing=Sharing.of(way, processes))
    return SimpleNamespace(config=GPTConfig(), recipe=recipe, memory=setting, at_a_time=8, why_way="--model_parallel",
                           kind=SimpleNamespace(name="adamw"))


@pytest.mark.parametrize(("way", "local_world_size", "words"), [
    ("ddp", 4, "processes   4, ddp: --model_parallel"),
    ("hsdp", 2, "processes   4 on 2 machines, hsdp: --model_parallel")])
def test_two_lines_say_how_processes_share_and_what_it_costs(monkeypatch, way, local_world_size, words):
    monkeypatch.setattr(together, "measured_bandwidth", lambda *_: 2**30)
    processes = Processes(0, 4, 0, local_world_size)
    out = SimpleNamespace(phase=contextlib.nullcontext)
    runtime: Any = SimpleNamespace(processes=processes, machine=T4, out=out)
    pace: Any = SimpleNamespace(step=10.0)
    lines = describe_processes(plan_of(way, processes), pace, runtime, False)
    assert len(lines) == 2
    assert max(map(len, lines)) <= 80
    assert lines[0] == words
    assert re.fullmatch(r"each        takes [\d.]+ GiB, sends [\d.]+ [MG]iB a step at 1.0 GiB/s: waits \d+% of it",
                        lines[1])
    whole = describe_processes(plan_of(way, processes), pace, runtime, True)
    assert whole[:2] == lines
    assert "gradients" in whole[2]


def test_gpus_that_are_idle_are_said_with_the_command_that_uses_them(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(sys, "argv", ["train.py", "--data_dir", "my data", "--use_gpu"])
    (line,) = describe_idle_gpus(plan_of("ddp", Processes()), T4, Processes())
    found = re.fullmatch(r"GPUs        1 of 2 is used\. All, (1\.9|2\.0) times as fast \(computed\), by: (.*)", line)
    assert found
    assert shlex.split(found[2]) == ["torchrun", "--nproc_per_node", "2", *sys.argv]
    (unknown,) = describe_idle_gpus(plan_of("ddp", Processes()), replace(T4, name="a new card"), Processes())
    assert unknown.startswith("GPUs        1 of 2 is used. All, by: torchrun")


def test_nothing_is_said_where_nothing_is_idle(monkeypatch):
    plan = plan_of("ddp", Processes())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert describe_idle_gpus(plan, T4, Processes()) == []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert describe_idle_gpus(plan, CPU, Processes()) == []
    assert describe_idle_gpus(plan, T4, Processes(0, 2, 0, 2)) == []
