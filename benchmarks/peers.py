"""Other projects' models, compiled, trained on our batches from our initial weights.

B batch, T time.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import data
from benchmarks.answers import PeerRun
from benchmarks.ladder import LEARNING_RATE, SEED, Shape
from machine import device
from machine.memory import forget_peak, peak_memory
from machine.timing import synchronize
from model import GPT, SIZES, GPTConfig
from tokens.corpus import open_corpus

WEIGHT_DECAY = 0.1  # train.py's defaults, and nanoGPT's
BETAS = (0.9, 0.95)
GRAD_CLIP = 1.0

LossOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of inputs and targets, int64 [B, T] each


@dataclass(frozen=True)
class Peer:
    """A peer's model on the device, its compiled loss, its optimizer, and what differs from ours in words."""

    model: torch.nn.Module
    loss_of: LossOf
    optimizer: torch.optim.Optimizer
    notes: str


def train_peer(who: str, peer_dir: str | None, data_dir: str, shape: dict[str, Any], num_steps: int, every: int,
               precision: str, on_gpu: bool) -> PeerRun:
    """Trains the model of 'nanogpt' (whose folder is peer_dir) or 'transformers' for num_steps steps.

    The device is waited for after the first step, and then after every so many: as often as our run waits for it.
    """
    machine = device.choose(on_gpu, precision in ("bf16", "fp16"), "auto", True)
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    batches, config = _open(Path(data_dir), Shape(**shape), machine.device)

    weights = initial_weights(config)
    if who == "nanogpt":
        assert peer_dir is not None
        peer = make_nanogpt(config, weights, machine.device, Path(peer_dir))
    else:
        peer = make_transformers(config, weights, machine.device)
    del weights
    return _time_steps(peer, batches, machine, num_steps, every)


def _open(data_dir: Path, shape: Shape, where: torch.device) -> tuple[data.Batches, GPTConfig]:
    """The batches that train.py would train on, from memory, and the config of its model."""
    corpus = open_corpus(data_dir, None, data_dir / "metadata.json", None)
    windows = data.CorpusWindows(corpus.train, "ram", shape.seq_length, SEED, where)
    config = GPTConfig(corpus.vocab_size, shape.seq_length, *SIZES[shape.model_size], tie_weights=shape.tie_weights)
    return data.Batches(windows, shape.batch_size, where), config


def initial_weights(config: GPTConfig) -> dict[str, torch.Tensor]:
    """The weights that our model starts with, without the rows that pad its vocabulary, by GPT-2's names."""
    torch.manual_seed(SEED)
    weights = {}
    for name, tensor in GPT.create(config).state_dict().items():
        weights[name] = tensor[:config.vocab_size] if "wte" in name or "lm_head" in name else tensor
    weights.setdefault("lm_head.weight", weights["transformer.wte.weight"])
    return weights


def _time_steps(peer: Peer, batches: data.Batches, machine: device.Machine, num_steps: int, every: int) -> PeerRun:
    """Trains, and measures the seconds of every step, its loss, and the memory."""
    scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.precision == "fp16")
    seconds: list[float] = []
    losses: list[float] = []
    unread: list[torch.Tensor] = []
    lap_began = time.perf_counter()
    for step in range(num_steps):
        inputs_BT, targets_BT = (ids_BT.long() for ids_BT in batches.get(step * batches.batch_size, 0))
        with machine.autocast():
            loss = peer.loss_of(inputs_BT, targets_BT)
        scaler.scale(loss).backward()

        scaler.unscale_(peer.optimizer)
        torch.nn.utils.clip_grad_norm_(peer.model.parameters(), GRAD_CLIP)
        scaler.step(peer.optimizer)
        scaler.update()
        peer.optimizer.zero_grad(set_to_none=True)

        unread.append(loss.detach())
        if step == 0 or (step + 1) % every == 0 or step + 1 == num_steps:
            losses += torch.stack(unread).tolist()
            synchronize(machine)
            seconds += [(time.perf_counter() - lap_began) / len(unread)] * len(unread)
            unread.clear()
            if step == 0:
                forget_peak(machine)  # what the compiler tried out, as train.py does
            lap_began = time.perf_counter()
    return PeerRun(seconds, losses, peer.notes, compile_seconds=seconds[0], peak_memory_bytes=peak_memory(machine))


# ---------------------------------------------------------------- the peers


def make_nanogpt(config: GPTConfig, weights: dict[str, torch.Tensor], where: torch.device, folder: Path) -> Peer:
    """nanoGPT's model from its own folder, compiled, and its own optimizer."""
    nanogpt = _load_module("nanogpt", folder / "model.py")
    net = nanogpt.GPT(nanogpt.GPTConfig(config.seq_length, config.vocab_size, config.n_layer, config.n_head,
                                        config.n_embd, 0.0, True))
    if not config.tie_weights:
        net.lm_head.weight = torch.nn.Parameter(net.lm_head.weight.detach().clone())
    net.load_state_dict(weights)
    net.to(where)

    optimizer = net.configure_optimizers(WEIGHT_DECAY, LEARNING_RATE, BETAS, where.type)
    compiled = torch.compile(net)
    fused = "fused" if optimizer.defaults.get("fused") else "not fused"
    return Peer(net, lambda inputs_BT, targets_BT: compiled(inputs_BT, targets_BT)[1], optimizer,
                f"torch.compile, AdamW of its configure_optimizers ({fused}), exact GELU where ours is tanh's")


def _load_module(name: str, path: Path) -> ModuleType:
    """The module in a file outside the program; ours called model is imported already."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_transformers(config: GPTConfig, weights: dict[str, torch.Tensor], where: torch.device) -> Peer:
    """transformers' GPT2LMHeadModel, compiled, and PyTorch's fused AdamW."""
    import transformers

    net = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=config.vocab_size, n_positions=config.seq_length, n_embd=config.n_embd, n_layer=config.n_layer,
        n_head=config.n_head, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
        tie_word_embeddings=config.tie_weights))
    net.set_attn_implementation("sdpa")
    transposed = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # theirs are [in, out]
    net.load_state_dict({name: tensor.t() if name.endswith(transposed) else tensor for name, tensor in weights.items()})
    net.to(where).train()  # type: ignore[arg-type]

    parameters = list(net.parameters())
    groups: Any = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
                   {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, LEARNING_RATE, BETAS, fused=True)
    compiled = torch.compile(net)
    return Peer(net, lambda inputs_BT, targets_BT: compiled(
        input_ids=inputs_BT, labels=targets_BT, shift_labels=targets_BT).loss, optimizer,
        f"transformers {transformers.__version__}, sdpa (when compiled, with the whole causal mask), "
        "torch.compile, fused AdamW")
