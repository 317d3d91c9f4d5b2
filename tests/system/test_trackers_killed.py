"""A run that is killed while TensorBoard records it, and resumed: one run there, as its own library reads it."""

import json
import re
import signal

import pytest

from tests.helpers.commands import run_python
from tests.helpers.forks import Raised
from tests.helpers.training import TINY
from tests.helpers.trial import MEASURED, STEP

READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1] + "/tensorboard", size_guidance={"scalars": 0, "tensors": 0}).Reload()
losses, validations = ([[event.step, event.value] for event in events.Scalars(name)] for name in ("loss", "val_loss"))
print(json.dumps([losses, validations, [event.step for event in events.Tensors("sample/text_summary")]]))
"""


@pytest.mark.slow
def test_a_killed_run_is_one_run_in_tensorboard(corpus, tmp_path, forks):
    pytest.importorskip("tensorboard")
    out = tmp_path / "out"
    flags = [*TINY, "--no-use_gpu", "--data_dir", str(corpus), "--output_dir", str(out), "--log_interval", "10",
             "--eval_interval", "100", "--sample_interval", "200", "--checkpoint_every_steps", "150", "--tracker",
             "tensorboard", "--epochs", "999999", "--checkpoint_interval", "999999", "--max_steps", "3000"]
    killed = forks.run(["train.py", *flags], merged=True, raised=[Raised(STEP, MEASURED + 2000, signal.SIGKILL)])
    assert killed.code == -signal.SIGKILL, killed.stdout
    known = (out / "trackers.json").read_text()
    done = forks.run(["train.py", "--resume_from", str(out)], merged=True)
    assert done.code == 0, done.stdout
    assert "warning: --tracker" not in killed.stdout + done.stdout
    assert (out / "trackers.json").read_text() == known
    assert re.search(r"resume +from checkpoint-1\d+", done.stdout)

    read = run_python(READER, out)
    assert read.returncode == 0, read.stderr
    losses, validations, samples = json.loads(read.stdout.splitlines()[-1])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for found, field in ((losses, "loss"), (validations, "val_loss")):
        expected = {row["step"]: row[field] for row in rows if field in row}
        assert [step for step, _ in found] == sorted(expected)
        assert dict(found) == pytest.approx(expected)
    assert sorted(samples) == [row["step"] for row in rows if "sample" in row]
