"""tests/gpu.sh without a GPU: what it leaves, what it does again, and what is kept of a call that was killed."""

import os
import signal
import subprocess
import tarfile
import time

from tests.helpers.commands import ROOT

PYTHON = """#!/bin/bash
case "$*" in *--check*) echo "attention ";; *collect_env*) echo "PyTorch version";; *rungs*) [ -e GO ] || sleep 9;; esac
echo "$*" >> CALLS
"""


def test_a_killed_call_is_kept_and_goes_on_and_an_empty_result_is_a_failure(tmp_path):
    (tmp_path / "python").write_text(PYTHON.replace("GO", f"{tmp_path}/go").replace("CALLS", f"{tmp_path}/calls"))
    (tmp_path / "python").chmod(0o755)
    env = {**os.environ, "SMALL": "1", "PYTHON": str(tmp_path / "python"), "OUT": str(tmp_path / "out")}
    words, kept = ["bash", ROOT / "tests/gpu.sh", "facts", "ladder"], tmp_path / "out/gpu-figures.tgz"
    first = subprocess.Popen(words, env={**env, "FIGURES": str(tmp_path / "a")}, start_new_session=True)
    while not (tmp_path / "a/ladder-tiny,32,4,512-0.txt").exists():
        assert first.poll() is None
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    kept.rename(tmp_path / "old.tgz").with_name("calls").unlink()
    again = subprocess.run(words, env={**env, "FIGURES": str(tmp_path / "b"), "RESTORE": str(tmp_path / "old.tgz")},
                           capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "--check" not in (tmp_path / "calls").read_text()
    assert "--rungs 0" in (tmp_path / "calls").read_text()
    assert "FAILED: no line like" in again.stdout
    with tarfile.open(kept) as archive:
        names = {name.removeprefix("./") for name in archive.getnames()}
    assert {"facts-check.txt", "facts-check.status", "ladder-tiny,32,4,512-0.status"} <= names
