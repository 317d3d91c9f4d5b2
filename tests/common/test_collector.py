"""common/collector.py: the garbage collector is off inside, and afterwards as it was."""

import gc

import pytest

from common.collector import without_collector


def test_the_collector_is_off_inside_and_then_as_it_was():
    assert gc.isenabled()
    with without_collector():
        assert not gc.isenabled()
        with without_collector():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), without_collector():
        raise KeyError
    assert gc.isenabled()
