"""The micro-batch: a divisor of a step's sequences that fits the memory. The formula plans it, halving corrects it."""

import contextlib
import json
from pathlib import Path

from gpt.architectures.table import ModelConfig
from gpt.checkpoint.stored import Stored
from gpt.common.errors import Exit, UserError
from gpt.common.files import write_whole
from gpt.common.progress import Progress
from gpt.common.words import printable, several
from gpt.machine.memory import available_ram
from gpt.machine.runtime import Runtime
from gpt.planning.memory import MARGIN, MemorySetting, largest_micro_batch
from gpt.planning.recipe import Recipe, had_step_of

FILE = "out_of_memory.json"  # in the output folder: the number of sequences that did not fit
MOST_TOKENS = 65_536  # of a micro-batch of --batch_size auto; a card is busy with fewer


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


def largest_batch_size(recipe: Recipe, config: ModelConfig, setting: MemorySetting, runtime: Runtime,
                       stored: Stored) -> int:
    """The micro-batch that --batch_size auto begins with: the largest that is predicted to fit.

    It begins high on a GPU, without a margin, as a step that runs out of memory is repeated with half of
    it. On a processor it keeps the margin: running out of RAM would hurt other programs. A resumed run
    keeps its micro-batch. Raises UserError (exit 5) where not even one sequence fits.
    """
    settings = stored.settings
    if had_step_of(settings, recipe.samples_per_step):
        return settings["batch_size"]
    backend, processes = runtime.machine.backend, runtime.processes
    if backend.has_own_memory:
        room = float(backend.free_memory() or 0)
    else:
        room = (1 - MARGIN) * (available_ram() // processes.local_world_size)
    fitting = largest_micro_batch(config, setting, room)
    if not fitting:
        raise UserError(Exit.MACHINE, f"--batch_size auto: not even one sequence of {config.seq_length:,} tokens fits "
                                      "the memory. Give a smaller --seq_length or --model_size.")
    samples = recipe.samples_per_step // processes.world_size
    batch_size = divisors(samples, min(fitting, max(1, MOST_TOKENS // config.seq_length)))[-1]
    runtime.out.say(f"batch_size  {batch_size} x {several(samples // batch_size, 'micro-batch')}: the largest that is "
                    "predicted to fit")
    return batch_size


# ---------------------------------------------------------------- out of memory in one of several processes


def remember_too_many(output_dir: Path, num_sequences: int) -> None:
    """Records in the output folder, if it is writable, that this number of sequences did not fit.

    A single process repeats a step that did not fit. One of several cannot, as the others wait for it in a
    collective operation: all end, start again, and take smaller micro-batches.
    """
    with contextlib.suppress(OSError):
        output_dir.mkdir(parents=True, exist_ok=True)
        write_whole(output_dir / FILE, json.dumps({"sequences": num_sequences}))


def after_out_of_memory(output_dir: Path, recipe: Recipe, out: Progress) -> int:
    """The recipe's micro-batch, or a divisor of at most half the number that did not fit in this folder's last run."""
    too_many = recipe.batch_size + 1
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        too_many = max(2, int(json.loads((output_dir / FILE).read_text(encoding="utf-8"))["sequences"]))
    if too_many > recipe.batch_size:
        return recipe.batch_size
    batch_size = divisors(recipe.samples_per_step, too_many // 2)[-1]
    out.say(f"batch_size  {batch_size} x {several(recipe.samples_per_step // batch_size, 'micro-batch')}: {too_many} "
            f"were out of memory (delete {FILE} in {printable(output_dir)} to try again)")
    return batch_size
