"""Signals: the first is remembered, the second leaves at once, and what nohup ignores stays ignored."""

import os
import signal

import pytest

from common.signals import Signals
from tests.helpers.commands import run_python


def test_the_first_signal_is_remembered_and_the_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        assert (signals.number, signals.name) == (None, "")
        os.kill(os.getpid(), signal.SIGTERM)
        assert (signals.number, signals.name) == (signal.SIGTERM, "SIGTERM")
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_signal_leaves_at_once():
    done = run_python("import os, signal, time\nfrom common.signals import Signals\nwith Signals():\n"
                      "    os.kill(os.getpid(), signal.SIGINT)\n    os.kill(os.getpid(), signal.SIGTERM)\n"
                      "    time.sleep(60)  # the thread that takes them may be the later one\n")
    assert done.returncode == 128 + signal.SIGTERM


def test_while_nothing_can_be_lost_the_first_signal_leaves_at_once_and_says_so():
    done = run_python("import os, signal, time\nfrom common.signals import Signals\nwith Signals() as signals:\n"
                      "    signals.at_once = 'before the first step'\n"
                      "    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(60)")
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == "stopped by SIGTERM before the first step\n"


@pytest.mark.skipif(os.name != "posix", reason="no SIGHUP")
def test_what_nohup_ignores_stays_ignored():
    done = run_python("import os, signal\nfrom common.signals import Signals\n"
                      "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nwith Signals() as signals:\n"
                      "    os.kill(os.getpid(), signal.SIGHUP)\n    print(signals.number)\n"
                      "    os.kill(os.getpid(), signal.SIGINT)\n    print(signals.name)")
    assert done.stdout == "None\nSIGINT\n"
