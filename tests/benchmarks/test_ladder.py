"""The ladder: every rung keeps what the one below it brought, and a rung that computes something else is found."""

import itertools
from dataclasses import replace

import pytest

import train
from benchmarks.ladder import SHAPES, Figures, Result, RungFailed, ladder, loss_difference, run_rung
from benchmarks.processes import Ended
from tests.helpers.bench import CPU, GPU, SETTING, Imagined, leave_a_run


@pytest.mark.parametrize("machine", [CPU, GPU, replace(CPU, half="fp32", why_no_half="none", why_no_compile="x")])
def test_every_rung_is_understood_by_train_and_keeps_what_the_one_below_brought(machine):
    rungs = ladder(SHAPES["B"], machine, None)
    assert [rung.number for rung in rungs] == list(range(12))
    for rung in rungs:
        args = train.read_flags(rung.flags)
        assert args.batch_size * args.gradient_accumulation_steps == 16
    brought = [rung for rung in rungs if not rung.why_not]
    for below, above in itertools.pairwise(brought):
        assert set(above.naive) <= set(below.naive)
        assert (above.naive, above.flags) != (below.naive, below.flags) or above.number == 6
    assert not brought[-1].naive


def test_a_gpu_has_all_rungs_and_a_cpu_says_what_it_lacks():
    assert not [rung for rung in ladder(SHAPES["A"], GPU, None) if rung.why_not]
    on_cpu = ladder(SHAPES["mini"], CPU, None)
    assert [rung.number for rung in on_cpu if rung.why_not] == [2, 9, 10, 11]
    assert not ladder(SHAPES["mini"], CPU, True)[9].why_not
    assert ladder(SHAPES["mini"], GPU, False)[9].why_not


def test_losses_that_are_not_numbers_are_never_the_same():
    assert loss_difference({1: 2.0, 2: 3.0}, {1: 2.0, 2: 3.3}) == pytest.approx(0.1 / 1.1)
    assert loss_difference({1: None}, {1: None}) == float("inf")
    assert loss_difference({1: 1.0}, {2: 1.0}) == float("inf")
    assert loss_difference({1: 1.0, 21: 9.0}, {1: 1.0, 21: 1.0}) == 0


def test_figures_are_shares_of_what_the_machine_can_do():
    figures = Figures.of(replace(SETTING, machine=GPU), "bf16", [*[0.5] * 8, 1.0, 9.0])  # 2,048 tokens a step
    assert (figures.timed, figures.ms_median, figures.ms_p90) == (10, 500, 1000)
    assert figures.tokens_per_second == 4096
    assert figures.mfu == pytest.approx(4096 * 1e6 / 1e15)
    assert figures.share_of_matmul == pytest.approx(4096 * 1e6 / 2e12)
    assert Figures.of(SETTING, "tf32", [0.5]).mfu is None
    assert Figures.of(SETTING, "tf32", [0.5]).share_of_matmul is None


def test_steps_of_the_warm_up_are_not_timed_and_the_output_is_deleted(tmp_path):
    first = ladder(SHAPES["mini"], CPU, None)[0]
    run = run_rung(SETTING, first, Imagined(tmp_path, leave_a_run), "cache")
    assert run.figures.timed == 2
    assert run.losses == {1: 4.0, 2: 3.0, 3: 2.0}
    assert (run.attention, run.compile_seconds, run.peak_memory_bytes) == ("naive", None, 1_000_000)
    assert not list(tmp_path.iterdir())
    with pytest.raises(RungFailed, match="no step was logged after the warm-up"):
        run_rung(replace(SETTING, warmup=3), first, Imagined(tmp_path, leave_a_run), "cache")


@pytest.mark.parametrize("complaint", ["torch.compile failed, running eagerly: x", "out of memory in step 3: y"])
def test_a_run_that_went_on_as_another_rung_has_failed(tmp_path, complaint):
    rung = ladder(SHAPES["mini"], CPU, None)[5]
    children = Imagined(tmp_path, lambda words: leave_a_run(words, complaint=f"a\nwarning: {complaint}\n"))
    with pytest.raises(RungFailed, match=complaint):
        run_rung(SETTING, rung, children, "cache")


def test_the_json_of_a_rung_names_its_status_and_reason(tmp_path):
    rungs = ladder(SHAPES["mini"], CPU, None)
    assert Result(rungs[2], reason="needs a GPU").as_json([]) == {
        "rung": 2, "name": "TF32", "status": "skipped", "reason": "needs a GPU"}
    failed = Result(rungs[0], reason="out of luck").as_json(["--seed", "1"])
    assert failed["status"] == "failed"
    assert failed["reason"] == "out of luck"
    assert failed["flags"] == ["--seed", "1"]
    with pytest.raises(RungFailed, match="killed by signal 9"):
        run_rung(SETTING, rungs[0], Imagined(tmp_path, lambda _: Ended(-9, "", "warning: x")), "cache")
