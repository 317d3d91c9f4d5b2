"""The learning rate at its corners, against transformers' schedules, and as older programs recorded it."""

from dataclasses import asdict

import pytest
import torch

from gpt.planning.schedules import SCHEDULES, Cooldown, schedule_of
from tests.helpers.training import recipe


def rates(**changes) -> list[float]:
    """The rate of each step of a run, that of step 1 first."""
    r = recipe(**changes)
    return [r.learning_rate_at(step) for step in range(1, r.total_steps + 1)]


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "constant"])
def test_every_schedule_rises_to_the_peak_and_ends_in_min_lr(schedule):
    found = rates(lr_schedule=schedule)
    assert found.index(max(found)) == 9
    assert found[9] == 1e-3
    assert found[:10] == sorted(found[:10])
    assert found[9:] == sorted(found[9:], reverse=True)
    assert found[-1] == pytest.approx(1e-5, rel=1e-12)
    assert min(rates(lr_schedule=schedule, warmup_steps=0, total_steps=1)) >= 1e-5 * (1 - 1e-12)


def test_wsd_is_constant_until_its_last_steps():
    found = rates(lr_schedule="wsd", min_lr=0.0)
    assert found[9:80] == [1e-3] * 71
    assert found[80:] == pytest.approx([1e-3 * (21 - step) / 21 for step in range(1, 21)])
    assert rates(lr_schedule="constant")[9:] == [1e-3] * 91
    assert recipe(lr_schedule="wsd", decay_share=0.99).decay_start == 10  # the warm-up is never cut
    assert [recipe(lr_schedule=name).plateau_end for name in SCHEDULES] == [None, None, 80, None]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_cooldown_falls_from_the_rate_it_began_at_whatever_came_before(schedule):
    before = rates(lr_schedule=schedule, total_steps=200)
    cooled = rates(lr_schedule=schedule, total_steps=120, min_lr=0.0, cooldown=Cooldown(100, before[99], ""))
    assert cooled[100:] == pytest.approx([before[99] * (21 - step) / 21 for step in range(1, 21)])
    assert rates(total_steps=120, cooldown=Cooldown(100, before[99], ""))[-1] == pytest.approx(1e-5, rel=1e-12)


def theirs(make, *args) -> list[float]:
    """The rates of transformers' schedule of 100 steps, 10 of them warm-up, after each step."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    scheduler, found = make(optimizer, *args), []
    for _ in range(100):
        optimizer.step()
        scheduler.step()  # their step counts finished steps, so after it they are where ours is
        found.append(scheduler.get_last_lr()[0])
    return found


def test_cosine_and_linear_equal_those_of_transformers():
    from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

    assert rates(min_lr=0.0) == pytest.approx(theirs(get_cosine_schedule_with_warmup, 10, 100), abs=1e-12)
    # Theirs is zero after step 101, as the step that ends in zero is the one after the last.
    assert rates(lr_schedule="linear", min_lr=0.0) == pytest.approx(theirs(get_linear_schedule_with_warmup, 10, 101),
                                                                 abs=1e-12)


def test_a_schedule_is_read_back_from_what_a_run_recorded():
    for name in SCHEDULES:
        for cooldown in (None, Cooldown(50, 5e-4, "")):
            r = recipe(lr_schedule=name, decay_share=0.3, cooldown=cooldown)
            fields = {"cooldown_from": "", "cooldown_start": 50, "cooldown_rate": 5e-4} if cooldown else {}
            back = schedule_of({**asdict(r), "lr_schedule": name, "decay_share": 0.3, **fields})
            assert [*map(back.learning_rate_at, range(1, 101))] == [*map(r.learning_rate_at, range(1, 101))]
