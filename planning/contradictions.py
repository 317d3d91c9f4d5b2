"""Flags of train.py that contradict each other, or have no effect without another one.

Each is a line of a table: the message, and whether it holds. The standard library is enough, so that they are answered
before torch is imported.
"""

from __future__ import annotations

import argparse
import os.path
from collections.abc import Mapping
from typing import Any

from common.config import SHAPE
from common.ranks import world_size
from hub import names as hub
from tokens.shares import problems_with

Table = Mapping[str, Any]  # by message: true where it has to be said


def contradictions(args: argparse.Namespace) -> list[str]:
    """What does not fit together, one line each."""
    given = {name: value is not None for name, value in vars(args).items()}
    tables = (_of_data(args, given), _of_schedule(args, given), _of_model(args, given), _of_machine(args),
              _of_graphs(args), _of_run(args, given))
    return [*problems_with(args.data_dir), *hub.problems_with_name("--init_from", args.init_from),
            *(message for table in tables for message, is_wrong in table.items() if is_wrong)]


def _of_data(args: argparse.Namespace, given: Mapping[str, bool]) -> Table:
    are_several = isinstance(args.data_dir, list)
    return {f"--{name}: not with several folders in --data_dir: each of them has its own": given[name] and are_several
            for name in ("bin_file", "val_bin_file", "metadata_file")}


def _of_schedule(args: argparse.Namespace, given: Mapping[str, bool]) -> Table:
    decays = args.cooldown_from or args.config.recorded  # a recorded --min_lr is for the end of a cooldown
    is_off = args.use_lr_scheduler is False and not decays
    is_constant = args.lr_schedule == "constant" and not decays
    return {
        "--min_lr: is above --learning_rate": given["learning_rate"] and (args.min_lr or 0) > args.learning_rate,
        "--min_lr: needs --use_lr_scheduler": given["min_lr"] and is_off,
        "--min_lr: has no effect with --lr_schedule constant": given["min_lr"] and is_constant,
        "--warmup_steps: needs --use_lr_scheduler": given["warmup_steps"] and is_off,
        "--lr_schedule: not with --no-use_lr_scheduler": (
            args.lr_schedule not in (None, "constant") and args.use_lr_scheduler is False),
        "--use_lr_scheduler: not with --lr_schedule constant": args.lr_schedule == "constant" and args.use_lr_scheduler,
        "--decay_share: has no effect without --lr_schedule wsd": given["decay_share"] and args.lr_schedule != "wsd",
        "--warmup_steps: ends after --max_steps": (args.warmup_steps or 0) >= (args.max_steps or 2**62),
        "--cooldown_steps: has no effect without --cooldown_from": args.cooldown_steps and not args.cooldown_from,
        "--max_steps: not with --cooldown_from; give --cooldown_steps": args.max_steps and args.cooldown_from,
        "--epochs: not with --cooldown_from; give --cooldown_steps": args.epochs and args.cooldown_from,
        "--init_from: not with --cooldown_from": args.init_from and args.cooldown_from,
    }


def _of_model(args: argparse.Namespace, given: Mapping[str, bool]) -> Table:
    is_gpt2 = args.arch in (None, "gpt2")
    is_new_gpt2 = is_gpt2 and not args.init_from
    has_shape = any(given[name] and vars(args)[name] is not True for name in SHAPE)  # on: as without the flag
    return {
        "--n_embd: is not a multiple of --n_head": given["n_embd"] and given["n_head"] and args.n_embd % args.n_head,
        "--init_from: sets the model's shape; drop --arch, --model_size, --n_layer, --n_head, --n_embd, --n_kv_head, "
        "--n_inner, --rope_theta, --no-bias and --no-tie_weights": args.init_from and has_shape,
        "--init_std: has no effect with --init_from, whose weights are the initial ones": (
            given["init_std"] and args.init_from),
        "--init_std: the weights are those of the checkpoint; drop it": any(
            change.startswith("init_std ") for change in args.config.changed),
        "--bias: only --arch gpt2 has biases": given["bias"] and not is_gpt2,
        "--n_kv_head: needs --arch qwen3 or llama": given["n_kv_head"] and is_new_gpt2,
        "--n_inner: needs --arch qwen3 or llama": given["n_inner"] and is_new_gpt2,
        "--rope_theta: needs --arch qwen3 or llama": given["rope_theta"] and is_new_gpt2,
    }


