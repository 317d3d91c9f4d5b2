"""A tiny model, its batches, and what a run of train.py left behind."""

import contextlib
import io
import json
import types
from pathlib import Path
from typing import Any

import torch

from data import Batch
from gpt.checkpoint.stored import TrainState
from gpt.common.errors import UserError
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.machine import device
from gpt.machine.device import Machine
from gpt.machine.processes import ALONE
from gpt.machine.runtime import Runtime
from gpt.optimizers.build import build_optimizer, parameter_groups
from gpt.planning.recipe import Recipe
from gpt.training.run import Run
from gpt.training.strategies import Strategy, Votes
from model import GPT, GPTConfig, LanguageModel

TINY = ["--n_layer", "1", "--n_head", "2", "--n_embd", "16", "--seq_length", "8", "--batch_size", "4"]
QUIET = ["--sample_interval", "0", "--eval_interval", "1000"]  # no checkpoints but those a test is about

OUT_OF_MEMORY = {
    "gpu": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cpu": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes. Error code 12"),
    "host": MemoryError(),
}


def trained(argv: list[str], capsys):
    """Runs train.main in this process; returns (exit code or UserError, what it printed)."""
    import train

    try:
        code = train.main(argv)
    except UserError as error:
        code = error
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def recipe(**changes) -> Recipe:
    values = {"batch_size": 4, "accumulation": 1, "windows_per_epoch": 100, "epochs": 1, "total_steps": 100,
              "learning_rate": 1e-3, "min_lr": 1e-5, "warmup_steps": 10,
              "lr_schedule": "cosine", "decay_share": 0.2, "cooldown": None, "weight_decay": 0.1,
              "embedding_learning_rate": 1e-3, "init_std": 0.02, "beta2": 0.95,
              "grad_clip": 1.0, "eval_interval": 10, "eval_tokens": 400, "sample_interval": 0,
              "log_interval": 1, "reasons": {}}
    return Recipe(**{**values, **changes})


def on_cpu() -> Machine:
    return device.choose(False, None, "auto", None)


def small_model(**changes) -> GPT:
    torch.manual_seed(1)
    shape = {"vocab_size": 70, "seq_length": 8, "n_layer": 2, "n_head": 2, "n_embd": 16}
    return GPT(GPTConfig(**{**shape, **changes})).init_weights()


def small_batch(rows: int, seed: int = 0) -> Batch:
    tokens = torch.randint(0, 70, (rows, 9), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1], tokens[:, 1:]


def run_of(model: LanguageModel, scaler: torch.amp.GradScaler | None = None, learning_rate: float = 1e-2,
           name: str = "adamw", machine: Machine | None = None, grad_clip: float = 1.0, **more: Any) -> Run:
    """What train.try_step needs to train the model; more are an optimizer, a strategy, batches, a teacher."""
    import train

    machine, optimizer = machine or on_cpu(), more.get("optimizer") or build_optimizer(
        name, parameter_groups(model, name, 0.1), learning_rate, (0.9, 0.95))
    args = train.read_flags(["--no-use_gpu"])
    runtime = Runtime(Progress(io.StringIO()), Signals(), ALONE, contextlib.ExitStack(), 0.0)
    runtime.use(machine)
    setup: Any = types.SimpleNamespace(args=args, runtime=runtime, config=model.config,
                                       recipe=recipe(batch_size=1, grad_clip=grad_clip))
    return Run(setup, model, optimizer, scaler or torch.amp.GradScaler("cpu", enabled=False),
               more.get("strategy") or Strategy(model), Votes(ALONE),
               more.get("batches") or types.SimpleNamespace(mean_targets=lambda *_: None),  # type: ignore[arg-type]
               TrainState(), more.get("teacher"))


def metrics_of(folder: Path) -> list[dict]:
    """The figures of metrics.jsonl, without what depends on the machine and its clock; neither samples nor advice."""
    measured = {"time", "seconds", "tokens_per_second", "mfu", "memory_bytes", "gpu", "gpu_utilization"}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in measured} for line in lines
            if "loss" in line or "val_loss" in line]


def same_tensors(a: Path, b: Path) -> bool:
    """True if weights and optimizer state of two checkpoints are byte-identical."""
    return all((a / name).read_bytes() == (b / name).read_bytes()
               for name in ("model.safetensors", "optimizer.safetensors"))


def forward_that_needs(monkeypatch, most_rows: int, error: Exception) -> list[int]:
    """Makes the model's training forward raise the error for more rows than that; returns the rows of each call."""
    forward, rows = GPT.forward, []

    def limited(model, idx_BT, *rest):
        if model.training:
            rows.append(len(idx_BT))
        if len(idx_BT) > most_rows:
            raise error
        return forward(model, idx_BT, *rest)

    monkeypatch.setattr(GPT, "forward", limited)
    return rows
