"""Where a run starts: at random weights, at the weights of --init_from, or at a checkpoint."""

from __future__ import annotations

import argparse
import contextlib
import shutil
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import data
from architectures.table import ModelConfig
from checkpoint import find, load
from checkpoint.load import read_config
from common.config import Layer
from common.errors import Exit, InvalidCheckpoint, Problems, UserError
from common.progress import Progress
from common.words import printable, several, shell_word
from hub.names import as_recorded
from machine.device import Machine, name_of_dtype
from machine.memory import available_ram, free_memory
from machine.processes import ALONE, Processes
from model import Options
from planning.recipe import Recipe
from tokens.corpus import Corpus, open_corpus
from tokens.mixture import mix
from tokens.shares import folders_of
from tokens.tokenizer import TOKENIZER_FILES, load_tokenizer
from training.cooldown import before_decay, choose_cooldown
from training.optimizers import expected_state
from training.state import Run, TrainState

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Settings = dict[str, dict[str, Any]]


# ---------------------------------------------------------------- the tokens


def find_corpus(args: argparse.Namespace) -> Corpus:
    """The token files that the flags mean, several folders as a mixture.

    With --bin_file the other files of --data_dir are another corpus's. Raises UserError (exit 3).
    """
    folders, problems, corpora = folders_of(args.data_dir), Problems(), []
    for folder in folders:
        with problems.catch():
            corpora.append(_find_one(args, folder.path))
    problems.stop()
    return corpora[0] if len(folders) == 1 else mix(folders, corpora)


def require_folders(args: argparse.Namespace) -> None:
    """Raises UserError (exit 3) for a --data_dir that is no folder: at once, before anything large is fetched."""
    for folder in folders_of(args.data_dir):
        _require_folder(args, folder.path)


def _require_folder(args: argparse.Namespace, data_dir: str) -> None:
    folder, shown = Path(data_dir), printable(data_dir)
    if args.bin_file is None and not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        cure = "Run: python pretokenize.py TEXT"
        if args.config.recorded:
            cure = "Start in the folder in which the run was started, or give --data_dir."
        elif "," in data_dir:
            cure = "Several folders have blanks between them: --data_dir a:0.7 b:0.3"
        raise UserError(Exit.DATA, f"--data_dir {shown} {what}. {cure}")


def _find_one(args: argparse.Namespace, data_dir: str) -> Corpus:
    """The corpus of one folder. Raises UserError (exit 3)."""
    _require_folder(args, data_dir)
    folder, shown = Path(data_dir), printable(data_dir)

    def part(given: str | None, name: str) -> Path | None:
        if given is None and args.bin_file is None and (folder / name).exists():
            return folder / name
        return Path(given) if given else None

    metadata, tokenizer = part(args.metadata_file, "metadata.json"), part(args.tokenizer_file, "tokenizer.json")
    vocab_size, notes = args.vocab_size, ()
    if args.init_from and not (metadata or tokenizer or vocab_size):
        tokenizer, vocab_size = _vocabulary_of_weights(args.init_from)
        notes = ("the tokens come without their vocabulary; that of --init_from is taken",)
    if args.bin_file is None and metadata is None and not (args.tokenizer_file or args.vocab_size or notes):
        raise UserError(Exit.DATA, f"--data_dir {shown} has no metadata.json: pretokenize.py did "
                                   "not finish, or another program wrote the tokens, and their vocabulary is unknown. "
                                   "Run: python pretokenize.py TEXT, or give --tokenizer_file or --vocab_size.")
    corpus = open_corpus(Path(args.bin_file or folder), Path(args.val_bin_file) if args.val_bin_file else None,
                         metadata, tokenizer, vocab_size)
    return replace(corpus, notes=(*corpus.notes, *notes))


def _vocabulary_of_weights(requested: str) -> tuple[Path | None, int | None]:
    """The tokenizer beside the weights of --init_from; without one the number of ids that they know."""
    folder, config = load.starting_config(requested, lambda said: None)
    tokenizer = _tokenizer_in(folder)
    return tokenizer, None if tokenizer else config.vocab_size


def _tokenizer_in(folder: Path) -> Path | None:
    return next((folder / name for name in TOKENIZER_FILES if (folder / name).is_file()), None)


def choose_place(args: argparse.Namespace, corpus: Corpus, machine: Machine, processes: Processes = ALONE,
                 ) -> tuple[str, str]:
    """Where the training tokens live ('gpu', 'ram' or 'mmap'), and why. Raises UserError (exit 5)."""
    has_own_memory = machine.device.type == "cuda"  # an Apple GPU shares the RAM
    if args.preload == "gpu" and not has_own_memory:
        why = "shares the RAM of the processor" if machine.on_gpu else "is not used: training runs on the CPU"
        raise UserError(Exit.MACHINE, f"--preload gpu: the GPU {why}. Give --preload auto.")
    free_bytes = free_memory(machine) if has_own_memory else None
    where, why = data.choose_preload(args.preload, corpus.train.num_bytes, free_bytes, available_ram())
    if where == "ram" and processes.local_world_size > 1:
        return "mmap", f"once in RAM for all {processes.local_world_size} processes of a machine"
    return where, why


