"""cli.py: flags that say what is wrong with them, one line for an error, nothing half-written, never silent."""

import contextlib
import importlib.metadata
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from common import flags
from common.errors import MESSAGE_LINES, Exit, UserError, guard, require, version_of
from common.files import _sha256_of, hash_ahead, sha256_of, write_whole
from common.progress import Progress
from common.signals import Signals
from common.words import count, duration, printable, size
from training.trackers import Metrics

ROOT = Path(__file__).parent.parent


def parser() -> flags.Parser:
    made = flags.Parser("x.py", "A command.")
    group = made.group("all")
    group.flag("--batch_size", flags.whole(1), 8, "rows; 100% of them")
    group.flag("--learning_rate", flags.real(0, 10, above=True), None, "peak", "by size")
    group.flag("--beta", flags.real(0, 1, below=True), 0.9, "decay")
    group.flag("--mode", flags.one_of("auto", "gpu"), "auto", "where")
    group.flag("--data_dir", flags.text("DIR"), "data", "folder")
    group.switch("--compile", None, "compile", "on with CUDA")
    group.switch("--bias", True, "biases")
    group.switch("--use_amp", False, "mixed precision")
    return made


def read(*argv: str, check=lambda args: []):
    return parser().read(argv, check)


def problems(*argv: str, **more) -> list[str]:
    with pytest.raises(UserError) as caught:
        read(*argv, **more)
    assert caught.value.code == Exit.FLAGS
    return ("error: " + str(caught.value)).splitlines()


# ---------------------------------------------------------------- flags


def test_values_defaults_and_both_spellings_of_a_value():
    args = read()
    assert (args.batch_size, args.learning_rate, args.beta, args.mode, args.data_dir) == (8, None, 0.9, "auto", "data")
    assert (args.compile, args.bias, args.use_amp) == (None, True, False)
    args = read("--batch_size=1_024", "--learning_rate", "1e-3", "--mode=gpu", "--data_dir", "a=b c")
    assert (args.batch_size, args.learning_rate, args.mode, args.data_dir) == (1024, 0.001, "gpu", "a=b c")
    assert read("--batch_size", "16,384").batch_size == 16384


def test_the_no_forms_are_there_where_a_switch_is_on_or_undecided():
    args = read("--no-compile", "--no-bias")
    assert (args.compile, args.bias) == (False, False)
    assert read("--compile").compile is True
    assert "no such flag" in problems("--no-use_amp")[0]


@pytest.mark.parametrize(("typo", "meant"), [
    ("--batchsize", "--batch_size"), ("--batch-size", "--batch_size"), ("--learning-rate", "--learning_rate"),
    ("--lerning_rate", "--learning_rate"), ("--no_compile", "--no-compile"), ("--no-biass", "--no-bias"),
    ("--use-amp", "--use_amp"), ("--batch", "--batch_size"), ("--data_dri", "--data_dir"),
    ("-batch_size", "--batch_size")])
def test_a_misspelt_or_shortened_flag_is_refused_with_the_one_meant(typo, meant):
    for argv in ([typo, "3"], [f"{typo}=3"]):
        assert problems(*argv) == [f"error: {typo}: no such flag. Did you mean {meant}?"]


def test_a_flag_like_no_other_and_a_stray_word_point_to_help():
    assert problems("--zzzzzz", "3") == ["error: --zzzzzz: no such flag. See --help."]
    assert problems("stray") == ["error: 'stray': a word that belongs to no flag. See --help."]
    assert "\x1b" not in problems("\x1b[2J")[0]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "-1", "-1e-5", "0", "", "x", "0x10", "1 2", "\x1b"])
def test_a_number_out_of_range_says_the_range_and_shows_the_value_escaped(value):
    found = problems(f"--learning_rate={value}")
    assert len(found) == 1
    assert found[0].startswith("error: --learning_rate ")
    assert "must be a number above 0 to 10" in found[0]
    assert "\x1b" not in found[0]


