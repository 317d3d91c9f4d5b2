"""The shape of the network, from the flags, pretrained weights or the sizing, and how it is computed in training."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpt.architectures.table import ARCHITECTURES, DEFAULT, ModelConfig, own_fields_with_flags
from gpt.checkpoint.load import starting_config
from gpt.common.errors import Exit, UserError
from gpt.common.words import several
from gpt.machine.device import Machine
from gpt.planning.sizing import Sizing, shape_of
from model import Options

LOSS_CHUNK = 2048  # tokens whose logits exist at a time, on a GPU or compiled
DEFAULT_SEQ_LENGTH = 1024
LONGEST_DEFAULT_SEQ_LENGTH = 2048  # of pretrained weights: Qwen3 allows 40,960 positions, too many for any memory


def choose_config(args: Namespace, vocab_size: int, num_tokens: int, sizing: Sizing | None = None,
                  ) -> ModelConfig:
    """The model's shape from the flags, --init_from or the sizing; T is shorter than requested for a shorter corpus.

    The model of --init_from gets an id for each of the corpus. Raises UserError. Exit 2 means a width that the
    heads do not divide, or a T longer than --init_from allows. Exit 3 means a corpus of fewer than two tokens.
    Exit 4 means that --init_from names no model.
    """
    if num_tokens < 2:
        raise UserError(Exit.DATA, f"the corpus has {several(num_tokens, 'token')}, and training needs at least 2. "
                                   "Give pretokenize.py more text.")
    if args.init_from:
        _, config = starting_config(args.init_from)
        if (args.seq_length or 1) > config.seq_length:
            raise UserError(Exit.FLAGS, f"--seq_length {args.seq_length}: --init_from has {config.seq_length} "
                                        "positions. Lower it.")
        seq_length = min(args.seq_length or min(config.seq_length, LONGEST_DEFAULT_SEQ_LENGTH), num_tokens - 1)
        return replace(config, vocab_size=max(vocab_size, config.vocab_size), seq_length=seq_length,
                       dropout=args.dropout or 0.0)

    shape = (sizing and sizing.shape) or shape_of(args)
    seq_length = args.seq_length or (sizing.seq_length if sizing else DEFAULT_SEQ_LENGTH)
    architecture = ARCHITECTURES[sizing.arch if sizing else args.arch or DEFAULT]
    others = {name: getattr(args, name) for name in own_fields_with_flags(architecture.Config, vars(args))
              if getattr(args, name) is not None}
    return architecture.sized(shape, vocab_size, min(seq_length, num_tokens - 1), **others)


def choose_options(recompute: bool, has_weights: bool, machine: Machine,
                   recorded_environment: Mapping[str, Any]) -> Options:
    """Chooses how the model is computed during training: dtypes, recomputation, and chunks of the loss.

    recompute is --activation_checkpointing; has_weights is True for a run from pretrained weights. The
    environment that a resumed run recorded keeps a residual stream with the range of fp32 that began so; it is
    empty for a new run.
    """
    # Trained weights can make activations beyond the largest number of fp16, 65,504. A
    # resumed run keeps its dtype.
    stays_wide = machine.precision == "fp16" and (
        has_weights or recorded_environment.get("residual") in ("fp32", "bf16"))
    # Pre-Ampere cards only emulate bf16. With recomputation torch 2.11 would keep the
    # results of custom operations.
    is_half = machine.precision == "fp16" or (machine.precision == "bf16" and machine.backend.has_bf16())
    rounds = machine.backend.sums_in_fp32 and is_half and not recompute
    return Options(rounded_to=machine.dtype if rounds else None, recompute=recompute,
                   residual_dtype=None if stays_wide or machine.precision == "fp32" else machine.dtype,
                   loss_chunk=LOSS_CHUNK if machine.on_gpu or machine.compile else 0)
