"""Runs that began before there were schedules to choose from go on with the recipe they began with, bit for bit.

The files are those that the program wrote then, in a run that nothing but its horizon and its shape was given for.
"""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

import train
from common.config import read_toml
from common.files import sha256_of
from tests.helpers.training import metrics_of, same_tensors
from watching.monitor import Monitor

CONFIG = """
n_layer = 1
n_head = 2
n_embd = 16
seq_length = 8
batch_size = 4
max_steps = 20
use_gpu = false
eval_interval = 7
sample_interval = 0
log_interval = 1

[decided]  # by the program
data_dir = "data"
dropout = 0.0
bias = true
tie_weights = true
gradient_accumulation_steps = 1
use_lr_scheduler = true
weight_decay = 0.1
beta1 = 0.9
beta2 = 0.95
grad_clip = 1.0
label_smoothing = 0.0
seed = 1337
checkpoint_interval = 1
checkpoint_every_minutes = 10.0
keep_checkpoints = 3
epochs = 1
# for 7.97K parameters, 32 tokens a step and 640 in all
learning_rate = 0.002118803268849675
min_lr = 2.118803268849675e-05
# 2% of the steps, at least 2 / (1 - beta2) (Ma and Yarats 2019), at most a
# fifth
warmup_steps = 4
eval_tokens = 16384
"""
SETTINGS = {"batch_size": 4, "accumulation": 1, "epochs": 1, "total_steps": 20, "learning_rate": 0.002118803268849675,
            "min_lr": 2.118803268849675e-05, "warmup_steps": 4, "use_lr_scheduler": True, "eval_interval": 7,
            "eval_tokens": 16384, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "grad_clip": 1.0,
            "label_smoothing": 0.0, "dropout": 0.0, "seed": 1337, "fp8_head": False, "max_minutes": None}
# What those runs had, said in the flags of today.
THEN = ["--n_layer", "1", "--n_head", "2", "--n_embd", "16", "--seq_length", "8", "--batch_size", "4", "--max_steps",
        "20", "--no-use_gpu", "--eval_interval", "7", "--sample_interval", "0", "--log_interval", "1", "--data_dir",
        "data", "--learning_rate", "0.002118803268849675", "--weight_decay", "0.1", "--grad_clip", "1", "--beta1",
        "0.9", "--beta2", "0.95"]
COSINE = ["--lr_schedule", "cosine", "--min_lr", "2.118803268849675e-05", "--warmup_steps", "4"]
LINES_OF_COSINE = ("min_lr", "warmup_steps")  # which a constant rate's files do not hold


@pytest.fixture
def older(corpus, tmp_path, monkeypatch):
    """A function: a run with the flags, whole; and stopped at step 9, out, with the files that were written then."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(corpus, "data")

    def make(flags: list[str], config: str, settings: dict, keeps_config: bool = True) -> None:
        assert train.main([*THEN, *flags, "--output_dir", "whole"]) == 0
        log_step = Monitor.add
        monkeypatch.setattr(Monitor, "add", lambda monitor, *rest: (
            log_step(monitor, *rest), monitor.state.step == 9 and os.kill(os.getpid(), signal.SIGTERM)))
        assert train.main([*THEN, *flags, "--output_dir", "out"]) == 128 + signal.SIGTERM
        monkeypatch.setattr(Monitor, "add", log_step)
        Path("out/config.toml").write_text(config)
        recorded = read_toml(Path("out/config.toml"))
        Path("out/config.toml").write_text(config if keeps_config else "")
        state, manifest = Path("out/checkpoint-9/trainer_state.json"), Path("out/checkpoint-9/manifest.json")
        fields = {**json.loads(state.read_text()), "settings": settings,
                  "flags": {"given": recorded.given, "decided": recorded.decided}}
        state.write_text(json.dumps(fields))
        entries = json.loads(manifest.read_text())
        entries["files"][state.name] = {"bytes": state.stat().st_size, "sha256": sha256_of(state)}
        manifest.write_text(json.dumps(entries))

    return make


@pytest.mark.parametrize("has_config", [
    pytest.param(True, id="by config.toml"),
    pytest.param(False, id="by the checkpoint alone", marks=pytest.mark.slow)])
def test_a_run_with_a_cosine_goes_on_with_it(older, capsys, has_config):
    older(COSINE, CONFIG, SETTINGS, has_config)
    capsys.readouterr()
    assert train.main(["--resume_from", "out"]) == 0
    assert "resume      changed" not in capsys.readouterr().out
    assert metrics_of(Path("whole")) == metrics_of(Path("out"))
    assert same_tensors(Path("whole/checkpoint-20"), Path("out/checkpoint-20"))


@pytest.mark.slow
def test_a_run_at_a_constant_rate_goes_on_at_it(older, capsys):
    lines = [line for line in CONFIG.splitlines() if not line.startswith(LINES_OF_COSINE)]
    config = "\n".join(lines).replace("use_lr_scheduler = true", "use_lr_scheduler = false")
    older(["--no-use_lr_scheduler"], config, {**SETTINGS, "use_lr_scheduler": False})
    capsys.readouterr()
    assert train.main(["--resume_from", "out"]) == 0
    assert "resume      changed" not in capsys.readouterr().out
    assert metrics_of(Path("whole")) == metrics_of(Path("out"))
