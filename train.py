"""Train a language model, GPT-2, Qwen3 or Llama: tokens in, checkpoints out.

    python train.py --use_gpu --use_amp --compile                       data/ from pretokenize.py, GPT-2 Small, to out/
    python train.py --model_size mini --compile --use_amp               on a laptop's processor
    python train.py --use_gpu --resume_from auto                        continue where the last run in out/ stopped
    python train.py --check                                             what can this machine do? no data needed
    python train.py --use_gpu --dry_run --gpu_cost_per_hour 2           what will it take? four steps, nothing written

Read it from top to bottom: the flags, then main in the order of events, then the step and the loop. What these call is
machinery and lies in training/. A step is one optimizer step over accumulated micro-batches of B sequences of T tokens.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence

from checkpoint.recorded import recorded_flags
from common import flags
from common.allocator import let_segments_grow
from common.errors import Exit, UserError, guard, require
from common.ranks import speaks, world_size
from hub.names import check_package, is_on_hub
from planning.contradictions import contradictions
from trackers.names import requested_trackers, require_packages

TRIAL = "trial"  # the first word of the command by which --batch_size auto and --check try something in a child process

# ---------------------------------------------------------------- flags


def schedule_of_switch(is_on: bool, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What --use_lr_scheduler, or --no-use_lr_scheduler, is as --lr_schedule. Raises ValueError beside another one."""
    name = asked.get("lr_schedule", "cosine" if is_on else "constant")
    if (name == "constant") == is_on:
        raise ValueError(f"--lr_schedule {name}: not with --{'' if is_on else 'no-'}use_lr_scheduler")
    return {"lr_schedule": name}


