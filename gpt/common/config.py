"""Flags in TOML files, the merge of several sources of flags, and the relations that the merge applies.

    learning_rate = 1e-3        at the top level: a flag that a person gave, by its name without --
    use_amp = true              a flag that is on or off
    [decided]                   below this line: values that the program chose, and chooses again
    min_lr = 1e-5               where a person changes the flag that they depend on
"""

import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpt.common.errors import Exit, UserError, optional
from gpt.common.files import read_text, write_whole
from gpt.common.words import first_line, is_utf8, printable, printable_text

DECIDED = "decided"
TOML = "tomllib" if sys.version_info >= (3, 11) else "tomli"


class Relations(NamedTuple):  # a dataclass would cost every --help 10 ms
    """How a flag relates to other flags.

    aliases, overrides, invalidates and renews are names with blanks between; requires and conflicts are
    conditions with commas between: "compile" (the flag is set), "no-compile" (it is off), "arch qwen3|llama"
    (it has one of these values).
    """

    # A "run" records the flag; a "resume" records it for the run's own resumes, not for --config; a "machine"
    # records it only where somebody gave it, a "call" never.
    scope: str = "run"
    aliases: str = ""  # names of the flag in other programs
    overrides: str = ""  # flags of a lower layer that a new value drops: other words for it, or senseless
    invalidates: str = ""  # values that the program chose from the old value, and chooses again from a new one
    renews: str = ""  # like invalidates, but only with --config, which begins another run
    requires: str = ""  # conditions; one of them must hold
    conflicts: str = ""  # conditions that must not hold; "auto: dropout" concerns the flag's value auto alone


class Layer(NamedTuple):
    """The flags of one source, by name: given by a person, or decided by the program.

    source is its name in messages. A wrong value is an error in a file that a person may have edited, and
    is left out elsewhere. excludes are flags without effect beside this layer, which an upper layer loses.
    """

    source: str
    given: dict[str, Any]
    decided: dict[str, Any]
    may_be_edited: bool = False
    excludes: frozenset[str] = frozenset()

    @property
    def values(self) -> dict[str, Any]:
        return {**self.decided, **self.given}


class Origin(NamedTuple):
    """The origin of a command's flags: the value of args.origin.

    given names the flags that a person gave. recorded is the file with the flags of the resumed run, or "".
    changed describes each recorded flag that the command line changes, replaced each such flag of --config.
    excluded has the values of flags that a person gave in vain, by name.
    """

    given: frozenset[str]
    recorded: str
    changed: tuple[str, ...]
    excluded: Mapping[str, Any] = {}
    replaced: tuple[str, ...] = ()


# ---------------------------------------------------------------- layers


