"""Seconds of training alone, and how busy the device is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from gpt.machine.device import Machine

# Of the training time. A host that waits longer for the GPU is ahead of it; one that is late finds what it reads, the
# figures of the step before, there already.
WAITING_SHARE = 0.01


@dataclass(frozen=True)
class Mark:
    """A point in the device's time, which a GPU may have to reach yet, and the seconds before it that do not count."""

    host: float  # time.perf_counter()
    event: Any  # machine.backend.event()
    uncounted: float

    def wait(self) -> None:
        """Waits until the device has got there."""
        if self.event is not None:
            self.event.synchronize()

    def seconds_since(self, earlier: Mark) -> float:
        """Counted seconds between two marks that the device has reached."""
        seconds = self.host - earlier.host
        if self.event is not None and earlier.event is not None:
            seconds = earlier.event.elapsed_time(self.event) / 1000
        return max(seconds - (self.uncounted - earlier.uncounted), 1e-9)


class TrainingClock:
    """Seconds of training alone: neither what happens inside pause(), nor the time in which the process stood still.

    stopped returns the seconds that the process has stood still so far (Progress.stopped_seconds). began is when the
    clock was started last, by time.perf_counter().
    """

    def __init__(self, machine: Machine, stopped: Callable[[], float] = lambda: 0.0):
        self._machine = machine
        self._stopped = stopped
        self.start()

    def start(self) -> None:
        """Starts to count from here, for example once compiling is done."""
        self.began = time.perf_counter()
        self._paused = 0.0
        self._lap_began = self.mark()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Stops the clock while inside; on entry it waits until the device has done the training it was given."""
        self._machine.backend.synchronize()
        started = time.perf_counter()
        try:
            yield
        finally:
            self._machine.backend.synchronize()
            self._paused += time.perf_counter() - started

    def mark(self) -> Mark:
        """The point in the device's time at which it has done all it was given. Only Apple's GPU is waited for."""
        event = self._machine.backend.event()
        return Mark(time.perf_counter(), event, self._paused + self._stopped())

    def lap(self, end: Mark | None = None) -> float:
        """Seconds of training from the end of the last lap to this one's: a mark, or once the device has done all."""
        end = end or self.mark()
        end.wait()
        seconds, self._lap_began = end.seconds_since(self._lap_began), end
        return seconds


class Gauge:
    """How busy the device is, by seconds: trained, and waited for data and for the device by the host."""

    def __init__(self, machine: Machine):
        self.waited = {"data": 0.0, "device": 0.0}
        self.trained = 0.0
        self._machine = machine

    @contextlib.contextmanager
    def waiting(self, what: Literal["data", "device"]) -> Iterator[None]:
        """Counts the seconds inside as the host waiting for data, or for the device to finish what it was given."""
        started = time.perf_counter()
        yield
        self.waited[what] += time.perf_counter() - started

    def forget(self) -> None:
        """Begins again, after steps that were no training."""
        self.waited = dict.fromkeys(self.waited, 0.0)

    def lap(self, seconds: float) -> None:
        """Adds seconds of training."""
        self.trained += seconds

    @property
    def host_is_late(self) -> bool:
        """False if the host is known to be ahead of the device, having waited for it; only seen with CUDA."""
        return not self._machine.backend.runs_ahead or self.waited["device"] < WAITING_SHARE * self.trained

    @property
    def wait_share(self) -> float:
        """The share of the training time that was spent waiting for data."""
        return self.waited["data"] / self.trained if self.trained else 0.0