def read_flags(argv: Sequence[str]) -> flags.Flags:
    """The flags as a namespace. Raises UserError (exit 2) with every problem found."""
    whole, real, text, one_of = flags.whole, flags.real, flags.text, flags.one_of
    parser = flags.Parser("train.py", "Trains a language model. A step is one optimizer step; losses are in nats.")

    g = parser.group("data")
    g.flag("--data_dir", flags.one_or_more(text("DIR[:WEIGHT]")), "data", "folder of token files, of pretokenize.py or "
           "of another program, whose files the next four flags override; several are mixed by weights in tokens, as "
           "in a:0.7 b:0.3, without weights by their sizes", called="data dataset data_path dataset_path train_data",
           replaces="bin_file val_bin_file tokenizer_file metadata_file vocab_size")
    g.flag("--bin_file", text(), None, "training tokens: a file, a folder or a glob of shards", "those in --data_dir",
           called="train_bin train_file input_bin")
    g.flag("--val_bin_file", text(), None, "validation tokens: a file, a folder or a glob of shards",
           "those in the folder or the metadata of the training tokens, else the tail of --bin_file",
           called="val_bin validation_file val_file input_val_bin")
    g.flag("--tokenizer_file", text(), None, "the tokenizer of the tokens", "tokenizer.json in --data_dir",
           called="tokenizer tokenizer_name tokenizer_path")
    g.flag("--metadata_file", text(), None, "the metadata of the tokens", "metadata.json in --data_dir", called="meta")
    g.flag("--vocab_size", whole(1, 2**24), None, "number of ids, where neither metadata nor tokenizer says",
           "from those", hidden=True)
    g.flag("--preload", one_of("auto", "gpu", "ram", "mmap"), "auto", "where the tokens live; auto: the fastest place "
           "that they fit", of="machine", against="gpu: no-use_gpu")
    g.switch("--allow_new_data", False, "resume on other tokens than the checkpoint was trained on", of="call",
             needs="resume_from, cooldown_from", hidden=True)

    g = parser.group("model")
    g.flag("--arch", one_of("gpt2", "qwen3", "llama"), None, "the network; qwen3 and llama: rotary positions, RMSNorm, "
           "SwiGLU, grouped-query attention, in qwen3 norms of queries and keys", "gpt2",
           replaces="bias", against="init_from")
    g.flag("--model_size", one_of("tiny", "mini", "gpt2_small", "gpt2_medium", "gpt2_large", "gpt2_xl"), None,
           "layers, heads, width: 4 4 128, 6 6 384, 12 12 768, 24 16 1024, 36 20 1280, 48 25 1600; the next flags "
           "override them", "gpt2_small; without a GPU what fits the corpus and --max_minutes or 15",
           called="size model model_name model_type", replaces="n_layer n_head n_embd n_kv_head n_inner",
           redecides="init_std", against="init_from")
    g.flag("--n_layer", whole(1, 1024), None, "number of blocks", "by size", called="depth n_layers num_layers layers "
           "num_hidden_layers", against="init_from")
    g.flag("--n_head", whole(1, 1024), None, "number of attention heads, a divisor of the width", "by size",
           called="n_heads num_heads heads num_attention_heads", redecides="n_kv_head n_inner", against="init_from")
    g.flag("--n_embd", whole(1, 2**16), None, "width of the residual stream", "by size", called="d_model dim n_embed "
           "embed_dim hidden_size model_dim width", redecides="n_inner init_std", against="init_from")
    g.flag("--seq_length", whole(1, 2**20), None, "tokens of a sequence, T", "1024, 256 where the size is chosen "
           "for a CPU, or what the corpus allows", called="block_size max_seq_len max_seq_length seq_len "
           "sequence_length context_length n_ctx n_positions max_length")
    g.flag("--dropout", real(0, 1, below=True), 0.0, "share of activations dropped; 0.1 to 0.2 against overfitting",
           called="drop dropout_rate resid_pdrop attn_pdrop")
    g.switch("--bias", None, "biases in linear layers and norms of gpt2", "on for gpt2; the others have none",
             against="arch qwen3|llama, init_from")
    g.flag("--n_kv_head", whole(1, 1024), None, "heads of keys and values in qwen3 and llama, a divisor of --n_head",
           "a third of --n_head, or half where 3 does not divide it", redecides="n_inner", needs="arch qwen3|llama",
           against="init_from", hidden=True)
    g.flag("--n_inner", whole(1, 2**20), None, "width inside the MLP in qwen3 and llama", "blocks as large as gpt2's",
           needs="arch qwen3|llama", against="init_from", hidden=True)
    g.flag("--rope_theta", real(1, 1e9, above=True), None, "base of the rotary frequencies in qwen3 and llama", "10000",
           needs="arch qwen3|llama", against="init_from", hidden=True)
    g.switch("--tie_weights", True, "one matrix for the embedding and the output layer", called="weight_tying "
             "tie_embeddings tie_word_embeddings", against="init_from")

    g = parser.group("horizon")
    g.flag("--batch_size", flags.auto_or(whole(1, 2**20)), None, "sequences per device per forward pass; auto: the "
           "largest that is found to fit, with the tokens of a step unchanged",
           "what fits: up to 16,384 tokens on a GPU, 4,096 on a CPU", called="per_device_train_batch_size "
           "device_batch_size micro_batch_size bs train_batch_size", against="auto: model_parallel fsdp|hsdp",
           redecides="gradient_accumulation_steps learning_rate embedding_learning_rate min_lr beta2")
    g.flag("--gradient_accumulation_steps", whole(1, 2**20), world_size(), "micro-batches a step, of all processes "
           "together; double it to halve --batch_size", "one for each process", called="gradient_accumulation "
           "grad_accum grad_accum_steps accumulate_grad_batches accumulation_steps",
           redecides="learning_rate embedding_learning_rate min_lr beta2")
    follows = "min_lr warmup_steps eval_interval sample_interval log_interval"
    g.flag("--epochs", whole(1), None, "passes over the tokens", "as many as --max_steps needs, else 1 to 10",
           called="num_train_epochs num_epochs n_epochs epoch max_epochs", against="cooldown_from",
           replaces="max_steps cooldown_from", redecides=follows)
    g.flag("--max_steps", whole(1), None, "steps after which the run ends, if that is sooner than --epochs", "no limit",
           called="max_iters num_iterations iters steps num_steps iterations total_steps", against="cooldown_from",
           replaces="epochs cooldown_from", redecides=follows)
    g.flag("--max_minutes", real(0, 1e6, above=True, unit="MINUTES"), None, "minutes after which the run ends, all "
           "included; the steps that fit are planned by measured ones, and --epochs and --max_steps stay upper limits",
           "no limit", redecides=f"epochs learning_rate embedding_learning_rate {follows}")
    g.flag("--patience", whole(1), None, "validations without a new best after which the run ends", "off",
           called="early_stopping early_stopping_patience")

    g = parser.group("optimizer: decay on matrices and embeddings only", "updates")
    g.flag("--optimizer", one_of("auto", "adamw", "muon", "adamw8bit"), "auto", "muon: the matrices inside blocks by "
           "Muon, all else by AdamW; adamw8bit: AdamW whose moments take 2 bytes a parameter, not 8; auto: muon for "
           "steps of many tokens, adamw for trained weights and where --learning_rate, --beta1 or --beta2 is given",
           called="optim opt", redecides="learning_rate min_lr embedding_learning_rate init_std",
           against="adamw8bit: model_parallel fsdp|hsdp")
    g.flag("--learning_rate", real(0, 10, above=True), None, "peak; halve it when the loss jumps", "by size and batch",
           called="lr max_lr peak_lr matrix_lr", redecides="min_lr embedding_learning_rate init_std")
    g.flag("--embedding_learning_rate", real(0, 10, above=True), None, "peak of embeddings, output layer, norms and "
           "biases", "--learning_rate where that is given", hidden=True)
    g.flag("--init_std", real(0, 1, above=True), None, "deviation of the normal initial matrices and embeddings; "
           "residual projections have it by the root of twice the layers", "0.02, more for AdamW at its default "
           "rate in models narrower than 1,000", against="init_from", hidden=True)
    g.flag("--lr_schedule", one_of("linear", "cosine", "wsd", "constant"), None, "how it falls after the warm-up; wsd: "
           "constant, and at the end in a line, so that its plateau can be trained longer", "linear",
           called="lr_scheduler_type schedule lr_decay_style", replaces="cooldown",
           redecides="min_lr warmup_steps")
    g.flag("--min_lr", real(0, 10), None, "learning rate at the end of the run", "0, with cosine a hundredth of the "
           "peak", called="min_learning_rate end_lr final_lr lr_min")
    g.flag("--warmup_steps", whole(0), None, "steps of linear warm-up", "10% of the steps, at most 2,000; none with "
           "constant", called="warmup_iters lr_warmup_steps num_warmup_steps")
    g.flag("--cooldown_from", text("PATH"), None, "a checkpoint to go on from while the learning rate falls from where "
           "it is to --min_lr: a finished model from any point of a run", "off", redecides="min_lr",
           replaces="epochs max_steps max_minutes cooldown", against="init_from")
    g.flag("--cooldown", flags.share_or_steps(), None, "of the steps of wsd, or of those done before --cooldown_from: "
           "the share, 0.2, or the number, 500, in which the rate falls", "0.2", hidden=True,
           needs="lr_schedule wsd, cooldown_from")
    g.old("--decay_share", real(0, 1, above=True), lambda share, asked: {"cooldown": share})
    g.old("--cooldown_steps", whole(1), lambda steps, asked: {"cooldown": steps})
    g.old("--use_lr_scheduler", flags.SWITCH, schedule_of_switch)
    g.flag("--weight_decay", real(0, 10), None, "decoupled weight decay, per step and learning rate", "0.1",
           called="wd")
    g.flag("--beta1", real(0, 1, below=True), 0.9, "decay of the running mean of gradients", called="adam_beta1")
    g.flag("--beta2", real(0, 1, below=True), None, "decay of the running mean of squared gradients", "0.95 at 0.5M "
           "tokens a step to 0.99 at fewer than 0.1M", called="adam_beta2")
    g.flag("--grad_clip", real(0, 1e6), None, "largest norm of the gradient; 0: not clipped", "1", called="max_norm "
           "max_grad_norm clip clip_grad gradient_clip_val")
    g.flag("--label_smoothing", real(0, 1, below=True), 0.0, "share of the target spread over all ids in training",
           called="smoothing label_smoothing_factor")
    g.flag("--seed", whole(0, 2**63 - 1), 1337, "of weights, data order and dropout", called="random_seed manual_seed")
    g.switch("--deterministic", False, "only kernels whose results do not depend on timing: slower on a GPU, where a "
             "resumed run then equals one that was never stopped bit for bit; an operation without such a kernel ends "
             "the run", called="full_determinism", of="machine")

    g = parser.group("machine", of="machine")
    g.switch("--use_gpu", None, "require a GPU, NVIDIA's or Apple's; exit 5 when there is none", "a GPU when there is "
             "one")
    g.switch("--use_amp", None, "mixed precision", "on with a GPU, off on a CPU", called="amp mixed_precision")
    g.flag("--model_parallel", one_of("auto", "ddp", "fsdp", "hsdp"), "auto", "how several processes share a model; "
           "ddp: each has all of it; fsdp: each has some rows of each weight; hsdp: so within a machine, each of which "
           "has all; auto: ddp where that fits the memory", of="run")
    g.flag("--amp_dtype", one_of("auto", "bf16", "fp16"), "auto", "auto: bf16 where it is native, else fp16 with loss "
           "scaling", against="bf16: no-use_amp, fp16: no-use_amp")
    g.switch("--compile", None, "torch.compile, or eager with a warning where it fails", "on with CUDA, off "
             "elsewhere", called="torch_compile use_compile")
    graphs = "reduce-overhead"  # CUDA graphs; against: what they cannot do, or has not been shown with them
    g.flag("--compile_mode", one_of("default", "blocks", graphs, "max-autotune-no-cudagraphs"), None,
           "default: the whole model; blocks: block by block, a start in seconds and a step about 1% slower; "
           "reduce-overhead: CUDA graphs, for models so small that launching takes longer than computing; autotuning "
           "compiles longer and may run faster", "default; blocks for GPUs without bf16, and of several processes",
           against="no-compile, no-use_gpu, deterministic, " + ", ".join(
               f"{graphs}: {other}" for other in ("activation_checkpointing", "batch_size auto", "dropout")))
    g.old("--compile_blocks", flags.SWITCH, lambda is_on, asked: {"compile_mode": "blocks" if is_on else "default"})
    g.switch("--activation_checkpointing", False, "recompute blocks in the backward pass: a third of the memory, 1.3x "
             "the time", called="gradient_checkpointing grad_checkpointing")

    g = parser.group("output")
    g.flag("--output_dir", text("DIR"), "out", "folder of checkpoints and metrics.jsonl", of="call",
           called="out_dir out save_dir checkpoint_dir log_dir run_dir")
    g.flag("--checkpoint_interval", whole(1), 1, "epochs between checkpoints; those stay")
    g.flag("--checkpoint_every", flags.one_or_more(flags.cadence()), "10m", "steps, 500, or minutes, 10m, between "
           "rolling checkpoints; or both; 0: off", called="save_interval save_steps save_every")
    g.old("--checkpoint_every_steps", whole(1), lambda steps, asked: flags.with_cadence(asked, steps=steps))
    g.old("--checkpoint_every_minutes", real(0, 1e6), lambda minutes, asked: flags.with_cadence(asked, minutes=minutes))
    g.flag("--keep_checkpoints", whole(1), 3, "rolling checkpoints that stay, besides the best by validation",
           called="save_total_limit max_checkpoints keep_last")
    g.flag("--mirror_to", text("DIR"), None, "folder on another disk, such as a mounted drive, to which checkpoints "
           "are copied beside training; --resume_from auto goes on from there where --output_dir is empty", "none",
           of="call")
    g.flag("--resume_from", text("PATH|auto"), None, "a checkpoint, a folder of them (newest), best or last, or auto: "
           "newest in --output_dir, else a new run", "a new run", of="call",
           called="resume resume_from_checkpoint load_checkpoint ckpt checkpoint")
    g.flag("--init_from", text("PATH"), None, "weights to start from: a checkpoint, a folder of them (newest), the "
           "best of a folder (out/best), a Hugging Face folder of GPT-2, Qwen3 or Llama, or such a model on the hub: "
           "hf://OWNER/NAME, with @REVISION; the model takes their shape, the optimizer starts fresh", "random weights",
           called="model_name_or_path initial_checkpoint_dir pretrained from_pretrained")
    g.switch("--overwrite", False, "delete the checkpoints that another run left in --output_dir", of="call",
             called="overwrite_output_dir force", against="resume_from auto", hidden=True)
    g.flag("--eval_interval", whole(1), None, "steps between validations", "ten over the run, at most 1,000 apart",
           called="eval_every eval_steps val_interval validation_interval")
    g.flag("--eval_tokens", whole(1), None, "tokens of a validation, in whole sequences, always the same ones; all if "
           "there are fewer", "a hundredth of the run's, 16,384 to 524,288")
    g.flag("--eval_batches", whole(1), None, "the same in batches of --batch_size as it is when the run begins", "off",
           called="eval_iters val_batches val_iters", hidden=True, of="call", against="eval_tokens",
           replaces="eval_tokens")
    g.flag("--sample_interval", whole(0), None, "steps between samples of text; 0: none", "five over the run",
           called="sample_every")
    g.flag("--log_interval", whole(1), None, "steps between log lines", "100 over the run, at most 20 apart",
           called="logging_steps log_every print_every")
    g.flag("--tracker", flags.one_or_more(one_of("tensorboard", "wandb", "trackio", "none"), adds_up=True),
           None, "where the figures, samples and advice of metrics.jsonl go besides; needs the package of its name",
           "none", called="trackers report_to log_with logger", of="machine")
    g.old("--tensorboard", flags.SWITCH, lambda is_on, asked: {
        "tracker": ["tensorboard", *flags.in_list(asked.get("tracker"))]} if is_on else {})

    g = parser.group("plan", of="call")
    g.switch("--check", False, "what this machine can do, and the hours of each size, here and on common cards; "
             "reads no data, trains nothing")
    g.switch("--verbose", False, "print the whole plan, not only size, time and disk", hidden=True)
    g.switch("--dry_run", False, "print the plan, run four steps, write nothing")
    g.flag("--overfit", whole(1), None, "batches to learn again and again, without dropout, until their loss is near "
           "zero: can this set-up learn at all? exit 6 if not; writes nothing", "off", called="overfit_batches",
           against="check, dry_run, resume_from, cooldown_from, max_minutes, patience")
    g.flag("--gpu_cost_per_hour", real(0, 1e6, unit="PRICE"), None, "price of a GPU's hour, with --dry_run or --check",
           "no cost shown", needs="dry_run, check")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, contradictions, recorded_flags)