@pytest.mark.parametrize("value", ["0", "-3", "1.5", "1e3", "nan", "inf", "", "x", "2147483648", "9" * 5000])
def test_a_whole_number_is_one(value):
    found = problems(f"--batch_size={value}")
    assert found[0].startswith("error: --batch_size ")
    assert found[0].endswith("must be a whole number of at least 1")
    assert len(found[0]) < 200


def test_negative_numbers_are_values_not_flags():
    for value in ("-1", "-0.5"):
        assert problems("--learning_rate", value) == [
            f"error: --learning_rate {value!r}: must be a number above 0 to 10"]


def test_the_ends_of_a_range_belong_to_it_as_it_says():
    assert read("--learning_rate", "10").learning_rate == 10
    assert read("--beta", "0").beta == 0
    assert problems("--beta", "1") == ["error: --beta '1': must be a number from 0 and below 1"]
    assert problems("--mode", "tpu") == ["error: --mode 'tpu': must be one of auto, gpu"]
    assert problems("--data_dir", "") == ["error: --data_dir '': must be text that is not empty"]


def test_all_problems_come_together_and_a_flag_without_its_value_is_one():
    found = problems("--batch_size", "0", "--mode", "tpu", "--bta", "1")
    assert [line.split()[1] for line in found] == ["--batch_size", "--mode", "--bta:"]
    found = problems("--batch_size", "0", "--mode")
    assert len(found) == 2
    assert found[1] == "error: --mode: expected one argument"


def test_problems_take_five_lines_at_most_and_none_is_left_out():
    found = problems(*(f"--zz{i}" for i in range(9)))
    assert len(found) == MESSAGE_LINES == 5
    assert found[4] == "error: and 5 more: --zz4, --zz5, --zz6, --zz7, --zz8"
    assert len(problems(*(f"--zz{i}" for i in range(5)))) == 5


def test_what_cannot_be_together_is_checked_once_each_value_is_right():
    def check(args):
        assert args.batch_size >= 1
        return ["--a: not with --b"] if args.batch_size == 7 else []

    assert read("--batch_size", "6", check=check).batch_size == 6
    assert problems("--batch_size", "7", check=check) == ["error: --a: not with --b"]
    assert len(problems("--batch_size", "0", check=check)) == 1


def test_help_shows_every_default_and_ends_with_0(capsys):
    with pytest.raises(SystemExit) as ended:
        read("--help")
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for shown in ("(default: 8)", "(default: by size)", "(default: auto)", "(default: data)", "(default: on with CUDA)",
                  "(default: on)", "(default: off)", "100% of them", "--compile, --no-compile", "auto|gpu"):
        assert shown in text


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(("text", "shown"), [
    ("plain\n\ttext", "plain\n\ttext"), ("\x1b[2J\x07\r", "\\x1b[2J\\x07\\r"), ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
    ("caf\u00e9 \u6f22 \U0001f44d", "caf\u00e9 \u6f22 \U0001f44d"), ("\udcff", "\\udcff"), ("a\u00a0b", "a\u00a0b")])
def test_printable_escapes_what_could_drive_a_terminal(text, shown):
    assert printable(text) == shown
    shown.encode("utf-8")


def test_durations_sizes_and_counts_read_as_people_say_them():
    assert [duration(s) for s in (-1, 0, 8.4, 59.6, 750, 3600, 39_000, 273_600)] == [
        "0 s", "0 s", "8 s", "1 min 0 s", "12 min 30 s", "1 h 0 min", "10 h 50 min", "3 d 4 h"]
    assert [size(n) for n in (0, 512, 12_288, 3.1 * 2**20, 15.2 * 2**30)] == [
        "0 bytes", "512 bytes", "12 KiB", "3.1 MiB", "15.2 GiB"]
    assert [count(n) for n in (512, 32_000, 1_070_000, 124_439_808, 2.5e9, 3e12)] == [
        "512", "32.0K", "1.07M", "124.4M", "2.50B", "3.00T"]


@pytest.mark.parametrize(("text", "version"), [("2.13.0+cpu", (2, 13, 0)), ("2.14.0a0+git1", (2, 14, 0)),
                                               ("2.14rc1", (2, 14)), ("1.26", (1, 26)), ("2.15.0.dev2026", (2, 15, 0))])
