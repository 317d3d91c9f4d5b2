"""The memory of a training step, predicted by part before anything is allocated.

N is a micro-batch's tokens (B T), C the width, P the padded vocabulary. All sizes are in bytes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch

from architectures.table import ModelConfig, architecture_of
from machine.cards import CARDS_GIB
from machine.device import Machine
from machine.memory import total_memory
from model import Options
from training.optimizers import OPTIMIZERS
from training.sizing import Sizing

GIB = 2**30
MOST_TOKENS = {"cuda": 16_384, "cpu": 4_096}  # of the default micro-batch: more keep a device no busier
MARGIN = 0.08  # of the memory there is; left free for what nobody counted
CUDA_CONTEXT = 600 * 2**20  # of a card's memory, held by the driver and not by PyTorch
# Resident besides tensors on a CPU, measured on Linux with torch 2.13: the process, what the compiler adds (more where
# nothing is cached), and the compiled code of a block.
PROGRAM, COMPILER, COMPILED_BLOCK = 400 * 2**20, 55 * 2**20, 5 * 2**20
# Holes in the heap on a CPU: compiled, a share of the weights; eager, where sizes are mixed, a share of the first half
# GiB that comes and goes in a step.
COMPILED_HOLES, EAGER_HOLES, MOST_WITH_HOLES = 0.65, 0.35, 2**29
WORKSPACES = 64 * 2**20  # PyTorch's on a GPU


@dataclass(frozen=True)
class MemorySetting:
    """What decides the memory of a step besides the model's shape and the micro-batch."""

    device_type: str
    dtype: torch.dtype  # of autocast; float32: no mixed precision
    compiled: bool = False
    accumulates: bool = True  # more than one micro-batch a step
    residual_bytes: int = 4  # of an element of the residual stream
    logit_rows: int | None = None  # rows of logits that exist at a time; None: those of all N tokens
    checkpointing: bool = False  # only the input of a block is kept for the backward pass
    copies: bool = False  # the state is copied to the RAM, to be saved from there
    optimizer_bytes: float = 8  # of optimizer state per parameter

    @staticmethod
    def of(machine: Machine, options: Options, accumulates: bool, copies: bool, optimizer_bytes: float,
           ) -> MemorySetting:
        """The setting of a run."""
        return MemorySetting(machine.device.type, machine.dtype, machine.compile, accumulates,
                             2 if options.residual_dtype else 4, options.loss_chunk or None, options.recompute,
                             copies, optimizer_bytes)


def memory_parts(config: ModelConfig, batch_size: int, setting: MemorySetting) -> dict[str, int]:
    """Predicted bytes of a training step by part: weights, optimizer, copy, gradients, activations, logits, program.

    Weights and gradients are fp32; the gradient of a tied embedding exists twice for a moment, as it comes from both
    ends. The copy that is saved counts where it lies in the same memory, on a CPU. The program is what is no tensor.
    """
    C = config.n_embd
    table = config.padded_vocab_size * C
    parameters = config.num_parameters + (config.padded_vocab_size - config.vocab_size) * C
    weights, optimizer = 4 * parameters, int(setting.optimizer_bytes * parameters)

    activations = _activation_bytes(config, batch_size, setting, table)
    logits = _logit_bytes(config, batch_size, setting, table)
    copies_here = setting.copies and setting.device_type == "cpu"
    return {"weights": weights, "optimizer": optimizer, **({"copy": weights + optimizer} if copies_here else {}),
            "gradients": weights + (4 * table if config.tie_weights else 0),
            "activations": activations, "logits": logits,
            "program": _program_bytes(config, setting, weights, activations + logits)}


def _activation_bytes(config: ModelConfig, batch_size: int, setting: MemorySetting, table: int) -> int:
    """What the backward pass needs of the blocks, the final norm and the 16-bit copy of the matrices."""
    tokens, C, e = batch_size * config.seq_length, config.n_embd, setting.dtype.itemsize
    block = architecture_of(config).block_bytes(config, setting.device_type, setting.dtype, setting.residual_bytes)
    blocks = config.n_layer * block
    if setting.checkpointing:
        blocks = config.n_layer * C * setting.residual_bytes + block
    ends = C * (2 * setting.residual_bytes + e)
    copy_of_matrices = 2 * (config.num_block_weights + table) if e == 2 else 0  # until the backward pass has used it
    return int(tokens * (blocks + ends) + copy_of_matrices)


