"""Which checkpoint is meant by a path, and whether a run may go on from it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from architectures.fields import shown
from architectures.table import DEFAULT, ModelConfig, name_of
from checkpoint.contents import WHAT_OPENS
from checkpoint.tensors import pickles_in
from checkpoint.verify import is_as_told, read_state, verify
from common.errors import Exit, InvalidCheckpoint, UserError
from common.files import BEST, LAST, named_in
from common.names import CONFIG, INDEX, MANIFEST, OPTIMIZER, STATE, WEIGHTS
from common.words import is_utf8, printable, several, shell_word

# Names that transformers and nanoGPT download by themselves, and what they are called on huggingface.co.
ON_THE_HUB = {"gpt2": "openai-community/gpt2", "gpt2-medium": "openai-community/gpt2-medium",
              "gpt2-large": "openai-community/gpt2-large", "gpt2-xl": "openai-community/gpt2-xl",
              "distilgpt2": "distilbert/distilgpt2"}
NETWORK_SECONDS = 60.0  # after which a machine sees what another one has written to a network disk
T = TypeVar("T")

Found = tuple[Path, dict[str, Any]]  # a verified checkpoint, and what its trainer_state.json holds


def wait_until_here(folder: Path, sha256: str, seconds: float = NETWORK_SECONDS) -> None:
    """Waits for the checkpoint that another process has verified, known by its manifest's sha256: network disks lag.

    Raises UserError (exit 4) if it does not after so many seconds.
    """
    until = time.monotonic() + seconds
    while not is_as_told(folder, sha256):
        if time.monotonic() > until:
            raise UserError(Exit.CHECKPOINT, f"{printable(str(folder))} is not here as the first process sees it, "
                                             f"after {seconds:.0f} s. All machines need the same disk at this path.")
        time.sleep(min(1.0, seconds / 10))


# ---------------------------------------------------------------- a folder of checkpoints


def steps_in(folder: Path) -> dict[int, Path]:
    """The finished checkpoints of a folder by step, newest first; whatever else lies there is left out."""
    return {step: path for step, (path, why) in _numbered_in(folder).items() if why is None}


def unfinished_in(folder: Path) -> list[Path]:
    """The folders that have a checkpoint's name and some content, but no manifest: half copied, or another program's.
    """
    return [path for path, why in _numbered_in(folder).values() if why]


def _numbered_in(folder: Path) -> dict[int, tuple[Path, str | None]]:
    """All that has a checkpoint's name, by step, newest first, with why it is none: None if it is one, '' if empty."""
    found: dict[int, tuple[Path, str | None]] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if match := re.fullmatch(r"checkpoint-(0|[1-9]\d{0,17})", path.name):
                try:
                    why = None
                    if not (path / MANIFEST).exists():
                        why = f"{MANIFEST} is missing" if any(path.iterdir()) else ""
                except NotADirectoryError:
                    why = ""
                except OSError as error:
                    why = f"{error.strerror}"
                found[int(match[1])] = path, why
    return dict(sorted(found.items(), reverse=True))


def newest_sound(folder: Path, warn: Callable[[str], None],
                 reader: Callable[[Path], dict[str, Any]] = verify) -> Found | None:
    """The newest checkpoint of a folder that the reader accepts, with the state that it returns.

    Damaged ones are skipped with a warning. None if the folder holds no checkpoint. Raises UserError (exit 4) if all
    are damaged, with the reasons.
    """
    reasons = []
    for path, why in _numbered_in(folder).values():
        if why is None:
            try:
                return path, reader(path)
            except InvalidCheckpoint as error:
                why = str(error)
        if why and os.path.lexists(path):  # else a training run has deleted it since
            reasons.append(f"{path.name}: {why}")
            warn(f"{printable(str(path))} is damaged and was skipped: {why}")
    if reasons:
        raise _refusal(f"no sound checkpoint in {printable(str(folder))}. {'; '.join(reasons[:3])}. Nothing was "
                       "deleted; restore one from a copy, or start in another folder.")
    return None


# ---------------------------------------------------------------- any path


def resolve(path: Path, warn: Callable[[str], None], to_train: bool = True) -> Path:
    """The folder to load a model from: a checkpoint, the newest sound one of a folder, or a Hugging Face folder.

    folder/best is the best checkpoint of a folder by validation, folder/last the newest sound one. Raises UserError
    (exit 4) for anything else, saying what it looks like.
    """
    return _locate(path, warn, to_train)[0]


