"""Environment variables that torch reads when it is loaded. What a user has set stays."""

import os
import sys

SPIN_COUNT = "GOMP_SPINCOUNT"  # of GNU's OpenMP, which torch has on Linux
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the second is the older name


def let_threads_sleep() -> None:
    """Makes a waiting thread of torch sleep soon, in place of spinning.

    A spinning thread takes the processor from the thread that it waits for. Beside another program steps took up to
    ten times as long without this, and generated text thirty times (LOG.md, 2026-11-29, Text beside other programs).
    """
    os.environ.setdefault(SPIN_COUNT, "1000")


def let_segments_grow() -> None:
    """Makes PyTorch's segments of GPU memory grow in place, which loses less between blocks of different sizes.

    On Linux alone: Windows, WSL and Jetson boards lack or refuse the mapping that growing needs (PyTorch's issue
    192330).
    """
    if sys.platform != "linux" or any(word in os.uname().release.lower() for word in ("microsoft", "tegra")):
        return
    if not any(os.environ.get(name) for name in ALLOCATOR):
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"