def _logit_bytes(config: ModelConfig, batch_size: int, setting: MemorySetting, table: int) -> int:
    """Logits and what is made of them.

    Eager there are log-probabilities, their gradient and the gradient of the logits, fp32; compiled there is the
    output, whose place its gradient takes; in chunks, also a gradient of the output layer for each chunk.
    """
    tokens, e = batch_size * config.seq_length, setting.dtype.itemsize
    rows = min(tokens, setting.logit_rows or tokens)
    bytes_per_logit = e if setting.compiled else 12
    sums = tokens // rows * table * e if rows < tokens else 0
    return rows * config.padded_vocab_size * bytes_per_logit + sums


def _program_bytes(config: ModelConfig, setting: MemorySetting, weights: int, passing: int) -> int:
    """What is held besides tensors: on a CPU the process, with the compiler where it is used, and holes in the heap."""
    if setting.device_type != "cpu":
        return WORKSPACES
    if setting.compiled:
        return PROGRAM + COMPILER + config.n_layer * COMPILED_BLOCK + int(COMPILED_HOLES * weights)
    return PROGRAM + int(EAGER_HOLES * min(passing, MOST_WITH_HOLES))


def peak_bytes(parts: dict[str, int], accumulates: bool) -> int:
    """The most of the parts that exists at the same time.

    Without accumulation the gradients come as the activations go; with it the gradients of earlier micro-batches are
    there from the start.
    """
    passing = parts["activations"] + parts["logits"]
    passing = passing + parts["gradients"] if accumulates else max(passing, parts["gradients"])
    return parts["weights"] + parts["optimizer"] + parts.get("copy", 0) + parts["program"] + passing


def largest_micro_batch(config: ModelConfig, setting: MemorySetting, room: float, most: int = 2**20) -> int:
    """The largest micro-batch, 0 to most, whose predicted peak is within the room in bytes."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = peak_bytes(memory_parts(config, middle, setting), setting.accumulates) <= room
        low, high = (middle, high) if fits else (low, middle)
    return low


def default_micro_batch(config: ModelConfig, memory_bytes: int, setting: MemorySetting, most: int) -> int:
    """The largest power of two, at most `most`, whose predicted peak is within 80% of memory_bytes; at least 1."""
    found = largest_micro_batch(config, setting, 0.8 * memory_bytes, most)
    return 1 << max(1, found).bit_length() - 1


def most_sequences(args: argparse.Namespace, sizing: Sizing | None, config: ModelConfig, options: Options,
                   machine: Machine) -> int:
    """The default micro-batch: what is predicted to fit the memory, and no more tokens than keep the device busy.

    --optimizer auto, which depends on it, counts as AdamW, which keeps more than the others.
    """
    kind = OPTIMIZERS["adamw" if args.optimizer == "auto" else args.optimizer]
    most = sizing.batch_size if sizing else max(1, MOST_TOKENS[machine.device.type] // config.seq_length)
    memory_bytes = total_memory(machine) if args.batch_size is None else 2**62  # auto tries what really fits
    setting = MemorySetting.of(machine, options, args.gradient_accumulation_steps > 1, True,
                               kind.memory_bytes(config))
    return default_micro_batch(config, memory_bytes, setting, most)


def largest_on_cards(config: ModelConfig, setting: MemorySetting) -> dict[int, int]:
    """The largest micro-batch for each of CARDS_GIB, 0 where not even one sequence fits."""
    return {card: largest_micro_batch(config, setting, (1 - MARGIN) * card * GIB - CUDA_CONTEXT) for card in CARDS_GIB}


def describe_memory(parts: dict[str, int], accumulates: bool) -> str:
    """'4.1 GiB predicted: weights 0.5, optimizer 1.0, activations 1.2, ...'; in MiB below 1 GiB.

    The shares add up to the total; what does not exist at the peak stands behind them.
    """
    total = peak_bytes(parts, accumulates)
    unit, scale = ("GiB", GIB) if total >= GIB else ("MiB", GIB / 1024)

    not_at_the_peak: list[str] = []
    if not accumulates:
        forward_is_larger = parts["activations"] + parts["logits"] >= parts["gradients"]
        not_at_the_peak = ["gradients"] if forward_is_larger else ["activations", "logits"]

    words = {name: f"{name} {num_bytes / scale:.1f}" for name, num_bytes in parts.items()}
    shares = ", ".join(words[name] for name in parts if name not in not_at_the_peak)
    others = ", ".join(words[name] for name in not_at_the_peak)
    at_another_moment = f"; at another moment, when there is less: {others}" if others else ""
    return f"{total / scale:.1f} {unit} predicted: {shares}{at_another_moment}"
