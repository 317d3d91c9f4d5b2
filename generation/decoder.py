"""From ids to more ids: weights laid out for decoding, a static KV cache, the distribution drawn from, the schedule.

Sequences share one pass over the weights a token, whatever their lengths. Each is computed as if it were alone: a
prompt is read in a pass of its own, rows of a batch never mix, and every row draws from a generator of its own.

Shapes: B rows decoded at once, N tokens read in one pass, C width, H heads, K head size (C / H), T window, S slots of
it in use, V vocabulary, O outputs of a layer.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F

from generation.weights import PACKED_ROWS, Dense, Packed
from model import GPTConfig
from ops.linear import ACTIVATIONS

SLOTS = 64  # attention looks at a multiple of so many, so that a row's sums do not depend on its neighbours' lengths


# ---------------------------------------------------------------- the model, one token at a time



def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """torch.zeros, but on a CPU no memory is taken before it is written to."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, math.prod(shape) * dtype.itemsize), dtype=dtype).view(shape)


class Decoder:
    """A model and the keys and values of num_rows sequences. Steps take rows 0 to n-1.

    weights are those of GPT.state_dict(), on any device; the vocabulary's padding may be missing. Dense takes them as
    they are if device and dtype are its own, others copy them. Products of matrices are in weight_dtype, what is
    between them in dtype.
    """

    def __init__(self, config: GPTConfig, weights: Mapping[str, torch.Tensor], num_rows: int,
                 device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, kind: type[Dense] = Dense,
                 weight_dtype: torch.dtype | None = None):
        self.config, self.num_rows, self.dtype = config, num_rows, dtype
        where = self.device = torch.device(device)

        def vector(name: str) -> torch.Tensor | None:
            return weights[name].to(where, dtype) if name in weights else None

        def linear(name: str, kind: type[Dense] = kind, room: torch.Tensor | None = None) -> Dense:
            weight = weights[f"{name}.weight"].to(where)
            if room is not None and not weight.is_contiguous():  # packing would copy it, each time to other fresh pages
                weight = room[:weight.numel()].view(weight.shape).copy_(weight.to(room.dtype))
            if where.type == "cuda" and len(weight) == config.vocab_size:
                weight = F.pad(weight, (0, 0, 0, config.padded_vocab_size - len(weight)))
            return kind(weight, vector(f"{name}.bias"), weight_dtype or dtype)

        def norm(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
            weight, bias = vector(f"{name}.weight"), vector(f"{name}.bias")
            return lambda x: F.layer_norm(x, (config.n_embd,), weight, bias, config.layer_norm_epsilon)

        def layer(number: int) -> tuple[Any, ...]:
            h = f"transformer.h.{number}"
            room = torch.empty(4 * config.n_embd**2, dtype=weight_dtype or dtype) if kind is Packed else None
            return (norm(f"{h}.ln_1"), linear(f"{h}.attn.c_attn", room=room), linear(f"{h}.attn.c_proj", room=room),
                    norm(f"{h}.ln_2"), linear(f"{h}.mlp.c_fc", room=room), linear(f"{h}.mlp.c_proj", room=room))

        with ThreadPoolExecutor(2) as pool:  # PyTorch transposes a matrix with one thread
            layers = pool.map(layer, range(config.n_layer))
            self.positions = weights["transformer.wpe.weight"].to(where, dtype)
            self.final_norm = norm("transformer.ln_f")
            self.embed = self.head = linear("transformer.wte", Dense if kind is Packed else kind)
            if not config.tie_weights:
                self.head = linear("lm_head")
            elif kind is Packed:
                self.head = Packed(self.embed.weight, None, self.embed.dtype)
            self.layers = list(layers)
        self.gelu = ACTIVATIONS[self.config.activation]
        self.window = self.config.seq_length
        self.lengths = [0] * num_rows  # slots in use
        self.filled: list[list[int]] = [[] for _ in range(num_rows)]  # what fill read last
        H, K = self.config.n_head, self.config.n_embd // self.config.n_head
        num_slots = -(-self.window // SLOTS) * SLOTS + 1  # never all of them: a whole slice would be compiled anew
        self.caches = [zeros((num_rows, 2, H, num_slots, K), dtype, where) for _ in self.layers]
        self._run = self._logits
        self.compiled, self.steps = False, 0

    @property
    def bytes_per_step(self) -> int:
        """Bytes of weights that a step reads."""
        return sum(part.num_bytes for layer in self.layers for part in layer if isinstance(part, Dense)) + (
            self.head.num_bytes)

    def compile(self) -> None:
        """Compiles the step for num_rows rows, once for all lengths. Raises what the compiler raises."""
        self.compiled = True
        # What a matrix is multiplied with is computed once, not in its loop; kernels in the cache have as many threads.
        options: dict[str, Any] = {"realize_opcount_threshold": 8, "cpp.threads": torch.get_num_threads()}
        run = torch.compile(self._logits, dynamic=False, fullgraph=True, options=options)

        def marked(ids_B: torch.Tensor, positions_B: torch.Tensor, mask_B11S: torch.Tensor) -> torch.Tensor:
            torch._dynamo.mark_dynamic(mask_B11S, 3)
            return run(ids_B, positions_B, mask_B11S)

        self._run = marked
        try:
            self.step([0] * self.num_rows)
        except Exception:
            self.compiled, self._run = False, self._logits
            raise
        finally:
            self.lengths, self.steps = [0] * self.num_rows, 0

    def _trunk(self, ids_N: torch.Tensor, positions_N: torch.Tensor,
               attend: Callable[[int, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Hidden states [N, C] of ids; attend(layer, queries keys and values [N, 3, H, K]) gives [N, C]."""
        x = self.embed.rows(ids_N).to(self.dtype) + self.positions[positions_N]
        for layer, (norm_1, c_attn, c_proj, norm_2, c_fc, c_out) in enumerate(self.layers):
            qkv = c_attn(norm_1(x)).view(len(x), 3, self.config.n_head, -1)
            x = c_proj(attend(layer, qkv), plus=x)
            x = c_out(c_fc(norm_2(x), gelu=self.gelu), plus=x)
        return x

    def _logits(self, ids_B: torch.Tensor, positions_B: torch.Tensor, mask_B11S: torch.Tensor) -> torch.Tensor:
        """fp32 [B, V] after one more id in each row, whose keys and values go to the slots positions_B.

        On a CPU a product with one row may round in another order than one with several; there packed weights are
        never multiplied with a few rows alone, and each query comes twice.
        """
        B, S = len(ids_B), mask_B11S.size(-1)
        row_B = torch.arange(B, device=ids_B.device)
        num_rows = max(B, PACKED_ROWS) if isinstance(self.head, Packed) else B
        from_R = torch.arange(num_rows).clamp_(max=B - 1) if num_rows > B else slice(None)
        num_queries = 1 if self.compiled or self.device.type != "cpu" else 2

        def attend(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            kv = self.caches[layer]
            kv[row_B, :, :, positions_B] = qkv[:B, 1:]
            q = qkv[:B, 0, :, None].expand(-1, -1, num_queries, -1)
            y = F.scaled_dot_product_attention(q, kv[:B, 0, :, :S], kv[:B, 1, :, :S], mask_B11S)
            return y[:, :, 0].reshape(B, -1)[from_R]

        x = self._trunk(ids_B[from_R], positions_B[from_R], attend)
        return self.head(self.final_norm(x))[:B, :self.config.vocab_size].float()

    @torch.inference_mode()
    def fill(self, row: int, ids: Sequence[int]) -> None:
        """Makes the row hold the keys and values of ids alone, at most T; what another row has read is copied."""
        ids, self.lengths[row] = list(ids), len(ids)
        if ids and ids not in self.filled:
            ids_N = torch.tensor(ids, device=self.device)

            def attend(layer: int, qkv: torch.Tensor) -> torch.Tensor:
                q, k, v = qkv.permute(1, 2, 0, 3)[:, None]
                keys, values = self.caches[layer][row]
                keys[:, :len(ids)], values[:, :len(ids)] = k[0], v[0]
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                return y.transpose(1, 2).reshape(len(ids), -1)

            self._trunk(ids_N, torch.arange(len(ids), device=self.device), attend)
        elif ids and ids != self.filled[row]:
            self._copy(self.filled.index(ids), row, len(ids))
        self.filled[row] = ids

    def _copy(self, source: int, target: int, length: int) -> None:
        for kv in self.caches:
            kv[target, :, :, :length] = kv[source, :, :, :length]

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Puts what one row holds into another."""
        self._copy(source, target, self.lengths[source])
        self.lengths[target], self.filled[target] = self.lengths[source], self.filled[source]

    @torch.inference_mode()
    def step(self, ids: Sequence[int]) -> torch.Tensor:
        """Adds one id to each of the rows 0 to len(ids) - 1; fp32 logits [B, V] of what follows."""
        B = self.num_rows if self.compiled else len(ids)
        for row in range(len(ids), B):  # rows that only keep the compiled shape
            self.lengths[row], self.filled[row] = 0, []
        lengths = self.lengths[:B]
        assert max(lengths) < self.window, "more tokens than positions"
        S = -(-(max(lengths) + 1) // SLOTS) * SLOTS
        at_2B = torch.tensor([[*ids, *[0] * (B - len(ids))], lengths], device=self.device)
        is_used_BS = torch.arange(S, device=self.device) <= at_2B[1][:, None]
        mask_BS = torch.zeros(B, S, dtype=self.dtype, device=self.device).masked_fill_(~is_used_BS, -torch.inf)
        logits_BV = self._run(at_2B[0], at_2B[1], mask_BS[:, None, None])
        self.steps += 1
        for row in range(len(ids)):
            self.lengths[row] += 1
        return logits_BV[:len(ids)]
