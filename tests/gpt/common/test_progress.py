"""Progress: whole lines in a pipe, a bar on a terminal, and a heartbeat that is never silent for long."""

import io
import re
import threading

import pytest

from gpt.common.progress import Meter, Progress
from tests.helpers.terminals import drawn, terminal

STEP = {"step": "step 1,200/795,075", "left": "10 h 50 min left", "loss": "loss 3.4127", "speed": "667,379 tok/s",
        "mfu": "mfu 48.2%", "memory": "15.2 GiB", "epoch": "epoch 1/10", "lr": "lr 1.00e-03", "norm": "norm 0.41",
        "time": "49.1 ms"}
LINE = " | ".join(STEP.values())


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


def test_a_reader_that_goes_away_ends_the_printing_not_the_work():
    pipe = Pipe()
    out = Progress(pipe)
    pipe.close()
    for _ in range(3):
        out.say("nobody hears this")
    out.at(1, "nor this")
    out.close()


def show_steps(columns: int, monkeypatch, in_notebook: bool = False) -> list[str]:
    """Half a bar, a line above it, and a heartbeat, as they were drawn."""
    with terminal(columns, monkeypatch, in_notebook) as opened:
        out = Progress(opened.stream)
        out.bar(10, 2)
        out.at(5, LINE, list(STEP.values()))
        assert out._last_printed > out._phase_began, "the heartbeat would speak"
        out.say("validation")
        out.now("saving")
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
    assert any(re.search(r"\.\.\. saving, .* \| 10 h 50 min left", line) for line in lines)
    assert all(len(line.rstrip()) < columns for line in lines)


@pytest.mark.parametrize(("columns", "in_notebook"), [(60, True), (59, False)])
def test_a_notebook_and_a_very_narrow_terminal_get_whole_lines(columns, in_notebook, monkeypatch):
    text = " ".join(show_steps(columns, monkeypatch, in_notebook))
    assert text.startswith(f"{LINE} validation ... saving, ")


def test_bytes_done_move_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setattr("gpt.common.progress.BAR_SECONDS", 0.0)
    with terminal(80, monkeypatch) as opened:
        out = Progress(opened.stream)
        Meter(out, "encoding", 4_000_000).at(1_000_000)
        out.say("a line above the bar")
        out.close()
        assert any(re.match(r" 25%\|.{10}\| 0 s left \| \d.* MB/s \| encoding 1\.0 of 4\.0 MB", line)
                   for line in drawn(opened.close()))
