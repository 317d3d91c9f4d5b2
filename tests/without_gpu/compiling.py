"""torch.compile for a card that is not there: the graphs it makes, their kernels, and what these cost when they run.

What Inductor writes is run line by line on tensors that have no memory. Products and kernels compute nothing, but what
they read and write is counted, and when each buffer comes and goes is known, as PyTorch's allocator would see it.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

MAKES_NO_LAUNCH = re.compile("(new_)?empty|detach|lift_fresh|set_$|resize_|is_same_size|sym_|device")
PLACEHOLDERS = {  # what a generated file takes from C++, and what the file gets here in its place
    r"torch\._C\._dynamo\.guards\._empty_strided_cuda": "empty_strided_cuda_here",
    r"torch\._C\._dynamo\.guards\._reinterpret_tensor": "reinterpret_tensor_here",
    r"torch\._C\._dynamo\.guards\.(assert_size_stride|assert_alignment)\w*": "nothing_here",
    r"^async_compile = .*": "async_compile = async_compile_here",
    r"^from torch\._inductor\.select_algorithm import extern_kernels": "extern_kernels = extern_kernels_here",
}


class Compiler:
    """Inductor as torch.compile calls it, whose results run without memory; keeps the graphs' kinds and the kernels."""

    def __init__(self, fake: FakeTensorMode, ledger: "Ledger | None" = None):
        self.graphs: list[str] = []
        self.kernels: dict[str, str] = {}
        self._fake, self._ledger = fake, ledger or Ledger()
        self._install()

    def _install(self) -> None:
        import torch._inductor.async_compile as async_compile
        import torch._inductor.compile_fx as compile_fx
        import torch._inductor.config as config
        from torch._functorch import config as functorch_config
        from torch._functorch import partitioners
        from torch._inductor.fx_passes import fuse_attention, joint_graph, misc_patterns, pad_mm

        config.compile_threads, config.fx_graph_cache = 1, False
        functorch_config.enable_autograd_cache = False
        # These trace their patterns with tensors that have memory, which a card that is not there cannot give.
        fuse_attention._sfdp_init = pad_mm._pad_mm_init = misc_patterns._misc_patterns_init = lambda *a, **k: None
        # Nothing is drawn here; torch 2.11 asks the card for its random numbers where attention is computed again.
        partitioners.functionalize_rng_ops = lambda joint, forward, backward, num: (forward, backward)
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
            compiled: Any = compile_one(graph, example, **kwargs)
            return self._runnable(compiled.source_code)

        compile_fx.compile_fx = lambda graph, example, inner_compile=None, **kwargs: compile_graph(
            graph, example, inner_compile=inner, **kwargs)

    def _keep_kernel(self, name: str, source: str, device_str: str = "cuda") -> Any:
        self.kernels[name] = source
        arguments = [word.strip() for word in re.findall(rf"def {name}\(([^)]*)\)", source)[0].split(",")]

        def run(*values: Any, **kwargs: Any) -> None:
            moved = [value.nbytes * (1 + argument.startswith("in_out"))
                     for argument, value in zip(arguments, values, strict=False) if isinstance(value, torch.Tensor)]
            self._ledger.launches.append((name, sum(moved), 0))

        return argparse.Namespace(run=run)

    def _runnable(self, source: str) -> Callable[..., Any]:
        for pattern, ours in PLACEHOLDERS.items():
            source = re.sub(pattern, ours, source, flags=re.MULTILINE)
        space: dict[str, Any] = {
            "__name__": "generated", "empty_strided_cuda_here": empty_strided_cuda, "nothing_here": lambda *args: None,
            "reinterpret_tensor_here": reinterpret_tensor, "extern_kernels_here": Products(),
            "async_compile_here": argparse.Namespace(triton=self._keep_kernel, wait=lambda space: None)}
        exec(compile(source, "generated", "exec"), space)

        def run(values: Any) -> Any:
            for value in tensors_in(values):
                self._ledger.see(value)
            with self._fake, self._ledger:
                return space["call"](values)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


