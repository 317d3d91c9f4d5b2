"""What each size takes on common cards: the micro-batch, the memory, the hours. Estimates, computed without a GPU.

Memory is what the plan of a run predicts. Hours are the floating-point operations of training, divided by a stated
share of what the device does at its best: a card's data sheet, or products of matrices measured on this machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from architectures.table import ModelConfig
from common.words import count
from machine.cards import Card, find_card
from machine.device import Machine
from planning.memory import (
    CUDA_CONTEXT,
    GIB,
    MARGIN,
    MOST_TOKENS,
    MemorySetting,
    default_micro_batch,
    memory_parts,
    peak_bytes,
)
from planning.recipe import choose_options
from training.optimizers import OPTIMIZERS
from training.parts import FAST

# The memory that cards come with, in GB, and a common card that has it.
TYPICAL = {8: "RTX 4060", 12: "RTX 3060", 16: "T4", 24: "RTX 4090", 40: "A100", 48: "L40S", 80: "H100", 141: "H200"}
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022

# Shares for the hours. Trainers of GPT-2 Small and larger ones report a third to a half of the data sheet's peak; the
# matrices of narrower models are too small for that. The ladder of bench.py, on 2 cores: 0.76 of a large matrix
# product's speed compiled, 0.55 eager.
SHARE_OF_PEAK, FULL_WIDTH, EAGER = 0.35, 768, 0.5
SHARE_OF_PRODUCTS = {"cuda": 0.45, "mps": 0.45, "cpu": 0.55}
SHARE_OF_PRODUCTS_COMPILED = {"cuda": 0.45, "mps": 0.45, "cpu": 0.75}
RECOMPUTING = 1.3  # times as long with --activation_checkpointing

STEP_TOKENS = 65_536  # of a step in the recommended flags, the same on every card
WITHIN_HOURS = 48  # the recommended size is the largest that is trained within this time
OWN_SHAPE = "your shape"  # the name of a model that the flags describe and no size has
CELL = 9  # characters of a column


@dataclass(frozen=True)
class Estimate:
    """What a model of a size takes on a device.

    batch_size is the default micro-batch, 0 where not even one sequence fits; num_bytes is the predicted peak with it.
    recomputes says that it only fits with --activation_checkpointing. hours are None where the peak is not known.
    """

    batch_size: int
    num_bytes: int
    recomputes: bool
    hours: float | None


Estimates = Mapping[str, Estimate]  # by the name of the size


def tokens_for(args: argparse.Namespace, config: ModelConfig) -> int:
    """The tokens of --tokens, or twenty per parameter."""
    return args.tokens or TOKENS_PER_PARAMETER * config.num_parameters


# ---------------------------------------------------------------- estimating


def estimate(args: argparse.Namespace, config: ModelConfig, machine: Machine, memory_bytes: int,
             flops_per_second: float | None) -> Estimate:
    """What the model takes on a device with this much memory that trains at flops_per_second."""
    options = choose_options(argparse.Namespace(**{**vars(args), "residual_dtype": "auto"}), machine, FAST.attention,
                             {})
    room = (1 - MARGIN) * memory_bytes - (CUDA_CONTEXT if machine.device.type == "cuda" else 0)
    optimizer = OPTIMIZERS["adamw" if args.optimizer == "auto" else args.optimizer]  # as the default micro-batch
    for recomputes in (False, True):
        setting = MemorySetting.of(machine, options, True, True, optimizer.memory_bytes(config))
        setting = replace(setting, checkpointing=setting.checkpointing or recomputes)
        if peak_bytes(memory_parts(config, 1, setting), True) <= room:
            break
    else:
        return Estimate(0, 0, False, None)

    most = max(1, MOST_TOKENS[machine.device.type] // config.seq_length)
    batch_size = default_micro_batch(config, memory_bytes, setting, most)
    num_bytes = peak_bytes(memory_parts(config, batch_size, setting), True)
    if flops_per_second is None:
        return Estimate(batch_size, num_bytes, setting.checkpointing, None)
    flops = tokens_for(args, config) * config.flops_per_token * (RECOMPUTING if setting.checkpointing else 1)
    return Estimate(batch_size, num_bytes, setting.checkpointing, flops / flops_per_second / 3600)


def estimate_on_card(args: argparse.Namespace, config: ModelConfig, gigabytes: int) -> Estimate:
    """What the model takes on the typical card with this much memory, by its data sheet."""
    card = find_card(TYPICAL[gigabytes])
    machine = _imagined(args, TYPICAL[gigabytes], card)
    peak = _peak_tflops(args, card, machine) if card else None
    return estimate(args, config, machine, gigabytes * GIB, peak and 1e12 * peak * share_of_peak(args, config.n_embd))


def share_of_peak(args: argparse.Namespace, width: int) -> float:
    """The share of its peak that a GPU is assumed to reach with a model of this width."""
    return SHARE_OF_PEAK * min(1.0, width / FULL_WIDTH) * (EAGER if args.compile is False else 1.0)


def speed_here(machine: Machine, config: ModelConfig, products: Mapping[str, float]) -> float | None:
    """FLOP/s that this machine is assumed to train at, by the FLOP/s of matrix products in each precision."""
    kind, name = machine.device.type, machine.precision
    if name == "fp32" and torch.get_float32_matmul_precision() != "highest":
        name = "tf32" if "tf32" in products else name
    found = products.get(name)
    if found is None:
        return None
    share = (SHARE_OF_PRODUCTS_COMPILED if machine.compile else SHARE_OF_PRODUCTS)[kind]
    return found * share * (min(1.0, config.n_embd / FULL_WIDTH) if kind == "cuda" else 1.0)


def _imagined(args: argparse.Namespace, name: str, card: Card | None) -> Machine:
    """A machine with the card, as the flags and its chip would have it; chips before Ampere have no bf16."""
    dtype = torch.bfloat16 if card is None or card.has_bf16 else torch.float16
    if args.amp_dtype != "auto":
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[args.amp_dtype]
    if args.use_amp is False:
        dtype = torch.float32
    return Machine(torch.device("cuda"), name, "", dtype, "", args.compile is not False, "", ())


def _peak_tflops(args: argparse.Namespace, card: Card, machine: Machine) -> float:
    if machine.dtype != torch.float32:
        return card.half_tflops
    return card.tf32_tflops if card.tf32_tflops and args.tf32 else card.fp32_tflops


# ---------------------------------------------------------------- in words


def hours_in_words(hours: float | None) -> str:
    """Hours with two digits that mean something: '0.41', '3.2', '28', '7,500', '2.1M', or 'n/a'."""
    if hours is None:
        return "n/a"
    if hours < 99.5:
        return f"{hours:.2g}"
    rounded = float(f"{hours:.2g}")
    return f"{rounded:,.0f}" if rounded < 1e6 else f"{rounded / 1e6:g}M"


def describe_size(args: argparse.Namespace, name: str, config: ModelConfig) -> str:
    """'gpt2_small, 124.4M parameters, 2.49B tokens'."""
    return f"{name}, {count(config.num_parameters)} parameters, {count(tokens_for(args, config))} tokens"


def table_here(args: argparse.Namespace, configs: Mapping[str, ModelConfig], here: Estimates) -> list[str]:
    """A line for each size: what it takes on this machine."""
    lines = [f"{'':<12}{'parameters':>10}{'tokens':>10}{'micro-batch':>13}{'memory GiB':>12}{'hours':>11}"]
    for name, config in configs.items():
        cells = _cells(here[name])
        lines.append(f"{name:<12}{count(config.num_parameters):>10}{count(tokens_for(args, config)):>10}"
                     f"{cells[0]:>13}{cells[1]:>12}{cells[2]:>11}")
    return lines


def table_of_cards(args: argparse.Namespace, configs: Mapping[str, ModelConfig], cards: Mapping[int, Estimates],
                   ) -> list[str]:
    """Three lines for each size: micro-batch, memory and hours on every card."""
    lines = [_row("", [f"{gigabytes} GB" for gigabytes in cards]),
             _row("", [TYPICAL[gigabytes] for gigabytes in cards])]
    for name, config in configs.items():
        columns = [_cells(estimates[name]) for estimates in cards.values()]
        lines.append(describe_size(args, name, config))
        lines += [_row(label, cells) for label, cells in zip((" batch", " GiB", " hours"), zip(*columns, strict=True),
                                                             strict=True)]
    return lines


def _cells(found: Estimate) -> tuple[str, str, str]:
    """Micro-batch, GiB and hours as text; a star where activations have to be recomputed."""
    if not found.batch_size:
        return "-", "-", "-"
    return (f"{found.batch_size}{'*' if found.recomputes else ''}", f"{found.num_bytes / GIB:.1f}",
            hours_in_words(found.hours))


def _row(label: str, cells: Sequence[str]) -> str:
    return f"{label:<8}" + "".join(f"{cell:>{CELL}}" for cell in cells)


def recommended(configs: Mapping[str, ModelConfig], found: Estimates) -> tuple[str, int] | None:
    """The largest size that is trained within two days, else the quickest, and its micro-batches a step.

    None if no size fits, or where no hours are known.
    """
    timed = {name: one.hours for name, one in found.items() if one.hours is not None}
    if not timed:
        return None
    within = [name for name, hours in timed.items() if hours <= WITHIN_HOURS]
    name = max(within, key=lambda name: configs[name].num_parameters) if within else min(timed, key=timed.__getitem__)
    return name, max(1, STEP_TOKENS // (found[name].batch_size * configs[name].seq_length))


def table_of_recommended(configs: Mapping[str, ModelConfig], cards: Mapping[int, Estimates]) -> list[str]:
    """A line for each card: the size recommended for it, its flags and its hours."""
    row = "{:<7}{:<9}{:<13}{:>12}{:>31}{:>8}"
    lines = [row.format("", "", "--model_size", "--batch_size", "--gradient_accumulation_steps", "hours")]
    for gigabytes, found in cards.items():
        cells: tuple[object, ...] = ("-", "-", "-", "-")
        if best := recommended(configs, found):
            name, accumulation = best
            batch_size, _, hours = _cells(found[name])
            cells = (name, batch_size, accumulation, hours)
        lines.append(row.format(f"{gigabytes} GB", TYPICAL[gigabytes], *cells))
    return lines
