"""Signals: the first is remembered, the second leaves at once, and what nohup ignores stays ignored."""

import os
import signal

import pytest

from tests.helpers.commands import run_python


def test_a_second_signal_leaves_at_once():
    done = run_python("import os, signal, time\nfrom gpt.common.signals import Signals\nwith Signals():\n"
                      "    os.kill(os.getpid(), signal.SIGINT)\n    os.kill(os.getpid(), signal.SIGTERM)\n"
                      "    time.sleep(60)  # the thread that takes them may be the later one\n")
    assert done.returncode == 128 + signal.SIGTERM


def test_while_nothing_can_be_lost_the_first_signal_leaves_at_once_and_says_so():
    done = run_python("import os, signal, time\nfrom gpt.common.signals import Signals\nwith Signals() as signals:\n"
                      "    signals.at_once = 'before the first step'\n"
                      "    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(60)")
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == "stopped by SIGTERM before the first step\n"


@pytest.mark.skipif(os.name != "posix", reason="no SIGUSR2")
def test_the_signal_of_batch_systems_before_a_kill_stops_a_command_as_ctrl_c_does():
    done = run_python("import os, signal\nfrom gpt.common.signals import Signals\nwith Signals() as signals:\n"
                      "    os.kill(os.getpid(), signal.SIGUSR2)\n    print(signals.name)")
    assert done.stdout == "SIGUSR2\n"


@pytest.mark.skipif(os.name != "posix", reason="no SIGHUP")
def test_what_nohup_ignores_stays_ignored():
    done = run_python("import os, signal\nfrom gpt.common.signals import Signals\n"
                      "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nwith Signals() as signals:\n"
                      "    os.kill(os.getpid(), signal.SIGHUP)\n    print(signals.number)\n"
                      "    os.kill(os.getpid(), signal.SIGINT)\n    print(signals.name)")
    assert done.stdout == "None\nCtrl-C\n"


PROMISE = ("import os, signal, sys, time\nfrom gpt.common.signals import Signals\n"
           "def wait(seconds=60):\n    sys.stderr.flush()\n    time.sleep(seconds)\n"
           "with Signals() as signals:\n"
           "    signals.on_stop(lambda: 'stopping after step 3', lambda: ('the 2 steps since a', 'a'))\n")


@pytest.mark.skipif(os.name != "posix", reason="Windows answers between two operations of Python")
def test_a_signal_is_answered_by_a_busy_process_and_a_second_names_the_loss():
    busy = PROMISE + "    os.kill(os.getpid(), signal.SIGINT)\n    os.system('sleep 0.5')\n    print(signals.name)\n"
    done = run_python(busy + "    os.kill(os.getpid(), signal.SIGTERM)\n    wait()")
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == (
        "Ctrl-C: stopping after step 3. Ctrl-C now ends it at once and loses the 2 steps since a.\n"
        "SIGTERM: ended at once. Lost: the 2 steps since a. Safe: a.\n")


def test_a_terminal_that_stands_still_does_not_hold_the_second_signal():
    """What tells never returns, as a write to a terminal after Ctrl-S."""
    done = run_python("import os, signal, time\nfrom gpt.common.signals import Signals\n"
                      "with Signals(lambda line: time.sleep(60)) as signals:\n"
                      "    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(0.1)\n"
                      "    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(60)")
    assert done.returncode == 128 + signal.SIGINT


@pytest.mark.skipif(os.name != "posix", reason="no SIGHUP")
def test_the_signals_of_a_notebooks_stop_button_are_one():
    """IPython sends Ctrl-C, 0.2 s later SIGHUP and SIGINT; a run that saves fast enough is not cut off by them."""
    signals = ("    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(0.1)\n    os.kill(os.getpid(), signal.SIGHUP)\n"
               "    time.sleep(0.2)\n    print('saved')\n")
    done = run_python(PROMISE + signals, JPY_PARENT_PID="1")
    assert (done.returncode, done.stdout) == (0, "saved\n")
    assert run_python(PROMISE + signals + "    time.sleep(1)\n    os.kill(os.getpid(), signal.SIGINT)\n    wait()",
                      JPY_PARENT_PID="1").returncode == 128 + signal.SIGINT


@pytest.mark.skipif(os.name != "posix", reason="Windows ends the process")
def test_a_first_model_saves_though_its_parent_hands_it_the_signal_of_all_processes_again():
    twice = "    for _ in range(2):\n        os.kill(os.getpid(), signal.SIGTERM)\n        time.sleep(0.3)\n"
    done = run_python(PROMISE + twice + "    print('saved')", TRAINS_NEXT="train.py")
    assert (done.returncode, done.stdout) == (0, "saved\n")
    assert run_python(PROMISE + twice + "    print('saved')").returncode == 128 + signal.SIGTERM


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_that_lives_on_does_not_keep_the_command_waiting():
    done = run_python("import os, time\nfrom gpt.common.signals import Signals\nwith Signals():\n"
                      "    child = os.fork() or time.sleep(10) or os.write(1, b'waited') and os._exit(0)\n"
                      "os.kill(child, 9)\nprint('went on')")
    assert done.stdout == "went on\n", done.stderr
