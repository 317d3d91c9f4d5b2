"""children.py: what lies in the current folder is no child's module, and how children end."""

import multiprocessing
import os
import sys

import pytest

from gpt.common import children
from gpt.common.signals import Signals
from tests.helpers.commands import run_python
from tests.helpers.poison import marks, poison


def ask_for_a_module(pipe):
    """In a child: where it is, and whether it can import what lies there."""
    try:
        import lying_about  # type: ignore[import-not-found]

        pipe.send((os.getcwd(), lying_about.__file__))
    except ImportError:
        pipe.send((os.getcwd(), None))


@pytest.fixture
def in_a_poisoned_folder(tmp_path, monkeypatch):
    if sys.version_info < (3, 11):
        pytest.skip("this Python has no such setting")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # as every command does
    monkeypatch.chdir(tmp_path)
    return poison(tmp_path)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_process_works_in_the_current_folder_and_imports_nothing_from_it(method, in_a_poisoned_folder, tmp_path):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip("needs POSIX")
    (tmp_path / "lying_about.py").touch()
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = children.start_process(context, ask_for_a_module, theirs)
    assert ours.recv() == (str(tmp_path), None)
    process.join()
    assert marks(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="no groups of processes")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ctrl_c_in_a_terminal_does_not_reach_a_child_that_is_still_starting(method):
    """It goes to the whole group of processes, and the child's Python would answer with a traceback."""
    done = run_python(f"import multiprocessing, os, signal, sys, time\nfrom gpt.common.children import start_process\n"
                      f"from gpt.common.signals import Signals\nos.setsid()\nwith Signals() as signals:\n"
                      f"    process = start_process(multiprocessing.get_context('{method}'), time.sleep, 0.3)\n"
                      f"    for _ in range(3):\n        os.killpg(0, signal.SIGINT) if not signals.number else None\n"
                      f"        time.sleep(0.02)\n    process.join()\n    print(signals.name, process.exitcode)")
    assert done.stdout == "Ctrl-C 0\n", done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="no signals")
def test_a_request_to_save_reaches_a_script_even_while_it_starts(tmp_path):
    (tmp_path / "a.py").write_text("import os, signal, time\nos.kill(os.getppid(), signal.SIGUSR1)\n"
                                   "while signal.SIGUSR1 not in signal.sigpending():\n    time.sleep(0.01)\n"
                                   "signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))\n"
                                   "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])\nsignal.pause()\n")
    with Signals(can_save=True) as signals:
        returncode = children.run_child([sys.executable, str(tmp_path / "a.py")], signals, {})
        assert not signals.asks_to_save
    assert returncode == 7


def test_a_script_that_the_system_kills_is_told_with_the_shells_exit_code(tmp_path, capsys):
    (tmp_path / "a.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    with Signals() as signals:
        returncode = children.run_child([sys.executable, str(tmp_path / "a.py")], signals, {})
    assert returncode == 137
    assert "a.py was killed by SIGKILL" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="no fork")
def test_ending_a_child_that_has_just_been_forked_is_no_signal_to_its_parent():
    done = run_python("import multiprocessing, time\nfrom gpt.common.children import start_process\n"
                      "from gpt.common.signals import Signals\nwith Signals() as signals:\n"
                      "    for _ in range(100):\n"
                      "        process = start_process(multiprocessing.get_context('fork'), time.sleep, 60)\n"
                      "        process.terminate()\n        process.join()\n"
                      "    print(repr(signals.name), process.exitcode)")
    assert done.stdout == "'' -15\n", done.stderr
