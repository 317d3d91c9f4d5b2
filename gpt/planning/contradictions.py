"""Flags of train.py that contradict each other by their values; those that do so by their names say it in their rows.

The standard library is enough, so that they are answered before torch is imported.
"""

import argparse
import os.path

from gpt.common.ranks import world_size
from gpt.hub import names as hub
from gpt.tokens.data_dirs import problems_with


def contradictions(args: argparse.Namespace) -> list[str]:
    """What does not fit together, one line each."""
    goes_on = args.cooldown_from or args.config.recorded  # where a recorded --min_lr is for the end of a cooldown
    is_constant = args.lr_schedule == "constant" and not goes_on
    mirror, own = (os.path.join(os.path.realpath(path or ""), "") for path in (args.mirror_to, args.output_dir))
    no_hub = "the hub has weights, no state of training; give --init_from"
    table = {
        **{f"--{name}: not with several folders in --data_dir: each of them has its own":
           vars(args)[name] is not None and isinstance(args.data_dir, list)
           for name in ("bin_file", "val_bin_file", "metadata_file")},
        **{f"--{name}: {no_hub}": hub.is_on_hub(vars(args)[name]) for name in ("resume_from", "cooldown_from")},
        "--min_lr: is above --learning_rate": args.learning_rate and (args.min_lr or 0) > args.learning_rate,
        "--min_lr: has no effect with a constant learning rate": args.min_lr is not None and is_constant,
        "--warmup_steps: ends after --max_steps": (args.warmup_steps or 0) >= (args.max_steps or 2**62),
        "--n_embd: is not a multiple of --n_head": args.n_embd and args.n_head and args.n_embd % args.n_head,
        "--init_std: the weights are those of the checkpoint; drop it": any(
            change.startswith("init_std ") for change in args.config.changed),
        "--compile_mode reduce-overhead: is for one process; start it without torchrun": (
            args.compile_mode == "reduce-overhead" and world_size() > 1),
        "--tracker none: not with the names of trackers": isinstance(args.tracker, list) and "none" in args.tracker,
        "--mirror_to: lies in --output_dir, or holds it; give a folder on another disk": (
            args.mirror_to and (mirror.startswith(own) or own.startswith(mirror))),
    }
    return [*problems_with(args.data_dir), *hub.problems_with_name("--init_from", args.init_from),
            *(message for message, is_wrong in table.items() if is_wrong)]
