"""Before the first hour: memory by part, the micro-batch that fits, time, disk and money.

N is a micro-batch's tokens (B T), C the width, H the heads, P the padded vocabulary; sizes are in bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from architectures.table import architecture_of
from common.errors import Exit, UserError
from common.files import cache_folder, write_whole
from common.words import printable
from machine.cards import CARDS_GIB
from model import GPTConfig

GIB = 2**30
MARGIN = 0.08  # of what there is; left free for what nobody counted
CUDA_CONTEXT = 600 * 2**20  # of a card's memory, held by the driver and not by PyTorch
# Resident besides tensors, measured on Linux with torch 2.13: the process, what compiling adds (more where nothing is
# cached), a block's compiled code. Then holes in the heap: compiled a share of the weights, eager, where sizes are
# mixed, one of the first half GiB that comes and goes in a step. On a GPU PyTorch's workspaces.
PROGRAM, COMPILER, COMPILED_BLOCK = 400 * 2**20, 55 * 2**20, 5 * 2**20
COMPILED_HOLES, EAGER_HOLES, MOST_WITH_HOLES = 0.65, 0.35, 2**29
WORKSPACES = 64 * 2**20
OUT_OF_MEMORY = 75  # the exit code by which train.probe says it
MOST_TOKENS = 65_536  # of a micro-batch that --batch_size auto looks for; a card is busy long before


@dataclass(frozen=True)
class Setting:
    """What decides the memory of a step besides the model's shape and the micro-batch."""

    device_type: str
    dtype: torch.dtype  # of autocast; float32: none
    compiled: bool = False
    accumulates: bool = True  # more than one micro-batch a step
    residual_bytes: int = 4  # of an element of the residual stream
    logit_rows: int | None = None  # rows of logits that exist at once; None: those of all N tokens
    checkpointing: bool = False  # of a block only its input is kept
    copies: bool = False  # the state is copied to the RAM, to be saved from there


# ---------------------------------------------------------------- memory



def memory_parts(config: GPTConfig, batch_size: int, setting: Setting) -> dict[str, int]:
    """Predicted bytes of a training step by part: weights, optimizer, copy, gradients, activations, logits, program.

    Weights, gradients and both moments are fp32; a tied embedding's gradient exists twice for a moment, as it comes
    from both ends. Half precision keeps a copy of the matrices until the backward has used it. Of the logits there are,
    eager, log-probabilities, their gradient and the logits' gradient, fp32; compiled, the output, which its gradient
    then takes the place of; in chunks, a gradient of the head for each of them.
    The copy that is saved counts where it lies in the same memory, on a CPU. The program is what is no tensor.
    """
    tokens, C, e = batch_size * config.seq_length, config.n_embd, setting.dtype.itemsize
    table = config.padded_vocab_size * C
    parameters = config.num_parameters + (config.padded_vocab_size - config.vocab_size) * C
    matrices = 12 * config.n_layer * C * C + table
    block = architecture_of(config).block_bytes(config, setting.device_type, setting.dtype, setting.residual_bytes)
    blocks = config.n_layer * C * setting.residual_bytes + block if setting.checkpointing else config.n_layer * block
    activations = tokens * (blocks + C * (2 * setting.residual_bytes + e)) + (2 * matrices if e == 2 else 0)
    rows = min(tokens, setting.logit_rows or tokens)
    a_logit = e if setting.compiled else 12
    sums = tokens // rows * table * e if rows < tokens else 0
    logits = rows * config.padded_vocab_size * a_logit + sums
    copy = {"copy": 12 * parameters} if setting.copies and setting.device_type == "cpu" else {}
    return {"weights": 4 * parameters, "optimizer": 8 * parameters, **copy,
            "gradients": 4 * parameters + (4 * table if config.tie_weights else 0),
            "activations": int(activations), "logits": logits,
            "program": program_bytes(config, setting, 4 * parameters, int(activations) + logits)}


def program_bytes(config: GPTConfig, setting: Setting, weights: int, passing: int) -> int:
    """What is held besides tensors: on a CPU the process, with the compiler where it is used, and holes in the heap."""
    if setting.device_type != "cpu":
        return WORKSPACES
    if setting.compiled:
        return PROGRAM + COMPILER + config.n_layer * COMPILED_BLOCK + int(COMPILED_HOLES * weights)
    return PROGRAM + int(EAGER_HOLES * min(passing, MOST_WITH_HOLES))


def peak(parts: dict[str, int], accumulates: bool) -> int:
    """The most of the parts that exists at once.

    Without accumulation the gradients come as the activations go; with it those of the micro-batches before are there.
    """
    passing = parts["activations"] + parts["logits"]
    passing = passing + parts["gradients"] if accumulates else max(passing, parts["gradients"])
    return parts["weights"] + parts["optimizer"] + parts.get("copy", 0) + parts["program"] + passing


