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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from common.config import Layer, Origin, Row, against, changes, laid_over, needed, read_toml
from common.errors import MESSAGE_LINES, Exit, UserError, warn
from common.words import printable

MAX_WHOLE = 2**31 - 1
SHOWN_CHARACTERS = 80  # of a value that is quoted in a message
MOST_PROBLEMS = 20  # after which the rest of a file is not looked at
ON_THE_LINE_ALONE = ("help", "config", "debug")  # flags that a file cannot set

# ---------------------------------------------------------------- kinds of values


class ValueKind(NamedTuple):
    """How the text of a flag becomes its value.

    parse raises ValueError or LookupError for text it does not take; words completes the sentence "must be ...";
    metavar stands for the value in --help; types are those that the value may have in a TOML file. A flag with several
    values has a list of them, and a single one as itself; one that adds up may be repeated, while of others the last
    one counts.
    """

    parse: Callable[[str], Any]
    words: str
    metavar: str
    types: tuple[type, ...] = (str,)
    has_several: bool = False
    adds_up: bool = False


def _kind(convert: Callable[[str], Any], fits: Callable[[Any], object], words: str, unit: str,
          *types: type) -> ValueKind:
    """Values that convert makes of a text, as far as they fit."""

    def parse(text: str) -> Any:
        value = convert(text)
        if not fits(value):
            raise ValueError(text)
        return value

    return ValueKind(parse, words, unit, types or (str,))


def whole(low: int, high: int = MAX_WHOLE, unit: str = "N") -> ValueKind:
    """A whole number from low to high; 1_000 and 1,000 are read as 1000."""
    words = f"of at least {low:,}" if high == MAX_WHOLE else f"from {low:,} to {high:,}"
    return _kind(lambda text: int(text.replace(",", "")), lambda value: low <= value <= high,
                 f"a whole number {words}", unit, int)


def real(low: float, high: float, above: bool = False, below: bool = False, unit: str = "X") -> ValueKind:
    """A finite number from low to high. above excludes low itself, below excludes high."""
    words = f"a number from {low:g} to {high:g}"
    if above or below:
        words = f"a number {'above' if above else 'of at least'} {low:g} and {'below' if below else 'at most'} {high:g}"
    return _kind(float, lambda value: low <= value <= high and not (above and value == low) and not (
        below and value == high), words, unit, int, float)


def quantity(low: int, high: int, unit: str = "N") -> ValueKind:
    """A whole number from low to high, also as a number of thousands, millions, billions or trillions: 2.6B."""
    scales = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}

    def convert(text: str) -> int:
        number = text.strip().replace(",", "").replace("_", "").upper()
        return round(real(0, high).parse(number[:-1] if number[-1:] in scales else number) * scales.get(number[-1:], 1))

    return _kind(convert, lambda value: low <= value <= high, f"a number from {low:,} to {high:,}, such as 300M or "
                 "2.6B", unit, int, float, str)


def one_of(*names: str) -> ValueKind:
    """One of the given words."""
    return _kind(str, names.__contains__, "one of " + ", ".join(names), "|".join(names))


def auto_or(kind: ValueKind) -> ValueKind:
    """The word auto, or what the other kind takes."""
    return ValueKind(lambda text: text if text == "auto" else kind.parse(text), f"auto or {kind.words}",
                     f"auto|{kind.metavar}", (str, *kind.types))


def text(unit: str = "PATH") -> ValueKind:
    """Any text that is not empty and has no null character, which no file name may hold."""
    return _kind(str, lambda value: value and "\0" not in value, "text that is not empty", unit)


def escaped(unit: str = "TEXT") -> ValueKind:
    r"""Text that is not empty, in which \n, \t and \\ stand for a newline, a tab and a backslash."""
    characters = {"n": "\n", "t": "\t", "\\": "\\"}
    return text(unit)._replace(parse=lambda value: re.sub(
        r"\\([nt\\])", lambda found: characters[found[1]], text().parse(value)))