def test_a_version_is_its_numbers(text, version):
    assert version_of(text) == version


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("broken", ["sync", "replace"])
def test_a_failed_write_leaves_the_old_file_whole(tmp_path, monkeypatch, broken):
    path = tmp_path / "a.json"
    write_whole(path, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((cli, "sync", full) if broken == "sync" else (Path, "replace", full)))
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "old"
    monkeypatch.undo()
    write_whole(path, "new")
    assert path.read_text() == "new"


def test_sha256_of_a_file_is_the_known_one(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_hash_made_ahead_is_taken_unless_the_file_has_changed(tmp_path, monkeypatch):
    for step in (1, 2):
        (folder := tmp_path / f"checkpoint-{step}").mkdir()
        (folder / "model.safetensors").write_bytes(b"abc" * step)
        (folder / "manifest.json").write_text("{}")
        os.utime(folder / "manifest.json", (step, step))
    newest = tmp_path / "checkpoint-2/model.safetensors"
    expected = sha256_of(newest)
    hashed, digest = [], _sha256_of
    monkeypatch.setattr(cli, "_sha256_of", lambda path: (hashed.append(path), digest(path))[1])
    for given in (tmp_path, newest.parent):
        hash_ahead(given)
        assert sha256_of(newest) == expected
        assert hashed == [newest]
        hashed.clear()
    hash_ahead(tmp_path)
    newest.write_bytes(b"other!")
    assert sha256_of(newest) == digest(newest) != expected
    hash_ahead(tmp_path / "nowhere")
    hash_ahead(newest)


def test_the_garbage_collector_rests_during_the_imports_and_works_afterwards():
    before = "import gc"
    assert command("print(gc.isenabled())", before=before).stdout == "True\nwent on\n"
    resting = command("return 0", before=f"{before}\nimport atexit\natexit.register(lambda: print(gc.isenabled()))")
    assert resting.stdout == "went on\nFalse\n"


# ---------------------------------------------------------------- how a command ends


def command(body: str, *argv: str, before: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Runs `body` as the main of a command, in a process of its own."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    code = f"import os, signal, sys, cli\n{before}\ndef main(argv):\n{lines}cli.guard(main)\nprint('went on')"
    return subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(ROOT), **env})


def test_a_command_that_is_done_goes_on_and_one_with_a_code_ends_with_it():
    assert command("return 0").stdout == "went on\n"
    done = command("return 6")
    assert (done.returncode, done.stdout, done.stderr) == (6, "", "")


@pytest.mark.parametrize("code", list(Exit)[1:])
def test_a_user_error_is_its_code_and_one_line(capsys, monkeypatch, code):
    def main(argv):
        raise UserError(code, "WHAT. WHY. CURE.")

    with pytest.raises(SystemExit) as ended:
        guard(main)
    assert ended.value.code == code
    assert capsys.readouterr().err == "error: WHAT. WHY. CURE.\n"


def test_a_bug_is_one_line_and_a_crash_log_with_the_traceback(tmp_path):
    done = command("secret = {}\nreturn secret['a\\nb\\x1b']", "--flag", TMPDIR=str(tmp_path))
    assert done.returncode == Exit.BUG
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    match = re.fullmatch("error: a bug of this program, not of yours: KeyError: .*Please report it with the file "
                         "(.*)\n", done.stderr)
    assert match
    log = Path(match[1]).read_text()
    assert Path(match[1]).parent == tmp_path
    assert "Traceback" in log
    assert "KeyError" in log
    assert "--flag" in log


def test_debug_shows_the_traceback_of_any_error(tmp_path):
    assert "Traceback" in command("raise ValueError('x')", "--debug", TMPDIR=str(tmp_path)).stderr
    assert "Traceback" in command("raise cli.UserError(3, 'x')", "--debug").stderr
    assert "Traceback" not in command("raise cli.UserError(3, 'x')").stderr


