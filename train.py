"""Train a GPT-2-class model: tokens in, checkpoints out.

    python train.py --use_gpu --use_amp --compile                       data/ from pretokenize.py, GPT-2 Small, to out/
    python train.py --model_size mini --compile --use_amp               a laptop's processor
    python train.py --use_gpu --resume_from auto                        go on where the last run in out/ stopped
    python train.py --use_gpu --dry_run --gpu_cost_per_hour 2           what will it take? three steps, nothing written

Read top to bottom: flags, the pure pieces, then main in the order of events. B is a micro-batch's sequences, T their length.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence

import cli

# ---------------------------------------------------------------- flags


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) with every problem found."""
    parser = cli.Parser("train.py", "Trains a GPT-2-class model. A step is one optimizer step; losses are in nats.")
    group = parser.group("data")
    group.flag("--data_dir", cli.text("DIR"), "data", "folder written by pretokenize.py; the next four override its parts")
    group.flag("--bin_file", cli.text(), None, "training tokens", "train.bin in --data_dir")
    group.flag("--val_bin_file", cli.text(), None, "validation tokens", "val.bin in --data_dir, or the tail of --bin_file")
    group.flag("--tokenizer_file", cli.text(), None, "tokenizer.json of the tokens", "tokenizer.json in --data_dir")
    group.flag("--metadata_file", cli.text(), None, "metadata.json of the tokens", "metadata.json in --data_dir")
    group.flag("--vocab_size", cli.whole(1), None, "ids, where neither metadata nor tokenizer tells", "from those")
    group.flag("--preload", cli.one_of("auto", "gpu", "ram", "mmap"), "auto", "where the tokens live; auto: the fastest that fits")
    group.switch("--allow_new_data", False, "resume on other tokens than the checkpoint was trained on")
    group = parser.group("model")
    group.flag("--model_size", cli.one_of("tiny", "mini", "gpt2_small", "gpt2_medium", "gpt2_large", "gpt2_xl"), "gpt2_small",
               "layers, heads, width: tiny 4 4 128, mini 6 6 384, small 12 12 768, medium 24 16 1024, large 36 20 1280, xl 48 25 1600")
    group.flag("--n_layer", cli.whole(1, 1024), None, "blocks", "by size")
    group.flag("--n_head", cli.whole(1, 1024), None, "attention heads, a divisor of the width", "by size")
    group.flag("--n_embd", cli.whole(1, 2**16), None, "width of the residual stream", "by size")
    group.flag("--seq_length", cli.whole(1, 2**20), None, "tokens a sequence, T", "1024, or what the corpus allows")
    group.flag("--dropout", cli.real(0, 1, below=True), 0.0, "share of activations dropped; 0.1 to 0.2 against overfitting")
    group.switch("--bias", True, "biases in linear layers and norms")
    group.switch("--tie_weights", True, "one matrix for the embedding and the head")
    group = parser.group("horizon")
    group.flag("--batch_size", cli.whole(1, 2**20), None, "sequences per device per forward; halve it on out-of-memory",
               "by memory, about 16,384 tokens on a GPU and 4,096 on a CPU")
    group.flag("--gradient_accumulation_steps", cli.whole(1, 2**20), 1, "micro-batches per step; double it when halving --batch_size")
    group.flag("--epochs", cli.whole(1), None, "passes over the tokens", "1 to 10, towards 20 tokens a parameter")
    group.flag("--max_steps", cli.whole(1), None, "steps after which the run ends, if sooner than --epochs", "no limit")
    group.flag("--patience", cli.whole(1), None, "validations without a new best after which the run ends", "off")
    group = parser.group("optimizer: AdamW, decay on matrices and embeddings only")
    group.flag("--learning_rate", cli.real(0, 10, above=True), None, "peak learning rate; halve it when the loss jumps", "by size and batch")
    group.flag("--min_lr", cli.real(0, 10), None, "learning rate at the end of the cosine", "a hundredth of the peak")
    group.flag("--warmup_steps", cli.whole(0), None, "steps of linear warm-up", "2% of the steps, at least 2 / (1 - beta2)")
    group.switch("--use_lr_scheduler", True, "warm-up, then cosine; off: the learning rate stays at its peak")
    group.flag("--weight_decay", cli.real(0, 10), 0.1, "decoupled weight decay")
    group.flag("--beta1", cli.real(0, 1, below=True), 0.9, "decay of AdamW's mean of gradients")
    group.flag("--beta2", cli.real(0, 1, below=True), 0.95, "decay of AdamW's mean of squares")
    group.flag("--grad_clip", cli.real(0, 1e6), 1.0, "largest norm of the gradient; 0: not clipped")
    group.flag("--label_smoothing", cli.real(0, 1, below=True), 0.0, "share of the target spread over all ids; validation has none")
    group.flag("--seed", cli.whole(0, 2**63 - 1), 1337, "weights, data order, dropout")
    group = parser.group("machine")
    group.switch("--use_gpu", None, "require CUDA, exit 5 when there is none", "a GPU when there is one")
    group.switch("--use_amp", None, "mixed precision", "on with CUDA, off on a CPU")
    group.flag("--amp_dtype", cli.one_of("auto", "bf16", "fp16"), "auto", "auto: bf16 where the hardware has it, else fp16 with loss scaling")
    group.switch("--compile", None, "torch.compile; eager with a warning where it is not possible", "on with CUDA, off on a CPU")
    group.flag("--compile_mode", cli.one_of("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"), "default",
               "torch.compile's mode: slower to compile, maybe faster to run")
    group.switch("--tf32", True, "TF32 for what stays fp32 on a GPU")
    group = parser.group("output")
    group.flag("--output_dir", cli.text("DIR"), "out", "folder of checkpoints and metrics.jsonl")
    group.flag("--checkpoint_interval", cli.whole(1), 1, "epochs between checkpoints; those stay")
    group.flag("--checkpoint_every_steps", cli.whole(1), None, "steps between rolling checkpoints", "off")
    group.flag("--checkpoint_every_minutes", cli.real(0, 1e6, unit="MINUTES"), 10.0, "minutes between rolling checkpoints; 0: off")
    group.flag("--keep_checkpoints", cli.whole(1), 3, "rolling checkpoints that stay, besides the best by validation")
    group.flag("--resume_from", cli.text("PATH|auto"), None, "a checkpoint, a folder of them (newest), or auto: newest in --output_dir, else start", "start anew")
    group.switch("--overwrite", False, "delete what an earlier run left in --output_dir")
    group.flag("--eval_interval", cli.whole(1), None, "steps between validations", "ten over the run, at most 1,000 apart")
    group.flag("--eval_batches", cli.whole(1), 50, "batches of a validation, always the same; all if there are fewer")
    group.flag("--sample_interval", cli.whole(0), None, "steps between samples of text; 0: none", "five over the run")
    group.flag("--log_interval", cli.whole(1), None, "steps between log lines", "100 over the run, at most 100 apart")
    group = parser.group("plan")
    group.switch("--dry_run", False, "print the plan, run three steps, write nothing")
    group.flag("--gpu_cost_per_hour", cli.real(0, 1e6, unit="PRICE"), None, "price of an hour, for the cost in the plan", "no cost shown")
    group.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """What cannot be together, one line each."""
    wrong = {
        "--min_lr: is above --learning_rate": args.min_lr and args.learning_rate and args.min_lr > args.learning_rate,
        "--min_lr: needs --use_lr_scheduler": args.min_lr is not None and not args.use_lr_scheduler,
        "--warmup_steps: needs --use_lr_scheduler": args.warmup_steps is not None and not args.use_lr_scheduler,
        "--warmup_steps: ends after --max_steps": args.warmup_steps and args.max_steps and args.warmup_steps >= args.max_steps,
        "--n_embd: is no multiple of --n_head": args.n_embd and args.n_head and args.n_embd % args.n_head,
        "--amp_dtype: has no effect with --no-use_amp": args.amp_dtype != "auto" and args.use_amp is False,
        "--compile_mode: has no effect with --no-compile": args.compile_mode != "default" and args.compile is False,
        "--overwrite: give it or --resume_from, not both": args.overwrite and args.resume_from == "auto",
        "--allow_new_data: has no effect without --resume_from": args.allow_new_data and not args.resume_from,
        "--gpu_cost_per_hour: has no effect without --dry_run": args.gpu_cost_per_hour is not None and not args.dry_run,
        "--preload gpu: needs a GPU, not --no-use_gpu": args.preload == "gpu" and args.use_gpu is False,
    }
    return [problem for problem, is_wrong in wrong.items() if is_wrong]


