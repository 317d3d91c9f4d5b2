"""The suite in the background: nohup and a shell's & ignore signals, which what the tests start must not inherit."""

import subprocess
import sys

import pytest

from tests.helpers.commands import ROOT

PRINTS = "import signal, subprocess, sys, tests.conftest; subprocess.run([sys.executable, '-c', sys.argv[1]])"
HANDLERS = "import signal; print(*(int(signal.getsignal(n) == signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGHUP)))"


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGHUP")
def test_what_the_tests_start_ignores_no_signal_where_the_suite_was_started_with_nohup():
    for words, ignored in (([HANDLERS], "1 1"), ([PRINTS, HANDLERS], "0 0")):
        done = subprocess.run(["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", sys.executable, "-c", *words], cwd=ROOT,
                              capture_output=True, text=True)
        assert done.stdout.strip() == ignored, done.stderr
