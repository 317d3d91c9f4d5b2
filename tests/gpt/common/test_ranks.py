import pytest

from gpt.common import ranks
from gpt.common.errors import UserError
from gpt.machine.processes import ALONE, of_environment

THIRD_OF_FOUR = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": "29500"}


@pytest.fixture
def third(monkeypatch):
    """The environment of a process that torchrun has started."""
    for name, value in THIRD_OF_FOUR.items():
        monkeypatch.setenv(name, value)


def test_a_process_knows_its_place_from_what_torchrun_says(third):
    found = of_environment()
    assert (found.rank, found.world_size, found.local_rank, found.num_machines, found.is_main) == (2, 4, 0, 2, False)
    assert (ranks.is_one_of_several(), ranks.is_main(), ranks.world_size()) == (True, False, 4)


@pytest.mark.parametrize(("name", "value"), [("RANK", "4"), ("RANK", "-1"), ("LOCAL_RANK", "2"), ("WORLD_SIZE", "many"),
                                             ("LOCAL_WORLD_SIZE", "8")])
def test_an_environment_that_makes_no_sense_is_named(third, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"{name}={value}.* makes no sense. Start them by torchrun, or unset RANK"):
        of_environment()


def test_without_all_of_it_a_process_is_alone(third, monkeypatch):
    """Slurm and MPI set some of these names too."""
    monkeypatch.delenv("MASTER_ADDR")
    assert of_environment() is ALONE
    assert (ranks.is_main(), ranks.world_size()) == (True, 1)


def test_a_child_process_is_none_of_several(monkeypatch):
    theirs = {**THIRD_OF_FOUR, "TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0", "PATH": "/bin"}
    monkeypatch.setattr("os.environ", theirs)
    assert ranks.environment_without_torchrun() == {"PATH": "/bin"}