@pytest.mark.parametrize(("error", "code", "words"), [
    ("KeyboardInterrupt", 130, ""), ("MemoryError", 5, "out of memory on the host"),
    ("RuntimeError('CUDA error: out of memory')", 5, "out of memory on the GPU. See with nvidia-smi"),
    ("PermissionError(13, 'Permission denied', 'a\\x1b')", 5, "Permission denied: a\\x1b. Check that"),
    ("OSError(28, 'No space left on device')", 5, "No space left on device. Check that"),
    ("BrokenPipeError(32, 'x')", 141, ""), ("SystemExit(3)", 3, "")])
def test_other_ends_have_their_code_and_at_most_one_line(error, code, words):
    done = command(f"raise {error}")
    assert done.returncode == code
    assert done.stderr.count("\n") == bool(words)
    assert words in done.stderr


def test_a_panic_of_a_library_that_is_no_exception_is_a_bug_too(tmp_path):
    done = command("raise type('Panic', (BaseException,), {})('rust')", TMPDIR=str(tmp_path))
    assert done.returncode == Exit.BUG
    assert "Panic: rust" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="shell redirection")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_bug(closed, tmp_path):
    code = ("import cli\ndef main(argv):\n    out = cli.Progress()\n    out.say('x')\n    out.warn('y')\n"
            "    out.close()\n    print('z')\n    raise cli.UserError(cli.Exit.DATA, 'w')\ncli.guard(main)")
    done = subprocess.run(f'"$PY" -c "$CODE" {closed}', shell=True, capture_output=True, text=True, timeout=60,
                          cwd=tmp_path, env={
        **os.environ, "PY": sys.executable, "CODE": code, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)})
    assert done.returncode == Exit.DATA
    assert "Traceback" not in done.stderr


def test_a_package_that_is_missing_or_old_ends_with_5_and_the_pip_command(monkeypatch, capsys):
    found = {"torch": "2.13.0+cpu", "numpy": "1.20.0", "tqdm": "4.66"}

    def version(name: str) -> str:
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    require("torch", "tqdm")
    assert not capsys.readouterr().err
    with pytest.raises(UserError) as caught:
        require("torch", "numpy", "tokenizers", "tqdm")
    assert caught.value.code == Exit.MACHINE
    assert re.fullmatch(r"numpy 1.20.0 is older than 1.26; tokenizers is not installed. Run: \S+ -m pip install -r "
                        "requirements.txt", str(caught.value))
    found["torch"] = "2.15.3"
    require("torch")
    assert not capsys.readouterr().err
    found["torch"] = "2.16.0"
    require("torch")
    assert capsys.readouterr().err == "warning: torch 2.16.0 is newer than the newest tested release, 2.15.\n"
    found["torch"] = "2.10.1"
    with pytest.raises(UserError, match=r"torch 2\.10\.1 is older than 2\.11"):
        require("torch")


# ---------------------------------------------------------------- signals


def test_the_first_signal_is_remembered_and_the_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        assert (signals.number, signals.name) == (None, "")
        os.kill(os.getpid(), signal.SIGTERM)
        assert (signals.number, signals.name) == (signal.SIGTERM, "SIGTERM")
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_signal_leaves_at_once():
    done = command("with cli.Signals():\n    os.kill(os.getpid(), signal.SIGINT)\n"
                   "    os.kill(os.getpid(), signal.SIGTERM)\nreturn 1")
    assert done.returncode == 128 + signal.SIGTERM


