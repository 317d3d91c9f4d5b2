"""Before the first hour: memory by part, time, cost, the micro-batch that fits."""

from __future__ import annotations

from model import GPTConfig

GIB = 2**30


def memory_parts(config: GPTConfig, batch_size: int, half: bool) -> dict[str, int]:
    """Predicted bytes of a training step by part: weights, gradients, optimizer, activations, logits.

    Weights, gradients and both moments are fp32. A block keeps about 34 bytes per token and channel in half precision
    (Korthikanti et al. 2022, section 4.1, without the attention matrix, which SDPA never stores), 60 in fp32. Of the
    logits there are the output, its fp32 copy and the gradient.
    """
    tokens = batch_size * config.seq_length
    parameters = config.num_parameters + (config.padded_vocab_size - config.vocab_size) * config.n_embd
    return {"weights": 4 * parameters, "gradients": 4 * parameters, "optimizer": 8 * parameters,
            "activations": tokens * config.n_embd * (config.n_layer * (34 if half else 60) + 12),
            "logits": tokens * config.padded_vocab_size * (10 if half else 12)}


def micro_batch_that_fits(config: GPTConfig, memory_bytes: int, half: bool, most: int) -> int:
    """The largest power of two, at most `most`, whose predicted memory is within 80% of memory_bytes; at least 1."""
    batch_size = 1
    while batch_size * 2 <= most and sum(memory_parts(config, batch_size * 2, half).values()) <= 0.8 * memory_bytes:
        batch_size *= 2
    return batch_size


def describe(parts: dict[str, int]) -> str:
    """'4.1 GiB predicted: weights 0.5, gradients 0.5, optimizer 0.9, activations 1.2, logits 1.0'; MiB below 1 GiB."""
    total = sum(parts.values())
    unit, scale = ("GiB", GIB) if total >= GIB else ("MiB", GIB / 1024)
    shares = ", ".join(f"{name} {num_bytes / scale:.1f}" for name, num_bytes in parts.items())
    return f"{total / scale:.1f} {unit} predicted: {shares}"
