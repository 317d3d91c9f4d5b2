"""What the processes of a run send each other in a step, and how much of that time nothing is computed.

Computed from the shapes of the parameters, as parallel.py and muon.py exchange them. Bytes are those that each process
sends, and receives as many, where messages go around in a ring (Patarasuk and Yuan 2009), which sends the least.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from architectures.table import ModelConfig, architecture_of
from planning.sharing import Shape, Sharing, gathered_groups, num_elements
from training.muon import some_at_a_time, wide

AGREEMENT_BYTES = 20  # loss, norm and what is decided together, once a step
FORWARD_SHARE = 1 / 3  # of the time of a micro-batch; the backward pass has twice as many products


@dataclass(frozen=True)
class Message:
    """A collective, or several that are alike.

    kind is 'all_reduce', 'all_gather' or 'reduce_scatter', what for 'weights', 'gradients', 'updates' or 'agreement'.
    num_bytes are those of the whole that is reduced, gathered or scattered, among so many processes. They travel
    'within' a machine, 'between' machines, where each process has others of its own, or across 'all'. phase says what
    is computed meanwhile: the 'forward' or 'backward' pass of each micro-batch, the 'last' backward pass, or 'nothing'.
    """

    kind: str
    what: str
    num_bytes: int
    processes: int
    where: str = "all"
    phase: str = "nothing"
    times: int = 1

    @property
    def sent(self) -> float:
        """Bytes that each process sends, of all times together."""
        passes = 2 if self.kind == "all_reduce" else 1
        return passes * self.times * self.num_bytes * (self.processes - 1) / self.processes


@dataclass(frozen=True)
class Links:
    """Bytes a second that a process can send within its machine, and that all of a machine can send to others."""

    within: float
    between: float = math.inf
    local_world_size: int = 1

    def seconds(self, message: Message) -> float:
        """A ring through several machines is as fast as the slower of both."""
        speed = {"within": self.within, "between": self.between / self.local_world_size,
                 "all": min(self.within, self.between)}[message.where]
        return message.sent / speed


# ---------------------------------------------------------------- what is sent


def messages_of_step(config: ModelConfig, sharing: Sharing, micro_batches: int, dtype: torch.dtype,
                     muons_dtype: torch.dtype | None) -> list[Message]:
    """All that is sent in a step of so many micro-batches in each process.

    dtype is autocast's, muons_dtype what Muon multiplies in, None with another optimizer.
    """
    if sharing.world_size == 1:
        return []
    found = _of_ddp(config, sharing)
    if sharing.is_divided:
        found = _of_divided(config, sharing, micro_batches, dtype.itemsize)
    if muons_dtype:
        found += _of_muon(config, sharing, muons_dtype.itemsize)
    return [*found, Message("all_reduce", "agreement", AGREEMENT_BYTES, sharing.world_size)]


def _of_ddp(config: ModelConfig, sharing: Sharing) -> list[Message]:
    """Gradients, fp32, in the last backward pass; those of the embedding come when it is over."""
    groups = gathered_groups(config)
    last = max(map(math.prod, groups.root))
    others = groups.root_elements + sum(map(num_elements, groups.blocks)) - last
    return [Message("all_reduce", "gradients", 4 * others, sharing.world_size, phase="last"),
            Message("all_reduce", "gradients", 4 * last, sharing.world_size)]


def _of_divided(config: ModelConfig, sharing: Sharing, micro_batches: int, weight_bytes: int) -> list[Message]:
    """Weights, gathered for each forward pass and those of blocks for the backward pass again; then gradients, fp32.

    Nothing is computed while the root and the first block are gathered, and when the root's gradients are there. Rows
    are the same for all processes: some of zeros are added.
    """
    groups, n = gathered_groups(config), sharing.shards
    root, *blocks = (_padded(shapes, n) for shapes in (groups.root, *groups.blocks))
    where = "within" if sharing.way == "hsdp" else "all"

    def gather(elements: int, phase: str) -> Message:
        return Message("all_gather", "weights", weight_bytes * elements, n, where, phase, micro_batches)

    found = [gather(root + blocks[0], "nothing"), gather(sum(blocks[1:]), "forward"), gather(sum(blocks), "backward")]
    for elements, phase in ((sum(blocks), "last"), (root, "nothing")):
        found.append(Message("reduce_scatter", "gradients", 4 * elements, n, where, phase))
        if sharing.way == "hsdp":
            found.append(Message("all_reduce", "gradients", 4 * elements // n, sharing.copies, "between", phase))
    return found


def _of_muon(config: ModelConfig, sharing: Sharing, element_bytes: int) -> list[Message]:
    """Momenta of divided weights, and updates: of matrices of one shape each process has as many, some of zeros."""
    rows = architecture_of(config).hidden_matrices(config)
    weights = [torch.empty(shape, device="meta") for shape in _hidden_shapes(config)]
    momenta = updates = 0
    for some in some_at_a_time(weights):
        momenta += _padded([tuple(weights[number].shape) for number in some], sharing.shards)
        parts = [part for number in some for part in weights[number].split(list(rows.values())[number])]
        for shape, num in Counter(tuple(wide(part).shape) for part in parts).items():
            updates += -(-num // sharing.world_size) * sharing.world_size * math.prod(shape)
    found = [Message("all_gather", "updates", element_bytes * updates, sharing.world_size)]
    if sharing.is_divided:
        where = "within" if sharing.way == "hsdp" else "all"
        found.append(Message("all_gather", "updates", element_bytes * momenta, sharing.shards, where))
    return found


def _hidden_shapes(config: ModelConfig) -> list[Shape]:
    architecture = architecture_of(config)
    shapes = architecture.shapes(config)
    return [tuple(shapes[name]) for name in architecture.hidden_matrices(config)]


def _padded(shapes: Sequence[Shape], shards: int) -> int:
    """The elements of tensors whose rows are divided evenly, with the rows that are added for that."""
    return sum(-(-shape[0] // shards) * shards * math.prod(shape[1:]) for shape in shapes)


# ---------------------------------------------------------------- how long that takes


def exposed_seconds(messages: Sequence[Message], links: Links, micro_batches: int, compute_seconds: float) -> float:
    """Seconds of a step in which a process waits for others, where computing alone takes compute_seconds."""
    needed: dict[str, float] = dict.fromkeys(("forward", "backward", "last", "nothing"), 0.0)
    for message in messages:
        needed[message.phase] += links.seconds(message) / (message.times if message.phase != "nothing" else 1)
    forward = FORWARD_SHARE * compute_seconds / micro_batches
    backward = compute_seconds / micro_batches - forward
    return (needed["nothing"] + micro_batches * max(0.0, needed["forward"] - forward)
            + (micro_batches - 1) * max(0.0, needed["backward"] - backward)
            + max(0.0, needed["backward"] + needed["last"] - backward))


def exposed_share(messages: Sequence[Message], links: Links, micro_batches: int, step_seconds: float) -> float:
    """The share of a measured step in which processes wait for each other, 0 to 1: what would make it so long."""
    low, high = 0.0, step_seconds  # of computing
    for _ in range(40):
        middle = (low + high) / 2
        is_short = middle + exposed_seconds(messages, links, micro_batches, middle) < step_seconds
        low, high = (middle, high) if is_short else (low, middle)
    return 1 - high / step_seconds
