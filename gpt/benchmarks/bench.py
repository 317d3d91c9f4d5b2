"""Times train.py on this machine: the ladder of its speed-ups, or its step beside nanoGPT's.

    python -m gpt.benchmarks.bench                                           the ladder, some minutes on a CPU
    python -m gpt.benchmarks.bench --shape B --use_gpu --json ladder.json    on a GPU
    python -m gpt.benchmarks.bench --rungs 0,4,6                             three of its rungs
    python -m gpt.benchmarks.bench --peer ~/nanoGPT                          a step of its train.py beside ours

The first rung is the naive train.py: Python loops for batches, plain attention, fp32, eager. Each rung
above adds one speed-up. train.py itself times each of them, in a process of its own
(gpt/benchmarks/ladder.py).
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from gpt.benchmarks.ladder import NUM_RUNGS, SEED, SHAPES, Bench, Shape, time_ladder
from gpt.common import flags
from gpt.common.ending import guard
from gpt.common.errors import Exit, require
from gpt.common.names import METADATA
from gpt.common.outputs import STDOUT, Output
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.machine.environment import set_up_environment

OUTPUT_MARK = b'{\n "argv": '  # begins each file of --json
SIZES = ("tiny", "mini", "gpt2_small", "gpt2_medium", "gpt2_large", "gpt2_xl")


# ---------------------------------------------------------------- flags


def parse_shape(text: str) -> Shape:
    """The Shape that 'A' or 'tiny,64,8,512' names. Raises ValueError, also for an odd batch."""
    if text in SHAPES:
        return SHAPES[text]
    model_size, *numbers = text.split(",")
    if model_size not in SIZES or len(numbers) != 3:
        raise ValueError(text)
    shape = Shape(model_size, *map(int, numbers))
    if min(shape.seq_length, shape.batch_size, shape.vocab_size - 1) < 1 or shape.batch_size % 2:
        raise ValueError(text)
    return shape


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) with every problem found."""
    parser = flags.Parser("-m gpt.benchmarks.bench", "Times train.py's levers, or a step beside nanoGPT's.")
    g = parser.add_argument_group("what is timed: the ladder, or")
    rungs = flags.ValueKind(lambda value: tuple(sorted(map(int, value.split(",")))),
                            f"numbers from 0 to {NUM_RUNGS - 1} with commas between", "N,N,...",
                            lambda numbers: 0 <= numbers[0] <= numbers[-1] < NUM_RUNGS)
    g.add_argument("--rungs", type=rungs, help="rungs of the ladder (default: all, the tuned one on a GPU "
                                               "only)")
    g.add_argument("--peer", type=flags.text("DIR"),
                   help="nanoGPT's folder: a step of it beside ours (default: none)")
    g = parser.add_argument_group("on what")
    shape = flags.ValueKind(parse_shape, f"{', '.join(SHAPES)}, or SIZE,T,B,IDS, such as mini,256,8,8192, "
                            "with an even B", "SHAPE")
    g.add_argument("--shape", type=shape, help="mini: T 256, B 8, 8,192 ids; A, B: GPT-2 Small, T 512, B "
                   "32, 32,000 ids, or T 1024, B 16, 50,304 ids; or SIZE,T,B,IDS (default: mini)")
    g.add_argument("--steps", type=flags.whole(1, 100_000),
                   help="steps that are timed (default: 50 on a GPU, 12 on a CPU)")
    g.add_argument("--use_gpu", action=flags.Switch, help="require CUDA, exit 5 when there is none "
                   "(default: a GPU when there is one)")
    g = parser.add_argument_group("output")
    g.add_argument("--json", type=flags.text(), help="file for all figures, flags and losses (default: none)")
    return parser.read(argv, lambda args: [])


# ---------------------------------------------------------------- the command, in the order of events


def set_up_bench(args: argparse.Namespace, out: Progress, signals: Signals, folder: Path) -> Bench:
    """Chooses the machine, prints it, and writes random tokens to the folder. Raises UserError (exit 5)."""
    from gpt.machine import device

    shape = args.shape or SHAPES["mini"]
    with out.phase("looking at the machine"):
        machine = device.choose(args.use_gpu, True, "auto", True)
        steps, warmup = (50, 20) if machine.on_gpu else (12, 4)
        steps = args.steps or steps
        synthesise(folder, shape.vocab_size, (steps + warmup + 2) * shape.tokens_per_step)
    about = "\n".join(device.describe(machine, "")[::4])  # the device and the software
    out.say(about)
    return Bench(out, signals, folder, shape, machine, steps, warmup,
                 {"machine": about, "shape": asdict(shape), "steps": steps, "warmup": warmup})


def synthesise(folder: Path, vocab_size: int, num_tokens: int) -> None:
    """Writes metadata.json and train.bin to the folder: random tokens, with frequencies by Zipf's law."""
    import numpy as np

    from gpt.tokens.layouts import native_dtype
    from gpt.tokens.metadata import METADATA_FORMAT, METADATA_VERSION

    dtype = native_dtype(vocab_size)
    # Log-uniform: the frequency of an id is proportional to 1 / rank.
    tokens = vocab_size ** np.random.default_rng(SEED).random(num_tokens) - 1
    tokens.astype(np.dtype(dtype).newbyteorder("<")).tofile(folder / "train.bin")
    fields = {"format": METADATA_FORMAT, "version": METADATA_VERSION, "vocab_size": vocab_size, "dtype": dtype,
              "splits": {"train": {"tokens": num_tokens}}}
    (folder / METADATA).write_text(json.dumps(fields))


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code, 1 if a rung failed or its losses differ.

    The word naive runs a lower rung of the ladder in this process, with the rest as flags of train.py.
    """
    if argv[:1] == ["naive"]:  # a lower rung's process
        from gpt.benchmarks.naive import train_naively

        return train_naively(argv[1].split(","), argv[2:])
    args = read_flags(argv)
    set_up_environment()
    require("torch", "numpy", "tokenizers", "tqdm", "safetensors")
    file = Output("--json", args.json, OUTPUT_MARK) if args.json else None
    with (Progress(sys.stderr if args.json in STDOUT else sys.stdout) as out, Signals(out.note) as signals,
          tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder):
        bench = set_up_bench(args, out, signals, Path(folder))
        try:
            if args.peer is None:
                return int(not time_ladder(bench, args.rungs))
            from gpt.benchmarks.peers import time_step

            time_step(bench, args.peer)
            return Exit.DONE
        finally:
            if file:  # the figures from before a signal or an error too
                file.write(json.dumps({"argv": argv, **bench.figures}, indent=1).encode() + b"\n")


if __name__ == "__main__":
    guard(main)
