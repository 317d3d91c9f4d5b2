"""A device on the processor whose copies to the host arrive late, and the commands on it."""

import os
import shutil
import sys

import pytest

from gpt.machine.backends import why_no_headers

COMPILER = shutil.which(os.environ.get("CXX") or "g++")
WHY_NOT = ("needs Linux" if sys.platform != "linux" else "needs a C++ compiler: g++, or $CXX" if COMPILER is None
           else why_no_headers())
NEEDS = [pytest.mark.slow, pytest.mark.late_device, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]
