"""Flags of train.py that contradict each other by their values, and shorthands for other flags.

The contradictions of flags by their names stand in relations.py. Both are answered before torch is imported.
"""

import argparse
import os.path
from typing import Any

from gpt.common.ranks import world_size
from gpt.hub import names as hub
from gpt.planning.early import in_tokens
from gpt.tokens.data_dirs import problems_with


def expand_shorthands(given: dict[str, Any]) -> dict[str, Any]:
    """Replaces the shorthands TEXT and --use_lr_scheduler by --data_dir and --lr_schedule.

    The names of folders to write lose the slash that a shell adds behind them. Raises ValueError with the
    problem of a shorthand that conflicts with another flag.
    """
    given = dict(given)
    for name in {"output_dir", "mirror_to"} & given.keys():
        given[name] = given[name].rstrip(os.sep) or os.sep
    if "texts" in given:
        given.update(in_tokens(given.pop("texts"), given))
    if "use_lr_scheduler" in given:
        is_on = given.pop("use_lr_scheduler")
        schedule = given.setdefault("lr_schedule", "cosine" if is_on else "constant")
        if (schedule == "constant") == is_on:
            raise ValueError(f"--lr_schedule {schedule}: not with --{'' if is_on else 'no-'}use_lr_scheduler")
    return given


def contradictions(args: argparse.Namespace) -> list[str]:
    """Returns the problems of flags that are each valid, one line each."""
    problems = [
        *problems_with(args.data_dir),
        *hub.problems_with_name("--init_from", args.init_from),
        *(f"--{name}: not with several folders in --data_dir: each of them has its own"
          for name in ("bin_file", "val_bin_file", "metadata_file")
          if isinstance(args.data_dir, list) and vars(args)[name] is not None),
        *(f"--{name}: must be a folder of this machine or of a mounted disk, not an address with ://"
          for name in ("output_dir", "mirror_to") if "://" in (vars(args)[name] or "")),
        *(f"--{name}: the hub has weights, no state of training; give --init_from"
          for name in ("resume_from", "cooldown_from") if hub.is_on_hub(vars(args)[name])),
        *(f"--{name}: a cooldown falls from the learning rate of its checkpoint; drop it"
          for name in ("learning_rate", "warmup_steps", "lr_schedule") if args.cooldown_from
          and any(change.startswith(f"{name} ") for change in args.origin.changed)),
        *(["--teacher: not a model of the hub, which has another tokenizer; give a folder of train.py"]
          if hub.is_on_hub(args.teacher) else [])]
    # A recorded --min_lr may be for the end of a cooldown.
    continues = args.cooldown_from or args.origin.recorded
    mirror = os.path.join(os.path.realpath(args.mirror_to or ""), "")
    output_dir = os.path.join(os.path.realpath(args.output_dir), "")
    rules = {
        "--init_from resume: drop it; --resume_from auto continues the run in --output_dir":
            args.init_from == "resume" and not os.path.exists("resume"),
        "--init_from scratch: drop it; a run starts from random weights":
            args.init_from == "scratch" and not os.path.exists("scratch"),
        "--min_lr: is above --learning_rate": args.learning_rate and (args.min_lr or 0) > args.learning_rate,
        "--min_lr: has no effect with a constant learning rate":
            args.min_lr is not None and args.lr_schedule == "constant" and not continues,
        "--warmup_steps: does not end before --max_steps":
            args.max_steps and (args.warmup_steps or 0) >= args.max_steps,
        "--n_embd: is not a multiple of --n_head": args.n_embd and args.n_head and args.n_embd % args.n_head,
        "--init_std: the weights are those of the checkpoint; drop it":
            any(change.startswith("init_std ") for change in args.origin.changed),
        "--compile_mode reduce-overhead: is for one process; give --compile_mode default":
            args.compile_mode == "reduce-overhead" and world_size() > 1,
        "--tracker none: not with the names of trackers":
            isinstance(args.tracker, list) and "none" in args.tracker,
        "--mirror_to: lies in --output_dir, or holds it; give a folder on another disk":
            args.mirror_to and (mirror.startswith(output_dir) or output_dir.startswith(mirror)),
    }
    return [*problems, *(problem for problem, is_so in rules.items() if is_so)]
