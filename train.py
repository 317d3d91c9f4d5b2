"""Train a GPT-2-class model: tokens in, checkpoints out.

    python train.py --use_gpu --use_amp --compile                       data/ from pretokenize.py, GPT-2 Small, to out/
    python train.py --model_size mini --compile --use_amp               a laptop's processor
    python train.py --use_gpu --resume_from auto                        go on where the last run in out/ stopped
    python train.py --use_gpu --dry_run --gpu_cost_per_hour 2           what will it take? four steps, nothing written

Read top to bottom: flags, the pure pieces, then main in the order of events. B is a micro-batch's sequences, T their
length in tokens.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from common import flags
from common.errors import Exit, UserError, guard, require

# ---------------------------------------------------------------- flags



def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) with every problem found."""
    whole, real, text, one_of = flags.whole, flags.real, flags.text, flags.one_of
    parser = flags.Parser("train.py", "Trains a GPT-2-class model. A step is one optimizer step; losses are in nats.")
    g = parser.group("data")
    g.flag("--data_dir", text("DIR"), "data", "folder of token files, ours or others'; the next four override it")
    g.flag("--bin_file", text(), None, "training tokens: a file, a folder or a glob of shards", "those in --data_dir")
    g.flag("--val_bin_file", text(), None, "validation tokens, alike", "those beside, or the tail of --bin_file")
    g.flag("--tokenizer_file", text(), None, "the tokens' tokenizer", "tokenizer.json in --data_dir")
    g.flag("--metadata_file", text(), None, "the tokens' metadata", "metadata.json in --data_dir")
    g.flag("--vocab_size", whole(1, 2**24), None, "ids, where neither metadata nor tokenizer tells", "from those")
    g.flag("--preload", one_of("auto", "gpu", "ram", "mmap"), "auto", "where tokens live; auto: the fastest that fits")
    g.switch("--allow_new_data", False, "resume on other tokens than the checkpoint was trained on")
    g = parser.group("model")
    g.flag("--model_size", one_of("tiny", "mini", "gpt2_small", "gpt2_medium", "gpt2_large", "gpt2_xl"), "gpt2_small",
           "layers, heads, width: 4 4 128, 6 6 384, 12 12 768, 24 16 1024, 36 20 1280, 48 25 1600; the next override")
    g.flag("--n_layer", whole(1, 1024), None, "blocks", "by size")
    g.flag("--n_head", whole(1, 1024), None, "attention heads, a divisor of the width", "by size")
    g.flag("--n_embd", whole(1, 2**16), None, "width of the residual stream", "by size")
    g.flag("--seq_length", whole(1, 2**20), None, "tokens of a sequence, T", "1024, or what the corpus allows")
    g.flag("--dropout", real(0, 1, below=True), 0.0, "share of activations dropped; 0.1 to 0.2 against overfitting")
    g.switch("--bias", True, "biases in linear layers and norms")
    g.switch("--tie_weights", True, "one matrix for the embedding and the head")
    g = parser.group("horizon")
    g.flag("--batch_size", flags.auto_or(whole(1, 2**20)), None, "sequences per device per forward; auto: the largest "
           "that is found to fit, the tokens of a step unchanged",
           "what fits: up to 16,384 tokens on a GPU, 4,096 on a CPU")
    g.flag("--gradient_accumulation_steps", whole(1, 2**20), 1, "micro-batches a step; double it to halve --batch_size")
    g.flag("--epochs", whole(1), None, "passes over the tokens", "up to --max_steps, else 1 to 10")
    g.flag("--max_steps", whole(1), None, "steps after which the run ends, if sooner than --epochs", "no limit")
    g.flag("--patience", whole(1), None, "validations without a new best after which the run ends", "off")
    g = parser.group("optimizer: AdamW, decay on matrices and embeddings only")
    g.flag("--learning_rate", real(0, 10, above=True), None, "peak; halve it when the loss jumps", "by size and batch")
    g.flag("--min_lr", real(0, 10), None, "learning rate at the end of the cosine", "a hundredth of the peak")
    g.flag("--warmup_steps", whole(0), None, "steps of linear warm-up", "2% of the steps, at least 2 / (1 - beta2)")
    g.switch("--use_lr_scheduler", True, "warm-up, then cosine; off: the learning rate stays at its peak")
    g.flag("--weight_decay", real(0, 10), 0.1, "decoupled weight decay, per step and learning rate")
    g.flag("--beta1", real(0, 1, below=True), 0.9, "decay of the running mean of gradients")
    g.flag("--beta2", real(0, 1, below=True), 0.95, "decay of the running mean of squared gradients")
    g.flag("--grad_clip", real(0, 1e6), 1.0, "largest norm of the gradient; 0: not clipped")
    g.flag("--label_smoothing", real(0, 1, below=True), 0.0, "share of the target spread over all ids in training")
    g.flag("--seed", whole(0, 2**63 - 1), 1337, "weights, data order, dropout")
    g.switch("--deterministic", False, "only kernels whose results no timing changes: slower on a GPU, where a resumed "
             "run then equals one never stopped bit for bit; an operation without such a kernel ends the run")
    g = parser.group("machine")
    g.switch("--use_gpu", None, "require CUDA, exit 5 when there is none", "a GPU when there is one")
    g.switch("--use_amp", None, "mixed precision", "on with CUDA, off on a CPU")
    g.flag("--amp_dtype", one_of("auto", "bf16", "fp16"), "auto", "auto: bf16 where native, else fp16, scaled")
    g.switch("--compile", None, "torch.compile, or eager with a warning where it fails", "on with CUDA, off on a CPU")
    modes = one_of("default", "max-autotune-no-cudagraphs")
    g.flag("--compile_mode", modes, "default", "torch.compile's mode; autotuning compiles longer and may run faster")
    g.switch("--tf32", True, "TF32 on a GPU for what stays fp32")
    g.flag("--residual_dtype", one_of("auto", "fp32", "bf16"), "auto", "of the sum that blocks add to; auto: bf16 "
           "where mixed precision is")
    g.flag("--loss_chunk_tokens", whole(0, 2**30), None, "tokens whose logits exist at once; 0: all",
           "8192 on a GPU, 2048 compiled on a CPU, else all; all in fp16")
    g.switch("--fp8_head", False, "multiply the output layer in 8 bits while training, less exactly; for GPUs from "
             "compute capability 8.9 on (Ada, Hopper), with bf16")
    g.switch("--activation_checkpointing", False, "recompute blocks in backward: a third of the memory, 1.3x the time")
    g = parser.group("output")
    g.flag("--output_dir", text("DIR"), "out", "folder of checkpoints and metrics.jsonl")
    g.flag("--checkpoint_interval", whole(1), 1, "epochs between checkpoints; those stay")
    g.flag("--checkpoint_every_steps", whole(1), None, "steps between rolling checkpoints", "off")
    g.flag("--checkpoint_every_minutes", real(0, 1e6, unit="MINUTES"), 10.0, "between rolling checkpoints; 0: off")
    g.flag("--keep_checkpoints", whole(1), 3, "rolling checkpoints that stay, besides the best by validation")
    g.flag("--resume_from", text("PATH|auto"), None, "a checkpoint, a folder of them (newest), or auto: newest in "
           "--output_dir, else start", "start anew")
    g.flag("--init_from", text("PATH"), None, "weights to start from: a checkpoint or a Hugging Face GPT-2 folder; "
           "the model takes their shape, the optimizer starts anew", "random weights")
    g.switch("--reset_optimizer", False, "resume with weights, step and data order alone: moments start at zero")
    g.switch("--overwrite", False, "delete the checkpoints another run left in --output_dir")
    g.flag("--eval_interval", whole(1), None, "steps between validations", "ten over the run, at most 1,000 apart")
    g.flag("--eval_batches", whole(1), 50, "batches of a validation, always the same; all if there are fewer")
    g.flag("--sample_interval", whole(0), None, "steps between samples of text; 0: none", "five over the run")
    g.flag("--log_interval", whole(1), None, "steps between log lines", "100 over the run, at most 20 apart")
    g.switch("--tensorboard", False, "write event files in --output_dir too; needs the package tensorboard")
    g = parser.group("plan")
    g.switch("--dry_run", False, "print the plan, run four steps, write nothing")
    g.flag("--gpu_cost_per_hour", real(0, 1e6, unit="PRICE"), None, "price of an hour, for --dry_run", "no cost shown")
    g.flag("--budget", real(0, 1e12, unit="PRICE"), None, "what the run may cost, for --dry_run", "no verdict")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """What cannot be together, one line each."""
    given = {name: value is not None for name, value in vars(args).items()}
    wrong = {
        "--min_lr: is above --learning_rate": given["learning_rate"] and (args.min_lr or 0) > args.learning_rate,
        "--min_lr: needs --use_lr_scheduler": given["min_lr"] and not args.use_lr_scheduler,
        "--warmup_steps: needs --use_lr_scheduler": given["warmup_steps"] and not args.use_lr_scheduler,
        "--warmup_steps: ends after --max_steps": (args.warmup_steps or 0) >= (args.max_steps or 2**62),
        "--n_embd: is no multiple of --n_head": given["n_embd"] and given["n_head"] and args.n_embd % args.n_head,
        "--init_from: sets the model's shape; drop --model_size, --n_layer, --n_head, --n_embd, --no-bias and "
        "--no-tie_weights": args.init_from and not (
            args.model_size == "gpt2_small" and args.bias and args.tie_weights
            and not (given["n_layer"] or given["n_head"] or given["n_embd"])),
        "--amp_dtype: has no effect with --no-use_amp": args.amp_dtype != "auto" and args.use_amp is False,
        "--compile_mode: has no effect with --no-compile": args.compile_mode != "default" and args.compile is False,
        "--compile_mode: has no effect with --deterministic": args.compile_mode != "default" and args.deterministic,
        "--overwrite: not with --resume_from auto": args.overwrite and args.resume_from == "auto",
        "--reset_optimizer: has no effect without --resume_from": args.reset_optimizer and not args.resume_from,
        "--allow_new_data: has no effect without --resume_from": args.allow_new_data and not args.resume_from,
        "--gpu_cost_per_hour: has no effect without --dry_run": given["gpu_cost_per_hour"] and not args.dry_run,
        "--budget: needs --gpu_cost_per_hour": given["budget"] and not given["gpu_cost_per_hour"],
        "--preload gpu: not with --no-use_gpu": args.preload == "gpu" and args.use_gpu is False,
        "--residual_dtype bf16: needs mixed precision in bf16": args.residual_dtype == "bf16" and (
            args.use_amp is False or args.amp_dtype == "fp16"),
        "--fp8_head: needs a GPU and mixed precision in bf16": args.fp8_head and (
            args.use_gpu is False or args.use_amp is False or args.amp_dtype == "fp16"),
        "--loss_chunk_tokens: a multiple of 16 with --fp8_head": args.fp8_head and (args.loss_chunk_tokens or 0) % 16,
        "--loss_chunk_tokens: not with --amp_dtype fp16": args.loss_chunk_tokens and args.amp_dtype == "fp16",
    }
    return [problem for problem, is_wrong in wrong.items() if is_wrong]


