"""The setting of PyTorch's allocator for GPUs, which precedes its import."""

import os
import sys

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the second is the older name


def let_segments_grow() -> None:
    """Makes PyTorch's segments of GPU memory grow in place, which loses less between blocks of different sizes.

    A user's own setting stays. On Linux alone: Windows, WSL and Jetson boards lack or refuse the mapping
    that growing needs (PyTorch's issue 192330).
    """
    if sys.platform != "linux" or any(word in os.uname().release.lower() for word in ("microsoft", "tegra")):
        return
    if not any(os.environ.get(name) for name in VARIABLES):
        os.environ[VARIABLES[0]] = "expandable_segments:True"