def most_that_fits(config: GPTConfig, setting: Setting, room: float, most: int = 2**20) -> int:
    """The largest micro-batch, 0 to most, whose predicted peak is within the room in bytes."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = peak(memory_parts(config, middle, setting), setting.accumulates) <= room
        low, high = (middle, high) if fits else (low, middle)
    return low


def micro_batch_that_fits(config: GPTConfig, memory_bytes: int, setting: Setting, most: int) -> int:
    """The largest power of two, at most `most`, whose predicted peak is within 80% of memory_bytes; at least 1."""
    found = most_that_fits(config, setting, 0.8 * memory_bytes, most)
    return 1 << max(1, found).bit_length() - 1


def on_cards(config: GPTConfig, setting: Setting) -> dict[int, int]:
    """The largest micro-batch for each of CARDS_GIB, 0 where not even one sequence fits."""
    return {card: most_that_fits(config, setting, (1 - MARGIN) * card * GIB - CUDA_CONTEXT) for card in CARDS_GIB}


def describe(parts: dict[str, int], accumulates: bool) -> str:
    """'4.1 GiB predicted: weights 0.5, optimizer 1.0, activations 1.2, ...'; MiB below 1 GiB.

    What does not exist at the peak stands behind 'later': the shares before it add up to the total.
    """
    total = peak(parts, accumulates)
    unit, scale = ("GiB", GIB) if total >= GIB else ("MiB", GIB / 1024)
    passing = ["activations", "logits"]
    first = parts["activations"] + parts["logits"] >= parts["gradients"]
    gone = [] if accumulates else ["gradients"] if first else passing
    words = {name: f"{name} {num_bytes / scale:.1f}" for name, num_bytes in parts.items()}
    shares = ", ".join(words[name] for name in parts if name not in gone)
    at_another_time = f"; at another time {', '.join(words[name] for name in gone)}" if gone else ""
    return f"{total / scale:.1f} {unit} predicted: {shares}{at_another_time}"


# ---------------------------------------------------------------- the micro-batch that really fits



def divisors(number: int, most: int) -> list[int]:
    """Those of number that are at most `most`, ascending; 1 at least."""
    return [d for d in range(1, max(1, min(number, most)) + 1) if number % d == 0]


def largest_that_fits(candidates: Sequence[int], first: int, fits: Callable[[int], bool]) -> int | None:
    """The largest candidate that fits, None if none does; found from the first guess by doubling, then bisecting.

    Candidates ascend, and whatever is smaller than one that fits fits too.
    """
    good, bad, at, stride = -1, len(candidates), candidates.index(first), 1
    while bad - good > 1:
        good, bad = (at, bad) if fits(candidates[at]) else (good, at)
        if bad == len(candidates):
            at = min(good + stride, bad - 1)
        elif good == -1:
            at = max(bad - stride, 0)
        else:
            at = (good + bad) // 2
        stride *= 2
    return candidates[good] if good >= 0 else None


def find(candidates: Sequence[int], first: int, room: int, key: str, measure: Callable[[int], int | None],
         ) -> tuple[int | None, int]:
    """The largest candidate that holds at most room bytes, and what it holds; (None, 0) if there is none.

    What measure(candidate) finds, None for too many, is remembered between runs under the key.
    """
    if not candidates:
        return None, 0
    known = remembered()
    peaks = known.setdefault(key, {})

    def fits(batch_size: int) -> bool:
        if str(batch_size) not in peaks:
            held = measure(batch_size)
            peaks[str(batch_size)] = room + 1 if held is None else held  # where more is free it is tried again
            remember(known)
        return peaks[str(batch_size)] <= room

    found = largest_that_fits(candidates, first, fits)
    return found, peaks[str(found)] if found else 0


def peak_in_child(batch_size: int, accumulation: int, argv: Sequence[str], stop: Callable[[], bool]) -> int | None:
    """What train.probe prints in a process of its own, where running out of memory harms nobody; None if it does.

    Raises UserError (exit 5) if it fails otherwise.
    """
    program = ("import train; from common.errors import guard; "
               f"guard(lambda argv: train.probe({batch_size}, {accumulation}, argv))")
    folders = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    with subprocess.Popen([sys.executable, "-c", program, *argv], env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        with contextlib.suppress(OSError):  # Linux: if a process has to die for want of memory, then the child
            Path(f"/proc/{child.pid}/oom_score_adj").write_text("1000")
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                printed, errors = child.communicate(timeout=0.5)
                break
            if stop():
                child.kill()
    if child.returncode in (OUT_OF_MEMORY, -9):
        return None
    last = (printed.split() or [""])[-1]
    if child.returncode == 0 and last.isdigit():
        return int(last)
    reason = (errors.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    raise UserError(Exit.MACHINE, f"--batch_size auto: the trial with {batch_size} failed: {printable(reason)[:300]}. "
                                  "Give a number.")


def cache_file() -> Path:
    """Where measured peaks are kept between runs."""
    return cache_folder() / "peaks.json"


def remembered() -> dict[str, dict[str, int]]:
    """The measured peaks, in bytes by setting and micro-batch; a file that cannot be read holds none."""
    try:
        found = json.loads(cache_file().read_text(encoding="utf-8"))
        return {str(key): {str(int(n)): int(held) for n, held in peaks.items()} for key, peaks in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def remember(peaks: dict[str, dict[str, int]]) -> None:
    """Keeps measured peaks for later runs; a folder that cannot be written costs the time to measure again."""
    with contextlib.suppress(OSError):
        cache_file().parent.mkdir(parents=True, exist_ok=True)
        write_whole(cache_file(), json.dumps(peaks))


# ---------------------------------------------------------------- money



def verdict(budget: float, cost: float, steps: int, epochs: float) -> str:
    """Whether the whole run fits the budget, in words, and what the budget would buy if it does not."""
    if cost <= budget:
        return f"fits: {cost:.2f} of {budget:.2f}, {budget - cost:.2f} left"
    share = budget / cost
    return (f"does not fit: {cost:.2f} of {budget:.2f}; it would buy {int(steps * share):,} of {steps:,} steps, "
            f"{epochs * share:.3g} epochs")
