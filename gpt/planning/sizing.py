"""Network, size, T, batch and epochs where there is no GPU: what fits the corpus, the processor and the time.

Where no flag names a size the processor's speed is measured, else it is assumed from its number of threads; the time
that is announced before the first step is that of measured steps. A resumed run has the shape that was recorded.
"""

import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gpt.architectures.table import ARCHITECTURES, DEFAULT, ModelConfig, create
from gpt.common.errors import Exit, UserError
from gpt.machine.backends import CPU, gpu_in_use
from gpt.optimizers.table import MUON_PAYS
from gpt.planning.defaults import USUAL_PASSES, WITH_TEACHER, most_passes
from gpt.tokens.corpus import Corpus
from model import SIZES, Options

FLOPS_PER_THREAD = 25e9  # per second while it trains in fp32, assumed: below what laptops were seen to reach
MEASURED_SHAPE = (2, 4, 256)  # layers, heads, width
MEASURED_TOKENS, MEASURED_SECONDS = 2048, 1.0  # of a batch whose gradients are computed; of all such batches together
SHARE_OF_MEASURED = 0.55  # of that speed, in a run with dropout and its optimizer; two machines had 0.45 and 0.68
FLOPS_OF_APPLE_GPU = 1e12  # the same of MPS, assumed: 40% of the data sheet's fp32 peak of the smallest M1
SHARE_OF_PEAK, UNKNOWN_PEAK = 0.35, 1e13  # of a GPU with its own memory, as --check has it; of an unknown card
MOST_PARAMETERS_PER_TOKEN = 30  # of the text: no larger model was tried (LOG.md, 2026-11-25, More decay)
USUAL_MINUTES = 15.0  # that a run may take where --max_minutes does not say
# What the time must be enough for, else a smaller size learns more (LOG.md, 2026-11-26, Sizes by the time): so many
# tokens a parameter; or, where the text is read again and again, fewer of them and so many passes; or all that pay.
LEAST_TOKENS_PER_PARAMETER, LEAST_OF_REPEATED, LEAST_PASSES = 5, 0.6, 5
LONGEST_SEQUENCE, SHORTEST_SEQUENCE = 256, 32
DEFAULT_SIZE = "gpt2_small"  # with a GPU
CHOSEN_ARCH = "qwen3"  # with a size that is chosen; gpt2 where a flag names one
LEAST_SEQUENCES = 64  # of an epoch, before T gets shorter
MOST_STEP_TOKENS, LEAST_STEP_TOKENS = 4096, 512
WANTED_STEPS = 4000  # of a small corpus: with four times the batch tiny Shakespeare ended 0.26 bits per byte higher
STEPS_OF_CHOSEN = 100  # at least, of as many tokens as Muon pays from

Shape = tuple[int, int, int]  # layers, heads, width
SHAPES: list[Shape] = [(2, 2, 128), (2, 4, 256), (4, 4, 256), (4, 6, 384), SIZES["mini"], SIZES["gpt2_small"]]


@dataclass(frozen=True)
class Sizing:
    """Network, T, micro-batch and epochs without a GPU, with the reasons. shape is None where flags say the size.

    speed is in FLOP/s of training.
    """

    speed: float
    arch: str
    shape: Shape | None
    seq_length: int
    batch_size: int
    epochs: int
    reasons: Mapping[str, str]


def choose_sizing(flags: Namespace, corpus: Corpus, use_gpu: bool | None, max_minutes: float | None,
                  use_amp: bool | None = None) -> Sizing | None:
    """The sizing for a corpus and this processor, or for an Apple GPU, which is a laptop's too.

    None for weights that are given, and with a GPU that has its own memory: gpt2_small is its default.
    """
    gpu = gpu_in_use(use_gpu)
    if flags.init_from or (gpu and gpu.has_own_memory):
        return None
    says_size = any(getattr(flags, name) for name in (
        "model_size", "n_layer", "n_head", "n_embd", "n_kv_head", "n_inner"))
    arch = flags.arch or (DEFAULT if says_size or flags.bias is not None else CHOSEN_ARCH)
    speed = FLOPS_OF_APPLE_GPU if gpu else FLOPS_PER_THREAD * torch.get_num_threads()
    if not (gpu or says_size):
        speed = SHARE_OF_MEASURED * measured_speed(arch, corpus.vocab_size, use_amp is not False and CPU.has_bf16())
    shape = shape_of(flags, flags.model_size or DEFAULT_SIZE) if says_size else None
    return sizing_for(corpus.vocab_size, corpus.train.length, speed, max_minutes, flags.seq_length, (arch, shape),
                      bool(flags.teacher))


