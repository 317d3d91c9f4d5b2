"""How a command ends: one line and the right exit code for an error, a crash log for a bug, never half a word."""

import gc
import importlib.metadata
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.common import ending
from gpt.common.ending import guard
from gpt.common.errors import Exit, Problems, UserError, optional, require
from gpt.common.signals import STOPPING
from tests.helpers.commands import ROOT, run_python
from tests.helpers.refusals import refused


def command(body: str, *argv: str, before: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Runs `body` as the main of a command, in a process of its own."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    code = ("import os, signal, sys\nfrom gpt.common.ending import *\nfrom gpt.common.progress import Progress\n"
            f"{before}\ndef main(argv):\n{lines}guard(main)\nprint('went on')")
    return run_python(code, *argv, cwd=None, **env)


@pytest.fixture
def keep_handlers(monkeypatch):
    """guard installs handlers that end the process and sets a variable; this puts back what was before."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    gc.enable()


@pytest.mark.parametrize("code", list(Exit)[1:])
def test_a_user_error_is_its_code_and_one_line(capsys, keep_handlers, code):
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
    match = re.fullmatch("error: this is a bug in the program, not a mistake of yours: KeyError: .*"
                         "Please report it with the file (.*)\n", done.stderr)
    assert match
    log = Path(match[1]).read_text()
    assert Path(match[1]).parent == tmp_path
    assert "Traceback" in log
    assert "KeyError" in log
    assert "--flag" in log


def test_debug_shows_the_traceback_of_any_error(tmp_path):
    assert "Traceback" in command("raise ValueError('x')", "--debug", TMPDIR=str(tmp_path)).stderr
    assert "Traceback" in command("raise UserError(3, 'x')", "--debug").stderr
    assert "Traceback" not in command("raise UserError(3, 'x')").stderr


@pytest.mark.parametrize(("error", "code", "words"), [
    ("KeyboardInterrupt", 130, ""), ("MemoryError", 5, "out of memory"),
    ("OSError(12, 'Cannot allocate memory')", 5, "out of memory"),
    ("RuntimeError('CUDA error: out of memory')", 5, "out of memory"),
    ("RuntimeError('CUDA error: unspecified launch failure')", 5, "the GPU failed: CUDA error: unspecified launch"),
    ("RuntimeError('CUDA driver error: unknown error')", 5, "look at dmesg"),
    ("RuntimeError('CUDA error: device-side assert triggered')", 70, "this is a bug in the program"),
    ("RuntimeError('could not create a primitive')", 5, "ulimit -v unlimited"),
    ("PermissionError(13, 'Permission denied', 'a\\x1b')", 5, "Permission denied: a\\x1b. Check that"),
    ("OSError(28, 'No space left on device')", 5, "No space left on device. Check that"),
    ("OSError(24, 'Too many open files', 'a.txt')", 5, "ulimit -n 1024"),
    ("RuntimeError(\"can't start new thread\")", 5, "a thread could not be started. Raise the limits"),
    ("OSError('100 requested and 20 written')", 5, "100 requested and 20 written. Check that the path exists"),
    ("type('Panic', (BaseException,), {})('rust')", 70, "Panic: rust"),
    ("type('PanicException', (BaseException,), {})('rust')", 3, "rust"),
    ("BrokenPipeError(32, 'x')", 141, ""), ("SystemExit(3)", 3, "")])
def test_other_ends_have_their_code_and_at_most_one_line(error, code, words, tmp_path):
    done = command(f"raise {error}", TMPDIR=str(tmp_path))
    assert done.returncode == code
    assert done.stderr.count("\n") == bool(words)
    assert words in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="shell redirection")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_not_a_bug(closed, tmp_path):
    code = ("from gpt.common.ending import *\nfrom gpt.common.progress import Progress\n"
            "def main(argv):\n    out = Progress()\n    out.say('x')\n    out.warn('y')\n"
            "    out.close()\n    print('z')\n    raise UserError(Exit.DATA, 'w')\nguard(main)")
    done = subprocess.run(f'"$PY" -c "$CODE" {closed}', shell=True, capture_output=True, text=True, timeout=60,
                          cwd=tmp_path, env={
        **os.environ, "PY": sys.executable, "CODE": code, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)})
    assert done.returncode == Exit.DATA
    assert "Traceback" not in done.stderr


def test_all_problems_are_reported_together_with_the_first_ones_exit_code():
    problems = Problems()
    problems.stop()
    for code in (Exit.DATA, Exit.MACHINE, *[Exit.FLAGS] * 9):
        with problems.catch():
            raise UserError(code, f"code {code:d}")
    with refused(code=Exit.DATA) as caught:
        problems.stop()
    assert f"error: {caught.value}".splitlines() == ["error: code 3", "error: code 5", *["error: code 2"] * 3]


# ---------------------------------------------------------------- packages


def test_a_package_that_is_missing_or_old_ends_with_5_and_the_pip_command(monkeypatch, capsys):
    found = {"torch": "2.13.0+cpu", "numpy": "1.20.0", "tqdm": "4.66"}

    def version(name: str) -> str:
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    require("torch", "tqdm")
    assert not capsys.readouterr().err
    with refused(code=Exit.MACHINE) as caught:
        require("torch", "numpy", "tokenizers", "tqdm")
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


def test_a_missing_module_gives_pip_the_name_of_its_package():
    with refused("pip install no_such_package$", Exit.MACHINE):
        optional("no_such_package.module", "a.parquet")


@pytest.mark.parametrize(("line", "says"), [("import no_such_part", "No module named 'no_such_part'"),
                                            ("raise ImportError('libcat.so: no file')", "libcat.so: no file")])
def test_a_package_that_cannot_be_loaded_is_installed_anew(line, says, tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text(line)
    monkeypatch.syspath_prepend(tmp_path)
    with refused(rf"which cannot be loaded: {says}\. Run: .*pip install --force-reinstall broken_package$"):
        optional("broken_package", "a.parquet")


# ---------------------------------------------------------------- imports that fail


@pytest.mark.parametrize(("fault", "code", "says"), [
    ("raise ImportError('libtorch_cpu.so: failed to map segment')", 5, "out of memory. End other programs"),
    ("raise ImportError('advice\\nOriginal error was: no file')", 5, "a package cannot be loaded: no file. Run: "),
    ("raise MemoryError", 5, "out of memory"), ("raise KeyError('x')", 70, "this is a bug in the program")])
def test_a_package_that_cannot_be_loaded_ends_the_command_with_one_line(tmp_path, fault, code, says):
    done = run_python(f"from gpt.common.ending import *\nguard(lambda argv: 0)\n{fault}\n", TMPDIR=str(tmp_path))
    assert done.returncode == code
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_signal_during_the_imports_ends_it_at_once_and_says_so():
    done = run_python("import os, signal, time\nfrom gpt.common.ending import guard\n"
                      "guard(lambda words: os.kill(os.getpid(), signal.SIGTERM) or time.sleep(60))")
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == "stopped by SIGTERM; nothing was lost\n"


@pytest.mark.parametrize(("is_windows", "setting", "written"), [
    (True, "", "\u4e2d\u6587 \u00e4".encode()), (True, "cp1252", b"\\u4e2d\\u6587 \xe4"),
    (False, "", b"\\u4e2d\\u6587 \xe4")])
def test_on_windows_a_pipe_gets_utf_8_and_no_text_ends_a_command_anywhere(monkeypatch, is_windows, setting, written):
    monkeypatch.setattr(ending, "IS_WINDOWS", is_windows)
    monkeypatch.setenv("PYTHONIOENCODING", setting)
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", errors="strict")
    monkeypatch.setattr(sys, "stdout", pipe)
    ending._make_streams_safe()
    print("\u4e2d\u6587 \u00e4", end="", flush=True)
    assert pipe.buffer.getvalue() == written  # type: ignore[attr-defined]


def test_another_process_than_the_main_one_leaves_it_the_time_to_print(monkeypatch, capsys):
    """torchrun ends all processes with the first that ends."""
    waited = []
    monkeypatch.setattr(ending.time, "sleep", waited.append)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h",
                        "MASTER_PORT": "1", ending.RUN_BY_TORCHRUN: "none"}.items():
        monkeypatch.setenv(name, value)
    assert ending._report(UserError(Exit.FLAGS, "of all")) == Exit.FLAGS
    assert (waited, capsys.readouterr().err) == ([ending.WAIT_FOR_MAIN], "")
    assert ending._report(UserError(Exit.DATA, "of one", on_all_ranks=False)) == Exit.DATA
    assert (len(waited), capsys.readouterr().err) == (1, "error: of one\n")


def test_standard_input_takes_any_bytes(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff\n"), "utf-8", errors="strict"))
    ending._make_streams_safe()
    assert sys.stdin.readline() == "a\udcff\n"


def test_a_stop_does_not_wait_for_the_threads_of_a_library():
    """As of a download with several files: Python's shutdown would wait for all of them."""
    done = run_python("import time\nfrom concurrent.futures import ThreadPoolExecutor\n"
                      "from gpt.common.ending import guard\nfrom gpt.common.ending import in_thread\n"
                      "def work():\n"
                      "    with ThreadPoolExecutor() as pool:\n"
                      "        list(pool.map(lambda seconds: print('waited', time.sleep(seconds)), [3.0] * 2))\n"
                      "def look():\n    raise KeyboardInterrupt\n"
                      "guard(lambda argv: in_thread(work, look))\n")
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
