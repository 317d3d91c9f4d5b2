"""axes.py: every figure stands at its step, its tokens or its time, and the limits show what there is to see."""

import json

import pytest

from common.errors import Exit, UserError
from watching.axes import Curve, Curves, XAxis, curves_of, default_smoothing, loss_limits
from watching.history import LoggedRun, read_run


@pytest.fixture
def make_run(tmp_path):
    """A function: a run of 100 logged steps of 1,000 tokens and so many seconds, with a validation at step 25."""

    def make(seconds: float | None = 0.5) -> LoggedRun:
        lines: list[dict[str, float | None]] = [
            {"step": step, "loss": 9 - step / 50, "tokens": 1000 * step, "seconds": seconds} for step in range(1, 101)]
        lines.append({"step": 25, "val_loss": 5.0, "bits_per_byte": 2.0})
        (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return read_run(str(tmp_path / "m.jsonl"))

    return make


def test_a_figure_is_placed_by_its_step_on_every_axis(make_run):
    run = make_run()
    for kind, unit, label in (("steps", 1, "step"), ("tokens", 1000, "tokens"), ("hours", 0.5, "seconds of training")):
        axis = XAxis.of(kind, [run])
        assert axis.label == label
        assert [axis.place(run, step) for step in (1, 25, 100)] == pytest.approx([unit, 25 * unit, 100 * unit])
        assert curves_of(run, axis, False).validation.xs == pytest.approx([25 * unit])


def test_time_is_shown_in_the_unit_that_fits_the_longest_run(make_run):
    for seconds, unit, words in ((1.0, "seconds", "1 min 40 s"), (10.0, "minutes", "16 min 40 s"),
                                 (200.0, "hours", "5 h 33 min")):
        run = make_run(seconds)
        axis = XAxis.of("hours", [make_run(0.1), run])
        assert axis.label == f"{unit} of training"
        assert axis.words(axis.place(run, 100)) == words


def test_an_axis_that_a_run_has_not_logged_is_refused(make_run):
    for kind in ("tokens", "hours"):
        with pytest.raises(UserError, match=f"--x {kind}: .* has no line with tokens and seconds") as caught:
            XAxis.of(kind, [make_run(None)])
        assert caught.value.code == Exit.DATA


def test_in_bits_both_losses_are_multiplied_and_the_best_with_them(make_run):
    run = make_run()
    nats, bits = (curves_of(run, XAxis.of("steps", [run]), in_bits, smoothing=0) for in_bits in (False, True))
    assert bits.training.ys == pytest.approx([0.4 * y for y in nats.training.ys])
    assert (nats.best, bits.best) == ((25.0, 5.0), (25.0, 2.0))
    assert nats.training is nats.raw


def test_short_curves_are_not_smoothed_by_default_and_long_ones_over_a_twentieth():
    assert [default_smoothing(n) for n in (0, 1, 19)] == [0.0, 0.0, 0.0]
    for num_values, covered in ((20, 5), (100, 5), (3000, 150)):
        weight = default_smoothing(num_values)
        assert (1 + weight) / (1 - weight) == pytest.approx(covered)


def test_the_loss_axis_leaves_out_the_steep_beginning_and_lone_spikes_but_not_a_rise():
    def limits_of(values: list[float], on_log_axis: bool = False):
        curve, none = Curve([float(x) for x in range(len(values))], values), Curve([], [])
        return loss_limits([Curves(None, curve, curve, none, None, {})], on_log_axis)  # type: ignore[arg-type] - unused

    falling = [11.0 if x < 4 else 4 - x / 100 for x in range(100)]
    low, high = limits_of(falling)
    assert 2.9 < low < 3.01
    assert 3.9 < high < 4.2
    assert limits_of([*falling[:50], 60.0, *falling[51:]])[1] < 5
    assert limits_of([*falling[:70], *[8.0] * 30])[1] > 8
    assert limits_of([2.0]) == pytest.approx((1.9, 2.1))
    assert limits_of([]) == (-1.0, 1.0)
    for values in (falling, [0.0, -1.0], []):
        assert 0 < limits_of(values, on_log_axis=True)[0] < limits_of(values, on_log_axis=True)[1]
