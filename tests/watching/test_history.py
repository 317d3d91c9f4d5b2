"""history.py: what a metrics.jsonl holds, whatever its state; curves over steps, tokens and time; which tokens."""

import json

import pytest

from common.errors import Exit, UserError
from watching.history import Curve, LoggedRun, XAxis, have_other_tokens, numbers_of, read_lines, read_run


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


# ---------------------------------------------------------------- curves


def test_between_two_values_a_series_is_a_straight_line_that_begins_at_zero_and_is_prolonged():
    series = Curve([10, 20], [100.0, 400.0])
    assert [series.at(step) for step in (0, 5, 10, 15, 20, 30)] == [0.0, 50.0, 100.0, 250.0, 400.0, 700.0]
    assert Curve([0], [3.0]).at(5) == 3.0


# ---------------------------------------------------------------- a run


def test_speed_tokens_and_seconds_count_on_where_steps_were_skipped(tmp_path):
    run = read_run(write(
        tmp_path / "m.jsonl", {"step": 2, "tokens": 200, "seconds": 0.1}, {"step": 10, "tokens": 1000, "seconds": 0.2},
        {"step": 12, "tokens": 1400, "seconds": None}, {"step": 14, "tokens": 1800, "seconds": 0.5}))
    assert run["speed"].xs == run["seconds"].xs == [2, 10, 14]
    assert run["speed"].ys == pytest.approx([1000.0, 500.0, 400.0])
    assert run["seconds"].ys == pytest.approx([0.2, 1.8, 3.8])
    assert run["tokens"].ys == [200, 1000, 1800]


def test_every_figure_of_a_step_is_a_curve_by_its_name_and_the_best_is_the_lowest_validation(tmp_path):
    run = read_run(write(tmp_path / "m.jsonl", {"step": 5, "loss": 3.0, "heat": 7}, {"step": 5, "val_loss": 2.5},
                         {"step": 9, "val_loss": 2.75, "val_loss/a": 2.0}))
    assert (run.best, run["heat"], run["cold"]) == ((5, 2.5), Curve([5], [7.0]), Curve([], []))
    assert run.shares("val_loss/") == {"a": Curve([9], [2.0])}


@pytest.mark.parametrize("line", [
    {"step": -5, "loss": 1.0}, {"step": True, "loss": 1.0}, {"step": 2**63, "loss": 1.0}, {"step": 1.5, "loss": 1.0},
    '{"step": 1' + "0" * 5000 + "}", "[" * 200_000, '{"st', "", "[1]", '"x"', {"loss": 1.0}])
def test_a_line_without_a_step_is_passed_over(tmp_path, line):
    write(tmp_path / "m.jsonl", line, {"step": 3})
    assert numbers_of(read_lines(tmp_path / "m.jsonl")) == [{"step": 3.0}]
    write(tmp_path / "m.jsonl", line)
    with pytest.raises(UserError, match="no logged step yet") as caught:
        read_lines(tmp_path / "m.jsonl")
    assert caught.value.code == Exit.DATA


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1" + "0" * 400, "1e300", '"q"', "null", "true", "[1]"])
def test_a_value_that_is_no_finite_number_is_left_out(tmp_path, value):
    text = write(tmp_path / "m.jsonl", f'{{"step": 1, "loss": {value}, "tokens": {value}, "seconds": {value}, '
                                       f'"val_loss": {value}, "bits_per_byte": {value}}}', {"step": 2, "loss": 5.0})
    run = read_run(text)
    assert (run["loss"].ys, run.best, run["tokens"].ys, run.bits_per_nat) == ([5.0], None, [], None)


def test_rows_come_in_the_order_of_steps_and_a_step_that_stands_twice_counts_once(tmp_path):
    run = read_run(write(tmp_path / "m.jsonl", *({"step": step, "loss": loss} for step, loss in
                                                 ((9, 1.0), (3, 2.0), (9, 4.0), (0, 8.0)))))
    assert (run["loss"].xs, run["loss"].ys) == ([0, 3, 9], [8.0, 2.0, 4.0])


def test_numbers_at_the_edge_of_what_is_read_make_no_infinite_ones(tmp_path):
    run = read_run(write(tmp_path / "m.jsonl", {"step": 1, "tokens": 1e99, "seconds": 5e-324, "val_loss": 5e-324,
                                                "bits_per_byte": 1e99}, {"step": 2**62, "tokens": 1e100,
                                                                         "seconds": 1e100}))
    assert run.bits_per_nat is None
    assert run["seconds"].xs == [1, 2**62]
    assert run["speed"].xs == [2**62]


def test_runs_have_other_tokens_if_their_bits_per_nat_differ():
    def run_of(bits_per_nat):
        return LoggedRun("", {}, bits_per_nat)

    assert not have_other_tokens([run_of(0.4), run_of(0.4 + 1e-9), run_of(None)])
    assert have_other_tokens([run_of(0.4), run_of(0.43)])


# ---------------------------------------------------------------- the horizontal axis


@pytest.fixture
def make_run(tmp_path):
    """A function: a run of 100 logged steps of 1,000 tokens and so many seconds."""

    def make(seconds: float | None = 0.5) -> LoggedRun:
        return read_run(write(tmp_path / "m.jsonl", *(
            {"step": step, "loss": 9.0, "tokens": 1000 * step, "seconds": seconds} for step in range(1, 101))))

    return make


def test_a_figure_is_placed_by_its_step_on_every_axis(make_run):
    run, curve = make_run(), Curve([1, 25, 100], [1.0, 2.0, 3.0])
    for kind, unit, label in (("steps", 1, "step"), ("tokens", 1000, "tokens"), ("hours", 0.5, "seconds of training")):
        axis = XAxis.of(kind, [run])
        assert axis.label == label
        over = axis.over(run, curve, 2.0)
        assert over.xs == pytest.approx([unit, 25 * unit, 100 * unit])
        assert over.ys == [2.0, 4.0, 6.0]


def test_time_is_shown_in_the_unit_that_fits_the_longest_run(make_run):
    for seconds, unit, words in ((1.0, "seconds", "1 min 40 s"), (10.0, "minutes", "16 min 40 s"),
                                 (200.0, "hours", "5 h 33 min")):
        run = make_run(seconds)
        axis = XAxis.of("hours", [make_run(0.1), run])
        assert axis.label == f"{unit} of training"
        assert axis.words(axis.over(run, Curve([100], [0.0])).last_x) == words