def answer_early(argv: Sequence[str]) -> int:
    """Checks flags and packages before the seconds that importing torch takes."""
    args = read_flags(argv[3:] if argv[:1] == [TRIAL] else argv)
    # A thread that spins while it waits takes the processor from the one it waits for, if other work is there: without
    # this a step beside other work took up to ten times as long. GNU's OpenMP reads it when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    let_segments_grow()
    require("torch", "numpy", "tokenizers", "tqdm", "safetensors")
    check_package(args.init_from)
    require_packages(requested_trackers(args))
    return 0


if __name__ == "__main__":
    guard(answer_early)

import contextlib
import gc
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import data
from architectures.table import ModelConfig
from checkpoint.find import Found, check_same, wait_until_here
from checkpoint.folder import owned
from checkpoint.verify import manifest_sha256
from common.config import Layer
from common.errors import Problems
from common.files import cache_folder
from common.progress import Progress
from common.signals import Signals
from common.transcript import Transcript, heading
from common.words import percent, printable, shell_line, size
from hub.download import with_models_here
from machine import device
from machine.backends import NVIDIA
from machine.device import Machine
from machine.processes import ALONE, joined, of_environment
from model import Options
from planning.check import check_machine, compile_something
from planning.memory import MemorySetting, choose_sharing, most_sequences
from planning.micro_batch import find_micro_batch, what_fits
from planning.pace import Deadline, Pace, measure_pace, plan_until
from planning.plan import Plan, describe_dry_run, describe_finished, say_first, say_rest
from planning.recipe import Recipe, choose_config, choose_options, choose_recipe, fix_eval_tokens
from planning.schedules import learning_rate_at
from planning.sizing import Sizing, choose_sizing
from planning.trial import measure_trial
from tokens.corpus import Corpus
from tokens.mixture import check_lengths, in_words
from tokens.watch import TokensChanged
from training.checkpointing import Checkpointer, SavingPlan, plan_saving
from training.cooldown import set_aside
from training.decisions import Decisions
from training.fused import adamw_for
from training.mirror import catch_up, check_mirror, prepare_mirror, take_mirror
from training.optimizers import OPTIMIZERS, OptimizerKind, dtype_of_products, parameter_groups
from training.overfit_test import few_windows, learn_by_heart
from training.parallel import build, sequences_at_a_time
from training.parts import FAST, Parts
from training.recorded import flags_of_run, write_run_config
from training.recovery import (
    MOST_SKIPPED_IN_A_ROW,
    Abandoned,
    can_shrink,
    compile_step,
    diverged,
    explaining_divergence,
    explaining_memory,
    micro_batches,
    saving_before_new_tokens,
    shrink,
    undo,
)
from training.starting import (
    Settings,
    choose_place,
    choose_resume,
    delete_other_runs,
    find_corpus,
    forget_best_on_other_tokens,
    in_common,
    require_folders,
    resume,
    settings_of,
    start_from_weights,
    with_what_no_flag_says,
)
from training.state import Run, Runtime, Setup, StepResult, TrainState
from training.validation import Validator
from watching.monitor import Monitor, mfu
from watching.starts import recorded_start
from watching.trackers import Trackers, told_of_run

