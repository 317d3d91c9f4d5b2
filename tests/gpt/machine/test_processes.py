from datetime import timedelta

import pytest
import torch.distributed as dist

from gpt.common.errors import Exit, UserError
from gpt.machine.processes import ALONE, Processes, is_of_lost_process, joined
from tests.helpers.commands import run_python

RESTARTED = """
import os, signal, time
import torch.distributed as dist
from gpt.common import ranks
from gpt.machine.processes import Processes, joined
store, ranks.STARTED_BY = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), os.getpid()
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), WORLD_SIZE="2",
                  TORCHELASTIC_USE_AGENT_STORE="True")
for start in range(8):
    for rank in (1, 0):  # the first finds what the store holds of the other
        if os.fork() == 0:
            signal.alarm(20)
            os.environ["RANK"] = str(rank)
            with joined(Processes(rank, 2, rank, 2), False):
                dist.barrier(dist.new_group([0, 1]))
                os._exit(0)
        time.sleep(0.1)
    assert [os.wait()[1] for _ in range(2)] == [0, 0]
"""


def test_one_process_agrees_with_itself():
    assert ALONE.from_main(lambda: (1, 2)) == (1, 2)
    assert ALONE.total([1, 2]) == [1, 2]
    assert ALONE.largest(3) == 3
    ALONE.check_same({"seed": 1})


def test_an_error_of_a_process_on_its_own_has_its_number_and_is_said_by_it():
    with pytest.raises(UserError, match=r"^process 3: no disk") as caught, Processes(3, 4).errors_of_this_rank():
        raise UserError(Exit.DATA, "no disk")
    assert caught.value.code == Exit.DATA
    assert not caught.value.on_all_ranks
    with pytest.raises(UserError, match=r"^no disk") as caught, Processes(0, 4).errors_of_this_rank():
        raise UserError(Exit.DATA, "no disk")
    assert caught.value.on_all_ranks


@pytest.mark.parametrize(("message", "is_lost"), [
    ("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3829", True),
    ("Connection reset by peer", True),
    ("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)", False),
])
def test_an_error_of_another_process_is_told_from_one_of_the_program(message, is_lost):
    assert is_of_lost_process(RuntimeError(message)) == is_lost


@pytest.mark.slow
def test_processes_that_are_restarted_meet_in_a_store_that_knows_dead_ones():
    done = run_python(RESTARTED)
    assert done.returncode == 0, done.stderr


def test_a_store_that_cannot_be_reached_is_no_bug(monkeypatch):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("gpt.machine.processes.PATIENCE", timedelta(seconds=1))
    monkeypatch.setattr("gpt.machine.processes.end_with_parent", lambda: None)
    with pytest.raises(UserError, match=r"cannot be reached.* Start again") as caught, joined(Processes(1, 2, 1, 2),
                                                                                              False):
        pass
    assert caught.value.code == Exit.MACHINE


@pytest.mark.parametrize(("error", "shown"), [
    ("NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error, NCCL version 2.29\nncclSystemError: System "
     "call failed\nLast error:\nError while creating shared memory segment /dev/shm/nccl-6\nmore",
     "segment /dev/shm/nccl-6"),
    ("Error while creating shared memory segment /dev/shm/nccl-6\nmore", "segment /dev/shm/nccl-6"),
    ("NCCL error in: ProcessGroupNCCL.cpp:3690, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.29"
     "\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : "
     "rank 1 and rank 0 both on CUDA device 1000", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device "
     "1000"),
    ("NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error, NCCL version 2.29\nLast error:\n",
     "unhandled cuda error, NCCL version 2.29")])
def test_what_nccl_reports_is_shown(monkeypatch, error, shown):
    def fail(*_, **__):
        raise dist.DistBackendError(error)

    monkeypatch.setattr("gpt.machine.processes.rendezvous", fail)
    monkeypatch.setattr("gpt.machine.processes.end_with_parent", lambda: None)
    with pytest.raises(UserError, match=rf"{shown}\. W") as caught, joined(Processes(1, 2), False):
        pass
    assert caught.value.code == Exit.MACHINE
