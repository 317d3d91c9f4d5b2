"""Finds the checkpoint that a path means, and checks whether a run may resume from it."""

import os
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from gpt.architectures.fields import shown
from gpt.architectures.table import ModelConfig, name_of
from gpt.checkpoint.commands import flags_of_another_run, more_text_commands, transformers_command
from gpt.checkpoint.recorded import first_readable
from gpt.checkpoint.steps import numbered_in, steps_in, without_link
from gpt.checkpoint.stored import FoundCheckpoint, StoredState, verify
from gpt.common.errors import Exit, InvalidCheckpoint, UserError
from gpt.common.files import sha256_of, split_checkpoint_name
from gpt.common.names import (
    BEST,
    CONFIG,
    FIRST_MODEL,
    MANIFEST,
    METADATA,
    OPTIMIZER,
    RUN_CONFIG,
    STATE,
    TOKENIZER,
    WEIGHTS,
)
from gpt.common.ranks import launcher
from gpt.common.words import printable, several, shell_word

T = TypeVar("T")


# ---------------------------------------------------------------- a folder of checkpoints


def newest_sound(folder: Path, warn: Callable[[str], None], to_train: bool = True,
                 names: Collection[str] = ()) -> FoundCheckpoint | None:
    """The newest checkpoint of a folder that verify accepts, with its training state.

    Skips each damaged checkpoint with a warning. None if the folder holds no checkpoint. Raises UserError (exit
    4) with the reasons if all checkpoints are damaged.
    """
    reasons = []
    for path, why in numbered_in(folder).values():
        if why is None:
            try:
                return FoundCheckpoint(path, verify(path, to_train, names))
            except InvalidCheckpoint as error:
                why = str(error)
        if why and os.path.lexists(path):  # a training run may have deleted the checkpoint meanwhile
            reasons.append(f"{path.name}: {why}")
            warn(f"{printable(path)} was skipped: {why}")
    if reasons:
        raise _refusal(f"no sound checkpoint in {printable(folder)}. {'; '.join(reasons[:3])}. Restore one "
                       "from a copy, or start in another folder.")
    return None


# ---------------------------------------------------------------- any path


def resolve(path: Path, warn: Callable[[str], None] = lambda _: None) -> Path:
    """The folder that path means: a checkpoint, the newest sound one of a folder, or a Hugging Face folder.

    folder/best is the best checkpoint of a folder by validation, folder/last the newest sound one; best and
    last alone mean out/best and out/last. A checkpoint is verified, its optimizer's state by size alone. A
    damaged one is refused if the path names it, and else skipped with a warning; without warn, another caller
    prints it. Raises UserError (exit 4) for a refused one, and for any other path.
    """
    return _locate(path, warn)[0]


def _locate(path: Path, warn: Callable[[str], None], run_folder: Path | None = None,
            ) -> tuple[Path, StoredState | None]:
    """resolve with the verified training state; without a state for a Hugging Face folder.

    run_folder is the output folder of a run to resume, whose optimizer's state is then
    verified; None for a model alone.
    """
    to_train = run_folder is not None
    folder, name = split_checkpoint_name(path, run_folder or Path("out"))
    # Checkpoints that Hugging Face's Trainer wrote.
    trainer_checkpoints = [path for path, _ in numbered_in(folder).values() if (path / "training_args.bin").is_file()]
    is_checkpoint = (folder / MANIFEST).is_file() or (folder / CONFIG).is_file()
    if (name and is_checkpoint) or (name == BEST and trainer_checkpoints):
        raise _refusal(f"{printable(folder / name)} does not exist, and {printable(folder)} is no output folder of "
                       f"train.py. Give {shell_word(folder)} alone.")
    if (folder / MANIFEST).is_file():
        return folder, _verified(folder, to_train, "Give the folder it is in to take the newest sound one.")
    if (folder / STATE).exists() and (folder / OPTIMIZER).exists():
        raise _refusal(f"{printable(folder)} has training state but no {MANIFEST}: it was never finished. "
                       "Give another checkpoint.")
    if (folder / CONFIG).is_file():
        return folder, None
    if trainer_checkpoints:
        return trainer_checkpoints[0], None
    found = (_best_of(folder, warn, to_train) if name == BEST else
             newest_sound(folder, warn, to_train))
    if found is None:
        raise _nothing_found(folder, to_train)
    return found


def _verified(path: Path, to_train: bool, cure: str) -> StoredState:
    """Verifies the checkpoint that the user named. Raises UserError (exit 4) with the cure."""
    try:
        return verify(path, to_train)
    except InvalidCheckpoint as error:
        raise _refusal(f"checkpoint {printable(path)} is damaged: {error}. {cure}") from error


