"""The memory of a training step, predicted by part before anything is allocated.

N is a micro-batch's tokens (B T), C the width, P the padded vocabulary. All sizes are in bytes.
"""

from __future__ import annotations

import functools
from argparse import Namespace
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gpt.architectures.table import ModelConfig, architecture_of
from gpt.checkpoint.load import read_config
from gpt.common.words import size
from gpt.machine.backends import BACKENDS
from gpt.machine.device import Machine
from gpt.machine.processes import ALONE, Processes
from gpt.optimizers.build import state_bytes
from gpt.optimizers.table import OPTIMIZERS, largest
from gpt.planning.sizing import Sizing
from model import Options

GIB = 2**30
MARGIN = 0.08  # of the memory there is; left free for what nobody counted
CUDA_CONTEXT = 600 * 2**20  # of a card's memory, held by the driver and not by PyTorch
# Resident besides tensors on a CPU, measured on Linux with torch 2.13: the process, what the compiler adds (more where
# nothing is cached), and the compiled code of a block.
PROGRAM, COMPILER, COMPILED_BLOCK = 400 * 2**20, 55 * 2**20, 5 * 2**20
# Holes in the heap on a CPU: compiled, a share of the weights; eager, where sizes are mixed, a share of the first half
# GiB that comes and goes in a step.
COMPILED_HOLES, EAGER_HOLES, MOST_WITH_HOLES = 0.65, 0.35, 2**29
WORKSPACES = 64 * 2**20  # PyTorch's on a GPU
NCCL_BUFFERS = 2**29  # of several processes on GPUs, assumed
PASSING = ("activations", "logits", "gradients")  # parts that come and go within a step
LEAST_TOKENS = 4_096  # of a micro-batch that a copy of the whole model must leave room for, or the model is sharded


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
    strategy: str = "alone"  # by which processes share the model: alone, ddp, fsdp, hsdp
    world_size: int = 1
    shards: int = 1  # of each copy of the weights; every process holds one shard of one copy
    teacher_bytes: int = 0  # of the weights of --teacher, which every process holds

    @staticmethod
    def of(machine: Machine, options: Options, accumulates: bool, copies: bool, optimizer_bytes: float,
           strategy: str = "alone", processes: Processes = ALONE) -> MemorySetting:
        """The setting of a run. Sharded weights are gathered in the dtype of autocast, so all that follows has it."""
        shards = {"fsdp": processes.world_size, "hsdp": processes.world_size // processes.num_machines}.get(strategy, 1)
        is_half = options.residual_dtype or (strategy in ("fsdp", "hsdp") and machine.dtype != torch.float32)
        return MemorySetting(machine.device.type, machine.dtype, machine.compile, accumulates, 2 if is_half else 4,
                             options.loss_chunk or None, options.recompute, copies, optimizer_bytes, strategy,
                             processes.world_size, shards)

    def beside(self, teacher: str | None) -> MemorySetting:
        """The same beside the weights of --teacher."""
        if teacher is None:
            return self
        return replace(self, teacher_bytes=(6 if self.rounds else 4) * read_config(Path(teacher)).num_parameters)

    @property
    def has_own_memory(self) -> bool:
        """True on a GPU whose memory is not the RAM."""
        return BACKENDS[self.device_type].has_own_memory

    @property
    def is_sharded(self) -> bool:
        """True where weights are gathered when they are needed."""
        return self.strategy in ("fsdp", "hsdp")

    @property
    def rounds(self) -> bool:
        """True where the weights of products are kept in 16 bits, too, from step to step."""
        return self.has_own_memory and self.dtype.itemsize == 2 and not (self.checkpointing or self.is_sharded)

    @property
    def keeps_gradients(self) -> bool:
        """True where gradients are there while activations come: of earlier micro-batches, or as DDP's buckets."""
        return self.accumulates or self.strategy == "ddp"


def memory_parts(config: ModelConfig, batch_size: int, setting: MemorySetting) -> dict[str, int]:
    """Predicted bytes of a training step in each process by part: weights, optimizer, copy, gradients, gathered, ...

    Weights and gradients are fp32, and weights of products may be kept in 16 bits, too; the gradient of a tied
    embedding exists twice for a moment, as it comes from both ends. The copy that is saved counts where it lies in the
    same memory, that of a CPU and of Apple's GPU, and is of the whole model. The program is what is no tensor.
    """
    C = config.n_embd
    table = config.padded_vocab_size * C
    parameters = config.num_parameters + (config.padded_vocab_size - config.vocab_size) * C
    weights, optimizer = 4 * parameters, int(setting.optimizer_bytes * parameters)
    gradients = weights + (4 * table if config.tie_weights else 0)
    rounded = 2 * (config.num_block_weights + table) if setting.rounds else 0
    gathered = {}
    if setting.is_sharded:
        gradients, gathered = _sharded(config, setting, weights)

    logits = _logit_bytes(config, batch_size, setting, table)
    activations = _activation_bytes(config, batch_size, setting, table, logits)
    copies_here = setting.copies and not setting.has_own_memory
    return {"weights": weights // setting.shards + rounded, "optimizer": optimizer // setting.shards,
            **({"copy": weights + optimizer} if copies_here else {}), "gradients": gradients, **gathered,
            **({"teacher": setting.teacher_bytes} if setting.teacher_bytes else {}),
            "activations": activations, "logits": logits,
            "program": _program_bytes(config, setting, weights // setting.shards, activations + logits)}


def _sharded(config: ModelConfig, setting: MemorySetting, weights: int) -> tuple[int, dict[str, int]]:
    """Gradients, and what is gathered, where weights are sharded.

    Gathered are the root's weights and those of two blocks, the one that is computed and the next. Gradients are
    sharded as they come, group by group, the root's last; but those of several micro-batches are added up whole, as
    they are exchanged in the last one alone.
    """
    (root, block), e = _gathered_elements(config), setting.dtype.itemsize
    sharded = weights // setting.shards + (4 + e) * root
    return max(weights, sharded) if setting.accumulates else sharded, {"gathered": e * (root + 2 * block)}


@functools.lru_cache
def _gathered_elements(config: ModelConfig) -> tuple[int, int]:
    """The elements outside of blocks, and those of the largest block, from a network without memory."""
    with torch.device("meta"):
        network = architecture_of(config).build(config, Options())
    blocks = [sum(p.numel() for p in block.parameters()) for block in network.blocks]
    return sum(p.numel() for p in network.parameters()) - sum(blocks), max(blocks)


def _activation_bytes(config: ModelConfig, batch_size: int, setting: MemorySetting, table: int, logits: int) -> int:
    """What the backward pass needs of the blocks, the final norm and the 16-bit copy of the matrices.

    A block that is computed again has the place that the logits had.
    """
    tokens, C, e = batch_size * config.seq_length, config.n_embd, setting.dtype.itemsize
    block = architecture_of(config).block_bytes(config, setting.device_type, setting.dtype, setting.residual_bytes)
    blocks = config.n_layer * block
    if setting.checkpointing:
        blocks = config.n_layer * C * setting.residual_bytes + max(0, block - logits / tokens)
    ends = C * (2 * setting.residual_bytes + e)
    casts = e == 2 and not (setting.is_sharded or setting.rounds)  # else they are there, or gathered, in this dtype
    copy_of_matrices = 2 * (config.num_block_weights + table) if casts else 0  # until the backward pass has used it
    return int(tokens * (blocks + ends) + copy_of_matrices)


def _logit_bytes(config: ModelConfig, batch_size: int, setting: MemorySetting, table: int) -> int:
    """Logits and what is made of them.

    Eager there are log-probabilities, their gradient and the gradient of the logits, fp32; compiled there is the
    output, whose place its gradient takes. In chunks there is also a gradient of the output layer, on a CPU of each
    chunk, and on a GPU the compiler writes gradients beside logits. Fp16 is for GPUs that cannot add a product up in
    place: there it lies beside the gradients of the logits.
    """
    tokens, e = batch_size * config.seq_length, setting.dtype.itemsize
    rows = min(tokens, setting.logit_rows or tokens)
    is_in_chunks, bytes_per_logit, sums = rows < tokens, 12, 0
    if setting.compiled:
        bytes_per_logit = 2 * e if is_in_chunks and setting.has_own_memory else e
    if is_in_chunks and setting.device_type == "cpu":
        sums = tokens // rows * table * e
    elif is_in_chunks and not (setting.keeps_gradients and config.tie_weights):  # else the gradients have it already
        sums = 4 * table
    logits = rows * config.padded_vocab_size * bytes_per_logit
    if is_in_chunks and setting.has_own_memory and setting.dtype == torch.float16:
        logits = max(logits, e * (rows * config.padded_vocab_size + table))
    return logits + sums


def _program_bytes(config: ModelConfig, setting: MemorySetting, weights: int, passing: int) -> int:
    """What is held besides tensors: on a CPU the process, with the compiler where it is used, and holes in the heap."""
    if setting.device_type != "cpu":
        return WORKSPACES + (NCCL_BUFFERS if setting.world_size > 1 else 0)
    if setting.compiled:
        return PROGRAM + COMPILER + config.n_layer * COMPILED_BLOCK + int(COMPILED_HOLES * weights)
    return PROGRAM + int(EAGER_HOLES * min(passing, MOST_WITH_HOLES))


def predicted_peak(config: ModelConfig, batch_size: int, setting: MemorySetting) -> int:
    """The predicted peak of each process, in bytes."""
    return peak_bytes(memory_parts(config, batch_size, setting), setting)


def peak_bytes(parts: dict[str, int], setting: MemorySetting) -> int:
    """The most of the parts that exists at the same time.

    Without accumulation the gradients come as the activations go; with it the gradients of earlier micro-batches are
    there from the start, as are DDP's buckets.
    """
    passing = parts["activations"] + parts["logits"]
    if setting.keeps_gradients:
        passing += parts["gradients"]
    else:
        passing = max(passing, parts["gradients"])
    held = sum(num_bytes for name, num_bytes in parts.items() if name not in PASSING)
    return held + passing


def largest_micro_batch(config: ModelConfig, setting: MemorySetting, room: float, most: int = 2**20) -> int:
    """The largest micro-batch, 0 to most, whose predicted peak is within the room in bytes."""
    return bisect_right(range(1, most + 1), room, key=lambda n: predicted_peak(config, n, setting))


def choose_sharing(args: Namespace, sizing: Sizing | None, config: ModelConfig, options: Options, machine: Machine,
                   processes: Processes = ALONE) -> tuple[str, str, int]:
    """The strategy by which processes share the model, why, and the default micro-batch with it.

    The strategy is the first that is predicted to fit the memory: ddp, then hsdp where there are several machines, then
    fsdp. It must leave room for --batch_size, or for the LEAST_TOKENS, which keep a device busy. The micro-batch is a
    power of two, predicted to fit 80% of the memory, with no more tokens than keep the device busy.
    """
    optimizer = largest(args.optimizer)  # as auto depends on the micro-batch
    optimizer_bytes = state_bytes(optimizer, config)
    accumulates = args.gradient_accumulation_steps > processes.world_size
    total_bytes = machine.backend.total_memory()
    sharing_ram = processes.local_world_size if machine.device.type == "cpu" else 1

    def setting(strategy: str) -> MemorySetting:
        return MemorySetting.of(machine, options, accumulates, True, optimizer_bytes, strategy, processes).beside(
            args.teacher)

    strategy, why = args.model_parallel, "--model_parallel"
    if processes.world_size == 1:
        strategy, why = "alone", ""
    elif strategy == "auto" and (args.batch_size == "auto" or "fsdp" in OPTIMIZERS[optimizer].against):
        strategy, why = "ddp", "--batch_size auto, or this --optimizer, needs it"
    elif strategy == "auto":
        batch_size = args.batch_size or max(1, LEAST_TOKENS // config.seq_length)
        room = int((1 - MARGIN) * total_bytes) // sharing_ram - (CUDA_CONTEXT if machine.on_gpu else 0)
        strategies = ("ddp", "hsdp", "fsdp") if processes.num_machines > 1 else ("ddp", "fsdp")
        needed = {name: predicted_peak(config, batch_size, setting(name)) for name in strategies}
        strategy = next((name for name in strategies if needed[name] <= room), "fsdp")
        why = f"a copy takes {size(needed['ddp'])}, each has {size(room)}"

    most = sizing.batch_size if sizing else max(1, machine.backend.busy_tokens // config.seq_length)
    total_bytes = total_bytes if args.batch_size is None else 2**62  # auto tries what really fits
    found = largest_micro_batch(config, setting(strategy), 0.8 * (total_bytes // sharing_ram), most)
    return strategy, why, 1 << max(1, found).bit_length() - 1


def describe_memory(config: ModelConfig, batch_size: int, setting: MemorySetting) -> str:
    """'4.1 GiB predicted at the peak; weights 0.5 GiB, optimizer 1.0 GiB, activations 1.2 GiB, ...'."""
    parts = memory_parts(config, batch_size, setting)
    each = ", ".join(f"{name} {size(num_bytes)}" for name, num_bytes in parts.items())
    return f"{size(peak_bytes(parts, setting))} predicted at the peak; {each}"
