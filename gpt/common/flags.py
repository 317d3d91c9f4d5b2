"""The command-line parser of every command: argparse, but with all problems reported together.

    parser = Parser("train.py", "Trains a language model.", relations)
    group = parser.add_argument_group("optimizer")
    group.add_argument("--beta1", type=real(0, 1), default=0.9, help="decay of the running mean of gradients")
    group.add_argument("--compile", action=Switch, help="torch.compile (default: on with CUDA)")
    args = parser.read(argv, check)

Flags come from the command line, from the TOML file or the run of --config, and for a
resumed run from its records.
"""

import argparse
import codecs
import contextlib
import difflib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from gpt.common.config import Layer, Origin, Relations, Rules, changes, read_toml
from gpt.common.errors import MESSAGE_LINES, Exit, UserError
from gpt.common.files import split_checkpoint_name
from gpt.common.names import RUN_CONFIG
from gpt.common.terminal import USUAL_COLUMNS
from gpt.common.words import is_utf8, printable, shell_word

MOST_PROBLEMS = 20  # of a file: the search for a similar name takes half a millisecond each
MAX_WHOLE = 2**31 - 1
SHOWN_CHARACTERS = 80  # of a value that a message quotes
COMMAND_LINE_ONLY = ("config", "debug")  # flags that a file cannot set
NOT_GIVEN = object()
TRUTH_VALUES = ("True", "False", "true", "false")  # as in nanoGPT's --compile=False, and the Trainer's --fp16 True
WITHOUT_FLAG = {  # flags of other programs, and the way to the same in train.py
    "eval_only": "Here it is a command: python evaluate.py --ckpt out --text FILE",
    "train_file": "Here it is the first argument: the text's name, without a flag.",
    "wandb_project": "Here it is a variable of the environment: WANDB_PROJECT.",
    "wandb_run_name": "Here it is a variable of the environment: WANDB_NAME.",
    "max_tokens": "Here it is --max_steps: tokens / (batch_size x gradient_accumulation_steps x seq_length).",
    **dict.fromkeys(("global_batch_size", "total_batch_size"),  # nanochat's is in tokens
                    "Here it is --batch_size x --gradient_accumulation_steps, and in tokens x --seq_length."),
    "num_nodes": "Here it is torchrun --nnodes N",
    "fsdp": "Here it is --model_parallel fsdp.",
    "strategy": "Here it is --model_parallel.",
    "deepspeed": "Here it is --model_parallel fsdp, which divides a model among GPUs.",
    "push_to_hub": "Here it is a command of huggingface_hub: hf upload",
    "load_best_model_at_end": "Here it is a checkpoint's name: --ckpt out/best",
    **dict.fromkeys(("lora", "use_lora", "use_peft"), "There is none here: all weights are trained."),
    **dict.fromkeys(("num_gpus", "devices", "gpus", "n_gpu"), "Here it is torchrun --nproc_per_node N train.py"),
    **dict.fromkeys(("val_fraction", "text_field", "encoding", "document_separator", "min_frequency"),
                    "Here it is a flag of pretokenize.py, which makes the tokens."),
    "validation_file": "Here it is a part of the text: --val_fraction of pretokenize.py.",
    **dict.fromkeys(("do_train", "do_eval", "tf32", "ddp", "attn_implementation", "pin_memory", "num_workers",
                     "dataloader_num_workers"), "Here it needs no flag: drop it."),
}

# ---------------------------------------------------------------- types of values


class ValueKind(NamedTuple):
    """A type for add_argument: converts the text of a value, and refuses text that does not fit.

    A text is refused if convert(text) raises ValueError or LookupError, or if fits(value) is false.
    words completes the sentence "must be ..."; metavar stands for the value in --help.
    """

    convert: Callable[[str], Any]
    words: str
    metavar: str
    fits: Callable[[Any], object] = lambda value: True

    def __call__(self, text: str) -> Any:
        """Returns the value of a text. Raises ArgumentTypeError."""
        with contextlib.suppress(ValueError, LookupError):
            value = self.convert(text)
            if self.fits(value):
                return value
        raise argparse.ArgumentTypeError(self.refusal(text))

    def refusal(self, text: str) -> str:
        """The message about a wrong value, without the name of its flag."""
        return f"{printable(repr(text[:SHOWN_CHARACTERS]))}: must be {self.words}"