NOTHING_LOST = "before the first step; nothing was lost"

# ---------------------------------------------------------------- main, in the order of events


def main(argv: Sequence[str], parts: Parts = FAST) -> int:
    """Checks all that the run needs, then trains; returns the exit code."""
    if argv[:1] == [TRIAL]:
        return answer_trial(int(argv[1]), int(argv[2]), argv[3:])
    began, args, processes = time.monotonic(), read_flags(argv), of_environment()
    if args.overfit:
        args = flags.having(args, dropout=0.0, label_smoothing=0.0)
    with contextlib.ExitStack() as held:
        transcript = held.enter_context(Transcript(is_silent=not speaks()))
        out = held.enter_context(contextlib.closing(Progress(transcript=transcript)))
        signals = held.enter_context(Signals(out.note, can_save=True))
        signals.at_once = NOTHING_LOST
        held.enter_context(joined(processes, args.use_gpu))
        if args.check:
            require_gpu(args)
            return check_machine(args, choose_machine(args, out), out, signals, trial_command(argv))
        if is_on_hub(args.init_from):
            require_folders(args)
            args = with_models_here(args, ["init_from"], out)
        corpus, sizing, config, resumed = processes.lead(
            partial(check_inputs, args, out, held), checkpoint_of, partial(follow_inputs, args))
        deadline = Deadline(args.max_minutes, resumed[1] if resumed else {}, began)
        runtime = Runtime.of(choose_machine(args, out), processes, out, signals)
        return train(args, argv, parts, runtime, corpus, sizing, config, resumed, deadline)


