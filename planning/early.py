"""What train.py does before the seconds that importing torch takes."""

from __future__ import annotations

import os

from common.errors import require
from common.flags import FlagsOfGroup
from common.memory import let_segments_grow
from hub.names import check_package
from trackers.tracker import requested_trackers, require_packages

TRIAL = "trial"  # the first word of the command line of a child process that tries something


def before_torch(init_from: str | None, flags: FlagsOfGroup) -> None:
    """Raises UserError (exit 5) for a package that is missing or unfit; and sets what torch reads when it is loaded."""
    # A thread that spins while it waits takes the processor from the one it waits for, if other work is there: without
    # this a step beside other work took up to ten times as long. GNU's OpenMP reads it when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    let_segments_grow()
    require("torch", "numpy", "tokenizers", "tqdm", "safetensors")
    check_package(init_from)
    require_packages(requested_trackers(flags))
