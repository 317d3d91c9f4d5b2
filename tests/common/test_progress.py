"""Progress: whole lines in a pipe, a bar on a terminal, and a heartbeat that is never silent for long."""

import contextlib
import io
import threading

from common.progress import Progress


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
    out.bar(10, 0, "step")
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


def test_after_an_inner_phase_the_heartbeat_says_the_outer_one_again():
    pipe = Pipe()
    out = Progress(pipe, heartbeat_seconds=0.02)
    with out.phase("training"):
        for expected in ("training", "saving", "training"):
            inner = out.phase("saving") if expected == "saving" else contextlib.nullcontext()
            with inner:
                seen = len(pipe.flushed)
                while f"... {expected}, " not in pipe.flushed[seen:]:
                    pipe.heard.clear()
                    assert pipe.heard.wait(10)
    out.close()


def test_a_reader_that_goes_away_ends_the_printing_not_the_work():
    pipe = Pipe()
    out = Progress(pipe)
    pipe.close()
    for _ in range(3):
        out.say("nobody hears this")
    out.at(1, "nor this")
    out.close()


def test_on_a_terminal_there_is_a_bar_and_lines_go_above_it():
    pipe = Pipe()
    pipe.isatty = lambda: True  # type: ignore[method-assign]
    out = Progress(pipe)
    out.bar(10, 2, "step")
    out.at(5, "loss 3.2")
    out.say("validation")
    out.close()
    assert "50%" in pipe.getvalue()
    assert "loss 3.2" in pipe.getvalue()
    assert "validation\n" in pipe.getvalue()