def _without_commas(text: str) -> str:
    """1440 for 1,440; a text with another comma, such as 0,5, is returned as it is, and no number."""
    return text.replace(",", "") if re.match(r"[1-9]\d{0,2}(,\d{3})+(?![\d,])", text) else text


def whole(low: int, high: int = MAX_WHOLE, unit: str = "N") -> ValueKind:
    """A whole number from low to high; 1_000 and 1,000 are read as 1000. unit is its name in --help."""
    words = f"of at least {low:,}" if high == MAX_WHOLE else f"from {low:,} to {high:,}"
    return ValueKind(lambda text: int(_without_commas(text)), f"a whole number {words}", unit,
                     lambda value: low <= value <= high)


def real(low: float, high: float, excludes_low: bool = False, excludes_high: bool = False,
         unit: str = "X") -> ValueKind:
    """A finite number from low to high, which may be excluded themselves. unit is its name in --help."""
    lowest = f"{'above' if excludes_low else 'of at least'} {low:g}"
    highest = f"{'below' if excludes_high else 'at most'} {high:g}"

    def fits(value: float) -> bool:
        return low <= value <= high and not (excludes_low and value == low) and not (excludes_high and value == high)

    return ValueKind(lambda text: float(_without_commas(text)), f"a number {lowest} and {highest}", unit, fits)


def positive(high: float, unit: str = "X") -> ValueKind:
    """A number above 0, and at most high."""
    return real(0, high, excludes_low=True, unit=unit)


def fraction() -> ValueKind:
    """A number from 0 to 1; 1 itself is excluded."""
    return real(0, 1, excludes_high=True)


def one_of(*names: str) -> ValueKind:
    """One of these words."""
    return ValueKind(str, "one of " + ", ".join(names), "|".join(names), names.__contains__)


def auto_or(kind: ValueKind) -> ValueKind:
    """The word auto, or a value of another kind."""
    return ValueKind(lambda text: text if text == "auto" else kind.convert(text), f"auto or {kind.words}",
                     f"auto|{kind.metavar}", lambda value: value == "auto" or kind.fits(value))


def text(unit: str = "PATH") -> ValueKind:
    """Any text that is not empty and has no null character, which no file name may hold."""
    return ValueKind(str, "text that is not empty", unit, lambda value: value and "\0" not in value)


def escaped() -> ValueKind:
    """Text that is not empty, as it was typed, for unescaped()."""
    return ValueKind(str, "UTF-8 text that is not empty", "TEXT", lambda value: text().fits(value) and is_utf8(value))


def unescaped(value: str) -> str:
    r"""The text with a newline, a return, a tab and a backslash in place of \n, \r, \t and \\."""
    characters = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
    return re.sub(r"\\([nrt\\])", lambda found: characters[found[1]], value)


def encoding() -> ValueKind:
    """The name of a text encoding, as Python spells it."""

    def convert(value: str) -> str:
        name = codecs.lookup(value).name
        codecs.getincrementaldecoder(name)
        "".encode(name)  # LookupError for codecs that are no text encodings, such as base64
        return name.removesuffix("-sig")

    return ValueKind(convert, "an encoding that Python knows, such as cp1251, shift_jis or utf-16", "NAME")


def steps() -> ValueKind:
    """A whole number of steps above 0 (int), or a fraction of all steps between 0 and 1 (float)."""

    def convert(text: str) -> int | float:
        number = float(_without_commas(text))
        return number if 0 < number < 1 else int(_without_commas(text))

    return ValueKind(convert, "a fraction between 0 and 1, or a whole number of steps", "FRACTION|N",
                     lambda value: 0 < value <= MAX_WHOLE)


