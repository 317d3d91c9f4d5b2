"""Memory: the measured numbers are plausible, and an out-of-memory error is recognized."""

import sys
from pathlib import Path

import pytest
import torch

from gpt.common.errors import is_out_of_memory
from gpt.machine.environment import available_ram
from tests.helpers.commands import run_python
from tests.helpers.machines import CPU


@pytest.mark.parametrize(("error", "is_one"), [
    (torch.OutOfMemoryError("CUDA out of memory. Tried"), True), (type("OfNumpy", (MemoryError,), {})(), True),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"), True),
    (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might"), True),
    (RuntimeError("could not create a primitive"), True), (RuntimeError("could not create a memory object"), True),
    (RuntimeError("Triton Error [CUDA]: out of memory"), True),
    (RuntimeError("InductorError: OutOfMemoryError: CUDA out of memory. Tried to allocate"), True),
    (RuntimeError("NCCL error: unhandled cuda error\nLast error: Cuda failure 2 'out of memory'"), True),
    (RuntimeError("CUDA error: invalid argument"), False)])
def test_which_errors_mean_that_memory_ran_out(error, is_one):
    assert is_out_of_memory(error) == is_one


def test_memory_is_measured():
    assert 2**20 < available_ram() < 2**50
    assert CPU.backend.total_memory() > 2**20
    assert CPU.backend.free_memory() is None
    if sys.platform != "win32":
        assert 2**20 < CPU.backend.peak_memory() < 2**45


def test_a_container_that_allows_less_is_believed(monkeypatch):
    texts = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4096 kB\n", "/sys/fs/cgroup/memory.max": "3000000",
             "/sys/fs/cgroup/memory.current": "1000000"}

    def read_text(path: Path, **_) -> str:
        if str(path) not in texts:
            raise FileNotFoundError
        return texts[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
    assert available_ram() == 2_000_000
    texts["/sys/fs/cgroup/memory.stat"] = "anon 1\ninactive_file 500000\nactive_file 300000\n"
    assert available_ram() == 2_500_000  # files that were read are no memory in use
    texts["/sys/fs/cgroup/memory.max"] = "max"
    assert available_ram() == 4096 * 1024


@pytest.mark.parametrize(("line", "limit", "used"), [
    ("0::/slurm/job_7/step_0", "/sys/fs/cgroup/slurm/job_7/memory.max", "/sys/fs/cgroup/slurm/job_7/memory.current"),
    ("4:memory:/slurm/job_7", "/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes",
     "/sys/fs/cgroup/memory/slurm/job_7/memory.usage_in_bytes")])
def test_a_scheduler_that_allows_a_job_less_is_believed(monkeypatch, line, limit, used):
    texts = {"/proc/meminfo": "MemAvailable: 4096 kB\n", "/proc/self/cgroup": f"1:cpu:/\n{line}\n", limit: "3000000",
             used: "1000000", "/sys/fs/cgroup/memory.max": "max"}
    monkeypatch.setattr(Path, "read_text", lambda path, **_: texts.get(str(path), "no number"))
    assert available_ram() == 2_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_of_a_process_is_not_that_of_the_one_that_started_it():
    big = bytearray(b"x") * (600 * 2**20)  # more than importing torch takes
    code = "from gpt.machine.environment import peak_resident\nprint(peak_resident())"
    done = run_python(code)
    assert 2**20 < int(done.stdout) < len(big), done.stderr
