"""Settings of memory: segments grow where the system can, and the garbage collector is afterwards as it was."""

import os
import sys
from types import SimpleNamespace

import pytest

from gpt.common import memory


@pytest.mark.parametrize(("system", "release", "given", "expected"), [
    ("linux", "6.8.0-45-generic", {}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
    ("linux", "6.8.0-45-generic", {"PYTORCH_ALLOC_CONF": ""}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
    ("linux", "6.8.0", {"PYTORCH_CUDA_ALLOC_CONF": "own"}, {"PYTORCH_CUDA_ALLOC_CONF": "own"}),
    ("linux", "5.15.90.1-microsoft-standard-WSL2", {}, {}), ("linux", "5.15.148-tegra", {}, {}),
    ("darwin", "24.1.0", {}, {})])
def test_segments_grow_on_linux_unless_the_user_has_decided(monkeypatch, system, release, given, expected):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release), raising=False)
    monkeypatch.setattr(os, "environ", dict(given))
    memory.let_segments_grow()
    assert os.environ == expected
