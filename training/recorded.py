"""What a run records of its flags, so that one flag resumes it: output_dir/config.toml and trainer_state.json."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping
from pathlib import Path

from architectures.table import ModelConfig, architecture_of, name_of
from common.config import Layer, read_toml, write_toml
from common.errors import UserError, warn
from common.names import RUN_CONFIG
from common.words import shell_word
from hub.names import as_recorded
from model import SIZES
from planning.recipe import Recipe
from tokens.corpus import Corpus


def flags_of_run(args: argparse.Namespace, config: ModelConfig, recipe: Recipe, corpus: Corpus) -> Layer:
    """The flags of the run as they were decided: those that somebody gave, and those that the program chose."""
    left_out = {*args.of_one_call, "config"}
    values = {name: value for name, value in vars(args).items() if value is not None and name not in left_out}
    names = ("n_layer", "n_head", "n_embd", "seq_length", "dropout", "tie_weights", *architecture_of(config).FLAGS)
    shape = {"arch": name_of(config), **{name: getattr(config, name) for name in names}}
    decided = {**values, **shape, **recipe.flags()}
    if args.init_from:
        values["init_from"] = decided["init_from"] = as_recorded(args.init_from)
        for name in ("model_size", "init_std"):
            decided.pop(name, None)
        # Maybe the weights' own, which a resumed run needs too.
        path = corpus.tokenizer_path
        decided.update({"vocab_size": corpus.vocab_size} if path is None else {"tokenizer_file": str(path)})
    elif SIZES.get(args.model_size) != (config.n_layer, config.n_head, config.n_embd):
        decided.pop("model_size", None)

    given = {name: value for name, value in values.items() if name in args.config.given
             and decided.get(name, value) == value}
    left_out = {*given, *args.of_the_machine}
    return Layer("", given, {name: value for name, value in decided.items() if name not in left_out})


def write_run_config(output_dir: Path, flags: Layer, reasons: Mapping[str, str]) -> None:
    """Writes output_dir/config.toml, unless one with these flags is there: somebody may have added comments to it."""
    path = output_dir / RUN_CONFIG
    with contextlib.suppress(UserError):
        there = read_toml(path)
        if (there.given, there.decided) == (flags.given, flags.decided):
            return
    folder, file = shell_word(str(output_dir)), shell_word(str(output_dir / RUN_CONFIG))
    introduction = ("The flags of the run in this folder. To continue it:\n"
                    f"    python train.py --resume_from {folder}\n"
                    f"For another run like it:\n    python train.py --config {file} --output_dir OTHER")
    try:
        write_toml(path, flags, introduction, reasons)
    except OSError as error:
        warn(f"{RUN_CONFIG} could not be written: {error.strerror}. The checkpoints hold the flags too.")