def answer_early(argv: Sequence[str]) -> int:
    """Flags and packages, before the seconds that importing torch takes."""
    read_flags(argv)
    cli.require("torch", "numpy", "tokenizers", "tqdm", "safetensors")
    return 0


if __name__ == "__main__":
    cli.guard(answer_early)

import contextlib
import json
import math
import shlex
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

import checkpoint
import data
import device
import generate
import plan
from cli import Exit, UserError, count, duration, printable, size
from model import GPT, IGNORED, SIZES, GPTConfig

MOST_SKIPPED_IN_A_ROW = 10  # fp16's loss scale finds its place within a few
ABANDON_SECONDS = 20.0  # a step that would still run this long after a signal is given up
SAMPLE_TOKENS = 64

# ---------------------------------------------------------------- the pure pieces


@dataclass(frozen=True)
class Recipe:
    """How it will be trained, every default decided; samples are sequences of T tokens."""

    batch_size: int
    accumulation: int
    windows_per_epoch: int
    epochs: int
    total_steps: int
    learning_rate: float
    min_lr: float
    warmup_steps: int
    use_lr_scheduler: bool
    eval_interval: int
    sample_interval: int
    log_interval: int
    reasons: tuple[str, ...]

    @property
    def samples_per_step(self) -> int:
        return self.batch_size * self.accumulation


def model_config(args: argparse.Namespace, vocab_size: int, num_tokens: int) -> tuple[GPTConfig, list[str]]:
    """The model's shape from the flags, and a note if the corpus is shorter than a sequence.

    Raises UserError: exit 2 for a width that the heads do not divide, exit 3 for a corpus of fewer than two tokens.
    """
    n_layer, n_head, n_embd = (given or default for given, default in
                               zip((args.n_layer, args.n_head, args.n_embd), SIZES[args.model_size], strict=True))
    if n_embd % n_head:
        raise UserError(Exit.FLAGS, f"--n_embd {n_embd}: is no multiple of --n_head {n_head}. Give both.")
    if num_tokens < 2:
        raise UserError(Exit.DATA, f"the corpus has {num_tokens} tokens. At least 2 are needed. Give more text to pretokenize.py.")
    wanted, notes = args.seq_length or 1024, []
    if wanted >= num_tokens:
        notes.append(f"--seq_length is {num_tokens - 1:,}, not {wanted:,}: the corpus has {num_tokens:,} tokens")
    return GPTConfig(vocab_size, min(wanted, num_tokens - 1), n_layer, n_head, n_embd, args.dropout, args.bias, args.tie_weights), notes


