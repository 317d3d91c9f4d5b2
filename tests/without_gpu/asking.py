"""Starts processes that believe in a GPU."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.helpers.commands import ROOT

HOOKS = Path(__file__).with_name("cuda_hooks.cpp")


def make_ask(folder: Path) -> Callable[..., dict[str, Any]]:
    """A function: what a module of tests.without_gpu answers to a command line; compiled files stay in the folder."""
    include, library = Path(torch.__file__).parent / "include", folder / "hooks.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-std=c++20", f"-I{include}", f"-I{include}/torch/csrc/api/include",
                    "-o", str(library), str(HOOKS)], check=True)
    env = {**os.environ, "LD_PRELOAD": str(library), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
           "TRITON_CACHE_DIR": str(folder / "triton")}

    def ask(module: str, *words: str | int | Path) -> dict[str, Any]:
        done = subprocess.run([sys.executable, "-m", f"tests.without_gpu.{module}", *map(str, words)], cwd=ROOT,
                              env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return ask