def measured_speed(arch: str, vocab_size: int, use_bf16: bool) -> float:
    """FLOP/s of this processor, forward and backward; what else runs on it cannot add to them."""
    config = ARCHITECTURES[arch].sized(MEASURED_SHAPE, vocab_size, LONGEST_SEQUENCE)
    network, seconds = create(config, "cpu", Options()), []
    tokens = torch.zeros(MEASURED_TOKENS // LONGEST_SEQUENCE, LONGEST_SEQUENCE, dtype=torch.long)
    while sum(seconds) < MEASURED_SECONDS or len(seconds) < 3:
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=use_bf16):
            loss = network(tokens, tokens).sum()
        loss.backward()
        seconds.append(time.perf_counter() - began)
    return config.flops_per_token * MEASURED_TOKENS / min(seconds)


def assumed_steps(minutes: float, speed: float, config: ModelConfig, tokens: int) -> int:
    """The steps, of so many tokens, that the minutes allow at so many FLOP/s."""
    return int(60 * minutes * speed / (config.flops_per_token * tokens))


def shape_of(flags: Namespace, name: str) -> Shape:
    """Layers, heads and width: of the flags, where they say nothing those of the size.

    Raises UserError (exit 2) for a width that the heads do not divide.
    """
    given = (flags.n_layer, flags.n_head, flags.n_embd)
    n_layer, n_head, n_embd = (number or default for number, default in zip(given, SIZES[name], strict=True))
    if n_embd % n_head:
        raise UserError(Exit.FLAGS, f"--n_embd {n_embd}: is not a multiple of --n_head {n_head}. Give both.")
    return n_layer, n_head, n_embd


def sizing_for(vocab_size: int, num_tokens: int, speed: float, max_minutes: float | None,
               seq_length: int | None, network: tuple[str, Shape | None] = (CHOSEN_ARCH, None),
               is_taught: bool = False) -> Sizing:
    """The sizing for a corpus of num_tokens and a machine that trains with so many FLOP/s.

    Each of the two limits is None where its flag was not given, the network's shape where no flag says the size. With a
    teacher a text bears more parameters, and passes.
    """
    arch, shape = network
    most_parameters = MOST_PARAMETERS_PER_TOKEN * (WITH_TEACHER if is_taught else 1) * num_tokens
    minutes = max_minutes or USUAL_MINUTES
    seq_length = seq_length or _power_of_two(num_tokens // LEAST_SEQUENCES, SHORTEST_SEQUENCE, LONGEST_SEQUENCE)
    flops = speed * 60 * minutes
    configs = {one: ARCHITECTURES[arch].sized(one, vocab_size, seq_length) for one in ([shape] if shape else SHAPES)}

    def fits(config: ModelConfig) -> bool:
        least = min(LEAST_TOKENS_PER_PARAMETER * config.num_parameters, USUAL_PASSES * num_tokens,
                    max(LEAST_OF_REPEATED * config.num_parameters, LEAST_PASSES * num_tokens))
        return (config.num_parameters <= most_parameters
                and least * config.flops_per_token <= flops)

    fitting = [one for one, config in configs.items() if fits(config)]
    chosen = fitting[-1] if fitting else next(iter(configs))
    reasons = {"seq_length": f"{LONGEST_SEQUENCE} without an NVIDIA GPU, less for few tokens"}
    steps, most = WANTED_STEPS, MOST_STEP_TOKENS
    if not shape:
        steps, most = STEPS_OF_CHOSEN, 1 << (MUON_PAYS * chosen[2] - 1).bit_length()
        reasons |= {"arch": "learns more than gpt2 in the same time", "n_embd": f"by the text and {minutes:g} min"}

    tokens = flops / configs[chosen].flops_per_token
    parameters = configs[chosen].num_parameters
    most_epochs, wanted = most_passes(num_tokens, parameters, is_taught), -(-20 * parameters // num_tokens)
    epochs = max(1, min(most_epochs, int(tokens / num_tokens), wanted))
    step_tokens = _power_of_two(epochs * num_tokens // steps, LEAST_STEP_TOKENS, most)
    batch_size = max(1, step_tokens // seq_length)
    return Sizing(speed, arch, None if shape else chosen, seq_length, batch_size, epochs, reasons)


def _power_of_two(number: float, least: int, most: int) -> int:
    """The largest power of two that is at most the number, within both bounds, which are powers of two."""
    return min(most, max(least, 1 << max(1, int(number)).bit_length() - 1))
