"""The size of a model that no flag names, where there is no GPU: what fits the corpus, the processor and the time.

The processor's speed is assumed from its number of threads, so that one machine always gives the same choice; the time
that is announced before the first step is measured. A resumed run has the shape that was recorded instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from architectures.architecture import Architecture
from architectures.table import ARCHITECTURES, DEFAULT
from common.flags import FlagsOfGroup
from machine.backends import gpu_of_this_system
from model import SIZES
from tokens.corpus import Corpus

FLOPS_PER_THREAD = 25e9  # per second while it trains in fp32, assumed: below what laptops were seen to reach
FLOPS_OF_APPLE_GPU = 1e12  # the same of MPS, assumed: 40% of the data sheet's fp32 peak of the smallest M1
USUAL_MINUTES = 15.0  # that a run may take where --max_minutes does not say
LEAST_TOKENS_PER_PARAMETER = 5  # in the time there is, for a size above the smallest
MOST_EPOCHS = 10  # of a default run: what a model learns from a text it has read more often than that is the text
LONGEST_SEQUENCE, SHORTEST_SEQUENCE = 256, 32
LEAST_SEQUENCES = 64  # of an epoch, before T gets shorter
MOST_STEP_TOKENS, LEAST_STEP_TOKENS = 4096, 512
WANTED_STEPS = 4000  # of a small corpus: with four times the batch tiny Shakespeare ended 0.26 bits per byte higher


@dataclass(frozen=True)
class Sizing:
    """A size, T, micro-batch and epochs for a user who named no size, with the reasons. name is a key of SIZES."""

    name: str
    seq_length: int
    batch_size: int
    epochs: int
    reasons: Mapping[str, str]


def choose_sizing(flags: FlagsOfGroup, corpus: Corpus, use_gpu: bool | None, max_minutes: float | None,
                  ) -> Sizing | None:
    """The sizing for a corpus and this processor, or for an Apple GPU, which is a laptop's too.

    None where a flag says something about the size, and with a GPU that has its own memory: gpt2_small is its default.
    """
    says_something = any(getattr(flags, name) is not None for name in (
        "model_size", "n_layer", "n_head", "n_embd", "n_kv_head", "n_inner", "init_from"))
    gpu = gpu_of_this_system()
    uses_gpu = use_gpu is not False and gpu.why_not() is None
    if says_something or (uses_gpu and gpu.has_own_memory):
        return None
    num_threads = None if uses_gpu else torch.get_num_threads()
    return sizing_for(corpus.vocab_size, corpus.train.length, num_threads, max_minutes, flags.seq_length,
                      ARCHITECTURES[flags.arch or DEFAULT])


def sizing_for(vocab_size: int, num_tokens: int, num_threads: int | None, max_minutes: float | None,
               seq_length: int | None, architecture: Architecture = ARCHITECTURES[DEFAULT]) -> Sizing:
    """The sizing for a corpus of num_tokens and a processor of num_threads, or for an Apple GPU where that is None.

    Each of the two limits is None where its flag was not given.
    """
    minutes = max_minutes or USUAL_MINUTES
    seq_length = seq_length or _power_of_two(num_tokens // LEAST_SEQUENCES, SHORTEST_SEQUENCE, LONGEST_SEQUENCE)
    speed = FLOPS_OF_APPLE_GPU if num_threads is None else FLOPS_PER_THREAD * num_threads
    flops = speed * 60 * minutes
    configs = {name: architecture.sized(SIZES[name], vocab_size, seq_length) for name in ("tiny", "mini", "gpt2_small")}
    fitting = [name for name, config in configs.items() if config.num_parameters <= num_tokens
               and LEAST_TOKENS_PER_PARAMETER * config.num_parameters * config.flops_per_token <= flops]
    name = fitting[-1] if fitting else "tiny"
    reasons = {
        "model_size": f"the largest with no more parameters than the corpus has tokens that {minutes:g} minutes allow",
        "seq_length": f"{LONGEST_SEQUENCE} without an NVIDIA GPU, less for few tokens"}

    affordable = int(flops / configs[name].flops_per_token / num_tokens)
    wanted = -(-20 * configs[name].num_parameters // num_tokens)
    epochs = max(1, min(MOST_EPOCHS, affordable, wanted))
    step_tokens = _power_of_two(epochs * num_tokens // WANTED_STEPS, LEAST_STEP_TOKENS, MOST_STEP_TOKENS)
    return Sizing(name, seq_length, max(1, step_tokens // seq_length), epochs, reasons)


def _power_of_two(number: float, least: int, most: int) -> int:
    """The largest power of two that is at most the number, within both bounds, which are powers of two."""
    return min(most, max(least, 1 << max(1, int(number)).bit_length() - 1))
