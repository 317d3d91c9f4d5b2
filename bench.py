"""How fast is this machine, and what makes it so? Times the ladder, one rung at a time, on this machine in one run.

    python bench.py                                                     the ladder on a processor, some minutes
    python bench.py --shape B --use_gpu --json ladder.json --png ladder.png
    python bench.py --rungs 0,5,8                                       three of its rungs
    python bench.py --peer nanogpt --peer_dir ~/nanoGPT                 another's model beside ours, in turns
    python bench.py --loader                                            a batch from memory and from a file
    python bench.py --saving --model_size gpt2_small --vocab_size 50257 a checkpoint, and how long training waits for it
    python bench.py --quality --data_dir data --model_size tiny         what a model learns, recipe by recipe
    python bench.py --scaling --shape B --use_gpu                       1, 2, 4, ... processes, each on a GPU

The first rung is train.py with all that can be naive: Python loops for batches, plain attention, fp32, eager. Each rung
above it adds one lever. All are timed by train.py itself, each in a process of its own (benchmarks/ladder.py). This
process only starts the others: it never imports torch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.answers import Answer, Done, LoaderTimes, PeerRun, Probe, Request, SavingTimes
from benchmarks.ladder import (
    ANY_PRECISION,
    NUM_RUNGS,
    SHAPES,
    Figures,
    Losses,
    Result,
    Rung,
    RungFailed,
    Setting,
    Shape,
    compare,
    ladder,
    loss_difference,
    run_rung,
    train_flags,
)
from benchmarks.processes import Children
from benchmarks.quality import compare_recipes
from benchmarks.recipes import own_recipes, recipe_names
from benchmarks.scaling import compare_processes, process_numbers, ways_of_sharing
from common import flags
from common.errors import Exit, UserError, guard, require
from common.outputs import PICTURES, Output, requested
from common.progress import Progress
from common.ranks import speaks
from common.signals import NOTHING, USUALLY_SECONDS, Signals, Stopped
from common.words import printable, several, size
from tokens.metadata import Metadata, read_metadata

SLOW_EXIT = 1  # a rung failed, or its losses are not the first rung's
LIMIT_MINUTES = 15.0
LOADER_TOKENS = 10_000_000
LOADER_SEQ_LENGTH = 512
CHILDREN = ("naive", "corpus", "probe", "tokens", "peer", "loader", "material", "saving", "sharing")
OF_QUALITY = ("recipes", "own_recipes", "seeds", "tokens", "quality_dir", "tune")
OF_SCALING = ("processes", "ways")
OF_BOTH = ("timing_turns", "train_flags")


# ---------------------------------------------------------------- flags


def rung_numbers() -> flags.ValueKind:
    """'0,1,5' as (0, 1, 5)."""
    last = NUM_RUNGS - 1

    def parse(text: str) -> tuple[int, ...]:
        numbers = tuple(sorted({int(number) for number in text.split(",")}))
        if not 0 <= numbers[0] <= numbers[-1] <= last:
            raise ValueError(text)
        return numbers

    return flags.ValueKind(parse, f"numbers from 0 to {last} with commas between", "N,N,...")


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) with every problem found."""
    whole, text, one_of = flags.whole, flags.text, flags.one_of
    parser = flags.Parser("bench.py", "Times train.py's levers one by one, or a peer's model beside ours; or "
                          "compares what recipes learn, or what several processes gain.")
    g = parser.group("what is timed: the ladder, or")
    g.flag("--rungs", rung_numbers(), None, "rungs of the ladder; a peer stands beside the last", "all")
    g.flag("--peer", one_of("nanogpt", "transformers"), None, "its model, compiled, beside our best rung", "none")
    g.flag("--peer_dir", text("DIR"), None, "nanoGPT's folder, with its model.py", "none")
    g.flag("--peer_turns", whole(1, 100), 3, "times that ours and the peer's are run, one after the other")
    g.switch("--loader", False, "a batch of 64 x 512 from RAM and from a file, beside nanoGPT's get_batch")
    g.switch("--saving", False, "a checkpoint of the shape's model, in the current folder, beside save_file "
             "and a raw write of the same bytes")
    g.switch("--quality", False, "the loss that recipes reach on the tokens of --data_dir, each with several seeds")
    g.switch("--scaling", False, "several processes that train one model, by each way of sharing it: speed, memory, "
             "what is lost to their messages, and whether their losses are one process's")
    g = parser.group("the shape")
    g.flag("--shape", one_of(*SHAPES), "mini", "mini: 8,192 ids, T 256, B 8; A: GPT-2 Small, 32,000 ids, head untied, "
           "T 512, B 32; B: GPT-2 Small, 50,304 ids, T 1024, B 16; the next four override")
    g.flag("--model_size", one_of("tiny", "mini", "gpt2_small", "gpt2_medium", "gpt2_large", "gpt2_xl"), None,
           "as in train.py", "the shape's")
    g.flag("--vocab_size", whole(2, 2**24), None, "ids", "the shape's")
    g.flag("--seq_length", whole(1, 2**20), None, "tokens of a sequence, T", "the shape's")
    g.flag("--batch_size", whole(2, 2**20), None, "sequences of a step, B, with --scaling of each process; even: the "
           "first rungs take two halves", "the shape's")
    g.flag("--data_dir", text("DIR"), None, "pretokenize.py's output folder", "tokens made up for the purpose")
    g = parser.group("of --quality")
    g.flag("--recipes", recipe_names(), None, "recipes in docs/quality.md, and of --own_recipes", "all")
    g.flag("--own_recipes", own_recipes(), None, "more recipes, 'NAME: FLAGS; NAME: FLAGS', with flags of train.py, "
           "before which another recipe's name may stand", "none")
    g.flag("--seeds", whole(1, 1000), 2, "runs of each recipe, each with a seed of its own")
    g.flag("--tokens", flags.quantity(1, 10**15), None, "tokens of a run, such as 20M", "20 per parameter")
    g.flag("--quality_dir", text("DIR"), "quality", "folder of the runs: what is complete there is not repeated, what "
           "was interrupted is resumed, and several commands may share it")
    g.switch("--tune", False, "measure the other half of the validation tokens, on which recipes may be chosen")
    g = parser.group("of --scaling")
    g.flag("--processes", process_numbers(), None, "numbers of processes, all on this machine; 1 is always one of them",
           "powers of two up to the number of GPUs, on a CPU 1,2")
    g.flag("--ways", ways_of_sharing(), None, "ways of sharing a model, as in train.py's --model_parallel", "ddp,fsdp")
    g = parser.group("of --quality and --scaling")
    g.flag("--timing_turns", whole(0, 100), 3, "times that the steps of all recipes, or numbers of processes, are "
           "timed, one after the other; 0: not")
    g.flag("--train_flags", text("'FLAGS'"), None, "flags of train.py for all runs: --train_flags='--compile "
           "--use_amp'", "none")
    g = parser.group("how")
    g.flag("--steps", whole(1, 100_000), None, "steps that are timed", "50 on a GPU, 12 on a CPU")
    g.flag("--warmup", whole(1, 100_000), None, "steps before those", "20 on a GPU, 4 on a CPU")
    g.switch("--use_gpu", None, "require CUDA, exit 5 when there is none", "a GPU when there is one")
    g.flag("--precision", one_of("bf16", "fp32"), None, "of the upper rungs, and of steps timed by --scaling", "bf16 "
           "where it is native")
    g.switch("--tuned", None, "rung 9, whose compiling takes minutes", "on a GPU only")
    g.flag("--limit_minutes", flags.real(0, 1e6, above=True, unit="MINUTES"), None, "after which a rung is given up",
           "15, none with --quality")
    g = parser.group("output")
    g.flag("--json", text(), None, "file for all figures, flags and losses", "none")
    g.flag("--png", text(), None, "picture to write, .png, .svg or .pdf; needs matplotlib", "none")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """What cannot be together, one line each."""
    other, is_ladder = args.peer is not None or args.loader or args.saving, not (args.quality or args.scaling)
    wrong = {
        "--loader: not with --peer": args.loader and args.peer is not None,
        "--saving: not with --peer or --loader": args.saving and (args.loader or args.peer is not None),
        "--quality: not with --peer, --loader or --saving": args.quality and other,
        "--scaling: not with --peer, --loader, --saving or --quality": args.scaling and (other or args.quality),
        "--timing_turns 0: --scaling has nothing else": args.scaling and not args.timing_turns,
        "--quality: needs --data_dir, a folder of pretokenize.py": args.quality and args.data_dir is None,
        "--peer nanogpt: needs --peer_dir, nanoGPT's folder": args.peer == "nanogpt" and args.peer_dir is None,
        "--peer_dir: has no effect without --peer nanogpt": args.peer != "nanogpt" and args.peer_dir is not None,
        "--png: is a picture of the ladder, not of --peer, --loader or --saving": args.png is not None and other,
        "--batch_size: is odd; the first rungs take it in two halves": (args.batch_size or 0) % 2 and is_ladder,
        "--vocab_size: comes from --data_dir": args.vocab_size is not None and args.data_dir is not None,
    }
    problems = [problem for problem, is_wrong in wrong.items() if is_wrong]
    for names, has_effect, needed in ((OF_QUALITY, args.quality, "--quality"), (OF_SCALING, args.scaling, "--scaling"),
                                      (OF_BOTH, args.quality or args.scaling, "--quality or --scaling")):
        problems += [f"--{name}: has no effect without {needed}" for name in names
                     if name in args.config.given and not has_effect]
    if args.png is not None and not args.png.lower().endswith(PICTURES):
        problems.append(f"--png {printable(args.png)}: must end in {', '.join(PICTURES)}")
    return problems