class Products:
    """Inductor's extern kernels: PyTorch's operators by name."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(torch.ops.aten, name.removesuffix("_dtype"))


def empty_strided_cuda(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def reinterpret_tensor(x: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    return torch.as_strided(x, size, stride, x.storage_offset() + offset)


class OnTheHost(TorchDispatchMode):
    """Constants that a pass of the compiler folds are computed on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.device(kwargs.get("device") or "cpu").type == "cuda":
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)


# ---------------------------------------------------------------- what is launched, and the memory


Launch: TypeAlias = tuple[str, int, float]  # of a kernel or an eager operator: bytes, FLOP of products and attention


class Ledger(TorchDispatchMode):
    """Notes launches, and the most bytes of tensors on the card that exist at a time, while it is entered.

    Nothing is compiled meanwhile, as torch.compile leaves code alone whose operations are watched.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launch] = []
        self.peak = 0
        self.made: set[tuple[torch.dtype, tuple[int, ...]]] = set()  # dtype and shape of what was allocated
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def now(self) -> int:
        """Bytes of all tensors on the card that exist."""
        self._live = {key: found for key, found in self._live.items() if not found[0].expired()}
        return sum(num_bytes for _, num_bytes in self._live.values())

    def see(self, x: torch.Tensor) -> None:
        """Counts the tensor's memory, unless it is known, or not on the card."""
        storage = x.untyped_storage()
        known = self._live.get(storage._cdata)
        if x.device.type == "cuda" and (known is None or known[0].expired()):
            self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
            self.made.add((x.dtype, tuple(x.shape)))
            self.peak = max(self.peak, self.now())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from gpt.ops.loss import add_product_, overwrite_

        for own in (add_product_, overwrite_):  # their own buffers count, too
            if func is own._opoverload:
                with self:
                    return own._init_fn(*args, **(kwargs or {}))
        kwargs, name = kwargs or {}, func.__name__.split(".")[0]
        # torch 2.11 cannot tell the shape of a product that is added to a matrix of another dtype, in place.
        found = kwargs["out"] if func is torch.ops.aten.addmm.dtype_out else func(*args, **kwargs)
        read, made = list(tensors_in((args, kwargs))), list(tensors_in(found))
        for x in made:
            self.see(x)
        if any(x.device.type == "cuda" for x in read + made) and not (func.is_view or MAKES_NO_LAUNCH.match(name)):
            flops, width = flops_of(name, read, made)
            self.launches.append((name + width, bytes_of(func, args, kwargs, read, made), flops))
        return found


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested lists, tuples and dictionaries."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))


def bytes_of(func: Any, args: Any, kwargs: Any, read: list[torch.Tensor], made: list[torch.Tensor]) -> int:
    """What an operator reads and writes; one that fills or copies does not read what it writes, and AdamW writes
    gradients that it divides.
    """
    written = [x for argument, value in zip(func._schema.arguments, args, strict=False)
               if argument.alias_info is not None and argument.alias_info.is_write
               and (argument.name != "grads" or kwargs.get("grad_scale") is not None) for x in tensors_in(value)]
    fresh = [x for x in made if all(x is not y for y in read)]
    if func.__name__.startswith(("fill", "zero", "copy", "_foreach_copy")) or "_like" in func.__name__:
        read = list(tensors_in(args[1:])) if "copy" in func.__name__ else []
    return sum(x.nbytes for x in (*read, *fresh, *written))


def flops_of(name: str, read: list[torch.Tensor], made: list[torch.Tensor]) -> tuple[float, str]:
    """The FLOP of a matrix product, or of causal attention, which skips half, else 0; ' in fp32' for such a product."""
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        factor = read["add" in name]
        return 2.0 * made[0].numel() * factor.shape[-1], " in fp32" * (factor.dtype == torch.float32)
    if "attention" in name:
        B, H, T, K = read["backward" in name].shape
        return 2.0 * B * H * T * T * K * (2.5 if "backward" in name else 1), ""
    return 0.0, ""


# ---------------------------------------------------------------- attention


def fused_attention(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """F.scaled_dot_product_attention by the kernel that a GPU takes: PyTorch's own choice of it asks the driver.

    Cards before Ampere have no flash attention.
    """
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **causal: Any) -> torch.Tensor:
        if dtype == torch.bfloat16:
            return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        assert k.size(1) == q.size(1), "this kernel shares no heads"
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True)[0]

    return attention
