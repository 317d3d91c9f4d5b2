"""Losses compared: where a curve reaches another's end, in tokens and in time, and how far seeds lie apart."""

import pytest

from benchmarks.losses import Learned, ValidationCurve, equal_seconds, mean_of, median_of_turns

Losses = ValidationCurve
SLOW = Losses((10, 20, 40), (6.0, 5.0, 4.0))
FAST = Losses((10, 20, 40), (5.0, 4.0, 3.0))


def learned(name, *curves, seconds=None):
    return Learned(name, dict(enumerate(curves)), 40, seconds)


@pytest.mark.parametrize(("step", "loss"), [(1, 6.0), (10, 6.0), (15, 5.5), (20, 5.0), (30, 4.5), (40, 4.0), (99, 4.0)])
def test_between_validations_a_curve_is_straight(step, loss):
    assert SLOW.at(step) == loss


@pytest.mark.parametrize(("loss", "step"), [(7.0, 10), (6.0, 10), (5.25, 17.5), (4.0, 40), (4.75, 25), (3.9, None)])
def test_a_loss_is_reached_between_the_validations_around_it(loss, step):
    assert SLOW.reaches(loss) == step


def test_a_curve_that_rises_again_has_reached_what_it_had_reached():
    assert Losses((1, 2, 3), (5.0, 3.0, 4.0)).reaches(4.0) == 1.5


def test_the_mean_of_seeds_is_taken_where_all_were_validated():
    assert mean_of([SLOW, Losses((10, 30, 40), (4.0, 3.0, 2.0))]) == Losses((10, 40), (5.0, 3.0))


def test_tokens_to_the_other_ones_end_are_a_share_of_its_own_and_time_counts_the_cost_of_a_step():
    slow, fast = learned("slow", SLOW, seconds=0.1), learned("fast", FAST, seconds=0.3)
    assert fast.share_of_tokens(slow) == 0.5  # step 20 of 40
    assert fast.share_of_seconds(slow) == pytest.approx(1.5)
    assert slow.share_of_tokens(fast) is slow.share_of_seconds(fast) is None
    assert fast.share_of_tokens(fast) == 1
    assert learned("fast", FAST).share_of_seconds(slow) is None


def test_the_loss_in_equal_time_is_that_of_the_time_in_which_the_cheapest_ends():
    slow, fast, other = learned("slow", SLOW, seconds=0.1), learned("fast", FAST, seconds=0.3), learned("x", SLOW)
    assert equal_seconds([fast, slow, other]) == pytest.approx(4)
    assert slow.loss_after(4) == 4.0
    assert fast.loss_after(4) == pytest.approx(4.667, abs=1e-3)
    assert other.loss_after(4) is equal_seconds([other]) is None


def test_the_spread_is_the_largest_difference_between_two_seeds_and_ranges_are_theirs():
    three = learned("three", FAST, Losses((10, 20, 40), (5.0, 4.5, 3.5)), Losses((10, 20, 40), (6.0, 5.5, 4.4)))
    assert three.spread == pytest.approx(1.4)
    assert three.quarters == pytest.approx([5.3333, 4.6667, 4.15, 3.6333], abs=1e-4)
    assert three.range_of_tokens(learned("slow", SLOW)) == (0.5, None)
    assert three.range_of_tokens(learned("other", Losses((40,), (5.0,)))) == (0.25, pytest.approx(0.7273, abs=1e-4))
    assert learned("one", SLOW).spread == 0


def test_a_step_takes_the_median_of_the_turns():
    assert (median_of_turns([3.0, 1.0, 9.0]), median_of_turns([])) == (3.0, None)
