"""workers.py: results come in order, errors come through, and no process outlives its work."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from gpt.common.ending import in_thread
from gpt.common.errors import Exit, UserError
from gpt.common.signals import Signals, Stopped
from gpt.pretokenization import workers
from gpt.pretokenization.workers import START_METHOD, in_child, results_of
from tests.helpers.commands import ROOT
from tests.helpers.refusals import refused


class PanicException(BaseException):
    """A panic of a Rust library, by its name."""


def do(task):
    """Answers a number with its square; words make it do what they say."""
    if isinstance(task, tuple):
        what, value = task
        if what == "sleep":
            time.sleep(value)
        if what == "end all":  # as a signal to the process group
            os.kill(os.getppid(), value)
            os.kill(os.getpid(), value)
        if what == "die":
            os.kill(os.getpid(), value)
        if what == "raise":
            raise value
        if what == "refuse":
            raise UserError(Exit.DATA, value)
        if what == "big":
            return b"y" * len(value)
        return os.getpid()
    return task**2


@pytest.mark.parametrize("number", [1, 2, 3])
def test_results_come_in_the_order_of_the_tasks(number):
    tasks = [("sleep", 0.05), *range(50), ("sleep", 0.05), *range(50)]
    returned = list(results_of(number, do, tasks, Signals(), lambda task: task in (3, 4, 5)))
    assert [task for task, _ in returned] == tasks
    assert [result for task, result in returned if isinstance(task, int)] == [
        n**2 for n in [*range(50), *range(50)]]


def test_large_tasks_with_large_results_never_block_each_other():
    large = b"x" * 3_000_000
    returned = list(results_of(2, do, [("big", large)] * 12, Signals(), lambda _: True))
    assert [result for _, result in returned] == [b"y" * len(large)] * 12


@pytest.mark.parametrize("number", [1, 2])
def test_an_error_of_the_user_comes_through_with_its_code(number):
    with refused("no tokenizer", Exit.DATA):
        list(results_of(number, do, [("refuse", "no tokenizer")], Signals()))


@pytest.mark.parametrize(("error", "code", "words"), [
    (MemoryError(), Exit.MACHINE, "MemoryError"), (PanicException("Onig"), Exit.DATA, "Onig"),
    (OSError(5, "Input/output error"), Exit.MACHINE, "Input/output")])
def test_what_the_machine_lacks_is_said_by_its_code(error, code, words):
    with refused(words, code):
        list(results_of(2, do, [("raise", error)], Signals()))


def test_a_bug_comes_through_with_its_traceback():
    with pytest.raises(RuntimeError, match="Error: oh") as caught:
        list(results_of(2, do, [("raise", ZeroDivisionError("oh"))], Signals()))
    assert "in do" in str(caught.value)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        in_child(Signals(), divmod, 1, 0)


@pytest.mark.parametrize("task", [("die", signal.SIGKILL), ("die", signal.SIGTERM)])
@pytest.mark.parametrize("before", [0, 5])
def test_a_worker_that_dies_is_said_with_the_advice(task, before):
    with refused(rf"exit -{task[1]:d};.*--num_workers", Exit.MACHINE):
        list(results_of(2, do, [*range(before), task, *range(20)], Signals()))


def test_a_worker_that_a_signal_to_all_ended_is_no_failure():
    with Signals() as signals, pytest.raises(Stopped):
        list(results_of(2, do, [("end all", signal.SIGTERM), *range(20)], signals))
    assert signals.name == "SIGTERM"


def test_no_more_processes_begin_than_the_system_can_wait_for(monkeypatch):
    monkeypatch.setattr(workers, "MAX_PROCESSES", 2)
    assert len({pid for _, pid in results_of(5, do, [("pid", 0)] * 40, Signals())}) == 2


@pytest.mark.parametrize("number", [1, 2])
def test_a_signal_ends_the_wait_for_results(number):
    with Signals() as signals:
        began, results = time.monotonic(), results_of(number, do, [1, *[("sleep", 0.5)] * 60], signals)
        next(results)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped):
            list(results)
        assert time.monotonic() - began < 5
    assert signals.name == "SIGTERM"


def test_workers_end_with_the_process_that_began_them():
    ours, theirs = multiprocessing.Pipe()
    parent = multiprocessing.get_context(START_METHOD).Process(target=begin_and_wait, args=(theirs,))
    parent.start()
    children = ours.recv()
    parent.kill()
    parent.join()
    until = time.monotonic() + 10
    while any(map(alive, children)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(alive, children))


def begin_and_wait(pipe) -> None:
    results = results_of(3, do, range(10), Signals())
    next(results)
    pipe.send([process.pid for process in multiprocessing.active_children()])
    time.sleep(60)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_child_gives_its_answer_its_error_or_its_death():
    signals = Signals()
    assert in_child(signals, divmod, 9, 4) == (2, 1)
    assert len(in_child(signals, bytes, 5_000_000)) == 5_000_000
    with refused(r"exit -9;", Exit.MACHINE):
        in_child(signals, signal.raise_signal, signal.SIGKILL)


def test_a_signal_ends_the_wait_for_a_child_and_for_a_thread():
    ended = threading.Event()
    for wait in (lambda signals: in_child(signals, time.sleep, 60),
                 lambda signals: in_thread(ended.wait, signals.raise_if_stopped)):
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(Stopped):
                wait(signals)
    ended.set()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_spawned_write_the_same_files(tmp_path, method):
    (tmp_path / "sitecustomize.py").write_text(
        "import multiprocessing\n"
        "get = multiprocessing.get_context\n"
        f"multiprocessing.get_context = lambda method=None: get('{method}' if method == 'fork' else method)\n")
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{number} bottles of beer on the wall, {number} bottles of beer.\n\n\n"
                            for number in range(40_000)), encoding="utf-8")
    outputs = []
    for folder, more in (("one", {}), ("two", {"PYTHONPATH": str(tmp_path)})):
        words = [sys.executable, str(ROOT / "pretokenize.py"), str(text), "--output_dir", str(tmp_path / folder),
                 "--vocab_size", "300", "--num_workers", "2"]
        done = subprocess.run(words, env={**os.environ, **more}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outputs.append([(tmp_path / folder / name).read_bytes() for name in ("train.bin", "val.bin", "tokenizer.json")])
    assert outputs[0] == outputs[1]
