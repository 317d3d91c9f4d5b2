"""A hub on this machine, which stands in for huggingface.co."""

import io
import threading

import pytest

from gpt.common.progress import Progress
from tests.helpers.hub import LocalHub, pretend


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The server; downloads go to tmp_path/hub."""
    pytest.importorskip("huggingface_hub", reason="the hub is reached through huggingface_hub")
    with LocalHub() as server:
        pretend(monkeypatch, server, tmp_path)
        before = {*threading.enumerate()}
        yield server
        server.delay = 0.0
        for left in {*threading.enumerate()} - before:
            if left.name.startswith("in_thread"):  # without a server the library closes what all tests share
                left.join(10)


@pytest.fixture
def out():
    """A Progress that prints into out.stream.getvalue()."""
    progress = Progress(io.StringIO())
    yield progress
    progress.close()
