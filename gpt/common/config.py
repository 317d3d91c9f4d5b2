"""Flags in files: read from TOML, laid under the command line, and written as a run decided them.

    learning_rate = 1e-3        a flag by its name without --, at the top level: somebody gave it
    use_amp = true              a flag that is on or off
    [decided]                   below this line: values that a program chose, which follow when what they were
    min_lr = 1e-5               chosen from is changed
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpt.common.errors import Exit, UserError, optional
from gpt.common.words import first_line, is_utf8, printable, printable_text

DECIDED = "decided"


class Row(NamedTuple):
    """A flag's life, but for the kind of its value and its help.

    of says whether it belongs to one "call", to the "machine" (recorded where somebody gave it) or to the "run". The
    rest are names of flags with blanks between, or conditions with commas between, as "no-compile, arch qwen3|llama".
    Where a condition of against holds in a layer, the flag of a lower layer gives way.
    """

    default: Any = None
    of: str = "run"
    called: str = ""  # what other programs call it
    replaces: str = ""  # flags of a lower layer that say the same in other words, or make no sense beside its new value
    redecides: str = ""  # what the program decided from it before, and decides again from its new value
    needs: str = ""  # conditions of which one must hold
    against: str = ""  # conditions under which it is wrong; "auto: dropout" is one for its value auto


Rows = Mapping[str, Row]  # by name of flag


class Layer(NamedTuple):
    """The flags of one source by name: those that somebody gave, and those that a program decided.

    source is how messages call it. What is wrong in a file that a person may have edited is an error; in another
    source it is left out.
    """

    source: str
    given: dict[str, Any]
    decided: dict[str, Any]
    may_be_edited: bool = False

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


def holds(condition: str, values: Mapping[str, Any], rows: Rows) -> bool:
    """Whether flags are as a condition says: `no-compile` is off, `arch qwen3|llama` has a value, `dropout` is set."""
    name, _, wanted = condition.partition(" ")
    value = values.get(name.removeprefix("no-"))
    if name.startswith("no-"):
        return value is False
    if wanted:
        return str(value) in wanted.split("|")
    return value is not None and value is not False and value != rows[name].default


def against(name: str, own: Any, values: Mapping[str, Any], rows: Rows) -> list[str]:
    """What a flag with this value does not go with, as the rest of the sentence that begins with its name."""
    pairs = [condition.rpartition(": ") for condition in rows[name].against.split(", ") if condition]
    return [f"{' ' + only if only else ''}: not with --{condition}" for only, _, condition in pairs
            if only in ("", str(own)) and holds(condition, values, rows)]


def needed(name: str, values: Mapping[str, Any], rows: Rows) -> bool:
    """Whether one of the conditions without which a flag has no effect holds, if it has such."""
    conditions = rows[name].needs.split(", ") if rows[name].needs else []
    return not conditions or any(holds(condition, values, rows) for condition in conditions)


def laid_over(lower: Layer, upper: Layer, rows: Rows) -> Layer:
    """The flags of two layers together: where both have a flag the upper one wins, and with it what its row says."""
    changed = [rows[name] for name, value in upper.given.items() if lower.values.get(name) != value]
    out = {name for row in changed for name in row.replaces.split()}.union(upper.values)
    again = {name for row in changed for name in row.redecides.split()}
    out |= {name for name, value in lower.given.items() if against(name, value, upper.given, rows)}
    left = {name: value for name, value in lower.values.items() if name not in out} | upper.given
    out |= {name for name in lower.values if not needed(name, left, rows) and needed(name, lower.values, rows)}
    given = {name: value for name, value in lower.given.items() if name not in out} | upper.given
    decided = {name: value for name, value in lower.decided.items() if name not in out | again} | upper.decided
    decided = {name: value for name, value in decided.items()
               if name not in given and not against(name, value, given, rows)}
    return Layer(upper.source, given, decided)


def changes(lower: Layer, upper: Layer, settled: Layer) -> tuple[str, ...]:
    """In words, the flags that the upper layer gives another value than the lower one has, and those given in the lower
    one that the settled one has no longer.

    auto says nothing else than what was decided then.
    """
    there = lower.values
    return (*(f"{name} {printable(str(there[name]))[:60]} -> {printable(str(value))[:60]}"
              for name, value in upper.given.items() if value != "auto" and name in there and there[name] != value),
            *(f"without {name}" for name in lower.given if name not in settled.values))


# ---------------------------------------------------------------- reading


TOML = "tomllib" if sys.version_info >= (3, 11) else "tomli"


def read_toml(path: Path, cure: str = "Give a file with name = value on each line, and text in quotes.") -> Layer:
    """The flags in a TOML file, their values as TOML has them. cure ends the message about one that is none.

    Raises UserError: exit 2 for a file that is not there or not TOML, exit 5 on Python 3.10 without the package tomli.
    """
    from gpt.common.files import read_text  # hashlib, which that imports, takes longer than the rest of --help

    toml = optional(TOML, "reading flags from a TOML file")
    shown = printable(str(path))
    try:
        text = read_text(path).removeprefix("\ufeff")  # editors on Windows begin a file with this mark
        fields = toml.loads(text)
    except OSError as error:
        raise UserError(Exit.FLAGS, f"{shown}: {error.strerror}. {cure}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(Exit.FLAGS, f"{shown} is not TOML: {first_line(error)}. {cure}") from error
    decided = fields.pop(DECIDED, {})
    if not isinstance(decided, dict):
        fields[DECIDED], decided = decided, {}
    decided = {name: value for name, value in decided.items() if name not in fields}
    return Layer(shown, fields, decided, may_be_edited=True)


# ---------------------------------------------------------------- writing


def write_toml(path: Path, layer: Layer, introduction: str, reasons: Mapping[str, str]) -> None:
    """Writes a layer to a TOML file, whole or not at all. introduction and reasons, by flag, become comments.

    A value that TOML cannot hold (text with bytes that are not UTF-8) is left out. Raises OSError.
    """
    import json

    from gpt.common.files import write_whole

    lines = _comment(introduction)
    for heading, values in (("", layer.given), (f"\n[{DECIDED}]  # by the program", layer.decided)):
        lines += [heading] if values else []
        for name, value in values.items():
            if is_utf8(str(value)):
                value = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML but for one character
                lines += [*_comment(reasons.get(name, "")), f"{name} = {value}"]
    write_whole(path, "\n".join([*lines, ""]))


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in printable_text(text).splitlines()]
