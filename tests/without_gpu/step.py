"""A training step compiled for a card that is not there. In a process of its own, which test_step.py starts:

    python -m tests.without_gpu.step 90 --arch qwen3 --optimizer muon      answers with a line of JSON
    python -m tests.without_gpu.step 90 --kernels FILE                     compiles the kernels in FILE for the card
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.without_gpu.compiling import Compiler, fused_attention
from tests.without_gpu.pretended import CARDS, Card, pretend

ROWS, T, WIDTH, LAYERS, VOCABULARY = 16, 1024, 768, 2, 50_257
WAITS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "is_nonzero")


class Waits(TorchDispatchMode):
    """Notes every operation in which the host would wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        found = func(*args, **(kwargs or {}))
        tensors = [x for x in (*args, *(kwargs or {}).values()) if isinstance(x, torch.Tensor)]
        from_device = any(x.device.type == "cuda" for x in tensors)
        to_host = isinstance(found, torch.Tensor) and found.device.type == "cpu"
        if from_device and (name in WAITS or (to_host and name in ("_to_copy", "copy_"))):
            self.found.append(func.__name__)
        return found


# ---------------------------------------------------------------- a step


def compile_step(card: Card, arch: str, optimizer_name: str) -> dict[str, Any]:
    """Two steps, a validation, a step: the graphs of each, the waits of an eager step, and the kernels' sources."""
    import train
    from gpt.architectures.table import architecture_of
    from gpt.machine.device import Machine
    from gpt.optimizers.build import build_optimizer, dtype_of_products, parameter_groups
    from gpt.planning.sizing import choose_config, choose_options
    from tests.helpers.training import run_of

    half = torch.bfloat16 if card.capability >= 80 else torch.float16
    machine = Machine(torch.device("cuda", 0), card.name, "", half, "", True, "", ())
    args = train.read_flags(["--arch", arch, "--model_size", "gpt2_small", "--n_layer", str(LAYERS)])
    config = choose_config(args, VOCABULARY, 10**6)
    options = choose_options(False, False, machine, {})
    torch.nn.functional.scaled_dot_product_attention = fused_attention(half)
    waits = Waits()
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        compiler = Compiler(fake)
        with machine.device:  # not .to(): tensors without memory cannot be moved
            model = architecture_of(config).build(config, options).train()
        groups = parameter_groups(model, optimizer_name, 0.1)
        optimizer: Any = build_optimizer(optimizer_name, groups, 1e-3, (0.9, 0.95), dtype=dtype_of_products(machine))
        scaler = torch.amp.GradScaler("cuda", enabled=half == torch.float16)
        run = run_of(model, scaler, machine=machine, optimizer=optimizer)
        model.compile(dynamic=False)
        if hasattr(optimizer, "compile_step"):
            optimizer.compile_step()

        def step() -> None:
            rows = torch.zeros(ROWS, T + 1, dtype=torch.int32, device="cuda")
            train.try_step(run, [(rows[:, :-1], rows[:, 1:])], 1)

        step()
        graphs = {"first step": list(compiler.graphs)}
        step()
        graphs["second step"] = compiler.graphs[len(graphs["first step"]):]
        before = len(compiler.graphs)
        model.eval()
        with torch.no_grad(), machine.autocast():
            rows = torch.zeros(ROWS, T + 1, dtype=torch.int32, device="cuda")
            model(rows[:, :-1].clamp(min=0), rows[:, 1:].contiguous())
        model.train()
        graphs["validation"] = compiler.graphs[before:]
        before = len(compiler.graphs)
        step()
        graphs["step after it"] = compiler.graphs[before:]
        torch.compiler.set_stance("force_eager")  # compiled code shows its operations to nobody
        with waits:
            step()

    breaks = dict(torch._dynamo.utils.counters["graph_break"])
    return {"graphs": graphs, "breaks": breaks, "waits": waits.found, "kernels": compiler.kernels}


# ---------------------------------------------------------------- kernels


def compile_kernels(card: Card, sources: dict[str, str]) -> dict[str, Any]:
    """Each kernel compiled by Triton and ptxas for the card: the bytes of its binary, or the error."""
    from torch._inductor.codecache import PyCodeCache

    found: dict[str, Any] = {}
    for name, source in sources.items():
        for word, number in zip(("cc", "major", "minor"), (card.capability, *divmod(card.capability, 10)), strict=True):
            source = re.sub(rf"\b{word}=\d+", f"{word}={number}", source)
        try:
            tuner = getattr(PyCodeCache.load(source), name)
            kernel = tuner._precompile_config(tuner.configs[0])
            kernel = getattr(kernel, "kernel", kernel)
            found[name] = len(_binary_of(kernel))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:500]
    return found


def _binary_of(kernel: Any) -> bytes:
    """What ptxas made: kernels that Inductor starts itself keep it in one of two places, those of Triton in a third."""
    if hasattr(kernel, "asm"):
        return kernel.asm["cubin"]
    return getattr(kernel, "cubin_raw", None) or Path(kernel.cubin_path).read_bytes()


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("capability", type=int)
    parser.add_argument("--arch", default="gpt2")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--kernels")
    args = parser.parse_args(argv)
    card = CARDS[args.capability]
    pretend(card)
    if args.kernels:
        answer = compile_kernels(card, json.loads(Path(args.kernels).read_text()))
    else:
        answer = compile_step(card, args.arch, args.optimizer)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
