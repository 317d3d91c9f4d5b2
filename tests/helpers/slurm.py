"""Slurm played by scripts on one machine: sbatch, srun and scontrol as far as the job scripts of docs/clusters.md go.

srun starts its command once for each node, in a session of its own, and returns the largest exit code. Once a job's
run has logged a step, and again and again until its srun ends, srun's processes get the signal of --signal, all of them
as from Slurm. A job that `scontrol requeue` names is started again.
"""

import os
import re
import socket
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.helpers.commands import ROOT

SRUN = """#!/usr/bin/env bash
pids=()
for node in $(seq 0 $((SLURM_NNODES - 1))); do
    SLURM_NODEID=$node setsid "$@" &
    pids+=($!)
done
: > "$PLAYED/running"
for pid in "${pids[@]}"; do echo "$pid" >> "$PLAYED/running"; done
worst=0
for pid in "${pids[@]}"; do
    wait "$pid"
    code=$?
    [ "$code" -eq 0 ] || echo "srun: error: node: task exited with exit code $code" >&2
    [ "$code" -le "$worst" ] || worst=$code
done
rm "$PLAYED/running"
exit "$worst"
"""
SCONTROL = """#!/usr/bin/env bash
case "$1" in
    requeue) echo "$2" >> "$PLAYED/requeued" ;;
    show) echo localhost; [ "$SLURM_NNODES" -eq 1 ] || echo other ;;
esac
"""


def job_scripts(page: Path) -> list[str]:
    """The job scripts of a page, without their indentation."""
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", page.read_text(encoding="utf-8"), re.MULTILINE)
    scripts = [re.sub(r"^ {4}", "", block, flags=re.MULTILINE).strip() + "\n" for block in blocks]
    return [script for script in scripts if script.startswith("#!/bin/bash")]


class Cluster:
    """A folder with the program in it, where job scripts run; output is what their --output file holds."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.commands = folder / "commands"
        self.commands.mkdir(parents=True)
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL),
                           ("python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'),
                           ("torchrun", f'#!/bin/sh\nexec "{sys.executable}" -m torch.distributed.run "$@"\n')):
            path = self.commands / name
            path.write_text(text)
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        (folder / "train.py").symlink_to(ROOT / "train.py")
        self.job = 17

    @property
    def output(self) -> str:
        return next(self.folder.glob("*.log")).read_text()

    def sbatch(self, script: str, is_signalled) -> list[int]:
        """Runs a job until it is not queued again; returns its exit codes.

        is_signalled(number of the start, from 0) is asked until it is True, and then the job's steps get the signal of
        its --signal.
        """
        lines = re.findall("^#SBATCH (.*)", script, re.MULTILINE)
        options = dict(re.findall(r"--([\w-]+)(?:=(\S+))?", " ".join(lines)))
        assert "requeue" in options
        assert not options["signal"].startswith("B:")
        name, seconds = options["signal"].split("@")
        assert int(seconds) >= 60, "Slurm may be a minute early or late"
        path = self.folder / "job.sh"
        path.write_text(script)
        log = self.folder / options["output"].replace("%j", str(self.job))
        codes = []
        while True:
            mode = "a" if options.get("open-mode") == "append" else "w"
            environment = {**os.environ, "PATH": f"{self.commands}:{os.environ['PATH']}", "PLAYED": str(self.folder),
                           "SLURM_JOB_ID": str(self.job), "SLURM_NNODES": options["nodes"],
                           "SLURM_JOB_NODELIST": "node[1-2]", "OMP_NUM_THREADS": "1"}
            with log.open(mode) as output, subprocess.Popen(["bash", str(path)], cwd=self.folder, stdout=output,
                                                            stderr=output, env=environment) as job:
                self._watch(job, name, partial(is_signalled, len(codes)))
            codes.append(job.returncode)
            requeued = self.folder / "requeued"
            if not requeued.exists():
                return codes
            assert requeued.read_text() == f"{self.job}\n"
            requeued.unlink()
            assert len(codes) < 5, self.output

    def _watch(self, job: subprocess.Popen, signal_name: str, is_signalled) -> None:
        has_signalled = False
        while job.poll() is None:
            try:
                job.wait(0.1)
            except subprocess.TimeoutExpired:
                running = self.folder / "running"
                if not has_signalled and running.exists() and is_signalled():
                    has_signalled = True
                    for session in running.read_text().split():  # all processes of the steps
                        subprocess.run(["pkill", f"-{signal_name}", "-s", session], check=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
