"""Children: one that hangs is ended with what it has started, and one that fails says why in a line."""

import json
import time

import pytest

from benchmarks.children import Children, Ended
from common.errors import UserError
from common.signals import Signals, Stopped
from tests.helpers.bench import Imagined


def test_a_process_that_hangs_is_ended_with_its_children(tmp_path):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    started = time.monotonic()
    ended = Children(Signals(), 0.5, tmp_path).run(["-c", code], "cache")
    assert time.monotonic() - started < 10
    assert ended.problem == "not done within 0.00833 minutes"


def test_a_signal_ends_the_process_that_runs(tmp_path):
    signals = Signals()
    signals.number = 15
    with pytest.raises(Stopped):
        Children(signals, 60, tmp_path).run(["-c", "import time; time.sleep(60)"])


@pytest.mark.parametrize(("code", "stderr", "problem"), [
    (0, "warning: x", ""), (5, "warning: a\nerror: out of luck. Try again.\nlater", "out of luck. Try again."),
    (-9, "warning: why", "killed by signal 9"), (1, "first\n\nlast\x1b\n", "last\\x1b"), (3, "", "exit code 3")])
def test_the_problem_of_a_process_is_its_error_in_a_line(code, stderr, problem):
    assert Ended.of(code, "", stderr).problem == problem


def test_a_child_is_asked_in_json_and_its_problem_is_an_error(tmp_path):
    def answer(words):
        assert words[1:] == ["prepare", json.dumps({"folder": "x"})]
        return Ended.of(0, "... a heartbeat\n{\"a\": 1}\n", "")

    assert Imagined(tmp_path, answer).ask("prepare", folder="x") == {"a": 1}
    for code, raised in ((5, 5), (3, 3), (1, 5)):
        with pytest.raises(UserError, match="no room") as caught:
            Imagined(tmp_path, lambda _, code=code: Ended.of(code, "", "error: no room")).ask("saving")
        assert caught.value.code == raised