Inputs = tuple[Corpus, Sizing | None, ModelConfig, Found | None]


def check_inputs(args: argparse.Namespace, out: Progress, held: contextlib.ExitStack) -> Inputs:
    """The corpus, the model's size where no flag names it, its shape, and the checkpoint to resume from.

    The output folder stays locked while held is open. Raises one UserError with all problems that do not depend on
    each other.
    """
    problems, corpus, sizing, config, resumed = Problems(), None, None, None, None
    writes = not (args.dry_run or args.overfit)
    if args.config.recorded:
        but = f"; on the command line {', '.join(args.config.changed)}" if args.config.changed else ""
        out.say(f"resume      with the flags in {args.config.recorded}{but}")
    with problems.catch():
        require_gpu(args)
        if args.compile_mode == "reduce-overhead" and (reason := NVIDIA.why_not()):
            raise UserError(Exit.MACHINE, f"--compile_mode reduce-overhead: {reason}, or drop the flag.")
        if args.activation_checkpointing and args.dropout and not device.drops_the_same(args.use_gpu):
            raise UserError(Exit.MACHINE, "--activation_checkpointing with --dropout: on Apple's GPU PyTorch drops "
                                          "other activations when it computes a block again. Drop one of the flags.")
    with problems.catch():
        if writes:
            held.enter_context(owned(Path(args.output_dir)))
            prepare_mirror(args, out)
    with problems.catch(), out.phase("checking the tokens"):
        corpus = find_corpus(args)
        sizing = choose_sizing(args, corpus)
        config = choose_config(args, corpus.vocab_size, corpus.train.length, sizing)
        check_lengths(corpus, config.seq_length)
    with problems.catch():
        may_resume = writes or args.resume_from or args.cooldown_from
        resumed = choose_resume(args, out) if may_resume else None
        if writes:
            check_mirror(args, resumed)
        if resumed and corpus and config:
            config = with_what_no_flag_says(config, resumed[0])
            check_same(resumed[1], config, corpus.identity, corpus.tokenizer_sha256, args.allow_new_data,
                       in_words(corpus.shares))
    problems.stop()
    assert corpus
    assert config
    return corpus, sizing, config, resumed


def checkpoint_of(inputs: Inputs) -> tuple[str, dict[str, Any], str] | None:
    """What the first process tells the others of the checkpoint to resume from: folder, state, manifest's sha256."""
    return (str(inputs[3][0]), inputs[3][1], manifest_sha256(inputs[3][0])) if inputs[3] else None


def follow_inputs(args: argparse.Namespace, told: tuple[str, dict[str, Any], str] | None) -> Inputs:
    """What check_inputs returns, in another process, once the first one has checked it."""
    corpus = find_corpus(args)
    sizing = choose_sizing(args, corpus)
    config = choose_config(args, corpus.vocab_size, corpus.train.length, sizing)
    if told is None:
        return corpus, sizing, config, None
    folder, state, sha256 = Path(told[0]), told[1], told[2]
    wait_until_here(folder, sha256)
    return corpus, sizing, with_what_no_flag_says(config, folder), (folder, state)


def require_gpu(args: argparse.Namespace) -> None:
    """Raises UserError (exit 5) if --use_gpu is given and there is no GPU that can be used."""
    if args.use_gpu and (reason := device.why_no_gpu()):
        raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or give --no-use_gpu to train on the CPU.")


def choose_machine(args: argparse.Namespace, out: Progress) -> Machine:
    """The device, its precision and whether to compile, set up for the whole process."""
    machine = device.choose(args.use_gpu, args.use_amp, args.amp_dtype, args.compile)
    for warning in device.set_up(machine, cache_folder() / "compiled", args.deterministic, args.dropout):
        out.warn(warning)
    return machine


def train(args: argparse.Namespace, argv: Sequence[str], parts: Parts, runtime: Runtime, corpus: Corpus,
          sizing: Sizing | None, config: ModelConfig, resumed: Found | None, deadline: Deadline) -> int:
    """The run from the plan to the last line; returns the exit code."""
    machine, processes, out = runtime.machine, runtime.processes, runtime.out
    folder, stored = resumed or (None, {})
    state = TrainState.from_stored(stored)

    # The plan: what will be trained, and how.
    options = choose_options(args, machine, parts.attention, stored.get("environment", {}))
    way, why_way = processes.agree(lambda: choose_sharing(args, config, options, machine, processes))
    most = processes.agree(lambda: most_sequences(args, sizing, config, options, machine, processes, way))
    choose = partial(choose_recipe, args, config, corpus.train.length, most, sizing, stored)
    recipe = choose(deadline.horizon)
    kind = OPTIMIZERS[recipe.optimizer]
    if resumed and nothing_is_left(args, state, recipe, corpus, deadline, runtime):
        return Exit.DONE
    plan = make_plan(args, argv, runtime, corpus, config, options, recipe, kind, stored, way, why_way)
    processes.check_same(in_common(args, plan.recipe, config, options, corpus, machine))
    setup = Setup(args, runtime, corpus, sizing, resumed, plan)
    say_first(setup)

    # The parts: model and optimizer, tokens. Steps are measured and undone, and fix the horizon of --max_minutes.
    run = build_run(setup, parts, state)
    with explaining_memory(run):
        if machine.compile and state.step < recipe.total_steps:
            compile_step(run)
        pace = measure_pace(run, take_step, deadline)
        if deadline.is_open:
            plan = plan_until(deadline, args, plan, choose, pace, state.step, processes)
    run.setup = replace(run.setup, plan=plan)
    recipe = plan.recipe
    forget_best_on_other_tokens(stored, state, recipe, config, corpus, out)
    if not args.overfit:
        say_rest(run.setup, pace, state.step)

    # The start: random weights, those of --init_from, or a checkpoint.
    validator = Validator(args, recipe, config, corpus, runtime,
                          lambda: run.decisions.agree_now("stop", runtime.signals.number is not None))
    settings = settings_of(args, flags_of_run(args, config, recipe, corpus), recipe, options, machine, processes)
    checkpointer = Checkpointer(run, settings, validator.tokenizer_json())
    if args.init_from and not resumed:
        state.init_from = start_from_weights(args, run, validator.tokenizer, out)
    if folder:
        resume(folder, stored, run, settings, recipe.total_steps, out)

    # The run.
    with explaining_memory(run), explaining_divergence(recipe, checkpointer):
        if args.dry_run:
            return dry_run(run, pace, validator, checkpointer)
        if args.overfit:
            return learn_by_heart(run, take_step)
        with (open_output(args, argv, settings, config, recipe, state, checkpointer, folder, runtime) as monitor,
              recorded_start(run, pace, settings),
              saving_before_new_tokens(checkpointer, processes)):
            processes.watch(runtime.signals, lambda: run.decisions.num_asked, lambda: checkpointer.is_busy, pace.step)
            loop(run, pace, deadline, validator, checkpointer, monitor)
            return save_and_close(run, checkpointer, monitor)


