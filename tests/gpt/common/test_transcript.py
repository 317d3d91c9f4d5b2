"""The transcript: whole lines of both streams, whatever becomes of disk and terminal."""

import io
import logging
import sys

import pytest

from gpt.common.errors import Exit, UserError
from gpt.common.progress import Progress
from gpt.common.transcript import Transcript
from tests.helpers.terminals import terminal


def test_it_has_what_was_printed_before_and_after_it_begins_on_both_streams(tmp_path, capsys):
    path = tmp_path / "log.txt"
    with Transcript() as transcript:
        print("the plan")
        print("warning: slow", file=sys.stderr)
        print("half a line, ", end="")
        transcript.begin(path, "==== now", appends=False)
        print("and its end")
        assert path.read_text() == "==== now\nthe plan\nwarning: slow\nhalf a line, and its end\n", "at once"
    print("after it")
    assert path.read_text().endswith("and its end\n")
    captured = capsys.readouterr()
    assert captured.out == "the plan\nhalf a line, and its end\nafter it\n"
    assert captured.err == "warning: slow\n"


def test_a_bar_leaves_its_lines_and_none_of_its_redraws(tmp_path, monkeypatch):
    path = tmp_path / "log.txt"
    with terminal(70, monkeypatch) as shown:
        monkeypatch.setattr(sys, "stdout", shown.stream)
        with Transcript() as transcript:
            progress = Progress(transcript=transcript)
            progress.keep_in(path, "====", appends=False)
            assert progress.on_terminal
            progress.bar(3, 0)
            progress.at(1, "step 1/3 | loss 2", ["step 1/3", "loss 2"])
            progress.say("validation")
            progress.at(2, "step 2/3 | loss 1", ["step 2/3", "loss 1"])
            progress.close()
        assert "\r" in shown.close()
    assert path.read_text() == "====\nstep 1/3 | loss 2\nvalidation\nstep 2/3 | loss 1\n"


def test_it_goes_on_where_the_reader_of_a_stream_has_gone_away(tmp_path, monkeypatch):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    with Transcript() as transcript:
        transcript.begin(tmp_path / "log.txt", "====", appends=False)
        print("nobody reads")
        print("this")
    assert (tmp_path / "log.txt").read_text() == "====\nnobody reads\nthis\n"


def test_a_full_disk_costs_lines_and_one_warning(tmp_path, capsys):
    path = tmp_path / "log.txt"
    with Transcript() as transcript:
        transcript.begin(path, "====", appends=False)
        path.unlink()
        path.mkdir()
        print("one")
        print("two")
        path.rmdir()
        print("three")
    assert path.read_text() == "three\n"
    captured = capsys.readouterr()
    assert captured.out == "one\ntwo\nthree\n"
    assert captured.err == "warning: log.txt: Is a directory; lines are lost\n"


def test_it_has_the_error_that_ends_the_command_and_the_traceback_of_a_bug(tmp_path):
    path = tmp_path / "log.txt"

    def end_with(error: Exception, appends: bool) -> None:
        with Transcript() as transcript:
            transcript.begin(path, "====", appends)
            raise error

    with pytest.raises(UserError):
        end_with(UserError(Exit.DIVERGED, "the loss is not finite. Halve it."), appends=False)
    with pytest.raises(ZeroDivisionError):
        end_with(ZeroDivisionError("division by zero"), appends=True)
    lines = path.read_text().splitlines()
    assert lines[1] == "error: the loss is not finite. Halve it."
    assert lines[3].startswith("Traceback")
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_a_logging_handler_that_computes_its_stream_is_left_alone(tmp_path):
    """As the handler of the package dill: its stream is a property that cannot be set."""
    logger = logging.getLogger("another library of a test")
    logger.addHandler(logging._StderrHandler())  # type: ignore[attr-defined]
    with Transcript() as transcript:
        transcript.begin(tmp_path / "log.txt", "====", appends=False)
        logger.warning("heard")
    assert (tmp_path / "log.txt").read_text() == "====\nheard\n"
