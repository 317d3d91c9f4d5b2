"""Flags in files: read from TOML, laid under the command line, and written as a run decided them.

    learning_rate = 1e-3        a flag by its name without --, at the top level: somebody gave it
    use_amp = true              a flag that is on or off
    [decided]                   below this line: values that a program chose, which follow when what they were
    min_lr = 1e-5               chosen from is changed
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import Exit, UserError, optional
from common.words import printable, printable_text

DECIDED = "decided"
COMMENT_WIDTH = 79

# What the network looks like, which --init_from sets too.
SHAPE = ("arch", "model_size", "n_layer", "n_head", "n_embd", "n_kv_head", "n_inner", "rope_theta", "bias",
         "tie_weights")
# A flag as it stands on the command line, maybe with a value: the flags of a file that it replaces, because they say
# the same in other words or make no sense beside it.
REPLACES: dict[str, tuple[str, ...]] = {
    "data_dir": ("bin_file", "val_bin_file", "tokenizer_file", "metadata_file", "vocab_size"),
    "arch": ("bias", "n_kv_head", "n_inner", "rope_theta"),
    "model_size": ("n_layer", "n_head", "n_embd", "n_kv_head", "n_inner"),
    "init_from": (*SHAPE, "init_std"),
    "epochs": ("max_steps", "cooldown_from", "cooldown_steps"),
    "max_steps": ("epochs", "cooldown_from", "cooldown_steps"),
    "cooldown_from": ("epochs", "max_steps", "max_minutes", "cooldown_steps"),
    "tracker": ("tensorboard",),
    "eval_tokens": ("eval_batches",),
    "eval_batches": ("eval_tokens",),
    "lr_schedule": ("use_lr_scheduler", "decay_share"),
    "lr_schedule constant": ("min_lr",),
    "use_lr_scheduler": ("lr_schedule", "decay_share"),
    "no-use_lr_scheduler": ("lr_schedule", "decay_share", "min_lr", "warmup_steps"),
    "no-use_gpu": ("fp8_head", "loss_kernel", "compile_mode"),
    "no-use_amp": ("amp_dtype", "residual_dtype", "fp8_head"),
    "no-compile": ("compile_blocks", "compile_mode"),
    "deterministic": ("compile_mode",),
}
# A flag of the command line: what a program decided from it before, and decides again.
DECIDES: dict[str, tuple[str, ...]] = {
    "n_head": ("n_kv_head", "n_inner"),
    "model_size": ("init_std",),
    "n_embd": ("n_inner", "init_std"),
    "n_kv_head": ("n_inner",),
    "learning_rate": ("min_lr", "embedding_learning_rate", "init_std"),
    "weight_decay": ("embedding_weight_decay",),
    "optimizer": ("learning_rate", "min_lr", "embedding_learning_rate", "init_std"),
    "lr_schedule": ("min_lr", "warmup_steps"),
    "use_lr_scheduler": ("min_lr", "warmup_steps"),
    "cooldown_from": ("min_lr",),
    "batch_size": ("gradient_accumulation_steps", "learning_rate", "embedding_learning_rate", "min_lr", "beta2"),
    "gradient_accumulation_steps": ("learning_rate", "embedding_learning_rate", "min_lr", "beta2"),
    "epochs": ("min_lr", "warmup_steps", "eval_interval", "sample_interval", "log_interval"),
    "max_steps": ("min_lr", "warmup_steps", "eval_interval", "sample_interval", "log_interval"),
    "max_minutes": ("epochs", "learning_rate", "embedding_learning_rate", "min_lr", "warmup_steps", "eval_interval",
                    "sample_interval", "log_interval"),
}


class Layer(NamedTuple):
    """The flags of one source by name: those that somebody gave, and those that a program decided.

    source is how messages call it. places says where each key of a TOML file stands ('line 3 of my.toml'); it is empty
    for other sources.
    """

    source: str
    given: dict[str, Any]
    decided: dict[str, Any]
    places: dict[str, str]

    @property
    def values(self) -> dict[str, Any]:
        return {**self.decided, **self.given}


class Origin(NamedTuple):
    """Where the values of a command's flags came from: the value of args.config.

    given names those that a person gave. recorded is the file with the flags of the run that is resumed, or ""; changed
    says which of those the command line changes.
    """

    given: frozenset[str]
    recorded: str
    changed: tuple[str, ...]


# ---------------------------------------------------------------- layers


def laid_over(lower: Layer, upper: Layer) -> Layer:
    """The flags of two layers together. Where both have a flag the upper one wins, and with it REPLACES and DECIDES."""
    given, decided = dict(lower.given), dict(lower.decided)
    before = lower.values
    for name, value in upper.given.items():
        if before.get(name) != value:
            for said in (f"no-{name}" if value is False else name, f"{name} {value}"):
                for replaced in REPLACES.get(said, ()):
                    given.pop(replaced, None)
                    decided.pop(replaced, None)
            for chosen in DECIDES.get(name, ()):
                decided.pop(chosen, None)
    for name in upper.values:
        given.pop(name, None)
        decided.pop(name, None)
    given.update(upper.given)
    decided.update({name: value for name, value in upper.decided.items() if name not in upper.given})
    if "init_from" in given:
        decided = {name: value for name, value in decided.items() if name not in SHAPE}
    places = {name: place for name, place in lower.places.items() if name not in upper.values}
    return Layer(upper.source, given, decided, {**places, **upper.places})


def changes(lower: Layer, upper: Layer) -> tuple[str, ...]:
    """In words, the flags that the upper layer gives another value than the lower one has.

    auto says nothing else than what was decided then.
    """
    there = lower.values
    return tuple(f"{name} {_shown(there[name])} -> {_shown(value)}" for name, value in upper.given.items()
                 if value != "auto" and name in there and there[name] != value)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return printable(str(value).lower() if isinstance(value, bool) else str(value))[:60]


# ---------------------------------------------------------------- reading


def can_read_toml() -> bool:
    """False on Python 3.10 without the package tomli."""
    from importlib.util import find_spec

    return find_spec(_toml_package()) is not None


def _toml_package() -> str:
    return "tomllib" if sys.version_info >= (3, 11) else "tomli"


def read_toml(path: Path, cure: str = "") -> Layer:
    """The flags in a TOML file, their values as TOML has them. cure ends the message about a file that nobody named.

    Raises UserError: exit 2 for a file that is not there or not TOML, exit 5 on Python 3.10 without the package tomli.
    """
    from common.files import read_text  # hashlib, which that imports, takes longer than the rest of --help

    toml = optional(_toml_package(), "reading flags from a TOML file")
    shown = printable(str(path))
    try:
        text = read_text(path).removeprefix("\ufeff")  # editors on Windows begin a file with this mark
        fields = toml.loads(text)
    except OSError as error:
        flag, cure = ("", cure) if cure else ("--config ", "Name a TOML file of flags.")
        raise UserError(Exit.FLAGS, f"{flag}{shown}: {error.strerror}. {cure}") from error
    except (ValueError, RecursionError) as error:
        why = printable(str(error).replace("\n", " "))[:120]
        cure = cure or "Write name = value on each line: text in quotes, true or false for what is on or off."
        raise UserError(Exit.FLAGS, f"{shown} is not TOML: {why}. {cure}") from error
    decided = fields.pop(DECIDED, {})
    if not isinstance(decided, dict):
        fields[DECIDED], decided = decided, {}
    decided = {name: value for name, value in decided.items() if name not in fields}
    return Layer(shown, fields, decided, _places_in(text, shown))


def _places_in(text: str, shown_path: str) -> dict[str, str]:
    """The first line on which each key or table stands."""
    places: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if key := re.match(r"\s*\[*\s*[\"']?([^\s\"'=.\]#]+)", line):
            places.setdefault(key[1], f"line {number} of {shown_path}")
    return places


# ---------------------------------------------------------------- writing


def to_toml(layer: Layer, introduction: str, reasons: Mapping[str, str]) -> str:
    """The TOML file of a layer. introduction and reasons, by flag, become comments.

    A value that TOML cannot hold (text with bytes that are not UTF-8) becomes a comment that says so.
    """
    lines = _comment(introduction)
    for heading, values in (("", layer.given), (f"\n[{DECIDED}]  # by the program", layer.decided)):
        lines += [heading] if values else []
        for name, value in values.items():
            lines += _comment(reasons.get(name, ""))
            try:
                lines.append(f"{name} = {_toml_value(value)}")
            except UnicodeEncodeError:
                lines.append(f"# {name}: not written, its text {_ascii(value)} is not UTF-8")
    return "\n".join([*lines, ""])


def write_toml(path: Path, layer: Layer, introduction: str, reasons: Mapping[str, str]) -> None:
    """Writes to_toml to a file, whole or not at all. Raises OSError."""
    from common.files import write_whole

    write_whole(path, to_toml(layer, introduction, reasons))


def _comment(text: str) -> list[str]:
    """Lines of comment; a line that is indented is a command, which is not broken."""
    import textwrap

    lines = []
    for line in printable_text(text).split("\n"):
        lines += [line] if line.startswith(" ") else textwrap.wrap(line, COMMENT_WIDTH - 2)
    return [f"# {line}" for line in lines]


def _toml_value(value: Any) -> str:
    """A value in TOML, exactly; of a float the shortest digits that give the same float again.

    Raises UnicodeEncodeError for text that is not UTF-8.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, str):
        value.encode()
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
    return repr(value)


def _ascii(value: Any) -> str:
    return ascii(value)[:100]