def open_output(args: argparse.Namespace, argv: Sequence[str], settings: Settings, config: ModelConfig, recipe: Recipe,
                state: TrainState, checkpointer: Checkpointer, folder: Path | None, runtime: Runtime) -> Monitor:
    """Takes over the output folder; from here on there is something to save, and a signal waits for it."""
    out, is_first = runtime.out, runtime.processes.is_first
    flags_now = Layer("", settings["flags"]["given"], settings["flags"]["decided"], {})
    out.keep_in(Path(args.output_dir) / "log.txt", heading(shell_line(["python", "train.py", *argv]), state.step),
                appends=bool(state.step or args.resume_from))
    runtime.signals.promise(lambda: f"stopping; the state is saved first (now: {out.doing})", checkpointer.stake)
    if args.overwrite and is_first:
        delete_other_runs(checkpointer.output_dir, folder, state.step, out)
    if is_first:
        set_aside(checkpointer.output_dir, folder, state.step, out)
        write_run_config(checkpointer.output_dir, flags_now, recipe.reasons)
    if checkpointer.mirror:
        take_mirror(args, checkpointer.mirror, folder, state.step, out)
    checkpointer.start(folder)

    told = told_of_run(flags_now, settings["environment"], config, recipe)
    trackers = Trackers(args, checkpointer.output_dir, state, out, told, is_silent=not is_first)
    checkpointer.add_earlier_validations(trackers.rows)
    if recipe.cooldown and not checkpointer.is_on_disk:
        checkpointer.save(stays=False)  # in another folder it has no checkpoint yet that --resume_from would find
    gc.freeze()  # so that the collector does not look through all there is again and again
    return Monitor(args, recipe, config, state, trackers, runtime)


# ---------------------------------------------------------------- the plan, the model


def make_plan(args: argparse.Namespace, argv: Sequence[str], runtime: Runtime, corpus: Corpus, config: ModelConfig,
              options: Options, recipe: Recipe, kind: OptimizerKind, stored: dict[str, Any], way: str,
              why_way: str) -> Plan:
    """Decides what is left: where the tokens live, the micro-batch of --batch_size auto, validation, how the run saves.

    stored is the state of the checkpoint to resume from, {} for a new run; way is how processes share the model.
    """
    machine, processes = runtime.machine, runtime.processes
    where, why = processes.agree(lambda: choose_place(args, corpus, machine, processes))
    if args.batch_size == "auto":
        recipe = recipe.with_micro_batch(processes.agree(lambda: find_micro_batch(
            args, config, options, recipe, kind, runtime, partial(trial_command, argv))))
    recipe = fix_eval_tokens(args.output, recipe, config, stored.get("settings", {}))

    optimizer_bytes = kind.memory_bytes(config)
    weights = 4 * config.num_parameters if machine.device.type != "cuda" else 0
    held_bytes = weights + (corpus.train.num_bytes if where == "ram" else 0)
    saving = SavingPlan(**processes.agree(lambda: asdict(
        plan_saving(args.output, config, recipe, optimizer_bytes, held_bytes))))
    setting = MemorySetting.of(machine, options, True, saving.copies, optimizer_bytes, way, processes)
    if processes.world_size > 1:
        recipe = recipe.with_micro_batch(processes.agree(
            lambda: what_fits(Path(args.output_dir), recipe, config, setting, runtime.out)))
    at_a_time = sequences_at_a_time(recipe.samples_per_step, recipe.batch_size, processes)
    setting = replace(setting, accumulates=recipe.samples_per_step > at_a_time * processes.world_size)
    return Plan(config, options, recipe, kind, setting, saving, where, why, at_a_time, why_way)


def trial_command(argv: Sequence[str], batch_size: int = 0, accumulation: int = 0) -> list[str]:
    """The command line of a child process that tries a micro-batch; with --check it compiles something instead."""
    return [sys.executable, __file__, TRIAL, str(batch_size), str(accumulation), *argv]


def answer_trial(batch_size: int, accumulation: int, argv: Sequence[str]) -> int:
    """What that child process does; prints the outcome and returns the exit code."""
    args, out = read_flags(argv), Progress(open(os.devnull, "w"))  # noqa: SIM115
    require_gpu(args)
    machine = choose_machine(args, out)
    if args.check:
        return compile_something(machine)
    runtime = Runtime.of(machine, ALONE, out, Signals())
    return measure_trial(args, batch_size, accumulation, runtime, build_run, take_step)


