"""Settings of memory: PyTorch's of a GPU's, made before torch is imported, and Python's garbage collector."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the second is the older name
GROWING = "expandable_segments:True"


def let_segments_grow() -> None:
    """Lets a GPU's segments of memory grow in place: less is lost between blocks of different sizes.

    Whoever has set PyTorch's variable has decided. Only on Linux: the system of Windows, WSL and Jetson boards does not
    know, or refuses, the mapping that it takes (PyTorch's issue 192330).
    """
    if sys.platform != "linux" or any(word in os.uname().release.lower() for word in ("microsoft", "tegra")):
        return
    if not any(os.environ.get(name) for name in VARIABLES):
        os.environ[VARIABLES[0]] = GROWING


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """While inside, nothing is searched for cycles: for a file of 50,000 short lists it costs as much as reading it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
