"""Processes that believe in a GPU."""

import pytest

from tests.without_gpu.asking import make_ask


@pytest.fixture(scope="session")
def ask_of(tmp_path_factory):
    """A function: what a module of tests.without_gpu answers to a command line, in such a process."""
    return make_ask(tmp_path_factory.mktemp("without_gpu"))
