"""The parser of every command: kinds of values, groups, and all problems of its flags reported together.

The flags come from the command line, from the TOML file of --config, and for a resumed run from what it recorded.
"""

from __future__ import annotations

import argparse
import codecs
import copy
import difflib
import re
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from gpt.common.config import Layer, Origin, Relations, RelationsByFlag, Rules, changes, read_toml
from gpt.common.errors import MESSAGE_LINES, Exit, UserError, warn
from gpt.common.terminal import USUAL_COLUMNS
from gpt.common.words import printable

MAX_WHOLE = 2**31 - 1
SHOWN_CHARACTERS = 80  # of a value that is quoted in a message
MOST_PROBLEMS = 20  # of a file: looking for similar names takes half a millisecond each
ON_THE_LINE_ALONE = ("config", "debug")  # flags that a file cannot set

# ---------------------------------------------------------------- kinds of values


class ValueKind(NamedTuple):
    """How the text of a flag becomes its value.

    The value is what convert makes of it, where that fits; words completes the sentence "must be ..."; metavar stands
    for the value in --help. A flag with several values has a list of them, and a single one as itself.
    """

    convert: Callable[[str], Any]
    words: str
    metavar: str
    fits: Callable[[Any], object] = lambda value: True
    has_several: bool = False

    def parse(self, text: str) -> Any:
        """The value. Raises ValueError or LookupError for text that is none."""
        value = self.convert(text)
        if not self.fits(value):
            raise ValueError(text)
        return value


def whole(low: int, high: int = MAX_WHOLE, unit: str = "N") -> ValueKind:
    """A whole number from low to high; 1_000 and 1,000 are read as 1000."""
    words = f"of at least {low:,}" if high == MAX_WHOLE else f"from {low:,} to {high:,}"
    return ValueKind(lambda text: int(text.replace(",", "")), f"a whole number {words}", unit,
                     lambda value: low <= value <= high)


def real(low: float, high: float, above: bool = False, below: bool = False, unit: str = "X") -> ValueKind:
    """A finite number from low to high. above excludes low itself, below excludes high."""
    words = f"a number {'above' if above else 'of at least'} {low:g} and {'below' if below else 'at most'} {high:g}"
    return ValueKind(float, words, unit, lambda value: low <= value <= high and not (
        (above and value == low) or (below and value == high)))


def one_of(*names: str) -> ValueKind:
    """One of the given words."""
    return ValueKind(str, "one of " + ", ".join(names), "|".join(names), names.__contains__)


def auto_or(kind: ValueKind) -> ValueKind:
    """The word auto, or what the other kind takes."""
    return ValueKind(lambda text: text if text == "auto" else kind.parse(text), f"auto or {kind.words}",
                     f"auto|{kind.metavar}")


def text(unit: str = "PATH") -> ValueKind:
    """Any text that is not empty and has no null character, which no file name may hold."""
    return ValueKind(str, "text that is not empty", unit, lambda value: value and "\0" not in value)


def escaped(unit: str = "TEXT") -> ValueKind:
    r"""Text that is not empty, in which \n, \t and \\ stand for a newline, a tab and a backslash."""
    characters = {"n": "\n", "t": "\t", "\\": "\\"}
    return text(unit)._replace(convert=lambda value: re.sub(r"\\([nt\\])", lambda found: characters[found[1]], value))


def encoding() -> ValueKind:
    """The name of a text encoding, as Python's own name of it; None for UTF-8."""

    def convert(value: str) -> str | None:
        name = codecs.lookup(value).name
        codecs.getincrementaldecoder(name)
        "".encode(name)  # LookupError for what is no text, such as base64
        return None if name in ("utf-8", "utf-8-sig") else name

    return ValueKind(convert, "an encoding that Python knows, such as cp1251, shift_jis or utf-16", "NAME")


def one_or_more(kind: ValueKind) -> ValueKind:
    """One value of the other kind, or more of them with blanks between; in a file a list."""
    return kind._replace(has_several=True)


def share_or_steps() -> ValueKind:
    """A share below 1, or a whole number of steps."""
    return ValueKind(lambda text: float(text) if 0 < float(text) < 1 else int(text),
                     "a share between 0 and 1, or a whole number of steps", "SHARE|N",
                     lambda value: 0 < value <= MAX_WHOLE)