def build_run(setup: Setup, parts: Parts, state: TrainState) -> Run:
    """The model as the seed makes it, with its optimizer and loss scaler, and the batches it learns from."""
    args, machine, plan, corpus = setup.args, setup.machine, setup.plan, setup.corpus
    recipe, kind = plan.recipe, plan.kind
    with setup.out.phase("building the model"):
        torch.manual_seed(args.seed)
        model, parallel = build(plan.config, plan.options, plan.memory.strategy, setup.processes, machine,
                                recipe.init_std, machine.compile and args.compile_mode == "reduce-overhead")
        lr_scale = recipe.embedding_learning_rate / recipe.learning_rate
        groups = parameter_groups(model, kind, recipe.weight_decay, lr_scale)
        optimizer = kind.build(groups, recipe.learning_rate, (args.beta1, recipe.beta2),
                               adamw_for(parts.adamw, machine.device), dtype_of_products(machine))
        scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.precision == "fp16")
    with setup.out.phase("loading the tokens"):
        windows = data.CorpusWindows(corpus.train, plan.where, plan.config.seq_length, args.seed, machine.device,
                                     corpus.shares)
        drawn_from = few_windows(windows, args.overfit, recipe) if args.overfit else windows
        batches = parts.batches(drawn_from, plan.at_a_time, machine.device, setup.processes)
    return Run(setup, model, optimizer, scaler, parallel, Decisions(setup.processes), batches, state)


# ---------------------------------------------------------------- the loop and the step


def loop(run: Run, pace: Pace, deadline: Deadline, validator: Validator, checkpointer: Checkpointer,
         monitor: Monitor) -> None:
    """Trains from the state's step to the horizon, a signal, the end of --max_minutes, or the end of patience."""
    args, recipe, runtime = run.setup.args, run.setup.recipe, run.setup.runtime
    state, decisions, out, signals = run.state, run.decisions, runtime.out, runtime.signals

    validate_first(run, validator, checkpointer, monitor)
    runtime.clock.start()
    deadline.start(state)

    while state.step < recipe.total_steps and not decisions.agree("stop", signals.number is not None):
        # Learning rate: a pure function of the step.
        out.now(f"step {state.step + 1:,}")
        for group in run.optimizer.param_groups:
            group["lr"] = group["lr_scale"] * learning_rate_at(state.step + 1, recipe)

        # Forward, backward, clip, update; again in smaller micro-batches where memory runs out.
        try:
            result = take_step(run)
        except Abandoned:  # a resumed run replays the step from its first micro-batch
            break

        # Count.
        state.step += 1
        state.samples_seen += recipe.samples_per_step
        state.seconds = deadline.used

        # Log, and look at what is on the device: on a GPU a step later, when it has more to do.
        monitor.add(result, run.batch_size)
        log(run, checkpointer, monitor)

        # Save, validate, sample: at their intervals, and after the last step.
        is_late = deadline.is_near(pace.ending(recipe, checkpointer.save_seconds))
        is_too_late = decisions.agree("end", is_late and runtime.processes.is_first)
        is_last = is_too_late or state.step == recipe.total_steps
        stays = is_last or checkpointer.stays()
        saves = decisions.agree("save", checkpointer.is_wanted()) or stays or checkpointer.is_due()
        validates = is_last or state.step % recipe.eval_interval == 0
        samples = recipe.sample_interval > 0 and (is_last or state.step % recipe.sample_interval == 0)
        if saves or validates or samples:
            log(run, checkpointer, monitor, at_once=True)
        if saves or validates:
            state.skipped_steps += monitor.count_skipped()
        checkpointer.settle(wait=False)
        is_best = validates and validate(run, validator, checkpointer, monitor)
        if saves or is_best:
            checkpointer.save(stays)
        if samples:
            monitor.show_sample(validator.sample(run.model, state.step))
        if args.patience and state.validations_without_gain >= args.patience:
            out.say(f"patience    {args.patience} validations without a new best: the run ends here")
            break
        if is_too_late and state.step < recipe.total_steps:
            out.say(deadline.describe_end(state, recipe, monitor.seconds_per_step))
            break
    log(run, checkpointer, monitor, at_once=True)


def take_step(run: Run, num_micro_batches: int | None = None) -> StepResult:
    """One optimizer step on the next samples, unless fewer micro-batches are given; the host waits for no device.

    Raises Abandoned, and the out-of-memory error where a single sequence at a time is too much, or others wait.
    """
    rng = device.rng_state(run.setup.machine)
    while True:
        num = num_micro_batches or run.accumulation
        try:
            return try_step(run, micro_batches(run, num), num)
        except (Abandoned, TokensChanged):
            undo(run, rng)
            raise
        except (RuntimeError, MemoryError) as error:
            if not can_shrink(run, error):
                raise
        shrink(run, rng)  # not in the except clause: there the error holds the tensors of the failed step


