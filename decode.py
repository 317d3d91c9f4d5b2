"""From ids to more ids: weights laid out for decoding, a static KV cache, the distribution drawn from, the schedule.

Sequences share one pass over the weights a token, whatever their lengths. Each is computed as if it were alone: a
prompt is read in a pass of its own, rows of a batch never mix, and every row draws from a generator of its own.

Shapes: B rows decoded at once, N tokens read in one pass, C width, H heads, K head size (C / H), T window, S slots of
it in use, V vocabulary, O outputs of a layer.
"""

from __future__ import annotations

import math
import mmap
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from cli import Exit, UserError
from model import ACTIVATIONS, GPT, GPTConfig

SLOTS = 64  # attention looks at a multiple of so many, so that a row's sums do not depend on its neighbours' lengths
PACKED_ROWS = 4  # what fewer rows are filled up to: oneDNN's product is faster with four than with one, two or three
INT8_ROWS = 32  # up to here 8-bit weights are multiplied as they are; beyond, they are unpacked first
CANDIDATES = 512  # the likeliest ids that a nucleus is sought in before the whole vocabulary is sorted

# ---------------------------------------------------------------- weights


def quantize(weight_OC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [O, C] and its scale per output channel, bf16 [O], symmetric: weight = int8 x scale within half a scale."""
    highest_O = torch.maximum(-weight_OC.amin(1), weight_OC.amax(1))
    scale_O = (highest_O.float() / 127).clamp(min=2.0**-60).bfloat16()  # the same in every dtype
    integers_OC = torch.empty(weight_OC.shape, dtype=torch.int8, device=weight_OC.device)
    for weight, scale, integers in zip(*(x.split(256) for x in (weight_OC, scale_O, integers_OC)), strict=True):
        integers.copy_((weight.float() * scale.float().reciprocal()[:, None]).round_())
    return integers_OC, scale_O


def matvec(x_1C: torch.Tensor, weight_OC: torch.Tensor) -> torch.Tensor:
    """x weight' for one row, fp32 [1, O], as a loop that the compiler fuses with the weight's conversion."""
    return (weight_OC.float() * x_1C.float()).sum(-1)[None]


class Dense:
    """x weight' + bias with the weight in the dtype given; called with rows to add, or GELU's form to apply."""

    def __init__(self, weight_OC: torch.Tensor, bias_O: torch.Tensor | None, dtype: torch.dtype):
        self.weight, self.bias, self.dtype = weight_OC.to(dtype).contiguous(), bias_O, dtype

    def product(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() and x.device.type == "cpu" and len(x) == 1:
            y = matvec(x, self.weight)
            return (y if self.bias is None else y + self.bias).to(x.dtype)
        if x.dtype == self.dtype:
            return F.linear(x, self.weight, self.bias)
        y = F.linear(x.to(self.dtype), self.weight).to(x.dtype)
        return y if self.bias is None else y + self.bias

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None, gelu: str | None = None) -> torch.Tensor:
        y = self.product(x)
        if gelu is not None:
            y = F.gelu(y, approximate=gelu)
        return y if plus is None else plus + y

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """The weight's rows of ids: an embedding."""
        return F.embedding(ids, self.weight)

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes


class Packed(Dense):
    """The weight in oneDNN's own layout: a step reads it at twice the bandwidth of F.linear on a CPU."""

    def __init__(self, weight_OC: torch.Tensor, bias_O: torch.Tensor | None, dtype: torch.dtype):
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight_OC.to(dtype), 64)  # laid out for so many rows
        self.bias, self.dtype, self._bytes = bias_O, dtype, weight_OC.numel() * dtype.itemsize

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None, gelu: str | None = None) -> torch.Tensor:
        if plus is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(x, plus, self.weight, self.bias, "add")
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "gelu" if gelu else "none", [], gelu or "")

    @property
    def num_bytes(self) -> int:
        return self._bytes


