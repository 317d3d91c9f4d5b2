"""A training step compiled for a card that is not there. In a process of its own, which test_step.py starts:

    python -m tests.without_gpu.step 90 --arch qwen3 --optimizer muon      answers with a line of JSON
    python -m tests.without_gpu.step 90 --kernels FILE                     compiles the kernels in FILE for the card
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.without_gpu.pretended import CARDS, Card, pretend

ROWS, T, WIDTH, LAYERS, VOCABULARY = 16, 1024, 768, 2, 50_257
WAITS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "is_nonzero")


class Compiler:
    """Inductor as torch.compile calls it; keeps what it makes, and runs the graph's own operations in its place."""

    def __init__(self, fake: FakeTensorMode):
        self.graphs: list[str] = []
        self.kernels: dict[str, str] = {}
        self._fake = fake
        self._install()

    def _install(self) -> None:
        import torch._functorch.config as functorch_config
        import torch._inductor.async_compile as async_compile
        import torch._inductor.compile_fx as compile_fx
        import torch._inductor.config as config
        from torch._inductor.fx_passes import fuse_attention, joint_graph, misc_patterns, pad_mm

        config.compile_threads, config.fx_graph_cache = 1, False
        functorch_config.enable_autograd_cache = False
        # These trace their patterns with tensors that have memory, which a card that is not there cannot give.
        fuse_attention._sfdp_init = pad_mm._pad_mm_init = misc_patterns._misc_patterns_init = lambda *a, **k: None
        folder: Any = joint_graph.UniformValueConstantFolder
        fold = folder.run

        def fold_on_the_host(folded: Any, *args: Any) -> Any:
            with OnTheHost():
                return fold(folded, *args)

        folder.run = fold_on_the_host
        async_compile.AsyncCompile.triton = self._keep_kernel  # type: ignore[method-assign]
        compile_graph, compile_one = compile_fx.compile_fx, compile_fx.compile_fx_inner

        def inner(graph: Any, example: Any, **kwargs: Any) -> Any:
            kind = "backward" if kwargs.get("is_backward") else "alone" if kwargs.get("is_inference") else "forward"
            self.graphs.append(kind)
            compile_one(graph, example, **kwargs)
            return self._interpreted(graph)

        compile_fx.compile_fx = lambda graph, example, inner_compile=None, **kwargs: compile_graph(
            graph, example, inner_compile=inner, **kwargs)

    def _keep_kernel(self, name: str, source: str, device_str: str = "cuda") -> Any:
        self.kernels[name] = source
        return argparse.Namespace(run=lambda *args, **kwargs: None)

    def _interpreted(self, graph: Any) -> Callable[..., Any]:
        def run(args: Any) -> Any:
            values = list(args)
            with self._fake:
                return torch.fx.Interpreter(graph).run(*values)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


class OnTheHost(TorchDispatchMode):
    """Constants that a pass of the compiler folds are computed on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.device(kwargs.get("device") or "cpu").type == "cuda":
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)


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


def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float) -> torch.Tensor:
    """The kernel that a GPU takes: the choice itself asks the driver."""
    from ops.attention import for_all_heads

    k, v = for_all_heads(q, k), for_all_heads(q, v)
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, True)[0]


def efficient_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float) -> torch.Tensor:
    """The same for a card before Ampere."""
    from ops.attention import for_all_heads

    k, v = for_all_heads(q, k), for_all_heads(q, v)
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, dropout, True)[0]


# ---------------------------------------------------------------- a step


def compile_step(card: Card, arch: str, optimizer_name: str) -> dict[str, Any]:
    """Two steps, a validation, a step: the graphs of each, the waits of an eager step, and the kernels' sources."""
    import train
    from architectures.table import architecture_of
    from machine.device import Machine
    from machine.processes import ALONE
    from model import Options
    from training.optimizers import OPTIMIZERS, dtype_of_products, parameter_groups
    from training.parallel import Alone
    from training.recipe import choose_config
    from training.state import Learner

    half = torch.bfloat16 if card.capability >= 80 else torch.float16
    machine = Machine(torch.device("cuda", 0), card.name, "", half, "", True, "", ())
    args = train.read_flags(["--arch", arch, "--model_size", "gpt2_small", "--n_layer", str(LAYERS)])
    config = choose_config(args, VOCABULARY, 10**6)
    options = Options(half if half == torch.bfloat16 else None, False, 8192 if half == torch.bfloat16 else 0, False,
                      flash_attention if half == torch.bfloat16 else efficient_attention)
    kind, waits = OPTIMIZERS[optimizer_name], Waits()
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        compiler = Compiler(fake)
        with machine.device:  # not .to(): tensors without memory cannot be moved
            model = architecture_of(config).build(config, options).train()
        optimizer: Any = kind.build(parameter_groups(model, kind, 0.1), 1e-3, (0.9, 0.95), torch.optim.AdamW,
                               dtype_of_products(machine))
        scaler = torch.amp.GradScaler("cuda", enabled=half == torch.float16)
        learner = Learner(model, optimizer, kind, scaler, Alone(model, ALONE))
        model.compile(dynamic=False)
        if hasattr(optimizer, "compile_step"):
            optimizer.compile_step()

        def step() -> None:
            rows = torch.zeros(ROWS, T + 1, dtype=torch.int32, device="cuda")
            train.train_step(learner, machine, 0.0, 1.0, [(rows[:, :-1], rows[:, 1:])], 1)

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
        major, minor = divmod(card.capability, 10)
        source = re.sub(r"\bcc=\d+", f"cc={card.capability}", source)
        source = re.sub(r"\bmajor=\d+", f"major={major}", source)
        source = re.sub(r"\bminor=\d+", f"minor={minor}", source)
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