def _locate(path: Path, warn: Callable[[str], None], to_train: bool, home: Path = Path("out"),
            ) -> tuple[Path, dict[str, Any] | None]:
    """As resolve, with the verified training state; None for a Hugging Face folder, which has no such state."""
    if not is_utf8(str(path)):
        raise _refusal(f"{printable(str(path))} is a name with bytes that are not UTF-8, under which safetensors opens "
                       f"nothing. Rename it: mv {shell_word(str(path))} NAME")
    folder, name = named_in(path, home)
    shown = printable(str(folder))
    if folder.is_file():
        is_pickle = folder.open("rb").read(4).startswith((b"PK", b"\x80"))
        kind = ": a pickle (such as nanoGPT's ckpt.pt), which can run code and is never opened" if is_pickle else ""
        cure = shell_word(str(folder.parent)) if (folder.parent / CONFIG).is_file() and not is_pickle else WHAT_OPENS
        raise _refusal(f"{shown} is a file{kind}. A checkpoint is a folder. Give {cure}.")
    is_one, is_model = (folder / MANIFEST).is_file(), (folder / CONFIG).is_file()
    if name and (is_one or is_model):
        raise _refusal(f"{shown} is a single model, so none in it is the {name} one. Give {shell_word(str(folder))} "
                       "itself.")
    if is_one:
        return folder, _verified(folder, to_train, "Give the folder it is in to take the newest sound one.")
    if (folder / STATE).exists() and (folder / OPTIMIZER).exists():
        raise _refusal(f"{shown} has training state but no {MANIFEST}: it was never finished. Give another checkpoint.")
    if is_model:
        return folder, None
    if folder.exists() and not folder.is_dir():
        raise _refusal(f"{shown} is neither a file nor a folder. Give {WHAT_OPENS}.")
    reader = partial(verify, to_train=to_train)
    found = _best_of(folder, warn, to_train) if name == BEST else newest_sound(folder, warn, reader)
    if found is None:
        raise _nothing_found(folder)
    return found


def _verified(path: Path, to_train: bool, cure: str) -> dict[str, Any]:
    """The training state of a checkpoint that was named itself, which is not replaced by an older one."""
    try:
        return verify(path, to_train)
    except InvalidCheckpoint as error:
        raise _refusal(f"checkpoint {printable(str(path))} is damaged: {error}. {cure}") from error


def _best_of(folder: Path, warn: Callable[[str], None], to_train: bool) -> Found | None:
    """The best checkpoint by validation, as the newest one records it, verified; None if the folder holds none."""
    cure, sought = f"Give {shell_word(str(folder / LAST))}, or another checkpoint.", None
    while newest := newest_sound(folder, warn, read_state):
        path, state = newest
        if (loss := state.get("best_val_loss")) is None:
            raise _refusal(f"{printable(str(folder))} has no best checkpoint: {path.name} records no validation. "
                           f"{cure}")
        best = folder / f"checkpoint-{state.get('best_step', 0)}"
        if best in steps_in(folder).values():
            try:
                return best, _verified(best, to_train, cure)
            except UserError:
                if best.exists():
                    raise
        if best == sought:  # not deleted in this moment by a training run that has a better one
            raise _refusal(f"the best checkpoint of {printable(str(folder))} is not there any more: {path.name} says "
                           f"it is {best.name}, with a validation loss of {loss:.4f}. {cure}")
        sought = best
    return None


def _refusal(message: str) -> UserError:
    return UserError(Exit.CHECKPOINT, message)


def _nothing_found(path: Path) -> UserError:
    """The refusal of a folder without checkpoints, or of one that does not exist."""
    name = printable(str(path))
    for pickle in ("ckpt.pt", *pickles_in(path)):
        if (path / pickle).exists():
            return _refusal(f"{name} holds {pickle}, a pickle, which can run code and is never opened. Give "
                            f"{WHAT_OPENS} with safetensors.")
    for weights in (WEIGHTS, INDEX):
        if (path / weights).exists():
            return _refusal(f"{name} has {weights} but no {CONFIG}, which says what model it is. Copy it from where "
                            "the weights come from.")
    command = "python train.py" if path == Path("out") else f"python train.py --output_dir {shell_word(str(path))}"
    if path.is_dir():
        return _refusal(f"{name} holds no checkpoint. Train one first: {command}")
    others = steps_in(path.parent) or (steps_in(Path("out")) if path.name.startswith("checkpoint-") else {})
    cure = f"Train one first: {command}"
    if on_hub := _name_on_hub(str(path)):
        cure = (f"The model on huggingface.co is hf://{on_hub}; it needs pip install huggingface_hub. By hand: hf "
                f"download {on_hub} '*.json' 'model*.safetensors' --local-dir {path.name}")
    elif others:
        there = list(others.values())
        cure = (f"{printable(str(there[0].parent))} holds {', '.join(other.name for other in there[:3])}. Give one of "
                f"them, or {shell_word(str(there[0].parent / LAST))}.")
    return _refusal(f"{name} does not exist. {cure}")


def _name_on_hub(name: str) -> str:
    """What a name is called on huggingface.co, if it looks like one from there; '' if it does not."""
    is_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) and not Path(name).parent.exists()
    is_ours = re.search(r"/(checkpoint-\d+|best|last)$", name)
    return ON_THE_HUB.get(name, name if is_id and not is_ours else "")


