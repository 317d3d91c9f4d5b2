"""A training step on a GPU, as far as it can be shown without one: one graph, no wait, kernels for every card.

Needs a CUDA build of torch and a C++ compiler; takes minutes a case: pytest -m slow tests/without_gpu
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from architectures.table import ARCHITECTURES
from tests.helpers.commands import ROOT
from tests.without_gpu.pretended import CARDS
from training.optimizers import OPTIMIZERS

HOOKS = Path(__file__).with_name("cuda_hooks.cpp")
OLDEST_WITH_BF16 = 80
MODEL = ["forward", "backward"]
HIDDEN = {"adamw": 0, "muon": 1, "adamw8bit": 1}  # graphs of the optimizer's own step
CASES = [(arch, optimizer) for arch in ARCHITECTURES for optimizer in OPTIMIZERS]

pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch: pip install torch"),
              pytest.mark.skipif(sys.platform != "linux" or shutil.which("g++") is None, reason="needs Linux and g++")]


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """A function: what tests.without_gpu.step answers to a command line, in a process that believes in a GPU."""
    folder, include = tmp_path_factory.mktemp("without_gpu"), Path(torch.__file__).parent / "include"
    library = folder / "hooks.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-std=c++20", f"-I{include}", f"-I{include}/torch/csrc/api/include",
                    "-o", str(library), str(HOOKS)], check=True)
    env = {**os.environ, "LD_PRELOAD": str(library), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
           "TRITON_CACHE_DIR": str(folder / "triton")}

    def answer(*words: str | Path) -> dict[str, Any]:
        done = subprocess.run([sys.executable, "-m", "tests.without_gpu.step", *map(str, words)], cwd=ROOT, env=env,
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return answer


@pytest.fixture(scope="module", params=[75, 90])
def capability(request):
    """That of a card of fp16 (T4), and of one of bf16 (H200)."""
    return request.param


@pytest.mark.parametrize(("arch", "optimizer"), CASES)
def test_a_step_is_one_graph_whose_kernels_compile_for_every_card(ask, tmp_path, capability, arch, optimizer):
    found = ask(capability, "--arch", arch, "--optimizer", optimizer)
    assert found["graphs"]["first step"] == MODEL + HIDDEN[optimizer] * ["alone"]
    assert found["graphs"]["second step"] == []
    assert found["graphs"]["validation"] == ["alone"]
    assert found["graphs"]["step after it"] == []
    assert found["breaks"] == {}
    assert found["waits"] == []

    kernels = tmp_path / "kernels.json"
    kernels.write_text(json.dumps(found["kernels"]))
    cards = [card for card in CARDS if (card >= OLDEST_WITH_BF16) == (capability >= OLDEST_WITH_BF16)]
    for card in cards:
        binaries = ask(card, "--kernels", kernels)
        failed = {name: error for name, error in binaries.items() if isinstance(error, str)}
        assert not failed, f"sm_{card}: {failed}"
        assert set(binaries) == set(found["kernels"])
    print(f"\n{arch} {optimizer}: {len(found['kernels'])} kernels for sm {', '.join(map(str, cards))}", flush=True)
