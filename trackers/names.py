"""Which trackers the flags request, and whether their packages are there: asked before torch is imported."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from common.errors import Exit, UserError, version_of

# The oldest release of each tracker's package that its proof was run with (tests/system/test_trackers_killed.py).
OLDEST = {"tensorboard": "2.17", "wandb": "0.19", "trackio": "0.17", "mlflow": "2.0.1"}


def requested_trackers(args: argparse.Namespace) -> list[str]:
    """The names of the trackers that the flags request, each once."""
    named = [args.tracker] if isinstance(args.tracker, str) else args.tracker or []
    return [name for name in dict.fromkeys([*["tensorboard"] * bool(args.tensorboard), *named]) if name != "none"]


def require_packages(names: Sequence[str]) -> None:
    """Raises UserError (exit 5) where the package of a tracker, which has the tracker's name, is missing or too old."""
    missing = []
    for name in names:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:  # a folder of that name, such as the one that wandb writes
            missing.append(name)
    if missing:
        packages, python = " ".join(missing), os.path.basename(sys.executable)
        is_or_are = "the package is" if len(missing) == 1 else "the packages are"
        raise UserError(Exit.MACHINE, f"--tracker {packages}: {is_or_are} not installed. Run: {python} -m pip install "
                                      f"{packages}, or give --tracker none.")
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):  # part of another package, such as mlflow-skinny
            installed = metadata.version(name)
            if version_of(installed) < version_of(OLDEST.get(name, "")):
                python = os.path.basename(sys.executable)
                raise UserError(Exit.MACHINE, f"--tracker {name}: the package is of version {installed}, which is "
                                              f"older than {OLDEST[name]}. Run: {python} -m pip install --upgrade "
                                              f"{name}, or give --tracker none.")
