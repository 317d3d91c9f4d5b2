"""Terminals: how wide they are, what fits, and which of them is a notebook's cell."""

import io

import pytest

from common.terminal import NOTEBOOK_VARIABLES, columns_of, fit, in_notebook, wrap
from tests.helpers.terminals import terminal as open_terminal


def test_as_many_fields_as_fit_are_shown_each_whole():
    fields = ["12 s left", "loss 3.4127", "667,379 tok/s", "mfu 48.2%"]
    assert fit(fields, None) == "12 s left | loss 3.4127 | 667,379 tok/s | mfu 48.2%"
    assert fit(fields, 51) == fit(fields, None)
    assert fit(fields, 39) == "12 s left | loss 3.4127 | 667,379 tok/s"
    assert fit(fields, 36) == "12 s left | loss 3.4127", "no less important one instead"
    assert fit(fields, 8) == "12 s ..."
    assert fit([], 8) == ""


def test_a_line_with_a_label_is_broken_between_words_and_a_command_never():
    plan = "attention   matrix products in blocks, faster than the fused kernel on a CPU in bf16"
    assert wrap(plan, 60) == ("attention   matrix products in blocks, faster than the fused\n"
                              "            kernel on a CPU in bf16")
    for line in ("next: python train.py --data_dir data --output_dir out --model_size mini",
                 "stopped by SIGINT; to continue: python train.py --resume_from auto --model_size mini"):
        assert wrap(line, 60) == line
    assert wrap(plan, None) == wrap(plan, 200) == plan


def test_other_lines_are_broken_between_words():
    assert wrap("validation at step 20 | loss 5.0061 | perplexity 149.32 | best so far", 50) == (
        "validation at step 20 | loss 5.0061 | perplexity\n  149.32 | best so far")
    assert wrap("warning: the corpus is small for the model and read 10.0 times", 50) == (
        "warning: the corpus is small for the model and\n  read 10.0 times")
    assert wrap("sample\n  | " + "to be " * 20 + "\ndisk: " + "for all " * 8, 50) == (
        "sample\n  | " + "to be " * 20 + "\ndisk: " + "for all " * 5 + "for\n  all for all for all")


def test_a_pipe_has_no_width_and_a_terminal_its_own(monkeypatch):
    assert columns_of(None) is None
    assert columns_of(io.StringIO()) is None
    for columns in (80, 133, 0):
        with open_terminal(columns, monkeypatch) as opened:
            assert columns_of(opened.stream) == (columns or 80)
            monkeypatch.setenv("COLUMNS", "100")
            assert columns_of(opened.stream) == 100
            opened.close()


@pytest.mark.parametrize("name", [*NOTEBOOK_VARIABLES, "MPLBACKEND"])
def test_a_notebook_is_recognized_by_what_its_kernel_sets(name, monkeypatch):
    for other in (*NOTEBOOK_VARIABLES, "MPLBACKEND"):
        monkeypatch.delenv(other, raising=False)
    assert not in_notebook()
    monkeypatch.setenv(name, "module://matplotlib_inline.backend_inline")
    assert in_notebook()
