"""The cores that this process may use, and variables that torch reads when it is loaded. A user's own setting stays."""

import contextlib
import math
import os
import sys

from gpt.common.errors import warn
from gpt.common.words import printable
from gpt.machine.memory import control_groups

# Of a control group, in version 2, then in version 1: the microseconds of processor time
# in a period, and the period.
QUOTA_FILES = (("/sys/fs/cgroup", ["cpu.max"]), ("/sys/fs/cgroup/cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]))
# How often a thread of GNU's OpenMP, on Linux, looks whether its wait is over before it sleeps. While a text is
# generated the waits are short, and sleeping at once takes a third of the time.
SPIN_COUNT, SPIN_COUNT_OF_DECODING = 1000, 10_000
KERNELS = "TORCHINDUCTOR_CACHE_DIR"  # the folder of the compiler, which torch creates with and without --compile
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the second is the older name


def usable_cores() -> int:
    """The number of cores that this process may use, at least 1; a container or a job may limit them."""
    cores = _given_cores()
    for root, names in QUOTA_FILES:
        for folder in control_groups(root):
            with contextlib.suppress(OSError, ValueError):  # no limit is the word "max", or -1
                quota, period = map(int, " ".join((folder / name).read_text() for name in names).split())
                if quota > 0:
                    cores = min(cores, math.ceil(quota / period))
    return cores


def _given_cores() -> int:
    """The number of cores on which the system lets this process run, however short."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_up_environment(spin_count: int = SPIN_COUNT) -> None:
    """Limits torch to the usable cores, makes its waiting threads sleep early, and checks the compiler's folder.

    More threads than the container allows stop together until the next period. A spinning thread takes the core
    from the thread that it waits for. Without the limit, steps took up to ten times as long beside another
    program, and generated text up to forty times (LOG.md, 2026-11-29, Text beside other programs).
    """
    os.environ.setdefault("GOMP_SPINCOUNT", str(spin_count))
    if usable_cores() < _given_cores():  # torch knows of these alone
        os.environ.setdefault("OMP_NUM_THREADS", str(usable_cores()))
    kernels = os.environ.get(KERNELS)
    if kernels:
        try:
            os.makedirs(kernels, exist_ok=True)
        except OSError as error:
            warn(f"{KERNELS}={printable(kernels)}: {error.strerror}. Kernels go to another folder.")
            del os.environ[KERNELS]


def let_segments_grow() -> None:
    """Makes PyTorch's segments of GPU memory grow in place, which loses less between blocks of different sizes.

    On Linux alone: Windows, WSL and Jetson boards lack or refuse the mapping that growing needs (PyTorch's
    issue 192330).
    """
    if sys.platform != "linux" or any(word in os.uname().release.lower() for word in ("microsoft", "tegra")):
        return
    if not any(os.environ.get(name) for name in ALLOCATOR):
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"
