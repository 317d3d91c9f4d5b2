"""The long proofs: each kind has a marker of its own, and says at the end what it did in one line.

    python -m pytest -m kills          runs killed at random moments, train.py's and pretokenize.py's
    python -m pytest -m sweeps         a disk that fails at every call
    python -m pytest -m damages        damaged checkpoints and recorded flags
    python -m pytest -m signals        signals in every phase

FAULTS_SHARE=0.1 before such a line tries a tenth of the cases.
"""

import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class Tally:
    """Counts what the long proofs of a session did, by kind, and chooses how many cases they try."""

    def __init__(self) -> None:
        self.share = float(os.environ.get("FAULTS_SHARE", "1"))
        self.counts: dict[str, Counter[str]] = {}

    def some(self, cases: Sequence[T]) -> list[T]:
        """All cases, or the share of them that the environment asks for, at least one."""
        if self.share >= 1:
            return list(cases)
        chosen = sorted(random.Random(0).sample(range(len(cases)), max(1, round(self.share * len(cases)))))
        return [cases[number] for number in chosen]

    def add(self, kind: str, **counts: int) -> None:
        """Adds to the line of a kind: add("kills", runs=10, kills=23, wrong=0)."""
        self.counts.setdefault(kind, Counter()).update(counts)


TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TALLY] = Tally()


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    """Where the long proofs count."""
    return pytestconfig.stash[TALLY]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for kind, counts in config.stash[TALLY].counts.items():
        terminalreporter.write_line(f"{kind}: {', '.join(f'{name} {number:,}' for name, number in counts.items())}")


# ---------------------------------------------------------------- disks that fail


@pytest.fixture(scope="module")
def disk(forks):
    """The same, skipping the test where no disk can be made to fail."""
    if forks.shim is None:
        pytest.skip("needs Linux and a C compiler")
    return forks


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MiB in memory; a checkpoint takes a half."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None or os.geteuid() or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
