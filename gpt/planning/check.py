"""train.py --check: describes the machine, and estimates hours, memory and batch here and on common cards.

It reads no data.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from gpt.architectures.table import ModelConfig
from gpt.common.errors import Exit
from gpt.common.flags import with_values
from gpt.common.progress import Progress
from gpt.common.words import count, plain_number
from gpt.hub.download import download_flag
from gpt.machine.backends import NVIDIA
from gpt.machine.cards import TYPICAL_GPUS, WITH_ECC, find_card
from gpt.machine.device import Machine
from gpt.machine.processes import ALONE
from gpt.optimizers.build import state_bytes
from gpt.optimizers.table import optimizer_with_largest_state
from gpt.planning.defaults import TOKENS_PER_PARAMETER
from gpt.planning.memory import (
    CUDA_CONTEXT,
    GIB,
    MARGIN,
    MOST_MICRO_BATCH_TOKENS,
    MemorySetting,
    divisors,
    largest_micro_batch,
    predicted_peak,
    room_of_each,
)
from gpt.planning.plan import describe_machine
from gpt.planning.sizing import (
    DEFAULT_SIZE,
    FRACTION_OF_PEAK,
    LOSS_CHUNK,
    choose_config,
    choose_options,
    names_size,
)
from model import SIZES, Options

GPT2_IDS = 50_257
FULL_WIDTH = 768  # the matrices of narrower models are too small for FRACTION_OF_PEAK
FRACTION_ON_GPU = 0.45  # of the matrix products measured, assumed
# The ladder (gpt.benchmarks) reached 0.76 of them compiled and 0.55 eager on 2 cores.
FRACTION_COMPILED, FRACTION_EAGER = 0.75, 0.55
BATCH_SIZES = (8, 16, 32, 64)  # whose memory is shown

Device = tuple[MemorySetting, float, float]  # the memory's use, its free bytes, FLOP/s of a training step


def check_machine(args: Namespace, machine: Machine, out: Progress) -> int:
    """Prints a description of the machine, and hours or price, memory and batch here and on common cards.

    The models are the one of --init_from, the one whose size flags name, or all sizes. Returns the exit code.
    Raises UserError like choose_config().
    """
    args = download_flag(args, "init_from", out)
    if args.init_from:
        models = {"your model": choose_config(args, args.vocab_size or 0, 2**62)}
    else:
        vocab_size = args.vocab_size or GPT2_IDS
        models = {name or "your shape": choose_config(with_values(args, model_size=name), vocab_size, 2**62)
                  for name in ([args.model_size] if names_size(args) else SIZES)}
    config = next(iter(models.values()))
    with out.phase("multiplying matrices"):
        products = matmul_flops(machine, machine.backend.matmul_width, seconds=2.0)
    out.say("\n".join([*describe_machine(config, machine),
                       f"matmul      {products / 1e12:.3g} TFLOP/s in {machine.precision}"]))
    for warning in machine.warnings:
        out.warn(warning)

    price = args.gpu_cost_per_hour
    estimate = f"price, at {price:g} an hour," if price else "hours"
    out.say(f"\nThe {estimate} of {TOKENS_PER_PARAMETER} tokens per parameter, T {config.seq_length:,}, "
            f"{config.vocab_size:,} ids, by the products above and {FRACTION_OF_PEAK:.0%} of a card's peak.\n"
            "-: too large for the memory. --dry_run measures the time for your own text.")
    options = choose_options(args.activation_checkpointing, False, machine, {})
    optimizer = optimizer_with_largest_state(args.optimizer)
    devices = devices_of(machine, options, products)
    priced = {label: device for label, device in devices.items() if device[0].device_type != "cpu" or not price}
    out.say("\n".join(table_of_hours(models, priced, optimizer, price)))

    name = DEFAULT_SIZE if DEFAULT_SIZE in models else next(iter(models))
    config = models[name]
    batch_size = (args.batch_size if isinstance(args.batch_size, int) else
                  max(1, NVIDIA.busy_tokens // config.seq_length))
    step = batch_size * args.gradient_accumulation_steps * config.seq_length
    out.say(f"\nThe GiB of {name} by --batch_size, T {config.seq_length:,}; *: does not fit. Suggested for a step of "
            f"{step:,} tokens:\n--batch_size, --seq_length (T) and --gradient_accumulation_steps.")
    out.say("\n".join(table_of_batches(config, devices, optimizer, step)))
    return Exit.DONE


def matmul_flops(machine: Machine, width: int, seconds: float) -> float:
    """The FLOP/s of torch.mm with two square matrices, by the fastest of the blocks of runs in these seconds."""
    from torch.utils.benchmark import Timer  # a CUDA build without a GPU prints a warning where this is imported

    a, b = (torch.randn(width, width, device=machine.device).to(machine.dtype) for _ in range(2))
    timer = Timer("torch.mm(a, b)", globals={"torch": torch, "a": a, "b": b}, num_threads=torch.get_num_threads())
    return 2 * width**3 / min(timer.blocked_autorange(min_run_time=seconds).times)


def devices_of(machine: Machine, options: Options, products: float) -> dict[str, Device]:
    """This machine and a card for each memory size, by their labels.

    products is the FLOP/s of matrix products on this machine.
    """
    fraction = FRACTION_ON_GPU if machine.on_gpu else FRACTION_COMPILED if machine.compile else FRACTION_EAGER
    setting = MemorySetting.of(machine, options, 0)
    devices: dict[str, Device] = {"this machine": (setting, room_of_each(machine, ALONE), fraction * products)}
    for gigabytes, name in TYPICAL_GPUS.items():
        card = find_card(name)
        assert card
        dtype = torch.bfloat16 if card.has_bf16 else torch.float16
        setting = MemorySetting(NVIDIA.type, dtype, compiled=True, residual_bytes=2,
                                loss_chunk=LOSS_CHUNK, recomputes=options.recompute)
        memory = gigabytes * GIB * (15 / 16 if name in WITH_ECC else 1)
        room = (1 - MARGIN) * memory - CUDA_CONTEXT
        devices[f"{name}, {gigabytes} GB"] = setting, room, FRACTION_OF_PEAK * 1e12 * card.half_tflops
    return devices


def table_of_hours(models: dict[str, ModelConfig], devices: dict[str, Device], optimizer: str,
                   price: float | None) -> Iterator[str]:
    """The lines of a table of each size's parameters, and of its hours or price on each device."""
    yield line("", (name.removeprefix("gpt2_") for name in models))
    yield line("parameters", (count(config.num_parameters) for config in models.values()))
    for label, (setting, room, flops) in devices.items():
        yield line(label, (price_of(config, replace(setting, optimizer_bytes=state_bytes(optimizer, config)), room,
                                    flops / (price or 1.0)) for config in models.values()))


