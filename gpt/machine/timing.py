"""Measures the seconds of training alone, and the load of the device."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from gpt.machine.device import Machine

# A host that waits for the GPU during more than this fraction of the training time is ahead of it. A host
# that is late does not wait: the figures of the step before have already arrived.
MIN_WAIT_FRACTION = 0.01


@dataclass(frozen=True)
class Mark:
    """A point in the device's time, which a GPU may not have reached yet."""

    host: float  # time.perf_counter()
    event: Any  # machine.backend.event()
    paused: float  # seconds before this point that are not training

    def wait(self) -> None:
        """Waits until the device has reached this point."""
        if self.event is not None:
            self.event.synchronize()


class TrainingClock:
    """Measures the seconds of training, without the time inside pause().

    began is the last start of the clock, by time.perf_counter().
    """

    def __init__(self, machine: Machine):
        self._machine = machine
        self.start()

    def start(self) -> None:
        """Starts the clock at zero, for example after compiling."""
        self.began = time.perf_counter()
        self._paused = 0.0
        self._lap_began = self.mark()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Stops the clock inside the context; waits for the device's queued work on entry and at the end."""
        self._machine.backend.synchronize()
        started = time.perf_counter()
        try:
            yield
        finally:
            self._machine.backend.synchronize()
            self._paused += time.perf_counter() - started

    def mark(self) -> Mark:
        """Marks the end of the device's queued work; waits for that end on Apple's GPUs alone."""
        event = self._machine.backend.event()
        return Mark(time.perf_counter(), event, self._paused)

    def lap(self, end: Mark | None = None) -> float:
        """Returns the seconds of training from the last lap to the mark, after it has waited for the mark.

        Without a mark, to the end of the device's queued work. Always above 0. The next lap begins there.
        """
        start, end = self._lap_began, end or self.mark()
        end.wait()
        self._lap_began = end
        seconds = end.host - start.host if end.event is None else start.event.elapsed_time(end.event) / 1000
        return max(seconds - (end.paused - start.paused), 1e-9)


class Gauge:
    """Measures the load of the device: seconds of training, and seconds that the host waited for data and device.

    The caller adds the seconds of training to trained.
    """

    def __init__(self, machine: Machine):
        self.waited = {"data": 0.0, "device": 0.0}
        self.trained = 0.0
        self._machine = machine

    @contextlib.contextmanager
    def waiting(self, what: Literal["data", "device"]) -> Iterator[None]:
        """Adds the seconds inside the context to waited: for data, or for the device's queued work."""
        started = time.perf_counter()
        yield
        self.waited[what] += time.perf_counter() - started

    @property
    def host_is_late(self) -> bool:
        """False if the host has waited for the device, hence was ahead of it; always True without CUDA."""
        return not self._machine.backend.runs_ahead or self.waited["device"] < MIN_WAIT_FRACTION * self.trained