# ---------------------------------------------------------------- weights of another model


def start_from_weights(args: argparse.Namespace, run: Run, tokenizer: Tokenizer | None, out: Progress) -> str:
    """Loads the weights of --init_from; returns where they come from, of the hub with the commit.

    Raises UserError: exit 4 if they do not fit, exit 3 if they were trained with another tokenizer than the corpus's.
    """
    folder, config = load.starting_config(args.init_from, out.warn)
    with out.phase("loading the weights"):
        load.start_from(folder, run.model)
    out.say(f"start       from the weights of {printable(as_recorded(str(folder)))}")

    positions = run.model.config.seq_length
    if config.seq_length > positions:
        out.say(f"start       T is {positions:,}: positions up to {config.seq_length:,}, which the weights know, are "
                "dropped")

    theirs = _tokenizer_in(folder)
    if theirs is None or tokenizer is None:
        out.warn("--init_from: there is no tokenizer to compare that of the corpus with. If the weights were trained "
                 "with another one, the ids mean other text to them.")
    elif {**load_tokenizer(theirs).get_vocab()} != {**tokenizer.get_vocab()}:
        raise UserError(Exit.DATA, "the corpus was made with another tokenizer than the weights of --init_from, so its "
                                   f"ids mean other text. Run pretokenize.py with --tokenizer_file "
                                   f"{shell_word(str(theirs))}")
    return as_recorded(args.init_from)


# ---------------------------------------------------------------- a checkpoint


def with_what_no_flag_says(config: ModelConfig, folder: Path) -> ModelConfig:
    """The config with what the model of a checkpoint has from the weights of others, at which its run began.

    Those are more ids than the corpus has, and what no flag sets: the size of heads, the epsilon of norms.
    """
    with contextlib.suppress(InvalidCheckpoint):  # of which a comparison with the checkpoint's state tells more
        there = read_config(folder)
        if type(there) is type(config):
            by_flags = {"n_layer", "n_head", "n_embd", "n_kv_head", "n_inner", "rope_theta", "bias", "tie_weights",
                        "vocab_size", "seq_length", "dropout"}
            others = {field.name: getattr(there, field.name) for field in fields(there) if field.name not in by_flags}
            return replace(config, vocab_size=max(config.vocab_size, there.vocab_size), **others)
    return config


def choose_resume(args: argparse.Namespace, out: Progress) -> find.Found | None:
    """The verified checkpoint to resume from and its state, or None for a new run. Raises UserError (exit 4)."""
    output_dir = Path(args.output_dir)
    there = find.steps_in(output_dir)
    if args.resume_from is not None or args.cooldown_from is not None:
        with out.phase("verifying the checkpoint"):
            found = _find_checkpoint(args, output_dir, out)
        if found is None:
            out.say(f"resume      no checkpoint in {printable(args.output_dir)} yet: starting at step 0")
        elif not find.is_inside(found[0], output_dir):
            check_no_stranger(output_dir)
        return found
    check_no_stranger(output_dir)
    if args.overwrite and args.init_from and find.is_inside(Path(args.init_from), output_dir):
        raise UserError(Exit.FLAGS, f"--overwrite: would delete {printable(args.init_from)}, the weights of "
                                    "--init_from. Give another --output_dir.")
    if there and not args.overwrite:
        raise UserError(Exit.CHECKPOINT, f"--output_dir {printable(args.output_dir)} holds the checkpoints of another "
                                         f"run, the last one of step {max(there):,}. Give --resume_from auto to "
                                         "continue that run, another --output_dir, or --overwrite, which deletes its "
                                         f"{several(len(there), 'checkpoint')}.")
    return None


def requested_checkpoint(args: argparse.Namespace) -> str:
    """What --resume_from means: the mirror's name stands for the run's own folder, into which it was copied.

    A run that writes nothing has copied nothing, and looks into the mirror itself.
    """
    writes = not (args.dry_run or args.overfit)
    if args.mirror_to and writes and is_same_folder(args.resume_from, args.mirror_to):
        return "auto"
    if args.mirror_to and not writes and args.resume_from == "auto" and not find.steps_in(Path(args.output_dir)):
        return args.mirror_to if find.steps_in(Path(args.mirror_to)) else args.resume_from
    return args.resume_from


def is_same_folder(path: str, other: str) -> bool:
    """True for two names of one folder, which need not exist."""
    return Path(path).resolve() == Path(other).resolve()


