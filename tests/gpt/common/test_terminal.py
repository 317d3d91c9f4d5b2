"""Terminals: how wide they are, and which of them is a notebook's cell."""

import io

import pytest

from gpt.common.terminal import NOTEBOOK_VARIABLES, columns_of, folded, in_notebook
from tests.helpers.terminals import terminal as open_terminal


def test_a_pipe_has_no_width_and_a_terminal_its_own(monkeypatch):
    assert columns_of(None) is None
    assert columns_of(io.StringIO()) is None
    for columns in (80, 133, 0):
        with open_terminal(columns, monkeypatch) as opened:
            assert columns_of(opened.stream) == (columns or 80)
            opened.close()


def test_on_a_terminal_lines_break_between_words_but_no_command_does(monkeypatch):
    command = "python train.py --a b \\\n    --file 'a long name'"
    text = (f"error: no such file. Run: {command}\n  | one two three four\ndisk        6 MiB at most\n"
            "Copy it: cp a/tokenizer.json b c\nagain\nhf download a/b --local-dir FOLDER\n"
            "cat corpus.txt | tr -d '\\r' > b.txt")
    assert folded(text, io.StringIO()) == text
    with open_terminal(18, monkeypatch) as opened:
        lines = folded(text, opened.stream).split("\n")
        opened.close()
    assert lines[-5:] == ["Copy it:", "cp a/tokenizer.json b c", "again", "hf download a/b --local-dir FOLDER",
                          "cat corpus.txt | tr -d '\\r' > b.txt"]
    assert lines[:-5] == ["error: no such", "file. Run:", *command.split("\n"), "  | one two three", "  | four",
                     "disk        6 MiB", " " * 12 + "at", " " * 12 + "most"]


def test_a_name_of_a_figure_stays_beside_its_value(monkeypatch):
    text = "step 10 | val loss 3.25 | bits per byte 1.9 | best"
    with open_terminal(30, monkeypatch) as opened:
        lines = folded(text, opened.stream).split("\n")
        long = folded("a long sentence of 29 letters | x 1", opened.stream).split("\n")
        opened.close()
    assert lines == ["step 10 | val loss 3.25 |", "bits per byte 1.9 | best"]
    assert max(map(len, long)) <= 30


@pytest.mark.parametrize("name", [*NOTEBOOK_VARIABLES, "MPLBACKEND"])
def test_a_notebook_is_recognized_by_what_its_kernel_sets(name, monkeypatch):
    for other in (*NOTEBOOK_VARIABLES, "MPLBACKEND"):
        monkeypatch.delenv(other, raising=False)
    assert not in_notebook()
    monkeypatch.setenv(name, "module://matplotlib_inline.backend_inline")
    assert in_notebook()
