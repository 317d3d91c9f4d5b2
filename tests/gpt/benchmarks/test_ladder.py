"""The ladder: every rung keeps what the one below it brought, and a rung that computes something else is found."""

import io
import itertools
from dataclasses import replace
from subprocess import CompletedProcess

import pytest

import train
from gpt.benchmarks.ladder import (
    SHAPES,
    as_flags,
    ladder,
    loss_difference,
    problem_of,
    run_rung,
    time_ladder,
)
from gpt.common.errors import UserError
from tests.helpers.bench import CPU, GPU, leave_a_run, make_bench


@pytest.mark.parametrize("machine", [CPU, GPU])
def test_every_rung_is_understood_by_train_and_keeps_what_the_one_below_brought(machine):
    rungs = ladder(SHAPES["B"], machine)
    assert [rung.number for rung in rungs] == list(range(8))
    for rung in rungs:
        args = train.read_flags(as_flags(rung.flags))
        assert args.batch_size * args.gradient_accumulation_steps == 16
    for below, above in itertools.pairwise(rungs):
        assert set(above.naive) <= set(below.naive)
        assert (above.naive, above.flags) != (below.naive, below.flags)
    assert not rungs[-1].naive


def test_losses_that_are_not_numbers_are_never_the_same():
    assert loss_difference({1: 2.0, 2: 3.0}, {1: 2.0, 2: 3.3}) == pytest.approx(0.1 / 1.1)
    assert loss_difference({1: None}, {1: None}) == float("inf")
    assert loss_difference({1: 1.0}, {2: 1.0}) == float("inf")
    assert loss_difference({1: 1.0, 21: 9.0}, {1: 1.0, 21: 1.0}) == 0


def test_steps_of_the_warm_up_are_not_timed_and_the_output_is_deleted(tmp_path):
    bench = make_bench(tmp_path, leave_a_run)
    first = ladder(SHAPES["mini"], CPU)[0]
    timed = run_rung(bench, first)
    assert (timed["ms_median"], timed["tokens_per_second"], timed["peak_memory_bytes"]) == (500, 4096, 1_000_000)
    assert timed["losses"] == {1: 4.0, 2: 3.0, 3: 2.0}
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="no step was logged after the warm-up"):
        run_rung(replace(bench, warmup=3), first)


def test_a_failed_rung_says_why_and_the_others_go_on(tmp_path):
    def answer(words):
        if "naive" not in words:
            return CompletedProcess(words, -9, "", "warning: this is why")
        if "--use_amp" in words:
            return leave_a_run(words, complaint="warning: a\nerror: out of luck. Try again.\nlater", code=5)
        if "auto" in words:
            return leave_a_run(words, complaint="warning: torch.compile failed, running eagerly: x")
        return leave_a_run(words)

    out = io.StringIO()
    bench = make_bench(tmp_path, answer, out)
    assert not time_ladder(bench, None)
    said = {line.split()[0]: line for line in out.getvalue().splitlines() if line.startswith("   ")}
    assert said["0"].endswith("1.00x")
    assert said["1"].endswith("failed: torch.compile failed, running eagerly: x")
    assert said["2"].endswith("failed: exit code 5: error: out of luck. Try again.")
    assert said["6"].endswith("failed: exit code -9: warning: this is why")
    assert ["failed" in rung for rung in bench.figures["rungs"]][:3] == [False, True, True]


@pytest.mark.parametrize(("share", "wrong"), [(0.015, [4, 5, 6]), (0.005, [])])
def test_a_rung_that_computes_something_else_is_found_out(tmp_path, share, wrong):
    out = io.StringIO()
    bench = make_bench(tmp_path, lambda words: leave_a_run(words, lose=share * ("--compile" in words)), out)
    assert time_ladder(bench, None) == (not wrong)
    assert [rung["number"] for rung in bench.figures["rungs"] if rung.get("loss_ok") is False] == wrong
    assert out.getvalue().count("losses DIFFER, by 1.5e-02") == len(wrong)
    assert max(len(line) for line in out.getvalue().splitlines() if line.endswith("x")) <= 80


@pytest.mark.parametrize(("code", "stderr", "problem"), [
    (0, "warning: x", ""), (5, "warning: a\nerror: out of luck.\nlater", "exit code 5: error: out of luck."),
    (-9, "warning: why", "exit code -9: warning: why"), (1, "first\n\nlast\x1b\n", "exit code 1: last\\x1b"),
    (3, "", "exit code 3: ")])
def test_the_problem_of_a_process_is_its_exit_code_and_error(code, stderr, problem):
    assert problem_of(CompletedProcess([], code, "", stderr)) == problem
