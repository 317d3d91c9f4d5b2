"""What the child processes of bench.py answer with; printed by the child as JSON, read by the parent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Probe:
    """What the machine is, and how fast it multiplies matrices.

    half is the 16-bit precision of the upper rungs, or "fp32" with why_no_half. The other reasons are empty or None
    where nothing is in the way. peak_flops is the data sheet's, matmul_flops what was measured with square matrices of
    matmul_width, by precision; both in FLOP/s. num_threads are those that PyTorch computes with on the CPU.
    """

    device: str
    name: str
    software: str
    half: str
    why_no_half: str
    why_no_compile: str | None
    why_no_fp8: str
    why_no_triton: str
    peak_flops: float | None
    matmul_flops: dict[str, float]
    matmul_width: int
    flops_per_token: int
    num_threads: int = 1
    num_gpus: int = 0

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


@dataclass(frozen=True)
class PeerRun:
    """What training a peer's model measured: seconds and loss of every step, and what differs from ours in words."""

    seconds: list[float]
    losses: list[float]
    notes: str
    compile_seconds: float
    peak_memory_bytes: int


@dataclass(frozen=True)
class LoaderTimes:
    """Microseconds of a batch by the way of loading it: the median of so many turns of so many batches."""

    microseconds: dict[str, float]
    turns: int
    batches: int
    tokens: int


@dataclass(frozen=True)
class SavingTimes:
    """Seconds of each part of a checkpoint: the median of the turns, and in all those of every turn.

    bytes is the size of weights and optimizer state together.
    """

    seconds: dict[str, float]
    turns: int
    bytes: int
    all: dict[str, list[float]]


@dataclass(frozen=True)
class Material:
    """What the quality ladder works with: the machine, the model in numbers, and the tokens by sha256 and number.

    val_tokens are those of the half of the validation tokens that is measured, all_val_tokens those of both.
    """

    machine: str
    software: str
    on_gpu: bool
    n_layer: int
    n_embd: int
    num_parameters: int
    num_block_weights: int
    train_tokens: int
    train_sha256: str
    val_tokens: int
    all_val_tokens: int


@dataclass(frozen=True)
class SharingTimes:
    """What a step of processes that share a model takes, in seconds, and the most bytes that each of them held.

    silent_seconds are those of the same steps without the exchange of weights and gradients, in turns with the others.
    message_seconds is one sum of five numbers over all processes, agreement_seconds that with all that is decided in a
    step, medians of many. Of one process there are none of these.
    """

    seconds: list[float]
    silent_seconds: list[float]
    message_seconds: float | None
    agreement_seconds: float | None
    peak_memory_bytes: list[int]


@dataclass(frozen=True)
class Done:
    """The answer of a child that has nothing to say but that it is done."""


Answer = Probe | PeerRun | LoaderTimes | SavingTimes | SharingTimes | Material | Done
Request = dict[str, Any]  # the arguments of the child's function, as JSON
