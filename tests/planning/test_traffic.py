"""traffic.py: the bytes that PyTorch's collectives are given, and the time they take."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from common.ranks import on_its_own
from machine.processes import Processes
from planning.sharing import Sharing
from planning.traffic import Links, Message, exposed_seconds, exposed_share, messages_of_step
from tests.helpers.one_of_many import Step, config_of, one_of, sent_bytes

ROOT = Path(__file__).parents[2]
MACHINES = {"ddp": 1, "fsdp": 1, "hsdp": 2}
STEPS = [("qwen3", Step("ddp", 3)), ("qwen3", Step("fsdp", 4, "adamw", True, 2)),
         ("gpt2", Step("hsdp", 4, "muon", True, 2))]
MORE_STEPS = [("gpt2", Step("ddp", 2, "muon", True, 2)), ("gpt2", Step("fsdp", 8, "muon")),
              ("qwen3", Step("hsdp", 6, "muon")), ("gpt2", Step("fsdp", 2, recompute=True))]


def predicted(arch, step, machines):
    sharing = Sharing.of(step.way, Processes(0, step.world_size, 0, step.world_size // machines))
    dtype, muons_dtype = torch.bfloat16 if step.half else torch.float32, torch.bfloat16
    found = Counter()
    for message in messages_of_step(config_of(arch), sharing, step.accumulation, dtype,
                                    muons_dtype if step.optimizer == "muon" else None):
        found[message.kind] += message.num_bytes * message.times
    return dict(found)


@pytest.mark.parametrize(("arch", "step"), [*STEPS, *(pytest.param(*more, marks=pytest.mark.slow)
                                                      for more in MORE_STEPS)])
def test_the_bytes_of_a_step_are_those_that_were_predicted(arch, step):
    machines = MACHINES[step.way]
    with one_of(step.world_size, machines) as processes:
        assert sent_bytes(config_of(arch), step, processes) == predicted(arch, step, machines)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
def test_the_bytes_of_real_processes_are_those_that_were_predicted(world_size, tmp_path):
    steps = [Step(way, world_size, *rest) for way in ("ddp", "fsdp", "hsdp")[:world_size // 2 + 1]
             for rest in itertools.product(("adamw", "muon"), (False, True), (1, 2))]
    cases = list(itertools.product(("gpt2", "qwen3"), steps))
    asked = json.dumps([(arch, asdict(step)) for arch, step in cases])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node",
               str(world_size), "-m", "tests.helpers.one_of_many", str(tmp_path / "found"), asked]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300,
                   env={**on_its_own(os.environ), "OMP_NUM_THREADS": "1"})
    for (arch, step), found in zip(cases, json.loads((tmp_path / "found").read_text()), strict=True):
        assert found == predicted(arch, step, MACHINES[step.way]), (arch, step)


def test_every_process_sends_what_a_ring_sends():
    assert Message("all_reduce", "gradients", 800, 4).sent == 2 * 600
    assert Message("all_gather", "weights", 800, 4, times=3).sent == 3 * 600
    assert Message("reduce_scatter", "gradients", 800, 8).sent == 700


def test_one_process_sends_nothing():
    assert messages_of_step(config_of("gpt2"), Sharing(), 4, torch.float32, torch.bfloat16) == []


def test_a_ring_through_several_machines_is_as_fast_as_the_slower_link():
    links = Links(within=100.0, between=40.0, local_world_size=4)
    seconds = [links.seconds(Message("all_gather", "weights", 800, 2, where)) for where in ("within", "all", "between")]
    assert seconds == [4.0, 10.0, 40.0]


def test_what_is_hidden_behind_computing_costs_nothing():
    messages = [Message("all_gather", "weights", 200, 2, phase="forward", times=2),
                Message("all_gather", "weights", 200, 2, phase="backward", times=2),
                Message("reduce_scatter", "gradients", 200, 2, phase="last"),
                Message("reduce_scatter", "gradients", 200, 2)]
    each = 100.0  # bytes a second, so that each of them takes a second
    assert exposed_seconds(messages, Links(each), 2, 60.0) == 1.0
    assert exposed_seconds(messages, Links(each), 2, 0.0) == 2 * 1 + 2 * 1 + 1 + 1
    assert exposed_seconds(messages, Links(each), 2, 3.0) == 2 * 0.5 + 0 + 1 + 1
    assert exposed_share(messages, Links(each), 2, 61.0) == pytest.approx(1 / 61)
    assert exposed_share([], Links(each), 2, 61.0) == pytest.approx(0, abs=1e-9)


def test_hidden_or_not_all_is_counted():
    sharing = Sharing.of("fsdp", Processes(0, 4, 0, 4))
    messages = messages_of_step(config_of("gpt2"), sharing, 3, torch.float32, torch.bfloat16)
    alone = exposed_seconds(messages, Links(1.0), 3, 0.0)
    assert alone == pytest.approx(sum(message.sent for message in messages))
