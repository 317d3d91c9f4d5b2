"""Flags in TOML files: reading, merging, errors with their place, and writing without loss."""

from pathlib import Path

import pytest

from gpt.common import config, flags
from gpt.common.config import Layer, Relations, changes
from gpt.common.errors import Exit
from tests.helpers.refusals import refused

RELATIONS = {
    "learning_rate": Relations(aliases="lr", invalidates="min_lr"),
    "epochs": Relations(overrides="max_steps"),
    "max_steps": Relations(overrides="epochs"),
}


def parser() -> flags.Parser:
    made = flags.Parser("train.py", "A command.", RELATIONS)
    made.add_argument("--config", type=flags.text("FILE"))
    made.add_argument("--batch_size", type=flags.auto_or(flags.whole(1)))
    made.add_argument("--n_layer", type=flags.whole(1))
    made.add_argument("--learning_rate", type=flags.positive(10), default=0.01)
    made.add_argument("--min_lr", type=flags.real(0, 10))
    made.add_argument("--epochs", type=flags.whole(1))
    made.add_argument("--max_steps", type=flags.whole(1))
    made.add_argument("--mode", type=flags.one_of("auto", "gpu"), default="auto")
    made.add_argument("--data_dir", type=flags.text("DIR"), default="data")
    made.add_argument("--bias", action=flags.Switch, default=True)
    made.add_argument("--compile", action=flags.Switch)
    made.add_argument("--overwrite", action=flags.Switch, default=False)
    return made


def read(*argv: str, check=lambda args: [], recorded=lambda asked, of_a_call: None):
    return parser().read(argv, check, recorded)


@pytest.fixture
def toml(tmp_path, monkeypatch):
    """A function: writes my.toml, which then lies in the current folder."""
    monkeypatch.chdir(tmp_path)
    return lambda text: Path("my.toml").write_bytes(text.encode() if isinstance(text, str) else text)


def problems(*argv: str, **more) -> list[str]:
    with refused(code=Exit.FLAGS) as caught:
        read(*argv, **more)
    return str(caught.value).split("\nerror: ")


# ---------------------------------------------------------------- reading


def test_a_file_gives_flags_and_the_command_line_wins(toml):
    toml('batch_size = 12\nlearning_rate = 1\nbias = false\nmode = "gpu"\n[decided]\nepochs = 3\n')
    args = read("--config", "my.toml")
    assert (args.batch_size, args.bias, args.mode, args.epochs) == (12, False, "gpu", 3)
    assert isinstance(args.learning_rate, float)
    args = read("--batch_size", "3", "--config", "my.toml", "--bias")
    assert (args.batch_size, args.bias, args.mode) == (3, True, "gpu")
    assert args.origin.given == {"batch_size", "learning_rate", "bias", "mode"}


def test_what_the_command_line_replaces_in_a_file_is_told(toml):
    toml("max_steps = 9\nn_layer = 8\n[decided]\nlearning_rate = 0.1\n")
    args = read("--config", "my.toml", "--n_layer", "3", "--epochs", "2", "--learning_rate", "0.2")
    assert args.origin.replaced == ("n_layer 8 -> 3", "learning_rate 0.1 -> 0.2", "without max_steps")


def test_a_runs_folder_means_its_file(tmp_path):
    (tmp_path / "config.toml").write_text("batch_size = 12\n", encoding="utf-8")
    assert read("--config", str(tmp_path)).batch_size == 12


def test_all_that_is_wrong_in_a_file_is_said(toml):
    toml('learning_rat = 1e-3\n\nn_layer = 2.5\n"min-lr" = 0\n')
    assert problems("--config", "my.toml") == [
        "learning_rat (my.toml): no such flag. Did you mean --learning_rate?",
        "n_layer (my.toml) '2.5': must be a whole number of at least 1",
        "min-lr (my.toml): no such flag. In a file it is written min_lr."]


@pytest.mark.parametrize(("line", "says"), [
    ("learning_rate = nan", "learning_rate (my.toml) 'nan': must be a number above 0"),
    ("epochs = 0", "epochs (my.toml) '0': must be a whole number of at least 1"),
    ("epochs = true", "epochs (my.toml) 'True': must be a whole number"),
    ("epochs = [3]", "epochs (my.toml) '[3]': must be a whole number"),
    ("data_dir = true", "data_dir (my.toml) 'True': must be text"),
    ("bias = 1", "bias (my.toml) '1': must be true or false"),
    ('mode = "tpu"', "mode (my.toml) 'tpu': must be one of auto, gpu"),
    ("no_compile = true", "no_compile (my.toml): no such flag. In a file it is written compile = false."),
    ("no_bias_x = 1", "no_bias_x (my.toml): no such flag. "),
    ("lr = 1e-3", "lr (my.toml): no such flag. Here it is called --learning_rate."),
    ("debug = true", "debug (my.toml): has no effect in a file. Give --debug on the command line."),
    ("[model]\nn_layer = 2", "model (my.toml): is a table. Write flags at the top of the file"),
    ("decided = 3", "decided (my.toml): no such flag"),
    ("data_dir = data", "my.toml is not TOML: Invalid value (at line 1, column 12). Give a file with name = value"),
    (b"epochs = 1\xff", "my.toml is not TOML: 'utf-8' codec"),
    ('"\\u001b[2J" = 1', "no such flag")])
