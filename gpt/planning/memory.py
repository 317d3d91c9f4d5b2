"""The memory of a training step, predicted by part before anything is allocated, and the micro-batch that fits.

The formula plans the micro-batch, halving corrects it. A checkpoint's copy in RAM counts too.

C is the width, e the bytes of an element in the dtype of autocast. All sizes are in bytes.
"""

import contextlib
import functools
import json
from argparse import Namespace
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from gpt.architectures.table import ModelConfig, architecture_of
from gpt.checkpoint.load import read_config
from gpt.common.errors import Exit, UserError
from gpt.common.files import write_whole
from gpt.common.names import TOO_LARGE
from gpt.common.progress import Progress
from gpt.common.words import printable, several, size
from gpt.machine.backends import BACKENDS
from gpt.machine.device import Machine
from gpt.machine.environment import available_ram
from gpt.machine.processes import ALONE, Processes
from gpt.machine.runtime import Runtime
from gpt.optimizers.build import state_bytes
from gpt.optimizers.table import OPTIMIZERS, optimizer_with_largest_state
from gpt.planning.recipe import Recipe
from gpt.planning.sizing import Sizing, power_of_two
from model import Options

GIB = 2**30
MARGIN = 0.08  # of the memory, left free for everything that the prediction does not count
ROOM_OF_DEFAULT = 0.8  # of the memory, for a default micro-batch: to halve it later costs another compilation
CUDA_CONTEXT = 600 * 2**20  # of a card's memory, held by the driver and not by PyTorch
# Resident on a CPU besides tensors, measured on Linux with torch 2.13: the process, the compiler (more with
# an empty cache), and the compiled code of a block.
PROGRAM_BYTES = 400 * 2**20
COMPILER, COMPILED_BLOCK = 55 * 2**20, 5 * 2**20
# Holes in a CPU's heap. Compiled they are a fraction of the weights. Eager, where sizes are mixed, they are
# a fraction of the first MOST_WITH_HOLES bytes that a step allocates and frees.
COMPILED_HOLES = 0.65
EAGER_HOLES, MOST_WITH_HOLES = 0.35, 2**29
WORKSPACES = 64 * 2**20  # PyTorch's on a GPU
NCCL_BUFFERS = 2**29  # of several processes on GPUs, assumed
TRANSIENT = ("activations", "logits", "gradients")  # parts that a step allocates and frees
LEAST_MICRO_BATCH_TOKENS = 4_096  # the model is sharded where a whole copy leaves no room for this micro-batch
MOST_MICRO_BATCH_TOKENS = 65_536  # of a micro-batch of --batch_size auto; a card is busy with fewer
TEXT_BYTES = 2**20  # of a checkpoint's files besides its tensors


# ---------------------------------------------------------------- the formula


