"""tracker_process.py: rows are read as they come, and a run of wandb is online only after a login."""

import json
import os
import sys
import types

import pytest

from gpt.watching.tracker_process import RecordedRun, rows, wandb


def test_rows_are_read_as_they_come_whole_and_to_the_last_one(tmp_path):
    path, ends = tmp_path / "metrics.jsonl", [False, False, True]
    path.write_text('{"step": 1, "gpu": "H100", "mfu": null}\n{"step": 2, "lo')

    def has_ended() -> bool:
        if len(ends) == 2:
            with path.open("a") as file:
                file.write('ss": 2.0}\n')
        return ends.pop(0)

    assert list(rows(path, has_ended)) == [{"step": 1}, {"step": 2, "loss": 2.0}]


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A wandb that knows the run already, in an environment without any setting of its own."""
    started = types.SimpleNamespace(resumed=True, url="https://wandb.example/1", finish=lambda: None,
                                    settings=types.SimpleNamespace(sync_dir="wandb/offline-run-2-id"))
    module = types.SimpleNamespace(init=lambda **given: started, Html=json.dumps)
    monkeypatch.setitem(sys.modules, "wandb", module)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", {**os.environ, "NETRC": str(tmp_path / "netrc")})


def test_wandb_goes_on_after_the_resumed_step_online_and_begins_again_offline(library, tmp_path):
    run = RecordedRun("id", 7, {}, str(tmp_path / "wandb"))
    (old := tmp_path / "wandb/offline-run-1-id").mkdir(parents=True)
    (other := tmp_path / "wandb/offline-run-1-other").mkdir()
    assert wandb(run)[2:] == (f"to upload: wandb sync {tmp_path}/wandb/offline-run-2-id", -1)
    assert not old.exists()
    assert other.exists()
    os.environ.pop("WANDB_MODE")
    os.environ["WANDB_DIR"] = str(tmp_path / "another")
    assert wandb(run).opening == f"to upload: wandb sync {tmp_path}/another/wandb/offline-run-2-id"
    os.environ.pop("WANDB_MODE")
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password key\n")
    assert wandb(run)[2:] == ("wandb: https://wandb.example/1", 7)
    assert os.environ["WANDB_PROJECT"] == "language-models"
