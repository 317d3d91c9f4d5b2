"""What a model takes on one card and on several: computed from data sheets, not measured.

    python -m training.on_paper              prints the tables of docs/distributed.md
    python -m training.on_paper cards        prints the table of cards in docs/performance.md
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from architectures.table import ARCHITECTURES, ModelConfig
from common.words import count
from machine.cards import Card, find_card, link_bytes
from machine.processes import Processes
from model import SIZES, GPTConfig
from planning.estimates import RECOMPUTING, SHARE_OF_PEAK
from planning.memory import (
    GIB,
    LEAST_TOKENS,
    MOST_TOKENS,
    MemorySetting,
    default_micro_batch,
    largest_micro_batch,
    predicted_peak,
    room_on_card,
)
from planning.recipe import LOSS_CHUNK
from planning.sharing import Sharing
from planning.traffic import Links, exposed_seconds, messages_of_step

STEP_TOKENS = {False: 2**19, True: 2**22}  # of a step, of billions of parameters the second
NETWORK_SHARE = 0.8  # of a network card's speed, assumed
COMMON_CARDS = ("T4", "V100-SXM2", "RTX 3060", "RTX 3090", "RTX 4090", "RTX 5090", "L4", "A10G", "A100-SXM4-80GB",
                "H100", "H200", "B200")


@dataclass(frozen=True)
class Cluster:
    """Machines of GPUs alike; network_gbs are GB/s that each machine can send to the others."""

    words: str
    card: str
    processes: Processes
    network_gbs: float = 0.0

    @property
    def sheet(self) -> Card:
        found = find_card(self.card)
        assert found
        return found

    @property
    def links(self) -> Links:
        between = 1e9 * NETWORK_SHARE * self.network_gbs or float("inf")
        return Links(link_bytes(self.sheet), between, self.processes.local_world_size)


CLUSTERS = (
    Cluster("2 x T4, PCI Express 3", "T4", Processes(0, 2, 0, 2)),
    Cluster("8 x H100 (80 GB), NVLink", "H100", Processes(0, 8, 0, 8)),
    Cluster("64 x H100: 8 machines, 400 Gb/s for each GPU", "H100", Processes(0, 64, 0, 8), 8 * 50.0),
)
LLAMA_7B = ARCHITECTURES["llama"].sized((32, 32, 4096), 32_000, 2048, tie_weights=False, n_kv_head=32, n_inner=11_008)
MODELS: Mapping[str, ModelConfig] = {
    **{name: GPTConfig(50_257, 1024, *SIZES[name])
       for name in ("gpt2_small", "gpt2_medium", "gpt2_large", "gpt2_xl")}, "llama, 7B": LLAMA_7B}


@dataclass(frozen=True)
class Sized:
    """What one model takes in a cluster, each process and step; sent is in bytes."""

    way: str
    batch_size: int
    recomputes: bool
    num_bytes: int
    sent: float
    exposed: float
    tokens_per_second: float


def size_on_paper(config: ModelConfig, cluster: Cluster) -> Sized | None:
    """As --model_parallel auto and the default micro-batch would have it; None where it does not fit."""
    found = _setting_that_fits(config, cluster)
    if found is None:
        return None
    setting, world_size, card = found, cluster.processes.world_size, cluster.sheet
    step_tokens = STEP_TOKENS[config.num_parameters > 5e9]
    most = min(MOST_TOKENS["cuda"], step_tokens // world_size) // config.seq_length
    batch_size = default_micro_batch(config, card.memory_gb * GIB, setting, most)
    micro_batches = step_tokens // (world_size * batch_size * config.seq_length)
    setting = replace(setting, accumulates=micro_batches > 1)

    messages = messages_of_step(config, setting.sharing, micro_batches, setting.dtype, None)
    flops = config.flops_per_token * step_tokens / world_size * (RECOMPUTING if setting.checkpointing else 1)
    computing = flops / (1e12 * card.half_tflops * SHARE_OF_PEAK)
    exposed = exposed_seconds(messages, cluster.links, micro_batches, computing)
    return Sized(setting.sharing.way, batch_size, setting.checkpointing, predicted_peak(config, batch_size, setting),
                 sum(message.sent for message in messages), exposed / (computing + exposed),
                 step_tokens / (computing + exposed))


def _setting_that_fits(config: ModelConfig, cluster: Cluster) -> MemorySetting | None:
    """The first that does: whole copies, or divided as little as need be; then with activations recomputed."""
    processes, room = cluster.processes, room_on_card(cluster.sheet.memory_gb)
    dtype = torch.bfloat16 if cluster.sheet.has_bf16 else torch.float16
    for recomputes in (False, True):
        for way in ("ddp", *(["hsdp"] if processes.num_machines > 1 else []), "fsdp"):
            sharing = Sharing.of(way, processes)
            setting = MemorySetting("cuda", dtype, True, True, 2, LOSS_CHUNK, checkpointing=recomputes, sharing=sharing)
            least = 1 if recomputes else max(1, LEAST_TOKENS // config.seq_length)
            if predicted_peak(config, least, setting) <= room:
                return setting
    return None


def card_lines() -> list[str]:
    """The table of docs/performance.md: what train.py chooses on each of COMMON_CARDS, and what fits its memory."""
    lines = ["| card | GB | precision | attention | compiled | `gpt2_small` | `gpt2_medium` | `gpt2_xl` |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name in COMMON_CARDS:
        sheet = find_card(name)
        assert sheet
        is_bf16, room = sheet.has_bf16, room_on_card(sheet.memory_gb)
        cells = []
        for size in ("gpt2_small", "gpt2_medium", "gpt2_xl"):
            plain = MemorySetting("cuda", torch.bfloat16 if is_bf16 else torch.float16, True, False, 2, LOSS_CHUNK)
            most = largest_micro_batch(MODELS[size], plain, room)
            recomputed = largest_micro_batch(MODELS[size], replace(plain, checkpointing=True), room)
            cells.append(str(most) if most else f"{recomputed}, recomputed" if recomputed else "-")
        lines.append("| " + " | ".join([name, str(sheet.memory_gb), "bf16" if is_bf16 else "fp16, loss scaling",
                                        "flash" if is_bf16 else "memory-efficient", "whole" if is_bf16 else "blocks",
                                        *cells]) + " |")
    return lines


def speed_up(config: ModelConfig, card: Card, num_gpus: int, step_tokens: int, micro_batches: int) -> float:
    """How many times as many tokens a second so many cards in one machine train, each with a whole copy."""
    cluster = Cluster("", card.pattern, Processes(0, num_gpus, 0, num_gpus))
    messages = messages_of_step(config, Sharing.of("ddp", cluster.processes), micro_batches, torch.float32, None)
    computing = config.flops_per_token * step_tokens / (1e12 * card.half_tflops * SHARE_OF_PEAK)
    links = Links(link_bytes(card))
    return num_gpus * computing / (computing + exposed_seconds(messages, links, micro_batches, computing))


def tables() -> str:
    """A table for each cluster, in Markdown."""
    lines = []
    for cluster in CLUSTERS:
        lines += [f"**{cluster.words}**, computed, not measured", "",
                  "| model | way | micro-batch | memory a GPU | sent by each a step | waiting | tokens/s |",
                  "| --- | --- | --- | --- | --- | --- | --- |"]
        for name, config in MODELS.items():
            lines.append(_row(name, size_on_paper(config, cluster)))
        lines.append("")
    return "\n".join(lines).strip()


def _row(name: str, found: Sized | None) -> str:
    if found is None:
        return f"| {name} | does not fit | | | | | |"
    star = "*" if found.recomputes else ""
    return (f"| {name} | {found.way} | {found.batch_size}{star} | {found.num_bytes / GIB:.1f} GiB | "
            f"{found.sent / 1e9:.1f} GB | {found.exposed:.1%} | {count(int(found.tokens_per_second))} |")


if __name__ == "__main__":
    print("\n".join(card_lines()) if sys.argv[1:] == ["cards"] else tables())
