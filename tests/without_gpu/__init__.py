"""Training and decoding on a GPU that is not there."""

import shutil
import sys

import pytest
import torch

NEEDS = [pytest.mark.slow,
         pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch: pip install torch"),
         pytest.mark.skipif(sys.platform != "linux" or shutil.which("g++") is None, reason="needs Linux and g++")]