def table_of_batches(config: ModelConfig, devices: dict[str, Device], optimizer: str, step: int) -> Iterator[str]:
    """The lines of a table of each device's memory by micro-batch, and of the suggestion for a step on it."""
    yield line("", (*map(str, BATCH_SIZES), "batch", "T", "accum"), width=8)
    for label, (setting, room, _) in devices.items():
        setting = replace(setting, optimizer_bytes=state_bytes(optimizer, config))
        peaks = [predicted_peak(config, batch_size, setting) for batch_size in BATCH_SIZES]
        cells = [f"{peak / GIB:.1f}{'' if peak <= room else '*'}" for peak in peaks]
        yield line(label, (*cells, *suggestion(config, setting, room, step)), width=8)


def suggestion(config: ModelConfig, setting: MemorySetting, room: float, step: int) -> tuple[str, str, str]:
    """The micro-batch, T and accumulation of a step of this many tokens that fit; '-' if none do.

    The micro-batch is the largest, as of --batch_size auto. T is halved, three times at most, where not one
    sequence fits.
    """
    for halvings in range(4):
        shorter = replace(config, seq_length=max(1, config.seq_length >> halvings))
        samples = step // shorter.seq_length
        most = max(1, min(samples, MOST_MICRO_BATCH_TOKENS // shorter.seq_length))
        fitting = largest_micro_batch(shorter, setting, room, most)
        if fitting:
            batch_size = divisors(samples, fitting)[-1]
            return str(batch_size), f"{shorter.seq_length:,}", str(samples // batch_size)
    return "-", "-", "-"


def line(label: str, cells: Iterable[str], width: int = 10) -> str:
    """A line of a table."""
    return f"{label:<18}" + "".join(f"{cell:>{width}}" for cell in cells)


def price_of(config: ModelConfig, setting: MemorySetting, room: float, flops_per_price: float) -> str:
    """Returns the hours of training on 20 tokens per parameter, or their price; '-' if the model does not fit.

    room is the device's free memory in bytes. flops_per_price is its FLOP/s for hours, or its FLOP/s divided
    by the price of an hour for a price.
    """
    if predicted_peak(config, 1, setting) > room:
        return "-"
    fraction = min(1.0, config.n_embd / FULL_WIDTH) if setting.has_own_memory else 1.0
    flops = TOKENS_PER_PARAMETER * config.num_parameters * config.flops_per_token
    return plain_number(flops / (fraction * flops_per_price) / 3600)