# ---------------------------------------------------------------- the ladder


@dataclass(frozen=True)
class Bench:
    """What every benchmark works with: where it prints, how it starts children, and what its figures are about."""

    out: Progress
    children: Children
    setting: Setting
    record: report.Record


def chosen(args: argparse.Namespace, setting: Setting) -> list[Rung]:
    """The rungs that --rungs asks for, all by default."""
    rungs = ladder(setting.shape, setting.machine, args.tuned)
    return [rung for rung in rungs if args.rungs is None or rung.number in args.rungs]


def time_ladder(args: argparse.Namespace, bench: Bench, png: Output | None = None) -> int:
    """Runs every rung in turn, with a line for each; SLOW_EXIT if one failed or computed something else."""
    results: list[Result] = []
    records: list[dict[str, Any]] = []
    columns = bench.out.columns
    bench.out.say(report.header(columns))
    for rung in chosen(args, bench.setting):
        result = time_rung(bench, rung, results)
        results.append(result)
        bench.out.say(report.row(result, columns))
        records.append(result.as_json(train_flags(bench.setting, rung, bench.children.folder)))
        bench.record.keep(rungs=records)

    for line in report.footer(results):
        bench.out.say(line)
    if png is not None:
        shape = bench.setting.shape
        title = f"{bench.setting.machine.name}, {shape.model_size}, {shape.tokens_per_step:,} tokens a step"
        png.write(report.picture(results, title, png.ending))
    return Exit.DONE if all(result.is_good for result in results) else SLOW_EXIT


