"""curves.py: few points, all spikes."""

import json
import math
import random

from reports.curves import MOST_POINTS, encoded, most_points, places_of, thinned
from watching.axes import XAxis, curves_of
from watching.history import LoggedRun
from watching.history import Series as Logged


def long_run(steps: int) -> LoggedRun:
    every = list(range(1, steps + 1))
    values = [3 + math.sin(step) for step in every]
    empty = Logged([], [])
    return LoggedRun("long", Logged(every, values), empty, empty, empty, empty,
                     Logged(every, [100.0 * s for s in every]), Logged(every, [0.1 * s for s in every]), None, None)


def test_thinned_curves_keep_their_ends_and_every_spike():
    rng = random.Random(0)
    xs, ys = list(range(30_000)), [3 + rng.random() for _ in range(30_000)]
    ys[17_777], ys[5] = 50.0, -20.0
    few_xs, few_ys = thinned(xs, ys, 4000)
    points = set(zip(few_xs, few_ys, strict=True))
    assert {(17_777, 50.0), (5, -20.0), (0, ys[0]), (29_999, ys[-1])} <= points
    assert 3900 < len(few_xs) <= 4000
    assert few_xs == sorted(few_xs)
    assert points <= set(zip(xs, ys, strict=True))


def test_each_slice_keeps_its_lowest_and_highest_value():
    xs, ys = list(range(1000)), [(7919 * number) % 1000 for number in range(1000)]
    few = dict(zip(*thinned(xs, ys, 102), strict=True))
    for begin in range(0, 1000, 20):
        inside = range(begin, begin + 19)  # a slice is 19.98 wide
        kept = [few[x] for x in range(begin, begin + 20) if x in few]
        assert min(kept) <= min(ys[x] for x in inside)
        assert max(kept) >= max(ys[x] for x in inside)


def test_short_curves_and_those_with_gaps_stay_as_they_are():
    assert thinned([1, 2, 900], [1.0, 2.0, 3.0], 4) == ([1, 2, 900], [1.0, 2.0, 3.0])
    xs = [*range(10), *range(10**6, 10**6 + 10)]
    assert thinned(xs, [1.0] * 20, 8)[0] == [0, 10**6, 10**6 + 9]


def test_a_curve_is_told_by_differences_and_read_back():
    told = encoded([1, 5, 25], [1 / 3, 2e-4 / 3, 1234567.0], 100)
    assert told == {"x": [1, 4, 20], "y": [0.33333, 6.6667e-05, 1234600], "n": 3}


def test_several_runs_share_the_points():
    assert most_points(1) == most_points(4) == MOST_POINTS
    assert 26 * most_points(26) <= 4 * MOST_POINTS + 26 * 100


def test_places_lie_on_the_lines_between_those_told():
    run = long_run(5000)
    told = places_of(run)
    assert len(told["steps"]) <= 200
    assert told["steps"][-1] == 5000
    assert told["tokens"][-1] == run.tokens.values[-1]
    curves = curves_of(run, XAxis.of("steps", [run]), False)
    assert json.dumps(encoded(curves.raw.xs, curves.raw.ys, 10))
