"""Two sound checkpoints that the tests of this folder share."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="package")
def sound(make_checkpoint, tmp_path_factory):
    """A folder with checkpoint-900 and checkpoint-1000, both sound; not to be changed."""
    folder = tmp_path_factory.mktemp("sound")
    make_checkpoint(folder, 900)
    make_checkpoint(folder, 1000)
    return folder


@pytest.fixture
def folder(sound, tmp_path):
    """A copy of sound, to be damaged."""
    return Path(shutil.copytree(sound, tmp_path / "out"))
