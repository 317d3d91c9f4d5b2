"""The parser of every command: kinds of values, groups, and all problems of a command line reported together."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from common.errors import MESSAGE_LINES, Exit, UserError
from common.words import printable

MAX_WHOLE = 2**31 - 1
SHOWN_CHARACTERS = 80  # of a value that is quoted in a message

# ---------------------------------------------------------------- kinds of values


class ValueKind(NamedTuple):
    """How the text of a flag becomes its value.

    parse raises ValueError for text it does not take; words completes the sentence "must be ..."; metavar stands for
    the value in --help.
    """

    parse: Callable[[str], Any]
    words: str
    metavar: str


def whole(low: int, high: int = MAX_WHOLE, unit: str = "N") -> ValueKind:
    """A whole number from low to high; 1_000 and 1,000 are read as 1000."""

    def parse(text: str) -> int:
        value = int(text.replace(",", ""))
        if not low <= value <= high:
            raise ValueError(text)
        return value

    words = f"a whole number of at least {low:,}"
    if high != MAX_WHOLE:
        words = f"a whole number from {low:,} to {high:,}"
    return ValueKind(parse, words, unit)


def real(low: float, high: float, above: bool = False, below: bool = False, unit: str = "X") -> ValueKind:
    """A finite number from low to high. above excludes low itself, below excludes high."""

    def parse(text: str) -> float:
        value = float(text)
        is_inside = math.isfinite(value) and low <= value <= high
        is_excluded = (above and value == low) or (below and value == high)
        if not is_inside or is_excluded:
            raise ValueError(text)
        return value

    words = f"a number from {low:g} to {high:g}"
    if above or below:
        words = f"a number {'above' if above else 'of at least'} {low:g} and {'below' if below else 'at most'} {high:g}"
    return ValueKind(parse, words, unit)


def one_of(*names: str) -> ValueKind:
    """One of the given words."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(text)
        return text

    return ValueKind(parse, "one of " + ", ".join(names), "|".join(names))


def auto_or(kind: ValueKind) -> ValueKind:
    """The word auto, or what the other kind takes."""

    def parse(text: str) -> Any:
        return text if text == "auto" else kind.parse(text)

    return ValueKind(parse, f"auto or {kind.words}", f"auto|{kind.metavar}")


def text(unit: str = "PATH") -> ValueKind:
    """Any text that is not empty and has no null character, which no file name may hold."""

    def parse(value: str) -> str:
        if not value or "\0" in value:
            raise ValueError(value)
        return value

    return ValueKind(parse, "text that is not empty", unit)


def escaped(unit: str = "TEXT") -> ValueKind:
    r"""Text that is not empty, in which \n, \t and \\ stand for a newline, a tab and a backslash."""
    characters = {"n": "\n", "t": "\t", "\\": "\\"}

    def parse(value: str) -> str:
        if not value or "\0" in value:
            raise ValueError(value)
        return re.sub(r"\\([nt\\])", lambda found: characters[found[1]], value)

    return ValueKind(parse, "text that is not empty", unit)


# ---------------------------------------------------------------- the parser


class Group:
    """Flags that stand together in --help."""

    def __init__(self, parser: Parser, title: str):
        self.parser = parser
        self.group = parser.add_argument_group(title)

    def flag(self, name: str, kind: ValueKind, default: Any, words: str, unset: str = "") -> None:
        """Declares a flag with a value. unset is shown as the default where there is none: what happens then."""

        def convert(value: str) -> Any:
            try:
                return kind.parse(value)
            except ValueError:
                # Recorded, not raised: argparse goes on, and all problems are reported together.
                shown = printable(value)[:SHOWN_CHARACTERS]
                self.parser.problems.append(f"{name} {shown!r}: must be {kind.words}")
                return default

        shown_default = unset if default is None else default
        self.group.add_argument(name, type=convert, default=default, metavar=kind.metavar,
                                help=_help(words, shown_default))

    def switch(self, name: str, default: bool | None, words: str, unset: str = "") -> None:
        """Declares a flag that is on or off. It has a --no- form too, unless it is off by default."""
        shown_default = unset if default is None else ("on" if default else "off")
        action: Any = "store_true" if default is False else argparse.BooleanOptionalAction
        self.group.add_argument(name, action=action, default=default, help=_help(words, shown_default))


def _help(words: str, default: Any) -> str:
    return f"{words} (default: {default})".replace("%", "%%")  # argparse formats the text with %


class Parser(argparse.ArgumentParser):
    """An argparse parser that takes no abbreviations and reports all problems together, with 'did you mean'."""

    def __init__(self, prog: str, description: str):
        width = min(130, shutil.get_terminal_size((120, 24)).columns)
        super().__init__(prog=f"python {prog}", usage=f"python {prog} [flags]", description=description,
                         allow_abbrev=False, formatter_class=lambda prog: argparse.HelpFormatter(prog, 2, 34, width))
        # argparse's own expression takes -1 for a value, but -1e-3, -inf and -nan for flags.
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)
        self.problems: list[str] = []

    def group(self, title: str) -> Group:
        """A new group of flags."""
        return Group(self, title)

    def read(self, argv: Sequence[str], check: Callable[[argparse.Namespace], list[str]]) -> argparse.Namespace:
        """Parses argv, then asks check(args) for combinations of values that are not possible.

        check is called only if each value is in its range. Raises UserError (exit 2) with all problems.
        """
        self.problems = []
        args, unknown = self.parse_known_intermixed_args(argv)
        self.problems += self._explain_unknown(unknown)
        if not self.problems:
            self.problems = check(args)
        if self.problems:
            self.stop()
        return args

    def error(self, message: str) -> NoReturn:
        """Called by argparse for a problem it cannot go on after, for example a flag without its value."""
        self.problems.append(message.removeprefix("argument "))
        self.stop()

    def stop(self) -> NoReturn:
        """Raises one UserError (exit 2) with a line for each problem; the fifth line sums up what does not fit."""
        shown = self.problems
        if len(shown) > MESSAGE_LINES:
            rest = [problem.split(" ")[0].rstrip(":") for problem in shown[MESSAGE_LINES - 1:]]
            shown = [*shown[:MESSAGE_LINES - 1], f"and {len(rest)} more: {', '.join(rest)}"]
        raise UserError(Exit.FLAGS, "\nerror: ".join(shown))

    def _explain_unknown(self, words: Iterable[str]) -> list[str]:
        """A problem for each word that argparse left over, except for the values of unknown flags."""
        problems = []
        may_be_a_value = False
        for word in words:
            is_flag = word.startswith("-") and len(word) > 1
            if is_flag:
                name = word.split("=")[0]
                problems.append(f"{printable(name)}: no such flag. {self._suggest(name)}")
            elif not may_be_a_value:
                problems.append(f"{printable(word)[:SHOWN_CHARACTERS]!r}: unexpected argument. See --help.")
            may_be_a_value = word.startswith("-") and "=" not in word
        return problems

    def _suggest(self, name: str) -> str:
        """'Did you mean --batch_size?' for a misspelt, shortened or hyphenated flag."""
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        near = [option for option in known if len(name) > 4 and option.startswith(name)]
        if not near:
            spelt = "--" + name.lstrip("-").replace("-", "_")
            if spelt.startswith("--no_"):
                spelt = "--no-" + spelt[5:]
            near = difflib.get_close_matches(spelt, known, 1, 0.7)
        return f"Did you mean {near[0]}?" if near else "See --help."
