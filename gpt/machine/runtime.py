"""The terminal, the signals and the processes of a run, then its machine with clock and gauge.

The clock measures the seconds of training alone, the gauge the load of the device.
"""

import contextlib
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from gpt.common.files import cache_folder
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.machine import device
from gpt.machine.backends import CPU, gpu_in_use
from gpt.machine.processes import Processes, joined, of_environment

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

    def __init__(self, machine: device.Machine):
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

    def __init__(self, machine: device.Machine):
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


@dataclass
class Runtime:
    """The output, signals and processes of a run; after use(), its machine with clock and gauge too.

    The machine follows once the inputs are known: they decide its precision. resources is closed at the end
    of the run, and with it the lock of the output folder and the like. began is the start of the run, in
    seconds of time.monotonic().
    """

    out: Progress
    signals: Signals
    processes: Processes
    resources: contextlib.ExitStack
    began: float
    machine: device.Machine = field(init=False)
    clock: TrainingClock = field(init=False)
    gauge: Gauge = field(init=False)

    def use(self, machine: device.Machine) -> None:
        """Sets the machine, and starts a new clock and gauge for the steps on it."""
        self.machine = machine
        self.clock = TrainingClock(machine)
        self.gauge = Gauge(machine)


@contextlib.contextmanager
def open_runtime(use_gpu: bool | None) -> Iterator[Runtime]:
    """Opens the output, the signals and the connections between processes for the with block.

    A signal ends the process at once until signals.on_stop() is called. Raises UserError (exit 5) as
    of_environment() and joined() do.
    """
    processes = of_environment()
    with contextlib.ExitStack() as resources:
        out = resources.enter_context(Progress())
        signals = resources.enter_context(Signals(out.note, can_save=True))
        signals.at_once = "before the first step; nothing was lost"
        resources.enter_context(joined(processes, use_gpu))
        yield Runtime(out, signals, processes, resources, time.monotonic())


def choose_machine(args: Namespace, prefers_bf16: bool = False) -> device.Machine:
    """Chooses the device, its precision and whether to compile, and sets them up for the whole process.

    With prefers_bf16 a processor that multiplies bf16 in hardware uses it, unless a flag names the
    precision. Raises UserError (exit 5) for --use_gpu without a usable GPU.
    """
    is_native = prefers_bf16 and args.use_amp is None and not gpu_in_use(args.use_gpu) and CPU.has_bf16()
    machine = device.choose(args.use_gpu, is_native or args.use_amp, args.amp_dtype, args.compile)
    device.set_up(machine, cache_folder() / "compiled", args.deterministic)
    return machine