def try_step(run: Run, batches: Iterable[data.Batch], num: int) -> StepResult:
    """The step on num micro-batches, which have the same number of targets: their mean loss is that of the step.

    A loss or norm that is not finite leaves weights and optimizer state as they are.
    """
    setup, parallel, optimizer, scaler = run.setup, run.parallel, run.optimizer, run.scaler
    mean_loss = torch.zeros((), device=setup.machine.device)

    # Forward and backward, micro-batch by micro-batch; the gradients add up.
    for number, (inputs_BT, targets_BT) in enumerate(batches, 1):
        with parallel.micro_batch(is_last=number == num):
            with setup.machine.autocast():
                loss = parallel.forward(inputs_BT, targets_BT, setup.args.label_smoothing) / num
            scaler.scale(loss).backward()
        mean_loss += loss.detach()

    # Clip: the fused optimizer divides by grad_scale on its way, and does nothing where found_inf is 1.
    scaler.unscale_(optimizer)
    gradients = [p.grad for p in run.model.parameters() if p.grad is not None]
    mean_loss, norm = parallel.loss_and_norm(mean_loss, gradients)
    skipped = optimizer.found_inf = (~(norm + mean_loss).isfinite()).float()  # type: ignore[attr-defined]
    if setup.recipe.grad_clip:
        optimizer.grad_scale = (norm / setup.recipe.grad_clip).clamp(min=1.0)  # type: ignore[attr-defined]

    # Update.
    optimizer.step()
    scaler.update()
    optimizer.zero_grad(set_to_none=not parallel.keeps_gradients)
    return StepResult(mean_loss, norm, skipped)


def log(run: Run, checkpointer: Checkpointer, monitor: Monitor, at_once: bool = False) -> None:
    """Logs the steps whose figures are there, with at_once those of the last one too.

    Raises UserError (exit 6) where nothing was learned for too many steps.
    """
    for logged in monitor.arrived(at_once):
        run.state.skipped_steps += logged.skipped
        monitor.log_step(logged)
        if logged.skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
            raise diverged(f"loss or gradient not finite in {MOST_SKIPPED_IN_A_ROW} steps in a row up to step "
                           f"{logged.step:,}; none was applied", run.setup.recipe, checkpointer)


def validate_first(run: Run, validator: Validator, checkpointer: Checkpointer, monitor: Monitor) -> None:
    """Before the first step: the loss of the weights of --init_from, or the validation that a run ended without."""
    state, recipe, out = run.state, run.setup.recipe, run.setup.out
    if run.setup.args.init_from and state.step == 0 and (found := validator.measure(run.model, run.batch_size)):
        out.say(f"validation before the first step | loss {found.nats:.4f}")
    monitor.show_bar()
    if state.validated_step < state.step and (
            state.step % recipe.eval_interval == 0 or state.step == recipe.total_steps):
        validate(run, validator, checkpointer, monitor)
        if state.validated_step == state.step:  # a checkpoint never changes: a new one takes its place
            checkpointer.save(checkpointer.stays())


def validate(run: Run, validator: Validator, checkpointer: Checkpointer, monitor: Monitor) -> bool:
    """Measures the validation loss and counts it; true if it is the best so far."""
    state = run.state
    found = validator.measure(run.model, run.batch_size)
    if found is None:  # without validation tokens; or after a signal, and a resumed run validates this step
        return False
    is_best = found.is_finite and (state.best_val_loss is None or found.nats < state.best_val_loss)
    monitor.log_validation(found, is_best)
    checkpointer.add_validation(state.step, found.nats, found.bits_per_byte)
    state.validated_step = state.step
    state.validations_without_gain = 0 if is_best else state.validations_without_gain + 1
    if is_best:
        state.best_val_loss, state.best_step = found.nats, state.step
    return is_best


# ---------------------------------------------------------------- the ends of a run


def nothing_is_left(args: argparse.Namespace, state: TrainState, recipe: Recipe, corpus: Corpus, deadline: Deadline,
                    runtime: Runtime) -> bool:
    """True, and said, if a resumed run is at its end; false if only its last validation is missing there."""
    out = runtime.out
    if state.step < recipe.total_steps and not deadline.is_near(0):
        return False
    out.say(describe_finished(args, state, recipe))
    is_validated = corpus.val is None or state.validated_step == state.step
    if is_validated or state.step != recipe.total_steps or args.dry_run:
        runtime.processes.agree(lambda: catch_up(args, state.step, state.best_step, out))
        return True
    out.say("its last validation is missing and follows now")
    return False


def save_and_close(run: Run, checkpointer: Checkpointer, monitor: Monitor) -> int:
    """The last save and the closing block; returns the exit code. Raises UserError (exit 5) if nothing was saved."""
    setup, seconds, signals = run.setup, monitor.seconds, run.setup.runtime.signals
    signals.hear(int(setup.processes.largest(signals.number or 0)))
    is_saved = checkpointer.finish()
    monitor.close(seconds, run.compile_seconds, is_saved)
    if run.state.step and not is_saved:
        last = checkpointer.last_good()
        raise UserError(Exit.MACHINE, f"the last state could not be saved in {printable(setup.args.output_dir)}. Free "
                                      f"{size(checkpointer.plan.checkpoint_bytes)} and "
                                      f"{f'resume from {last}' if last else 'start again: no checkpoint was saved'}.")
    monitor.say_what_next(checkpointer.best_step)
    return Exit.DONE if signals.number is None else 128 + signals.number


def dry_run(run: Run, pace: Pace, validator: Validator, checkpointer: Checkpointer) -> int:
    """What all steps that are left will take, by those that were measured; writes nothing."""
    setup, validation_seconds = run.setup, 0.0
    clock = setup.runtime.clock
    with setup.out.phase("a validation"):
        for _ in range(2 if validator.has_tokens else 0):  # the first one is cold, or compiles, and does not count
            clock.start()
            validator.measure(run.model, run.batch_size, most_windows=run.batch_size)
            validation_seconds = clock.lap() * validator.num_batches_left(run.state.step, run.batch_size)
        checkpointer.reserve()  # as the first save of the run does

    tokens_per_second = setup.recipe.samples_per_step * setup.config.seq_length / pace.step
    utilization = percent(mfu(tokens_per_second, setup.config, setup.runtime))
    lines = describe_dry_run(setup, pace, run.state.step, validation_seconds, utilization)
    setup.out.say("\n".join(lines))
    return Exit.DONE


if __name__ == "__main__":
    guard(main)