def time_rung(bench: Bench, rung: Rung, earlier: Sequence[Result]) -> Result:
    """Runs a rung, unless it means nothing here, and compares it with the earlier ones."""
    if rung.why_not:
        return Result(rung, reason=rung.why_not)
    with bench.out.phase(f"rung {rung.number}, {rung.name}"):
        try:
            # A cache of its own: each rung compiles from cold, and its compile time is its own.
            run = run_rung(bench.setting, rung, bench.children, f"cache-{rung.number}")
        except RungFailed as error:
            return Result(rung, reason=str(error))
    return Result(rung, run=run, comparison=compare(rung, run, earlier))


# ---------------------------------------------------------------- beside a peer


@dataclass(frozen=True)
class Turn:
    """One run of ours or of a peer's, as far as the two can be compared."""

    figures: Figures
    losses: Losses
    peak_memory_bytes: int
    notes: str
    fields: dict[str, Any]  # for --json


def time_peer(args: argparse.Namespace, bench: Bench) -> int:
    """Runs our best rung and the peer's model in turns, each in its own process, on the same batches and weights."""
    who = args.peer
    best = best_rung(args, bench.setting)
    bench.out.say(f"ours      rung {best.number}, {best.name}, {best.precision}")

    ours: list[Turn] = []
    theirs: list[Turn] = []
    turns = {"ours": ours, who: theirs}
    for number in range(1, args.peer_turns + 1):
        with bench.out.phase(f"turn {number}, ours"):
            ours.append(run_ours(bench, best))
        with bench.out.phase(f"turn {number}, {who}"):
            theirs.append(run_peer(args, bench, best))
        for name, of in turns.items():
            last = of[-1]
            bench.out.say(f"turn {number}    {name:<13}{last.figures.ms_median:>10,.1f} ms, p90 "
                          f"{last.figures.ms_p90:,.1f}, {size(last.peak_memory_bytes)}")
        bench.record.keep(peer=who, turns=as_json(turns))
    return compare_with_peer(who, turns, bench)


