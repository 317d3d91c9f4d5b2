"""Progress: whole lines in a pipe, a bar on a terminal, a heartbeat that is never silent for long, and log.txt."""

import io
import re
import sys
import threading
from pathlib import Path

import pytest

from gpt.common import progress
from gpt.common.errors import Exit, UserError, warn
from gpt.common.progress import Meter, Progress
from tests.helpers.terminals import FullDisk, drawn, terminal

STEP = {"step": "step 1,200/795,075", "left": "10 h 50 min left", "loss": "loss 3.4127", "speed": "667,379 tok/s",
        "mfu": "mfu 48.2%", "memory": "15.2 GiB", "epoch": "epoch 1/10", "lr": "lr 1.00e-03", "norm": "norm 0.41",
        "time": "49.1 ms"}
LINE = " | ".join(STEP.values())


def print_figures(log: Path | None = None) -> None:
    with Progress(FullDisk()) as out:
        if log:
            out.write_log(log, "train.py", 0, appends=False)
        out.say("figures")
        out.say("more")


def test_lines_that_a_full_disk_loses_end_a_command_without_a_log_with_exit_5(tmp_path):
    with pytest.raises(UserError, match="standard output: No space left") as caught:
        print_figures()
    assert caught.value.code == Exit.MACHINE
    print_figures(tmp_path / "log.txt")
    assert "figures" in (tmp_path / "log.txt").read_text()


def test_the_stream_that_was_full_is_named(monkeypatch):
    monkeypatch.setattr("sys.stderr", FullDisk())
    with pytest.raises(UserError, match="standard error: No space left"), Progress(sys.stderr) as out:
        out.say("figures")


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
    out.bar(10, 0)
    out.move_to(1)
    out.move_to(2, "step 2/10")
    out.say("one\ntwo")
    assert pipe.flushed == "step 2/10\none\ntwo\n"
    out.close()
    assert pipe.flushed == "step 2/10\none\ntwo\n"


def test_the_heartbeat_says_what_is_waited_for_and_is_silent_otherwise(monkeypatch):
    pipe = Pipe()
    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.02)
    out = Progress(pipe)
    assert not pipe.heard.wait(0.1), "nothing is being done"
    with out.phase("compiling"):
        assert pipe.heard.wait(10)
    out.close()
    assert set(pipe.flushed.splitlines()) == {"... compiling, 0 s"}


def test_a_reader_that_goes_away_ends_the_printing_not_the_work():
    pipe = Pipe()
    out = Progress(pipe)
    pipe.close()
    for _ in range(3):
        out.say("nobody hears this")
    out.move_to(1, "nor this")
    out.close()


def show_steps(columns: int, monkeypatch, in_notebook: bool = False) -> list[str]:
    """Half a bar, a line above it, and a heartbeat, as they were drawn."""
    with terminal(columns, monkeypatch, in_notebook) as opened:
        out = Progress(opened.stream)
        out.bar(10, 2)
        out.move_to(5, LINE, list(STEP.values()))
        assert out._last_printed > out._phase_began, "the heartbeat would speak"
        out.say("validation")
        out.begin_phase("saving")
        out._say_phase(0.0)
        out.close()
        return drawn(opened.close())


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_on_a_terminal_of_any_width_the_bar_shows_the_time_left_first(columns, monkeypatch):
    lines = show_steps(columns, monkeypatch)
    assert "validation" in lines
    shown = [line for line in lines if re.match(r" 50%.{12} 10 h 50 min left \| loss", line)]
    assert shown
    assert all(STEP["norm"] in line for line in shown) == (columns == 200)
    assert {field for line in shown for field in line[17:].rstrip().split(" | ")} <= {*STEP.values()}, "a cut field"
    assert any(re.search(r"\.\.\. saving, .* \| 10 h 50 min left", line) for line in lines)
    assert all(len(line.rstrip()) < columns for line in lines)


