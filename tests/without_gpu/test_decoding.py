"""Decoding on a GPU, as far as it can be shown without one: a token is a launch and a copy, and nothing is waited for.

Needs a CUDA build of torch and a C++ compiler; takes half a minute a case: pytest -m slow tests/without_gpu
"""

import json

import pytest

from architectures.table import ARCHITECTURES
from tests.without_gpu import NEEDS

CARDS = {75: [75], 90: [80, 89, 90, 100]}  # traced for a card of fp16 and one of bf16; kernels compiled for T4 to B200
NUM_STEPS = 4

pytestmark = NEEDS


def check_steps(found: dict) -> None:
    """Each step was one graph and one copy; a graph was recorded for each of the three lengths, and nothing waits."""
    assert found["waits"] == []
    assert found["replays"] == NUM_STEPS
    assert found["copies"] == NUM_STEPS
    assert found["recordings"] == 3
    assert found["breaks"] == {}
    assert found["later_graphs"] == []


@pytest.mark.parametrize("flags", [
    [], ["--num_rows", "8", "--top_k", "0", "--top_p", "0.9", "--min_p", "0.05", "--repetition_penalty", "1.2",
         "--no_repeat_ngram_size", "3"], ["--quantize", "int8"]], ids=" ".join)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_token_is_one_launch_and_one_copy_and_no_wait(ask_of, arch, flags):
    found = ask_of("decoding", 90, "--arch", arch, *flags)
    check_steps(found)
    print(f"\n{arch} {' '.join(flags)}: {sum(found['launches'].values())} operations a token, one launch as a graph",
          flush=True)


@pytest.mark.parametrize("flags", [["--num_rows", "1"], ["--num_rows", "1", "--quantize", "int8"],
                                   ["--num_rows", "4", "--quantize", "int8"]], ids=" ".join)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("capability", CARDS)
def test_compiled_it_is_one_graph_whose_kernels_compile_for_every_card(ask_of, tmp_path, capability, arch, flags):
    found = ask_of("decoding", capability, "--arch", arch, "--compile", "--n_layer", 2, *flags)
    check_steps(found)
    assert found["graphs"] == ["alone"]
    if "int8" in flags:  # the kernels themselves multiply with the 8-bit weights
        assert not {"mm", "addmm"} & set(found["compiled_launches"])

    kernels = tmp_path / "kernels.json"
    kernels.write_text(json.dumps(found["kernels"]))
    for card in CARDS[capability]:
        binaries = ask_of("step", card, "--kernels", kernels)
        failed = {name: error for name, error in binaries.items() if isinstance(error, str)}
        assert not failed, f"sm_{card}: {failed}"
        assert set(binaries) == set(found["kernels"])
    print(f"\n{arch} {' '.join(flags)}: {len(found['compiled_launches'])} launches for 2 layers, "
          f"{len(found['kernels'])} kernels for sm {', '.join(map(str, CARDS[capability]))}", flush=True)
