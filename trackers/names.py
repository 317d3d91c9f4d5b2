"""Which trackers the flags request, and whether their packages are installed: asked before torch is imported."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from common.errors import Exit, UserError
from common.flags import FlagsOfGroup, in_list


def requested_trackers(flags: FlagsOfGroup) -> list[str]:
    """The names of the trackers that the flags request, each once."""
    return [name for name in dict.fromkeys(in_list(flags.tracker)) if name != "none"]


def require_packages(names: Sequence[str]) -> None:
    """Raises UserError (exit 5) where the package of a tracker, which has the tracker's name, is missing."""
    missing = []
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name, such as the one that wandb writes
            missing.append(name)
    if missing:
        packages = " ".join(missing)
        raise UserError(Exit.MACHINE, f"--tracker {packages}: not installed. Run: {os.path.basename(sys.executable)} "
                                      f"-m pip install {packages}, or give --tracker none.")
