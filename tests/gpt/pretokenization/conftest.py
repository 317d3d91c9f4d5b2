"""Each test of gpt/pretokenization/ works in an empty folder, and leaves no process."""

import pytest

from gpt.pretokenization.engines import encoder_for
from tests.helpers.pretokenize import in_an_empty_folder


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    encoder_for.cache_clear()
    yield from in_an_empty_folder(tmp_path, monkeypatch)