def encoding() -> ValueKind:
    """The name of a text encoding, as Python's own name of it; None for UTF-8."""
    not_of_files = ("idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape")

    def parse(value: str) -> str | None:
        found = codecs.lookup(value)
        "".encode(found.name)  # LookupError for what is no text, such as base64
        if found.name.replace("-", "_") in not_of_files or found.incrementaldecoder is None:
            raise ValueError(value)
        return None if found.name in ("utf-8", "utf-8-sig") else found.name

    return ValueKind(parse, "an encoding that Python knows, such as cp1251, shift_jis or utf-16", "NAME")


def one_or_more(kind: ValueKind, adds_up: bool = False) -> ValueKind:
    """One value of the other kind, or more of them with blanks between; in a file a list.

    With adds_up the flag may be repeated, and has the values of all places.
    """
    return kind._replace(types=(*kind.types, list), has_several=True, adds_up=adds_up)


SWITCH = ValueKind(lambda value: {"True": True, "False": False}[value], "true or false", "", (bool,))
WRONG = (ValueError, LookupError)  # what a kind raises for text that it does not take


def _wrong_value(name: str, kind: ValueKind, value: str) -> str:
    """The rest of the sentence about a value that a flag does not take, after the flag's name."""
    from common.synonyms import explain_value  # a table that only errors need

    return f"{printable(repr(value[:SHOWN_CHARACTERS]))}: must be {kind.words}{explain_value(name, value)}"


def share_or_steps() -> ValueKind:
    """A share below 1, or a whole number of steps."""
    return _kind(lambda text: float(text) if 0 < float(text) < 1 else int(text), lambda value: 0 < value <= MAX_WHOLE,
                 "a share between 0 and 1, or a whole number of steps", "SHARE|N", float, int)


def cadence() -> ValueKind:
    """A number of steps, 500, or of minutes, 10m."""
    return _kind(lambda text: text.replace(",", "").replace("_", ""), lambda value: re.fullmatch(
        r"\d{1,9}|\d{1,6}(\.\d+)?m", value), "a whole number of steps, such as 500, or minutes, such as 10m", "N|Nm",
        str, int)


def steps_and_minutes(values: Any) -> tuple[int, float]:
    """The steps and the minutes among the values of a flag with a cadence; 0 where there are none."""
    steps = [int(value) for value in in_list(values) if not value.endswith("m")]
    minutes = [float(value[:-1]) for value in in_list(values) if value.endswith("m")]
    return max(steps, default=0), max(minutes, default=0.0)


def with_cadence(asked: Mapping[str, Any], steps: int | None = None, minutes: float | None = None) -> dict[str, Any]:
    """--checkpoint_every with steps or minutes in place of its own, which are the default where it is not asked for."""
    before = steps_and_minutes(asked.get("checkpoint_every", "10m"))
    steps, minutes = before[0] if steps is None else steps, before[1] if minutes is None else minutes
    both = [*([str(steps)] if steps else []), *([f"{minutes:.12g}m"] if minutes else [])]
    return {"checkpoint_every": both if len(both) == 2 else both[0] if both else "0"}


def in_list(value: Any) -> list[Any]:
    """The values of a flag that may have several."""
    return value if isinstance(value, list) else [] if value is None else [value]


# ---------------------------------------------------------------- the flags, all of them and by groups


class Flags(argparse.Namespace):
    """The flags of a command by name, args.epochs, and by the groups of --help, args.horizon.epochs: one storage.

    Iterating over args.of_one_call and args.of_the_machine yields the names of the flags that a run does not record,
    and of those that it records only where somebody gave them.
    """

    __slots__ = ("_groups",)  # not in vars(), which holds flags alone

    def __init__(self, groups: Mapping[str, frozenset[str]], values: Mapping[str, Any]):
        super().__init__(**values)
        self._groups = groups

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._groups:
            raise AttributeError(f"no flag or group of flags is called {name}")
        return FlagsOfGroup(self, name, self._groups[name])


