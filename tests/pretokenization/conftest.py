"""Each test of pretokenization/ works in an empty folder, and leaves no process."""

import multiprocessing

import pytest

from pretokenization.engines import encoder_for, fence_ranges


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # main sets them; this restores them
    for name in ("ID", "COUNT", "MIN"):
        monkeypatch.delenv(f"SLURM_ARRAY_TASK_{name}", raising=False)
    for cached in (fence_ranges, encoder_for):
        cached.cache_clear()
    yield
    assert multiprocessing.active_children() == []
