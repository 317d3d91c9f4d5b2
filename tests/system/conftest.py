"""The long proofs, each kind with a marker of its own, and the disks that fail in them.

    python -m pytest -m kills          runs killed at random moments, train.py's and pretokenize.py's
    python -m pytest -m sweeps         a disk that fails at every call
    python -m pytest -m damages        damaged checkpoints and recorded flags
    python -m pytest -m signals        signals in every phase

FAULTS_SHARE=0.1 before such a line tries a tenth of the cases.
"""

import os
import shutil
import subprocess

import pytest


@pytest.fixture(scope="module")
def disk(forks):
    """The forks of the commands, skipping the test where no disk can be made to fail."""
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
