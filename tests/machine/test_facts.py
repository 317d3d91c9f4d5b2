"""facts.py: the disk is written and left as it was, products of matrices are timed."""

import os

import torch

from machine import device, facts


def test_the_disk_of_a_folder_that_does_not_exist_is_that_of_the_nearest_one_above(tmp_path):
    assert facts.measure_disk(tmp_path / "a" / "b", most_bytes=1).folder == tmp_path
    (tmp_path / "file").write_text("")
    assert facts.measure_disk(tmp_path / "file", most_bytes=1).folder == tmp_path


def test_a_disk_is_measured_and_nothing_stays_behind(tmp_path):
    found = facts.measure_disk(tmp_path / "out", most_bytes=2**24)
    assert found.folder == tmp_path
    assert 1e5 < found.bytes_per_second < 1e12
    assert found.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_is_given_up_after_its_time_but_never_before_one_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "CHUNK_BYTES", 1000)
    written = []
    monkeypatch.setattr(facts.os, "fsync", lambda handle: written.append(os.fstat(handle).st_size))
    facts.measure_disk(tmp_path, most_bytes=5000, most_seconds=60)
    assert written == [1000, 2000, 3000, 4000, 5000]
    facts.measure_disk(tmp_path, most_bytes=5000, most_seconds=0)
    assert written[5:] == [1000]


def test_products_of_matrices_are_timed_until_their_time_is_over(monkeypatch):
    machine = device.choose(False, None, "auto", False)
    called = []
    multiply = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: called.append(a.dtype) or multiply(a, b))
    assert 1e6 < facts.matmul_flops(machine, torch.float32, 64) < 1e15
    assert called == [torch.float32] * 21
    facts.matmul_flops(machine, torch.bfloat16, 64, most_seconds=0)
    assert called[21:] == [torch.bfloat16] * 2