def _best_of(folder: Path, warn: Callable[[str], None], to_train: bool) -> FoundCheckpoint | None:
    """The best checkpoint by validation, as the newest one records; None for a folder without any."""
    newest = newest_sound(folder, warn, names=[STATE])
    if newest is None:
        return None
    best = folder / f"checkpoint-{newest.stored.state.best_step}"
    cure = f"Give {shell_word(folder)} for the newest one."
    is_recorded = newest.stored.state.best_val_loss is not None
    if is_recorded and best in steps_in(folder).values():
        return FoundCheckpoint(best, _verified(best, to_train, cure))
    why = f"the best is {best.name}, which is not there" if is_recorded else "there was no validation"
    raise _refusal(f"{printable(folder)} has no best checkpoint: {newest.folder.name} says {why}. {cure}")


def _refusal(message: str) -> UserError:
    return UserError(Exit.CHECKPOINT, message)


def _nothing_found(path: Path, to_resume: bool) -> UserError:
    """The error for a file, for a folder without checkpoints, or for a folder that does not exist.

    to_resume is False where a model alone will do.
    """
    why = f"holds no checkpoint and no {CONFIG}" if path.is_dir() else "is not a folder"
    if not path.exists():
        why = "does not exist"
    elif _pickles_in(path):
        why += " (a pickle, such as a .pt file, can run code and is never opened)"
    return _refusal(f"{printable(path)} {why}. {_cure_for(path, to_resume)}")


def _pickles_in(path: Path) -> list[Path]:
    """The pickles in a folder, or the path itself if it is one; beside metadata.json a .bin file holds tokens."""
    return [each for each in (path, *sorted(path.glob("*")))
            if each.suffix in (".pt", ".pth", ".bin") and each.is_file() and not (each.parent / METADATA).is_file()]


def _cure_for(path: Path, to_resume: bool) -> str:
    """What to do about a path without a checkpoint, the most special case first."""
    if (path / FIRST_MODEL).is_dir():
        return (f"Its first model is in {printable(path / FIRST_MODEL)}. To go on with both, type the command that "
                "began the run, with --resume_from auto.")
    pickles = _pickles_in(path)
    has_weights = (path.parent / WEIGHTS).is_file()
    if path.is_file() and (path.parent / CONFIG).is_file() and (has_weights or not pickles):
        return f"Give the folder that holds it, {shell_word(path.parent)}."
    if pickles:
        return transformers_command(pickles[0].parent) or (
            "llm.c's own dev/eval/export_hf.py converts its files. Convert nanoGPT's: python export.py "
            f"--from_nanogpt {shell_word(pickles[0])} --output {shell_word(pickles[0].stem)}-gpt2 "
            "--tokenizer_file TOKENIZER")

    others = [*steps_in(path.parent).values()] or sorted({each.parents[1] for each in  # or runs
                                                          path.parent.glob(f"*/*/{STATE}")})
    model = "a model of huggingface.co, such as hf://openai-community/gpt2"
    beside = f"Give one of those beside it: {printable(', '.join(map(str, others[:4])))}"
    new = "out" if path.is_file() or path.name.startswith("checkpoint-") else shell_word(path)
    if to_resume:
        return beside if others else f"Begin a run there:\npython train.py --output_dir {new}"
    if others:
        return f"{beside}; or {model}"
    return f"Give {model}, or train one first:\npython train.py --output_dir {new}"


def read_checkpoint(path: Path, warn: Callable[[str], None], reader: Callable[[Path], T]) -> T:
    """reader(folder) for the folder that path means, repeated if a training run deletes the folder meanwhile.

    Raises UserError (exit 4) and the errors of reader.
    """
    for _ in range(5):
        folder = resolve(path, warn)
        try:
            return reader(folder)
        except (UserError, OSError):
            if folder.exists():
                raise
    raise _refusal(f"{printable(path)} changed five times while it was read. Give one of its checkpoints.")


# ---------------------------------------------------------------- resuming


def find_resume(requested: str, output_dir: Path, overwrite: bool, warn: Callable[[str], None],
                ) -> FoundCheckpoint | None:
    """The verified checkpoint that --resume_from means, with its training state.

    requested is a checkpoint, a folder of checkpoints (for the newest sound one), or 'auto' for
    output_dir; 'best' or 'last' may stand alone or after a folder. None if 'auto', or the folder of a run
    that was killed early, holds no checkpoint. Raises UserError (exit 4) for any other path without a
    checkpoint, and for a damaged checkpoint that no sound one replaces. Without overwrite, checkpoints of
    another run in output_dir raise it too.
    """
    folder, name = split_checkpoint_name(Path(requested), output_dir)
    if requested == "auto" or (name != BEST and folder.resolve() == output_dir.resolve()):
        found = newest_sound(output_dir, warn)
        if found is None and requested != "auto" and (name or not (output_dir / RUN_CONFIG).is_file()):
            raise _nothing_found(output_dir, to_resume=True)
        return found
    path, stored = _locate(Path(requested), warn, output_dir)
    path = without_link(path)
    if stored is None:
        raise _refusal(f"{printable(path)} has no {MANIFEST}, so it is no checkpoint of train.py. Start from its "
                       f"weights: drop --resume_from or --cooldown_from, and give --init_from {shell_word(path)}.")
    others = [] if overwrite else checkpoints_of_other_runs(output_dir, path, stored.state.step)
    if others:
        names = printable(", ".join(other.name for other in others[:3]))
        more = f" and {len(others) - 3} more" if others[3:] else ""
        raise _refusal(f"--output_dir {printable(output_dir)} holds checkpoints of another run, or of this one after "
                       f"step {stored.state.step:,}: {names}{more}. Give another --output_dir, or "
                       f"--resume_from {shell_word(output_dir)} alone, which continues the run there, or --overwrite, "
                       f"which deletes {several(len(others), 'checkpoint')}.")
    return FoundCheckpoint(path, stored)