class Int8(Dense):
    """8-bit weights with a scale per output channel; activations stay as they are."""

    def __init__(self, weight_OC: torch.Tensor, bias_O: torch.Tensor | None, dtype: torch.dtype):
        self.weight, self.scale = quantize(weight_OC)
        self.bias, self.dtype = bias_O, dtype

    def product(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu" and len(x) == 1 and torch.compiler.is_compiling():
            y = matvec(x, self.weight) * self.scale
            return (y if self.bias is None else y + self.bias).to(x.dtype)
        if x.device.type == "cpu" and x.dtype == torch.bfloat16 and len(x) <= INT8_ROWS:
            y = torch._weight_int8pack_mm(x, self.weight, self.scale)  # type: ignore[attr-defined]
        else:
            y = F.linear(x.to(self.dtype), self.weight.to(self.dtype)).to(x.dtype) * self.scale.to(x.dtype)
        return y if self.bias is None else y + self.bias

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids] * self.scale[ids][..., None]

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes + self.scale.nbytes


def layout(device: torch.device, dtype: torch.dtype, quantized: bool, compiled: bool) -> type[Dense]:
    """How weights are best kept for decoding."""
    if quantized:
        return Int8
    packs = device.type == "cpu" and not compiled and torch.backends.mkldnn.is_available() and (
        dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()))
    return Packed if packs else Dense


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


# ---------------------------------------------------------------- the distribution


@dataclass(frozen=True)
class Sampling:
    """What is drawn from: penalties, temperature (0: the likeliest), top-k, top-p, min-p, in transformers' order."""

    temperature: float = 0.8
    top_k: int = 200
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-6  # as good as 0, and dividing by it would overflow


def penalised(logits_BV: torch.Tensor, histories: Sequence[Sequence[int]], banned: Sequence[Sequence[int]],
              repetition_penalty: float) -> torch.Tensor:
    """Logits with ids of a row's history made less likely (Keskar et al. 2019, section 4.1) and banned ones at -inf."""
    logits_BV = logits_BV.clone()
    for logits_V, history, forbidden in zip(logits_BV, histories, banned, strict=True):
        if repetition_penalty != 1 and history:
            ids = torch.tensor(history, device=logits_V.device)
            found = logits_V[ids]
            logits_V[ids] = torch.where(found < 0, found * repetition_penalty, found / repetition_penalty)
        if forbidden:
            logits_V[torch.tensor(forbidden, device=logits_V.device)] = -torch.inf
    return logits_BV


