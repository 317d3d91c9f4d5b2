"""A run that is killed while a tracker records it, and resumed: one run in the tracker, as its own library reads it."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.helpers.commands import ROOT, run_python
from tests.helpers.training import TINY

# Each prints what the tracker holds in the folder given: [step, value] of the losses and of the validations, and the
# steps of the samples.
READERS = {
    "tensorboard": """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(folder + "/tensorboard", size_guidance={"scalars": 0, "tensors": 0}).Reload()
losses, validations = ([[event.step, event.value] for event in events.Scalars(name)] for name in ("loss", "val_loss"))
samples = [event.step for event in events.Tensors("sample/text_summary")]
""",
    "trackio": """
import os
os.environ["TRACKIO_DIR"] = folder + "/trackio"
import trackio
from trackio.sqlite_storage import SQLiteStorage
run, = trackio.Api().runs("language-models")
rows = SQLiteStorage.get_logs("language-models", run.name)
losses, validations = ([[row["step"], row[name]] for row in rows if name in row] for name in ("loss", "val_loss"))
samples = [row["step"] for row in rows if "sample" in row]
assert run.config["seq_length"] == 8
""",
    # wandb has no reader in Python any more: its messages in the log format of LevelDB, as its own programs read them.
    "wandb": """
import glob, struct
from wandb.proto.wandb_internal_pb2 import Record
path, = glob.glob(folder + "/wandb/offline-run-*/*.wandb")
content, at, losses, validations, samples, whole = open(path, "rb").read(), 7, [], [], [], b""
while at + 7 <= len(content):
    if 2**15 - at % 2**15 < 7:
        at += 2**15 - at % 2**15
        continue
    length, kind = struct.unpack("<HB", content[at + 4:at + 7])
    whole, at = whole + content[at + 7:at + 7 + length], at + 7 + length
    if kind in (1, 4):
        record, whole = Record.FromString(whole), b""
        if record.WhichOneof("record_type") == "history":
            items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
            step = int(items["_step"])
            losses += [[step, float(items["loss"])]] if "loss" in items else []
            validations += [[step, float(items["val_loss"])]] if "val_loss" in items else []
            samples += [step] if "sample" in items else []
""",
}


def wait_for(what: Callable[[], object], process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 300
    while not what():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_killed_run_is_one_run_in_its_tracker(name, corpus, tmp_path):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"the package {name} is not installed")
    out, printed = tmp_path / "out", tmp_path / "printed.txt"
    flags = [*TINY, "--no-use_gpu", "--data_dir", str(corpus), "--output_dir", str(out), "--log_interval", "10",
             "--eval_interval", "100", "--sample_interval", "200", "--checkpoint_every_steps", "150", "--tracker", name,
             "--epochs", "999999", "--checkpoint_interval", "999999"]
    metrics = out / "metrics.jsonl"

    def last_step() -> int:
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        return json.loads(lines[-1])["step"] if lines else 0

    with printed.open("w") as file, subprocess.Popen([sys.executable, str(ROOT / "train.py"), *flags, "--max_steps",
                                                      "200000"], stdout=file, stderr=file) as process:
        wait_for(lambda: "\ntracker " in printed.read_text(), process)
        assert "warning: --tracker" not in printed.read_text()
        seen = last_step()
        wait_for(lambda: last_step() > seen + 400, process)
        process.send_signal(signal.SIGKILL)
    killed_at = last_step()
    known = (out / "trackers.json").read_text()
    argv = ["--resume_from", str(out), "--max_steps", str(killed_at + 500)]
    done = subprocess.run([sys.executable, str(ROOT / "train.py"), *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning: --tracker" not in done.stderr
    assert (out / "trackers.json").read_text() == known
    resumed_at = int(re.search(r"resume +from checkpoint-(\d+)", done.stdout)[1])  # type: ignore[index]
    assert 0 < resumed_at < killed_at

    read = run_python(f"import json, sys\nfolder = sys.argv[1]\n{READERS[name]}\n"
                      "print('\\n' + json.dumps([losses, validations, samples]))", out)
    assert read.returncode == 0, read.stderr
    losses, validations, samples = json.loads(read.stdout.splitlines()[-1])
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    for found, field in ((losses, "loss"), (validations, "val_loss")):
        expected = {row["step"]: row[field] for row in rows if field in row}
        assert [step for step, _ in found] == sorted(expected)
        assert dict(found) == pytest.approx(expected)
    assert sorted(samples) == [row["step"] for row in rows if "sample" in row]