def checkpoints_of_other_runs(output_dir: Path, resumed: Path | None, step: int) -> list[Path]:
    """The checkpoints in output_dir that do not lead to the resumed one.

    If the run resumes from a checkpoint in this folder, these are the checkpoints
    after its step, otherwise all.
    """
    inside = resumed and is_inside(resumed, output_dir)
    return [path for other, path in steps_in(output_dir).items() if not inside or other > step]


def is_inside(path: Path, output_dir: Path) -> bool:
    """True for output_dir itself, for its best and last, and for a checkpoint directly in it."""
    folder, _ = split_checkpoint_name(path, output_dir)
    # A checkpoint may be a link to another disk, and a link elsewhere may mean one in output_dir.
    parent = Path(os.path.abspath(folder)).parent.resolve()
    return output_dir.resolve() in (folder.resolve(), folder.resolve().parent, parent)


def check_same(found: FoundCheckpoint, config: ModelConfig, train_sha256: str, tokenizer_sha256: str | None,
               allow_new_data: bool, mixture: str = "", mirror: str | None = None) -> None:
    """Raises UserError for a checkpoint of another tokenizer or other tokens (exit 3), or another model (exit 4).

    dropout may differ. allow_new_data permits other tokens, never another tokenizer; tokenizer_sha256 None
    means tokens without one, and a checkpoint with a tokenizer is then refused. mixture describes the
    components of mixed tokens, as the checkpoint's field of this name does. mirror is the run's.
    """
    folder, stored = found
    recorded = first_readable([folder])
    more_text = "More text keeps the vocabulary:\n" + more_text_commands(
        folder.parent, folder / TOKENIZER, stored.state, {**(recorded.values if recorded else {}), "mirror_to": mirror})
    compared = [("tokenizer", stored.data.get("tokenizer_sha256"), tokenizer_sha256, more_text)]
    if not allow_new_data:
        before = stored.data.get("mixture") or ""
        cure = "Give that data, or --allow_new_data to go on with these."
        compared.append(("text", stored.data.get("train_sha256"), train_sha256, cure) if before == mixture else
                        ("mixture", before or "one folder", mixture or "one folder", cure))
    for what, before, here, cure in compared:
        if str(before) != str(here):
            most = 200 if what == "mixture" else 12  # of a sha256
            raise UserError(Exit.DATA, f"the checkpoint was trained on another {what}: "
                                       f"{printable(before)[:most]}; here {str(here)[:most]}. {cure}")

    saved = {**stored.model, "arch": stored.arch}
    shape = {"arch": name_of(config), **asdict(config)}
    changed = [key for key, value in shape.items() if key != "dropout" and saved.get(key) != value]
    if changed:
        # Another architecture has other fields, and some of them are no flags.
        flags = " ".join(f"--no-{key}" if shape[key] is False else f"--{key} {shape[key]}".removesuffix(" True")
                         for key in changed[:1 if "arch" in changed else None])
        config_file = folder.parent / RUN_CONFIG
        new_run = "Another shape is another run: drop --resume_from, and give another --output_dir."
        if config_file.is_file():
            new_run = ("Another shape is another run, with your other flags besides:\n"
                       f"{launcher()} train.py --config {shell_word(config_file)} \\\n    {flags} "
                       f"{flags_of_another_run(folder.parent, f'{changed[0]}-{shape[changed[0]]}', mirror)}")
        if stored.state.init_from:
            new_run = "A run from pretrained weights keeps their shape: drop the flag."
        raise _refusal(f"the checkpoint holds another model: {changed[0]} is {shown(saved.get(changed[0]))} in the "
                       f"checkpoint and {shape[changed[0]]} here. "
                       + (more_text if changed[0] == "vocab_size" else new_run))


def wait_until_here(folder: Path, sha256: str, seconds: float = 60.0) -> None:
    """Waits for a checkpoint that another machine wrote, known by its manifest's sha256: a network disk may lag.

    Raises UserError (exit 4) if the checkpoint is still missing after this number of seconds.
    """
    until = time.monotonic() + seconds
    while not (folder / MANIFEST).is_file() or sha256_of(folder / MANIFEST) != sha256:
        if time.monotonic() > until:
            raise _refusal(f"this machine does not see {printable(folder)} as the main process does, after "
                           f"{seconds:.0f} s. Mount the same disk here on all machines.")
        time.sleep(min(1.0, seconds / 10))
