"""A model one token at a time: several sequences share one pass over the weights, each with its keys and values.

Each sequence is computed as if it were alone, bit for bit: a prompt is read in a pass of its own, the rows of a batch
never mix, and attention sums over a number of slots that does not depend on the other rows.

Shapes: B rows decoded at once, N tokens read in one pass, C width, H heads, G heads of keys and values, q queries that
share them (H / G), K head size, T window, S slots of it in use, R rows that are computed (B or more), V vocabulary.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from architectures.table import ModelConfig, architecture_of
from machine.backends import backend_of
from ops.products import PACKED_ROWS, Dense, Packed

LOADING_THREADS = 2  # PyTorch transposes a matrix with one thread
SLOTS = 64  # attention looks at a multiple of this, so that a row's sums do not depend on its neighbours' lengths

AttendInLayer: TypeAlias = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """torch.zeros, but on a CPU a page takes no memory before it is written to."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=dtype).view(shape)


def round_up_to_slots(length: int) -> int:
    """The least multiple of SLOTS that is not below length."""
    return -(-length // SLOTS) * SLOTS


class Decoder:
    """A model, and the keys and values of num_rows sequences. A step takes rows 0 to n - 1.

    weights are those of the network's state_dict(), on any device; the vocabulary's padding may be missing. Dense keeps
    them as they are if device and dtype are its own; other kinds copy them. Matrices are multiplied in weight_dtype
    (dtype if None), everything else is computed in dtype.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, torch.Tensor], num_rows: int,
                 device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, kind: type[Dense] = Dense,
                 weight_dtype: torch.dtype | None = None):
        self.config = config
        self.num_rows = num_rows
        self.device = torch.device(device)
        self.dtype = dtype
        self.weights = WeightLoader(config, weights, self.device, dtype, kind, weight_dtype or dtype).load()

        self.window = config.seq_length
        self.lengths = [0] * num_rows  # slots in use
        self.filled: list[list[int]] = [[] for _ in range(num_rows)]  # the ids that fill read last
        num_slots = round_up_to_slots(self.window) + 1  # one is never used: taking all would compile another graph
        self.num_kv_heads, head_size = architecture_of(config).kv_heads(config)
        self.num_sharing = config.n_head // self.num_kv_heads  # heads of queries that share one of keys and values
        shape = (num_rows, 2, self.num_kv_heads, num_slots, head_size)
        self.caches = [lazy_zeros(shape, dtype, self.device) for _ in self.weights.blocks]

        self.compiled = self.in_graphs = False
        self.steps = 0
        self._compute_logits = self._logits  # or what the compiler made of it

    @property
    def bytes_per_step(self) -> int:
        """Bytes of weights that a step reads."""
        return self.weights.bytes_per_step

    def compile(self, in_graphs: bool) -> None:
        """Compiles the step for num_rows rows, once for all lengths. Raises whatever the compiler raises.

        in_graphs: a step is launched whole, as one CUDA graph. It does the same at the same addresses each time, so
        attention looks at all slots.
        """
        if in_graphs:
            for tensor in (*self.caches, *tensors_in(self.weights)):
                torch._dynamo.mark_static_address(tensor)  # else each step would copy it to where the graph reads
            run = torch.compile(self._logits, mode="reduce-overhead", dynamic=False, fullgraph=True)
        else:
            run = torch.compile(self._logits, dynamic=False, fullgraph=True, options={
                "realize_opcount_threshold": 8,  # the input of a product is computed once, not again in its loop
                "cpp.threads": torch.get_num_threads()})  # which a kernel from the compiler's cache keeps

        def compute_logits(ids_B: torch.Tensor, positions_B: torch.Tensor, mask_B11S: torch.Tensor) -> torch.Tensor:
            if in_graphs:
                torch.compiler.cudagraph_mark_step_begin()  # the logits of the step before may be overwritten
            else:
                torch._dynamo.mark_dynamic(mask_B11S, 3)
            return run(ids_B, positions_B, mask_B11S)

        self.compiled, self.in_graphs = True, in_graphs
        self._compute_logits = compute_logits
        try:
            for _ in range(3 if in_graphs else 1):  # a graph is recorded in the second call
                self.step([0] * self.num_rows)
        except Exception:
            self.compiled = self.in_graphs = False
            self._compute_logits = self._logits
            raise
        finally:
            self.lengths = [0] * self.num_rows
            self.steps = 0

    # ---------------------------------------------------------------- rows

    @torch.inference_mode()
    def fill(self, row: int, ids: Sequence[int]) -> None:
        """Makes the row hold the keys and values of these ids alone, at most T.

        If another row was filled with the same ids, its keys and values are copied instead of computed.
        """
        ids = list(ids)
        self.lengths[row] = len(ids)
        if ids and ids not in self.filled:
            self._read(row, ids)
        elif ids and ids != self.filled[row]:
            self._copy(self.filled.index(ids), row, len(ids))
        self.filled[row] = ids

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Copies what one row holds to another."""
        self._copy(source, target, self.lengths[source])
        self.lengths[target] = self.lengths[source]
        self.filled[target] = self.filled[source]

    def _copy(self, source: int, target: int, length: int) -> None:
        for kv in self.caches:
            kv[target, :, :, :length] = kv[source, :, :, :length]

    def _read(self, row: int, ids: list[int]) -> None:
        """Computes the keys and values of ids in one pass."""
        num_ids = len(ids)

        def attend(layer: int, q_NHK: torch.Tensor, kv_N2GK: torch.Tensor) -> torch.Tensor:
            q_HNK, kv_2GNK = q_NHK.transpose(0, 1), kv_N2GK.permute(1, 2, 0, 3)
            self.caches[layer][row, :, :, :num_ids] = kv_2GNK
            k, v = kv_2GNK[:, None]
            y = F.scaled_dot_product_attention(q_HNK[None], k, v, is_causal=True, enable_gqa=self.num_sharing > 1)
            return y.transpose(1, 2).reshape(num_ids, -1)

        ids_N = torch.tensor(ids, device=self.device)
        self._trunk(ids_N, torch.arange(num_ids, device=self.device), attend)

    # ---------------------------------------------------------------- a step

    @torch.inference_mode()
    def step(self, ids: Sequence[int]) -> torch.Tensor:
        """Adds one id to each of the rows 0 to len(ids) - 1; fp32 logits [B, V] of what follows."""
        B = self.num_rows if self.compiled else len(ids)
        for row in range(len(ids), B):  # rows that only fill the compiled shape
            self.lengths[row] = 0
            self.filled[row] = []
        lengths = self.lengths[:B]
        assert max(lengths) < self.window, "more tokens than positions"

        S = round_up_to_slots(self.window if self.in_graphs else max(lengths) + 1)
        ids_and_positions_2B = torch.tensor([[*ids, *[0] * (B - len(ids))], lengths], device=self.device)
        ids_B, positions_B = ids_and_positions_2B[0], ids_and_positions_2B[1]
        logits_BV = self._compute_logits(ids_B, positions_B, self._mask(positions_B, S))
        self.steps += 1
        for row in range(len(ids)):
            self.lengths[row] += 1
        return logits_BV[:len(ids)]

    def _mask(self, positions_B: torch.Tensor, num_slots: int) -> torch.Tensor:
        """[B, 1, 1, S]: 0 for the slots up to a row's position, -inf for those behind it."""
        is_used_BS = torch.arange(num_slots, device=self.device) <= positions_B[:, None]
        mask_BS = torch.zeros(is_used_BS.shape, dtype=self.dtype, device=self.device)
        return mask_BS.masked_fill_(~is_used_BS, -torch.inf)[:, None, None]

    def _logits(self, ids_B: torch.Tensor, positions_B: torch.Tensor, mask_B11S: torch.Tensor) -> torch.Tensor:
        """fp32 [B, V] after one more id in each row, whose keys and values go to the slots positions_B.

        On a CPU a product with one row may round in another order than one with several. So that a row has the same
        bits alone and in a batch, packed weights are never multiplied with fewer than PACKED_ROWS rows (the last row
        is repeated), and each query is there twice.
        """
        B = len(ids_B)
        S = mask_B11S.size(-1)
        row_B = torch.arange(B, device=ids_B.device)
        num_rows = max(B, PACKED_ROWS) if isinstance(self.weights.head, Packed) else B
        from_R = torch.arange(num_rows).clamp_(max=B - 1) if num_rows > B else slice(None)
        least_queries = 1 if self.compiled or self.device.type != "cpu" else 2

        def attend(layer: int, q_NHK: torch.Tensor, kv_N2GK: torch.Tensor) -> torch.Tensor:
            cache = self.caches[layer]
            cache[row_B, :, :, positions_B] = kv_N2GK[:B]
            # The queries of the heads that share keys are rows of one product, so no key is copied.
            q_BGqK = q_NHK[:B].unflatten(1, (self.num_kv_heads, -1))
            if q_BGqK.size(2) < least_queries:
                q_BGqK = q_BGqK.expand(-1, -1, least_queries, -1)
            y_BGqK = F.scaled_dot_product_attention(q_BGqK, cache[:B, 0, :, :S], cache[:B, 1, :, :S], mask_B11S)
            return y_BGqK[:, :, :self.num_sharing].reshape(B, -1)[from_R]

        x = self._trunk(ids_B[from_R], positions_B[from_R], attend)
        return self.weights.head(x)[:B, :self.config.vocab_size].float()

    def _trunk(self, ids_N: torch.Tensor, positions_N: torch.Tensor, attend: AttendInLayer) -> torch.Tensor:
        """What the output layer multiplies, [N, C]. attend is given the layer besides what Attend is given."""
        weights = self.weights
        x, places = weights.ends.enter(weights.embedding.rows(ids_N).to(self.dtype), positions_N)
        for layer, block in enumerate(weights.blocks):
            x = block(x, places, partial(attend, layer))
        return weights.ends.leave(x)


# ---------------------------------------------------------------- the weights


@dataclass(frozen=True)
class DecodingWeights:
    """A whole model laid out for decoding. The head is the embedding itself where they share a matrix and a layout."""

    embedding: Dense
    ends: Any
    blocks: list[Any]
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

        def load_block(layer: int) -> Any:
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


def tensors_in(part: Any) -> Iterator[torch.Tensor]:
    """The tensors that an object holds, in its attributes, lists and theirs."""
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, list) or hasattr(part, "__dict__"):
        for value in part if isinstance(part, list) else vars(part).values():
            yield from tensors_in(value)
