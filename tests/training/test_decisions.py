import itertools

import torch
import torch.distributed as dist

from machine.processes import ALONE, Processes
from training.parallel import DELAY, Decisions


def test_one_process_decides_at_once():
    decisions = Decisions(ALONE)
    assert not decisions.agree("save", False)
    assert decisions.agree("save", True)
    assert not decisions.agree("save", False)


def decided(monkeypatch, here, others):
    """After which asks a process decides, if another one has these wishes in turn."""
    wishes = itertools.chain(others, itertools.repeat(False))

    class Arrived:
        def wait(self) -> None: ...

    def add(number: torch.Tensor, async_op: bool) -> Arrived:
        number += next(wishes)
        return Arrived()

    monkeypatch.setattr(dist, "all_reduce", add)
    decisions = Decisions(Processes(0, 2))
    return [ask for ask in range(1, 10) if decisions.agree("save", ask in here)]


def test_a_wish_of_one_process_is_heard_in_all_two_steps_later(monkeypatch):
    assert decided(monkeypatch, [], [False, True]) == [2 + DELAY]
    assert decided(monkeypatch, [2], []) == [2 + DELAY]


def test_a_wish_that_lasts_until_it_is_heard_is_fulfilled_once(monkeypatch):
    assert decided(monkeypatch, [2, 3, 4], [False, True, True]) == [2 + DELAY]


def test_what_is_agreed_upon_now_holds_from_then_on(monkeypatch):
    monkeypatch.setattr(Processes, "any", lambda self, here: True)
    decisions = Decisions(Processes(0, 2))
    assert decisions.agree_now("stop", False)
    assert decisions.agree("stop", False)
