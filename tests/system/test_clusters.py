"""The job scripts of docs/clusters.md: understood by bash and train.py, and run under a Slurm that is played."""

import json
import re
import shlex
import shutil
import subprocess

import pytest

import train
from tests.helpers.commands import ROOT
from tests.helpers.slurm import Cluster, free_port, job_scripts
from tests.helpers.training import TINY

PAGE = ROOT / "docs/clusters.md"
THEIR_MACHINE = "--use_gpu --use_amp --compile"  # the only words of the scripts that a test replaces, besides numbers
OUR_MACHINE = shlex.join([*TINY, "--no-use_gpu", "--max_steps", "1500", "--log_interval", "1", "--eval_interval",
                          "5000", "--sample_interval", "0", "--epochs", "99999", "--checkpoint_interval", "99999"])


def test_bash_and_train_py_understand_the_scripts():
    scripts = job_scripts(PAGE)
    assert len(scripts) == 2
    for script in scripts:
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
        found = re.search(r"train\.py (.*--resume_from auto)$", script.replace("\\\n", " "), re.MULTILINE)
        assert found
        words = shlex.split(found[1])
        assert THEIR_MACHINE in shlex.join(words)
        assert train.read_flags(words).resume_from == "auto"


def walk(script: str, cluster: Cluster, corpus) -> list[dict]:
    """Runs a script whose first job is stopped at step 100 or so; returns the run's metrics."""
    shutil.copytree(corpus, cluster.folder / "data")
    metrics = cluster.folder / "out/metrics.jsonl"
    assert script.count(THEIR_MACHINE) == 1
    codes = cluster.sbatch(script.replace(THEIR_MACHINE, OUR_MACHINE),
                           lambda start: start == 0 and metrics.exists() and metrics.read_bytes().count(b"\n") > 100)
    assert len(codes) == 2, cluster.output
    assert codes[0] != 0
    assert codes[1] == 0, cluster.output
    log = (cluster.folder / "out/log.txt").read_text()
    assert log.count("==== ") == 2
    assert "from the beginning: python train.py" in log
    assert "resumed after step" in log
    assert "SIGTERM: stopping; the state is saved first" in log
    return [json.loads(line) for line in metrics.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1], ids=["one GPU", "two nodes"])
def test_a_job_stops_before_its_limit_and_goes_on_in_the_next_one(corpus, tmp_path, number):
    script = job_scripts(PAGE)[number].replace("--nproc_per_node 8", "--nproc_per_node 1")
    rows = walk(script.replace(":29500", f":{free_port()}"), Cluster(tmp_path), corpus)
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 1501))


@pytest.mark.slow
def test_a_job_that_cannot_start_is_not_queued_again(tmp_path):
    for script in job_scripts(PAGE):
        (folder := tmp_path / str(len(script))).mkdir()
        cluster = Cluster(folder)
        (folder / "out").mkdir()
        (folder / "out/starts.jsonl").write_text('{"event": "end", "how": "stopped by SIGTERM"}\n')  # of an earlier job
        script = script.replace("--nodes=2", "--nodes=1").replace("--nproc_per_node 8", "--nproc_per_node 1")
        script = script.replace(":29500", f":{free_port()}").replace("--max_restarts 3", "--max_restarts 0")
        (code,) = cluster.sbatch(script.replace(THEIR_MACHINE, OUR_MACHINE), lambda start: False)
        assert code in (1, 3), "there are no tokens; torchrun returns 1"