def cadence() -> ValueKind:
    """A number of steps, 500, or of minutes, 10m."""
    return ValueKind(lambda text: text.replace(",", "").replace("_", ""),
                     "a whole number of steps, such as 500, or minutes, such as 10m", "N|Nm",
                     re.compile(r"\d{1,9}|\d{1,6}(\.\d+)?m").fullmatch)


def steps_and_minutes(values: Any) -> tuple[int, float]:
    """The steps and the minutes among the values of a flag with a cadence; 0 where there are none."""
    steps = [int(value) for value in in_list(values) if not value.endswith("m")]
    minutes = [float(value[:-1]) for value in in_list(values) if value.endswith("m")]
    return max(steps, default=0), max(minutes, default=0.0)


def with_cadence(asked: Mapping[str, Any], number: float, unit: str) -> dict[str, Any]:
    """--checkpoint_every with so many steps (unit "") or minutes ("m") in place of its own; 10m is its default."""
    others = [value for value in in_list(asked.get("checkpoint_every", "10m")) if value.endswith("m") == (unit == "")]
    values = [*others, *([f"{number:.12g}{unit}"] if number else [])]
    return {"checkpoint_every": values if values[1:] else [*values, "0"][0]}


def in_list(value: Any) -> list[Any]:
    """The values of a flag that may have several."""
    return value if isinstance(value, list) else [] if value is None else [value]


SWITCH = ValueKind({"True": True, "False": False}.__getitem__, "true or false", "")
WRONG = (ValueError, LookupError)  # what a kind raises for text that it does not take


def _wrong_value(kind: ValueKind, value: str) -> str:
    """The end of the sentence about a value that a flag does not take."""
    return f"{printable(repr(value[:SHOWN_CHARACTERS]))}: must be {kind.words}"


Args = TypeVar("Args", bound=Namespace)


def having(args: Args, **values: Any) -> Args:
    """A copy of the flags with other values of some."""
    changed = copy.copy(args)
    vars(changed).update(values)
    return changed


# ---------------------------------------------------------------- the parser


