"""Timing: only training is counted, and a host that waits for the GPU does not hold it back."""

import contextlib
import dataclasses
import time
from typing import ClassVar

import torch

from gpt.machine.runtime import Gauge, TrainingClock
from tests.helpers.machines import CPU


def test_the_clock_leaves_pauses_out(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = TrainingClock(CPU)
    now[0] += 3
    with clock.pause():
        now[0] += 50
    now[0] += 2
    with contextlib.suppress(KeyError), clock.pause():
        now[0] += 1000
        raise KeyError
    assert clock.lap() == 5
    now[0] += 7
    assert clock.lap() == 7
    now[0] += 9
    clock.start()
    now[0] += 1
    assert clock.lap() == 1
    assert clock.began == now[0] - 1


class Event:
    """An event of a device on which every piece of work takes 3 s; the host gives it work and does not wait."""

    work = 0
    waited: ClassVar[list[int]] = []

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = Event.work

    def synchronize(self):
        Event.waited.append(self.at)

    def elapsed_time(self, later):
        return 3000 * (later.at - self.at)


def test_a_gpus_laps_are_those_of_the_device_however_far_ahead_the_host_is(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    clock = TrainingClock(dataclasses.replace(CPU, device=torch.device("cuda")))
    Event.work += 5
    first = clock.mark()
    Event.work += 1
    with clock.pause():
        now[0] += 2
    Event.work += 1
    second = clock.mark()
    assert Event.waited == []
    assert clock.lap(first) == 15
    assert clock.lap(second) == 4
    assert Event.waited == [5, 7]
    Event.work += 2
    assert clock.lap() == 6


def test_a_host_that_waits_for_the_gpu_is_not_late(monkeypatch):
    gauge, now = Gauge(dataclasses.replace(CPU, device=torch.device("cuda"))), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    gauge.trained = 100.0
    assert gauge.host_is_late
    with gauge.waiting("device"):
        now[0] += 1.1
    assert not gauge.host_is_late
    on_cpu = Gauge(CPU)
    on_cpu.trained, on_cpu.waited["device"] = 100.0, 50.0
    assert on_cpu.host_is_late