def candidates(logits_BV: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits over temperature, likeliest first, and their ids, [B, M] each; what is out has -inf.

    The k likeliest, then the nucleus, the smallest set of likeliest ids that holds at least top_p (Holtzman et al.
    2019, section 3.1), then ids at least min_p times as likely as the first (Nguyen et al. 2024, section 3). Each rule
    keeps the first of the sorted ids, so it is enough to sort a few when the last of them is out.
    """
    logits_BV, V = logits_BV / sampling.temperature, logits_BV.size(-1)
    has_k = 0 < sampling.top_k < V
    few = min(V, sampling.top_k + 32 if has_k else CANDIDATES)
    for num in (few, V):
        values, ids = logits_BV.topk(num)
        kept = torch.ones_like(values, dtype=torch.bool)
        if has_k:
            kept = values >= values[:, sampling.top_k - 1:sampling.top_k]
        if sampling.top_p < 1:
            total = values.masked_fill(~kept, -torch.inf) if has_k else logits_BV
            p = (values - total.logsumexp(-1, keepdim=True)).exp()
            kept &= p.cumsum(-1) - p < sampling.top_p
        if sampling.min_p > 0:
            kept &= (values - values[:, :1]).exp() >= sampling.min_p
        kept[:, 0] = True
        if num == V or not kept[:, -1].any():
            break
    return values.masked_fill(~kept, -torch.inf), ids


def draw(logits_BV: torch.Tensor, sampling: Sampling, uniforms: Sequence[float]) -> torch.Tensor:
    """One id per row of fp32 logits, int64 [B], chosen by a number of [0, 1) each; the likeliest if greedy."""
    if sampling.is_greedy:
        return logits_BV.argmax(-1)
    if sampling.top_k == 0 and sampling.top_p == 1 and sampling.min_p == 0:
        values, ids = logits_BV / sampling.temperature, None
    else:
        values, ids = candidates(logits_BV, sampling)
    cumulative = values.double().softmax(-1).cumsum(-1)
    at = torch.tensor(uniforms, dtype=torch.float64, device=values.device)[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, at, right=True).clamp(max=values.size(-1) - 1)
    return (chosen if ids is None else ids.gather(1, chosen))[:, 0]


# ---------------------------------------------------------------- the schedule


class Continuation:
    """One text on its way: the ids read and made, the log-probabilities of those made, why it ended ('' while not).

    A caller may set finish to end it. The draws are a pure function of the seed.
    """

    def __init__(self, prompt: Sequence[int], max_new_tokens: int, seed: int):
        self.ids, self.num_prompt, self.max_new_tokens = list(prompt), len(prompt), max_new_tokens
        self.log_probabilities: list[float] = []
        self.finish = ""
        self._random = random.Random(seed)
        self._followers: dict[tuple[int, ...], list[int]] = {}  # of each n - 1 ids
        self._indexed = 0

    @property
    def new_ids(self) -> list[int]:
        return self.ids[self.num_prompt:]

    def uniform(self) -> float:
        return self._random.random()

    def banned(self, n: int) -> list[int]:
        """The ids that would complete a run of n ids that has been there."""
        for end in range(max(self._indexed, n - 1), len(self.ids)):
            self._followers.setdefault(tuple(self.ids[end - n + 1:end]), []).append(self.ids[end])
        self._indexed = max(self._indexed, len(self.ids))
        return self._followers.get(tuple(self.ids[len(self.ids) - n + 1:]), []) if len(self.ids) >= n else []


def run(decoder: Decoder, continuations: Iterable[Continuation], sampling: Sampling, end_of_text_id: int | None,
        ) -> Iterator[Continuation]:
    """Yields a continuation each time it got an id or ended, several at a time in the decoder's rows, until all have.

    Finish is 'length' after max_new_tokens and 'end_of_text' for that id, which is not among the ids. When a window of
    T positions is full, its older half is dropped and the newer half read again.
    Raises UserError (exit 6) for logits that are not finite.
    """
    waiting, active = iter(continuations), []
    while True:
        for row in reversed(range(len(active))):  # the last takes the place of one that ended
            if active[row].finish:
                last = active.pop()
                if row < len(active):
                    active[row] = last
                    decoder.move(len(active), row)
        while len(active) < decoder.num_rows and (new := next(waiting, None)) is not None:
            decoder.fill(len(active), new.ids[-decoder.window:][:-1])
            active.append(new)
        if not active:
            return
        for row, text in enumerate(active):
            if decoder.lengths[row] == decoder.window:
                decoder.fill(row, text.ids[-(decoder.window // 2 or 1):][:-1])
        with torch.inference_mode():
            logits_BV = decoder.step([text.ids[-1] for text in active])
            total_B = logits_BV.logsumexp(-1)
            if not total_B.isfinite().all():
                raise UserError(Exit.DIVERGED, "the model's logits are not finite: it diverged, or overflows in fp16. "
                                               "Give an earlier checkpoint, or --no-use_amp.")
            wanted_BV = logits_BV
            if sampling.repetition_penalty != 1 or sampling.no_repeat_ngram_size:
                n = sampling.no_repeat_ngram_size
                wanted_BV = penalised(logits_BV, [text.ids for text in active],
                                      [text.banned(n) if n else [] for text in active], sampling.repetition_penalty)
            chosen_B = draw(wanted_BV, sampling, [text.uniform() for text in active])
            log_probabilities = (logits_BV.gather(1, chosen_B[:, None])[:, 0] - total_B).tolist()
        for text, new_id, log_probability in zip(list(active), chosen_B.tolist(), log_probabilities, strict=True):
            if new_id == end_of_text_id:
                text.finish = "end_of_text"
            else:
                text.ids.append(new_id)
                text.log_probabilities.append(log_probability)
                if len(text.log_probabilities) >= text.max_new_tokens:
                    text.finish = "length"
            yield text


def sample(model: GPT, prompt: Sequence[int], max_new_tokens: int, seed: int, end_of_text_id: int | None,
           sampling: Sampling = Sampling()) -> list[int]:
    """Up to max_new_tokens ids that continue the prompt, by the weights where they are. Raises UserError (exit 6)."""
    text = Continuation(prompt, max_new_tokens, seed)
    decoder = Decoder(model.config, model.state_dict(), 1, next(model.parameters()).device)
    for _ in run(decoder, [text], sampling, end_of_text_id):
        pass
    return text.new_ids
