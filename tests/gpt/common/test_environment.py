"""What torch reads when it is loaded."""

import os
import sys
from types import SimpleNamespace

import pytest

from gpt.common.environment import let_segments_grow
from tests.helpers.commands import ROOT, run_python


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
    let_segments_grow()
    assert os.environ == expected


@pytest.mark.parametrize("command", ["train.py --data_dir a", "generate.py --ckpt a", "evaluate.py --ckpt a --text a",
                                     "gpt/benchmarks/bench.py"])
@pytest.mark.parametrize(("given", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
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