def read_checkpoint(path: Path, warn: Callable[[str], None], reader: Callable[[Path], T]) -> T:
    """reader(folder) for the folder that path resolves to; repeated if a training run deleted the folder meanwhile.

    Raises UserError (exit 4), and what reader raises.
    """
    for _ in range(5):
        folder = resolve(path, warn, to_train=False)
        try:
            return reader(folder)
        except (UserError, OSError):
            if folder.exists():
                raise
    raise _refusal(f"{printable(str(path))} changed five times while it was read. Give one of its checkpoints.")


# ---------------------------------------------------------------- resuming


def find_resume(requested: str, output_dir: Path, overwrite: bool, warn: Callable[[str], None],
                flag: str = "--resume_from") -> Found | None:
    """The verified checkpoint that --resume_from means, with its state; None if 'auto' finds no checkpoint.

    requested is a checkpoint, a folder of them (the newest sound one is taken), best or last, alone or after a folder,
    or 'auto' for output_dir. Raises UserError (exit 4) if there is none, or if output_dir holds checkpoints of another
    run and overwrite is off.
    """
    folder, name = named_in(Path(requested), output_dir)
    if requested == "auto" or (name != BEST and folder.resolve() == output_dir.resolve()):
        found = newest_sound(output_dir, warn)
        if found is None and name:
            raise _nothing_found(output_dir)
        return found
    path, state = _locate(Path(requested), warn, to_train=True, home=output_dir)
    if state is None:
        raise _refusal(f"{flag} {printable(str(path))}: {MANIFEST} is missing. Only a checkpoint of train.py can be "
                       "resumed.")
    if not overwrite and (others := not_leading_to(output_dir, path, state["step"])):
        names = printable(", ".join(other.name for other in others[:3]))
        raise _refusal(f"--output_dir {printable(str(output_dir))} holds checkpoints that do not lead to "
                       f"{printable(path.name)}: {names}. Give another --output_dir, or --overwrite, which deletes "
                       f"{several(len(others), 'checkpoint')}.")
    return path, state


def not_leading_to(output_dir: Path, resumed: Path | None, step: int) -> list[Path]:
    """The checkpoints in output_dir that do not belong to the resumed run's past.

    Those are the ones after the step if the run resumes from a checkpoint in this folder, otherwise all.
    """
    inside = resumed is not None and is_inside(resumed, output_dir)
    return [path for other, path in steps_in(output_dir).items() if not inside or other > step]


def is_inside(path: Path, output_dir: Path) -> bool:
    """True for output_dir, best or last of it, and what lies directly in it."""
    folder, _ = named_in(path, output_dir)
    return output_dir.resolve() in (folder.resolve(), folder.resolve().parent)


def check_same(state: dict[str, Any], config: ModelConfig, train_sha256: str, tokenizer_sha256: str | None,
               allow_new_data: bool, mixture: str = "") -> None:
    """Raises UserError if a checkpoint has another model (exit 4), another tokenizer or other tokens (exit 3).

    mixture tells what the tokens are mixed of, as the checkpoint's field of this name does.
    """
    model, data = state.get("model"), state.get("data")
    if not isinstance(model, dict) or not isinstance(data, dict):
        raise _refusal(f"the checkpoint's {STATE} lacks model or data. Give another one.")
    there = {**model, "arch": state.get("arch", DEFAULT)}  # older programs, which named none, had the default
    for key, value in {"arch": name_of(config), **asdict(config)}.items():
        if key != "dropout" and there.get(key) != value:
            raise _refusal(f"the checkpoint holds another model: {key} is {shown(there.get(key))} in the checkpoint "
                           f"and {value} here. Give the flags of its run, or another --output_dir.")

    def trained(what: str, key: str, here: str | None, or_else: str = "") -> UserError:
        return UserError(Exit.DATA, f"the checkpoint was trained {what} (sha256 {printable(str(data.get(key))[:12])}, "
                                    f"here {str(here)[:12]}). Give the data it was trained on{or_else}.")

    if str(data.get("tokenizer_sha256")) != str(tokenizer_sha256):
        raise trained("with another tokenizer", "tokenizer_sha256", tokenizer_sha256)
    if str(data.get("train_sha256")) != train_sha256 and not allow_new_data:
        or_else, before = ", or --allow_new_data to go on with these", printable(str(data.get("mixture") or ""))
        if before == mixture:
            raise trained("on other tokens", "train_sha256", train_sha256, or_else)
        raise UserError(Exit.DATA, f"the checkpoint was trained on another mixture: {before[:200] or 'one folder'}; "
                                   f"here {mixture[:200] or 'one folder'}. Give its folders and weights in their "
                                   f"order{or_else}.")
