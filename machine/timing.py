"""Seconds of training alone, and how busy the device is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from machine.device import Machine



def synchronize(machine: Machine) -> None:
    """Waits until the device has done all it was given."""
    if machine.device.type == "cuda":
        torch.cuda.synchronize(machine.device)


class Clock:
    """Seconds of training alone: what happens inside pause() is not counted, nor what stopped() says stood still."""

    def __init__(self, machine: Machine, stopped: Callable[[], float] = lambda: 0.0):
        self._machine, self._stopped = machine, stopped
        self.start()

    def start(self) -> None:
        """Begins to count here, after compiling say."""
        self.began = self._lap = time.perf_counter()
        self._paused, self._stopped_before = 0.0, self._stopped()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Stops the clock inside, once the device has done the training it was given."""
        synchronize(self._machine)
        started = time.perf_counter()
        try:
            yield
        finally:
            synchronize(self._machine)
            self._paused += time.perf_counter() - started

    def lap(self) -> float:
        """Training seconds since the last lap."""
        now = time.perf_counter()
        stopped = self._stopped()
        seconds = now - self._lap - self._paused - (stopped - self._stopped_before)
        self._lap, self._paused, self._stopped_before = now, 0.0, stopped
        return max(seconds, 1e-9)


class Gauge:
    """How busy the device is: the host's seconds spent on batches; a GPU's utilisation and power by nvidia-ml-py."""

    def __init__(self, machine: Machine):
        self._machine = machine
        self.waited, self.trained = {"data": 0.0, "device": 0.0}, 0.0  # seconds
        self.readings: list[tuple[int, float]] = []  # percent, watts
        self.missing = ""  # the package without which there are no readings
        self._read_at = 0.0

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Counts the seconds inside as the host's waiting for data, or for the device to end what it was given."""
        started = time.perf_counter()
        yield
        self.waited[what] += time.perf_counter() - started

    @property
    def host_is_late(self) -> bool:
        """True where nothing speaks against the device having to wait: on a GPU, the host having waited for it."""
        return self._machine.device.type == "cpu" or self.waited["device"] < 0.05 * self.trained

    def lap(self, seconds: float) -> None:
        """Adds seconds of training and, on a GPU every 5 s, a reading."""
        self.trained += seconds
        if self._machine.device.type != "cuda" or self.missing or time.monotonic() - self._read_at < 5:
            return
        self._read_at = time.monotonic()
        try:
            watts = torch.cuda.power_draw(self._machine.device) / 1000
            self.readings.append((torch.cuda.utilization(self._machine.device), watts))
        except ModuleNotFoundError:
            self.missing = "nvidia-ml-py"
        except Exception:  # a driver that does not tell, a MIG slice: its errors are as many as its versions
            self.missing = "a driver that tells"

    @property
    def wait_share(self) -> float:
        """The share of the training time that went into waiting for data."""
        return self.waited["data"] / self.trained if self.trained else 0.0

    @property
    def utilisation(self) -> float | None:
        """Mean percent of the time that the GPU had work; None before the third reading."""
        return sum(percent for percent, _ in self.readings) / len(self.readings) if len(self.readings) > 2 else None

    def describe(self) -> dict[str, str]:
        """For the closing block."""
        words = {"data_wait": f"{self.wait_share:.1%} of the steps' time"}
        if self.readings:
            percent, watts = (sum(column) / len(self.readings) for column in zip(*self.readings, strict=True))
            words["gpu"] = f"{percent:.0f}% busy, {watts:.0f} W, the mean of {len(self.readings)} readings"
        elif self.missing:
            words["gpu"] = f"utilisation and power unknown without {self.missing}"
        return words
