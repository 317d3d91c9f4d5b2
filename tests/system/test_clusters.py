"""The job scripts of docs/clusters.md: understood by bash and train.py, and run under a Slurm that is played.

srun starts its command once for each node, in a session of its own. When the first job's run has logged 100 steps,
these sessions get the signal of --signal, all processes as from Slurm. A job that `scontrol requeue` names is started
again.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import train
from tests.helpers.commands import ROOT
from tests.helpers.training import TINY

PAGE = (ROOT / "docs/clusters.md").read_text(encoding="utf-8")
SCRIPTS = [re.sub(r"^ {4}", "", block, flags=re.MULTILINE).strip() + "\n"
           for block in re.findall(r"(?:^(?: {4}.*)?\n)+", PAGE, re.MULTILINE) if "#!/bin/bash" in block]
THEIR_MACHINE = "--use_gpu --use_amp --compile"  # the only words of the scripts that a test replaces, besides numbers
OUR_MACHINE = shlex.join([*TINY, "--no-use_gpu", "--max_steps", "1500", "--log_interval", "1", "--eval_interval",
                          "5000", "--sample_interval", "0", "--epochs", "99999", "--checkpoint_interval", "99999"])
PLAYED = {
    "srun": """#!/bin/bash
for node in $(seq "$SLURM_NNODES"); do
    setsid "$@" &
    echo $! >> running
done
for pid in $(cat running); do wait "$pid" || code=$?; done
rm running
exit "${code:-0}"
""",
    "scontrol": """#!/bin/bash
case "$1 $2" in
    "requeue $SLURM_JOB_ID") touch requeued ;;
    show*) echo localhost; [ "$SLURM_NNODES" -eq 1 ] || echo other ;;
esac
""",
    "python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
    "torchrun": f'#!/bin/sh\nexec "{sys.executable}" -m torch.distributed.run "$@"\n',
}


def sbatch(script: str, folder: Path, is_signalled: bool) -> list[int]:
    """Runs a job in a folder with the program in it until it is not queued again; returns its exit codes."""
    options = dict(re.findall(r"--([\w-]+)(?:=(\S+))?", " ".join(re.findall("^#SBATCH (.*)", script, re.MULTILINE))))
    name, seconds = options["signal"].split("@")
    assert "requeue" in options
    assert not name.startswith("B:")
    assert int(seconds) >= 60, "Slurm may be a minute early or late"
    for command, text in PLAYED.items():
        (folder / command).write_text(text)
        (folder / command).chmod(0o755)
    (folder / "train.py").symlink_to(ROOT / "train.py")
    assert script.count(THEIR_MACHINE) == 1
    script = script.replace("--nproc_per_node 8", "--nproc_per_node 1").replace(THEIR_MACHINE, OUR_MACHINE)
    script = script.replace(":29500", f":{20_000 + os.getpid() % 10_000}")
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "17", "OMP_NUM_THREADS": "1",
                   "SLURM_NNODES": options["nodes"], "SLURM_JOB_NODELIST": "node[1-2]"}
    metrics, running, requeued = (folder / name for name in ("out/metrics.jsonl", "running", "requeued"))
    codes: list[int] = []
    while not codes or requeued.exists():
        assert len(codes) < 5
        requeued.unlink(missing_ok=True)
        with (folder / "log").open("a") as log:
            job = subprocess.Popen(["bash", "-c", script], cwd=folder, stdout=log, stderr=log, env=environment)
        while job.poll() is None:
            try:
                job.wait(0.1)
            except subprocess.TimeoutExpired:
                if is_signalled and metrics.exists() and metrics.read_bytes().count(b"\n") > 100:
                    is_signalled = False
                    for session in running.read_text().split():
                        subprocess.run(["pkill", f"-{name}", "-s", session], check=False)
        codes.append(job.returncode)
    return codes


def test_bash_and_train_py_understand_the_scripts():
    assert len(SCRIPTS) == 2
    for script in SCRIPTS:
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
        (flags,) = re.findall(r"train\.py (.*--resume_from auto)$", script.replace("\\\n", " "), re.MULTILINE)
        assert THEIR_MACHINE in flags
        assert train.read_flags(shlex.split(flags)).resume_from == "auto"


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=["one GPU", "two nodes"])
def test_a_job_stops_before_its_limit_and_goes_on_in_the_next_one(corpus, tmp_path, script):
    shutil.copytree(corpus, tmp_path / "data")
    first, *second = sbatch(script, tmp_path, is_signalled=True)
    assert (first != 0, second) == (True, [0]), (tmp_path / "log").read_text()
    log = (tmp_path / "out/log.txt").read_text()
    assert log.count("==== ") == 2
    assert re.search(r"from the beginning: (python|torchrun --nproc_per_node 1) train\.py", log)
    assert "resumed after step" in log
    assert "SIGTERM: stopping; the state is saved first" in log
    rows = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 1501))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=["one GPU", "several"])
def test_a_job_that_cannot_start_is_not_queued_again(tmp_path, script):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/starts.jsonl").write_text('{"event": "end", "how": "stopped by SIGTERM"}\n')  # of an earlier job
    script = script.replace("--nodes=2", "--nodes=1").replace("--max_restarts 3", "--max_restarts 0")
    (code,) = sbatch(script, tmp_path, is_signalled=False)
    assert code in (1, 3), "there are no tokens; torchrun returns 1"
