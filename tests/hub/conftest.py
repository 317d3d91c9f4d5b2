"""A hub on this machine, for which the tests of this folder take huggingface.co."""

import io

import pytest

from common.progress import Progress
from tests.helpers.hub import LocalHub, pretend


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The server; downloads go to tmp_path/hub."""
    pytest.importorskip("huggingface_hub", reason="the hub is reached through huggingface_hub")
    with LocalHub() as server:
        pretend(monkeypatch, server, tmp_path)
        yield server


@pytest.fixture
def out():
    """What a command prints, as text: out.stream.getvalue()."""
    progress = Progress(io.StringIO())
    yield progress
    progress.close()
