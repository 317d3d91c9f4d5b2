"""A decoder whose step is a CUDA graph: one launch computes the logits, draws the next ids and keeps them on the GPU.

Launched one by one, the 200 kernels of a step take longer to start than to run. A graph starts them at once, but it
repeats what it recorded: the same kernels at the same addresses. So all that changes from step to step lies on the
device and is changed there: the newest ids, their positions and the random numbers, which the host draws ahead, as many
as the window has room for. The length of attention is a graph's own; it doubles, so there are few graphs. What the host
must know of a step, it copies in one piece, and need not wait for before it launches the next.

The graphs are PyTorch's CUDAGraph itself. torch.compile's reduce-overhead would record only the compiled function, not
the drawing of ids, decide for itself when to record again, and need a compiler.

Shapes: B rows, T window, S slots that attention looks at, V vocabulary, L room for the ids of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from architectures.table import ModelConfig
from generation.continuation import Sampling
from generation.decoder import SLOTS, Decoder, round_up_to_slots
from generation.distribution import draw_among, few_candidates, less_likely, without_repeats
from ops.products import Dense

LEAST_SLOTS = 2 * SLOTS


@dataclass(frozen=True)
class RowResult:
    """What a step found for one row; the total is the logarithm of the sum that makes logits probabilities."""

    new_id: int
    log_probability: float
    is_finite: bool
    is_enough: bool  # False: the candidates were too few, and the id is void


class GraphDecoder(Decoder):
    """A decoder that can also run ahead of the host: fill and place give rows their texts, launch and read are a step.

    A launched step takes all rows; those that hold no text compute something that nobody reads.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, torch.Tensor], num_rows: int,
                 device: torch.device | str, dtype: torch.dtype = torch.float32, kind: type[Dense] = Dense,
                 weight_dtype: torch.dtype | None = None):
        super().__init__(config, weights, num_rows, device, dtype, kind, weight_dtype)
        self.is_ready = False
        self._sampling = Sampling()
        self._num_candidates = 0
        self._graphs: dict[int, Callable[[], None]] = {}  # by the slots that attention looks at

        @torch.inference_mode()  # as what step makes; for tensors of another kind a step would be compiled again
        def zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self._ids_B = zeros([num_rows], torch.int64)
        self._positions_B = zeros([num_rows], torch.int64)
        self._uniforms_BT = zeros([num_rows, self.window], torch.float64)  # that at a position draws the id behind it
        self._is_seen_BV = zeros([num_rows, config.vocab_size], torch.bool)  # the ids of each text, for penalties
        self._history_BL = zeros([num_rows, 1], torch.int64)  # the same in their order, for no_repeat_ngram_size
        self._newest_B = zeros([num_rows], torch.int64)  # the place of the newest id in it
        self._results_4B = zeros([4, num_rows], torch.float64)

        self._recorder: GraphRecorder | None = None
        self._copies: list[CopyToHost] = []  # the host reads one of two while the device writes to the other

    # ---------------------------------------------------------------- graphs

    def prepare(self, sampling: Sampling) -> None:
        """Makes the steps that follow draw by these settings, and records the first graph. Rows must be filled anew.

        Raises what CUDA raises if it cannot record.
        """
        if self.is_ready and sampling == self._sampling:
            return
        self.is_ready = False
        self._sampling = sampling
        self._num_candidates = few_candidates(self.config.vocab_size, sampling)
        if self._recorder is None:
            self._recorder = GraphRecorder()
            self._copies = [CopyToHost(self._results_4B) for _ in range(2)]
        self._make_room(sampling.no_repeat_ngram_size)
        self._forget_graphs()
        self._graph(LEAST_SLOTS)
        self.filled = [[] for _ in self.filled]  # recording wrote to slots that may belong to them
        self.is_ready = True

    def widen(self) -> None:
        """Makes the steps that follow sort the whole vocabulary."""
        assert self._num_candidates < self.config.vocab_size, "all ids were not enough"
        self._num_candidates = self.config.vocab_size
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        torch.cuda.current_stream().synchronize()  # one may be running
        self._graphs.clear()

    @torch.inference_mode()
    def _make_room(self, num_ids: int) -> None:
        """Makes the histories long enough for so many ids."""
        room = self._history_BL.size(1)
        if num_ids > room:
            while room < num_ids:
                room *= 2
            longer = self._history_BL.new_zeros(self.num_rows, room)
            longer[:, :self._history_BL.size(1)] = self._history_BL
            self._history_BL = longer
            self._forget_graphs()

    @torch.inference_mode()
    def _graph(self, least: int) -> Callable[[], None]:
        """The graph whose attention looks at least at so many slots."""
        num_slots = LEAST_SLOTS
        while num_slots < least:
            num_slots *= 2
        num_slots = min(num_slots, round_up_to_slots(self.window))
        if num_slots not in self._graphs:
            assert self._recorder is not None
            # Recording runs the step once. Before a launch it writes keys and values that the launch writes again.
            state = [(tensor, tensor.clone()) for tensor in (self._ids_B, self._positions_B, self._newest_B)]
            self._graphs[num_slots] = self._recorder.record(lambda: self._step_on_device(num_slots))
            for tensor, before in state:
                tensor.copy_(before)
        return self._graphs[num_slots]

    def _step_on_device(self, num_slots: int) -> None:
        """All of a step; afterwards the drawn ids are the newest ones of their rows."""
        sampling, ids_B, positions_B = self._sampling, self._ids_B, self._positions_B
        logits_BV = self._compute_logits(ids_B, positions_B, self._mask(positions_B, num_slots))
        total_B = logits_BV.logsumexp(-1)

        altered_BV = logits_BV
        if sampling.repetition_penalty != 1:
            self._is_seen_BV.scatter_(1, ids_B[:, None], True)
            altered_BV = torch.where(self._is_seen_BV, less_likely(logits_BV, sampling.repetition_penalty), logits_BV)
        if sampling.no_repeat_ngram_size:
            self._history_BL.scatter_(1, self._newest_B[:, None], ids_B[:, None])
            self._newest_B.add_(1).clamp_(max=self._history_BL.size(1) - 1)  # as the positions below
            altered_BV = without_repeats(altered_BV, self._history_BL, self._newest_B, sampling.no_repeat_ngram_size)
        uniform_B = self._uniforms_BT.gather(1, positions_B[:, None])[:, 0]
        chosen_B, is_enough_B = draw_among(altered_BV, sampling, uniform_B, self._num_candidates)

        log_probability_B = logits_BV.gather(1, chosen_B[:, None])[:, 0] - total_B
        results = (chosen_B, log_probability_B, total_B.isfinite(), is_enough_B)
        self._results_4B.copy_(torch.stack([result.double() for result in results]))
        ids_B.copy_(chosen_B)
        positions_B.add_(1).clamp_(max=self.window - 1)  # a row without a text stays where there are positions

    # ---------------------------------------------------------------- rows

    @torch.inference_mode()
    def place(self, row: int, ids: Sequence[int], length: int) -> None:
        """Makes the last of the ids the one that the row's next step takes in, behind length slots in use."""
        self.lengths[row] = length
        self._ids_B[row].fill_(ids[-1])
        self._positions_B[row].fill_(length)
        if self._sampling.repetition_penalty != 1:
            self._is_seen_BV[row].zero_().index_fill_(0, self._to_device(ids, torch.int64), True)
        if self._sampling.no_repeat_ngram_size:
            self._make_room(len(ids) + self.window - length)  # the steps until the window is full
            self._history_BL[row, :len(ids)] = self._to_device(ids, torch.int64)
            self._newest_B[row].fill_(len(ids) - 1)

    @torch.inference_mode()
    def give_uniforms(self, row: int, uniforms: Sequence[float]) -> None:
        """The random numbers in [0, 1) of the row's next steps."""
        start = self.lengths[row]
        self._uniforms_BT[row, start:start + len(uniforms)] = self._to_device(uniforms, torch.float64)

    def _to_device(self, numbers: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        """Numbers on the device; the host does not wait for their copy."""
        on_host = torch.tensor(numbers, dtype=dtype, pin_memory=self.device.type == "cuda")
        return on_host.to(self.device, non_blocking=True)

    # ---------------------------------------------------------------- steps

    @torch.inference_mode()
    def launch(self, rows: Sequence[int]) -> int:
        """Starts a step that these rows take part in; read takes the number returned, before the launch after next."""
        self._graph(max(self.lengths[row] for row in rows) + 1)()
        number = self.steps % 2
        self._copies[number].start(self._results_4B)
        self.steps += 1
        for row in rows:
            self.lengths[row] += 1
        return number

    def read(self, number: int) -> list[RowResult]:
        """What a launched step found, by row; the host waits until it is there."""
        return [RowResult(int(new_id), log_probability, bool(is_finite), bool(is_enough))
                for new_id, log_probability, is_finite, is_enough in self._copies[number].wait().t().tolist()]


class CopyToHost:
    """Room on the host for a tensor of the device; the host need not wait for the copy before it reads it."""

    def __init__(self, tensor: torch.Tensor):
        is_pinned = tensor.device.type == "cuda"
        self._buffer = torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=is_pinned)
        self._event = torch.cuda.Event()

    def start(self, tensor: torch.Tensor) -> None:
        """Copies the tensor behind all that was launched before."""
        self._buffer.copy_(tensor, non_blocking=True)
        self._event.record()

    def wait(self) -> torch.Tensor:
        """The copy, once it is there."""
        self._event.synchronize()
        return self._buffer


class GraphRecorder:
    """Records functions as CUDA graphs that share their memory: they never run at the same time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """A function that does again what run does to the tensors it knows. Raises what CUDA raises."""
        # First outside of a graph: libraries set themselves up, kernels are compiled and their variants timed.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)

        graph = torch.cuda.CUDAGraph()
        # thread_local: what another thread does meanwhile, a checkpoint's hash say, is no error.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        return graph.replay
