"""The micro-batch that really fits: found by trying (--batch_size auto), or smaller than what ran out of memory.

Each trial is two steps in a child process (setup.py), where running out of memory harms nobody. A resumed run keeps the
micro-batch that was found.
"""

import contextlib
import json
import math
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from gpt.architectures.table import ModelConfig
from gpt.common.children import PROGRAM, ask
from gpt.common.errors import Exit, UserError
from gpt.common.files import write_whole
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.common.words import printable, several, size
from gpt.machine.memory import available_ram
from gpt.optimizers.build import state_bytes
from gpt.planning.early import TRIAL
from gpt.planning.memory import MARGIN, MemorySetting, largest_micro_batch
from gpt.planning.recipe import Recipe
from gpt.training.state import Runtime
from model import Options

OUT_OF_MEMORY = 75  # the exit code by which a trial says so
FILE = "out_of_memory.json"  # in the output folder: how many sequences did not fit
MOST_TOKENS = 65_536  # of a micro-batch that is searched for; a card is busy long before


def divisors(number: int, most: int) -> list[int]:
    """The divisors of number that are at most `most`, ascending; at least 1 is among them."""
    return [d for d in range(1, max(1, min(number, most)) + 1) if number % d == 0]


def sequences_at_a_time(recipe: Recipe, world_size: int) -> int:
    """The micro-batch of each process: at most the recipe's, and a divisor of its share of a step's sequences.

    Raises UserError (exit 2) where the processes do not divide the step.
    """
    each, rest = divmod(recipe.samples_per_step, world_size)
    if rest or not each:
        raise UserError(Exit.FLAGS, f"a step has {recipe.samples_per_step:,} sequences, which {world_size:,} processes "
                                    "cannot share evenly. Give --batch_size and --gradient_accumulation_steps whose "
                                    f"product is a multiple of {world_size:,}.")
    return divisors(each, recipe.batch_size)[-1]


def largest_that_fits(candidates: Sequence[int], first: int, fits: Callable[[int], bool]) -> int | None:
    """The largest candidate that fits, None if none does; found from the first guess, which is a good one, one by one.

    Candidates ascend, and whatever is smaller than one that fits fits too.
    """
    at = candidates.index(first)
    if not fits(first):
        return next(filter(fits, reversed(candidates[:at])), None)
    while at + 1 < len(candidates) and fits(candidates[at + 1]):
        at += 1
    return candidates[at]


def find_micro_batch(args: Namespace, config: ModelConfig, options: Options, recipe: Recipe, runtime: Runtime,
                     argv: Sequence[str]) -> int:
    """The largest micro-batch that leaves MARGIN of the memory free.

    It divides the samples of a step, of which each process has its share. A trial is one process that has the whole
    model, and its share of a machine's RAM. argv is the command line of the run. Raises UserError (exit 5) where not
    even one sequence fits, SystemExit after a signal.
    """
    machine, out, processes = runtime.machine, runtime.out, runtime.processes
    samples = recipe.samples_per_step // processes.world_size
    setting = MemorySetting.of(machine, options, samples > 1, True, state_bytes(recipe.optimizer, config)).beside(
        args.teacher)
    free = machine.backend.free_memory()
    room = int((1 - MARGIN) * (available_ram() // processes.local_world_size if free is None else free))
    candidates = divisors(samples, max(1, MOST_TOKENS // config.seq_length))
    expected = largest_micro_batch(config, setting, room)
    first = divisors(samples, min(expected, candidates[-1]))[-1]
    if not machine.backend.has_own_memory:  # more than is expected to fit could take other processes down with it
        candidates = [n for n in candidates if n <= expected]

    decided = [*argv, f"--optimizer={recipe.optimizer}", f"--dropout={config.dropout}",
               "--no-use_amp" if machine.precision == "fp32" else "--use_amp"]
    if args.init_from:  # where they are now, if they came from the hub
        decided.append(f"--init_from={args.init_from}")
    if machine.on_gpu:
        decided.append("--use_gpu")  # a trial that the GPU refuses must not measure the CPU
    held: dict[int, float] = {}

    def fits(batch_size: int) -> bool:
        with out.phase(f"trying --batch_size {batch_size}"):
            trial = [TRIAL, str(batch_size), str(min(2, samples // batch_size)), *decided]
            held[batch_size] = run_trial([sys.executable, str(PROGRAM / "train.py"), *trial], batch_size,
                                         runtime.signals)
        return held[batch_size] <= room

    found = largest_that_fits(candidates, first, fits) if candidates else None
    if found is None:
        raise UserError(Exit.MACHINE, f"--batch_size auto: not even one sequence of {config.seq_length:,} tokens fits "
                                      f"{size(room)}. Take a smaller --seq_length or --model_size.")
    out.say(f"batch_size  {found} x {several(samples // found, 'micro-batch')} holds {size(held[found])} of "
            f"{size(room)} ({len(held)} tried)")
    return found


def run_trial(command: Sequence[str], batch_size: int, signals: Signals) -> float:
    """The bytes that the command prints; infinite if it ran out of memory or was killed.

    Raises UserError (exit 5) if it fails otherwise, SystemExit after a signal.
    """
    answer = ask(command, signals)
    if answer.code in (OUT_OF_MEMORY, -9):
        return math.inf
    last = (answer.printed.split() or [""])[-1]
    if answer.code == 0 and last.isdigit():
        return int(last)
    raise UserError(Exit.MACHINE, f"--batch_size auto: trying {batch_size} failed: {answer.reason}. Give a number.")


# ---------------------------------------------------------------- after memory ran out in one of several processes


def remember_too_many(output_dir: Path, too_many: int) -> None:
    """Keeps that so many sequences at a time did not fit; in a folder that cannot be written it is not kept.

    One process repeats a step that did not fit. Of several the others wait by then for what the one without memory
    will never send: all start again, with smaller micro-batches.
    """
    with contextlib.suppress(OSError):
        output_dir.mkdir(parents=True, exist_ok=True)
        write_whole(output_dir / FILE, json.dumps({"sequences": too_many}))


def after_out_of_memory(output_dir: Path, recipe: Recipe, out: Progress) -> int:
    """The recipe's micro-batch, or where it did not fit when a run in this folder ended, a divisor that is half of it.
    """
    too_many = recipe.batch_size + 1
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        too_many = max(2, int(json.loads((output_dir / FILE).read_text(encoding="utf-8"))["sequences"]))
    if too_many > recipe.batch_size:
        return recipe.batch_size
    found = divisors(recipe.samples_per_step, too_many // 2)[-1]
    out.say(f"batch_size  {found} x {several(recipe.samples_per_step // found, 'micro-batch')}: {too_many} were out of "
            f"memory (delete {FILE} in {printable(output_dir)} to try again)")
    return found
