"""Runs a model one token at a time: several sequences share each pass over the weights.

Each sequence is computed as if it were alone. A prompt is read in a pass of its own, and the rows of a batch
never mix. The number of slots that attention sums over does not depend on the other rows. On a CPU with one
thread a sequence therefore has the same bits alone and in a batch; with several threads, the matrix products
may round differently.

Shapes: B rows decoded at once, N tokens read in one pass, C width, H heads, G heads of keys and
values, q queries for each of them (H / G), K head size, T window, S its slots in use, R computed
rows (B or more), V vocabulary.
"""

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

from gpt.architectures.architecture import LaidOut
from gpt.architectures.table import ModelConfig, architecture_of
from gpt.generation.continuation import Sampling
from gpt.generation.drawing import draw
from gpt.machine.backends import backend_of
from gpt.ops.attention import heads_for_kernel
from gpt.ops.products import PACKED_ROWS, Dense, Packed

GRAPH_SLOTS = 4096  # in a CUDA graph, which reads all of them for each token; a longer text leaves the graphs
SLOTS = 64  # attention reads a multiple of this, so that a row's sums do not depend on its neighbours' lengths


class Decoder:
    """A model with the keys and values of num_rows sequences; a step continues the rows 0 to n - 1.

    weights is the network's state_dict(), on any device; the vocabulary's padding may be missing. The kind
    Dense shares weights that have the right device and dtype; other kinds copy them. Matrices are
    multiplied in weight_dtype (dtype if None), everything else is computed in dtype.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, torch.Tensor], num_rows: int,
                 device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32,
                 kind: type[Dense] = Dense, weight_dtype: torch.dtype | None = None):
        self.config = config
        self.num_rows = num_rows
        self.dtype = dtype
        self.device = torch.device(device)
        self.draw_device = self.device if backend_of(self.device).has_float64 else torch.device("cpu")
        self.architecture = architecture_of(config)
        self._lay_out(weights, kind, weight_dtype or dtype)

        self.window = config.seq_length
        self.lengths = [0] * num_rows  # slots in use
        self.filled: list[list[int]] = [[] for _ in range(num_rows)]  # the ids of each row's last fill()
        # One stays unused: a slice of all slots would compile another graph.
        num_slots = _whole_slots(self.window) + 1
        shape = (num_rows, 2, config.n_kv_head, num_slots, config.head_dim)
        if self.device.type == "cpu":  # a mapped page takes no memory before it is written to
            self.caches = [torch.frombuffer(mmap.mmap(-1, math.prod(shape) * dtype.itemsize),
                                            dtype=dtype).view(shape)
                           for _ in self.blocks]
        else:  # _grow_caches() adds slots
            shape = (*shape[:3], 0, config.head_dim)
            self.caches = [torch.zeros(shape, dtype=dtype, device=self.device) for _ in self.blocks]

        self.compiled = self.in_graphs = False
        self.graph_slots = _whole_slots(min(self.window, GRAPH_SLOTS))
        # compile() sets both. A bound method of its own would keep a decoder, and its weights, in memory after its use.
        self._compiled_logits: Callable[..., torch.Tensor] | None = None
        self.draw = draw

    @torch.inference_mode()
    def compile(self, in_graphs: bool, sampling: Sampling) -> None:
        """Compiles the step for num_rows rows, once for all lengths. Raises any exception of the compiler.

        With in_graphs a step is one CUDA graph, and the draw by this sampling is another. A graph has fixed
        addresses and shapes, so attention reads all of its slots.
        """
        self._grow_caches(self.graph_slots // 2)
        if in_graphs:
            parts = tree_leaves([self.caches, self.ends, self.blocks, self.embedding, self.head])
            for tensor in tree_leaves([vars(part) if isinstance(part, Dense) else part for part in parts]):
                if isinstance(tensor, torch.Tensor):  # otherwise each step would copy it to the graph's address
                    torch._dynamo.mark_static_address(tensor)
            run = torch.compile(self._logits, mode="reduce-overhead", dynamic=False, fullgraph=True)
            # The draw keeps PyTorch's kernels and so its bits: Inductor of torch 2.11
            # fails at a sum over all ids.
            draw_ids = torch.compile(draw, backend="cudagraphs", dynamic=False, fullgraph=True)
        else:
            run = torch.compile(self._logits, dynamic=False, fullgraph=True, options={
                "realize_opcount_threshold": 8,  # a product's input is computed once, not again in its loop
                "cpp.threads": torch.get_num_threads()})  # part of the cache's key: a kernel keeps its thread count
            draw_ids = draw  # compiled it would round differently

        def compute_logits(ids_B: torch.Tensor, positions_B: torch.Tensor,
                           mask_B11S: torch.Tensor) -> torch.Tensor:
            if in_graphs:
                torch.compiler.cudagraph_mark_step_begin()  # it may overwrite the last step's logits
            else:
                torch._dynamo.mark_dynamic(mask_B11S, 3)
            return run(ids_B, positions_B, mask_B11S)

        ids_B, positions_B = torch.zeros(2, self.num_rows, dtype=torch.int64, device=self.device)
        uniforms_B = torch.zeros(self.num_rows, dtype=torch.float64, device=self.draw_device)
        mask_B11S = self._mask(positions_B, self.graph_slots if in_graphs else SLOTS)
        for _ in range(3 if in_graphs else 1):  # a graph is recorded in the second call
            logits_BV = compute_logits(ids_B, positions_B, mask_B11S)
            draw_ids(logits_BV.to(self.draw_device), uniforms_B, sampling)
        self.compiled = True
        self.in_graphs = in_graphs
        self._compiled_logits = compute_logits
        self.draw = draw_ids

    # ---------------------------------------------------------------- rows

    @torch.inference_mode()
    def fill(self, row: int, ids: list[int]) -> None:
        """Fills a row with the keys and values of these ids, at most T.

        They are copied, not computed, if another row was filled with the same ids.
        """
        if ids and ids in self.filled:
            self.move(self.filled.index(ids), row)
        elif ids:
            self._read(row, ids)
        self.lengths[row], self.filled[row] = len(ids), ids

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Copies one row's keys and values to another row."""
        length = self.lengths[source]
        for kv in self.caches:
            kv[target, :, :, :length] = kv[source, :, :, :length]
        self.lengths[target], self.filled[target] = length, self.filled[source]

    @torch.inference_mode(False)
    def _grow_caches(self, length: int) -> None:
        """Adds slots to the caches if a row of length ids needs them.

        They are for twice as many ids, so that copies are few, and a long window takes no
        memory before a text fills it.
        """
        if length < self.caches[-1].size(3):
            return
        num_slots = min(_whole_slots(2 * length), _whole_slots(self.window)) + 1
        for layer, cache in enumerate(self.caches):  # if memory ran out before, the first ones may have grown
            self.caches[layer] = F.pad(cache, (0, 0, 0, num_slots - cache.size(3)))

    def _read(self, row: int, ids: list[int]) -> None:
        """Computes the keys and values of all ids in one pass."""
        num_ids = len(ids)
        self._grow_caches(num_ids)

        def attend(layer: int, q_NHK: torch.Tensor, kv_N2GK: torch.Tensor,
                   bias_NHT: torch.Tensor | None = None) -> torch.Tensor:
            q_HNK, kv_2GNK = q_NHK.transpose(0, 1), kv_N2GK.permute(1, 2, 0, 3)
            self.caches[layer][row, :, :, :num_ids] = kv_2GNK
            k, v = heads_for_kernel(kv_2GNK[:1], kv_2GNK[1:], q_HNK.size(0))
            mask_HNN = None if bias_NHT is None else bias_NHT[..., :num_ids].transpose(0, 1)
            y = F.scaled_dot_product_attention(q_HNK[None], k, v, mask_HNN, is_causal=mask_HNN is None,
                                               enable_gqa=k.size(1) < q_HNK.size(0))
            return y.transpose(1, 2).reshape(num_ids, -1)

        self._trunk(torch.tensor(ids, device=self.device), torch.arange(num_ids, device=self.device), attend)

    # ---------------------------------------------------------------- a step

    @torch.inference_mode()
    def step(self, ids: Sequence[int], uniforms: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends one id to each of the first rows; returns the fp32 logits [B, V] of the next ids.

        The other result is uniforms, float64 [B], which comes to the device in the same copy as the ids. Both
        lie on the CPU if the device has no float64. A compiled step has num_rows rows; the last are unused.
        """
        B = self.num_rows if self.compiled else len(ids)
        for row in range(len(ids), B):  # unused rows of the compiled shape
            self.lengths[row], self.filled[row] = 0, []
        longest = max(self.lengths[:B]) + 1
        assert longest <= self.window, "more tokens than positions"
        if longest > self.graph_slots and self.in_graphs:  # caches that grow have other addresses
            self.in_graphs, self._compiled_logits = False, None
        self._grow_caches(longest)

        S = self.graph_slots if self.in_graphs else _whole_slots(longest)
        unused = [0] * (B - len(ids))
        numbers_3B = torch.tensor([[*ids, *unused], self.lengths[:B], [*uniforms, *unused]], dtype=torch.float64,
                                  device=self.draw_device)
        ids_B, positions_B = numbers_3B[:2].long().to(self.device)
        compute_logits = self._compiled_logits or self._logits
        logits_BV = compute_logits(ids_B, positions_B, self._mask(positions_B, S))
        for row in range(len(ids)):
            self.lengths[row] += 1
        return logits_BV.to(self.draw_device), numbers_3B[2]

    def _mask(self, positions_B: torch.Tensor, num_slots: int) -> torch.Tensor:
        """The attention mask [B, 1, 1, S]: 0 for the slots up to a row's position, -inf for later slots."""
        is_used_BS = torch.arange(num_slots, device=self.device) <= positions_B[:, None]
        return torch.where(is_used_BS, 0.0, -torch.inf).to(self.dtype)[:, None, None]

    def _logits(self, ids_B: torch.Tensor, positions_B: torch.Tensor, mask_B11S: torch.Tensor) -> torch.Tensor:
        """The fp32 logits [B, V] after one more id in each row, which fills the slots positions_B.

        On a CPU a product with one row may round in another order than a product with several. Two measures
        give a row the same bits alone and in a batch. Packed weights are multiplied with at least
        PACKED_ROWS rows: the last row is repeated. Keys are multiplied with an even number of queries: for
        1 or 3 queries, MKL's rounding depends on the address of a thread's memory.
        """
        B = len(ids_B)
        S = mask_B11S.size(-1)
        row_B = torch.arange(B, device=ids_B.device)
        num_rows = max(B, PACKED_ROWS) if isinstance(self.head, Packed) else B
        from_R = torch.arange(num_rows).clamp_(max=B - 1) if num_rows > B else slice(None)
        # Query heads for each head of keys and values.
        num_sharing = self.config.n_head // self.config.n_kv_head
        adds_query = num_sharing % 2 and self.device.type == "cpu" and not torch.compiler.is_compiling()

        def attend(layer: int, q_NHK: torch.Tensor, kv_N2GK: torch.Tensor,
                   bias_NHT: torch.Tensor | None = None) -> torch.Tensor:
            cache = self.caches[layer]
            cache[row_B, :, :, positions_B] = kv_N2GK[:B]
            # The queries of the heads that share keys are rows of one product, so no key is copied.
            q_BGqK = q_NHK[:B].unflatten(1, (self.config.n_kv_head, -1))
            if adds_query:
                q_BGqK = F.pad(q_BGqK, (0, 0, 0, 1))
            mask = mask_B11S if bias_NHT is None else mask_B11S + F.pad(bias_NHT[:B, :, None], (0, S - self.window))
            y_BGqK = F.scaled_dot_product_attention(q_BGqK, cache[:B, 0, :, :S], cache[:B, 1, :, :S], mask)
            return y_BGqK[:, :, :num_sharing].reshape(B, -1)[from_R]

        x = self._trunk(ids_B[from_R], positions_B[from_R], attend)
        return self.head(x)[:B, :self.config.vocab_size].float()

    def _trunk(self, ids_N: torch.Tensor, positions_N: torch.Tensor, attend: Callable[..., torch.Tensor],
               ) -> torch.Tensor:
        """Computes the output layer's input [N, C]. attend takes the layer's number, then Attend's arguments."""
        architecture, config = self.architecture, self.config
        x, places = architecture.embed(config, self.ends, self.embedding.rows(ids_N).to(self.dtype),
                                       positions_N)
        for layer, parts in enumerate(self.blocks):
            x = architecture.decode_block(config, parts, x, places, partial(attend, layer))
        return architecture.final_norm(config, self.ends, x)

    # ---------------------------------------------------------------- the weights

    def _lay_out(self, tensors: Mapping[str, torch.Tensor], kind: type[Dense],
                 weight_dtype: torch.dtype) -> None:
        """Sets embedding, blocks, ends and head; the head is the embedding if they share a matrix and a layout."""
        architecture, device = self.architecture, self.device
        matrices = architecture.hidden_matrices(self.config)

        def table(name: str, kind: type[Dense]) -> Dense:
            weight = tensors[f"{name}.weight"].to(device)
            if backend_of(device).is_gpu:
                weight = F.pad(weight, (0, 0, 0, self.config.padded_vocab_size - len(weight)))
            return kind(weight, None, weight_dtype)

        def vector(name: str) -> torch.Tensor:
            return tensors[name].to(device, self.dtype)

        def part(name: str) -> Dense | torch.Tensor:
            if name not in matrices:
                return vector(name)
            bias = f"{name.removesuffix('weight')}bias"
            return kind(tensors[name].to(device), vector(bias) if bias in tensors else None, weight_dtype)

        def block(layer: int) -> LaidOut:
            prefix = f"{architecture.Network.BLOCKS}.{layer}."
            return {name.removeprefix(prefix).removesuffix(".weight"): part(name)
                    for name in tensors if name.startswith(prefix)}

        with ThreadPoolExecutor(2) as pool:  # PyTorch transposes a matrix in one thread
            blocks = pool.map(block, range(self.config.n_layer))
            # Rows cannot be packed.
            self.embedding = table(architecture.Network.EMBEDDING, Dense if kind is Packed else kind)
            self.head = self.embedding
            if not self.config.tie_weights or kind is Packed:
                self.head = table(architecture.Network.EMBEDDING if self.config.tie_weights else "lm_head", kind)
            self.ends: LaidOut = {name.removesuffix(".weight"): part(name) for name in tensors if not (
                name.startswith(f"{architecture.Network.BLOCKS}.") or architecture.has_vocabulary_rows(name))}
            self.blocks = list(blocks)
        architecture.prepare(self.config, self.ends, self.blocks)


def _whole_slots(length: int) -> int:
    """Rounds a length up to a multiple of SLOTS."""
    return -(-length // SLOTS) * SLOTS