def best_rung(args: argparse.Namespace, setting: Setting) -> Rung:
    """The last of the chosen rungs, of those that train.py's defaults are like unless --rungs asks for another.

    A peer computes without an FP8 head, and the loss kernel is no default until it has been timed.
    """
    rungs = [rung for rung in chosen(args, setting) if not rung.why_not]
    if args.rungs is None:
        rungs = [rung for rung in rungs if not {"--fp8_head", "--loss_kernel"} & set(rung.flags)]
    if not rungs:
        raise UserError(Exit.FLAGS, "--rungs: none of these rungs can be run on this machine. Drop the flag.")
    return rungs[-1]


def run_ours(bench: Bench, rung: Rung) -> Turn:
    """One run of our rung. Raises UserError (exit 5) if it fails."""
    try:
        run = run_rung(bench.setting, rung, bench.children, "cache-ours")
    except RungFailed as error:
        raise UserError(Exit.MACHINE, f"our rung {rung.number} failed: {error}") from error
    fields = Result(rung, run=run).as_json(train_flags(bench.setting, rung, bench.children.folder))
    return Turn(run.figures, run.losses, run.peak_memory_bytes, "train.py", fields)


def run_peer(args: argparse.Namespace, bench: Bench, rung: Rung) -> Turn:
    """One run of the peer's model, in the precision of our rung. It waits for the device as often as ours does."""
    setting = bench.setting
    run = bench.children.ask(
        PeerRun, "peer", "cache-peer", who=args.peer, peer_dir=args.peer_dir, data_dir=setting.data_dir,
        shape=asdict(setting.shape), num_steps=setting.warmup + setting.steps, every=rung.log_interval,
        precision=rung.precision, on_gpu=setting.machine.on_gpu)
    figures = Figures.of(setting, rung.precision, run.seconds[setting.warmup:])
    losses: Losses = dict(enumerate(run.losses, 1))
    return Turn(figures, losses, run.peak_memory_bytes, run.notes, {**asdict(run), "losses": losses, **asdict(figures)})


def as_json(turns: dict[str, list[Turn]]) -> dict[str, list[dict[str, Any]]]:
    """The fields of every turn, for --json."""
    return {name: [turn.fields for turn in of] for name, of in turns.items()}