def _of_machine(args: argparse.Namespace) -> Table:
    is_tuned = args.compile_mode == "max-autotune-no-cudagraphs"
    no_bf16 = args.use_amp is False or args.amp_dtype == "fp16"
    no_fp16 = args.use_amp is False or args.amp_dtype == "bf16"
    return {
        "--amp_dtype: has no effect with --no-use_amp": args.amp_dtype != "auto" and args.use_amp is False,
        "--compile_blocks: has no effect with --no-compile": args.compile_blocks and args.compile is False,
        "--compile_mode: has no effect with --no-compile": args.compile_mode != "default" and args.compile is False,
        "--compile_mode: has no effect with --deterministic": is_tuned and args.deterministic,
        "--preload gpu: not with --no-use_gpu": args.preload == "gpu" and args.use_gpu is False,
        "--residual_dtype bf16: needs mixed precision in bf16": args.residual_dtype == "bf16" and no_bf16,
        "--residual_dtype fp16: needs mixed precision in fp16": args.residual_dtype == "fp16" and no_fp16,
        "--fp8_head: needs a GPU and mixed precision in bf16": args.fp8_head and (args.use_gpu is False or no_bf16),
        "--loss_chunk_tokens: must be a multiple of 16 with --fp8_head": (
            args.fp8_head and (args.loss_chunk_tokens or 0) % 16),
        "--loss_kernel: needs a GPU": args.loss_kernel and args.use_gpu is False,
        "--loss_kernel: not with --fp8_head": args.loss_kernel and args.fp8_head,
        "--check: is about one machine; start it without torchrun": args.check and world_size() > 1,
        "--optimizer adamw8bit: its blocks of 256 values do not end where the rows of fsdp and hsdp do; give "
        "--model_parallel ddp": args.optimizer == "adamw8bit" and args.model_parallel in ("fsdp", "hsdp"),
        "--batch_size auto: tries the whole model in one process; with --model_parallel fsdp or hsdp give a number": (
            args.batch_size == "auto" and args.model_parallel in ("fsdp", "hsdp")),
    }


def _of_graphs(args: argparse.Namespace) -> Table:
    """What CUDA graphs cannot do, or has not been shown with them."""
    if args.compile_mode != "reduce-overhead":
        return {}
    graphs = "--compile_mode reduce-overhead"
    return {
        f"{graphs}: needs a GPU": args.use_gpu is False,
        f"{graphs}: is for one process; start it without torchrun": world_size() > 1,
        f"{graphs}: not with --activation_checkpointing, under which tensors live differently when a graph is recorded "
        "and when it is replayed (PyTorch's issue 154306)": args.activation_checkpointing,
        f"{graphs}: not with --batch_size auto, whose trials end before the graphs have taken their memory; give a "
        "number": args.batch_size == "auto",
        f"{graphs}: not with --dropout, whose random numbers must be those of a resumed run": args.dropout,
        f"{graphs}: not with --compile_blocks; a graph holds the whole model": args.compile_blocks,
        f"{graphs}: not with --deterministic": args.deterministic,
    }


def _of_run(args: argparse.Namespace, given: Mapping[str, bool]) -> Table:
    resumes = args.resume_from or args.cooldown_from
    is_another_run = args.check or args.dry_run or resumes or args.max_minutes or args.patience
    return {
        "--overwrite: not with --resume_from auto": args.overwrite and args.resume_from == "auto",
        "--resume_from: the hub has weights, no state of training; give --init_from": hub.is_on_hub(args.resume_from),
        "--cooldown_from: the hub has weights, no state of training; give --init_from": (
            hub.is_on_hub(args.cooldown_from)),
        "--reset_optimizer: has no effect without --resume_from": args.reset_optimizer and not resumes,
        "--allow_new_data: has no effect without --resume_from": args.allow_new_data and not resumes,
        "--eval_batches: not with --eval_tokens": given["eval_batches"] and given["eval_tokens"],
        "--gpu_cost_per_hour: has no effect without --dry_run or --check": (
            given["gpu_cost_per_hour"] and not (args.dry_run or args.check)),
        "--overfit: begins at step 0 and writes nothing; not with --check, --dry_run, --resume_from, --cooldown_from, "
        "--max_minutes or --patience": args.overfit and is_another_run,
        "--tracker none: not with the names of trackers": (
            isinstance(args.tracker, list) and "none" in args.tracker),
        "--budget: needs --gpu_cost_per_hour": given["budget"] and not given["gpu_cost_per_hour"],
        **_of_mirror(args),
    }


def _of_mirror(args: argparse.Namespace) -> Table:
    if args.mirror_to is None:
        return {}
    mirror, own = os.path.realpath(args.mirror_to), os.path.realpath(args.output_dir)
    another = "give a folder on another disk"
    return {
        f"--mirror_to: is --output_dir itself; {another}": mirror == own,
        f"--mirror_to: lies in --output_dir; {another}": mirror.startswith(os.path.join(own, "")),
        f"--mirror_to: holds --output_dir; {another}": own.startswith(os.path.join(mirror, "")),
    }
