"""The start of train.py before it imports torch, which takes seconds: packages, tokens of texts, wrong flags.

The contradictions of flags by their names stand in relations.py, those by their values here, with the
shorthands for other flags.
"""

import glob
import importlib.util
import itertools
import os
import re
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt.checkpoint.recorded import planned_steps, recorded_flags, run_to_resume
from gpt.checkpoint.steps import error_of_another_run, steps_in
from gpt.common.children import PROGRAM_FOLDER, run_child
from gpt.common.errors import PIP, Exit, UserError, require, warn, warn_once
from gpt.common.flags import as_list
from gpt.common.names import (
    METADATA,
    RUN_CONFIG,
    RUN_CONFIG_TITLE,
    TOKENIZER,
    TOKENS,
    TRAINS_NEXT,
    TWO_MODELS_TITLE,
)
from gpt.common.ranks import is_main, is_one_of_several, launcher, world_size
from gpt.common.signals import Signals
from gpt.common.words import first_of, is_utf8, printable, shell_line, shell_word
from gpt.hub.names import check_package, is_on_hub, problems_with_name
from gpt.machine.environment import set_up_environment
from gpt.tokens.files import problems_with


def before_torch(args: Namespace) -> None:
    """Checks the packages and sets torch's environment variables. Raises UserError (exit 5) for a missing package."""
    set_up_environment()
    require("torch", "numpy", "tokenizers", "tqdm", "safetensors")
    check_package(args.init_from)
    for name in requested_trackers(args):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # no origin: a folder of that name, like the one wandb writes
            raise UserError(Exit.MACHINE, f"--tracker {name}: not installed. Run: {PIP} {name}, or "
                                          "give --tracker none.")


# ---------------------------------------------------------------- trackers


def requested_trackers(args: Namespace) -> list[str]:
    """The names in --tracker, each once."""
    return [name for name in dict.fromkeys(as_list(args.tracker)) if name != "none"]


# ---------------------------------------------------------------- the output folder


def refuse_folder_of_another_run(args: Namespace) -> None:
    """Raises UserError (exit 4) for a new run whose output folder holds the checkpoints of another one.

    Where the run starts from one of those checkpoints, or learns from it, only another folder is a cure.
    """
    folder = Path(args.output_dir)
    if args.resume_from or args.cooldown_from or args.overwrite or not steps_in(folder):
        return
    from gpt.checkpoint.commands import flags_of_another_run  # which imports torch, like the next line
    from gpt.checkpoint.find import is_inside

    for flag, model, name in (("--init_from", args.init_from, "tuned"), ("--teacher", args.teacher, "taught")):
        if model and is_inside(Path(model), folder):
            raise UserError(Exit.CHECKPOINT, f"{flag} {printable(model)} lies in --output_dir "
                                             f"{printable(folder)}, which holds that run. Type, with another "
                                             "folder:\n"
                                             f"{launcher()} {shell_line(['train.py', *sys.argv[1:]])} "
                                             f"{flags_of_another_run(folder, name, args.mirror_to)}")
    raise error_of_another_run("--output_dir", folder, ", or --overwrite, which deletes them")


def refuse_foreign_config(args: Namespace) -> None:
    """Raises UserError (exit 4) for an output folder without checkpoints whose config.toml train.py did not write."""
    config = Path(args.output_dir) / RUN_CONFIG
    if args.overwrite or steps_in(config.parent) or not config.is_file():
        return
    head = config.read_bytes()[:200].decode(errors="replace")
    if head and RUN_CONFIG_TITLE not in head and TWO_MODELS_TITLE not in head:
        raise UserError(Exit.CHECKPOINT, f"{printable(config)}: train.py did not write it, and would replace it. "
                                         "Give another --output_dir.")


# ---------------------------------------------------------------- texts


