import torch

from machine.processes import ALONE, Processes
from training.decisions import DELAY, Decisions, Wishes


def test_one_process_decides_at_once():
    wanted = []
    decisions = Decisions(ALONE)
    decisions.ask(Wishes(stop=lambda: "stop" in wanted, save=lambda: "save" in wanted))
    assert not decisions.stops()
    assert not decisions.saves()
    wanted += ["stop", "save"]
    assert decisions.stops()
    assert decisions.saves()


def steps(decisions, *others):
    """A step for each of the sums that the other process adds; after which of them it stops, saves."""
    stopped, saved = [], []
    for number, other in enumerate(others, 1):
        decisions.note(decisions.cast(torch.device("cpu")) + torch.tensor(other))
        stopped += [number] if decisions.stops() else []
        saved += [number] if decisions.saves() else []
    return stopped, saved


def test_a_wish_of_another_process_is_heard_two_steps_later_in_all():
    decisions = Decisions(Processes(0, 2))
    decisions.ask(Wishes())
    nothing = [0.0, 0.0, 0.0]
    stopped, _ = steps(decisions, nothing, [1.0, 0.0, 0.0], *[nothing] * 4)
    assert stopped == [2 + DELAY]


def test_a_save_that_is_asked_for_until_it_begins_is_made_once():
    """The wish is in the messages of the steps until it is heard; those do not ask again."""
    decisions, nothing, wish = Decisions(Processes(1, 2)), [0.0] * 3, [0.0, 1.0, 0.0]
    decisions.ask(Wishes())
    _, saved = steps(decisions, nothing, wish, wish, wish, *[nothing] * 6)
    assert saved == [2 + DELAY]


def test_the_clock_of_the_first_process_counts_alone():
    for rank, ends in ((0, True), (1, False)):
        decisions = Decisions(Processes(rank, 2))
        decisions.ask(Wishes(end=lambda: True))
        steps(decisions, *[[0.0] * 3] * (DELAY + 1))
        assert decisions.ends() == ends
