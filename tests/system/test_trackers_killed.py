"""A run that is killed while a tracker records it, and resumed: one run in the tracker, as its own library reads it."""

import json
import re
import signal

import pytest

from tests.helpers.commands import run_python
from tests.helpers.forks import Raised
from tests.helpers.training import TINY
from tests.helpers.trial import MEASURED, STEP

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


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_killed_run_is_one_run_in_its_tracker(name, corpus, tmp_path, forks):
    pytest.importorskip(name)
    out = tmp_path / "out"
    flags = [*TINY, "--no-use_gpu", "--data_dir", str(corpus), "--output_dir", str(out), "--log_interval", "10",
             "--eval_interval", "100", "--sample_interval", "200", "--checkpoint_every_steps", "150", "--tracker", name,
             "--epochs", "999999", "--checkpoint_interval", "999999", "--max_steps", "3000"]
    killed = forks.run(["train.py", *flags], merged=True, raised=[Raised(STEP, MEASURED + 2000, signal.SIGKILL)])
    assert killed.code == -signal.SIGKILL, killed.stdout
    known = (out / "trackers.json").read_text()
    done = forks.run(["train.py", "--resume_from", str(out)], merged=True)
    assert done.code == 0, done.stdout
    assert "warning: --tracker" not in killed.stdout + done.stdout
    assert (out / "trackers.json").read_text() == known
    assert re.search(r"resume +from checkpoint-1\d+", done.stdout)

    read = run_python(f"import json, sys\nfolder = sys.argv[1]\n{READERS[name]}\n"
                      "print('\\n' + json.dumps([losses, validations, samples]))", out)
    assert read.returncode == 0, read.stderr
    losses, validations, samples = json.loads(read.stdout.splitlines()[-1])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for found, field in ((losses, "loss"), (validations, "val_loss")):
        expected = {row["step"]: row[field] for row in rows if field in row}
        assert [step for step, _ in found] == sorted(expected)
        assert dict(found) == pytest.approx(expected)
    assert sorted(samples) == [row["step"] for row in rows if "sample" in row]