def answer_early(argv: Sequence[str]) -> int:
    """Flags and packages, before the seconds that importing torch takes."""
    args = read_flags(argv)
    require("torch", "numpy", "tokenizers", "tqdm", "safetensors")
    if args.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UserError(Exit.MACHINE, "--tensorboard: the package tensorboard is missing. Run: pip install tensorboard")
    return 0


if __name__ == "__main__":
    guard(answer_early)

import contextlib
import gc
import hashlib
import json
import math
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

import data
from checkpoint import find
from checkpoint import save as checkpoint_save
from checkpoint.contents import Tensors, bytes_needed, model_card
from checkpoint.find import check_same, not_leading_to, steps_in
from checkpoint.folder import owned, prune
from checkpoint.load import load_training, start_from, starting_config
from checkpoint.save import NotFinite, Saver, Snapshot
from common.errors import Problems, warn
from common.files import cache_folder, sha256_of
from common.progress import Progress
from common.signals import Signals
from common.words import count, duration, printable, size
from generation.sampling import sample
from machine import device
from machine.memory import (
    available_ram,
    forget_peak,
    free_memory,
    is_out_of_memory,
    peak_memory,
    release_memory,
    total_memory,
)
from machine.timing import Gauge, TrainingClock, synchronize
from model import GPT, SIZES, GPTConfig, Options
from ops.attention import attends_in_blocks
from ops.loss import IGNORED
from tokens import corpus
from tokens import tokenizer as tokens_tokenizer
from tokens.corpus import Corpus
from tokens.tokenizer import TOKENIZER_FILES, load_tokenizer
from training import curve, memory
from training import curve as training_curve
from training.parts import FAST, Parts
from training.trackers import Metrics

MOST_SKIPPED_IN_A_ROW = 10  # fp16's loss scale finds its place within a few
ABANDON_SECONDS = 15.0  # a step that has run on for this long after a signal is given up at its next micro-batch
SAMPLE_TOKENS = 64
MIN_VAL_TOKENS = 1000
FINETUNING = 0.1  # of the learning rate for random weights: about the 6.25e-5 of GPT (Radford et al. 2018, 4.1)
NOTHING_LOST = "before the first step; nothing was lost"
ADAMW_STATE = {"step": lambda p: [], "exp_avg": lambda p: list(p.shape), "exp_avg_sq": lambda p: list(p.shape)}
Autocast = Callable[[], contextlib.AbstractContextManager]
Batch = tuple[torch.Tensor, torch.Tensor]


# ---------------------------------------------------------------- the pure pieces



@dataclass(frozen=True)
class Recipe:
    """How the model is trained, every default decided; reasons say why. A sample is a sequence of T tokens."""

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

    @property
    def passes(self) -> float:
        """How often the run goes over its tokens; less than epochs where max_steps ends it."""
        return self.total_steps * self.samples_per_step / self.windows_per_epoch


def model_config(args: argparse.Namespace, vocab_size: int, num_tokens: int) -> GPTConfig:
    """The model's shape from the flags, or from --init_from; T is shorter than asked where the corpus is.

    Raises UserError: exit 2 for a width that the heads do not divide or a T beyond --init_from's, exit 3 for a corpus
    of fewer than two tokens or of more ids than --init_from has, exit 4 for an --init_from that is no model.
    """
    if num_tokens < 2:
        raise UserError(Exit.DATA, f"the corpus has {num_tokens} tokens, 2 are needed. Give pretokenize.py more.")
    if args.init_from:
        _, config = starting_config(args.init_from, warn)
        if vocab_size > config.vocab_size:
            raise UserError(Exit.DATA, f"the corpus has {vocab_size:,} ids, --init_from {config.vocab_size:,}. Make it "
                                       "with pretokenize.py --tokenizer_file and the tokenizer of those weights.")
        if (args.seq_length or 1) > config.seq_length:
            raise UserError(Exit.FLAGS, f"--seq_length {args.seq_length:,}: --init_from has {config.seq_length:,} "
                                        "positions. Lower it.")
        return replace(config, seq_length=min(args.seq_length or config.seq_length, num_tokens - 1),
                       dropout=args.dropout)
    n_layer, n_head, n_embd = (given or default for given, default in
                               zip((args.n_layer, args.n_head, args.n_embd), SIZES[args.model_size], strict=True))
    if n_embd % n_head:
        raise UserError(Exit.FLAGS, f"--n_embd {n_embd}: is no multiple of --n_head {n_head}. Give both.")
    return GPTConfig(vocab_size, min(args.seq_length or 1024, num_tokens - 1), n_layer, n_head, n_embd, args.dropout,
                     args.bias, args.tie_weights)


