"""A training step on a GPU, as far as it can be shown without one: one graph, no wait, kernels for every card.

Needs a CUDA build of torch and a C++ compiler; takes minutes a case: pytest -m slow tests/without_gpu
"""

import json

import pytest

from gpt.architectures.table import ARCHITECTURES
from gpt.optimizers.table import OPTIMIZERS
from tests.without_gpu import NEEDS
from tests.without_gpu.pretended import CARDS

OLDEST_WITH_BF16 = 80
MODEL = ["forward", "backward"]
HIDDEN = {"adamw": 0, "muon": 1, "adamw8bit": 1}  # graphs of the optimizer's own step
CASES = [(arch, optimizer) for arch in ARCHITECTURES for optimizer in OPTIMIZERS]

pytestmark = NEEDS


@pytest.fixture(scope="module", params=[75, 90])
def capability(request):
    """That of a card of fp16 (T4), and of one of bf16 (H200)."""
    return request.param


@pytest.mark.parametrize(("arch", "optimizer"), CASES)
def test_a_step_is_one_graph_whose_kernels_compile_for_every_card(ask_of, tmp_path, capability, arch, optimizer):
    found = ask_of("step", capability, "--arch", arch, "--optimizer", optimizer)
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
        binaries = ask_of("step", card, "--kernels", kernels)
        failed = {name: error for name, error in binaries.items() if isinstance(error, str)}
        assert not failed, f"sm_{card}: {failed}"
        assert set(binaries) == set(found["kernels"])
    print(f"\n{arch} {optimizer}: {len(found['kernels'])} kernels for sm {', '.join(map(str, cards))}", flush=True)
