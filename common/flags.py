"""The parser of every command: kinds of values, groups, and all problems of a command line together."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from common.errors import MESSAGE_LINES, Exit, UserError
from common.words import printable

# ---------------------------------------------------------------- flags



class Kind:
    """How the text of a flag becomes its value: a parse function that raises ValueError, and its range in words."""

    def __init__(self, parse: Callable[[str], Any], words: str, metavar: str):
        self.parse, self.words, self.metavar = parse, words, metavar


def whole(low: int, high: int = 2**31 - 1, unit: str = "N") -> Kind:
    """A whole number from low to high; 1_000 and 1,000 read as 1000."""

    def parse(text: str) -> int:
        value = int(text.replace(",", ""))
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return Kind(parse, f"a whole number of at least {low:,}" if high == 2**31 - 1
                else f"a whole number from {low:,} to {high:,}", unit)


def real(low: float, high: float, above: bool = False, below: bool = False, unit: str = "X") -> Kind:
    """A finite number from low to high; above and below exclude the ends."""

    def parse(text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and low <= value <= high) or (above and value == low) or (below and value == high):
            raise ValueError(text)
        return value

    first, last = "above" if above else "from", "and below" if below else "to"
    return Kind(parse, f"a number {first} {low:g} {last} {high:g}", unit)


def one_of(*names: str) -> Kind:
    """One of the given words."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(text)
        return text

    return Kind(parse, "one of " + ", ".join(names), "|".join(names))


def auto_or(kind: Kind) -> Kind:
    """The word auto, or what the other kind takes."""
    return Kind(lambda text: text if text == "auto" else kind.parse(text), f"auto or {kind.words}",
                f"auto|{kind.metavar}")


def text(unit: str = "PATH") -> Kind:
    """Any text that is not empty."""

    def parse(value: str) -> str:
        if not value or "\0" in value:
            raise ValueError(value)
        return value

    return Kind(parse, "text that is not empty", unit)


class Group:
    """Flags that belong together in --help."""

    def __init__(self, parser: Parser, title: str):
        self.parser, self.group = parser, parser.add_argument_group(title)

    def flag(self, name: str, kind: Kind, default: Any, words: str, unset: str = "") -> None:
        """Declares a flag with a value; unset says what happens when it is not given and has no default."""

        def convert(value: str) -> Any:
            try:
                return kind.parse(value)
            except ValueError:
                self.parser.problems.append(f"{name} {printable(value)[:80]!r}: must be {kind.words}")
                return default

        shown = unset if default is None else default
        self.group.add_argument(name, type=convert, default=default, metavar=kind.metavar,
                                help=f"{words} (default: {shown})".replace("%", "%%"))

    def switch(self, name: str, default: bool | None, words: str, unset: str = "") -> None:
        """Declares a flag that is on or off; one that is on or undecided by default has its --no- form too."""
        shown = unset if default is None else ("on" if default else "off")
        action: Any = "store_true" if default is False else argparse.BooleanOptionalAction
        self.group.add_argument(name, action=action, default=default,
                                help=f"{words} (default: {shown})".replace("%", "%%"))


class Parser(argparse.ArgumentParser):
    """argparse that takes no abbreviations and reports all problems of the flags together, with 'did you mean'."""

    def __init__(self, prog: str, description: str):
        width = min(130, shutil.get_terminal_size((120, 24)).columns)
        super().__init__(prog=f"python {prog}", usage=f"python {prog} [flags]", description=description,
                         allow_abbrev=False, formatter_class=lambda prog: argparse.HelpFormatter(prog, 2, 34, width))
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)  # argparse: not -1e-3
        self.problems: list[str] = []

    def group(self, title: str) -> Group:
        """A new group of flags."""
        return Group(self, title)

    def error(self, message: str) -> NoReturn:
        """Called by argparse for what it cannot go on after, a flag without its value say."""
        self.problems.append(message.removeprefix("argument "))
        self.stop()

    def stop(self) -> NoReturn:
        """Raises one UserError that lists every problem found, one line each, in at most five lines."""
        shown = self.problems
        if len(shown) > MESSAGE_LINES:
            rest = [problem.split(" ")[0].rstrip(":") for problem in shown[MESSAGE_LINES - 1:]]
            shown = [*shown[:MESSAGE_LINES - 1], f"and {len(rest)} more: {', '.join(rest)}"]
        raise UserError(Exit.FLAGS, "\nerror: ".join(shown))

    def read(self, argv: Sequence[str], check: Callable[[argparse.Namespace], list[str]]) -> argparse.Namespace:
        """Parses argv, then adds what check(args) finds impossible together.

        Raises UserError (exit 2) with all problems. check sees only values that are each in range.
        """
        self.problems = []
        args, extra = self.parse_known_intermixed_args(argv)
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        after_unknown = False
        for word in extra:
            if word.startswith("-") and len(word) > 1:
                name = word.split("=")[0]
                spelt = "--" + name.lstrip("-").replace("-", "_")
                spelt = "--no-" + spelt[5:] if spelt.startswith("--no_") else spelt
                near = [k for k in known if len(name) > 4 and k.startswith(name)]
                near = near or difflib.get_close_matches(spelt, known, 1, 0.7)
                hint = f"Did you mean {near[0]}?" if near else "See --help."
                self.problems.append(f"{printable(name)}: no such flag. {hint}")
            elif not after_unknown:
                self.problems.append(f"{printable(word)[:80]!r}: a word that belongs to no flag. See --help.")
            after_unknown = word.startswith("-") and "=" not in word
        if not self.problems:
            self.problems = check(args)
        if self.problems:
            self.stop()
        return args