def compare_with_peer(who: str, turns: dict[str, list[Turn]], bench: Bench) -> int:
    """Prints the medians of all turns and their ratios; SLOW_EXIT if the losses differ by more than rounding."""
    ours, theirs = turns["ours"], turns[who]
    ms = {name: statistics.median(turn.figures.ms_median for turn in of) for name, of in turns.items()}
    memory = {name: statistics.median(turn.peak_memory_bytes for turn in of) for name, of in turns.items()}
    difference = loss_difference(ours[0].losses, theirs[0].losses)
    speedup = ms[who] / ms["ours"]
    memory_ratio = memory["ours"] / memory[who]
    medians = {name: {"ms_median": ms[name], "peak_memory_bytes": memory[name]} for name in turns}
    bench.record.keep(peer=who, turns=as_json(turns), medians=medians, speedup=speedup, loss_difference=difference,
                      memory_ratio=memory_ratio)

    first_steps = list(ours[0].losses)[:4]
    for name, of in turns.items():
        first = ", ".join(f"{of[0].losses[step]:.4f}" for step in first_steps)
        bench.out.say(f"{name:<13} {ms[name]:,.1f} ms, {size(memory[name])}; first losses {first}; {of[0].notes}")
    bench.out.say(f"ratio         {speedup:.3f}x the speed of {who}, {memory_ratio:.3f}x its memory; losses differ by "
                  f"{difference:.0e} at most; medians of {several(len(ours), 'turn')}")
    return Exit.DONE if difference <= ANY_PRECISION["bf16"] else SLOW_EXIT


# ---------------------------------------------------------------- loading and saving


def time_loader(bench: Bench) -> int:
    """Microseconds of a batch, ours and by nanoGPT's formula."""
    with bench.out.phase("loading batches"):
        found = bench.children.ask(LoaderTimes, "loader", data_dir=bench.setting.data_dir,
                                   seq_length=LOADER_SEQ_LENGTH)
    bench.record.keep(loader=asdict(found))
    bench.out.say(f"a batch of 64 x {LOADER_SEQ_LENGTH}, inputs and targets, in turns, medians of {found.turns} "
                  f"turns of {found.batches} batches")
    theirs = found.microseconds["get_batch"]
    for name, microseconds in found.microseconds.items():
        bench.out.say(f"{name:<24}{microseconds:>9,.1f} us{theirs / microseconds:>8.1f}x")
    return Exit.DONE


def time_saving(args: argparse.Namespace, bench: Bench) -> int:
    """Seconds of a checkpoint's parts, beside what others do with the same bytes."""
    # In the current folder: that is the disk on which a run would save.
    with bench.out.phase("saving checkpoints"), tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        found = bench.children.ask(SavingTimes, "saving", shape=asdict(bench.setting.shape), folder=folder,
                                   use_gpu=args.use_gpu)
    bench.record.keep(saving=asdict(found))
    bench.out.say(f"{size(found.bytes)} of weights and optimizer state, in turns, medians of {found.turns}")
    for name, seconds in found.seconds.items():
        bench.out.say(f"{name:<52}{seconds:>8.3f} s{found.bytes / seconds / 1e9:>8.2f} GB/s")
    ratio = found.seconds["whole"] / found.seconds["raw write, fsync"]
    bench.out.say(f"the whole save takes {ratio:.2f}x a raw write")
    return Exit.DONE


# ---------------------------------------------------------------- the command, in the order of events


def answer(name: str, request: Request) -> Answer:
    """What the child process of this name does. Each imports what it needs here: the parent must not import torch."""
    match name:
        case "naive":
            from benchmarks.naive import train_naively

            return train_naively(**request)
        case "peer":
            from benchmarks.peers import train_peer

            return train_peer(**request)
        case "tokens":
            from benchmarks.synthetic import synthesise

            return synthesise(**request)
        case "corpus":
            from benchmarks.parts import check_corpus

            return check_corpus(**request)
        case "probe":
            from benchmarks.parts import probe

            return probe(**request)
        case "loader":
            from benchmarks.parts import loader_times

            return loader_times(**request)
        case "material":
            from benchmarks.material import prepare

            return prepare(**request)
        case "sharing":
            from benchmarks.sharing import time_sharing

            return time_sharing(**request)
        case _:
            from benchmarks.parts import saving_times

            return saving_times(**request)


