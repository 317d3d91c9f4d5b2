"""history.py: what a metrics.jsonl holds, whatever its state, as curves over steps."""

import json

import pytest

from gpt.checkpoint.history import Curve, read_lines, read_run
from gpt.common.errors import Exit, UserError


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


# ---------------------------------------------------------------- a run


def test_seconds_count_on_where_steps_were_skipped(tmp_path):
    run = read_run(write(
        tmp_path / "m.jsonl", {"step": 2, "seconds": 0.1}, {"step": 10, "seconds": 0.2}, {"step": 12, "seconds": None},
        {"step": 14, "seconds": 0.5}))
    assert run["seconds"].xs == [2, 10, 14]
    assert run["seconds"].ys == pytest.approx([0.2, 1.8, 3.8])


def test_every_figure_of_a_step_is_a_curve_by_its_name_and_the_best_is_the_lowest_validation(tmp_path):
    run = read_run(write(tmp_path / "m.jsonl", {"step": 5, "loss": 3.0, "heat": 7}, {"step": 5, "val_loss": 2.5},
                         {"step": 9, "val_loss": 2.75, "val_loss/a": 2.0}))
    assert (run["val_loss"].lowest, run["heat"], run["cold"]) == ((5, 2.5), Curve([5], [7.0]), Curve([], []))
    assert run["val_loss/a"] == Curve([9], [2.0])


def test_the_gap_is_between_the_last_validation_and_the_last_tenth_of_the_steps(tmp_path):
    rows = [{"step": 90, "loss": 9.0}, {"step": 95, "loss": 2.0}, {"step": 100, "loss": 3.0},
            {"step": 50, "val_loss": 3.0}, {"step": 100, "val_loss": 4.0}]
    assert read_run(write(tmp_path / "m.jsonl", *rows)).gap == 1.5
    for alone in (rows[:3], rows[3:]):
        assert read_run(write(tmp_path / "m.jsonl", *alone)).gap == 0


@pytest.mark.parametrize("line", [
    {"step": -5, "loss": 1.0}, {"step": True, "loss": 1.0}, {"step": 2**63, "loss": 1.0}, {"step": 1.5, "loss": 1.0},
    '{"step": 1' + "0" * 5000 + "}", "[" * 200_000, '{"st', "", "[1]", '"x"', {"loss": 1.0}])
def test_a_line_without_a_step_is_passed_over(tmp_path, line):
    write(tmp_path / "m.jsonl", line, {"step": 3})
    assert read_run(str(tmp_path / "m.jsonl")).curves == {"step": Curve([3.0], [3.0])}
    write(tmp_path / "m.jsonl", line)
    with pytest.raises(UserError, match="no logged step yet") as caught:
        read_lines(tmp_path / "m.jsonl")
    assert caught.value.code == Exit.DATA


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1" + "0" * 400, "1e300", '"q"', "null", "true", "[1]"])
def test_a_value_that_is_no_finite_number_is_left_out(tmp_path, value):
    text = write(tmp_path / "m.jsonl", f'{{"step": 1, "loss": {value}, "tokens": {value}, "seconds": {value}, '
                                       f'"val_loss": {value}, "bits_per_byte": {value}}}', {"step": 2, "loss": 5.0})
    run = read_run(text)
    assert (run["loss"].ys, run["val_loss"].lowest, run["tokens"].ys, run.bits_per_nat) == ([5.0], None, [], None)


def test_rows_come_in_the_order_of_steps_and_a_step_that_stands_twice_counts_once(tmp_path):
    run = read_run(write(tmp_path / "m.jsonl", *({"step": step, "loss": loss} for step, loss in
                                                 ((9, 1.0), (3, 2.0), (9, 4.0), (0, 8.0)))))
    assert (run["loss"].xs, run["loss"].ys) == ([0, 3, 9], [8.0, 2.0, 4.0])
