"""Processes that believe in a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.commands import ROOT

HOOKS = Path(__file__).with_name("cuda_hooks.cpp")


@pytest.fixture(scope="session")
def ask_of(tmp_path_factory):
    """A function: what a module of tests.without_gpu answers to a command line, in such a process."""
    folder, include = tmp_path_factory.mktemp("without_gpu"), Path(torch.__file__).parent / "include"
    library = folder / "hooks.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-std=c++20", f"-I{include}", f"-I{include}/torch/csrc/api/include",
                    "-o", str(library), str(HOOKS)], check=True)
    env = {**os.environ, "LD_PRELOAD": str(library), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
           "TRITON_CACHE_DIR": str(folder / "triton")}

    def answer(module: str, *words: str | int | Path) -> dict[str, Any]:
        done = subprocess.run([sys.executable, "-m", f"tests.without_gpu.{module}", *map(str, words)], cwd=ROOT,
                              env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return answer
