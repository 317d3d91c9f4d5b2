"""common/allocator.py: segments grow where the system can, unless the user has decided."""

import os
import sys
from types import SimpleNamespace

import pytest

from common import allocator


@pytest.mark.parametrize(("system", "release", "given", "expected"), [
    ("linux", "6.8.0-45-generic", {}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
    ("linux", "6.8.0-45-generic", {"PYTORCH_ALLOC_CONF": ""}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
    ("linux", "6.8.0", {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
     {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}),
    ("linux", "6.8.0", {"PYTORCH_ALLOC_CONF": "expandable_segments:False"},
     {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}),
    ("linux", "5.15.90.1-microsoft-standard-WSL2", {}, {}), ("linux", "5.15.148-tegra", {}, {}),
    ("win32", "10", {}, {}), ("darwin", "24.1.0", {}, {})])
def test_segments_grow_on_linux_unless_the_user_has_decided(monkeypatch, system, release, given, expected):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release), raising=False)
    monkeypatch.setattr(os, "environ", dict(given))
    allocator.let_segments_grow()
    assert os.environ == expected