def flags_for_texts(texts: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Converts TEXT to --data_dir: NAME.tokens beside the first text, or here if that folder is read-only.

    Folders of tokens become --data_dir themselves. Raises ValueError beside a flag that names tokens.
    """
    texts = as_list(texts)
    # A shell expands 'texts/*' to folders of tokens too, once they are there; a quoted one gets a folder
    # without wildcards.
    first = Path(next((word for word in texts if not _holds_tokens(word)), texts[0]))
    if "-" in texts:
        raise ValueError("-: standard input is read by pretokenize.py alone. Pipe the text into it")
    if others := given.keys() & {"data_dir", "bin_file"}:
        raise ValueError(f"{printable(first)}: not with --{min(others)}. Drop one.")
    if all((Path(word) / METADATA).exists() and any(Path(word).glob("*.bin")) for word in texts):
        return {"data_dir": texts if texts[1:] else texts[0]}
    if "vocab_size" in given:
        command = ["python", "pretokenize.py", *texts, "--vocab_size", str(given["vocab_size"])]
        raise ValueError(f"{printable(first)}: --vocab_size is for pretokenize.py. Run {shell_line(command)}; then "
                         "train without the text and the flag")
    name = first.resolve().name
    if glob.has_magic(name) and not first.exists():
        name = re.sub(r"[*?\[\]]", "", name).strip(".") or "texts"
    folder = first.parent / f"{name}{TOKENS}"
    left_out = [word for word in texts if _holds_tokens(word) and Path(word) != folder]
    texts = [word for word in texts if Path(word) != folder and not _holds_tokens(word)]
    if not texts:
        raise ValueError(f"{printable(first)}: has metadata.json and no tokens. Give the text again")
    if left_out:
        warn_once(f"without {printable(', '.join(left_out))}: tokens are given by --data_dir.")
    if not is_utf8(texts[0]):  # the run could not record it
        raise ValueError(f"{printable(texts[0])}: the name is not UTF-8. Rename the text")
    data_dir = str(folder) if os.access(first.parent, os.W_OK) else folder.name
    return {"texts": texts, "data_dir": f"./{data_dir}" if data_dir.startswith("-") else data_dir}  # not a flag


def _holds_tokens(word: str) -> bool:
    """True for a folder that this program made of texts."""
    return Path(word).name.endswith(TOKENS) and (Path(word) / METADATA).exists()


LENGTHS = ("max_steps", "max_minutes", "epochs")
WITHOUT_LENGTH = tuple(f"without {name}" for name in LENGTHS)  # changes of recorded flags


def flags_to_continue(args: Namespace) -> list[str]:
    """The flags to add to the same command, so that it continues its run on new tokens.

    The run goes on for as long again, unless the command line changes its recorded length.
    """
    folder, checkpoints = run_to_resume({**vars(args), "resume_from": args.resume_from or "auto"})
    newest = max(steps_in(folder), default=0)
    if args.overwrite or args.overfit or not (newest or args.resume_from):
        return []  # it does not continue one
    if args.cooldown_from:  # it has a length of its own
        return ["--allow_new_data"]
    more = [] if args.resume_from else ["--resume_from", "auto"]
    limits = {name: getattr(args, name) for name in LENGTHS if name in args.origin.given}
    if not (args.resume_from or limits):  # they count only if the command line has none
        layer = recorded_flags({"resume_from": "auto", "output_dir": args.output_dir})
        given = layer.given if layer else {}
        limits = {name: given[name] for name in LENGTHS if isinstance(given.get(name), int | float)}
    if newest and not limits:  # the old text decided the length
        more += ["--max_steps", str(max(2 * newest, planned_steps(checkpoints)))]
    for name, length in limits.items():
        is_new = any(change.startswith(f"{name} ") or change in WITHOUT_LENGTH for change in args.origin.changed)
        if name != "max_steps" and not is_new:
            more += [f"--{name}", f"{2 * length:.12g}"]
        elif name == "max_steps" and newest >= length:
            more += [f"--{name}", str(newest + length)]
    return [*more, "--allow_new_data"]


def _tokenizer_of_run(args: Namespace) -> str | None:
    """The tokenizer of the run to resume, in its newest checkpoint; None for a new run.

    Raises UserError (exit 4) where there is no checkpoint, before any text is read.
    """
    requested = args.cooldown_from or args.resume_from
    if not requested:
        return None
    folder, checkpoints = run_to_resume(vars(args))
    if not (checkpoints or requested == "auto" or (folder / RUN_CONFIG).is_file()):
        raise UserError(Exit.CHECKPOINT, f"{printable(requested)} holds no checkpoint to go on from. Give another one.")
    return str(checkpoints[0] / TOKENIZER) if checkpoints else None


def make_tokens(args: Namespace) -> None:
    """Runs pretokenize.py to fill the folder --data_dir with the tokens of the texts, unless it holds them.

    Raises UserError: exit 3 if the texts changed after the folder was made, or are a run or a model, exit 2
    in a run that makes no tokens. Raises SystemExit if pretokenize.py fails.
    """
    from gpt.pretokenization.sources import refuse_run_or_model  # which imports numpy
    from gpt.pretokenization.store import has_tokenizer

    texts, folder = as_list(args.texts), Path(args.data_dir)
    for text in texts:
        refuse_run_or_model(text)
    has_tokens = (folder / METADATA).exists()
    keeps_tokenizer = has_tokenizer(folder) and (flags_to_continue(args) or not has_tokens)
    tokenizer = (str(folder / TOKENIZER) if keeps_tokenizer else
                 args.tokenizer_file or args.init_from or args.teacher or _tokenizer_of_run(args))
    command = ["pretokenize.py", *texts, "--output_dir", args.data_dir,
               *(["--tokenizer_file", tokenizer] if tokenizer else [])]
    if has_tokens:
        _refuse_other_texts(args, texts, command)
    else:
        _run_pretokenize(args, texts, command)
    if is_main():
        print(f"texts       their tokens: {printable(folder)}", flush=True)


def _missing(texts: Sequence[str]) -> list[str]:
    """The texts that match no local path and are no address."""
    return [text for text in texts
            if not (os.path.exists(text) or glob.glob(text, recursive=True) or "://" in text)]


def _refuse_other_texts(args: Namespace, texts: Sequence[str], command: Sequence[str]) -> None:
    """Raises UserError (exit 3) unless --data_dir holds the tokens of these texts; command makes them."""
    from gpt.pretokenization.sources import names_of_words
    from gpt.pretokenization.store import has_tokenizer
    from gpt.tokens.metadata import read_metadata

    folder = Path(args.data_dir)
    recorded = read_metadata(folder / METADATA)
    if _are_tokens_of(recorded, texts):
        return
    missing = _missing(texts)
    if missing:
        raise UserError(Exit.DATA, f"{printable(missing[0])}: No such file or directory. Its tokens are still "
                                   f"there: give --data_dir {shell_word(folder)} in its place.")
    sources = printable(first_of(recorded.get("sources", ["another program"])))
    line = sys.argv[1:]
    kept = []
    if has_tokenizer(folder) and "--tokenizer_file" not in command and not args.overwrite:  # other runs may need it
        kept = ["--tokenizer_file", str(folder / TOKENIZER)]
    pretokenize_line = f"\n    python {shell_line([*command, *kept, '--overwrite'])}"
    if recorded.get("texts") != names_of_words(texts):  # another run may need the tokens of the other texts
        other = _folder_beside(args.data_dir, texts)
        line = ["--data_dir", other, *(word for word in line if word not in texts and not _holds_tokens(word))]
        command = [other if word == args.data_dir else word for word in command]
        pretokenize_line = "" if Path(other, METADATA).exists() else f"\n    python {shell_line(command)}"
    raise UserError(Exit.DATA, f"{printable(folder)} holds the tokens of {sources}, and these texts have other "
                               f"names, sizes or times. Type:{pretokenize_line}\n    "
                               f"{launcher()} {shell_line(['train.py', *line, *flags_to_continue(args)])}")


def _are_tokens_of(recorded: Mapping[str, Any], texts: Sequence[str]) -> bool:
    """True if recorded, the content of metadata.json, names these texts with their sizes and times."""
    from gpt.pretokenization.sources import find_files, identity_of

    # The files of the hub's texts lie in its cache, and may be other ones today.
    hub_texts = [text for text in texts if is_on_hub(text)]
    local_texts = [text for text in texts if not is_on_hub(text)]
    files = [(file.shown, file.path) for file in find_files(local_texts, lambda _: None, {})]
    return hub_texts == recorded.get("hub_texts", []) and (
        not local_texts or identity_of(files) == recorded.get("sources_identity"))


def _folder_beside(data_dir: str, texts: Sequence[str]) -> str:
    """The first of a.txt-2.tokens, a.txt-3.tokens and so on that has no other texts' tokens.

    data_dir is a.txt.tokens.
    """
    from gpt.tokens.metadata import read_metadata

    folders = (Path(f"{data_dir.removesuffix(TOKENS)}-{number}{TOKENS}") for number in itertools.count(2))
    return str(next(folder for folder in folders if not (folder / METADATA).exists()
                    or _are_tokens_of(read_metadata(folder / METADATA), texts)))


def _run_pretokenize(args: Namespace, texts: Sequence[str], command: Sequence[str]) -> None:
    """Runs the command that makes the tokens of the texts. Raises like make_tokens()."""
    missing = _missing(texts)
    if missing:
        raise UserError(Exit.DATA, f"{printable(missing[0])}: No such file or directory. Give the path of a "
                                   "text.")
    if len(texts) == 1 and texts[0].endswith(".py"):  # as nanoGPT's config/train_shakespeare_char.py
        raise UserError(Exit.FLAGS, f"{printable(texts[0])} is read as text to learn, not as settings. Settings "
                                    "are flags, or stand in a TOML file: --config FILE. To train on this text, "
                                    f"type first:\npython {shell_line(command)}")
    if is_one_of_several() or args.dry_run or args.overfit:
        raise UserError(Exit.FLAGS, f"{printable(texts[0])} has no tokens yet. Type first:\n"
                                    f"python {shell_line(command)}")
    refuse_foreign_config(args)
    refuse_folder_of_another_run(args)
    with Signals(can_save=True) as signals:
        returncode = run_child([sys.executable, str(PROGRAM_FOLDER / command[0]), *command[1:]], signals,
                               {TRAINS_NEXT: "1"})
    if returncode == Exit.DATA:
        warn("if the cure is a flag, such as --encoding, it goes to this command; then type the same line again:\n"
             f"python {shell_line(command)}")
    if returncode:
        raise SystemExit(returncode)


# ---------------------------------------------------------------- shorthands and contradictions


def expand_shorthands(given: dict[str, Any]) -> dict[str, Any]:
    """Replaces the shorthands TEXT and --use_lr_scheduler by --data_dir and --lr_schedule.

    The names of folders to write lose the slash that a shell adds behind them. Raises ValueError with the
    problem of a shorthand that conflicts with another flag.
    """
    given = dict(given)
    for name in {"output_dir", "mirror_to"} & given.keys():
        given[name] = given[name].rstrip(os.sep) or os.sep
    if "texts" in given:
        given.update(flags_for_texts(given.pop("texts"), given))
    if "use_lr_scheduler" in given:
        is_on = given.pop("use_lr_scheduler")
        schedule = given.setdefault("lr_schedule", "cosine" if is_on else "constant")
        if (schedule == "constant") == is_on:
            raise ValueError(f"--lr_schedule {schedule}: not with --{'' if is_on else 'no-'}use_lr_scheduler")
    return given


def contradictions(args: Namespace) -> list[str]:
    """Returns the problems of flags that are each valid, one line each."""
    problems = [
        *problems_with(args.data_dir),
        *problems_with_name("--init_from", args.init_from),
        *(f"--{name}: not with several folders in --data_dir: each of them has its own"
          for name in ("bin_file", "val_bin_file", "metadata_file")
          if isinstance(args.data_dir, list) and vars(args)[name] is not None),
        *(f"--{name}: must be a folder of this machine or of a mounted disk, not an address with ://"
          for name in ("output_dir", "mirror_to") if "://" in (vars(args)[name] or "")),
        *(f"--{name}: the hub has weights, no state of training; give --init_from"
          for name in ("resume_from", "cooldown_from") if is_on_hub(vars(args)[name])),
        *(f"--{name}: a cooldown falls from the learning rate of its checkpoint; drop it"
          for name in ("learning_rate", "warmup_steps", "lr_schedule") if args.cooldown_from
          and any(change.startswith(f"{name} ") for change in args.origin.changed)),
        *(["--teacher: not a model of the hub, which has another tokenizer; give a folder of train.py"]
          if is_on_hub(args.teacher) else [])]
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