class Group:
    """Flags that stand together in --help."""

    def __init__(self, parser: Parser, group: argparse._ArgumentGroup):
        self.parser, self.group = parser, group

    def flag(self, name: str, kind: ValueKind, default: Any, words: str, unset: str = "", hidden: bool = False,
             **relations: str) -> None:
        """Declares a flag with a value; without dashes before its name, words that stand behind no flag.

        unset is shown as the default where there is none: what happens then; relations holds fields of Relations.
        """

        def convert(value: str) -> Any:
            try:
                return kind.parse(value)
            except WRONG:
                # Recorded, not raised: argparse goes on, and all problems are reported together.
                self.parser.problems.append(f"{name} {_wrong_value(kind, value)}")
                return default

        words = argparse.SUPPRESS if hidden else _help(words, unset if default is None else default)
        self.group.add_argument(name, type=convert, default=argparse.SUPPRESS, metavar=kind.metavar, help=words,
                                nargs=("+" if name[0] == "-" else "*") if kind.has_several else None)
        self._enter(name.lstrip("-"), kind, default, relations)

    def switch(self, name: str, default: bool | None, words: str, unset: str = "", hidden: bool = False,
               **relations: str) -> None:
        """Declares a flag that is on or off, and its --no- form."""
        words = argparse.SUPPRESS if hidden else _help(words, unset if default is None else "on" if default else "off")
        action = self.group.add_argument(name, action=argparse.BooleanOptionalAction, help=words)
        action.default = argparse.SUPPRESS  # given before, argparse until Python 3.12 would add it to the help text
        self._enter(name[2:], SWITCH, default, relations)

    def old(self, name: str, kind: ValueKind, becomes: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> None:
        """Declares an old spelling: becomes returns the flags that it means, by its value and the other flags given."""
        if kind is SWITCH:
            self.switch(name, None, "", hidden=True)
        else:
            self.flag(name, kind, None, "", hidden=True)
        self.parser.becomes[name[2:]] = becomes

    def _enter(self, name: str, kind: ValueKind, default: Any, relations: dict[str, str]) -> None:
        self.parser.kinds[name] = kind
        self.parser.defaults[name] = default
        if relations:
            self.parser.relations[name] = Relations(**relations)


def _help(words: str, default: Any) -> str:
    return f"{words} (default: {default})".replace("%", "%%")  # argparse formats the text with %


class Parser(argparse.ArgumentParser):
    """An argparse parser that takes no abbreviations and reports all problems together, with 'did you mean'."""

    def __init__(self, prog: str, description: str, relations: RelationsByFlag | None = None):
        width = min(130, shutil.get_terminal_size((USUAL_COLUMNS, 24)).columns)
        super().__init__(prog=f"python {prog}", usage=f"python {prog} [flags]", description=description,
                         allow_abbrev=False, formatter_class=lambda prog: argparse.HelpFormatter(prog, 2, 34, width))
        # argparse's own expression takes -1 for a value, but -1e-3, -inf and -nan for flags.
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)
        self.problems: list[str] = []
        self.command = prog.removesuffix(".py").split(".")[-1]
        self.kinds: dict[str, ValueKind] = {}
        self.defaults: dict[str, Any] = {}
        self.relations = {**(relations or {})}
        self.becomes: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {}  # of old spellings
        self.own = Group(self, self._optionals)

    def group(self, title: str) -> Group:
        """A new group of flags."""
        return Group(self, self.add_argument_group(title))

    def read(self, argv: Sequence[str], check: Callable[[Namespace], list[str]],
             recorded: Callable[[Mapping[str, Any]], Layer | None] = lambda asked: None) -> Namespace:
        """Parses argv and the file of --config, then asks check(args) for combinations that are not possible.

        recorded(values) finds the flags of the run that these values want to resume. The command line wins over the
        file, and that over what was recorded. check is called only if each value is in its range. args.config is an
        Origin. Raises UserError (exit 2) with all problems.
        """
        self.problems = []
        rules = Rules(self.relations, self.defaults)
        line, unknown = self.parse_known_intermixed_args([self._as_switch(word) for word in argv])
        self.problems += self._explain_unknown(unknown)
        asked = Layer("the command line", {}, {})
        words: dict[str, Any] = {}  # those of no flag
        for name, value in vars(line).items():
            has_one = name in self.kinds and self.kinds[name].has_several and len(value) == 1
            (asked.given if name in self.defaults else words)[name] = value[0] if has_one else value
        for action in self._get_positional_actions() if unknown else ():  # their words may be values of those
            asked.given.pop(action.dest, None)
        self._in_new_words(asked)
        if path := asked.given.pop("config", None):
            asked = rules.merge(self._checked(read_toml(Path(path))), asked)
        there = self._checked((not self.problems and recorded(asked.values)) or Layer("", {}, {}))
        settled = rules.merge(there, asked)
        origin = Origin(frozenset(settled.given), there.source, changes(there, asked, settled))

        old = self.becomes.keys() - {"texts"}
        defaults = {name: default for name, default in self.defaults.items() if name not in old}
        args = Namespace(**{**defaults, **words, **settled.values, "config": origin})
        if not self.problems:
            self.problems = [*check(args), *Rules(self.relations, defaults).problems(vars(args))]
        if self.problems:
            self.stop()
        return args

    def _as_switch(self, word: str) -> str:
        """--compile=False, as nanoGPT spells it, as --no-compile; other words as they are."""
        name, _, value = word.partition("=")
        spelt = {"true": "--", "false": "--no-"}.get(value.lower())
        is_switch = name.startswith("--") and self.kinds.get(name[2:]) is SWITCH
        return spelt + name[2:] if spelt and is_switch else word

    def _in_new_words(self, layer: Layer) -> None:
        """Replaces old spellings of flags in a layer."""
        for values in (layer.given, layer.decided):
            for name in [name for name in self.becomes if name in values]:
                try:
                    values.update(self.becomes[name](values.pop(name), values))
                except ValueError as problem:
                    self.problems.append(str(problem))

    def _checked(self, layer: Layer) -> Layer:
        """A layer of a file with the values that flags have. What a person may correct in it becomes a problem."""
        found = Layer(layer.source, {}, {})
        for fields, values in ((layer.given, found.given), (layer.decided, found.decided)):
            for name, value in fields.items():
                if len(self.problems) >= MOST_PROBLEMS:
                    break
                try:
                    if not self._is_gone(name, value, layer.source, fields is layer.decided):
                        values[name] = self._value_in_file(name, value, layer.source)
                except ValueError as problem:
                    self.problems += [str(problem)] if layer.may_be_edited else []
        self._in_new_words(found)
        return found

    def _is_gone(self, name: str, value: Any, source: str, is_decided: bool) -> bool:
        """Whether a flag of a file, or its value, is one that there was: at its default, or as a program decided it, it
        says nothing, else a value is left out with a warning. Raises ValueError for a flag at another value."""
        from gpt.common.synonyms import GONE

        for word in in_list(value):
            if gone := GONE.get(f"{self.command} {name} {word}"):
                warn(f"{name} {word} ({source}): is gone. {gone[1]}")
                return True
        default, answer = GONE.get(f"{self.command} {name}", (None, ""))
        if answer and not is_decided and value != default:
            raise ValueError(f"{name} ({source}): is gone. {answer}")
        return bool(answer)

    def _value_in_file(self, name: str, value: Any, source: str) -> Any:
        """The value of a flag in a file. Raises ValueError with what is wrong with the key or its value."""
        what = f"{printable(name)[:SHOWN_CHARACTERS]} ({source})"
        if isinstance(value, dict):
            raise ValueError(f"{what}: is a table. Write flags at the top of the file, without tables.")
        if name in ON_THE_LINE_ALONE:
            raise ValueError(f"{what}: has no effect in a file. Give --{name} on the command line.")
        if name not in self.defaults:
            raise ValueError(f"{what}: no such flag. {self._suggest(f'--{name}')}")
        kind = self.kinds[name]
        words = value if isinstance(value, list) and value and kind.has_several else [value]
        try:
            if any(isinstance(word, list) or isinstance(word, bool) != (kind is SWITCH) for word in words):
                raise ValueError(name)
            parsed = [kind.parse(str(word)) for word in words]
        except WRONG:
            raise ValueError(f"{what} {_wrong_value(kind, str(value))}") from None
        return parsed if len(parsed) > 1 else parsed[0]

    def error(self, message: str) -> NoReturn:
        """Called by argparse for a problem it cannot go on after, for example a flag without its value."""
        if "ignored explicit argument" in message:  # as in --compile=0
            message = f"{message.split(':')[0]}: takes no value. --NAME turns it on, --no-NAME off."
        self.problems.append(message.removeprefix("argument "))
        self.stop()

    def stop(self) -> NoReturn:
        """Raises one UserError (exit 2) with a line for each problem; the fifth line sums up what does not fit.

        What has an answer in its line comes last then."""
        shown = self.problems
        if len(shown) > MESSAGE_LINES:
            shown = sorted(shown, key=lambda problem: "Did you mean" in problem or "Here it is called" in problem)
            rest = [problem.split(" ")[0].rstrip(":") for problem in shown[MESSAGE_LINES - 1:]]
            shown = [*shown[:MESSAGE_LINES - 1], f"and {len(rest)} more: {', '.join(rest)}"]
        raise UserError(Exit.FLAGS, "\nerror: ".join(shown))

    def _explain_unknown(self, words: Iterable[str]) -> list[str]:
        """A problem for each word that argparse left over, except for the values of unknown flags."""
        problems, may_be_a_value = [], False
        for word in words:
            if word.startswith("-") and len(word) > 1:
                name = word.split("=")[0]
                problems.append(f"{printable(name)}: no such flag. {self._suggest(name)}")
            elif not may_be_a_value:
                problems.append(f"{printable(repr(word[:SHOWN_CHARACTERS]))}: unexpected argument. Give a value behind "
                                "its flag, --NAME VALUE, and --NAME or --no-NAME for what is on or off. See --help.")
            may_be_a_value = word.startswith("-") and "=" not in word
        return problems

    def _suggest(self, name: str) -> str:
        """What to give instead: 'Did you mean --batch_size?' for a flag that is misspelt, shortened, hyphenated, or
        called so by another program."""
        from gpt.common.synonyms import explain_flag  # a table that only errors need

        aliases = {flag: relations.aliases for flag, relations in self.relations.items()}
        if said := explain_flag(self.command, name, aliases):
            return said
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        near = [option for option in known if len(name) > 4 and option.startswith(name)]
        if not near:
            spelt = "--" + re.sub(r"^no_", "no-", name.lstrip("-").replace("-", "_"))
            near = difflib.get_close_matches(spelt, known, 1, 0.7)
        return f"Did you mean {near[0]}?" if near else "See --help."