def _find_checkpoint(args: argparse.Namespace, output_dir: Path, out: Progress) -> find.Found | None:
    """What --resume_from or --cooldown_from means; of a run that is made longer, the last one before its decay."""
    if args.cooldown_from is not None:
        return choose_cooldown(args, out)
    found = find.find_resume(requested_checkpoint(args), output_dir, args.overwrite, out.warn)
    return before_decay(args, found, out) if found else None


def check_no_stranger(output_dir: Path) -> None:
    """Raises UserError (exit 4) for a folder that this run would replace and that no run of train.py has finished."""
    if strangers := find.unfinished_in(output_dir):
        name = printable(str(strangers[0]))
        raise UserError(Exit.CHECKPOINT, f"{name} has a checkpoint's name but no manifest.json: another program wrote "
                                         "it, or it was copied in part. A run would replace it at that step. Move it "
                                         "away, or give another --output_dir.")


def resume(folder: Path, stored: dict[str, Any], run: Run, settings: Settings, total_steps: int,
           out: Progress) -> None:
    """Restores weights, optimizer, loss scale and random-number generators, and says what differs.

    Raises UserError (exit 4).
    """
    notes = load.load_training(folder, run.model, run.optimizer, partial(expected_state, run.optimizer))
    if run.scaler.is_enabled() and stored.get("scaler"):
        run.scaler.load_state_dict(stored["scaler"])
    out.say(f"resume      from {folder.name}, step {stored['step']:,} of {total_steps:,}")
    for note in notes:
        out.say(f"resume      {note}")
    say_differences(stored, settings, out)


def forget_best_on_other_tokens(stored: dict[str, Any], state: TrainState, recipe: Recipe, config: ModelConfig,
                                corpus: Corpus, out: Progress) -> None:
    """Starts the search for the best validation loss anew, and says so, if the resumed run measures other tokens."""
    if corpus.val is None or state.best_val_loss is None:
        return
    windows = replace(recipe, eval_tokens=stored.get("settings", {}).get("eval_tokens", recipe.eval_tokens))
    lengths = [stream.length for stream in corpus.validations]
    before, now = (data.shared_windows(lengths, config.seq_length, each.eval_windows(config))
                   for each in (windows, recipe))
    if before == now and stored.get("data", {}).get("val_sha256", corpus.val_identity) == corpus.val_identity:
        return
    out.say(f"resume      validation measures other tokens than before ({several(sum(now), 'sequence')}, not "
            f"{sum(before):,}): the best so far, {state.best}, does not count any more")
    state.best_val_loss, state.best_step, state.validations_without_gain = None, 0, 0


def in_common(args: argparse.Namespace, recipe: Recipe, config: ModelConfig, options: Options, corpus: Corpus,
              machine: Machine) -> dict[str, Any]:
    """What must be the same in all processes that train one model, by names."""
    found = settings_of(args, Layer("", {}, {}, {}), recipe, options, machine, ALONE)
    own = ("device", "threads")
    environment = {name: value for name, value in found["environment"].items() if name not in own}
    return {**environment, "training tokens": corpus.identity,
            **asdict(config), **found["settings"]}


def settings_of(args: argparse.Namespace, flags: Layer, recipe: Recipe, options: Options, machine: Machine,
                processes: Processes) -> Settings:
    """The settings of a run, the environment that the last digits of its losses depend on besides them, its flags."""
    chosen = {name: getattr(args, name) for name in (
        "beta1", "label_smoothing", "dropout", "seed", "max_minutes")}
    threads = {"threads": torch.get_num_threads()} if machine.device.type == "cpu" else {}
    environment = {"torch": torch.__version__, "device": machine.name, **threads,
                   "processes": processes.world_size, "precision": machine.precision, "compile": machine.compile,
                   "residual": name_of_dtype(options.residual_dtype), "loss_chunk": options.loss_chunk}
    return {"settings": {**recipe.settings(), **chosen}, "environment": environment,
            "flags": {"given": flags.given, "decided": flags.decided}}


def say_differences(stored: dict[str, Any], settings: Settings, out: Progress) -> None:
    """Says in what a resumed run differs from the one that saved the checkpoint."""
    changed = {
        kind: [f"{key} {printable(str(stored[kind][key]))[:60]} -> {value}" for key, value in fields.items()
               if stored.get(kind, {}).get(key, value) != value]
        for kind, fields in settings.items() if kind != "flags"}
    if changed["settings"]:
        out.say(f"resume      changed: {', '.join(changed['settings'])}")
    if changed["environment"]:
        out.say(f"resume      losses will differ in the last digits: {', '.join(changed['environment'])}")


def delete_other_runs(output_dir: Path, resumed: Path | None, step: int, out: Progress) -> None:
    """Deletes the checkpoints of other runs in the output folder, as --overwrite requests."""
    for other in find.not_leading_to(output_dir, resumed, step):
        out.say(f"overwrite   deleting {printable(str(other))}")
        shutil.rmtree(other, ignore_errors=True)
