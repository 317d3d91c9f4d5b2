"""train.py --check: what this machine can do, tried without data, and how long each size takes here and elsewhere."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from architectures.table import ModelConfig
from common.children import ask
from common.errors import Exit, UserError
from common.files import cache_folder
from common.flags import Flags, FlagsOfGroup, having
from common.progress import Progress
from common.signals import Signals
from common.words import count, printable, size
from machine import device
from machine.backends import NVIDIA
from machine.cards import TYPICAL, Card, find_card
from machine.device import Machine, name_of_dtype
from machine.facts import matmul_flops, measure_disk
from machine.memory import is_out_of_memory, total_memory
from model import SIZES
from planning.memory import CUDA_CONTEXT, GIB, MARGIN, MemorySetting, predicted_peak
from planning.plan import attention_in_words, figure
from planning.recipe import DEFAULT_SEQ_LENGTH, LOSS_CHUNK, choose_config, choose_options
from planning.sizing import config_of_size
from training.optimizers import OPTIMIZERS
from training.parts import FAST

VOCAB_SIZE = 50_257  # GPT-2's, where --vocab_size does not say otherwise
COMPILE_SECONDS = 40  # after which the attempt to compile is given up
PRODUCT_SECONDS = 2.0  # for products of matrices, in each precision
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022
RECOMPUTING = 1.3  # times as long with --activation_checkpointing
# Trainers of GPT-2 Small and larger ones report a third to a half of the data sheet's peak; the matrices of narrower
# models are too small for that. Of the products measured here, the ladder of bench.py reached on 2 cores 0.76 compiled
# and 0.55 eager.
SHARE_OF_PEAK, FULL_WIDTH = 0.35, 768
SHARE_OF_PRODUCTS_GPU, SHARE_OF_PRODUCTS_COMPILED, SHARE_OF_PRODUCTS = 0.45, 0.75, 0.55


def check_machine(args: Flags, machine: Machine, out: Progress, signals: Signals, trial: Sequence[str],
                  ) -> int:
    """Prints what the machine can do, and the hours of each size here and on common cards; returns the exit code.

    trial is the command line of a child process that compiles something (compile_something). Raises UserError (exit 5)
    where --output_dir cannot be written, SystemExit after a signal.
    """
    models = models_of(having(args, init_from=None).model, args.vocab_size or VOCAB_SIZE)
    config = next(iter(models.values()))
    with out.phase("compiling a small function"):
        compiler = try_compiling(machine, trial, signals)
    with out.phase("multiplying matrices"):
        products = measure_products(machine)
    lines = device.describe(machine, total_memory(machine), attention_in_words(config, machine))
    speeds = ", ".join(f"{name} {flops / 1e12:.3g}" for name, flops in products.items())
    matmul = f"{speeds} TFLOP/s" if speeds else "not measured: there is no memory for two matrices"
    for line in (*lines, f"compiler    {compiler}", f"matmul      {matmul}"):
        out.say(line)
    for warning in machine.warnings:
        out.warn(warning)

    kind = "prices" if args.gpu_cost_per_hour else "hours"
    out.say(f"\nThe {kind} of {TOKENS_PER_PARAMETER} tokens per parameter, T {config.seq_length:,}, "
            f"{config.vocab_size:,} ids: here by the products above, on cards at {SHARE_OF_PEAK:.0%}\nof the peak in "
            "the data sheet, less for narrow models; no card was timed. *: needs\n--activation_checkpointing, -: does "
            "not fit. With your tokens, --dry_run measures.")
    out.say("\n".join(table(args, machine, models, products)))

    with out.phase("writing to the disk"):
        try:
            disk = measure_disk(Path(args.output_dir))
        except OSError as error:
            raise UserError(Exit.MACHINE, f"--output_dir {printable(args.output_dir)}: {error.strerror}. Free some "
                                          "space, or choose another folder.") from error
    out.say(f"\ndisk        writes {size(disk.bytes_per_second)}/s, fsync included; {size(disk.free_bytes)} free in "
            f"{printable(str(disk.folder))}")
    return Exit.DONE


def models_of(flags: FlagsOfGroup, vocab_size: int) -> dict[str, ModelConfig]:
    """The models of the table by their names: all sizes, or the one that the flags describe.

    Raises UserError (exit 2) for a width that the heads do not divide.
    """
    if any(value is not None for value in (flags.model_size, flags.n_layer, flags.n_head, flags.n_embd)):
        return {flags.model_size or "your shape": choose_config(flags, vocab_size, 2**62)}
    return {name: config_of_size(flags, shape, vocab_size, flags.seq_length or DEFAULT_SEQ_LENGTH)
            for name, shape in SIZES.items()}


# ---------------------------------------------------------------- what is tried


def try_compiling(machine: Machine, trial: Sequence[str], signals: Signals) -> str:
    """Compiles something in a child process, into an empty cache beside the usual one: whether that works, in words."""
    if reason := machine.backend.why_no_compile():
        return f"does not work: {reason}. A run does without it"
    usual = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", cache_folder() / "compiled"))
    try:
        usual.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="check-", dir=usual, ignore_cleanup_errors=True) as folder:
            caches = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": str(Path(folder, "triton"))}
            answer = ask(trial, signals, COMPILE_SECONDS, caches)
    except OSError as error:
        return f"does not work: kernels cannot be kept in {printable(str(usual))}: {error.strerror}"
    if answer.code is None:
        return f"not known: a small function took more than {COMPILE_SECONDS} s. A run waits as long as it takes"
    if answer.code:
        return f"does not work: {answer.reason}. A run does without it"
    return f"works: a small function took {answer.printed.strip()} s"


def compile_something(machine: Machine) -> int:
    """In the child process: compiles a function of one kernel, runs it, and prints the seconds that took."""
    started = time.perf_counter()
    try:
        torch.compile(lambda x: F.gelu(x) + 1, dynamic=False)(
            torch.ones(64, 64, device=machine.device, dtype=machine.dtype)).cpu()
    except Exception as error:
        print(device.compiler_complaint(error), file=sys.stderr)
        return Exit.MACHINE
    print(f"{time.perf_counter() - started:.1f}")
    return Exit.DONE


def measure_products(machine: Machine) -> dict[str, float]:
    """FLOP/s of products of square matrices by precision: fp32, a run's, bf16 in hardware; none without memory."""
    wanted = {torch.float32, machine.dtype, *([torch.bfloat16] if machine.backend.has_bf16() else [])}
    try:
        return {name_of_dtype(dtype): matmul_flops(machine, dtype, machine.backend.matmul_width, PRODUCT_SECONDS)
                for dtype in sorted(wanted, key=lambda dtype: -dtype.itemsize)}
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return {}


