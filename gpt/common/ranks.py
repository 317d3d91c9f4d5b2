"""The rank of this process under torchrun, from its environment. Collectives: gpt/machine/processes.py."""

import os

from gpt.common.names import TRAINS_NEXT

STARTED_BY = os.getppid()  # torchrun, or train.py; another parent later means that it has ended
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")
# And every name that begins with TORCHELASTIC_.
TORCHRUN_VARIABLES = (*RANK_VARIABLES, *RENDEZVOUS_VARIABLES, "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
                      "ROLE_WORLD_SIZE", "ROLE_NAME", "LOCAL_ADDR")


def is_one_of_several() -> bool:
    """True for a process that torchrun started."""
    return all(name in os.environ for name in (*RANK_VARIABLES, *RENDEZVOUS_VARIABLES))


def world_size() -> int:
    """The number of processes of the run; 1 if WORLD_SIZE is no number, which of_environment() refuses."""
    number = os.environ["WORLD_SIZE"] if is_one_of_several() else "1"
    return max(1, int(number)) if number.isdigit() else 1


def is_main() -> bool:
    """True for the main process: a single one, or rank 0 of several. The others print nothing."""
    return not is_one_of_several() or os.environ["RANK"] == "0"


def trains_first_of_two() -> bool:
    """True in the process that trains the first of two models; its parent, train.py, then trains the second."""
    return TRAINS_NEXT in os.environ


def launcher() -> str:
    """The words before train.py, in a command with as many processes on this machine."""
    return f"torchrun --nproc_per_node {os.environ['LOCAL_WORLD_SIZE']}" if is_one_of_several() else "python"


def environment_without_torchrun() -> dict[str, str]:
    """This process's environment without torchrun's variables: a child process then trains alone."""
    return {name: value for name, value in os.environ.items()
            if name not in TORCHRUN_VARIABLES and not name.startswith("TORCHELASTIC_")}