class Switch(argparse.BooleanOptionalAction):
    """A flag that is on or off: --NAME and --no-NAME."""

    def __init__(self, option_strings: Sequence[str], dest: str, default: bool | None = None,
                 help: str | None = None):
        super().__init__(option_strings, dest, help=help)
        self.default = default  # passed to super(), argparse until Python 3.12 would add it to the help text


def as_list(value: Any) -> list[Any]:
    """Returns the values of a flag that takes several: a list, a single value, or None."""
    return value if isinstance(value, list) else [] if value is None else [value]


def with_values(args: argparse.Namespace, **values: Any) -> argparse.Namespace:
    """A copy of the flags with other values for some of them."""
    return argparse.Namespace(**{**vars(args), **values})


# ---------------------------------------------------------------- the parser


class Parser(argparse.ArgumentParser):
    """An argparse parser that takes no abbreviations and reports all problems together, with 'did you mean'.

    relations maps names of flags to their Relations. expand(given) replaces shorthands by other flags, and
    raises ValueError with a problem where a shorthand conflicts with another flag.
    """

    def __init__(self, prog: str, description: str, relations: Mapping[str, Relations] | None = None,
                 expand: Callable[[dict[str, Any]], dict[str, Any]] = lambda given: given):
        width = min(130, shutil.get_terminal_size((USUAL_COLUMNS, 24)).columns)
        super().__init__(prog=f"python {prog}", usage=f"python {prog} [flags]", description=description,
                         allow_abbrev=False,
                         formatter_class=lambda prog: argparse.HelpFormatter(prog, 2, 34, width))
        # argparse's own expression takes -1 for a value, but -1e-3, -inf and -nan for flags.
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)
        self.relations = relations or {}
        self.expand = expand
        self.problems: list[str] = []
        self.flags: dict[str, argparse.Action] = {}
        self.add_argument("--debug", action=Switch, default=False, help="show the traceback of an error")

    def read(self, argv: Sequence[str], check: Callable[[argparse.Namespace], list[str]],
             recorded: Callable[[Mapping[str, Any], Collection[str]], Layer | None] = lambda given, of_a_call: None,
             ) -> argparse.Namespace:
        """Parses argv. Flags missing there come from the file of --config, the resumed run, or the defaults.

        check(args) returns the problems of a combination of flags that are each valid. recorded(given,
        of_a_call) returns the flags of the run to resume, if there is one; given holds the command line's and
        --config's, of_a_call the names of flags that no file of a run may set. args.origin is an Origin.
        Raises UserError (exit 2) with all problems, SystemExit after --help.
        """
        self.flags = {action.dest: action for action in self._actions if action.dest != "help"}
        for action in self.flags.values():
            _complete_help(action)
        rules = Rules(self.relations, {name: action.default for name, action in self.flags.items()})

        requested, replaced = self._with_config(self._command_line(argv), rules)
        of_a_call = [name for name in self.flags if rules.of(name).scope == "call"]
        resumed = None if self.problems else recorded(requested.values, of_a_call)
        lower = self._checked(resumed) if resumed else Layer("", {}, {})
        excluded = {name: value for name, value in requested.given.items() if name in lower.excludes}
        requested = requested._replace(
            given={name: value for name, value in requested.given.items() if name not in excluded})
        merged = rules.merge(lower, requested)

        args = argparse.Namespace(**{**rules.defaults, **merged.values, "origin": Origin(
            frozenset(merged.given), lower.source, changes(lower, requested, merged), excluded, replaced)})
        if not self.problems:
            self.problems = [*check(args), *rules.problems(vars(args))]
        if self.problems:
            self.stop()
        return args

    def _with_config(self, command_line: Layer, rules: Rules) -> tuple[Layer, tuple[str, ...]]:
        """Merges the flags of --config and of the command line, which wins; describes the flags that it changes."""
        path = command_line.given.pop("config", None)
        if not path:
            return command_line, ()
        layer = self._checked(read_toml(Path(path) / RUN_CONFIG if Path(path).is_dir() else Path(path)))
        renewed = {name for flag, value in command_line.given.items() if layer.values.get(flag) != value
                   for name in rules.of(flag).renews.split()}
        dropped = [name for name in layer.decided if name in renewed or rules.of(name).scope == "resume"]
        merged = rules.merge(layer, command_line, dropped)
        return merged, changes(layer, command_line, merged)

    # ---- the command line

    def _command_line(self, argv: Sequence[str]) -> Layer:
        """The flags that the command line gives."""
        line, stray = self.parse_known_intermixed_args(
            list(self._readable(argv)), argparse.Namespace(**dict.fromkeys(self.flags, NOT_GIVEN)))
        for word in stray:
            shown = printable(repr(word[:SHOWN_CHARACTERS]))
            # A word without a flag is most often the text of evaluate.py or generate.py, a folder their model;
            # so are out/best and out/last.
            is_folder = os.path.isdir(split_checkpoint_name(Path(word))[0])
            likely = ("ckpt", "text", "prompt") if is_folder else ("text", "prompt")
            first = next(name for name in (*likely, [*self.flags][1]) if name in self.flags)
            self.problems.append(f"{shown}: unexpected argument. Give a value after its flag, such as "
                                 f"--{first} {shown}; a switch takes no value: --NAME or --no-NAME. See --help.")
        given = {}
        for name, value in vars(line).items():
            if value is not NOT_GIVEN and value != []:
                is_single = isinstance(value, list) and len(value) == 1 and self.flags[name].option_strings
                given[name] = value[0] if is_single else value
        return Layer("the command line", self._expanded(given), {})

    def _readable(self, argv: Sequence[str]) -> Iterator[str]:
        """Yields the words that argparse can read; an unknown flag, and one at which it would stop, is a problem."""
        may_be_a_value = False  # of an unknown flag
        for word, following in zip(argv, [*argv, "--"][1:], strict=True):
            name = word.partition("=")[0]
            action = self._option_string_actions.get(name)
            is_unknown = not action and word != "--" and self._parse_optional(word)
            if is_unknown:
                cure = f"For the file write {shell_word(word)}." if os.path.exists(word) else self._suggest(name)
                self.problems.append(f"{printable(name)}: no such flag. {cure}")
            elif isinstance(action, Switch) and (name != word or following in TRUTH_VALUES):
                on, off = action.option_strings
                self.problems.append(f"{on}: takes no value. Give {on} for true, {off} for false.")
            elif action and action.nargs != 0 and name == word and self._parse_optional(following):
                self.problems.append(f"{word}: needs a value; write {word}=VALUE if the value begins with -")
            elif action or not may_be_a_value:
                yield word
            may_be_a_value = is_unknown and name == word

    def _expanded(self, given: dict[str, Any]) -> dict[str, Any]:
        """The given flags with shorthands replaced. Only valid values are: expand relies on them."""
        try:
            return given if self.problems else self.expand(given)
        except ValueError as problem:
            self.problems.append(str(problem))
            return given

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Converts one value for argparse. Records the problem of a wrong one, and lets argparse go on."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            self.problems.append(f"{error.argument_name} {error.message}")
            return None

    # ---- files

    def _checked(self, layer: Layer) -> Layer:
        """Converts the values of a file; a wrong one is a problem if a person can correct it."""
        checked = layer._replace(given={}, decided={})
        for fields, values in ((layer.given, checked.given), (layer.decided, checked.decided)):
            for name, value in fields.items():
                if len(self.problems) >= MOST_PROBLEMS:
                    break
                try:
                    values[name] = self._value_in_file(name, value, layer.source)
                except ValueError as problem:
                    if layer.may_be_edited:
                        self.problems.append(str(problem))
        return checked._replace(given=self._expanded(checked.given))

    def _value_in_file(self, name: str, value: Any, source: str) -> Any:
        """Converts the value of a flag in a file. Raises ValueError with the problem of name or value."""
        place = f"{printable(name)[:SHOWN_CHARACTERS]} ({source})"
        if isinstance(value, dict):
            raise ValueError(f"{place}: is a table. Write flags at the top of the file, without tables.")
        if name in COMMAND_LINE_ONLY:
            raise ValueError(f"{place}: has no effect in a file. Give --{name} on the command line.")
        if name not in self.flags:
            plain = name.lstrip("-").replace("-", "_")
            switch = plain.removeprefix("no_")
            if plain in self.flags:
                raise ValueError(f"{place}: no such flag. In a file it is written {plain}.")
            if isinstance(self.flags.get(switch), Switch):
                raise ValueError(f"{place}: no such flag. In a file it is written {switch} = false.")
            raise ValueError(f"{place}: no such flag. {self._suggest(f'--{name}')}")
        action = self.flags[name]
        if isinstance(action, Switch):
            if not isinstance(value, bool):
                raise ValueError(
                    f"{place} {printable(repr(str(value)))[:SHOWN_CHARACTERS]}: must be true or false")
            return value
        words = value if isinstance(value, list) and value and action.nargs else [value]
        assert isinstance(action.type, ValueKind)
        if any(isinstance(word, list | bool) for word in words):
            raise ValueError(f"{place} {action.type.refusal(str(value))}")
        try:
            values = [action.type(str(word)) for word in words]
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"{place} {error}") from None
        return values if len(values) > 1 else values[0]

    # ---- problems

    def stop(self) -> NoReturn:
        """Raises one UserError (exit 2) with a line for each problem.

        At most five lines; lines that carry their own fix are the first to be summed up.
        """
        lines = self.problems
        if len(lines) > MESSAGE_LINES:
            lines = sorted(lines, key=lambda line: "Did you mean" in line or "Here it is" in line)
            rest = map(_in_short, lines[MESSAGE_LINES - 1:])
            lines = [*lines[:MESSAGE_LINES - 1], f"and {len(lines) - MESSAGE_LINES + 1} more: {', '.join(rest)}"]
        raise UserError(Exit.FLAGS, "\nerror: ".join(lines))

    def _suggest(self, name: str) -> str:
        """The flag to give instead of a misspelt, shortened or hyphenated one, or of another program's."""
        plain = re.sub("[-.]", "_", name.lstrip("-").lower())
        for flag, relations in self.relations.items():
            # litgpt has --train.max_steps.
            if {plain, plain.removeprefix("train_")} & {*relations.aliases.split()}:
                off = f" or --no-{flag}" if isinstance(self.flags[flag], Switch) else ""
                return f"Here it is called --{flag}{off}."
        known = [option for action in self._actions for option in action.option_strings
                 if option.startswith("--")]
        near = [option for option in known if len(name) > 4 and option.startswith(name)]
        if not near:
            spelt = "--" + re.sub(r"^no_", "no-", name.lstrip("-").replace("-", "_"))
            near = difflib.get_close_matches(spelt, known, 1, 0.7)
        plain = plain if plain in WITHOUT_FLAG else plain.removeprefix("train_")
        hints = WITHOUT_FLAG if "max_steps" in self.flags else {}  # of train.py
        return hints.get(plain, f"Did you mean {near[0]}?" if near else "See --help.")


def _in_short(problem: str) -> str:
    """The name of a problem's flag, with the flag to give instead where the problem has one."""
    name = problem.split(" ")[0].rstrip(":")
    instead = re.search(r"(?:Did you mean|Here it is(?: called)?) (.*?)[.?]?$", problem)
    return f"{name} is {instead[1]}" if instead else name


def _complete_help(action: argparse.Action) -> None:
    """Adds to a flag's help the form of its value, and its default if the text does not name it."""
    if isinstance(action.type, ValueKind) and action.metavar is None:
        action.metavar = action.type.metavar
    if action.default in (None, []) or action.help in (None, argparse.SUPPRESS) or "(default" in action.help:
        return
    default = {"True": "on", "False": "off"}.get(str(action.default), action.default)
    action.help += f" (default: {default})"


# The help of --ckpt, and the names of that flag in other programs.
ANY_MODEL = ("a checkpoint, a folder of them (newest) or out/best, a Hugging Face folder of GPT-2, Qwen3 "
             "or Llama, or such a model on the hub: hf://OWNER/NAME")
ALSO_CKPT = "checkpoint checkpoint_dir out_dir model model_path ckpt_path"