def choose_recipe(args: argparse.Namespace, config: GPTConfig, num_tokens: int, most_batch_size: int,
                  steps_done: int = 0, samples_seen: int = 0) -> Recipe:
    """Fills in what the flags leave open, with reasons; on resume the horizon counts on from what has been seen.

    Raises UserError (exit 2) for a warm-up that outlasts the run, or a min_lr above a learning rate not given.
    """
    reasons = []
    windows = data.WindowOrder(num_tokens, config.seq_length, 0).windows_per_epoch
    batch_size = most_batch_size if args.batch_size in (None, "auto") else args.batch_size
    if args.batch_size is None:
        reasons.append(f"batch_size {batch_size}: what fits the memory, {batch_size * config.seq_length:,} tokens")
    samples_per_step = batch_size * args.gradient_accumulation_steps
    epochs = args.epochs
    if not epochs and args.max_steps:
        epochs = max(1, math.ceil(args.max_steps * samples_per_step / windows))
    elif not epochs and args.init_from:
        epochs = 3
        reasons.append("epochs 3: weights that are trained need few passes, and overfit with more")
    elif not epochs:
        wanted = 20 * config.num_parameters / num_tokens
        epochs = max(1, min(10, math.ceil(wanted)))
        reasons.append(f"epochs {epochs}: 20 tokens a parameter (Hoffmann et al. 2022) take {wanted:.3g}; 1 to 10")
    remaining = -(-max(0, epochs * windows - samples_seen) // samples_per_step)
    total_steps = min(steps_done + remaining, args.max_steps or 2**62)
    peak = args.learning_rate
    if not peak:
        tokens_per_step = samples_per_step * config.seq_length
        peak = default_learning_rate(config, max(1, total_steps) * tokens_per_step, tokens_per_step)
        what = ""
        if args.init_from:
            peak, what = FINETUNING * peak, f"; {FINETUNING:g} of what random weights get"
        reasons.append(f"learning_rate {peak:.2e}: for {count(config.num_parameters)} parameters, {tokens_per_step:,} "
                       f"tokens a step and {count(total_steps * tokens_per_step)} in all{what}")
    min_lr = args.min_lr if args.min_lr is not None else peak / 100
    if min_lr > peak:
        raise UserError(Exit.FLAGS, f"--min_lr {min_lr:g}: is above the peak, {peak:.3g}. Give --learning_rate.")
    warmup_steps = args.warmup_steps
    if warmup_steps is None:
        warmup_steps = min(max(math.ceil(2 / (1 - args.beta2)), total_steps // 50), total_steps // 5, 2000)
        reasons.append(f"warmup_steps {warmup_steps}: 2% of the steps, at least 2 / (1 - beta2) (Ma and Yarats 2019), "
                       "at most a fifth")
    elif warmup_steps >= total_steps:
        raise UserError(Exit.FLAGS, f"--warmup_steps {warmup_steps:,}: the run has {total_steps:,} steps. Lower it.")
    return Recipe(
        batch_size, args.gradient_accumulation_steps, windows, epochs, total_steps, peak, min_lr, warmup_steps,
        args.use_lr_scheduler,
        eval_interval=args.eval_interval or max(1, min(1000, total_steps // 10)),
        sample_interval=max(1, total_steps // 5) if args.sample_interval is None else args.sample_interval,
        log_interval=args.log_interval or max(1, min(20, total_steps // 100)),
        reasons=tuple(reasons if args.use_lr_scheduler else reasons[:-1]))


def default_learning_rate(config: GPTConfig, total_tokens: int, tokens_per_step: int) -> float:
    """Peak for AdamW, the lower of two published laws; embeddings and head count in neither.

    By compute C in FLOP: 0.3118 C^-0.125 at 0.2920 C^0.3271 tokens a step (Bi et al. 2024, DeepSeek LLM, section 3.1),
    less for smaller steps by the square root of their share (Malladi et al. 2022). By parameters N, which holds short
    runs of small models back: 0.003239 - 0.0001395 ln N (Kaplan et al. 2020, appendix D.6).
    """
    parameters = 12 * config.n_layer * config.n_embd**2
    compute = (6 * parameters + 12 * config.n_layer * config.n_embd * config.seq_length) * total_tokens
    share = min(1.0, tokens_per_step / (0.2920 * compute**0.3271))
    return max(1e-6, min(0.3118 * compute**-0.125 * share**0.5, 0.003239 - 0.0001395 * math.log(parameters)))


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


def train_step(model: GPT, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, batches: Iterable[Batch],
               accumulation: int, autocast: Autocast, label_smoothing: float, grad_clip: float,
               ) -> tuple[torch.Tensor, torch.Tensor]:
    """One optimizer step over its micro-batches: mean loss and gradient norm, on the device, nothing waited for.

    A loss or norm that is not finite leaves weights and optimizer state as they are; the fused optimizer decides that
    on the device, by found_inf, and clips on the way, by grad_scale. All micro-batches have the same number of targets,
    so their mean is the step's mean.
    """
    mean_loss = torch.zeros((), device=next(model.parameters()).device)
    for inputs_BT, targets_BT in batches:
        with autocast():
            loss = model(inputs_BT, targets_BT, label_smoothing) / accumulation
        scaler.scale(loss).backward()
        mean_loss += loss.detach()
    scaler.unscale_(optimizer)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
    optimizer.found_inf = (~(norm + mean_loss).isfinite()).float()  # type: ignore[attr-defined]
    if grad_clip:
        optimizer.grad_scale = (norm / grad_clip).clamp(min=1.0)  # type: ignore[attr-defined]
    optimizer.step()
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return mean_loss, norm


@torch.no_grad()
def evaluate(model: GPT, batches: Iterable[Batch], bytes_per_id: torch.Tensor | None, autocast: Autocast,
             stop: Callable[[], bool]) -> tuple[float, float | None] | None:
    """Mean loss in nats over all targets, and bits per byte of their text (None if unknown); None if stop() said so."""
    model.eval()
    nats, tokens, text_bytes = 0.0, 0, 0
    try:
        for inputs_BT, targets_BT in batches:
            if stop():
                return None
            with autocast():
                loss = model(inputs_BT, targets_BT)
            kept = targets_BT[targets_BT != IGNORED]
            nats += float(loss) * len(kept)
            tokens += len(kept)
            if bytes_per_id is not None:
                text_bytes += int(bytes_per_id[kept].sum())
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
    """What the functions below share. Of its fields the state, the model, the optimizer and the scaler change."""

    args: argparse.Namespace
    out: Progress
    signals: Signals
    machine: device.Machine
    corpus: Corpus
    config: GPTConfig
    recipe: Recipe
    model: GPT
    optimizer: torch.optim.AdamW
    scaler: torch.amp.GradScaler
    batches: data.Batches
    val_tokens: data.Tokens | None
    tokenizer: Any
    bytes_per_id: torch.Tensor | None
    state: State
    clock: TrainingClock
    gauge: Gauge
    curve: training_curve.Curve
    saver: Saver
    snapshot: Snapshot | None  # None: no copy, training waits for the disk
    last_save: dict[str, float] = field(default_factory=dict)  # the step begun, the step done, when it began
    start_up: dict[str, float] = field(default_factory=dict)  # seconds
    last_said: set[str] = field(default_factory=set)  # warnings that are given once
    validations: list[tuple[int, float, float | None]] = field(default_factory=list)  # step, nats, bits per byte
    command: str = ""  # for the model card

    @property
    def output_dir(self) -> Path:
        return Path(self.args.output_dir)

    @property
    def accumulation(self) -> int:
        """Micro-batches a step; more than the recipe's once memory ran out and made them smaller."""
        return self.recipe.samples_per_step // self.batches.batch_size


def settings(args: argparse.Namespace, recipe: Recipe, machine: device.Machine) -> dict[str, dict[str, Any]]:
    """What a resumed run is compared with: the settings, and what the last digits of a loss depend on besides them."""
    numbers = {key: value for key, value in asdict(recipe).items()
               if key not in ("reasons", "log_interval", "sample_interval", "windows_per_epoch")}
    flags = {"weight_decay": args.weight_decay, "beta1": args.beta1, "beta2": args.beta2, "grad_clip": args.grad_clip,
             "label_smoothing": args.label_smoothing, "dropout": args.dropout, "seed": args.seed,
             "fp8_head": args.fp8_head}
    return {"settings": {**numbers, **flags},
            "environment": {"torch": torch.__version__, "device": machine.name,
                            **({"threads": torch.get_num_threads()} if machine.device.type == "cpu" else {}),
                            "precision": machine.precision, "compile": machine.compile,
                            "residual": "bf16" if residual_dtype(args, machine) else "fp32",
                            "loss_chunk": loss_chunk(args, machine)}}


# ---------------------------------------------------------------- saving, validating, sampling



def best_of(state: State) -> str:
    """The best validation loss and its step in words."""
    return "n/a" if state.best_val_loss is None else f"{state.best_val_loss:.4f} at step {state.best_step}"


def save(run: Run, stays: bool) -> None:
    """Begins a save: training waits for a copy of the state alone; a thread writes it and then prunes older ones."""
    settle(run, wait=True)
    state, config, started = run.state, run.config, time.perf_counter()
    run.last_save.update(at=time.monotonic(), begun=state.step)
    card = model_card(config, {
        "steps": f"{state.step:,} of {run.recipe.total_steps:,}",
        "tokens seen": f"{state.samples_seen * config.seq_length:,}", "best validation loss in nats": best_of(state),
        "training tokens": f"{run.corpus.train.length:,}, sha256 {run.corpus.identity}"}, run.validations, run.command)
    fields = {**asdict(state), **settings(run.args, run.recipe, run.machine), "stays": stays,
              "scaler": run.scaler.state_dict(),
              "data": {"train_sha256": run.corpus.identity, "tokenizer_sha256": run.corpus.tokenizer_sha256}}
    with run.out.phase("copying the state"), run.clock.pause():
        tensors = Tensors.of(run.model, run.optimizer)
        tensors = run.snapshot.take(tensors) if run.snapshot else tensors
    stalled = time.perf_counter() - started

    def write() -> tuple[int, float, float]:
        checkpoint_save.save(run.output_dir, fields["step"], config, tensors, fields,
                        run.tokenizer.to_str() if run.tokenizer else None, run.corpus.end_of_text_id, card)
        protected = {state.best_step, int(run.last_save.get("best", 0))}
        prune(run.output_dir, run.args.keep_checkpoints, protected)
        return fields["step"], stalled, time.perf_counter() - started

    run.saver.start(write)
    if run.snapshot is None:
        settle(run, wait=True)


def settle(run: Run, wait: bool) -> None:
    """Says how the save in flight went, once it has ended or, if wait is on, when it ends.

    Raises UserError (exit 6) if it found weights or moments that are not finite.
    """
    if not run.saver.is_busy:
        return
    config, step = run.config, int(run.last_save.get("begun", 0))
    try:
        with run.clock.pause() if wait else contextlib.nullcontext(), run.out.phase("saving"):
            done = run.saver.take(wait)
    except NotFinite as error:
        raise diverged(run, f"{error} is not finite after step {step:,}") from error
    except OSError as error:
        free = shutil.disk_usage(run.output_dir).free if run.output_dir.exists() else 0
        run.out.warn(f"checkpoint-{step} could not be saved: {error.strerror or error}. It needs about "
                     f"{bytes_needed(config):,} bytes, {free:,} are free in {printable(run.args.output_dir)}"
                     ". Training goes on and the next save tries again; free some space.")
        return
    if done is None:
        return
    step, stalled, seconds = done
    if "done" not in run.last_save:
        run.out.say(f"saved checkpoint-{step}: {size(bytes_needed(config))} in {seconds:.2f} s, of which "
                    f"training waited {seconds if run.snapshot is None else stalled:.2f} s (said once)")
    run.last_save["done"] = step
    if run.state.best_step in steps_in(run.output_dir):
        run.last_save["best"] = run.state.best_step


def is_on_disk(run: Run) -> bool:
    """True if the checkpoint of this step is there and sound: the one resumed from, or one saved by this run."""
    return run.state.step in steps_in(run.output_dir) and (
        run.state.step in (run.last_save.get("done"), run.last_save.get("resumed")))


def measure(run: Run) -> tuple[float, float | None] | None:
    """Loss in nats and bits per byte on the validation windows; None without validation tokens or after a signal."""
    if run.val_tokens is None:
        return None
    with run.out.phase("validating"), run.clock.pause():
        return evaluate(run.model, validation_batches(run, run.args.eval_batches), run.bytes_per_id,
                        run.machine.autocast, lambda: run.signals.number is not None)


def validation_batches(run: Run, most: int) -> Iterator[Batch]:
    """Validation windows on the device, at most as many as in so many of the recipe's micro-batches."""
    assert run.val_tokens is not None
    rows, where = memory.divisors(run.recipe.batch_size, run.batches.batch_size)[-1], run.machine.device
    windows = data.validation_batches(run.val_tokens, run.config.seq_length, rows,  # the same windows for any rows
                                      most * (run.recipe.batch_size // rows))
    return ((inputs_BT.to(where), targets_BT.to(where)) for inputs_BT, targets_BT in windows)


def validate(run: Run, metrics: Metrics) -> None:
    """Measures the validation loss, remembers the best, and makes sure that the best is on disk."""
    if (found := measure(run)) is None:  # without tokens, or after a signal: a resumed run validates this step again
        return
    state, (loss, bits) = run.state, found
    is_best = math.isfinite(loss) and (state.best_val_loss is None or loss < state.best_val_loss)
    perplexity = math.exp(min(loss, 700.0))
    metrics.write(step=state.step, val_loss=loss, perplexity=perplexity, bits_per_byte=bits)
    run.validations.append((state.step, loss, bits))
    run.out.say(f"validation at step {state.step:,} | loss {loss:.4f} | perplexity {perplexity:,.2f} | bits per byte "
                f"{'n/a' if bits is None else f'{bits:.4f}'}{' | best so far' if is_best else ''}")
    state.validated_step = state.step
    state.validations_without_gain = 0 if is_best else state.validations_without_gain + 1
    if is_best:
        state.best_val_loss, state.best_step = loss, state.step
        if state.step not in (run.last_save.get("begun"), run.last_save.get("resumed")):
            save(run, stays=False)


def show_sample(run: Run) -> None:
    """Prints a short text by the model as it is."""
    if run.tokenizer is None:
        return
    prompt, ids = run.tokenizer.encode("\n", add_special_tokens=False).ids, []
    with run.out.phase("sampling"), run.clock.pause():
        run.model.eval()
        with contextlib.suppress(UserError):  # logits that are not finite end a run elsewhere, by its steps
            ids += sample(run.model, prompt, SAMPLE_TOKENS, run.args.seed + run.state.step,
                                 run.corpus.end_of_text_id)
        run.model.train()
    text = printable(run.tokenizer.decode(ids)).strip().replace("\n", "\n  | ")
    run.out.say(f"sample at step {run.state.step:,}\n  | {text}")


# ---------------------------------------------------------------- the command, in the order of events



def main(argv: Sequence[str], parts: Parts = FAST) -> int:
    """Everything until the folder is ours; returns the exit code."""
    args = read_flags(argv)
    out, problems, corpus, config, resumed = Progress(), Problems(), None, None, None
    with contextlib.closing(out), Signals() as signals, contextlib.ExitStack() as held:
        signals.at_once = NOTHING_LOST
        with problems.catch():
            if args.use_gpu and (reason := device.why_no_cuda()):
                raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or drop the flag to train on the CPU.")
            if args.fp8_head and (reason := device.why_no_fp8()):
                raise UserError(Exit.MACHINE, f"--fp8_head: {reason}, or drop the flag.")
        with problems.catch():
            if not args.dry_run:
                held.enter_context(owned(Path(args.output_dir)))
        with problems.catch(), out.phase("checking the tokens"):
            corpus = open_corpus(args)
            config = model_config(args, corpus.vocab_size, corpus.train.length)
            if args.fp8_head and (config.seq_length % 16 or config.n_embd % 16):
                raise UserError(Exit.FLAGS, "--fp8_head: needs a width and a T that 16 divides, not "
                                            f"{config.n_embd:,} and {config.seq_length:,}. Drop the flag.")
        with problems.catch():
            if not args.dry_run and (resumed := find_resume(args, out)) and corpus and config:
                check_same(resumed[1], config, corpus.identity, corpus.tokenizer_sha256, args.allow_new_data)
        problems.stop()
        assert corpus
        assert config
        machine = device.choose(args.use_gpu, args.use_amp, args.amp_dtype, args.compile)
        for warning in device.set_up(machine, args.tf32, cache_folder() / "compiled", args.deterministic,
                                     args.dropout):
            out.warn(warning)
        return train(args, argv, out, signals, machine, corpus, config, resumed, parts)


def open_corpus(args: argparse.Namespace) -> Corpus:
    """The token files that the flags mean; with --bin_file the other parts of --data_dir, another corpus, stay out."""
    folder = Path(args.data_dir)
    if args.bin_file is None and not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(Exit.DATA, f"--data_dir {printable(args.data_dir)} {what}. Run: python pretokenize.py TEXT")

    def part(given: str | None, name: str) -> Path | None:
        if given is None and args.bin_file is None and (folder / name).exists():
            return folder / name
        return Path(given) if given else None

    metadata = part(args.metadata_file, "metadata.json")
    if args.bin_file is None and metadata is None and not (args.tokenizer_file or args.vocab_size):
        raise UserError(Exit.DATA, f"--data_dir {printable(args.data_dir)} has no metadata.json: pretokenize.py did "
                                   "not finish, or the tokens are another program's. Those need their vocabulary. Run: "
                                   "python pretokenize.py TEXT, or give --tokenizer_file or --vocab_size.")
    return corpus.open_corpus(Path(args.bin_file or folder), Path(args.val_bin_file) if args.val_bin_file else None,
                            metadata, part(args.tokenizer_file, "tokenizer.json"), args.vocab_size)


def find_resume(args: argparse.Namespace, out: Progress) -> tuple[Path, dict[str, Any]] | None:
    """The verified checkpoint to go on from and its state, or None to start anew. Raises UserError (exit 4)."""
    output_dir = Path(args.output_dir)
    there = steps_in(output_dir)
    if args.resume_from is not None:
        with out.phase("verifying the checkpoint"):
            found = find.find_resume(args.resume_from, output_dir, args.overwrite, out.warn)
        if found is None:
            out.say(f"resume      no checkpoint in {printable(args.output_dir)} yet: starting at step 0")
        return found
    if there and not args.overwrite:
        raise UserError(Exit.CHECKPOINT, f"--output_dir {printable(args.output_dir)} holds another run's checkpoints, "
                                         f"the last of step {max(there):,}. Give --resume_from auto to go on with it, "
                                         "another --output_dir, or --overwrite, which deletes its "
                                         f"{len(there)} checkpoints.")
    return None


def train(args: argparse.Namespace, argv: Sequence[str], out: Progress, signals: Signals,
          machine: device.Machine, corpus: Corpus, config: GPTConfig,
          resumed: tuple[Path, dict[str, Any]] | None, parts: Parts = FAST) -> int:
    """The run from the plan to the last line; returns the exit code."""
    stored = resumed[1] if resumed else {}
    state = State(**{key: stored[key] for key in asdict(State()) if key in stored})
    most_tokens = 16_384 if machine.device.type == "cuda" else 4_096
    most = max(1, most_tokens // config.seq_length)
    memory_bytes = total_memory(machine) if args.batch_size is None else 2**62  # auto: of any machine, then cut
    setting = memory_setting(args, machine, args.gradient_accumulation_steps > 1)
    fits = memory.micro_batch_that_fits(config, memory_bytes, setting, most)
    recipe = choose_recipe(args, config, corpus.train.length, fits, state.step, state.samples_seen)
    if resumed and state.step >= recipe.total_steps:
        out.say(f"already at step {state.step:,} of {recipe.total_steps:,}; raise --epochs or --max_steps to go on")
        return Exit.DONE
    where, why = data.choose_preload(args.preload, corpus.train.num_bytes, free_memory(machine),
                                     available_ram())
    if where == "gpu" and machine.device.type != "cuda":
        raise UserError(Exit.MACHINE, "--preload gpu: training runs on the CPU. Give --preload auto.")
    if args.batch_size == "auto":
        recipe = find_batch_size(args, argv, out, signals, machine, config, recipe)
    for line in describe(args, config, recipe, corpus, machine, f"{where}: {why}"):
        out.say(line)
    for line in (*machine.warnings, *corpus.notes, *doubts(args, config, recipe, corpus)):
        out.warn(line)

    run = build(args, out, signals, machine, corpus, config, recipe, state, where, parts)
    run = replace(run, command=named_only(argv))
    if args.init_from and not resumed:
        start(run)
    if resumed:
        notes = load_training(resumed[0], run.model, run.optimizer, ADAMW_STATE, args.reset_optimizer)
        if run.scaler.is_enabled() and stored.get("scaler"):
            run.scaler.load_state_dict(stored["scaler"])
        if resumed[0].resolve().parent == run.output_dir.resolve():
            run.last_save["resumed"] = state.step  # is on the disk, and not replaced by one that does not stay
        out.say(f"resume      from {resumed[0].name}, step {state.step:,} of {recipe.total_steps:,}")
        for note in notes:
            out.say(f"resume      {note}")
        say_differences(stored, settings(args, recipe, machine), out)
        run.last_save["best"] = state.best_step
    try:
        if machine.compile:
            warm_up(run)
        if args.dry_run:
            return dry_run(run)
        signals.at_once = ""  # from here on there is something to save
        if run.snapshot:
            run.saver.start(lambda: reserve(run))
        for other in not_leading_to(run.output_dir, resumed[0] if resumed else None, state.step):
            if args.overwrite:
                out.say(f"overwrite   deleting {printable(str(other))}")
                shutil.rmtree(other, ignore_errors=True)
        gc.freeze()  # the collector need not look through all there is again and again
        last_loss = loop(run, open_metrics(run))
        return finish(run, argv, last_loss)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        held, there = size(peak_memory(machine)), size(total_memory(machine))
        raise UserError(Exit.MACHINE, f"out of memory with {run.batches.batch_size} sequences at a time: {held} held, "
                                      f"of {there}. What was saved is safe. Try a smaller --batch_size, --seq_length "
                                      "or --model_size.") from error
    finally:
        run.saver.close()
        gc.unfreeze()


def build(args: argparse.Namespace, out: Progress, signals: Signals, machine: device.Machine,
          corpus: Corpus, config: GPTConfig, recipe: Recipe, state: State, where: str, parts: Parts = FAST) -> Run:
    """The model as the seed makes it, its optimizer, the batches, the tokenizer."""
    with out.phase("building the model"):
        torch.manual_seed(args.seed)
        options = Options(residual_dtype(args, machine), args.activation_checkpointing, loss_chunk(args, machine),
                          args.fp8_head, parts.attention)
        model = GPT.create(config, machine.device, options).train()
        optimizer = parts.adamw(param_groups(model, args.weight_decay), recipe.learning_rate,
                                      (args.beta1, args.beta2), fused=True)
        scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.precision == "fp16")
    with out.phase("loading the tokens"):
        windows = data.CorpusWindows(corpus.train, where, config.seq_length, args.seed, machine.device)
        batches = parts.batches(windows, recipe.batch_size, machine.device)
        val_tokens = data.Tokens(corpus.val, "mmap", machine.device) if corpus.val else None
        tokenizer = load_tokenizer(corpus.tokenizer_path) if corpus.tokenizer_path else None
        lengths = tokens_tokenizer.bytes_per_id(tokenizer, config.vocab_size) if tokenizer else None
        bytes_per_id = torch.from_numpy(lengths).to(machine.device) if lengths is not None else None
    copies = saves_in_between(args, recipe) and has_room_for_a_copy(config, machine)
    return Run(args, out, signals, machine, corpus, config, recipe, model, optimizer, scaler, batches, val_tokens,
               tokenizer, bytes_per_id, state, TrainingClock(machine, lambda: out.stopped_seconds),
               Gauge(machine), curve.Curve(math.log(config.vocab_size)), Saver(),
               Snapshot() if copies else None)


def saves_in_between(args: argparse.Namespace, recipe: Recipe) -> bool:
    """True if saves are to be expected before the last step, for which training should not stand still."""
    return (args.checkpoint_every_minutes > 0 or (args.checkpoint_every_steps or math.inf) < recipe.total_steps
            or recipe.eval_interval < recipe.total_steps or recipe.passes > args.checkpoint_interval)


def copy_bytes(config: GPTConfig, machine: device.Machine) -> int:
    """What a copy of the state takes in RAM: PyTorch hands out pinned memory, a GPU's, in powers of two."""
    needed = bytes_needed(config)
    return needed if machine.device.type == "cpu" else 1 << (needed - 1).bit_length()


def has_room_for_a_copy(config: GPTConfig, machine: device.Machine) -> bool:
    """True if the RAM that is left is more than a copy of the state takes, by a checkpoint that training may want."""
    return available_ram() > copy_bytes(config, machine) + bytes_needed(config)


def named_only(argv: Sequence[str]) -> str:
    """The command as a model card may tell it: files by their names, as folders tell about a machine and its user."""

    def named(word: str) -> str:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        return f"{flag}{equals}{Path(value).name}" if os.sep in value else word

    return shlex.join(["python", "train.py", *map(named, argv)])


def open_metrics(run: Run) -> Metrics:
    """metrics.jsonl, cut back to the step resumed from, its validations told to the run; TensorBoard beside it."""
    board = importlib.import_module("torch.utils.tensorboard").SummaryWriter(
        str(run.output_dir / "tensorboard"), purge_step=run.state.step + 1) if run.args.tensorboard else None

    def tell(step: int, fields: dict[str, float]) -> None:
        if board is not None:
            for name, value in fields.items():
                board.add_scalar(name, value, step)
            board.flush()

    metrics = Metrics(run.output_dir / "metrics.jsonl", run.state.step, run.state.validated_step, tell)
    run.validations.extend((fields["step"], fields["val_loss"], fields.get("bits_per_byte")) for fields in metrics.kept
                           if fields.get("val_loss") is not None)
    return metrics


def start(run: Run) -> None:
    """Takes the weights of --init_from. Raises UserError: exit 4 if they do not fit, exit 3 for another tokenizer's."""
    folder, config = starting_config(run.args.init_from, run.out.warn)
    with run.out.phase("loading the weights"):
        start_from(folder, run.model)
    run.out.say(f"start       from the weights of {printable(str(folder))}")
    if config.seq_length > run.config.seq_length:
        run.out.say(f"start       positions {run.config.seq_length:,} to {config.seq_length:,} are cut off")
    theirs = next((folder / name for name in TOKENIZER_FILES if (folder / name).is_file()), None)
    if theirs is None or run.tokenizer is None:
        run.out.warn("--init_from: no tokenizer to compare the corpus's with. If the weights had another one, ids mean "
                     "other text.")
    elif {**load_tokenizer(theirs).get_vocab()} != {**run.tokenizer.get_vocab()}:
        raise UserError(Exit.DATA, f"the corpus was made with another tokenizer than --init_from's, so ids mean other "
                                   f"text. Run pretokenize.py with --tokenizer_file {printable(str(theirs))}")


def reserve(run: Run) -> None:
    """Takes the memory for copies of the state before the first save needs it; the moments are as large as the weights.
    """
    assert run.snapshot
    weights = Tensors(dict(run.model.state_dict()), {})
    run.snapshot.reserve(3 * weights.num_bytes + 2**16, run.machine.device.type == "cuda")


def residual_dtype(args: argparse.Namespace, machine: device.Machine) -> torch.dtype | None:
    """The dtype of the residual stream; None leaves it as autocast makes it, fp32. Raises UserError (exit 2)."""
    if machine.dtype == torch.bfloat16:
        return None if args.residual_dtype == "fp32" else torch.bfloat16
    if args.residual_dtype == "bf16":
        raise UserError(Exit.FLAGS, f"--residual_dtype bf16: this run's precision is {machine.precision}. Give "
                                    "--use_amp on hardware with bf16, or drop the flag.")
    return None


def loss_chunk(args: argparse.Namespace, machine: device.Machine) -> int:
    """For how many tokens logits exist at once, 0 for all; fp16 needs the loss scale before it knows a gradient."""
    if machine.dtype == torch.float16:
        return 0
    most = 8192 if machine.device.type == "cuda" else 2048 if machine.compile else 0
    return most if args.loss_chunk_tokens is None else args.loss_chunk_tokens


def disk_needed(args: argparse.Namespace, config: GPTConfig, recipe: Recipe) -> tuple[int, int]:
    """How many checkpoints may lie in the folder at once (the best and one being written too), and their bytes."""
    kept = args.keep_checkpoints + 2 + int(recipe.passes) // args.checkpoint_interval
    return kept, kept * bytes_needed(config)


def describe(args: argparse.Namespace, config: GPTConfig, recipe: Recipe, corpus: Corpus, machine: device.Machine,
             where: str) -> list[str]:
    """The lines that say on what, what and for how long will be trained, and why so."""
    attention = "matrix products in blocks, faster than the fused kernel on a CPU in bf16"
    if not attends_in_blocks(machine.device.type, machine.dtype, config.seq_length):
        attention = device.attention_backend(machine, config.n_head, config.seq_length,
                                             config.n_embd // config.n_head, args.dropout)
    kept, needed = disk_needed(args, config, recipe)
    setting = memory_setting(args, machine, recipe.accumulation > 1, saves_in_between(args, recipe))
    written = f"in the background, from a copy of {size(copy_bytes(config, machine))} in RAM"
    if not setting.copies:
        written = "at the end"
    elif not has_room_for_a_copy(config, machine):
        setting = replace(setting, copies=False)
        written = f"while training waits: there is no RAM for a copy of {size(copy_bytes(config, machine))}"
    output = [] if args.dry_run else [f"output      {printable(args.output_dir)}: up to {kept} checkpoints, "
                                      f"{size(needed)}; {size(shutil.disk_usage(args.output_dir).free)} free; "
                                      f"written {written}"]
    exact = "that of a run never stopped but for the last digits; --deterministic gives every bit"
    if args.deterministic or machine.device.type == "cpu":
        exact = f"bit for bit that of a run never stopped ({'--deterministic' if args.deterministic else 'on a CPU'})"
    tokens_per_step = recipe.samples_per_step * config.seq_length
    val = f"{count(corpus.val.length)} for validation" if corpus.val else "none for validation"
    schedule = f"{recipe.warmup_steps:,} steps up to {recipe.learning_rate:.2e}, then cosine to {recipe.min_lr:.2e}"
    stream, chunk = "bf16" if residual_dtype(args, machine) else "fp32", loss_chunk(args, machine)
    return [*device.describe(machine, attention, args.tf32), f"exactness   a resumed run's loss is {exact}",
            f"activations {'recomputed in backward' if args.activation_checkpointing else 'kept'}, residual stream in "
            f"{stream}, logits of {f'{chunk:,}' if chunk else 'all'} tokens at once"
            f"{', multiplied in 8 bits' if args.fp8_head else ''}",
            f"tokens      {count(corpus.train.length)} for training, {val}; in {where}",
            f"model       {count(config.num_parameters)} parameters: {config.n_layer} layers, {config.n_head} heads, "
            f"width {config.n_embd}, T {config.seq_length:,}, vocabulary {config.vocab_size:,}, head "
            f"{'tied' if config.tie_weights else 'untied'}",
            "memory      " + memory.describe(memory.memory_parts(config, recipe.batch_size, setting), setting.accumulates),
            f"step        {tokens_per_step:,} tokens: {recipe.batch_size} sequences x {recipe.accumulation} "
            f"micro-batches x {config.seq_length:,}; {config.flops_per_token * tokens_per_step / 1e12:.3g} TFLOP",
            f"horizon     {recipe.total_steps:,} steps, {count(recipe.total_steps * tokens_per_step)} tokens, "
            f"{recipe.passes:.3g} epochs of {recipe.windows_per_epoch:,} sequences",
            f"schedule    {schedule if recipe.use_lr_scheduler else f'constant {recipe.learning_rate:.2e}'}",
            *(f"default     {reason}" for reason in recipe.reasons), *output]


def doubts(args: argparse.Namespace, config: GPTConfig, recipe: Recipe, corpus: Corpus) -> list[str]:
    """What a practitioner would object to before the first step."""
    found = []
    wanted = args.seq_length or 1024
    if config.seq_length < wanted and config.seq_length == corpus.train.length - 1:
        found.append(f"T is {config.seq_length:,}, not {wanted:,}: the corpus has {corpus.train.length:,} tokens.")
    if corpus.val is None:
        found.append("no validation tokens: overfitting will not be seen.")
    elif corpus.val.length < MIN_VAL_TOKENS:  # tokens' losses scatter by about 3 nats
        off = 3 / math.sqrt(corpus.val.length)
        found.append(f"validation has {corpus.val.length:,} tokens: by chance alone its loss is {off:.1g} nats off. "
                     "A larger --val_fraction of pretokenize.py helps.")
    if corpus.train.length < config.num_parameters and recipe.passes > 1:
        found.append(f"the corpus is small for the model: {count(corpus.train.length)} tokens for "
                     f"{count(config.num_parameters)} parameters, {recipe.passes:.1f} times over. It may be "
                     "learned by heart; a smaller --model_size, --dropout 0.2 or --patience 3 help.")
    if not args.dry_run and (free := shutil.disk_usage(args.output_dir).free) < disk_needed(args, config, recipe)[1]:
        found.append(f"--output_dir has {size(free)} free, less than its checkpoints will take. Free some.")
    return found


def say_differences(stored: dict[str, Any], now: dict[str, dict[str, Any]], out: Progress) -> None:
    """Says in what a resumed run differs from the one that saved the checkpoint."""
    changed = {kind: [f"{key} {printable(str(stored[kind][key]))[:60]} -> {value}" for key, value in fields.items()
                      if stored.get(kind, {}).get(key, value) != value] for kind, fields in now.items()}
    if changed["settings"]:
        out.say(f"resume      changed: {', '.join(changed['settings'])}")
    if changed["environment"]:
        out.say(f"resume      losses will differ in the last digits: {', '.join(changed['environment'])}")


def warm_up(run: Run) -> None:
    """Compiles forward and backward on the next batch, changing nothing; if it fails, one warning and eager kernels."""
    rng, started = device.rng_state(run.machine), time.perf_counter()
    inputs_BT, targets_BT = run.batches.get(run.state.samples_seen, 0)
    mode = None if run.args.compile_mode == "default" else run.args.compile_mode
    try:
        with run.out.phase("compiling, a minute or two the first time"):
            run.model.compile(dynamic=False, mode=mode)
            with run.machine.autocast():
                loss = run.model(inputs_BT, targets_BT, run.args.label_smoothing)
            run.scaler.scale(loss).backward()
            synchronize(run.machine)
        run.start_up["compile_seconds"] = time.perf_counter() - started
        run.out.say(f"compiled    in {duration(run.start_up['compile_seconds'])}")
    except Exception as error:
        if not is_out_of_memory(error):  # else the step to come meets it too, and takes smaller micro-batches
            torch.compiler.reset()
            run.model._compiled_call_impl = None  # what model.compile() set; there is no public way back
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            run.out.warn(f"torch.compile failed, running eagerly: {printable(reason)[:200]}. Its kernels go to "
                         f"{printable(os.environ.get('TORCHINDUCTOR_CACHE_DIR', 'the folder for temporary files'))}; "
                         "if that is full or not to be executed from, set TORCHINDUCTOR_CACHE_DIR to another.")
    run.optimizer.zero_grad(set_to_none=True)
    device.set_rng_state(run.machine, rng)
    forget_peak(run.machine)


def loop(run: Run, metrics: Metrics) -> str:
    """Trains from the state's step to the horizon, a signal or the end of patience; returns the last loss in words."""
    state, recipe, args, optimizer = run.state, run.recipe, run.args, run.optimizer
    skipped, in_a_row = torch.zeros(2, device=run.machine.device)
    first_step = last_logged = state.step
    loss_now, losses = math.nan, []
    run.last_save["at"] = time.monotonic()
    if args.init_from and state.step == 0 and (found := measure(run)):
        run.out.say(f"validation before the first step | loss {found[0]:.4f}")
    run.out.bar(recipe.total_steps, state.step, "step")
    if state.validated_step < state.step and state.step % recipe.eval_interval == 0:
        validate(run, metrics)  # the run before ended between saving and validating
    run.clock.start()
    while state.step < recipe.total_steps and run.signals.number is None:
        run.out.now(f"step {state.step + 1:,}")
        for group in optimizer.param_groups:
            group["lr"] = lr_at(state.step + 1, recipe)
        try:
            loss, norm = step_that_fits(run)
        except Abandoned:  # a resumed run replays the step from its first micro-batch
            break
        state.step += 1
        state.samples_seen += recipe.samples_per_step
        skipped += optimizer.found_inf  # type: ignore[attr-defined]
        in_a_row = (in_a_row + 1) * optimizer.found_inf  # type: ignore[attr-defined]
        losses.append(loss)

        is_last = state.step == recipe.total_steps
        if state.step % recipe.log_interval == 0 or is_last or state.step == 1:  # the same steps, resumed or not
            with run.gauge.waiting("device"):
                numbers = torch.stack((*losses, norm, skipped, in_a_row)).tolist()
            *losses_now, norm_now, skipped_now, in_a_row_now = numbers
            state.skipped_steps += int(skipped_now)
            skipped.zero_()
            losses.clear()
            loss_now = losses_now[-1]
            seconds = run.clock.lap()
            report(run, metrics, loss_now, norm_now, seconds / (state.step - last_logged), first_step)
            watch(run, seconds, seconds / (state.step - last_logged))
            read_curve(run, last_logged, losses_now)
            last_logged = state.step
            if in_a_row_now >= MOST_SKIPPED_IN_A_ROW:
                raise diverged(run, f"loss or gradient not finite in {MOST_SKIPPED_IN_A_ROW} steps in a row up to step "
                                    f"{state.step:,}; none was applied")
        stays = is_last or epochs_ended(run)
        saves, validates = stays or is_due(run), is_last or state.step % recipe.eval_interval == 0
        if saves or validates:
            state.skipped_steps += int(skipped)
            skipped.zero_()
        settle(run, wait=False)
        if saves:
            save(run, stays)
        if validates:
            validate(run, metrics)
        if recipe.sample_interval and (state.step % recipe.sample_interval == 0 or is_last):
            show_sample(run)
        if args.patience and state.validations_without_gain >= args.patience:
            run.out.say(f"patience    {args.patience} validations without a new best: the run ends here")
            break
    return f"{loss_now:.4f} at step {last_logged}"


class Abandoned(Exception):
    """A step was given up in its middle because a signal came and the step would take too long."""


def micro_batches(run: Run) -> Iterator[Batch]:
    """The micro-batches of the next step. Raises Abandoned between two of them when a signal has waited too long."""
    for micro in range(run.accumulation):
        if micro and run.signals.number is not None and time.monotonic() - run.signals.at > ABANDON_SECONDS:
            raise Abandoned
        with run.gauge.waiting("data"):
            batch = run.batches.get(run.state.samples_seen, micro)
        yield batch


def step_of(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """One optimizer step on the next samples: mean loss and gradient norm. If it raises, undo takes back its half."""
    return train_step(run.model, run.optimizer, run.scaler, micro_batches(run), run.accumulation, run.machine.autocast,
                      run.args.label_smoothing, run.args.grad_clip)


def step_that_fits(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """step_of; where memory runs out, again from the same weights and samples in smaller micro-batches.

    Raises Abandoned; and the out-of-memory error when a single sequence at a time is too much.
    """
    rng = device.rng_state(run.machine)
    while True:
        try:
            return step_of(run)
        except Abandoned:
            undo(run, rng)
            raise
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or run.batches.batch_size == 1:
                raise
        shrink(run, rng)  # not inside the clause: the error holds the failed step's tensors


def undo(run: Run, rng: list[torch.Tensor]) -> None:
    """Takes back what a step that did not end has done: gradients, draws, moments and a scaler's notes half made."""
    run.optimizer.zero_grad(set_to_none=True)
    device.set_rng_state(run.machine, rng)
    for parameter in [p for p, fields in run.optimizer.state.items() if "exp_avg_sq" not in fields]:
        del run.optimizer.state[parameter]
    if run.scaler.is_enabled():
        run.scaler.scale(torch.zeros((), device=run.machine.device))  # before the first use it has no scale to keep
        run.scaler.update(run.scaler.get_scale())


def shrink(run: Run, rng: list[torch.Tensor]) -> None:
    """Undoes the step that did not fit and halves the micro-batch, or nearly so: it stays a divisor of the samples."""
    undo(run, rng)
    release_memory(run.machine)
    was = run.batches.batch_size
    run.batches.resize(memory.divisors(run.recipe.samples_per_step, (was + 1) // 2)[-1])
    again = "; compiling once more" if run.machine.compile else ""
    run.out.warn(f"out of memory in step {run.state.step + 1:,} with {was} sequences at a time: going on with "
                 f"{run.batches.batch_size} x {run.accumulation} micro-batches, the same samples a step{again}. "
                 f"Next time give --batch_size {run.batches.batch_size} --gradient_accumulation_steps "
                 f"{run.accumulation}, or --batch_size auto.")
    if run.machine.compile:
        with run.clock.pause():
            warm_up(run)


def watch(run: Run, seconds: float, step_seconds: float) -> None:
    """Says once what holds the device back, after seconds more of training."""
    gauge = run.gauge
    gauge.lap(seconds)
    if gauge.host_is_late and gauge.wait_share > 0.05 and gauge.waited["data"] > 10 and "loader" not in run.last_said:
        run.last_said.add("loader")
        run.out.warn(f"the loader holds the device back: {gauge.wait_share:.0%} of the time is spent waiting for "
                     "data. Give --preload ram, or put the tokens on a faster disk.")
    busy, short = gauge.utilisation, step_seconds / run.accumulation < 0.005 and gauge.trained > 10
    idle = short and gauge.host_is_late if busy is None else busy < 50
    if idle and run.machine.device.type == "cuda" and "batch" not in run.last_said:
        run.last_said.add("batch")
        signs = f"a micro-batch takes {1000 * step_seconds / run.accumulation:.1f} ms" if busy is None else (
            f"it has work {busy:.0f}% of the time")
        run.out.warn(f"the GPU waits for the host: {signs}. Give more than --batch_size {run.batches.batch_size}, "
                     "or auto.")


def epochs_ended(run: Run) -> bool:
    """True if the last step completed an epoch whose checkpoint stays."""
    windows = run.recipe.windows_per_epoch * run.args.checkpoint_interval
    return run.state.samples_seen // windows > (run.state.samples_seen - run.recipe.samples_per_step) // windows


def is_due(run: Run) -> bool:
    """True if a rolling checkpoint is due, by steps or by minutes."""
    every, minutes = run.args.checkpoint_every_steps, run.args.checkpoint_every_minutes
    since = time.monotonic() - run.last_save["at"]
    return bool(every and run.state.step % every == 0) or bool(minutes and since >= 60 * minutes)


def report(run: Run, metrics: Metrics, loss: float, norm: float, seconds: float, first_step: int) -> None:
    """Prints the line of a logged step and writes it to metrics.jsonl; seconds are a step's."""
    state, recipe, T = run.state, run.recipe, run.config.seq_length
    lr, tokens_per_second = lr_at(state.step, recipe), recipe.samples_per_step * T / seconds
    metrics.write(step=state.step, loss=loss, lr=lr, grad_norm=norm, tokens=state.samples_seen * T, seconds=seconds)
    peak, epochs = run.machine.peak_flops, min(recipe.epochs, math.ceil(recipe.passes))
    left = (time.perf_counter() - run.clock.began) / (state.step - first_step) * (recipe.total_steps - state.step)
    line = (f"step {state.step:,}/{recipe.total_steps:,}",
            f"epoch {min(epochs, (state.samples_seen - 1) // recipe.windows_per_epoch + 1)}/{epochs}",
            f"loss {loss:.4f}", f"lr {lr:.2e}", f"norm {norm:.2f}", f"{seconds * 1000:.1f} ms",
            f"{tokens_per_second:,.0f} tok/s",
            f"mfu {tokens_per_second * run.config.flops_per_token / peak:.1%}" if peak else "mfu n/a",
            f"{peak_memory(run.machine) / 2**30:.1f} GiB", f"{duration(left)} left",
            *([f"{state.skipped_steps} skipped"] if state.skipped_steps else []))
    run.out.at(state.step, " | ".join(line))


def read_curve(run: Run, last_logged: int, losses: Sequence[float]) -> None:
    """Says what the losses of the steps after last_logged show: each spike, each piece of advice once."""
    for step, loss in enumerate(losses, last_logged + 1):
        if spike := run.curve.add(step, loss):
            run.out.warn(spike)
    recipe = run.recipe
    advice = run.curve.advice(recipe.learning_rate, lr_at(run.state.step, recipe) / recipe.learning_rate)
    if advice and (kind := advice.partition(":")[0]) not in run.last_said:  # 'the loss explodes', say
        run.last_said.add(kind)
        run.out.warn(f"advice at step {run.state.step:,}: {advice}")


def diverged(run: Run, what: str) -> UserError:
    """The error (exit 6) of a run that cannot go on as it does."""
    with contextlib.suppress(OSError, UserError):
        settle(run, wait=True)
    last = next(iter(steps_in(run.output_dir).values()), None)
    return UserError(Exit.DIVERGED, f"{what}. The last good checkpoint is {last.name if last else 'none'}. Resume with "
                                    f"half the --learning_rate ({run.recipe.learning_rate / 2:.2g}) or a longer "
                                    "--warmup_steps.")


def finish(run: Run, argv: Sequence[str], last_loss: str) -> int:
    """The last save and the closing block; returns the exit code. Raises UserError (exit 5) if nothing was saved."""
    state, out, signals = run.state, run.out, run.signals
    seconds = time.perf_counter() - run.clock.began
    settle(run, wait=True)
    if state.step and not is_on_disk(run):
        save(run, stays=False)
        settle(run, wait=True)
    on_disk = is_on_disk(run)
    out.close()
    closing = {"steps": state.step, "tokens": state.samples_seen * run.config.seq_length, "loss": last_loss,
               "best_val_loss": best_of(state), "skipped_steps": state.skipped_steps, "seconds": f"{seconds:.1f}",
               **{name: f"{passed:.1f}" for name, passed in run.start_up.items()},
               "peak_memory": size(peak_memory(run.machine)),
               "peak_memory_bytes": peak_memory(run.machine), **run.gauge.describe(),
               "checkpoint": f"{run.args.output_dir}/checkpoint-{state.step}" if on_disk else "none"}
    out.say("\n".join(f"{key}: {printable(str(value))}" for key, value in closing.items()))
    if state.step and not on_disk:
        raise UserError(Exit.MACHINE, f"the last state could not be saved in {printable(run.args.output_dir)}. Free "
                                      f"{size(bytes_needed(run.config))} and resume from the last one.")
    if signals.number is None:
        out.say(f"next: python generate.py --ckpt {shlex.quote(run.args.output_dir)}")
        return Exit.DONE
    words = [word for word in argv if word != "--overwrite" and not word.startswith("--resume_from=")]
    if "--resume_from" in words:
        at = words.index("--resume_from")
        del words[at:at + 2]
    again = shlex.join(["python", "train.py", *words, "--resume_from", "auto"])
    out.say(f"stopped by {signals.name}; to go on: {again}")
    return 128 + signals.number


def dry_run(run: Run) -> int:
    """Steps as the run would do them and what the whole will take; writes nothing."""
    recipe, args, config, times, loss_now = run.recipe, run.args, run.config, [], math.nan
    validating = 0.0
    with run.out.phase("four steps"):
        for _ in range(4):  # the first is a cold one and does not count
            run.clock.start()
            loss_now = float(step_that_fits(run)[0])
            times.append(run.clock.lap())
        for _ in range(2 if run.val_tokens else 0):  # nor does this first one, which compiles
            run.clock.start()
            evaluate(run.model, validation_batches(run, 1), run.bytes_per_id, run.machine.autocast, lambda: False)
            validating = run.clock.lap() * validation_batches_in_all(run)
        if run.snapshot:
            reserve(run)  # as the run's first save does
    seconds = sorted(times[1:])[1]
    tokens_per_second = recipe.samples_per_step * config.seq_length / seconds
    peak = run.machine.peak_flops
    hours = (seconds * recipe.total_steps + validating) / 3600
    kept, needed = disk_needed(args, config, recipe)
    setting = memory_setting(args, run.machine, run.accumulation > 1)
    if run.machine.device.type != "cuda":  # what a card would do without a flag
        setting = replace(setting, device_type="cuda", dtype=torch.bfloat16, compiled=True)
    cards = ", ".join(f"{most or 'none'} on {card} GB" for card, most in memory.on_cards(config, setting).items())
    closing = {"step_seconds": f"{seconds:.4f}, the median of 3", "tokens_per_second": f"{tokens_per_second:.0f}",
               "mfu": f"{tokens_per_second * config.flops_per_token / peak:.1%}" if peak else "n/a",
               "loss": f"{loss_now:.4f}", "peak_memory": size(peak_memory(run.machine)),
               "largest_batch_size": f"{cards}; predicted for {'fp32' if setting.dtype == torch.float32 else 'half'} "
                                     f"precision, {'compiled' if setting.compiled else 'eager'}",
               "checkpoint_size": size(bytes_needed(config)),
               "disk": f"{size(needed)} for up to {kept} checkpoints", "steps": recipe.total_steps,
               "time": f"{duration(3600 * hours)}, about {duration(validating)} of it validation; saving not counted",
               "hours_per_epoch": f"{hours / recipe.passes:.4g}"}
    if args.gpu_cost_per_hour is not None:
        closing["cost"] = f"{hours * args.gpu_cost_per_hour:.2f}"
        if args.budget is not None:
            closing["budget"] = memory.verdict(args.budget, hours * args.gpu_cost_per_hour, recipe.total_steps,
                                             recipe.passes)
    run.out.say("\n".join(f"{key}: {value}" for key, value in closing.items()))
    return Exit.DONE


def validation_batches_in_all(run: Run) -> int:
    """How many micro-batches the run's validations have."""
    if run.val_tokens is None:
        return 0
    windows = -(-(run.val_tokens.length - 1) // run.config.seq_length)
    times = run.recipe.total_steps // run.recipe.eval_interval + bool(run.recipe.total_steps % run.recipe.eval_interval)
    return times * min(run.args.eval_batches, -(-windows // run.recipe.batch_size))


# ---------------------------------------------------------------- the micro-batch that fits



def memory_setting(args: argparse.Namespace, machine: device.Machine, accumulates: bool, copies: bool = True,
                   ) -> memory.Setting:
    """What decides the memory of a step besides the model's shape and the micro-batch."""
    return memory.Setting(machine.device.type, machine.dtype, machine.compile, accumulates,
                        2 if residual_dtype(args, machine) else 4, loss_chunk(args, machine) or None,
                        args.activation_checkpointing, copies)


def find_batch_size(args: argparse.Namespace, argv: Sequence[str], out: Progress, signals: Signals,
                    machine: device.Machine, config: GPTConfig, recipe: Recipe) -> Recipe:
    """The recipe with the largest micro-batch that fits, its samples per step unchanged.

    What is not remembered from other runs is tried in child processes. Raises UserError (exit 5) where not even one
    sequence fits, SystemExit after a signal.
    """
    signals.at_once = ""  # a child process would outlive us
    samples, free = recipe.samples_per_step, free_memory(machine)
    room = int((1 - memory.MARGIN) * (available_ram() if free is None else free))
    candidates = memory.divisors(samples, max(1, memory.MOST_TOKENS // config.seq_length))
    expected = memory.most_that_fits(config, memory_setting(args, machine, samples > 1), room)
    first = memory.divisors(samples, min(expected, candidates[-1]))[-1]
    if machine.device.type == "cpu":  # more than is expected to fit could take other processes down with it
        candidates = [n for n in candidates if n <= expected]
    tried = []

    def measure(batch_size: int) -> int | None:
        tried.append(batch_size)
        with out.phase(f"trying --batch_size {batch_size}"):
            held = memory.peak_in_child(batch_size, min(2, samples // batch_size), argv,
                                      lambda: signals.number is not None)
        if signals.number is not None:
            raise SystemExit(128 + signals.number)
        return held

    found, held = memory.find(candidates, first, room, memory_key(args, machine, config, samples), measure)
    if found is None:
        raise UserError(Exit.MACHINE, f"--batch_size auto: not even one sequence of {config.seq_length:,} tokens fits "
                                      f"{size(room)}. Take a smaller --seq_length or --model_size.")
    larger = next((n for n in memory.divisors(samples, samples) if n > found), None)
    why = "a whole step" if larger is None else f"{larger} does not fit {size(room)}"
    if larger and larger * config.seq_length > memory.MOST_TOKENS:
        why = f"more than {memory.MOST_TOKENS:,} tokens help no more"
    signals.at_once = NOTHING_LOST
    out.say(f"batch_size  {found} x {samples // found} micro-batches holds {size(held)}; {why} "
            f"({f'{len(tried)} tried' if tried else f'remembered in {printable(str(memory.cache_file()))}'})")
    return replace(recipe, batch_size=found, accumulation=samples // found)


def memory_key(args: argparse.Namespace, machine: device.Machine, config: GPTConfig, samples: int) -> str:
    """A name for all that a step's memory depends on besides the micro-batch."""
    sources = [sha256_of(Path(__file__).with_name(name)) for name in ("model.py", "train.py", "machine/device.py")]
    total = total_memory(machine) if machine.device.type == "cuda" else torch.get_num_threads()
    facts = [asdict(config), machine.name, total, machine.precision, machine.compile, torch.__version__, sources,
             samples, str(memory_setting(args, machine, True)), args.compile_mode, args.label_smoothing, args.fp8_head,
             args.preload, args.bin_file, args.data_dir]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def probe(batch_size: int, accumulation: int, argv: Sequence[str]) -> int:
    """In a child process: prints the bytes that two steps hold at their peak; returns plan.OUT_OF_MEMORY if too many.
    """
    args = read_flags(argv)
    out = Progress(open(os.devnull, "w"))  # noqa: SIM115
    machine = device.choose(args.use_gpu, args.use_amp, args.amp_dtype, args.compile)
    device.set_up(machine, args.tf32, cache_folder() / "compiled", args.deterministic, args.dropout)
    corpus = open_corpus(args)
    config = model_config(args, corpus.vocab_size, corpus.train.length)
    recipe = choose_recipe(args, config, corpus.train.length, batch_size * accumulation)
    recipe = replace(recipe, batch_size=batch_size, accumulation=accumulation)
    where, _ = data.choose_preload(args.preload, corpus.train.num_bytes, free_memory(machine),
                                   available_ram())
    try:
        run = build(args, out, Signals(), machine, corpus, config, recipe, State(), where)
        if machine.compile:
            warm_up(run)
        for _ in range(2):
            float(step_of(run)[0])
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return memory.OUT_OF_MEMORY
    print(peak_memory(machine))
    return Exit.DONE


if __name__ == "__main__":
    guard(main)