@pytest.mark.skipif(os.name != "posix", reason="no SIGHUP")
def test_what_nohup_ignores_stays_ignored():
    done = command("with cli.Signals() as signals:\n"
                   "    os.kill(os.getpid(), signal.SIGHUP)\n    print(signals.number)\n"
                   "    os.kill(os.getpid(), signal.SIGINT)\n    print(signals.name)\nreturn 1",
                   before="signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    assert done.stdout == "None\nSIGINT\n"


# ---------------------------------------------------------------- progress


class Pipe(io.StringIO):
    """Remembers what has been flushed, and when something first was."""

    def __init__(self):
        super().__init__()
        self.flushed = ""
        self.heard = threading.Event()

    def flush(self):
        self.flushed = self.getvalue()
        self.heard.set()


def test_in_a_pipe_there_are_whole_flushed_lines():
    pipe = Pipe()
    out = Progress(pipe)
    out.bar(10, 0, "step")
    out.at(1)
    out.at(2, "step 2/10")
    out.say("one\ntwo")
    assert pipe.flushed == "step 2/10\none\ntwo\n"
    out.close()
    assert pipe.flushed == "step 2/10\none\ntwo\n"


def test_the_heartbeat_says_what_is_waited_for_and_is_silent_otherwise():
    pipe = Pipe()
    out = Progress(pipe, heartbeat_seconds=0.02)
    assert not pipe.heard.wait(0.1), "nothing is being done"
    with out.phase("compiling"):
        assert pipe.heard.wait(10)
    out.close()
    assert set(pipe.flushed.splitlines()) == {"... compiling, 0 s"}


def test_a_phase_inside_another_gives_the_heartbeat_back():
    out, phases = Progress(Pipe()), contextlib.ExitStack()
    with out.phase("training"):
        phases.enter_context(out.phase("saving"))
        assert out._doing == "saving"
        phases.close()
        assert out._doing == "training"
    assert out._doing == ""
    out.close()


def test_a_reader_that_goes_away_ends_the_printing_not_the_work():
    pipe = Pipe()
    out = Progress(pipe)
    pipe.close()
    for _ in range(3):
        out.say("nobody hears this")
    out.at(1, "nor this")
    out.close()


def test_on_a_terminal_there_is_a_bar_and_lines_go_above_it():
    pipe = Pipe()
    pipe.isatty = lambda: True  # type: ignore[method-assign]
    out = Progress(pipe)
    out.bar(10, 2, "step")
    out.at(5, "loss 3.2")
    out.say("validation")
    out.close()
    assert "50%" in pipe.getvalue()
    assert "loss 3.2" in pipe.getvalue()
    assert "validation\n" in pipe.getvalue()


# ---------------------------------------------------------------- metrics


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_are_cut_back_to_the_step_resumed_from(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path, 0, 0)
    for step in range(1, 11):
        metrics.write(step=step, loss=step / 3)
        if step % 5 == 0:
            metrics.write(step=step, val_loss=2.0)
    with path.open("a") as file:
        file.write('[1]\n"x"\n{"no": "step"}\n{"step": "text"}\n{"step": 11, "lo')  # torn by a kill
    Metrics(path, 10, 5)
    found = lines(path)
    assert [(fields["step"], "val_loss" in fields) for fields in found] == [
        (1, False), (2, False), (3, False), (4, False), (5, False), (5, True), (6, False), (7, False), (8, False),
        (9, False), (10, False)]
    assert found[2]["loss"] == 1.0
    assert found[0]["loss"] == 1 / 3
    Metrics(path, 4, 0).write(step=5, loss=0.1)
    assert [fields["step"] for fields in lines(path)] == [1, 2, 3, 4, 5]
    Metrics(path, 0, 0)
    assert path.read_text() == ""


def test_what_is_not_finite_is_null(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl", 0, 0)
    metrics.write(step=1, loss=float("nan"), norm=float("inf"), lr=1e-5, bits_per_byte=None)
    expected = {"step": 1, "loss": None, "norm": None, "lr": 1e-5, "bits_per_byte": None}
    assert lines(tmp_path / "metrics.jsonl") == [expected]


def test_a_line_that_cannot_be_written_is_lost_with_a_warning_and_a_deleted_folder_made_anew(tmp_path, capsys):
    path = tmp_path / "out" / "metrics.jsonl"
    path.parent.mkdir()
    metrics = Metrics(path, 0, 0)
    path.unlink()
    path.parent.rmdir()
    metrics.write(step=1)
    assert lines(path) == [{"step": 1}]
    path.unlink()
    path.mkdir()
    metrics.write(step=2)
    assert "metrics.jsonl: Is a directory; the line of step 2 is lost" in capsys.readouterr().err
