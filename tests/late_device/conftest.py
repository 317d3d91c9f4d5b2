"""The late device as this process's GPU, and the commands on it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import evaluate
import generate
import train
from tests.helpers.training import metrics_of
from tests.late_device import device

SHAPE = ["--n_layer", "2", "--n_head", "2", "--n_embd", "32", "--seq_length", "16", "--batch_size", "4",
         "--learning_rate", "0.001", "--sample_interval", "0", "--eval_interval", "100"]


class Trained(NamedTuple):
    """What a run of train.py has left: its output folder, the figures of metrics.jsonl, and the text it printed."""

    folder: Path
    metrics: list[dict[str, Any]]
    text: str


@pytest.fixture(scope="session")
def library():
    """The library of the device, which counts waits and hazards. PyTorch's autograd must not have begun without it."""
    library = device.register()
    try:
        torch.ones(1, device="late", requires_grad=True).sum().backward()
    except RuntimeError:
        pytest.skip("another test computed a gradient first in this process: python -m pytest -m late_device")
    return library


@pytest.fixture
def late(library, monkeypatch, one_thread):
    """The device as the GPU of this process."""
    device.install(library, monkeypatch.setattr)
    precision = torch.get_float32_matmul_precision()
    yield library
    library.allow(1 << 40)
    torch.set_float32_matmul_precision(precision)


@pytest.fixture
def waits_of(late) -> Callable[[Callable[[], object]], dict[str, int]]:
    """A function: how often the host waited while another function ran, by the cause."""

    def count(work: Callable[[], object]) -> dict[str, int]:
        before = late.waits()
        work()
        return {cause: num - before.get(cause, 0) for cause, num in late.waits().items() if num > before.get(cause, 0)}

    return count


@pytest.fixture
def flags_of(corpus, tmp_path) -> Callable[..., list[str]]:
    """A function: the command line of a run of so many steps in the folder out."""

    def flags(out: str, steps: int, *more: str) -> list[str]:
        return ["--data_dir", str(corpus), "--output_dir", str(tmp_path / out), *SHAPE, "--max_steps", str(steps),
                "--log_interval", "1", *more]

    return flags


@pytest.fixture
def trained(flags_of, tmp_path, capsys) -> Callable[..., Trained]:
    """A function: runs train.py for so many steps in the folder out."""

    def call(out: str, steps: int, *more: str) -> Trained:
        code = train.main(flags_of(out, steps, *more))
        captured = capsys.readouterr()
        assert code == 0, captured
        return Trained(tmp_path / out, metrics_of(tmp_path / out), captured.out + captured.err)

    return call


@pytest.fixture
def generated(capsys) -> Callable[..., list[list[int]]]:
    """A function: the new ids of each text by generate.py."""

    def call(ckpt: Path, num_tokens: int, *more: str) -> list[list[int]]:
        capsys.readouterr()  # what a failed run has printed
        code = generate.main(["--ckpt", str(ckpt), "--max_new_tokens", str(num_tokens), "--json", *more])
        captured = capsys.readouterr()
        assert code == 0, captured
        return [json.loads(line)["ids"] for line in captured.out.splitlines()]

    return call


@pytest.fixture
def evaluated(corpus, tmp_path) -> Callable[..., float]:
    """A function: the loss in nats per token by evaluate.py."""

    def call(ckpt: Path, *more: str) -> float:
        path = tmp_path / "figures.json"
        path.unlink(missing_ok=True)
        assert evaluate.main(["--ckpt", str(ckpt), "--tokens", str(corpus), "--json", str(path), *more]) == 0
        return json.loads(path.read_text())["results"][0]["nats_per_token"]

    return call
