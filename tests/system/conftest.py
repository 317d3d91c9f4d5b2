"""The long proofs, each kind with a marker of its own, and the disks that fail in them.

    python -m pytest -m kills          runs killed at random moments, train.py's and pretokenize.py's
    python -m pytest -m sweeps         a disk that fails at every call
    python -m pytest -m damages        damaged checkpoints and recorded flags
    python -m pytest -m signals        signals in every phase

FAULTS_SHARE=0.1 before such a line tries a tenth of the cases.
"""


import pytest


@pytest.fixture(scope="module")
def disk(forks):
    """The forks of the commands, skipping the test where no disk can be made to fail."""
    if forks.shim is None:
        pytest.skip("needs Linux and a C compiler")
    return forks
