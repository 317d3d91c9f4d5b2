"""Flags: each message names the flag and its value, and all problems are reported together."""

import argparse
import os
import re
from pathlib import Path

import pytest

import generate
from gpt.common import flags
from gpt.common.errors import Exit, UserError
from tests.helpers.refusals import refused


def parser() -> flags.Parser:
    made = flags.Parser("x.py", "A command.")
    group = made.add_argument_group("all")
    group.add_argument("--batch_size", type=flags.whole(1), default=8, help="rows; 100%% of them, each a window")
    group.add_argument("--learning_rate", type=flags.positive(10), help="peak (default: by size)")
    group.add_argument("--beta", type=flags.fraction(), default=0.9, help="decay")
    group.add_argument("--mode", type=flags.one_of("auto", "gpu"), default="auto", help="where")
    group.add_argument("--data_dir", type=flags.text("DIR"), default="data", help="folder")
    group.add_argument("--compile", action=flags.Switch, help="compile (default: on with CUDA)")
    group.add_argument("--bias", action=flags.Switch, default=True, help="biases")
    group.add_argument("--use_amp", action=flags.Switch, default=False, help="mixed precision")
    return made


def read(*argv: str, check=lambda args: []):
    return parser().read(argv, check)


def problems(*argv: str, **more) -> list[str]:
    with pytest.raises(UserError) as caught:
        read(*argv, **more)
    assert caught.value.code == Exit.FLAGS
    return ("error: " + str(caught.value)).splitlines()


def test_values_defaults_and_both_spellings_of_a_value():
    args = read()
    assert (args.batch_size, args.learning_rate, args.beta, args.mode, args.data_dir) == (8, None, 0.9, "auto", "data")
    assert (args.compile, args.bias, args.use_amp) == (None, True, False)
    args = read("--batch_size=1_024", "--learning_rate", "1e-3", "--mode=gpu", "--data_dir", "a=b c")
    assert (args.batch_size, args.learning_rate, args.mode, args.data_dir) == (1024, 0.001, "gpu", "a=b c")
    assert read("--batch_size", "16,384").batch_size == 16384
    assert [flags.real(0, 10**6)(text) for text in ("1,440", "1,440.5", "1_000", "0.5")] == [1440, 1440.5, 1000, 0.5]
    assert [flags.steps()(text) for text in ("1,000", "12", "0.5", "5e-2")] == [1000, 12, 0.5, 0.05]
    for kind in (flags.whole(0), flags.real(0, 10**6), flags.steps()):
        for text in ("0,5", "1,5", "1,0000", "1,000,0"):
            with pytest.raises(argparse.ArgumentTypeError, match=re.escape(repr(text))):
                kind(text)


@pytest.mark.parametrize(("typo", "meant"), [
    ("--batchsize", "--batch_size"), ("--batch-size", "--batch_size"), ("--learning-rate", "--learning_rate"),
    ("--lerning_rate", "--learning_rate"), ("--no_compile", "--no-compile"), ("--no-biass", "--no-bias"),
    ("--use-amp", "--use_amp"), ("--batch", "--batch_size"), ("--data_dri", "--data_dir"),
    ("-batch_size", "--batch_size")])
def test_a_misspelt_or_shortened_flag_is_refused_with_the_one_meant(typo, meant):
    for argv in ([typo, "3"], [f"{typo}=3"]):
        assert problems(*argv) == [f"error: {typo}: no such flag. Did you mean {meant}?"]


