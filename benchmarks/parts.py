"""Parts of the program that are timed alone: products of matrices, loading batches, saving a checkpoint.

B batch, T time.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

import data
import train
from benchmarks.answers import Done, LoaderTimes, Probe, SavingTimes
from benchmarks.ladder import LEARNING_RATE, SEED, Shape
from checkpoint.contents import Tensors
from checkpoint.save import Snapshot, save
from checkpoint.verify import verify
from common.errors import Exit, UserError
from common.words import printable, several
from machine import device
from machine.facts import matmul_flops, matmul_width
from model import GPT, SIZES, GPTConfig
from tokens.corpus import open_corpus
from tokens.layouts import Part
from tokens.stream import DTYPES
from training.starting import find_corpus

# ---------------------------------------------------------------- the machine


def probe(use_gpu: bool | None, precision: str | None, shape: dict[str, Any], width: int | None = None) -> Probe:
    """What the machine is, and how fast it multiplies square matrices of the width in each precision.

    Raises UserError (exit 5) if use_gpu is True and there is none.
    """
    if use_gpu and (reason := device.why_no_cuda()):
        raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or drop the flag to time the CPU.")
    machine = device.choose(False if device.uses_mps(use_gpu) else use_gpu, True, "auto", True)
    on_gpu = machine.device.type == "cuda"
    why_no_half = "--precision fp32" if precision == "fp32" else ""
    if not on_gpu and precision is None and not device.cpu_has_bf16():
        why_no_half = "this CPU has no bf16 instructions"

    width = width or matmul_width(machine)
    torch.set_float32_matmul_precision("highest")
    speeds = {"fp32": matmul_flops(machine, torch.float32, width)}
    if on_gpu:
        torch.set_float32_matmul_precision("high")
        speeds["tf32"] = matmul_flops(machine, torch.float32, width)
    if not why_no_half:
        speeds[machine.precision] = matmul_flops(machine, machine.dtype, width)

    what = Shape(**shape)
    return Probe(
        device=machine.device.type,
        name=machine.name if on_gpu else f"{machine.name}, {several(torch.get_num_threads(), 'thread')}",
        software=f"torch {torch.__version__}, Python {sys.version.split()[0]}",
        half="fp32" if why_no_half else machine.precision,
        why_no_half=why_no_half,
        why_no_compile=device.why_no_compile(machine.device),
        why_no_fp8=(device.why_no_fp8() or "") if on_gpu else "needs a GPU",
        why_no_triton=(device.why_no_triton() or "") if on_gpu else "needs a GPU",
        peak_flops=machine.peak_flops,
        matmul_flops=speeds,
        matmul_width=width,
        flops_per_token=GPTConfig(what.vocab_size, what.seq_length, *SIZES[what.model_size]).flops_per_token,
        num_threads=torch.get_num_threads(),
        num_gpus=torch.cuda.device_count() if on_gpu else 0)


# ---------------------------------------------------------------- loading batches


def check_corpus(data_dir: str, seq_length: int) -> Done:
    """Opens a folder of tokens as train.py does. Raises UserError (exit 3) if it cannot, or for fewer than T + 1."""
    corpus = find_corpus(train.read_flags(["--data_dir", data_dir]))
    if corpus.train.length <= seq_length:
        raise UserError(Exit.DATA, f"--data_dir {printable(data_dir)}: its {several(corpus.train.length, 'token')} are "
                                   f"too few for a sequence of T {seq_length:,}. Lower --seq_length, or give more text "
                                   "to pretokenize.py.")
    return Done()


def loader_times(data_dir: str, seq_length: int, turns: int = 9, num_batches: int = 256) -> LoaderTimes:
    """Times a batch of 64 x T on the CPU: ours from RAM and from a warm memory map, and nanoGPT's get_batch.

    The three take turns of num_batches batches each; our order of windows is worked out about once a turn.
    """
    B, T = 64, seq_length
    device.set_up(device.choose(False, None, "auto", False), True, Path())  # as train.py does, for all three
    folder, cpu = Path(data_dir), torch.device("cpu")
    stream = open_corpus(folder, None, folder / "metadata.json", None).train
    from_ram, from_map = (data.Batches(data.CorpusWindows(stream, where, T, SEED, cpu), B, cpu)
                          for where in ("ram", "mmap"))
    ways: dict[str, Callable[[int], object]] = {
        "ours, from RAM": lambda i: from_ram.get(i * B, 0),
        "get_batch": lambda _: nanogpt_get_batch(stream.parts[0], B, T),
        "ours, from a warm map": lambda i: from_map.get(i * B, 0),
    }

    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            for i in range(turn * num_batches, (turn + 1) * num_batches):
                way(i)
            if turn:  # the first warms up
                times[name].append((time.perf_counter() - started) / num_batches * 1e6)
    return LoaderTimes(_medians(times), turns, num_batches, stream.length)


def nanogpt_get_batch(part: Part, B: int, T: int) -> tuple[torch.Tensor, torch.Tensor]:
    """get_batch of nanoGPT's train.py: the map opened again, random starts, a slice and a widening for each row."""
    tokens = np.memmap(part.path, dtype=DTYPES[part.dtype], mode="r", offset=part.offset_bytes)
    starts = torch.randint(len(tokens) - T, (B,))
    x = torch.stack([torch.from_numpy(tokens[i:i + T].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(tokens[i + 1:i + 1 + T].astype(np.int64)) for i in starts])
    return x, y


# ---------------------------------------------------------------- saving


def saving_times(shape: dict[str, Any], folder: str, use_gpu: bool | None, turns: int = 5) -> SavingTimes:
    """Times the parts of a checkpoint, in turns with save_file and a raw write of the same bytes, in the folder."""
    machine = device.choose(False if device.uses_mps(use_gpu) else use_gpu, None, "auto", False)
    device.set_up(machine, True, Path())
    place = Path(folder)
    model, tensors = _trained_one_step(Shape(**shape), machine)
    snapshot = Snapshot()
    snapshot.reserve(tensors.num_bytes, machine.device.type == "cuda")  # train.py does it before the first step
    copies = snapshot.take(tensors)

    ways: dict[str, Callable[[], object]] = {
        "raw write, fsync": lambda: _write_raw(place / "raw", copies),
        "training waits: the copy": lambda: snapshot.take(tensors),
        "behind it: written, hashed, on the disk, read back": lambda: save(
            place, 1, model.config, copies, {}, None, None, ""),
        "loading: every file's sha256": lambda: verify(place / "checkpoint-1"),
        "safetensors' save_file, nothing checked": lambda: save_file(
            {**copies.training, **copies.model}, place / "theirs"),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        shutil.rmtree(place / "checkpoint-1", ignore_errors=True)
        for name, way in ways.items():
            for path in (place / "raw", place / "theirs"):  # each time a new file, as those of a checkpoint are
                path.unlink(missing_ok=True)
            os.sync()
            started = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - started)

    seconds = _medians(times)
    _, copying, behind, *_ = seconds.values()
    return SavingTimes({**seconds, "whole": copying + behind}, turns, tensors.num_bytes, times)


def _trained_one_step(shape: Shape, machine: device.Machine) -> tuple[GPT, Tensors]:
    """A model of the shape, and its weights with the state that an optimizer has after a step."""
    config = GPTConfig(shape.vocab_size, shape.seq_length, *SIZES[shape.model_size], tie_weights=shape.tie_weights)
    model = GPT.create(config, machine.device)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model, Tensors.of(model, optimizer)


def _write_raw(path: Path, tensors: Tensors) -> None:
    """Writes the tensors' bytes one after the other into a file, and waits until they are on the disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for part in (tensors.model, tensors.training):
        for tensor in part.values():
            block = tensor.view(-1).view(torch.uint8).numpy().data
            while block:
                block = block[os.write(handle, block):]
    os.fsync(handle)
    os.close(handle)


def _medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(found) for name, found in times.items()}
