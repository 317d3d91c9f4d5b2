"""The terminal, the signals and the processes of a run, then its machine with clock and gauge."""

import contextlib
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpt.common.files import cache_folder
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.machine import device
from gpt.machine.backends import CPU, gpu_in_use
from gpt.machine.device import Machine
from gpt.machine.processes import Processes, joined, of_environment
from gpt.machine.timing import Gauge, TrainingClock


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
    machine: Machine = field(init=False)
    clock: TrainingClock = field(init=False)
    gauge: Gauge = field(init=False)

    def use(self, machine: Machine) -> None:
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


def choose_machine(args: Namespace, prefers_bf16: bool = False) -> Machine:
    """Chooses the device, its precision and whether to compile, and sets them up for the whole process.

    With prefers_bf16 a processor that multiplies bf16 in hardware uses it, unless a flag names the
    precision. Raises UserError (exit 5) for --use_gpu without a usable GPU.
    """
    is_native = prefers_bf16 and args.use_amp is None and not gpu_in_use(args.use_gpu) and CPU.has_bf16()
    machine = device.choose(args.use_gpu, is_native or args.use_amp, args.amp_dtype, args.compile)
    device.set_up(machine, cache_folder() / "compiled", args.deterministic)
    return machine