class FlagsOfGroup:
    """The flags of one group: a view. A flag of another group is an AttributeError."""

    def __init__(self, flags: Flags, title: str, names: frozenset[str]):
        vars(self).update(_flags=flags, _title=title, _names=names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._names:
            raise AttributeError(f"--{name} is not a flag of the group {self._title}")
        return getattr(self._flags, name)

    def __setattr__(self, name: str, value: Any) -> None:
        getattr(self, name)
        setattr(self._flags, name, value)


Args = TypeVar("Args", bound=argparse.Namespace)


def having(args: Args, **values: Any) -> Args:
    """A copy of the flags with other values of some."""
    changed = copy.copy(args)
    vars(changed).update(values)
    return changed


# ---------------------------------------------------------------- the parser


class _Values(argparse.Action):
    """Stores a single value as itself, several ones as a list; of a kind that adds up after those of earlier places."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any,
                 option_string: str | None = None) -> None:
        adds_up = parser.kinds[self.dest].adds_up
        together = [*(in_list(getattr(namespace, self.dest, None)) if adds_up else []), *values]
        setattr(namespace, self.dest, together[0] if len(together) == 1 else together)


class Group:
    """Flags that stand together in --help; of is that of their rows."""

    def __init__(self, parser: Parser, group: argparse._ArgumentGroup, names: set[str], of: str):
        self.parser, self.group, self.names, self.of = parser, group, names, of

    def flag(self, name: str, kind: ValueKind, default: Any, words: str, unset: str = "", hidden: bool = False,
             **row: str) -> None:
        """Declares a flag with a value. unset is shown as the default where there is none: what happens then; row holds
        fields of Row."""

        def convert(value: str) -> Any:
            try:
                return kind.parse(value)
            except WRONG:
                # Recorded, not raised: argparse goes on, and all problems are reported together.
                self.parser.problems.append(f"{name} {_wrong_value(name, kind, value)}")
                return default

        several = {"nargs": "+", "action": _Values} if kind.has_several else {}
        words = argparse.SUPPRESS if hidden else _help(words, unset if default is None else default)
        self.group.add_argument(name, type=convert, default=argparse.SUPPRESS, metavar=kind.metavar, help=words,
                                **several)
        self._enter(name[2:], kind, default, row)

    def switch(self, name: str, default: bool | None, words: str, unset: str = "", hidden: bool = False,
               **row: str) -> None:
        """Declares a flag that is on or off. --help shows its --no- form unless it is off by default."""
        words = argparse.SUPPRESS if hidden else _help(words, unset if default is None else "on" if default else "off")
        action: Any = "store_true" if default is False else argparse.BooleanOptionalAction
        # Given the default, argparse before Python 3.13 would add it to the help text once more.
        self.group.add_argument(name, action=action, default=None, help=words).default = argparse.SUPPRESS
        if default is False:  # a file may have turned it on
            self.group.add_argument(f"--no-{name[2:]}", action="store_false", dest=name[2:], help=argparse.SUPPRESS,
                                    default=argparse.SUPPRESS)
        self._enter(name[2:], SWITCH, default, row)

    def old(self, name: str, kind: ValueKind, becomes: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> None:
        """Declares an old spelling: becomes returns the flags that it means, by its value and the other flags given."""
        if kind is SWITCH:
            self.switch(name, None, "", hidden=True)
        else:
            self.flag(name, kind, None, "", hidden=True)
        self.parser.becomes[name[2:]] = becomes

    def _enter(self, name: str, kind: ValueKind, default: Any, row: dict[str, str]) -> None:
        self.parser.kinds[name] = kind
        self.parser.rows[name] = Row(default, **{"of": self.of, **row})
        self.names.add(name)


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
        self.command = prog.removesuffix(".py")
        self.kinds: dict[str, ValueKind] = {}
        self.rows: dict[str, Row] = {}
        self.becomes: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {}  # of old spellings
        self.groups: dict[str, set[str]] = {}  # the names of the flags, by group
        self.own = Group(self, self._optionals, set(), "call")

    def group(self, title: str, name: str = "", of: str = "run") -> Group:
        """A new group of flags; name, or else title, is the attribute of the parsed flags that holds the group."""
        return Group(self, self.add_argument_group(title), self.groups.setdefault(name or title, set()), of)

    def read(self, argv: Sequence[str], check: Callable[[Flags], list[str]],
             recorded: Callable[[Mapping[str, Any]], Layer | None] = lambda asked: None) -> Flags:
        """Parses argv and the file of --config, then asks check(args) for combinations that are not possible.

        recorded(values) finds the flags of the run that these values want to resume. The command line wins over the
        file, and that over what was recorded. check is called only if each value is in its range. args.config is an
        Origin. Raises UserError (exit 2) with all problems.
        """
        self.problems = []
        line, unknown = self.parse_known_intermixed_args(self._without_values(argv))
        self.problems += self._explain_unknown(unknown)
        asked = Layer("the command line", {}, {}, {})
        words: dict[str, Any] = {}  # those of no flag
        for name, value in vars(line).items():
            (asked.given if name in self.rows else words)[name] = value
        self._in_new_words(asked)
        if path := asked.given.pop("config", None):
            asked = laid_over(self._checked(read_toml(Path(path))), asked, self.rows)
        there = None if self.problems else recorded(asked.values)
        settled, origin = asked, Origin(frozenset(asked.given), "", ())
        if there is not None:
            there = self._checked(there)
            settled = laid_over(there, asked, self.rows)
            origin = Origin(frozenset(settled.given), there.source, changes(there, asked))

        rows = {name: row for name, row in self.rows.items() if name not in self.becomes}
        groups = {title: frozenset(names & rows.keys()) for title, names in self.groups.items()}
        for title, of in (("of_one_call", "call"), ("of_the_machine", "machine")):
            groups[title] = frozenset(name for name, row in rows.items() if row.of == of)
        args = Flags(groups, {**{name: row.default for name, row in rows.items()}, **words, **settled.values,
                              "config": origin})
        if not self.problems:
            self.problems = [_with_place(problem, settled.places)
                             for problem in [*check(args), *self._contradictions(vars(args))]]
        if self.problems:
            self.stop()
        return args

    def _contradictions(self, values: Mapping[str, Any]) -> Iterator[str]:
        """What does not go together by the rows of the flags that are set, a line each."""
        for name, row in self.rows.items():
            value = values.get(name)
            if value is None or value == row.default:
                continue
            if value is not False and not needed(name, values, self.rows):
                yield f"--{name}: has no effect without --{row.needs.replace(', ', ' or --')}"
            yield from (f"--{name}{problem}" for problem in against(name, value, values, self.rows))

    def _in_new_words(self, layer: Layer) -> None:
        """Replaces old spellings of flags in a layer."""
        for values in (layer.given, layer.decided):
            for name in [name for name in self.becomes if name in values]:
                try:
                    values.update(self.becomes[name](values.pop(name), values))
                except ValueError as problem:
                    self.problems.append(str(problem))

    def _without_values(self, argv: Sequence[str]) -> list[str]:
        """The words of the command line, and of --compile=False the flag alone: argparse would end there.

        That a switch takes no value is added to the problems.
        """
        words = []
        for word in argv:
            name, equals, value = word.partition("=")
            if equals and name.startswith("--") and self.kinds.get(name.removeprefix("--no-").lstrip("-")) == SWITCH:
                is_off = value.lower() in ("false", "0", "no", "off")
                instead = f"--no-{name[2:]}" if is_off and not name.startswith("--no-") else name
                self.problems.append(f"{name}: takes no value. Give {instead}.")
                word = name
            words.append(word)
        return words

    def _checked(self, layer: Layer) -> Layer:
        """A layer of a file with the values that flags have. What the file has wrong is added to the problems.

        Of a file that no person writes, which has no lines, what is wrong is left out.
        """
        found = Layer(layer.source, {}, {}, layer.places)
        for fields, values in ((layer.given, found.given), (layer.decided, found.decided)):
            for name, value in fields.items():
                if len(self.problems) > MOST_PROBLEMS:
                    break
                try:
                    if not self._is_gone(name, value, layer, fields is layer.decided):
                        values[name] = self._value_in_file(name, value, layer.places.get(name, layer.source))
                except ValueError as problem:
                    self.problems += [str(problem)] if layer.places else []
        self._in_new_words(found)
        return found

    def _is_gone(self, name: str, value: Any, layer: Layer, is_decided: bool) -> bool:
        """Whether a flag of a file, or its value, is one that there was: at its default, or as a program decided it, it
        says nothing, and a value is left out with a warning. A flag at another value is a problem."""
        from common.synonyms import GONE

        for word in in_list(value):
            if gone := GONE.get(f"{self.command} {name} {word}"):
                warn(f"{name} {word} ({layer.source}): is gone. {gone[1]}")
                return True
        default, answer = GONE.get(f"{self.command} {name}", (None, ""))
        if answer and not is_decided and value != default:
            self.problems.append(f"{name} ({layer.places.get(name, layer.source)}): is gone. {answer}")
        return bool(answer)

    def _value_in_file(self, name: str, value: Any, place: str) -> Any:
        """The value of a flag in a file. Raises ValueError with what is wrong with the key or its value."""
        what = printable(name).replace("\n", "\\n")[:SHOWN_CHARACTERS]
        if isinstance(value, dict):
            raise ValueError(f"{what} ({place}): is a table. Write flags at the top of the file, without tables.")
        if name in ON_THE_LINE_ALONE:
            raise ValueError(f"{what} ({place}): has no effect in a file. Give --{name} on the command line.")
        if name not in self.rows:
            meant = self._suggest(f"--{name}").replace("Did you mean --", "Did you mean ")
            raise ValueError(f"{what} ({place}): no such flag. {meant}")

        kind = self.kinds[name]
        words = value if isinstance(value, list) else [value]
        is_type = isinstance(value, kind.types) and (not isinstance(value, bool) or bool in kind.types)
        if not is_type or (isinstance(value, list) and not all(isinstance(word, str) for word in value)) or (
                kind.has_several and not words):
            quotes = ", without quotes" if isinstance(value, str) else ", in quotes" if kind.types[0] is str else ""
            shown = "true" if value is True else "false" if value is False else repr(value)
            raise ValueError(f"{what} {printable(shown)[:SHOWN_CHARACTERS]} ({place}): must be {kind.words}{quotes}")
        parsed = []
        for word in words:
            try:
                parsed.append(kind.parse(str(word)))
            except WRONG:
                raise ValueError(f"{what} ({place}) {_wrong_value('--' + name, kind, str(word))}") from None
        return parsed if isinstance(value, list) and not (kind.has_several and len(words) == 1) else parsed[0]

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
        from common.synonyms import explain_word  # a table that only errors need

        problems, may_be_a_value = [], False
        for word in words:
            if word.startswith("-") and len(word) > 1:
                name = word.split("=")[0]
                problems.append(f"{printable(name)}: no such flag. {self._suggest(name)}")
            elif not may_be_a_value:
                problems.append(f"{printable(repr(word[:SHOWN_CHARACTERS]))}: unexpected argument. "
                                f"{explain_word(self.command, word)}")
            may_be_a_value = word.startswith("-") and "=" not in word
        return problems

    def _suggest(self, name: str) -> str:
        """What to give instead: 'Did you mean --batch_size?' for a flag that is misspelt, shortened, hyphenated, or
        called so by another program."""
        from common.synonyms import explain_flag  # a table that only errors need

        if said := explain_flag(self.command, name, {flag: row.called for flag, row in self.rows.items()}):
            return said
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        near = [option for option in known if len(name) > 4 and option.startswith(name)]
        if not near:
            spelt = "--" + re.sub(r"^no_", "no-", name.lstrip("-").replace("-", "_"))
            near = difflib.get_close_matches(spelt, known, 1, 0.7)
        return f"Did you mean {near[0]}?" if near else "See --help."


def _with_place(problem: str, places: Mapping[str, str]) -> str:
    """A problem, with the place of its flag where that stands in a file."""
    name = re.split(r"[ :]", problem)[0].lstrip("-")
    return f"{problem} ({name}: {places[name]})" if name in places else problem