# ---------------------------------------------------------------- how long each size takes


def table(args: Flags, machine: Machine, models: dict[str, ModelConfig], products: dict[str, float],
          ) -> Iterator[str]:
    """A column for each size; a line for its parameters, for this machine, and for each memory that cards come with."""
    names = {name: name.removeprefix("gpt2_") for name in models}
    yield f"{'':<18}" + "".join(f"{names[name]:>10}" for name in models)
    yield f"{'parameters':<18}" + "".join(f"{count(config.num_parameters):>10}" for config in models.values())

    options = choose_options(args.activation_checkpointing, bool(args.init_from), machine, FAST.attention, {})
    optimizer = OPTIMIZERS["adamw" if args.optimizer == "auto" else args.optimizer]
    share = SHARE_OF_PRODUCTS_GPU if machine.on_gpu else SHARE_OF_PRODUCTS
    if machine.compile and not machine.on_gpu:
        share = SHARE_OF_PRODUCTS_COMPILED
    rows: dict[str, tuple[Card | None, float, float]] = {
        "this machine": (None, share * products.get(machine.precision, 0.0), (1 - MARGIN) * total_memory(machine))}
    for gigabytes, name in TYPICAL.items():
        card = find_card(name)
        assert card
        room = (1 - MARGIN) * gigabytes * GIB - CUDA_CONTEXT
        rows[f"{name}, {gigabytes} GB"] = (card, SHARE_OF_PEAK * 1e12 * card.half_tflops, room)
    for label, (card, flops, room) in rows.items():
        cells = []
        for config in models.values():
            setting = MemorySetting.of(machine, options, True, True, optimizer.memory_bytes(config))
            if card:
                dtype = torch.bfloat16 if card.has_bf16 else torch.float16
                setting = MemorySetting(NVIDIA.type, dtype, True, True, 2, LOSS_CHUNK, setting.checkpointing,
                                        optimizer_bytes=setting.optimizer_bytes)
            narrow = min(1.0, config.n_embd / FULL_WIDTH) if card or machine.on_gpu else 1.0
            cells.append(_hours(config, setting, room, flops * narrow, args.gpu_cost_per_hour or 1.0))
        yield f"{label:<18}" + "".join(f"{cell:>10}" for cell in cells)


def _hours(config: ModelConfig, setting: MemorySetting, room: float, flops_per_second: float, price: float) -> str:
    """The hours of a model's training times the price of one; with a star where activations have to be recomputed."""
    if not flops_per_second:
        return "n/a"
    hours = TOKENS_PER_PARAMETER * config.num_parameters * config.flops_per_token / flops_per_second / 3600
    recomputed = replace(setting, checkpointing=True)
    if not setting.checkpointing and predicted_peak(config, 1, setting) <= room:
        return figure(price * hours)
    return f"{figure(price * hours * RECOMPUTING)}*" if predicted_peak(config, 1, recomputed) <= room else "-"
