"""Decoding on a card that is not there. In a process of its own, which believes in the card:

    python -m tests.without_gpu.decoding 90 --arch qwen3 --num_rows 8          answers with a line of JSON
    python -m tests.without_gpu.decoding 90 --quantize int8 --compile --n_layer 2

A step is traced operation by operation, recorded as a graph and launched. Tensors are fake, so no text comes of it;
what graphs compute is tested on the CPU, tests/generation/test_ahead.py.
"""

import argparse
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.without_gpu.compiling import Compiler, Ledger, tensors_in
from tests.without_gpu.pretended import CARDS, Card, pretend
from tests.without_gpu.step import WAITS

T, VOCABULARY = 1024, 50_257
NO_KERNELS = ("empty", "new_empty", "detach", "lift_fresh", "_unsafe_view", "alias", "device")


class Operations(TorchDispatchMode):
    """Counts the operations that launch kernels on the card, and notes those in which the host waits for the card."""

    def __init__(self) -> None:
        super().__init__()
        self.num_copies_to_host = 0
        self.launches: Counter[str] = Counter()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.__name__.split(".")[0], kwargs or {}
        found = func(*args, **kwargs)
        read, made = list(tensors_in((args, kwargs))), list(tensors_in(found))
        on_card = any(x.device.type == "cuda" for x in (*read, *made))
        to_host = any(x.device.type == "cpu" for x in made)
        known = {x.untyped_storage()._cdata for x in read}
        is_view = func.is_view and all(x.untyped_storage()._cdata in known for x in made)
        if on_card and not to_host and not is_view and not name.startswith(NO_KERNELS):
            self.launches[name] += 1
        if on_card and (name in WAITS or to_host):
            if name == "copy_" and (kwargs.get("non_blocking") or args[2:] == (True,)):
                self.num_copies_to_host += 1
            else:
                self.waits.append(func.__name__)
        return found


class Serial:
    """A pool without threads: to them the tensors of the card would be real."""

    def __init__(self, num_threads: int):
        pass

    def __enter__(self) -> "Serial":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: Callable[[int], Any], numbers: Iterable[int]) -> list[Any]:
        return [function(number) for number in numbers]


class Graph:
    """torch.cuda.CUDAGraph; replays counts those of all graphs."""

    replays = recordings = 0

    def replay(self) -> None:
        Graph.replays += 1


class Nothing:
    """torch.cuda.Stream and Event."""

    def nothing(self, *_: Any) -> None:
        pass

    wait_stream = record = synchronize = nothing


@contextlib.contextmanager
def recorded(graph: Graph, **_: Any) -> Iterator[None]:
    Graph.recordings += 1
    yield


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The kernel that a GPU takes where there is a mask: the choice itself asks the driver."""
    mask = mask.expand(q.size(0), q.size(1), q.size(2), k.size(2))
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, mask, False, 0.0, False)[0]


def tensor_without_memory(numbers: Any, device: Any = None, tensor: Any = torch.tensor, **options: Any) -> torch.Tensor:
    """torch.tensor, which would copy to the card."""
    return torch.empty_like(tensor(numbers, **options), device=device or "cpu")


def pretend_streams() -> None:
    """What decoding asks of torch.cuda beyond what a training step does."""
    import generation.weights

    cuda: Any = torch.cuda
    cuda.CUDAGraph, cuda.graph, cuda.Stream, cuda.Event = Graph, recorded, Nothing, Nothing
    cuda.current_stream = lambda *_: Nothing()
    cuda.stream = lambda stream: contextlib.nullcontext()
    cuda.graph_pool_handle = lambda: (0, 1)
    F.scaled_dot_product_attention = attention  # type: ignore[assignment]
    torch.tensor = tensor_without_memory  # type: ignore[assignment]
    generation.weights.ThreadPoolExecutor = Serial  # type: ignore[assignment,misc]


def trace(card: Card, args: argparse.Namespace) -> dict[str, Any]:
    """What a step asks of the card, launched one kernel after another and as a graph; with --compile also its kernels.
    """
    from architectures.table import ARCHITECTURES
    from generation.continuation import Sampling
    from generation.graphs import GraphDecoder
    from model import SIZES, Options
    from ops.products import Dense, Int8

    layers_heads_width = (args.n_layer, *SIZES["gpt2_small"][1:])
    architecture = ARCHITECTURES[args.arch]
    config = architecture.sized(layers_heads_width, VOCABULARY, T)
    dtype = torch.bfloat16 if card.capability >= 80 else torch.float16
    kind = Int8 if args.quantize == "int8" else Dense
    sampling = Sampling(0.8, args.top_k, args.top_p, args.min_p, args.repetition_penalty,
                        args.no_repeat_ngram_size)

    ledger = Ledger()
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        compiler = Compiler(fake, ledger)
        pretend_streams()
        with torch.device("cuda"):  # not .to(): tensors without memory cannot be moved
            weights = architecture.build(config, Options()).state_dict()
        decoder = GraphDecoder(config, weights, args.num_rows, "cuda", dtype, kind)
        if args.compile:
            decoder.compile()

        decoder.prepare(sampling)
        num_graphs = len(compiler.graphs)
        launch_steps(decoder)
        ledger.clear()
        with torch.inference_mode():
            decoder._compute_logits(decoder._ids_B, decoder._positions_B, decoder._mask(decoder._positions_B, T))

        torch.compiler.set_stance("force_eager")  # compiled code shows its operations to nobody
        Graph.replays = Graph.recordings = 0
        decoder.is_ready = False
        decoder.prepare(sampling)  # forgets the graphs
        with torch.inference_mode(), Operations() as step:
            decoder._step_on_device(T)
        with Operations() as launched:
            launch_steps(decoder)

    return {"launches": dict(step.launches), "waits": step.waits + launched.waits, "replays": Graph.replays,
            "copies": launched.num_copies_to_host, "recordings": Graph.recordings,
            "compiled_launches": [launch.name for launch in ledger.launches],
            "graphs": compiler.graphs, "later_graphs": compiler.graphs[num_graphs:], "kernels": compiler.kernels,
            "breaks": dict(torch._dynamo.utils.counters["graph_break"])}


def launch_steps(decoder: Any) -> None:
    """Steps at lengths for which there are three graphs."""
    for length in (5, 6, 200, 900):
        decoder.lengths[:] = [length] * decoder.num_rows
        decoder.launch(range(decoder.num_rows))


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("capability", type=int)
    parser.add_argument("--arch", default="gpt2")
    parser.add_argument("--n_layer", type=int, default=12)
    parser.add_argument("--num_rows", type=int, default=1)
    parser.add_argument("--quantize", default="none")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--top_k", type=int, default=200)
    parser.add_argument("--top_p", type=float, default=1.0)
    parser.add_argument("--min_p", type=float, default=0.0)
    parser.add_argument("--repetition_penalty", type=float, default=1.0)
    parser.add_argument("--no_repeat_ngram_size", type=int, default=0)
    args = parser.parse_args(argv)
    card = CARDS[args.capability]
    pretend(card)
    print(json.dumps(trace(card, args)))


if __name__ == "__main__":
    main(sys.argv[1:])
