"""Children: one that hangs is ended with what it has started, and one that fails says why in a line."""

import json
import time

import pytest

from benchmarks.ladder import Children, problem_of
from common.children import Answer
from common.errors import UserError
from common.signals import Signals
from tests.helpers.bench import Imagined


def test_a_process_that_hangs_is_ended_with_its_children(tmp_path):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    started = time.monotonic()
    assert problem_of(Children(Signals(), 0.5, tmp_path).run(["-c", code], "cache")) == "not done in time"
    assert time.monotonic() - started < 10


def test_a_signal_asks_the_process_that_runs_to_stop(tmp_path, monkeypatch):
    class Heard(Signals):
        """A signal comes once the child is ready."""

        at_once = ""
        number = property(lambda _: 15 if (tmp_path / "ready").exists() else None)  # type: ignore[assignment]

    monkeypatch.chdir(tmp_path)
    code = ("import signal, sys, time\nsignal.signal(15, lambda *_: (open('saved', 'w').close(), sys.exit()))\n"
            "open('ready', 'w').close()\ntime.sleep(60)")
    with pytest.raises(SystemExit) as caught:
        Children(Heard.__new__(Heard), 60, tmp_path).run(["-c", code], grace_seconds=30)
    assert caught.value.code == 143
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize(("code", "stderr", "problem"), [
    (0, "warning: x", ""), (5, "warning: a\nerror: out of luck. Try again.\nlater", "out of luck. Try again."),
    (-9, "warning: why", "killed by signal 9"), (1, "first\n\nlast\x1b\n", "last\\x1b"), (3, "", "exit code 3"),
    (None, "", "not done in time")])
def test_the_problem_of_a_process_is_its_error_in_a_line(code, stderr, problem):
    assert problem_of(Answer(code, "", stderr)) == problem


def test_a_child_is_asked_in_json_and_its_problem_is_an_error(tmp_path):
    def answer(words):
        assert words[1:] == ["prepare", json.dumps({"folder": "x"})]
        return Answer(0, "... a heartbeat\n{\"a\": 1}\n", "")

    assert Imagined(tmp_path, answer).ask("prepare", folder="x") == {"a": 1}
    for code, raised in ((5, 5), (3, 3), (1, 5)):
        with pytest.raises(UserError, match="no room") as caught:
            Imagined(tmp_path, lambda _, code=code: Answer(code, "", "error: no room")).ask("saving")
        assert caught.value.code == raised