@dataclass(frozen=True)
class MemorySetting:
    """The facts that decide the memory of a step, besides the model's shape and the micro-batch."""

    device_type: str
    dtype: torch.dtype  # of autocast; float32 without mixed precision
    compiled: bool = False
    accumulates: bool = True  # more than one micro-batch a step
    residual_bytes: int = 4  # of an element of the residual stream
    loss_chunk: int = 0  # rows of logits that exist at a time; 0: a row for every token
    recomputes: bool = False  # a block keeps only its input for the backward pass
    saves_through_copy: bool = False  # saves go through a copy of the state in RAM
    optimizer_bytes: float = 8  # of optimizer state per parameter
    strategy: str = "alone"  # how processes share the model: alone, ddp, fsdp, hsdp
    shards: int = 1  # of each copy of the weights; every process holds one shard of one copy
    teacher_bytes: int = 0  # of --teacher's weights, which every process holds

    @staticmethod
    def of(machine: Machine, options: Options, optimizer_bytes: float, strategy: str = "alone",
           processes: Processes = ALONE) -> "MemorySetting":
        """The setting of a run that accumulates gradients, and saves through a copy in RAM.

        Sharding gathers weights in the dtype of the residual stream.
        """
        shards = {"fsdp": processes.world_size, "hsdp": processes.world_size // processes.num_machines}.get(strategy, 1)
        return MemorySetting(
            machine.device.type, machine.dtype, compiled=machine.compile,
            residual_bytes=2 if options.residual_dtype else 4, loss_chunk=options.loss_chunk,
            recomputes=options.recompute, saves_through_copy=True, optimizer_bytes=optimizer_bytes,
            strategy=strategy, shards=shards)

    @property
    def has_own_memory(self) -> bool:
        """True on a GPU with memory apart from the RAM."""
        return BACKENDS[self.device_type].has_own_memory

    @property
    def is_sharded(self) -> bool:
        """True where processes gather weights only when they need them."""
        return self.strategy in ("fsdp", "hsdp")

    @property
    def rounds(self) -> bool:
        """True where matrices also have a 16-bit copy that stays from step to step."""
        return self.has_own_memory and self.dtype.itemsize == 2 and not (self.recomputes or self.is_sharded)

    @property
    def has_gradients_throughout(self) -> bool:
        """True where gradients and activations exist together: of earlier micro-batches, or in DDP's buckets."""
        return self.accumulates or self.strategy == "ddp"


def setting_of(args: Namespace, config: ModelConfig, options: Options, machine: Machine, processes: Processes,
               optimizer: str, strategy: str) -> MemorySetting:
    """MemorySetting.of, with the state of the run's optimizer and its teacher.

    choose_setup replaces accumulates and saves_through_copy once they are decided.
    """
    setting = MemorySetting.of(machine, options, state_bytes(optimizer, config), strategy, processes)
    teacher_parameters = read_config(Path(args.teacher)).num_parameters if args.teacher else 0
    return replace(setting, teacher_bytes=(6 if options.rounded_to else 4) * teacher_parameters)


def memory_parts(config: ModelConfig, batch_size: int, setting: MemorySetting) -> dict[str, int]:
    """Predicts the bytes of a training step in each process, by part: weights, optimizer, gradients, activations, ...

    batch_size is the micro-batch of a process. A part of 0 bytes is left out, unless it is in TRANSIENT.
    Weights and gradients are fp32. The gradient of a tied embedding exists twice for a moment: it comes
    from both ends of the network. The copy for a save is of the whole model; it counts on a CPU and on
    Apple's GPU, whose memory is the RAM. The part "program" is everything besides tensors.
    """
    C = config.n_embd
    table = config.padded_vocab_size * C
    parameters = config.num_parameters + _padding_of(config)
    weights = 4 * parameters
    optimizer = int(setting.optimizer_bytes * parameters)
    gradients = weights + (4 * table if config.tie_weights else 0)
    rounded = 2 * (config.num_block_weights + table) if setting.rounds else 0
    gathered = 0
    if setting.is_sharded:
        gradients, gathered = _sharded(config, setting, weights)

    logits = _logit_bytes(config, batch_size, setting, table)
    activations = _activation_bytes(config, batch_size, setting, table, logits)
    copy = weights + optimizer if setting.saves_through_copy and not setting.has_own_memory else 0
    parts = {"weights": weights // setting.shards + rounded, "optimizer": optimizer // setting.shards, "copy": copy,
             "gradients": gradients, "gathered": gathered, "teacher": setting.teacher_bytes,
             "activations": activations, "logits": logits,
             "program": _program_bytes(config, setting, weights // setting.shards, activations + logits)}
    return {name: num_bytes for name, num_bytes in parts.items() if num_bytes or name in TRANSIENT}


def _padding_of(config: ModelConfig) -> int:
    """The parameters that pad the vocabulary: rows of the embedding, and of an output layer of its own."""
    return (config.padded_vocab_size - config.vocab_size) * config.n_embd * (1 if config.tie_weights else 2)


def _sharded(config: ModelConfig, setting: MemorySetting, weights: int) -> tuple[int, int]:
    """The bytes of gradients and of gathered weights, where weights are sharded.

    A process gathers the root's weights and two blocks, the present one and the next. Gradients are sharded
    group by group, the root's last. Several micro-batches add up whole gradients: they are exchanged only
    in the last one.
    """
    root, block = _gathered_elements(config)
    each = setting.residual_bytes
    sharded = weights // setting.shards + (4 + each) * root
    return max(weights, sharded) if setting.accumulates else sharded, each * (root + 2 * block)


@functools.lru_cache
def _gathered_elements(config: ModelConfig) -> tuple[int, int]:
    """The elements outside the blocks and in the largest block, counted in a network without memory."""
    with torch.device("meta"):
        network = architecture_of(config).build(config, Options())
    blocks = [sum(p.numel() for p in block.parameters()) for block in network.blocks]
    return sum(p.numel() for p in network.parameters()) - sum(blocks), max(blocks)


def _activation_bytes(config: ModelConfig, batch_size: int, setting: MemorySetting, table: int, logits: int) -> int:
    """Bytes kept for the backward pass: of the blocks, the final norm and the matrices' 16-bit copy.

    A recomputed block takes the place that the logits had.
    """
    C, e = config.n_embd, setting.dtype.itemsize
    tokens = batch_size * config.seq_length
    block = architecture_of(config).block_bytes(config, setting.device_type, setting.dtype, setting.residual_bytes)
    blocks = config.n_layer * block
    if setting.recomputes:
        blocks = config.n_layer * C * setting.residual_bytes + max(0, block - logits / tokens)
    ends = C * (2 * setting.residual_bytes + e)
    gathers_half = setting.is_sharded and setting.residual_bytes == 2  # the matrices have 16 bits already
    casts = e == 2 and not (gathers_half or setting.rounds)
    copy_of_matrices = 2 * (config.num_block_weights + table) if casts else 0
    return int(tokens * (blocks + ends) + copy_of_matrices)


def _logit_bytes(config: ModelConfig, batch_size: int, setting: MemorySetting, table: int) -> int:
    """The bytes of the logits and of the tensors that the loss computes from them.

    Eager code holds log-probabilities, their gradient and the gradient of the logits, all fp32. In chunks
    on a GPU it also holds another product and two masks (by reading, not measured). Compiled code holds
    the logits, and their gradient takes the same place. In chunks the output layer has a gradient too, on
    a CPU one of each chunk; and on a GPU the compiler writes gradients beside logits. A GPU before Ampere
    cannot add up a product of fp16 in place: the product then lies beside the gradients of the logits.
    Newer GPUs are counted alike in fp16.
    """
    tokens, e = batch_size * config.seq_length, setting.dtype.itemsize
    rows = min(tokens, setting.loss_chunk or tokens)
    is_in_chunks = rows < tokens
    in_chunks_on_gpu = is_in_chunks and setting.has_own_memory
    eager, compiled = (18, 2 * e) if in_chunks_on_gpu else (12, e)
    sums = 0
    if is_in_chunks and setting.device_type == "cpu":
        sums = tokens // rows * table * e
    elif is_in_chunks and not (setting.has_gradients_throughout and config.tie_weights):
        # Otherwise it is the tied embedding's.
        sums = 4 * table
    logits = rows * config.padded_vocab_size * (compiled if setting.compiled else eager)
    if in_chunks_on_gpu and setting.dtype == torch.float16:
        logits = max(logits, e * (rows * config.padded_vocab_size + table))
    return logits + sums


def _program_bytes(config: ModelConfig, setting: MemorySetting, weights: int, transient: int) -> int:
    """The bytes held besides tensors: on a CPU the process, the compiler and holes in the heap."""
    if setting.device_type != "cpu":
        return WORKSPACES + (NCCL_BUFFERS if setting.strategy != "alone" else 0)
    if setting.compiled:
        return PROGRAM_BYTES + COMPILER + config.n_layer * COMPILED_BLOCK + int(COMPILED_HOLES * weights)
    return PROGRAM_BYTES + int(EAGER_HOLES * min(transient, MOST_WITH_HOLES))


def predicted_peak(config: ModelConfig, batch_size: int, setting: MemorySetting) -> int:
    """The predicted peak of each process, in bytes, for micro-batches of batch_size sequences."""
    return peak_bytes(memory_parts(config, batch_size, setting), setting)


def peak_bytes(parts: dict[str, int], setting: MemorySetting) -> int:
    """The most bytes of the parts that exist at the same time.

    Without accumulation gradients grow while activations are freed.
    """
    transient, gradients = parts["activations"] + parts["logits"], parts["gradients"]
    peak = transient + gradients if setting.has_gradients_throughout else max(transient, gradients)
    return peak + sum(num_bytes for name, num_bytes in parts.items() if name not in TRANSIENT)


def describe_memory(config: ModelConfig, batch_size: int, setting: MemorySetting) -> str:
    """The memory in words: '4.1 GiB predicted at the peak; weights 0.5 GiB, optimizer 1.0 GiB, ...'."""
    parts = memory_parts(config, batch_size, setting)
    each = ", ".join(f"{name} {size(num_bytes)}" for name, num_bytes in parts.items())
    return f"{size(peak_bytes(parts, setting))} predicted at the peak; {each}"


# ---------------------------------------------------------------- the strategy and the default micro-batch


def num_sharing_memory(machine: Machine, processes: Processes) -> int:
    """The number of processes that share a device's memory: 1 on a GPU."""
    return 1 if machine.on_gpu else processes.local_world_size


def room_of_each(machine: Machine, processes: Processes) -> int:
    """The bytes of memory that a process may plan with, without MARGIN; on a CPU the processes share the RAM."""
    usable = int((1 - MARGIN) * machine.backend.total_memory()) // num_sharing_memory(machine, processes)
    return usable - (CUDA_CONTEXT if machine.backend.has_own_memory else 0)


def has_room_for_sample(config: ModelConfig, setting: MemorySetting, machine: Machine, processes: Processes) -> bool:
    """True if a process has room for a sample, which gathers a sharded model in fp32."""
    if not setting.is_sharded:
        return True
    held = sum(part for name, part in memory_parts(config, 1, setting).items() if name not in TRANSIENT)
    return held + 4 * config.num_parameters <= room_of_each(machine, processes)


def largest_micro_batch(config: ModelConfig, setting: MemorySetting, room: float, most: int = 2**20) -> int:
    """The largest micro-batch, from 0 to most, with a predicted peak of at most room bytes."""
    return bisect_right(range(1, most + 1), room, key=lambda n: predicted_peak(config, n, setting))


class Sharing(NamedTuple):
    """How processes share the model, why, and the default number of sequences in a micro-batch of each."""

    strategy: str  # alone, ddp, fsdp, hsdp
    why: str  # '' for alone
    micro_batch: int


def choose_sharing(args: Namespace, sizing: Sizing | None, config: ModelConfig, options: Options, machine: Machine,
                   processes: Processes = ALONE) -> Sharing:
    """Chooses how processes share the model, and the default micro-batch.

    The strategy is the first one with a prediction that fits the memory: ddp, then hsdp on several
    machines, then fsdp. It must leave room for --batch_size, or for LEAST_MICRO_BATCH_TOKENS; fsdp is taken if none
    fits. A single process is "alone", for the reason ''. The micro-batch is a power of two, at most the
    sizing's, or the tokens that keep the device busy. It is predicted to fit ROOM_OF_DEFAULT; with
    --batch_size no memory limits it, as halving finds what fits.
    """
    optimizer = optimizer_with_largest_state(args.optimizer)  # the choice of auto depends on the micro-batch
    accumulates = args.gradient_accumulation_steps > processes.world_size

    def setting(strategy: str) -> MemorySetting:
        return replace(setting_of(args, config, options, machine, processes, optimizer, strategy),
                       accumulates=accumulates)

    strategy, why = args.model_parallel, "--model_parallel"
    if processes.world_size == 1:
        strategy, why = "alone", ""
    elif strategy == "auto" and (args.batch_size == "auto" or "fsdp" in OPTIMIZERS[optimizer].conflicts):
        strategy, why = "ddp", "--batch_size auto, or this --optimizer, needs it"
    elif strategy == "auto":
        batch_size = args.batch_size or max(1, LEAST_MICRO_BATCH_TOKENS // config.seq_length)
        room = room_of_each(machine, processes)
        strategies = ("ddp", "hsdp", "fsdp") if processes.num_machines > 1 else ("ddp", "fsdp")
        needed = {name: predicted_peak(config, batch_size, setting(name)) for name in strategies}
        strategy = next((name for name in strategies if needed[name] <= room), "fsdp")
        why = f"a copy takes {size(needed['ddp'])}, each has {size(room)}"

    most = sizing.batch_size if sizing else max(1, machine.backend.busy_tokens // config.seq_length)
    # Halving finds what fits for a --batch_size.
    total_bytes = machine.backend.total_memory() if args.batch_size is None else 2**62
    room = ROOM_OF_DEFAULT * (total_bytes // num_sharing_memory(machine, processes))
    fitting = largest_micro_batch(config, setting(strategy), room, most)
    return Sharing(strategy, why, power_of_two(fitting))


# ---------------------------------------------------------------- the micro-batch of a run


def divisors(number: int, most: int) -> list[int]:
    """The divisors of number that are at most `most`, ascending; 1 is always among them."""
    return [d for d in range(1, max(1, min(number, most)) + 1) if number % d == 0]


def micro_batch_of(recipe: Recipe, world_size: int) -> int:
    """The micro-batch of each process: at most the recipe's, and a divisor of its part of a step's sequences.

    Raises UserError (exit 2) where the processes cannot share a step evenly.
    """
    each, rest = divmod(recipe.samples_per_step, world_size)
    if rest or not each:
        raise UserError(Exit.FLAGS, f"a step has {recipe.samples_per_step:,} sequences, which {world_size:,} processes "
                                    "cannot share evenly. Give --batch_size and --gradient_accumulation_steps whose "
                                    f"product is a multiple of {world_size:,}.")
    return divisors(each, recipe.batch_size)[-1]


def choose_batch_size(recipe: Recipe, config: ModelConfig, setting: MemorySetting, runtime: Runtime,
                      tokens_on_gpu: int) -> int:
    """The micro-batch that --batch_size auto begins with: the largest that is predicted to fit.

    It begins high on a GPU, without a margin, as a step that runs out of memory is repeated with half of it.
    Several processes cannot do that, and keep the margin. So does a processor: running out of RAM would hurt
    other programs. tokens_on_gpu is the bytes of the training tokens that will lie there too. Raises UserError
    (exit 5) where not even one sequence fits.
    """
    backend, processes = runtime.machine.backend, runtime.processes
    free_bytes = backend.free_memory()  # on Apple's GPU of the RAM
    if backend.has_own_memory:
        room = (float(free_bytes or 0) - tokens_on_gpu) * (1 - MARGIN if processes.world_size > 1 else 1)
    else:
        room = (1 - MARGIN) * ((free_bytes or available_ram()) // processes.local_world_size)
    fitting = largest_micro_batch(config, setting, room)
    if not fitting:
        raise UserError(Exit.MACHINE, f"--batch_size auto: not even one sequence of {config.seq_length:,} tokens fits "
                                      "the memory. Give a smaller --seq_length, or a smaller model.")
    samples = recipe.samples_per_step // processes.world_size
    batch_size = divisors(samples, min(fitting, max(1, MOST_MICRO_BATCH_TOKENS // config.seq_length)))[-1]
    runtime.out.say(f"batch_size  {batch_size} x {several(samples // batch_size, 'micro-batch')}: the largest that is "
                    "predicted to fit")
    return batch_size


def remember_too_many(output_dir: Path, num_sequences: int) -> None:
    """Records in the output folder, if it is writable, that this number of sequences did not fit.

    A single process repeats a step that did not fit. One of several cannot, as the others wait for it in a
    collective operation: all end, start again, and take smaller micro-batches.
    """
    with contextlib.suppress(OSError):
        output_dir.mkdir(parents=True, exist_ok=True)
        write_whole(output_dir / TOO_LARGE, json.dumps({"sequences": num_sequences}))


def halve_after_out_of_memory(output_dir: Path, recipe: Recipe, out: Progress) -> int:
    """The recipe's micro-batch, or after an out-of-memory end in this folder at most half of what did not fit.

    Prints a smaller one; it divides the samples per step.
    """
    too_many = recipe.batch_size + 1
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
        too_many = max(2, int(json.loads((output_dir / TOO_LARGE).read_text(encoding="utf-8"))["sequences"]))
    if too_many > recipe.batch_size:
        return recipe.batch_size
    batch_size = divisors(recipe.samples_per_step, too_many // 2)[-1]
    out.say(f"batch_size  {batch_size} x {several(recipe.samples_per_step // batch_size, 'micro-batch')}: with "
            f"{too_many} an earlier start ran out of memory (to try again, delete {printable(output_dir / TOO_LARGE)})")
    return batch_size


# ---------------------------------------------------------------- a checkpoint


def checkpoint_bytes_of(config: ModelConfig, optimizer_bytes: float) -> int:
    """The bytes of a checkpoint: fp32 weights, and optimizer_bytes of optimizer state for each parameter.

    The rows that pad the vocabulary count too: a copy in memory holds them.
    """
    return int((4 + optimizer_bytes) * (config.num_parameters + _padding_of(config))) + TEXT_BYTES


def has_room_for_copy(checkpoint_bytes: int, held_bytes: int) -> bool:
    """True where training can wait for a copy of each checkpoint in RAM alone, which a thread writes to disk.

    The run holds held_bytes in RAM before its first step. Beside the copy there must be room for the
    optimizer's state and the gradients, which a CPU keeps in RAM.
    """
    return available_ram() > held_bytes + 2 * checkpoint_bytes