def choose_recipe(args: argparse.Namespace, config: GPTConfig, num_tokens: int, samples_seen: int, steps_done: int,
                  machine: device.Machine) -> Recipe:
    """Fills in what the flags leave open, with reasons; on resume the horizon counts from what has been seen.

    Raises UserError (exit 2) for a warm-up that outlasts the run or a min_lr above a learning rate that was not given.
    """
    reasons = []
    windows = data.WindowOrder(num_tokens, config.seq_length, 0).windows_per_epoch
    batch_size = args.batch_size
    if batch_size is None:
        on_gpu = machine.device.type == "cuda"
        most = max(1, (16_384 if on_gpu else 4_096) // config.seq_length)
        batch_size = plan.micro_batch_that_fits(config, device.total_memory(machine), machine.precision != "fp32", most)
        reasons.append(f"batch_size {batch_size}: {batch_size * config.seq_length:,} tokens fit the memory")
    samples_per_step = batch_size * args.gradient_accumulation_steps
    tokens_per_step = samples_per_step * config.seq_length
    epochs = args.epochs
    if epochs is None:
        wanted = 20 * config.num_parameters / num_tokens
        epochs = max(1, min(10, math.ceil(wanted)))
        reasons.append(f"epochs {epochs}: 20 tokens a parameter (Hoffmann et al. 2022) would take {wanted:.3g}, at most 10 are taken")
    remaining = -(-max(0, epochs * windows - samples_seen) // samples_per_step)
    total_steps = min(steps_done + remaining, args.max_steps or 2**62)
    planned = max(1, total_steps)

    learning_rate = args.learning_rate
    if learning_rate is None:
        learning_rate = default_learning_rate(config, tokens_per_step)
        reasons.append(f"learning_rate {learning_rate:.2e}: for {count(config.num_parameters)} parameters and "
                       f"{tokens_per_step:,} tokens a step")
    min_lr = args.min_lr
    if min_lr is None:
        min_lr = learning_rate / 100 if args.use_lr_scheduler else learning_rate
    warmup_steps = args.warmup_steps
    if warmup_steps is None and args.use_lr_scheduler:
        warmup_steps = min(max(math.ceil(2 / (1 - args.beta2)), planned // 50), planned // 5, 2000)
        reasons.append(f"warmup_steps {warmup_steps}: 2% of {planned:,}, at least 2 / (1 - beta2) (Ma and Yarats 2019), at most a fifth")
    if min_lr > learning_rate:
        raise UserError(Exit.FLAGS, f"--min_lr {min_lr:g}: is above the learning rate {learning_rate:.3g}. Give --learning_rate too.")
    if args.warmup_steps and args.warmup_steps >= planned and total_steps > steps_done:
        raise UserError(Exit.FLAGS, f"--warmup_steps {args.warmup_steps:,}: the run has {planned:,} steps. Lower it, or raise --epochs.")
    default_samples = max(1, planned // 5)
    return Recipe(batch_size, args.gradient_accumulation_steps, windows, epochs, total_steps, learning_rate, min_lr,
                  warmup_steps or 0, args.use_lr_scheduler,
                  args.eval_interval or max(1, min(1000, planned // 10)),
                  default_samples if args.sample_interval is None else args.sample_interval,
                  args.log_interval or max(1, min(100, planned // 100)), tuple(reasons))


def default_learning_rate(config: GPTConfig, tokens_per_step: int) -> float:
    """Peak learning rate for AdamW: 0.003239 - 0.0001395 ln N (Kaplan et al. 2020, appendix D.6), N without embeddings.

    That was fitted at 2^19 tokens a step; smaller steps are noisier and get less, by the fourth root.
    """
    blocks = 12 * config.n_layer * config.n_embd**2
    by_size = min(4e-3, max(1e-4, 0.003239 - 0.0001395 * math.log(blocks)))
    return by_size * min(1.0, tokens_per_step / 2**19) ** 0.25


def lr_at(step: int, recipe: Recipe) -> float:
    """The learning rate of the step-th step, counted from 1: linear warm-up to the peak, then a cosine to min_lr."""
    if not recipe.use_lr_scheduler:
        return recipe.learning_rate
    if step < recipe.warmup_steps:
        return recipe.learning_rate * step / recipe.warmup_steps
    share = min(1.0, (step - recipe.warmup_steps) / max(1, recipe.total_steps - recipe.warmup_steps))
    return recipe.min_lr + 0.5 * (1 + math.cos(math.pi * share)) * (recipe.learning_rate - recipe.min_lr)


def param_groups(model: GPT, weight_decay: float) -> list[dict[str, Any]]:
    """Every parameter in exactly one group: decay on matrices and embeddings, none on norms and biases."""
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    assert sum(len(group["params"]) for group in groups) == len(parameters)
    return groups


def train_step(model: GPT, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler,
               micro_batches: Iterable[tuple[torch.Tensor, torch.Tensor]], accumulation: int,
               autocast: Callable[[], contextlib.AbstractContextManager], label_smoothing: float, grad_clip: float,
               ) -> tuple[torch.Tensor, torch.Tensor]:
    """One optimizer step over all micro-batches: mean loss and gradient norm, tensors on the device, nothing waited for.

    A norm that is not finite leaves weights and optimizer state untouched; the optimizer decides that on the device.
    """
    mean_loss = torch.zeros((), device=next(model.parameters()).device)
    for inputs_BT, targets_BT in micro_batches:
        with autocast():
            loss = model(inputs_BT, targets_BT, label_smoothing) / accumulation
        scaler.scale(loss).backward()
        mean_loss += loss.detach()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip or math.inf, foreach=True)
    optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
    optimizer.step()
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return mean_loss, norm


@torch.no_grad()
def evaluate(model: GPT, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], bytes_per_id: torch.Tensor | None,
             autocast: Callable[[], contextlib.AbstractContextManager], stop: Callable[[], bool]) -> tuple[float, float | None] | None:
    """Mean loss in nats over all targets, and bits per byte of their text (None if unknown); None if stop() said so."""
    model.eval()
    nats, tokens, text_bytes = 0.0, 0, 0
    try:
        for inputs_BT, targets_BT in batches:
            if stop():
                return None
            kept = int((targets_BT != IGNORED).sum())
            with autocast():
                nats += float(model(inputs_BT, targets_BT)) * kept
            tokens += kept
            if bytes_per_id is not None:
                text_bytes += int(bytes_per_id[targets_BT[targets_BT != IGNORED]].sum())
    finally:
        model.train()
    return nats / tokens, nats / math.log(2) / text_bytes if text_bytes else None


# ---------------------------------------------------------------- what a run holds


@dataclass
class State:
    """What a checkpoint remembers besides tensors."""

    step: int = 0
    samples_seen: int = 0
    skipped_steps: int = 0
    best_val_loss: float | None = None
    best_step: int = 0
    validated_step: int = 0
    validations_without_gain: int = 0


@dataclass(frozen=True)
class Run:
    """What the functions below share; only state, the model and what is inside objects ever changes."""

    args: argparse.Namespace
    out: cli.Progress
    signals: cli.Signals
    machine: device.Machine
    corpus: data.Corpus
    config: GPTConfig
    recipe: Recipe
    model: GPT
    optimizer: torch.optim.AdamW
    scaler: torch.amp.GradScaler
    state: State
    tokenizer_json: str | None
    tokenizer: Any
    metrics: Metrics
    clock: Clock
    bytes_per_id: torch.Tensor | None
    val_tokens: torch.Tensor | None
    saved: dict[str, float] = field(default_factory=dict)  # when and how long the last save took


class Metrics:
    """metrics.jsonl: one object a line, values that are not finite null. A full disk costs the line, not the run."""

    def __init__(self, path: Path | None, step: int, validated_step: int):
        """Opens the file, first cutting it back to the step resumed from; None writes nowhere."""
        self._file: TextIO | None = None
        if path is None:
            return
        kept = []
        if path.exists() and step:
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):  # a killed run's last line may be torn
                    fields = json.loads(line)
                    if fields["step"] <= (validated_step if "val_loss" in fields else step):
                        kept.append(line)
        cli.write_whole(path, "".join(line + "\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, **fields: Any) -> None:
        """Adds one line."""
        if self._file is None:
            return
        finite = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in fields.items()}
        try:
            self._file.write(json.dumps(finite) + "\n")
            self._file.flush()
        except OSError as error:
            cli.warn(f"metrics.jsonl: {error.strerror}; a line is lost")


class Clock:
    """Seconds of training alone: what happens inside pause() is not counted."""

    def __init__(self, machine: device.Machine):
        self._machine = machine
        self.began = self._lap = time.perf_counter()
        self._paused = 0.0

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        device.synchronize(self._machine)  # queued training work is training time
        started = time.perf_counter()
        try:
            yield
        finally:
            device.synchronize(self._machine)
            self._paused += time.perf_counter() - started

    def lap(self) -> float:
        """Training seconds since the last lap."""
        now = time.perf_counter()
        seconds = now - self._lap - self._paused
        self._lap, self._paused = now, 0.0
        return seconds


# ---------------------------------------------------------------- saving, validating, sampling


def save(run: Run, stays: bool) -> bool:
    """Saves a checkpoint and prunes older ones; if that fails says why, and training goes on. True if it is on disk."""
    state, output_dir = run.state, Path(run.args.output_dir)
    started = time.perf_counter()
    with run.out.phase("saving"), run.clock.pause():
        try:
            checkpoint.save(output_dir, state.step, run.model, run.optimizer,
                            {**asdict(state), "stays": stays, "scaler": run.scaler.state_dict(), "settings": settings(run),
                             "environment": environment(run.machine),
                             "data": {"train_sha256": run.corpus.identity, "tokenizer_sha256": run.corpus.tokenizer_sha256}},
                            run.tokenizer_json, run.corpus.end_of_text_id, model_card(run))
        except OSError as error:
            free = shutil.disk_usage(output_dir).free if output_dir.exists() else 0
            run.out.warn(f"checkpoint-{state.step} could not be saved: {error.strerror or error}. It needs about "
                         f"{checkpoint_bytes(run.config):,} bytes, {free:,} are free in {printable(str(output_dir))}. Training "
                         "goes on and tries again; free some space.")
            run.saved["at"] = time.monotonic()
            return False
        checkpoint.prune(output_dir, run.args.keep_checkpoints, {state.best_step})
    if "step" not in run.saved:
        run.out.say(f"saved checkpoint-{state.step}: {size(checkpoint_bytes(run.config))} in {time.perf_counter() - started:.2f} s")
    run.saved.update(at=time.monotonic(), step=state.step)
    return True


def checkpoint_bytes(config: GPTConfig) -> int:
    """Bytes of a checkpoint: weights and both moments in fp32, a little text."""
    return 12 * config.num_parameters + 2**20


def settings(run: Run) -> dict[str, Any]:
    """What a resumed run is compared with: the recipe's numbers and the flags of the optimizer."""
    keys = ("weight_decay", "beta1", "beta2", "grad_clip", "label_smoothing", "dropout", "seed", "epochs", "max_steps")
    numbers = {key: value for key, value in asdict(run.recipe).items() if key not in ("reasons", "log_interval", "sample_interval")}
    return {**numbers, **{key: vars(run.args)[key] for key in keys}}


def environment(machine: device.Machine) -> dict[str, Any]:
    """What the last digits of a loss depend on besides the settings."""
    return {"torch": torch.__version__, "device": machine.name, "threads": torch.get_num_threads(), "precision": machine.precision,
            "compile": machine.compile}


def model_card(run: Run) -> str:
    """README.md of a checkpoint: what it is, what it saw, how to use it."""
    config, state = run.config, run.state
    best = f"{state.best_val_loss:.4f} nats at step {state.best_step:,}" if state.best_val_loss is not None else "not measured"
    return (f"---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n\n# GPT-2, {config.num_parameters:,} parameters\n\n"
            f"- layers {config.n_layer}, heads {config.n_head}, width {config.n_embd}, context {config.seq_length}, "
            f"vocabulary {config.vocab_size:,}\n- step {state.step:,} of {run.recipe.total_steps:,}, "
            f"{state.samples_seen * config.seq_length:,} tokens seen\n- best validation loss: {best}\n"
            f"- training tokens: sha256 {run.corpus.identity}\n\n"
            "    from transformers import AutoModelForCausalLM, AutoTokenizer\n"
            f"    model = AutoModelForCausalLM.from_pretrained(\"checkpoint-{state.step}\")\n"
            f"    tokenizer = AutoTokenizer.from_pretrained(\"checkpoint-{state.step}\")\n")


def validate(run: Run) -> None:
    """Measures the validation loss, remembers the best, and makes sure that the best is on disk."""
    if run.corpus.val is None or run.val_tokens is None:
        return
    state = run.state
    batches = data.validation_batches(run.corpus.val, run.val_tokens, run.config.seq_length, run.recipe.batch_size, run.args.eval_batches)
    on_device = ((x.to(run.machine.device), y.to(run.machine.device)) for x, y in batches)
    with run.out.phase("validating"), run.clock.pause():
        found = evaluate(run.model, on_device, run.bytes_per_id, run.machine.autocast, lambda: run.signals.number is not None)
    if found is None:
        return
    loss, bits = found
    state.validated_step = state.step
    is_best = math.isfinite(loss) and (state.best_val_loss is None or loss < state.best_val_loss)
    state.validations_without_gain = 0 if is_best else state.validations_without_gain + 1
    perplexity = math.exp(min(loss, 700.0))
    run.metrics.write(step=state.step, val_loss=loss, perplexity=perplexity, bits_per_byte=bits)
    run.out.say(f"validation at step {state.step:,}: loss {loss:.4f} | perplexity {perplexity:,.2f} | bits per byte "
                f"{'n/a' if bits is None else f'{bits:.4f}'}{' | best so far' if is_best else ''}")
    if is_best:
        state.best_val_loss, state.best_step = loss, state.step
        if run.saved.get("step") != state.step:
            save(run, stays=False)


def show_sample(run: Run) -> None:
    """Prints a short text by the model as it is."""
    if run.tokenizer is None:
        return
    prompt = run.tokenizer.encode("\n", add_special_tokens=False).ids
    with run.out.phase("sampling"), run.clock.pause():
        run.model.eval()
        ids = list(generate.sample(run.model, prompt, SAMPLE_TOKENS, 0.8, 200, 1.0, run.args.seed + run.state.step,
                                   run.corpus.end_of_text_id, run.machine.autocast))
        run.model.train()
    text = printable(run.tokenizer.decode(ids)).strip().replace("\n", "\n  | ")
    run.out.say(f"sample at step {run.state.step:,}:\n  | {text}")


# ---------------------------------------------------------------- starting


def open_corpus(args: argparse.Namespace) -> data.Corpus:
    """The token files that the flags mean; --bin_file alone leaves the parts of --data_dir out of it."""
    folder = Path(args.data_dir)
    alone = args.bin_file is not None
    if not alone and not folder.is_dir():
        raise UserError(Exit.DATA, f"--data_dir {printable(args.data_dir)} {'is not a folder' if folder.exists() else 'does not exist'}. "
                                   "Run: python pretokenize.py corpus.txt")

    def part(given: str | None, name: str, needed: bool) -> Path | None:
        if given is not None or alone:
            return Path(given) if given else None
        return folder / name if needed or (folder / name).exists() else None

    bin_file = part(args.bin_file, "train.bin", True)
    assert bin_file is not None
    unlabelled = args.vocab_size is not None or args.tokenizer_file is not None
    return data.open_corpus(bin_file, part(args.val_bin_file, "val.bin", False), part(args.metadata_file, "metadata.json", not unlabelled),
                            part(args.tokenizer_file, "tokenizer.json", False), args.vocab_size)


def find_resume(args: argparse.Namespace, out: cli.Progress) -> tuple[Path, dict[str, Any]] | None:
    """The verified checkpoint to go on from with its state, or None to start anew. Raises UserError (exit 4)."""
    output_dir = Path(args.output_dir)
    there = checkpoint.steps_in(output_dir)
    if args.resume_from is None:
        if there and not args.overwrite:
            raise UserError(Exit.CHECKPOINT, f"--output_dir {printable(args.output_dir)} holds another run's checkpoints, the last of step "
                                             f"{max(there):,}. Give --resume_from auto to go on with it, another --output_dir, or "
                                             f"--overwrite, which deletes its {len(there)} checkpoints and metrics.jsonl.")
        return None
    if args.resume_from == "auto":
        found = checkpoint.newest_sound(output_dir, out.warn)
        if found is None:
            out.say(f"resume      no checkpoint in {printable(args.output_dir)} yet: starting at step 0")
        return found
    path = Path(args.resume_from)
    if (path / "manifest.json").is_file() or not checkpoint.steps_in(path):
        path = checkpoint.resolve(path, out.warn)
        try:
            found = path, checkpoint.verify(path)
        except checkpoint.Damaged as error:
            raise UserError(Exit.CHECKPOINT, f"--resume_from {printable(str(path))}: {error}. Only a checkpoint of train.py can be "
                                             "resumed.") from error
    else:
        found = checkpoint.newest_sound(path, out.warn)
        assert found is not None
    elsewhere = [step for step, other in there.items() if other.resolve().parent != found[0].resolve().parent or step > found[1]["step"]]
    if elsewhere and not args.overwrite and (output_dir.resolve() != path.resolve()):
        raise UserError(Exit.CHECKPOINT, f"--output_dir {printable(args.output_dir)} holds checkpoints that do not lead to "
                                         f"{found[0].name}: {', '.join(f'checkpoint-{step}' for step in elsewhere[:3])}. Give another "
                                         f"--output_dir, or --overwrite, which deletes these {len(elsewhere)}.")
    return found


def clear_others(args: argparse.Namespace, resumed: Path | None, step: int, out: cli.Progress) -> None:
    """--overwrite: deletes the checkpoints in --output_dir that do not lead to the one resumed from, and says so."""
    for other_step, other in checkpoint.steps_in(Path(args.output_dir)).items():
        if resumed is None or other.resolve().parent != resumed.resolve().parent or other_step > step:
            out.say(f"overwrite   deleting {printable(str(other))}")
            shutil.rmtree(other, ignore_errors=True)


def compare_with(stored: dict[str, Any], run_settings: dict[str, Any], machine: device.Machine, out: cli.Progress) -> None:
    """Says in what a resumed run differs from the one that saved the checkpoint."""
    for key, now in run_settings.items():
        before = stored.get("settings", {}).get(key, now)
        if before != now:
            out.say(f"resume      {key} was {before}, is now {now}")
    changed = [f"{key} {stored['environment'].get(key)} -> {now}" for key, now in environment(machine).items()
               if stored.get("environment", {}).get(key, now) != now]
    if changed:
        out.say(f"resume      losses will differ in the last digits: {', '.join(changed)}")


def check_identity(args: argparse.Namespace, stored: dict[str, Any], config: GPTConfig, corpus: data.Corpus) -> None:
    """Raises UserError if a checkpoint belongs to another model (exit 4), tokenizer or corpus (exit 3)."""
    if problem := checkpoint.differing_field(stored.get("model", {}), config):
        raise UserError(Exit.CHECKPOINT, f"the checkpoint is of another model: {problem}. Give the flags it was trained with, or "
                                         "start anew in another --output_dir.")
    before = stored.get("data", {})
    if before.get("tokenizer_sha256") and corpus.tokenizer_sha256 and before["tokenizer_sha256"] != corpus.tokenizer_sha256:
        raise UserError(Exit.DATA, f"the checkpoint was trained with another tokenizer (sha256 {str(before['tokenizer_sha256'])[:12]}, here "
                                   f"{corpus.tokenizer_sha256[:12]}). Give that one's data.")
    if before.get("train_sha256") != corpus.identity and not args.allow_new_data:
        raise UserError(Exit.DATA, f"the checkpoint was trained on other tokens (sha256 {str(before.get('train_sha256'))[:12]}, here "
                                   f"{corpus.identity[:12]}). Give that data, or --allow_new_data to go on with these.")


def warm_up(run: Run, batch: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Compiles forward and backward on a batch, changing nothing; False, with one warning, if that is not possible here."""
    rng = rng_state(run.machine)
    started = time.perf_counter()
    try:
        with run.out.phase("compiling (a minute or two the first time)"):
            run.model.compile(dynamic=False, mode=None if run.args.compile_mode == "default" else run.args.compile_mode)
            with run.machine.autocast():
                loss = run.model(batch[0], batch[1], run.args.label_smoothing)
            run.scaler.scale(loss).backward()
            device.synchronize(run.machine)
        run.out.say(f"compiled    in {duration(time.perf_counter() - started)}")
        return True
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        torch.compiler.reset()
        run.model._compiled_call_impl = None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        run.out.warn(f"torch.compile failed, running eagerly: {printable(reason)}")
        return False
    finally:
        run.optimizer.zero_grad(set_to_none=True)
        set_rng_state(run.machine, rng)


def rng_state(machine: device.Machine) -> list[torch.Tensor]:
    """The states of the random-number generators that dropout draws from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(machine.device)] if machine.device.type == "cuda" else [])]


def set_rng_state(machine: device.Machine, states: list[torch.Tensor]) -> None:
    """Puts back what rng_state returned."""
    torch.set_rng_state(states[0])
    if machine.device.type == "cuda":
        torch.cuda.set_rng_state(states[1], machine.device)


# ---------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> int:
    args = read_flags(argv)
    out = cli.Progress()
    with cli.Signals() as signals, contextlib.closing(out):
        if args.use_gpu and (reason := device.why_no_cuda()):
            raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or drop the flag to train on the CPU.")
        machine = device.choose(args.use_gpu, args.use_amp, args.amp_dtype, args.compile)
        device.set_up(machine, args.tf32)
        with out.phase("checking the tokens"):
            corpus = open_corpus(args)
        if args.dry_run:
            return train(args, argv, out, signals, machine, corpus, None)
        with checkpoint.owned(Path(args.output_dir)):
            return train(args, argv, out, signals, machine, corpus, find_resume(args, out))


def train(args: argparse.Namespace, argv: Sequence[str], out: cli.Progress, signals: cli.Signals, machine: device.Machine,
          corpus: data.Corpus, resumed: tuple[Path, dict[str, Any]] | None) -> int:
    """The run from the first printed line to the last; returns the exit code."""
    config, notes = model_config(args, corpus.vocab_size, corpus.train.length)
    stored = resumed[1] if resumed else {}
    if resumed:
        check_identity(args, stored, config, corpus)
    state = State(**{key: stored[key] for key in asdict(State()) if key in stored})
    recipe = choose_recipe(args, config, corpus.train.length, state.samples_seen, state.step, machine)
    attention = device.attention_backend(machine, recipe.batch_size, config.n_head, config.seq_length, config.n_embd // config.n_head)
    if resumed and state.step >= recipe.total_steps:
        out.say(f"already at step {state.step:,} of {recipe.total_steps:,}; raise --epochs or --max_steps to go on")
        return Exit.DONE

    where, why = data.choose_preload(args.preload, corpus.train.num_bytes, device.free_memory(machine), device.available_ram())
    if where == "gpu" and machine.device.type != "cuda":
        raise UserError(Exit.MACHINE, "--preload gpu: training runs on the CPU. Give --preload auto.")
    for line in device.describe(machine, attention, args.tf32):
        out.say(line)
    for line in describe(args, config, recipe, corpus, where, why, machine):
        out.say(line)
    for line in (*machine.warnings, *notes, *corpus.notes, *doubts(args, config, recipe, corpus)):
        out.warn(line)

    with out.phase("building the model"):
        torch.manual_seed(args.seed)
        model = GPT.create(config, machine.device).train()
        optimizer = torch.optim.AdamW(param_groups(model, args.weight_decay), lr=recipe.learning_rate, betas=(args.beta1, args.beta2), fused=True)
        scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.precision == "fp16")
        if resumed:
            checkpoint.load_training(resumed[0], model, optimizer)
            if scaler.is_enabled() and stored.get("scaler"):
                scaler.load_state_dict(stored["scaler"])
    with out.phase("loading the tokens"):
        order = data.WindowOrder(corpus.train.length, config.seq_length, args.seed)
        batches = data.Batches(corpus.train, where, order, recipe.batch_size, machine.device)
        val_tokens = data.load_tokens(corpus.val, "ram" if where == "gpu" else where, machine.device) if corpus.val else None
        tokenizer = data.load_tokenizer(corpus.tokenizer_path) if corpus.tokenizer_path else None
        lengths = data.bytes_per_id(tokenizer) if tokenizer is not None else None
        bytes_per_id = None if lengths is None else torch.from_numpy(np.pad(lengths, (0, config.vocab_size - len(lengths)))).to(machine.device)
    if not args.dry_run:
        clear_others(args, resumed[0] if resumed else None, state.step, out)
    metrics = Metrics(None if args.dry_run else Path(args.output_dir) / "metrics.jsonl", state.step, state.validated_step)
    run = Run(args, out, signals, machine, corpus, config, recipe, model, optimizer, scaler, state,
              tokenizer.to_str() if tokenizer is not None else None, tokenizer, metrics, Clock(machine), bytes_per_id, val_tokens)
    if resumed:
        out.say(f"resume      from {resumed[0].name}, step {state.step:,} of {recipe.total_steps:,}")
        compare_with(stored, settings(run), machine, out)
    try:
        if machine.compile:
            warm_up(run, batches.get(state.samples_seen, 0))
        if args.dry_run:
            return dry_run(run, batches)
        return loop(run, batches, argv)
    except torch.OutOfMemoryError as error:
        raise UserError(Exit.MACHINE, f"out of GPU memory with --batch_size {recipe.batch_size} ({size(device.peak_memory(machine))} of "
                                      f"{size(device.total_memory(machine))} held). The last checkpoint is safe. Try --batch_size "
                                      f"{max(1, recipe.batch_size // 2)} --gradient_accumulation_steps {recipe.accumulation * 2}.") from error


def loop(run: Run, batches: data.Batches, argv: Sequence[str]) -> int:
    """Trains from the state's step to the horizon, or until a signal; returns the exit code."""
    out, state, recipe, clock = run.out, run.state, run.recipe, run.clock
    first_step, last_logged = state.step, state.step
    skipped = torch.zeros((), device=run.machine.device)
    in_a_row = torch.zeros((), device=run.machine.device)
    loss_now, seconds = math.nan, 0.0
    run.saved["at"] = time.monotonic()
    out.bar(recipe.total_steps, state.step, "step")
    if state.step and state.step % recipe.eval_interval == 0 and state.validated_step < state.step:
        validate(run)  # killed between saving and validating
    clock.lap()
    with out.phase("training"):
        while state.step < recipe.total_steps and run.signals.number is None:
            rng = rng_state(run.machine) if recipe.accumulation > 1 else []
            for group in run.optimizer.param_groups:
                group["lr"] = lr_at(state.step + 1, recipe)
            try:
                loss, norm = train_step(run.model, run.optimizer, run.scaler, micro_batches(run, batches), recipe.accumulation,
                                        run.machine.autocast, run.args.label_smoothing, run.args.grad_clip)
            except Abandoned:  # the micro-batches are replayed on resume
                run.optimizer.zero_grad(set_to_none=True)
                set_rng_state(run.machine, rng)
                break
            state.step += 1
            seen_before = state.samples_seen
            state.samples_seen += recipe.samples_per_step
            skipped += run.optimizer.found_inf  # type: ignore[attr-defined]
            in_a_row = (in_a_row + 1) * run.optimizer.found_inf  # type: ignore[attr-defined]

            last = state.step == recipe.total_steps
            if state.step % recipe.log_interval == 0 or last or state.step == first_step + 1:
                loss_now, norm_now, skipped_now, in_a_row_now = torch.stack((loss, norm, skipped, in_a_row)).tolist()
                seconds = clock.lap() / (state.step - last_logged)
                state.skipped_steps += int(skipped_now)
                skipped.zero_()
                report(run, loss_now, norm_now, seconds, first_step, int(skipped_now))
                last_logged = state.step
                if in_a_row_now >= MOST_SKIPPED_IN_A_ROW:
                    raise diverged(run, int(in_a_row_now))
            epoch_ended = state.samples_seen // recipe.windows_per_epoch // run.args.checkpoint_interval > \
                seen_before // recipe.windows_per_epoch // run.args.checkpoint_interval
            if epoch_ended or last or is_due(run):
                save(run, stays=epoch_ended or last)
            if state.step % recipe.eval_interval == 0 or last:
                validate(run)
                if run.args.patience and state.validations_without_gain >= run.args.patience:
                    out.say(f"patience    {state.validations_without_gain} validations without a new best: the end")
                    break
            if recipe.sample_interval and (state.step % recipe.sample_interval == 0 or last):
                show_sample(run)
    return finish(run, argv, loss_now, first_step)


class Abandoned(Exception):
    """A step was given up in its middle because a signal came and it would have taken too long."""


def micro_batches(run: Run, batches: data.Batches) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The micro-batches of the next step. Raises Abandoned between two of them, ABANDON_SECONDS after a signal."""
    for micro in range(run.recipe.accumulation):
        if micro and run.signals.number is not None and time.monotonic() - run.signals.at > ABANDON_SECONDS:
            raise Abandoned
        yield batches.get(run.state.samples_seen, micro)


def is_due(run: Run) -> bool:
    """True if a rolling checkpoint is due, by steps or by minutes."""
    every, minutes = run.args.checkpoint_every_steps, run.args.checkpoint_every_minutes
    return bool(every and run.state.step % every == 0) or bool(minutes and time.monotonic() - run.saved["at"] >= 60 * minutes)


def report(run: Run, loss: float, norm: float, seconds: float, first_step: int, skipped: int) -> None:
    """Prints the line of a logged step and writes it to metrics.jsonl."""
    state, recipe = run.state, run.recipe
    tokens_per_second = recipe.samples_per_step * run.config.seq_length / seconds
    lr = lr_at(state.step, recipe)
    run.metrics.write(step=state.step, loss=loss, lr=lr, grad_norm=norm, tokens=state.samples_seen * run.config.seq_length, seconds=seconds)
    peak = run.machine.peak_flops
    mfu = f"{tokens_per_second * run.config.flops_per_token / peak:.1%}" if peak else "n/a"
    per_step = (time.perf_counter() - run.clock.began) / (state.step - first_step)
    epoch = min(recipe.epochs, (state.samples_seen - 1) // recipe.windows_per_epoch + 1)
    run.out.at(state.step, f"step {state.step:,}/{recipe.total_steps:,} | epoch {epoch}/{recipe.epochs} | loss {loss:.4f} | lr {lr:.2e} | "
                           f"norm {norm:.2f} | {seconds * 1000:.1f} ms | {tokens_per_second:,.0f} tok/s | mfu {mfu} | "
                           f"{device.peak_memory(run.machine) / 2**30:.1f} GiB | {duration(per_step * (recipe.total_steps - state.step))} left"
                           + (f" | {skipped} skipped" if skipped else ""))


def diverged(run: Run, in_a_row: int) -> UserError:
    """The error (exit 6) after too many steps without a finite gradient; the weights are those of the last good step."""
    there = checkpoint.steps_in(Path(run.args.output_dir))
    last = f"The last checkpoint, {next(iter(there.values())).name}, is good. " if there else ""
    return UserError(Exit.DIVERGED, f"loss or gradient not finite at step {run.state.step:,}, {in_a_row} steps in a row; none was applied. "
                                    f"{last}Resume with half the --learning_rate ({run.recipe.learning_rate / 2:.2g}) or a longer --warmup_steps.")


def finish(run: Run, argv: Sequence[str], loss: float, first_step: int) -> int:
    """The last save and the closing block; returns the exit code."""
    state, out, signals = run.state, run.out, run.signals
    elapsed = time.perf_counter() - run.clock.began
    on_disk = run.saved.get("step") == state.step or (state.step == first_step and first_step > 0) or save(run, stays=False)
    out.close()
    tokens = (state.step - first_step) * run.recipe.samples_per_step * run.config.seq_length
    closing = {"steps": state.step, "tokens": state.samples_seen * run.config.seq_length, "loss": f"{loss:.4f}",
               "best_val_loss": "n/a" if state.best_val_loss is None else f"{state.best_val_loss:.4f} at step {state.best_step}",
               "skipped_steps": state.skipped_steps, "seconds": f"{elapsed:.1f}", "tokens_per_second": f"{tokens / elapsed:.0f}",
               "peak_memory": size(device.peak_memory(run.machine)),
               "checkpoint": f"{run.args.output_dir}/checkpoint-{state.step}" if on_disk else "not saved"}
    out.say("\n".join(f"{key}: {value}" for key, value in closing.items()))
    if not on_disk:
        raise UserError(Exit.MACHINE, f"the last state could not be saved in {printable(run.args.output_dir)}. Free "
                                      f"{size(checkpoint_bytes(run.config))} there and resume from the checkpoint before.")
    if signals.number is not None:
        words = [word for word in argv if word != "--overwrite"]
        if "--resume_from" in words:
            at = words.index("--resume_from")
            del words[at:at + 2]
        out.say(f"stopped by {signals.name}; to go on: {shlex.join(['python', 'train.py', *words, '--resume_from', 'auto'])}")
        return 128 + signals.number
    out.say(f"next: python generate.py --ckpt {shlex.quote(run.args.output_dir)}")
    return Exit.DONE


def describe(args: argparse.Namespace, config: GPTConfig, recipe: Recipe, corpus: data.Corpus, where: str, why: str,
             machine: device.Machine) -> list[str]:
    """The block that says what will be trained, on what, for how long."""
    tokens_per_step = recipe.samples_per_step * config.seq_length
    lines = [f"model       {count(config.num_parameters)} parameters: {config.n_layer} layers, {config.n_head} heads, width "
             f"{config.n_embd}, T {config.seq_length:,}, vocabulary {config.vocab_size:,}, head {'tied' if config.tie_weights else 'untied'}; "
             f"{config.flops_per_token / 1e6:,.1f} MFLOP a token",
             f"data        {count(corpus.train.length)} tokens for training, {count(corpus.val.length) if corpus.val else 'none'} for "
             f"validation, in {where} ({why})",
             f"step        {tokens_per_step:,} tokens: {recipe.batch_size} sequences x {recipe.accumulation} micro-batches x "
             f"{config.seq_length:,}",
             f"horizon     {recipe.total_steps:,} steps, {recipe.epochs} epoch{'s' if recipe.epochs > 1 else ''}, "
             f"{count(recipe.total_steps * tokens_per_step)} tokens",
             f"schedule    {recipe.warmup_steps:,} steps up to {recipe.learning_rate:.2e}, then cosine to {recipe.min_lr:.2e}"
             if recipe.use_lr_scheduler else f"schedule    constant {recipe.learning_rate:.2e}"]
    lines += [f"default     {reason}" for reason in recipe.reasons]
    parts = plan.memory_parts(config, recipe.batch_size, machine.precision != "fp32")
    lines.append(f"memory      {plan.describe_memory(parts)}")
    if not args.dry_run:
        kept = args.keep_checkpoints + 2 + recipe.epochs // args.checkpoint_interval
        lines.append(f"output      {printable(args.output_dir)}: up to {kept} checkpoints of {size(checkpoint_bytes(config))}, "
                     f"{size(shutil.disk_usage(args.output_dir).free)} free")
    return lines


def doubts(args: argparse.Namespace, config: GPTConfig, recipe: Recipe, corpus: data.Corpus) -> list[str]:
    """What a practitioner would object to before the first step."""
    found = []
    if corpus.val is None:
        found.append("no validation tokens: overfitting will not be seen")
    if corpus.train.length * 2 < config.num_parameters:
        found.append(f"the corpus is small for the model: {count(corpus.train.length)} tokens for {count(config.num_parameters)} parameters. "
                     "It will be learned by heart; take a smaller --model_size, --dropout 0.2, or --patience 3.")
    needed = (args.keep_checkpoints + 2 + recipe.epochs // args.checkpoint_interval) * checkpoint_bytes(config)
    if not args.dry_run and shutil.disk_usage(args.output_dir).free < needed:
        found.append(f"--output_dir has {size(shutil.disk_usage(args.output_dir).free)} free, the checkpoints that stay will take "
                     f"{size(needed)}. Free some, or raise --checkpoint_interval.")
    return found


def dry_run(run: Run, batches: data.Batches) -> int:
    """Three steps as the run would do them, and what the whole will take; nothing is written."""
    times, loss_now = [], math.nan
    with run.out.phase("three steps"):
        for _ in range(3):
            run.clock.lap()
            loss, _ = train_step(run.model, run.optimizer, run.scaler, micro_batches(run, batches), run.recipe.accumulation,
                                 run.machine.autocast, run.args.label_smoothing, run.args.grad_clip)
            loss_now = float(loss)
            times.append(run.clock.lap())
    seconds, recipe = sorted(times)[1], run.recipe
    tokens_per_step = recipe.samples_per_step * run.config.seq_length
    peak = run.machine.peak_flops
    hours = seconds * recipe.total_steps / 3600
    closing = {"step_seconds": f"{seconds:.4f} (median of 3)", "tokens_per_second": f"{tokens_per_step / seconds:.0f}",
               "mfu": f"{tokens_per_step / seconds * run.config.flops_per_token / peak:.1%}" if peak else "n/a",
               "loss": f"{loss_now:.4f}", "peak_memory": size(device.peak_memory(run.machine)),
               "checkpoint_size": size(checkpoint_bytes(run.config)), "steps": recipe.total_steps,
               "time": f"{duration(hours * 3600)} for {recipe.epochs} epochs, validation and saving not counted"}
    if run.args.gpu_cost_per_hour is not None:
        closing["cost"] = f"{hours * run.args.gpu_cost_per_hour:.2f}"
    run.out.say("\n".join(f"{key}: {value}" for key, value in closing.items()))
    return Exit.DONE


if __name__ == "__main__":
    cli.guard(main)