def test_what_a_file_has_wrong_is_said(toml, line, says):
    toml(line)
    found = problems("--config", "my.toml")
    assert len(found) == 1
    assert says in found[0]
    assert found[0].isprintable()


def test_without_a_reader_of_toml_one_line_names_the_package(toml, monkeypatch):
    toml("epochs = 1\n")
    monkeypatch.setattr(config, "TOML", "tomli")
    monkeypatch.setitem(__import__("sys").modules, "tomli", None)
    with refused(code=Exit.MACHINE) as caught:
        read("--config", "my.toml")
    assert "needs the package tomli" in str(caught.value)


# ---------------------------------------------------------------- a resumed run


def recorded(given: dict, **decided):
    return lambda asked, of_a_call: Layer("out/config.toml", dict(given), decided)


def test_a_resumed_run_has_the_recorded_flags_where_the_command_line_is_silent():
    args = read("--n_layer", "3", recorded=recorded({"bias": False, "n_layer": 8}, learning_rate=0.25))
    assert (args.n_layer, args.bias, args.learning_rate) == (3, False, 0.25)
    assert args.origin.recorded == "out/config.toml"
    assert args.origin.changed == ("n_layer 8 -> 3",)
    assert args.origin.given == {"bias", "n_layer"}
    assert changes(Layer("", {"data_dir": "a"}, {}), Layer("", {"data_dir": ["a", "b"]}, {}),
                   Layer("", {"data_dir": ["a", "b"]}, {})) == ("data_dir a -> a b",)


@pytest.mark.parametrize(("words", "expected"), [
    ([], {"epochs": 2, "max_steps": 50, "min_lr": 0.001, "learning_rate": 0.1}),
    (["--max_steps", "50"], {"epochs": 2, "max_steps": 50}),  # the same again replaces nothing
    (["--max_steps", "90"], {"epochs": None, "max_steps": 90}),
    (["--epochs", "5"], {"epochs": 5, "max_steps": None}),
    (["--learning_rate", "0.05"], {"min_lr": None, "epochs": 2}),
    (["--learning_rate", "0.05", "--min_lr", "0.02"], {"min_lr": 0.02})])
def test_a_flag_that_is_changed_takes_what_follows_from_it_along(words, expected):
    args = read(*words, recorded=recorded({"max_steps": 50}, epochs=2, learning_rate=0.1, min_lr=0.001))
    assert {name: getattr(args, name) for name in expected} == expected


def test_what_an_unreadable_record_says_is_left_out():
    args = read(recorded=recorded({"epochs": "two", "unknown": 1}, batch_size=-1, n_layer=3))
    assert (args.epochs, args.batch_size, args.n_layer) == (None, None, 3)


# ---------------------------------------------------------------- writing


HARD = ['say "hi"', "back\\slash", "C:\\new\\t", "a\tb\nc", "\x1b[2J\x7f", "caf\u00e9 \u6f22", "\U0001f600", "# no",
        " "]
NUMBERS = [0.1, 1e-30, 1 / 3, 5e-324, 1.7976931348623157e308, 1e22, 123456789.0, 0.0]


def test_what_is_written_is_read_back_exactly(tmp_path):
    given = {f"text{number}": text for number, text in enumerate(HARD)}
    decided = {f"number{number}": value for number, value in enumerate(NUMBERS)}
    layer = Layer("", {**given, "on": True, "off": False, "whole": 2**62, "some": HARD}, decided)
    config.write_toml(tmp_path / "c.toml", layer, "Two\nlines.", {"on": "because\nof " + "x " * 99, "number1": "\x1b"})
    there = config.read_toml(tmp_path / "c.toml")
    assert (there.given, there.decided) == (layer.given, layer.decided)
    text = (tmp_path / "c.toml").read_text(encoding="utf-8")
    assert text.startswith("# Two\n# lines.\n")
    assert not set(text) & {"\x1b", "\x7f"}
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]


def test_a_name_that_is_not_utf_8_is_left_out(tmp_path):
    layer = Layer("", {"data_dir": "d\udcff", "epochs": 3}, {})
    config.write_toml(tmp_path / "c.toml", layer, "", {})
    assert config.read_toml(tmp_path / "c.toml").given == {"epochs": 3}