def test_a_bar_begun_anew_counts_to_its_new_end(monkeypatch):
    with terminal(80, monkeypatch) as opened:
        out = Progress(opened.stream)
        for total in (10, 6):
            out.bar(total, 2)
            out.move_to(3, LINE, list(STEP.values()))
            out.say("a line above the bar")
        out.close()
        assert [line[:4] for line in drawn(opened.close()) if "left" in line][-1] == " 50%"


@pytest.mark.parametrize(("columns", "in_notebook"), [(60, True), (59, False)])
def test_a_notebook_and_a_very_narrow_terminal_get_whole_lines(columns, in_notebook, monkeypatch):
    text = " ".join(show_steps(columns, monkeypatch, in_notebook))
    assert text.startswith(f"{LINE} validation ... saving, ")


@pytest.mark.parametrize("rows", [24, 0])  # a container's terminal may report no height
def test_bytes_done_move_a_bar_on_a_terminal(rows, monkeypatch):
    monkeypatch.setattr("gpt.common.progress.BAR_SECONDS", 0.0)
    with terminal(80, monkeypatch, rows=rows) as opened:
        out = Progress(opened.stream)
        Meter(out, "encoding", 4_000_000).move_to(1_000_000)
        out.say("a line above the bar")
        out.close()
        assert any(re.match(r" 25%\|.{10}\| 0 s left \| \d.* MB/s \| encoding 1\.0 of 4\.0 MB", line)
                   for line in drawn(opened.close()))


def run_until(error: Exception, path: Path, command: str, step: int) -> None:
    """A command that prints on both streams, before and after it knows its folder, and ends with an error."""
    with Progress(io.StringIO()) as out:
        out.say("the plan")
        out.warn("slow")
        out.write_log(path, command, step, appends=step > 0)
        out.stream.close()  # the reader of stdout goes away
        out.say("a step")
        warn("one file is damaged")
        assert path.read_text().endswith(
            f": {command}\nthe plan\nwarning: slow\na step\nwarning: one file is damaged\n")
        raise error


def test_log_txt_has_every_line_of_each_start_and_the_error_that_ended_it(tmp_path):
    path = tmp_path / "log.txt"
    with pytest.raises(UserError):
        run_until(UserError(Exit.DIVERGED, "the loss is not finite"), path, "train.py --use_gpu", 0)
    with pytest.raises(ZeroDivisionError):
        run_until(ZeroDivisionError("division by zero"), path, "train.py --resume_from auto", 1)
    lines = path.read_text().splitlines()
    assert lines[0].endswith("from the beginning: train.py --use_gpu")
    assert lines[5] == "error: the loss is not finite"
    assert lines[6].endswith("resumed after step 1: train.py --resume_from auto")
    assert lines[11].startswith("Traceback")
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_log_txt_has_the_lines_of_a_bar_and_none_of_its_redraws(tmp_path, monkeypatch):
    path = tmp_path / "log.txt"
    with terminal(70, monkeypatch) as opened, Progress(opened.stream) as out:
        out.write_log(path, "train.py", 0, appends=False)
        out.bar(3, 0)
        out.move_to(1, "step 1/3 | loss 2", ["step 1/3", "loss 2"])
        out.say("validation " * 10)
        out.move_to(2, "step 2/3 | loss 1", ["step 2/3", "loss 1"])
        out.end_bar()
        assert "\r" in opened.close()
    assert path.read_text().splitlines()[1:] == ["step 1/3 | loss 2", "validation " * 10, "step 2/3 | loss 1"]


def test_log_txt_is_never_written_through_a_link_and_lines_lost_cost_one_warning(tmp_path, capsys):
    path = tmp_path / "log.txt"
    target = tmp_path / "of somebody else"
    target.write_text("as before")
    path.symlink_to(target)
    with Progress() as out:
        out.write_log(path, "train.py", 0, appends=False)
        out.say("one")
        path.unlink()
        path.mkdir()
        out.say("two")
        path.rmdir()
        out.say("three")
    assert target.read_text() == "as before"
    assert path.read_text() == "three\n"
    captured = capsys.readouterr()
    assert captured.out == "one\ntwo\nthree\n"
    assert captured.err == "warning: log.txt: it is a symbolic link; lines are lost\n"
