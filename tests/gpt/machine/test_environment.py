"""What torch reads when it is loaded."""

import os
from pathlib import Path

import pytest

from gpt.machine import environment
from gpt.machine.environment import set_up_environment, usable_cores
from tests.helpers.commands import ROOT, run_python


@pytest.mark.parametrize(("command", "given", "expected"), [
    ("train.py --data_dir a", {}, "1000"), ("generate.py --ckpt a", {}, "10000"),
    ("evaluate.py --ckpt a --text a", {}, "1000"), ("gpt/benchmarks/bench.py", {}, "1000"),
    ("train.py --data_dir a", {"GOMP_SPINCOUNT": "7"}, "7"), ("generate.py --ckpt a", {"GOMP_SPINCOUNT": "7"}, "7")])
def test_waiting_threads_sleep_soon_unless_the_user_has_decided(command, given, expected):
    code = f"""
import os, runpy, sys
class AtTorch:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ["GOMP_SPINCOUNT"])
            os._exit(sys.stdout.flush() or 0)
sys.meta_path.insert(0, AtTorch())
sys.argv = {command.split()}
runpy.run_path({str(ROOT)!r} + "/" + sys.argv[0], run_name="__main__")
"""
    assert run_python(code, **given).stdout == f"{expected}\n"


@pytest.mark.parametrize(("texts", "expected"), [
    ({"/sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
    ({"/sys/fs/cgroup/cpu.max": "150000 100000"}, 2), ({"/sys/fs/cgroup/cpu.max": "20000 100000"}, 1),
    ({"/sys/fs/cgroup/cpu.max": "max 100000"}, 8), ({"/sys/fs/cgroup/cpu.max": "9900000 100000"}, 8), ({}, 8),
    ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 3),
    ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 8),
    ({"/proc/self/cgroup": "0::/slurm/job_7", "/sys/fs/cgroup/slurm/cpu.max": "400000 100000",
      "/sys/fs/cgroup/slurm/job_7/cpu.max": "max 100000"}, 4)])
def test_a_container_that_allows_fewer_cores_gets_as_many_threads(texts, expected, monkeypatch):
    def read_text(path: Path, **_) -> str:
        if str(path) not in texts:
            raise FileNotFoundError
        return texts[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(environment, "_given_cores", lambda: 8)
    monkeypatch.setattr(os, "environ", {})
    assert usable_cores() == expected
    set_up_environment()
    assert os.environ.get("OMP_NUM_THREADS") == (str(expected) if expected < 8 else None)
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "5"})
    set_up_environment()
    assert os.environ["OMP_NUM_THREADS"] == "5"
