"""A model's weights laid out for decoding: its architecture knows which parts there are, this file how they lie."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from architectures.decoding import LaidOutBlock, LaidOutEnds
from architectures.table import ModelConfig, architecture_of
from machine.backends import backend_of
from ops.products import Dense, Packed

LOADING_THREADS = 2  # PyTorch transposes a matrix with one thread


@dataclass(frozen=True)
class DecodingWeights:
    """A whole model laid out for decoding. The head is the embedding itself where they share a matrix and a layout."""

    embedding: Dense
    ends: LaidOutEnds
    blocks: list[LaidOutBlock]
    head: Dense
    bytes_per_step: int  # of the matrices, which a step reads


@dataclass(frozen=True)
class WeightLoader:
    """Lays out the tensors of a state dict, which may lie on any device and may lack the vocabulary's padding.

    Matrices are kept as the kind says and multiplied in weight_dtype; vectors are in dtype, that of the activations.
    """

    config: ModelConfig
    tensors: Mapping[str, torch.Tensor]
    device: torch.device
    dtype: torch.dtype
    kind: type[Dense]
    weight_dtype: torch.dtype

    def load(self) -> DecodingWeights:
        """The whole model."""
        architecture = architecture_of(self.config)
        parts_by_layer = [PartsInOrder(self) for _ in range(self.config.n_layer)]

        def load_block(layer: int) -> LaidOutBlock:
            return architecture.decoding_block(self.config, layer, parts_by_layer[layer])

        with ThreadPoolExecutor(LOADING_THREADS) as pool:
            blocks = pool.map(load_block, range(self.config.n_layer))

            ends = architecture.decoding_ends(self.config, PartsInOrder(self))
            is_packed = self.kind is Packed
            embedding = self.table(architecture.EMBEDDING, Dense if is_packed else self.kind)  # rows cannot be packed

            head_name = architecture.head_name(self.config)
            if head_name != architecture.EMBEDDING:
                head = self.table(head_name, self.kind)
            elif is_packed:
                head = Packed(embedding.weight, None, embedding.dtype)
            else:
                head = embedding
            blocks = list(blocks)

        num_bytes = head.num_bytes + sum(matrix.num_bytes for parts in parts_by_layer for matrix in parts.matrices)
        return DecodingWeights(embedding, ends, blocks, head, num_bytes)

    def table(self, name: str, kind: type[Dense]) -> Dense:
        """A matrix with a row for each id, by its parameter's name; on a GPU the vocabulary is padded."""
        weight = self.tensors[f"{name}.weight"].to(self.device)
        if backend_of(self.device).is_gpu:
            weight = F.pad(weight, (0, 0, 0, self.config.padded_vocab_size - len(weight)))
        return kind(weight, None, self.weight_dtype)


class PartsInOrder:
    """The parts of a block as an architecture asks for them: its matrices are laid out one after another.

    A mapped file holds most of GPT-2's matrices transposed. Packing would copy such a view, each time to fresh pages of
    memory; copying it to a buffer that is used again is faster.
    """

    def __init__(self, loader: WeightLoader):
        self.matrices: list[Dense] = []  # those asked for so far
        self._loader = loader
        self._buffer: torch.Tensor | None = None

    def matrix(self, name: str) -> Dense:
        """A linear layer by the name of its parameters."""
        loader = self._loader
        weight = loader.tensors[f"{name}.weight"].to(loader.device)
        if loader.kind is Packed and not weight.is_contiguous():
            weight = self._copy(weight)
        self.matrices.append(loader.kind(weight, self.vector_if_any(f"{name}.bias"), loader.weight_dtype))
        return self.matrices[-1]

    def vector(self, name: str) -> torch.Tensor:
        """A vector or a table that is added, by its parameter's whole name, in the dtype of the activations."""
        return self._loader.tensors[name].to(self._loader.device, self._loader.dtype)

    def vector_if_any(self, name: str) -> torch.Tensor | None:
        """The same; None if the model has no such parameter."""
        return self.vector(name) if name in self._loader.tensors else None

    def _copy(self, weight: torch.Tensor) -> torch.Tensor:
        """A copy in the buffer, which the next one overwrites."""
        dtype = self._loader.weight_dtype
        if self._buffer is None:
            views = (tensor.numel() for tensor in self._loader.tensors.values() if not tensor.is_contiguous())
            self._buffer = torch.empty(max(views), dtype=dtype)
        return self._buffer[:weight.numel()].view(weight.shape).copy_(weight.to(dtype))