def test_a_flag_like_no_other_and_a_stray_word_point_to_help(tmp_path, monkeypatch):
    assert problems("--zzzzzz", "3") == ["error: --zzzzzz: no such flag. See --help."]
    assert re.match(r"error: 'stray': unexpected argument\. .* --\w+ 'stray'", problems("stray")[0])
    monkeypatch.chdir(tmp_path)
    Path("-a.txt").write_text("")
    assert problems("-a.txt") == ["error: -a.txt: no such flag. For the file write ./-a.txt."]
    monkeypatch.chdir(tmp_path.parent)
    for word in (tmp_path.name, f"{tmp_path.name}/best"):
        with refused(f"--ckpt '{word}'", Exit.FLAGS):
            generate.read_flags([word])
    for words in (["--compile=False"], ["--compile", "False"]):
        assert problems(*words)[0] == (
            "error: --compile: takes no value. Give --compile for true, --no-compile for false.")
    assert "\x1b" not in problems("\x1b[2J")[0]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "-1", "-1e-5", "0", "", "x", "0x10", "1 2", "\x1b"])
def test_a_number_out_of_range_says_the_range_and_shows_the_value_escaped(value):
    found = problems(f"--learning_rate={value}")
    assert len(found) == 1
    assert found[0].startswith("error: --learning_rate ")
    assert "must be a number above 0 and at most 10" in found[0]
    assert "\x1b" not in found[0]


@pytest.mark.parametrize("value", ["0", "-3", "1.5", "1e3", "nan", "inf", "", "x", "2147483648", "9" * 5000])
def test_a_whole_number_is_one(value):
    found = problems(f"--batch_size={value}")
    assert found[0].startswith("error: --batch_size ")
    assert found[0].endswith("must be a whole number of at least 1")
    assert len(found[0]) < 200


def test_the_ends_of_a_range_belong_to_it_as_it_says():
    assert read("--learning_rate", "10").learning_rate == 10
    assert read("--beta", "0").beta == 0
    assert problems("--beta", "1") == ["error: --beta '1': must be a number of at least 0 and below 1"]
    assert problems("--mode", "tpu") == ["error: --mode 'tpu': must be one of auto, gpu"]
    assert problems("--data_dir", "") == ["error: --data_dir '': must be text that is not empty"]


def test_all_problems_come_together_and_a_flag_without_its_value_is_one():
    found = problems("--batch_size", "0", "--mode", "tpu", "--bta", "1")
    assert sorted(line.split()[1] for line in found) == ["--batch_size", "--bta:", "--mode"]
    found = problems("--batch_size", "0", "--mode")
    assert sorted(line.split()[1] for line in found) == ["--batch_size", "--mode:"]
    found = problems("--compile=False", "--mode", "--bta=1", "--bias=", "--batch_size", "-1")
    assert sorted(line.split()[1] for line in found) == ["--batch_size", "--bias:", "--bta:", "--compile:", "--mode:"]


def test_problems_take_five_lines_at_most_and_none_is_left_out():
    found = problems(*(f"--zz{i}" for i in range(9)))
    assert len(found) == 5
    assert found[4] == "error: and 5 more: --zz4, --zz5, --zz6, --zz7, --zz8"
    assert len(problems(*(f"--zz{i}" for i in range(5)))) == 5


def test_what_cannot_be_together_is_checked_once_each_value_is_right():
    def check(args):
        assert args.batch_size >= 1
        return ["--a: not with --b"] if args.batch_size == 7 else []

    assert read("--batch_size", "6", check=check).batch_size == 6
    assert problems("--batch_size", "7", check=check) == ["error: --a: not with --b"]
    assert len(problems("--batch_size", "0", check=check)) == 1


def test_help_shows_every_default_and_ends_with_0(capsys, monkeypatch):
    monkeypatch.setattr("shutil.get_terminal_size", os.terminal_size)  # as in a pipe
    with pytest.raises(SystemExit) as ended:
        read("--help")
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    text = " ".join(printed.split())
    for shown in ("(default: 8)", "(default: by size)", "(default: auto)", "(default: data)", "(default: on with CUDA)",
                  "(default: on)", "(default: off)", "100% of them", "--compile, --no-compile", "auto|gpu"):
        assert shown in text


def test_a_separator_is_text_of_utf8():
    assert flags.escaped().fits("\n---\n")
    assert not flags.escaped().fits("\udcff")
    assert flags.unescaped(r"a\\nb\n\t\x") == "a\\nb\n\t\\x"
