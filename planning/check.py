"""train.py --check: what this machine can do, tried without data, and what each size takes here and elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from architectures.table import ModelConfig
from common.children import script_environment
from common.errors import Exit, UserError
from common.files import cache_folder
from common.flags import having
from common.outputs import requested
from common.progress import Progress
from common.signals import Signals
from common.words import count, printable, several, size
from machine import device
from machine.device import Machine
from machine.facts import Disk, driver_version, matmul_flops, matmul_width, measure_disk, total_ram
from machine.memory import available_ram, is_out_of_memory, total_memory
from machine.timing import synchronize
from model import SIZES, GPTConfig
from ops.attention import attends_in_blocks
from planning import estimates
from planning.estimates import FULL_WIDTH, OWN_SHAPE, STEP_TOKENS, TYPICAL, WITHIN_HOURS, Estimates
from planning.recipe import DEFAULT_SEQ_LENGTH, choose_config
from planning.sizing import config_of_size

VOCAB_SIZE = 50_257  # GPT-2's, where --vocab_size does not say otherwise
COMPILE_SECONDS = 40  # after which the attempt to compile is given up
PRODUCT_SECONDS = 2.0  # for products of matrices, in each precision
LABEL = 12  # characters before the text of a line
# The flags that a check has a use for. It says of all others that they have no effect.
READ = {"check", "tokens", "json", "output_dir", "use_gpu", "use_amp", "amp_dtype", "compile", "tf32", "vocab_size",
        "loss_chunk_tokens", "activation_checkpointing", "model_size", "n_layer", "n_head", "n_embd", "seq_length",
        "dropout", "bias", "tie_weights", "optimizer", "arch", "n_kv_head", "n_inner", "rope_theta"}
NAMES_A_SIZE = {"model_size", "n_layer", "n_head", "n_embd"}


# ---------------------------------------------------------------- the command


def check_machine(args: argparse.Namespace, machine: Machine, out: Progress, signals: Signals, trial: Sequence[str],
                  ) -> int:
    """Prints what the machine can do, and the tables of sizes; returns the exit code.

    trial is the command line of a child process that compiles something (compile_something). Raises UserError (exit 5)
    at the end where --output_dir cannot be written, SystemExit after a signal.
    """
    file, configs = requested("--json", args.json), models_of(args)
    if ignored := [f"--{name}" for name in sorted(args.config.given - READ)]:
        out.warn(f"--check reads no data and trains nothing. These flags have no effect: {', '.join(ignored)}.")

    with out.phase("compiling a small function"):
        compiling = try_compiling(machine, trial, signals)
    with out.phase("writing to the disk"):
        disk = try_disk(Path(args.output_dir))
    with out.phase("multiplying matrices"):
        products = measure_products(machine)

    best = fastest(args, machine, compiling)
    here = {name: estimates.estimate(args, config, best, total_memory(machine),
                                     estimates.speed_here(best, config, products))
            for name, config in configs.items()}
    cards = {gigabytes: {name: estimates.estimate_on_card(args, config, gigabytes) for name, config in configs.items()}
             for gigabytes in TYPICAL}

    for label, text in facts(args, machine, compiling, disk, products):
        say(out, text, label)
    for warning in machine.warnings:
        out.warn(warning)
    say_estimates(args, out, best, configs, here, cards)
    if file is not None:
        fields = all_figures(machine, compiling, disk, products, configs, here, cards)
        file.write((json.dumps(fields, indent=1) + "\n").encode())
    if isinstance(disk, str):
        raise UserError(Exit.MACHINE, f"--output_dir {printable(args.output_dir)}: {disk}. Free some space, or choose "
                                      "another folder.")
    return Exit.DONE


def say(out: Progress, text: str, label: str = "") -> None:
    """Prints a text in lines that fit the terminal, the first one after its label."""
    width = max(40, min(120, shutil.get_terminal_size((80, 24)).columns))
    indent = " " * LABEL if label else "  " if text.startswith("  ") else ""
    out.say(textwrap.fill(f"{label:<{LABEL}}{text}" if label else text, width, subsequent_indent=indent,
                          break_on_hyphens=False, break_long_words=False))


def fastest(args: argparse.Namespace, machine: Machine, compiling: Compiling) -> Machine:
    """The machine with the faster setting wherever no flag decides: on a CPU both are off by default."""
    dtype, compiles = machine.dtype, machine.compile and compiling.works
    if machine.device.type == "cpu" and args.use_amp is None and device.cpu_has_bf16():
        dtype = torch.bfloat16
    if args.compile is None:
        compiles = compiling.works
    return replace(machine, dtype=dtype, compile=compiles)


def models_of(args: argparse.Namespace) -> dict[str, ModelConfig]:
    """The models of the tables by their names: all sizes, or the one that the flags describe.

    Raises UserError (exit 2) for a width that the heads do not divide.
    """
    vocab_size, seq_length = args.vocab_size or VOCAB_SIZE, args.seq_length or DEFAULT_SEQ_LENGTH
    if NAMES_A_SIZE & args.config.given:
        without_weights = having(args, init_from=None)
        config = choose_config(without_weights, vocab_size, 2**62)
        layers_heads_width = (config.n_layer, config.n_head, config.n_embd)
        return {next((name for name, shape in SIZES.items() if shape == layers_heads_width), OWN_SHAPE): config}
    return {name: config_of_size(args, shape, vocab_size, seq_length) for name, shape in SIZES.items()}


# ---------------------------------------------------------------- what is tried


@dataclass(frozen=True)
class Compiling:
    """Whether torch.compile works: the seconds that a small function took, or the reason why it does not.

    gave_up says that it took too long to know.
    """

    seconds: float | None
    reason: str = ""
    gave_up: bool = False

    @property
    def works(self) -> bool:
        return self.seconds is not None

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"works: a small function took {self.seconds:.1f} s"
        if self.gave_up:
            return f"not known: {self.reason}. A run waits as long as it takes"
        return f"does not work: {self.reason}. A run does without it"


def try_compiling(machine: Machine, trial: Sequence[str], signals: Signals) -> Compiling:
    """Compiles something in a child process, into an empty cache beside the usual one.

    Raises SystemExit after a signal.
    """
    if reason := device.why_no_compile(machine.device):
        return Compiling(None, reason)
    usual = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", cache_folder() / "compiled"))
    before, signals.at_once = signals.at_once, ""  # leaving at once would leave the child and its folder behind
    try:
        usual.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="check-", dir=usual, ignore_cleanup_errors=True) as folder:
            found = run_trial_of_compiling(trial, folder, signals)
    except OSError as error:
        found = Compiling(None, f"kernels cannot be kept in {printable(str(usual))}: {error.strerror}")
    if signals.number is not None:
        raise SystemExit(128 + signals.number)
    signals.at_once = before
    return found


def run_trial_of_compiling(trial: Sequence[str], folder: str, signals: Signals) -> Compiling:
    """Runs the command line until it answers, is too slow, or a signal comes; its kernels go to the folder."""
    env = {**script_environment(), "TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": str(Path(folder, "triton"))}
    ends_at, is_over = time.monotonic() + COMPILE_SECONDS, False
    with subprocess.Popen(trial, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          errors="replace", env=env, start_new_session=os.name == "posix") as child:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                printed, complaints = child.communicate(timeout=0.1)
                break
            is_over = time.monotonic() > ends_at
            if signals.number is not None or is_over:  # with the compiler that it has started
                os.killpg(child.pid, signal.SIGKILL) if os.name == "posix" else child.kill()
    if is_over:
        return Compiling(None, f"a small function took more than {several(COMPILE_SECONDS, 'second')}", gave_up=True)
    try:
        return Compiling(**json.loads(printed.splitlines()[-1]))
    except (ValueError, TypeError, IndexError):
        last = (complaints.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        return Compiling(None, printable(last)[:300])


def compile_something(machine: Machine) -> int:
    """In the child process: prints Compiling as JSON, after a function of one kernel was compiled and run."""
    started = time.perf_counter()
    function = torch.compile(lambda x: F.gelu(x) + 1, dynamic=False)
    try:
        function(torch.ones(64, 64, device=machine.device, dtype=machine.dtype))
        synchronize(machine)
    except Exception as error:
        found = Compiling(None, device.compiler_complaint(error))
    else:
        found = Compiling(time.perf_counter() - started)
    print(json.dumps(asdict(found)))
    return Exit.DONE


def try_disk(folder: Path) -> Disk | str:
    """How fast the disk of the folder is written, or why it cannot be."""
    try:
        return measure_disk(folder)
    except OSError as error:
        return error.strerror or type(error).__name__


def measure_products(machine: Machine) -> dict[str, float]:
    """FLOP/s of products of square matrices by precision, those in hardware; fewer where memory runs out."""
    on_cuda = machine.device.type == "cuda"
    wanted = {"fp32": (torch.float32, "highest", True),
              "tf32": (torch.float32, "high", on_cuda and torch.cuda.is_tf32_supported()),
              "fp16": (torch.float16, "high", machine.on_gpu),
              "bf16": (torch.bfloat16, "high", device.has_bf16(machine.device))}
    before, found = torch.get_float32_matmul_precision(), {}
    try:
        for name, (dtype, fp32_precision, is_there) in wanted.items():
            if is_there:
                torch.set_float32_matmul_precision(fp32_precision)
                found[name] = matmul_flops(machine, dtype, matmul_width(machine), PRODUCT_SECONDS)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    finally:
        torch.set_float32_matmul_precision(before)
    return found


# ---------------------------------------------------------------- what is said of this machine


def facts(args: argparse.Namespace, machine: Machine, compiling: Compiling, disk: Disk | str,
          products: Mapping[str, float]) -> Iterable[tuple[str, str]]:
    """The lines about this machine, each with its label."""
    yield "device", f"{machine.device.type}: {machine.name}{_more_of_device(machine)} ({machine.device_reason})"
    if machine.device.type == "cuda":
        yield "driver", f"{driver_version() or 'version unknown'}; cuDNN {torch.backends.cudnn.version()}"
    yield "software", (f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}, Python "
                       f"{platform.python_version()}, {platform.system()} {platform.release()}")
    yield "precision", _precision(machine)
    yield "matmul", _matmul(machine, products)
    yield "attention", _attention(args, machine)
    yield "compile", str(compiling)
    ram = total_ram()
    yield "RAM", f"{f'{size(ram)}, ' if ram else ''}{size(available_ram())} available"
    yield "disk", _disk(disk)


def _more_of_device(machine: Machine) -> str:
    if machine.device.type == "cpu":
        return f", {several(torch.get_num_threads(), 'thread')}"
    if machine.device.type == "mps":
        return f", {size(total_memory(machine))} of the RAM for the GPU"
    others = torch.cuda.device_count() - 1
    return f", {size(total_memory(machine))}" + f", and {several(others, 'more GPU')} that this run leaves idle" * (
        others > 0)


def _matmul(machine: Machine, products: Mapping[str, float]) -> str:
    if not products:
        return "not measured: there is no memory left for two matrices"
    width = matmul_width(machine)
    speeds = ", ".join(f"{name} {flops / 1e12:.3g}" for name, flops in products.items())
    with contextlib.suppress(AttributeError, OSError):  # Windows tells no load
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        if machine.device.type == "cpu" and load > 1.5 * cores:
            speeds += f". Too low: other work kept the processor busy (load {load:.0f} on {several(cores, 'core')})"
    return f"TFLOP/s, two matrices of {width:,} x {width:,}: {speeds}"


def _precision(machine: Machine) -> str:
    bf16 = "native" if device.has_bf16(machine.device) else "emulated, slow"
    if machine.device.type == "cpu":
        return f"bf16 {bf16}; fp16 and TF32 are for GPUs; {machine.precision} here ({machine.precision_reason})"
    if machine.device.type == "mps":
        return f"bf16 {bf16}, fp16 with loss scaling; {machine.precision} here ({machine.precision_reason})"
    tf32 = "yes" if torch.cuda.is_tf32_supported() else "no"
    fp8 = "no" if device.why_no_fp8() else "yes"
    return f"bf16 {bf16}, fp16 with loss scaling, TF32 {tf32}, 8 bits {fp8}; {machine.precision} here " \
           f"({machine.precision_reason})"


def _attention(args: argparse.Namespace, machine: Machine) -> str:
    seq_length = args.seq_length or DEFAULT_SEQ_LENGTH
    if attends_in_blocks(machine.device.type, machine.dtype, seq_length):
        return f"matrix products in blocks at T {seq_length:,}"
    return f"{device.attention_backend(machine, 12, seq_length, 64, args.dropout)} at T {seq_length:,}"


def _disk(disk: Disk | str) -> str:
    if isinstance(disk, str):
        return f"cannot be written: {disk}"
    checkpoint = 12 * GPTConfig().num_parameters
    seconds = checkpoint / disk.bytes_per_second
    return (f"writes {size(disk.bytes_per_second)}/s, fsync included; {size(disk.free_bytes)} free in "
            f"{printable(str(disk.folder))}. A checkpoint of gpt2_small, {size(checkpoint)}, takes {seconds:.2g} s")


# ---------------------------------------------------------------- what is said of sizes


def say_estimates(args: argparse.Namespace, out: Progress, best: Machine, configs: Mapping[str, ModelConfig],
                  here: Estimates, cards: Mapping[int, Estimates]) -> None:
    """Prints the tables, each with what its figures rest on."""
    first = next(iter(configs.values()))
    tokens = f"{count(args.tokens)} tokens" if args.tokens else "20 tokens per parameter"
    flags = f" --arch {args.arch}" * bool(args.arch) + " --use_amp" * (best.precision != "fp32")
    flags += " --compile" * best.compile
    out.say()
    say(out, f"Estimates for {tokens}, T {first.seq_length:,}, {first.vocab_size:,} ids. On this machine"
             f"{f' with{flags}' if flags else ''}, by the matmul above:")
    out.say("\n".join(estimates.table_here(args, configs, here)))
    say(out, recommended_here(best, configs, here, flags))

    out.say()
    how = (f"in {'fp32' if args.use_amp is False else 'half precision'}, "
           f"{'eager' if args.compile is False else 'compiled'}")
    share = estimates.share_of_peak(args, FULL_WIDTH)
    say(out, f"On common cards, {how}. Memory is predicted. Hours are those at {share:.0%} of the peak in the card's "
             f"data sheet, less for models narrower than {FULL_WIDTH}; no card was timed. * needs "
             "--activation_checkpointing, - does not fit.")
    out.say("\n".join(estimates.table_of_cards(args, configs, cards)))

    out.say()
    flags = f"--arch {args.arch} " * bool(args.arch) + "--use_gpu" + " --use_amp" * (args.use_amp is not False)
    flags += " --compile" * (args.compile is not False)
    say(out, f"Recommended, with {flags}: the largest size that takes less than {WITHIN_HOURS} hours, else "
             f"the quickest; in steps of {STEP_TOKENS:,} tokens.")
    out.say("\n".join(estimates.table_of_recommended(configs, cards)))
    out.say()
    say(out, "With your tokens, python train.py --dry_run measures time and memory on this machine.")


def recommended_here(best: Machine, configs: Mapping[str, ModelConfig], here: Estimates, flags: str) -> str:
    """Which size this machine trains within two days, and the flags for it."""
    found = estimates.recommended(configs, here)
    if found is None or (here[found[0]].hours or 0) > WITHIN_HOURS:
        return f"No size is trained in less than {WITHIN_HOURS} hours; fewer --tokens take less."
    name, accumulation = found
    words = f" --model_size {name}" * (name != OWN_SHAPE) + flags
    if best.on_gpu:
        words += (f" --batch_size {here[name].batch_size} --gradient_accumulation_steps {accumulation}"
                  f"{' --activation_checkpointing' * here[name].recomputes}")
    return f"Largest in less than {WITHIN_HOURS} hours: {name}{f', with{words}' if words else ''}"


def all_figures(machine: Machine, compiling: Compiling, disk: Disk | str, products: Mapping[str, float],
            configs: Mapping[str, ModelConfig], here: Estimates, cards: Mapping[int, Estimates]) -> dict[str, Any]:
    """All figures, for --json."""
    return {
        "device": machine.device.type, "name": machine.name, "memory_bytes": total_memory(machine),
        "driver": driver_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "python": platform.python_version(), "precision": machine.precision,
        "bf16": "native" if device.has_bf16(machine.device) else "emulated",
        "matmul_flops": dict(products), "compile": asdict(compiling),
        "ram_bytes": total_ram(), "available_ram_bytes": available_ram(),
        "disk": {"problem": disk} if isinstance(disk, str) else {**asdict(disk), "folder": str(disk.folder)},
        "sizes": {name: asdict(config) for name, config in configs.items()},
        "here": {name: asdict(found) for name, found in here.items()},
        "cards": {str(gigabytes): {"card": TYPICAL[gigabytes], **{name: asdict(one) for name, one in found.items()}}
                  for gigabytes, found in cards.items()},
    }
