"""The loss kernel compiled for every card from Turing on, without a card: pytest -m slow tests/without_gpu -k kernel"""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.without_gpu import NEEDS
from tests.without_gpu.pretended import CARDS

pytestmark = NEEDS
ARCHITECTURE_SUFFIX = {90: "a", 100: "a", 120: "a"}  # of the machine code that Triton asks for


def compiled(capability: int, has_smoothing: bool, writes_gradient: bool, in_8_bits: bool = False) -> dict[str, Any]:
    """What Triton makes of it for logits of 16 bits: PTX and machine code. in_8_bits: gradients in e5m2, too."""
    import triton  # type: ignore[import-not-found]
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found]

    from ops import loss_kernel

    fixed = {"HAS_SMOOTHING": has_smoothing, "WRITES_GRADIENT": writes_gradient, "WRITES_8_BITS": in_8_bits,
             "BLOCK": loss_kernel.LARGEST_BLOCK}
    if not in_8_bits:
        fixed["dz8_ptr"] = None
    types = {"z_ptr": "*fp16" if capability < 80 else "*bf16", "dz8_ptr": "*fp8e5", "targets_ptr": "*i32",
             "loss_ptr": "*fp32", "stride": "i32", "num_ids": "i32", "num_columns": "i32", "label_smoothing": "fp32",
             "factor": "fp32", "factor8": "fp32", **dict.fromkeys(fixed, "constexpr")}
    kernel: Any = loss_kernel._loss_and_gradient
    names = kernel.arg_names
    aligned = {(names.index(name),): [["tt.divisibility", 16]]
               for name in ("z_ptr", "stride", "num_columns", *(["dz8_ptr"] if in_8_bits else []))}
    source = triton.compiler.ASTSource(kernel, types, {(names.index(k),): v for k, v in fixed.items()},
                                       aligned)
    options = {"num_warps": loss_kernel.NUM_WARPS}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm


def resources(ptx: str, capability: int, folder: Path) -> str:
    """What ptxas says of registers and of what does not fit in them."""
    import triton  # type: ignore[import-not-found]

    assert triton.__file__
    programs = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    newest = programs / "ptxas-blackwell"
    ptxas = newest if newest.exists() else programs / "ptxas"
    (folder / "kernel.ptx").write_text(ptx)
    done = subprocess.run([ptxas, "-v", "--gpu-name", f"sm_{capability}{ARCHITECTURE_SUFFIX.get(capability, '')}",
                           folder / "kernel.ptx", "-o", folder / "kernel.cubin"], capture_output=True, text=True,
                          check=True)
    return done.stderr


@pytest.mark.parametrize("capability", CARDS)
@pytest.mark.parametrize(("has_smoothing", "writes_gradient"), [(False, True), (True, True), (False, False)])
def test_it_compiles_for_every_card_and_stays_in_registers(tmp_path, capability, has_smoothing, writes_gradient):
    made = compiled(capability, has_smoothing, writes_gradient)
    assert made["cubin"]
    said = resources(made["ptx"], capability, tmp_path)
    used = re.search(r"Used (\d+) registers", said)
    spilled = re.search(r"(\d+) bytes spill stores", said)
    assert used, said
    assert spilled, said
    print(f"\nsm_{capability}, smoothing {has_smoothing}, gradient {writes_gradient}: {used[1]} registers, "
          f"{spilled[1]} bytes spilled")
    assert int(spilled[1]) <= (16 if has_smoothing else 0)


@pytest.mark.parametrize("capability", [card for card in CARDS if card >= 89])
@pytest.mark.parametrize("has_smoothing", [False, True])
def test_for_8_bits_it_is_rounded_by_the_card_and_stays_in_registers(tmp_path, capability, has_smoothing):
    made = compiled(capability, has_smoothing, True, in_8_bits=True)
    said = resources(made["ptx"], capability, tmp_path)
    used, spilled = re.search(r"Used (\d+) registers", said), re.search(r"(\d+) bytes spill stores", said)
    assert used, said
    assert spilled, said
    print(f"\nsm_{capability}, smoothing {has_smoothing}, in 8 bits: {used[1]} registers, {spilled[1]} bytes spilled")
    assert int(spilled[1]) <= (16 if has_smoothing else 0)
    assert "cvt.rn.satfinite.e5m2x2.f32" in made["ptx"]