class Rules(NamedTuple):
    """The relations between the flags of one command, and the defaults for conditions, by flag."""

    relations: Mapping[str, Relations]
    defaults: Mapping[str, Any]

    def of(self, name: str) -> Relations:
        """The relations of a flag; empty ones if the table does not name the flag."""
        return self.relations.get(name, Relations())

    def holds(self, condition: str, values: Mapping[str, Any]) -> bool:
        """True if the values meet a condition of Relations; a flag at its default, off or None is not set."""
        name, _, accepted = condition.partition(" ")
        if name.startswith("no-"):
            return values.get(name.removeprefix("no-")) is False
        value = values.get(name)
        if accepted:
            return str(value) in accepted.split("|")
        return value not in (None, False, self.defaults[name])  # 0.0, as of a decided dropout, equals False

    def conflicts(self, name: str, value: Any, values: Mapping[str, Any]) -> list[str]:
        """The conflicts of a flag of this value with other flags, as messages without the flag's name."""
        rules = (rule.rpartition(": ") for rule in self.of(name).conflicts.split(", ") if rule)
        return [f"{' ' if only else ''}{only}: not with --{condition}; drop one" for only, _, condition in rules
                if only in ("", str(value)) and self.holds(condition, values)]

    def has_effect(self, name: str, values: Mapping[str, Any]) -> bool:
        """True if one of the conditions holds that a flag requires, or if it requires none."""
        conditions = self.of(name).requires
        return not conditions or any(self.holds(condition, values) for condition in conditions.split(", "))

    def merge(self, lower: Layer, upper: Layer, without: Collection[str] = ()) -> Layer:
        """Merges two layers into one with the upper layer's name; the upper layer's values win.

        The lower layer loses the flags named in without. A changed flag of the upper layer drops the lower
        flags that it overrides, and the decided values that it invalidates. A lower flag that conflicts with
        the upper layer, or loses its effect beside it, is dropped too.
        """
        changed = [self.of(name) for name, value in upper.given.items()
                   if value != "auto" and lower.values.get(name) != value]  # auto keeps the lower value
        overridden = {name for relations in changed for name in relations.overrides.split()}
        invalidated = {name for relations in changed for name in relations.invalidates.split()}
        conflicting = {name for name, value in lower.given.items() if self.conflicts(name, value, upper.given)}
        dropped = {*without, *overridden, *conflicting, *upper.values}
        remaining = {name: value for name, value in lower.values.items() if name not in dropped} | upper.given
        dropped |= {name for name in lower.values
                    if self.has_effect(name, lower.values) and not self.has_effect(name, remaining)}

        given = {name: value for name, value in lower.given.items() if name not in dropped} | upper.given
        decided = {name: value for name, value in lower.decided.items() if name not in dropped | invalidated}
        decided |= upper.decided
        decided = {name: value for name, value in decided.items()
                   if name not in given and not self.conflicts(name, value, given)}
        return Layer(upper.source, given, decided)

    def problems(self, values: Mapping[str, Any]) -> Iterator[str]:
        """A line for each flag that has no effect beside the others, or conflicts with them."""
        for name, default in self.defaults.items():
            value = values[name]
            if value is None or value == default:
                continue
            if value is not False and not self.has_effect(name, values):
                yield f"--{name}: has no effect without --{self.of(name).requires.replace(', ', ' or --')}"
            yield from (f"--{name}{conflict}" for conflict in self.conflicts(name, value, values))


def changes(lower: Layer, upper: Layer, merged: Layer) -> tuple[str, ...]:
    """Describes the flags whose values the upper layer changes, and the given flags that the merge dropped."""
    before = lower.values
    described = (f"{name} {_as_words(before[name])} -> {_as_words(value)}"
                 for name, value in upper.given.items()
                 if value != "auto" and before.get(name, value) != value)  # auto keeps the lower value
    return (*described, *(f"without {name}" for name in lower.given if name not in merged.values))


def _as_words(value: Any) -> str:
    """The first 60 characters of a flag's value, as on a command line."""
    return printable(" ".join(map(str, value)) if isinstance(value, list) else value)[:60]


# ---------------------------------------------------------------- reading


def read_toml(path: Path,
              cure: str = "Give a file with name = value on each line: text in quotes, true and false in small "
                          "letters.") -> Layer:
    """Reads the flags in a TOML file, with TOML's own values. cure ends the message about a wrong file.

    Raises UserError: exit 2 for a file that cannot be read or is not TOML, exit 5 on Python 3.10 without
    the package tomli.
    """
    shown = printable(str(path))
    try:
        # Editors on Windows begin a file with the mark U+FEFF.
        fields = optional(TOML, "reading flags from a TOML file").loads(read_text(path).removeprefix("\ufeff"))
    except OSError as error:
        raise UserError(Exit.FLAGS, f"{shown}: {error.strerror}. {cure}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(Exit.FLAGS, f"{shown} is not TOML: {first_line(error)}. {cure}") from error
    decided = fields.pop(DECIDED) if isinstance(fields.get(DECIDED), dict) else {}
    return Layer(shown, fields, decided, may_be_edited=True)


# ---------------------------------------------------------------- writing


def write_toml(path: Path, layer: Layer, introduction: str, reasons: Mapping[str, str]) -> None:
    """Writes a layer to a TOML file, whole or not at all. introduction and reasons, by flag, become comments.

    A value that TOML cannot hold (text with bytes that are not UTF-8) is left out. Raises OSError.
    """
    import json

    lines = _comment(introduction)
    for heading, values in (("", layer.given), (f"\n[{DECIDED}]  # by the program", layer.decided)):
        lines += [heading] if values else []
        for name, value in values.items():
            if is_utf8(str(value)):
                # JSON's values are TOML's but for one character.
                value = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
                lines += [*_comment(reasons.get(name, "")), f"{name} = {value}"]
    write_whole(path, "\n".join([*lines, ""]))


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in printable_text(text).splitlines()]
