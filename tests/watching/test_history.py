"""history.py: what a metrics.jsonl holds, whatever its state; curves over steps, tokens and time; which tokens."""

import json
import os

import pytest

from common.errors import Exit, UserError
from watching.history import Series, have_other_tokens, read_rows, read_run, smoothed


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


# ---------------------------------------------------------------- curves


def test_between_two_values_a_series_is_a_straight_line_that_begins_at_zero_and_is_prolonged():
    series = Series([10, 20], [100.0, 400.0])
    assert [series.at(step) for step in (0, 5, 10, 15, 20, 30)] == [0.0, 50.0, 100.0, 250.0, 400.0, 700.0]
    assert Series([0], [3.0]).at(5) == 3.0


def test_smoothing_leaves_a_line_a_line_does_not_lag_and_does_not_spread_a_lone_spike():
    line = [float(i) for i in range(41)]
    assert smoothed(line, 0.6)[20] == pytest.approx(20.0)
    assert smoothed([7.0] * 5, 0.9) == pytest.approx([7.0] * 5)
    valley = [abs(i - 20.0) for i in range(41)]
    assert smoothed(valley, 0.5)[5:36] == pytest.approx(smoothed(valley, 0.5)[5:36][::-1], abs=0.1)
    assert min(range(41), key=smoothed(valley, 0.8).__getitem__) == 20
    assert smoothed([2.0] * 10 + [50.0] + [2.0] * 10, 0.9) == pytest.approx([2.0] * 21)
    assert smoothed([2.0] * 10 + [50.0], 0.9) == pytest.approx([2.0] * 11)
    rise = smoothed([2.0] * 10 + [4.0] * 10, 0.5)
    assert rise == sorted(rise)
    assert rise[-1] == pytest.approx(4.0, abs=0.01)


# ---------------------------------------------------------------- a run


def test_speed_tokens_and_seconds_count_on_where_steps_were_skipped(tmp_path):
    run = read_run(write(
        tmp_path / "m.jsonl", {"step": 2, "tokens": 200, "seconds": 0.1}, {"step": 10, "tokens": 1000, "seconds": 0.2},
        {"step": 12, "tokens": 1400, "seconds": None}, {"step": 14, "tokens": 1800, "seconds": 0.5}))
    assert run.tokens_per_second.steps == run.seconds.steps == [2, 10, 14]
    assert run.tokens_per_second.values == pytest.approx([1000.0, 500.0, 400.0])
    assert run.seconds.values == pytest.approx([0.2, 1.8, 3.8])
    assert run.tokens.values == [200, 1000, 1800]


def test_the_best_is_the_lowest_validation_and_the_last_step_that_of_either_curve(tmp_path):
    run = read_run(write(tmp_path / "m.jsonl", {"step": 5, "loss": 3.0}, {"step": 5, "val_loss": 2.5},
                         {"step": 9, "val_loss": 2.75}))
    assert (run.best, run.last_step) == ((5, 2.5), 9)


@pytest.mark.parametrize("line", [
    {"step": -5, "loss": 1.0}, {"step": True, "loss": 1.0}, {"step": 2**63, "loss": 1.0}, {"step": 1.5, "loss": 1.0},
    '{"step": 1' + "0" * 5000 + "}", "[" * 200_000, '{"st', "", "[1]", '"x"', {"loss": 1.0}])
def test_a_line_without_a_step_is_passed_over(tmp_path, line):
    write(tmp_path / "m.jsonl", line, {"step": 3})
    assert read_rows(tmp_path / "m.jsonl") == [{"step": 3.0}]
    write(tmp_path / "m.jsonl", line)
    with pytest.raises(UserError, match="no logged step yet") as caught:
        read_rows(tmp_path / "m.jsonl")
    assert caught.value.code == Exit.DATA


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1" + "0" * 400, "1e300", '"q"', "null", "true", "[1]"])
def test_a_value_that_is_no_finite_number_is_left_out(tmp_path, value):
    text = write(tmp_path / "m.jsonl", f'{{"step": 1, "loss": {value}, "tokens": {value}, "seconds": {value}, '
                                       f'"val_loss": {value}, "bits_per_byte": {value}}}', {"step": 2, "loss": 5.0})
    run = read_run(text)
    assert (run.loss.values, run.best, run.tokens.values, run.bits_per_nat) == ([5.0], None, [], None)


def test_rows_come_in_the_order_of_steps_and_a_step_that_stands_twice_counts_once(tmp_path):
    run = read_run(write(tmp_path / "m.jsonl", *({"step": step, "loss": loss} for step, loss in
                                                 ((9, 1.0), (3, 2.0), (9, 4.0), (0, 8.0)))))
    assert (run.loss.steps, run.loss.values) == ([0, 3, 9], [8.0, 2.0, 4.0])


def test_numbers_at_the_edge_of_what_is_read_make_no_infinite_ones(tmp_path):
    run = read_run(write(tmp_path / "m.jsonl", {"step": 1, "tokens": 1e99, "seconds": 5e-324, "val_loss": 5e-324,
                                                "bits_per_byte": 1e99}, {"step": 2**62, "tokens": 1e100,
                                                                         "seconds": 1e100}))
    assert run.bits_per_nat is None
    assert run.seconds.steps == [1, 2**62]
    assert run.tokens_per_second.steps == [2**62]


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    for word in (str(tmp_path), str(tmp_path / "metrics.jsonl"), "/dev/zero"):
        with pytest.raises(UserError, match="not a regular file") as caught:
            read_run(word)
        assert caught.value.code == Exit.DATA


# ---------------------------------------------------------------- which tokens


@pytest.fixture
def make_run(tmp_path):
    """A function: a run that validated with so many bits per byte at 3 nats, beside checkpoints of vocabularies."""

    def make(name: str, bits: float | None, *vocab_sizes: object):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "metrics.jsonl", {"step": 9, "val_loss": 3.0, "bits_per_byte": bits})
        for number, vocab_size in enumerate(vocab_sizes, 9):
            (tmp_path / name / f"checkpoint-{number}").mkdir()
            (tmp_path / name / f"checkpoint-{number}" / "config.json").write_text(json.dumps(vocab_size))
        return read_run(str(tmp_path / name))

    return make


def test_the_vocabulary_is_that_of_the_newest_checkpoint_that_tells(make_run):
    assert make_run("a", None, {"vocab_size": 300}, {"vocab_size": 500}).vocab_size == 500
    assert make_run("b", None, {"vocab_size": 300}, {"vocab_size": "x"}, {"vocab_size": True}, 7).vocab_size == 300
    assert make_run("c", None).vocab_size is None


def test_runs_have_other_tokens_if_their_vocabularies_or_their_bits_per_nat_differ(make_run):
    one, same, other = make_run("one", 1.2), make_run("same", 1.2 + 1e-9), make_run("other", 1.3)
    small, large = make_run("small", None, {"vocab_size": 300}), make_run("large", None, {"vocab_size": 500})
    assert one.bits_per_nat == pytest.approx(0.4)
    assert not have_other_tokens([one, same, small])
    assert have_other_tokens([one, other])
    assert have_other_tokens([small, large])