def check_packages(args: argparse.Namespace) -> None:
    """Raises UserError (exit 5) for what the flags need and is not there, before any time is spent."""
    require("torch", "numpy", "tokenizers", "tqdm", "safetensors")
    python = os.path.basename(sys.executable)
    needed_by = {"--png": ("matplotlib", args.png is not None), "--peer": ("transformers", args.peer == "transformers")}
    for flag, (package, is_needed) in needed_by.items():
        if is_needed and importlib.util.find_spec(package) is None:
            raise UserError(Exit.MACHINE, f"{flag}: {package} is not installed. Run: {python} -m pip install {package}")
    if args.peer == "nanogpt" and not (Path(args.peer_dir) / "model.py").is_file():
        raise UserError(Exit.MACHINE, f"--peer_dir {printable(args.peer_dir)} has no model.py. Give nanoGPT's folder.")


def choose_shape(args: argparse.Namespace) -> Shape:
    """The shape, with what the flags override and the vocabulary of --data_dir. Raises UserError (exit 3)."""
    given = {"model_size": args.model_size, "vocab_size": args.vocab_size, "seq_length": args.seq_length,
             "batch_size": args.batch_size}
    if args.data_dir is not None:
        path = Path(args.data_dir) / "metadata.json"
        given["vocab_size"] = Metadata(read_metadata(path), path).vocab_size
        if given["vocab_size"] is None:
            raise UserError(Exit.DATA, f"--data_dir: {printable(str(path))} does not record its vocab_size. Run: "
                                       "python pretokenize.py TEXT, or drop the flag.")
    return replace(SHAPES[args.shape], **{name: value for name, value in given.items() if value is not None})


def measure_machine(args: argparse.Namespace, shape: Shape, out: Progress, children: Children) -> Setting:
    """What the figures will be about; on the way, the matmul speed is measured, and tokens are checked or made up.

    Raises UserError (exit 3) for tokens in --data_dir that no rung could train on.
    """
    if args.data_dir is not None:
        with out.phase("checking the tokens"):
            children.ask(Done, "corpus", data_dir=args.data_dir,
                         seq_length=LOADER_SEQ_LENGTH if args.loader else shape.seq_length)
    with out.phase("multiplying matrices"):
        machine = children.ask(Probe, "probe", use_gpu=args.use_gpu, precision=args.precision, shape=asdict(shape))
    steps, warmup = (50, 20) if machine.on_gpu else (12, 4)
    setting = Setting(shape, machine, args.data_dir or str(children.folder), args.steps or steps, args.warmup or warmup)

    if args.data_dir is None:
        num_tokens = (setting.warmup + setting.steps + 2) * shape.tokens_per_step
        with out.phase("making tokens"):
            children.ask(Done, "tokens", folder=setting.data_dir, vocab_size=shape.vocab_size,
                         num_tokens=LOADER_TOKENS if args.loader else num_tokens)
    return setting


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    if argv and argv[0] in CHILDREN:
        answered = json.dumps(asdict(answer(argv[0], json.loads(argv[1]))))
        if speaks():
            print(answered, flush=True)
        return Exit.DONE

    args = read_flags(argv)
    check_packages(args)
    shape = choose_shape(args)
    json_file, png = requested("--json", args.json, is_rewritten=True), requested("--png", args.png)
    with (contextlib.closing(Progress()) as out, Signals(out.note, USUALLY_SECONDS) as signals,
          tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder):
        limit_minutes = args.limit_minutes or (math.inf if args.quality else LIMIT_MINUTES)
        children = Children(signals, 60 * limit_minutes, Path(folder))
        try:
            if args.quality:
                signals.promise(lambda: "stopping; a run saves its state first", lambda: NOTHING)
                return compare_recipes(args, shape, children, out, json_file, png)
            setting = measure_machine(args, shape, out, children)
            if args.scaling:
                return compare_processes(args, setting, children, out, report.Record(json_file, setting), png)
            bench = Bench(out, children, setting, report.Record(json_file, setting))
            for line in report.introduction(setting):
                out.say(line)
            if args.peer is not None:
                return time_peer(args, bench)
            if args.loader:
                return time_loader(bench)
            if args.saving:
                return time_saving(args, bench)
            return time_ladder(args, bench, png)
        except Stopped:
            return 128 + (signals.number or 0)


if __name__ == "__main__":
    guard(main)
