"""CUDA graphs without CUDA: what a graph would do to memory is done on the CPU, operation by operation.

While a graph is recorded, the operations that PyTorch runs are noted and what they changed is undone: CUDA runs nothing
then. A replay runs the same operations on the same tensors; a number that the host computed in between is not seen.
Results that are copied to the host are kept from it until it has waited for their event.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from generation import graphs
from generation.graphs import CopyToHost, GraphDecoder
from ops.products import Dense

NOT_YET = -1e300


def tensors_in(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


class Tape(TorchDispatchMode):
    """The operations that were run, with their results; and what the tensors held that they have changed."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the compiler is imported, 3 s

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:  # all of these change their first argument
            self.before.setdefault(id(args[0]), (args[0], args[0].clone()))
        found = func(*args, **kwargs)
        self.operations.append((func, args, kwargs, tensors_in(found)))
        return found


class FakeGraph:
    """torch.cuda.CUDAGraph; replays counts those of all graphs."""

    replays = 0

    def __init__(self) -> None:
        self._tape = Tape()

    @contextlib.contextmanager
    def recorded(self, **_: Any) -> Iterator[None]:
        """torch.cuda.graph(self)."""
        with self._tape:
            yield
        for tensor, before in reversed(self._tape.before.values()):
            tensor.copy_(before)

    def replay(self) -> None:
        FakeGraph.replays += 1
        for func, args, kwargs, expected in self._tape.operations:
            for new, old in zip(tensors_in(func(*args, **kwargs)), expected, strict=True):
                if new.data_ptr() != old.data_ptr():  # not a view, and not changed in place
                    old.copy_(new)


class FakeEvent:
    """torch.cuda.Event behind a copy to buffer, which holds nothing of use before the event is waited for."""

    waits = 0

    def __init__(self) -> None:
        self.buffer = self._found = torch.zeros(0)

    def record(self) -> None:
        self._found = self.buffer.clone()
        self.buffer.fill_(NOT_YET)

    def synchronize(self) -> None:
        FakeEvent.waits += 1
        self.buffer.copy_(self._found)


class SlowCopy(CopyToHost):
    def __init__(self, tensor: torch.Tensor):
        super().__init__(tensor)
        assert isinstance(self._event, FakeEvent)
        self._event.buffer = self._buffer


class FakeStream:
    def synchronize(self) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        assert isinstance(other, FakeStream)


def pretend_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts these in the place of torch.cuda's."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **options: graph.recorded(**options))
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "current_stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(graphs, "CopyToHost", SlowCopy)
    monkeypatch.setattr(FakeGraph, "replays", 0)
    monkeypatch.setattr(FakeEvent, "waits", 0)


def graph_decoder_of(model: Any, num_rows: int, kind: type[Dense] = Dense) -> GraphDecoder:
    """A decoder with graphs on the CPU; needs pretend_graphs."""
    return GraphDecoder(model.config, model.state_dict(), num_rows, "cpu", torch.float32, kind)
