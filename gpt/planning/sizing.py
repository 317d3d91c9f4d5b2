"""Chooses network, size, T, batch and epochs of a run without an NVIDIA GPU.

It runs on a CPU, or on an Apple GPU, which shares the CPU's memory. The choices follow from the corpus, the
processor and the time. The speed of a processor is measured where no flag names a size, and else assumed, as an
Apple GPU's is. It only decides the choice; the time announced before the first step comes from measured
steps. A resumed run keeps its recorded shape. Flags and pretrained weights come before this choice. How the
network is computed in training is decided here too.
"""

import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from gpt.architectures.table import ARCHITECTURES, DEFAULT, ModelConfig, create, own_fields_with_flags
from gpt.checkpoint.load import starting_config
from gpt.common.errors import Exit, UserError
from gpt.common.words import several
from gpt.machine.backends import CPU, gpu_in_use
from gpt.machine.device import Machine
from gpt.optimizers.table import MUON_PAYS
from gpt.planning.defaults import (
    FACTOR_OF_HELPED,
    TOKENS_PER_PARAMETER,
    USUAL_PASSES,
    has_teacher_or_noise,
    most_passes,
)
from gpt.tokens.corpus import Corpus
from model import SIZES, Options

FLOPS_PER_THREAD = 25e9  # FLOP/s in fp32 training, assumed: less than any laptop reached
MEASURED_SHAPE = (2, 4, 256)  # layers, heads, width: measured first, then the shape that follows
MEASURED_TOKENS = 2048  # in each forward and backward pass
MEASURED_SECONDS = 1.0  # for all passes of a shape together
FRACTION_OF_MEASURED = 0.75  # of that speed, in a run with its optimizer; machines had 0.67 to 0.9
FLOPS_OF_APPLE_GPU = 1e12  # FLOP/s of MPS in training, assumed: 40% of the smallest M1's fp32 peak in its data sheet
# Of a GPU with its own memory: trainers of GPT-2 Small and larger ones report a third to a half of the data
# sheet's peak. UNKNOWN_PEAK is the FLOP/s of an unknown card.
FRACTION_OF_PEAK, UNKNOWN_PEAK = 0.35, 1e13
MOST_PARAMETERS_PER_TOKEN = 30  # of the text: no larger model was tried (LOG.md, 2026-11-25, More decay).
# With more parameters per token than this, two smaller models learn more in the same time: the first one
# teaches the second (LOG.md, 2026-11-29, One large model or two smaller ones).
LARGE_PARAMETERS_PER_TOKEN = 25
USUAL_MINUTES = 15.0  # where --max_minutes is not given

# A size is taken if the time suffices for one of three: LEAST_TOKENS_PER_PARAMETER;
# LEAST_OF_REPEATED tokens per parameter and LEAST_PASSES passes (LEAST_PASSES_OF_WIDE from width
# WIDE on); USUAL_PASSES passes. In less time a smaller size learns more (LOG.md, 2026-11-26, Sizes
# by the time; 2026-11-29, Passes of a wider network).
LEAST_TOKENS_PER_PARAMETER = 5
LEAST_OF_REPEATED, LEAST_PASSES = 0.6, 5
WIDE, LEAST_PASSES_OF_WIDE = 256, 8

LONGEST_SEQUENCE, SHORTEST_SEQUENCE = 256, 32
LEAST_SEQUENCES = 64  # in an epoch: T is shorter where the text has fewer
DEFAULT_SIZE = "gpt2_small"  # with a GPU
CHOSEN_ARCH = "qwen3"  # where the program chooses the size; gpt2 where a flag names one
MOST_STEP_TOKENS, LEAST_STEP_TOKENS = 4096, 512
STEPS_OF_A_CORPUS = 4000  # of a small one: with four times the batch tiny Shakespeare ended 0.26 bits per byte higher
SIZE_FLAGS = ("model_size", "n_layer", "n_head", "n_embd", "n_kv_head", "n_inner")
STEPS_OF_CHOSEN = 100  # at least, where the program chooses the size: a step may be as large as Muon needs

Shape = tuple[int, int, int]  # layers, heads, width
SHAPES: list[Shape] = [(2, 2, 128), (4, 4, 192), (4, 4, 256), (4, 6, 384), SIZES["mini"], (6, 8, 512),
                       SIZES["gpt2_small"]]


@dataclass(frozen=True)
class Sizing:
    """The network, T, micro-batch and epochs of a run on a CPU or an Apple GPU, with the reasons.

    speed is in FLOP/s of training. shape is the program's choice, or None for a size that flags name.
    batch_size is the most sequences of a default micro-batch; the memory may allow fewer. spare is the fraction of
    --max_minutes left after the passes that the text allows, for a shape of the program's choice; else 0. is_large is
    True where that shape has more than LARGE_PARAMETERS_PER_TOKEN.
    """

    speed: float
    arch: str
    shape: Shape | None
    seq_length: int
    batch_size: int
    epochs: int
    reasons: Mapping[str, str]
    spare: float = 0.0
    is_large: bool = False


def choose_sizing(args: Namespace, corpus: Corpus, max_minutes: float | None) -> Sizing | None:
    """Chooses the sizing for a corpus and this processor or Apple GPU.

    max_minutes is None for a run without a deadline. On a CPU, where no flag names a size, it measures the
    processor, twice for MEASURED_SECONDS: in bf16 if it has that, and --no-use_amp is not given. Returns None for
    pretrained weights, and for a GPU with its own memory, whose default is gpt2_small. Raises UserError (exit 2)
    like shape_of().
    """
    gpu = gpu_in_use(args.use_gpu)
    if args.init_from or (gpu and gpu.has_own_memory):
        return None
    is_named = names_size(args)
    # --bias, which GPT-2 alone has, asks for GPT-2.
    arch = args.arch or (DEFAULT if is_named or args.bias is not None else CHOSEN_ARCH)
    shape = shape_of(args) if is_named else None

    def at(speed: float) -> Sizing:
        return sizing_for(corpus.vocab_size, corpus.train.length, speed, max_minutes, args.seq_length, (arch, shape),
                          has_teacher_or_noise(args))

    if gpu or is_named:
        return at(FLOPS_OF_APPLE_GPU if gpu else FLOPS_PER_THREAD * torch.get_num_threads())

    def at_speed_of(measured: Shape) -> Sizing:
        in_bf16 = args.use_amp is not False and CPU.has_bf16()
        return at(FRACTION_OF_MEASURED * measured_speed(arch, corpus.vocab_size, in_bf16, measured))

    first = at_speed_of(MEASURED_SHAPE)
    # The first passes of a process are slow, and wide shapes have more FLOP/s: without this, minutes lie idle.
    return at_speed_of(first.shape or MEASURED_SHAPE)


def names_size(args: Namespace) -> bool:
    """True if a flag names the size of the network, or a part of it."""
    return any(getattr(args, name) for name in SIZE_FLAGS)


def measured_speed(arch: str, vocab_size: int, use_bf16: bool, shape: Shape) -> float:
    """Measures the FLOP/s of this processor for a shape, forward and backward, by the fastest of several passes.

    It makes passes until MEASURED_SECONDS are over, at least three; other programs only slow a pass down.
    use_bf16 computes them in bf16, else they are in fp32.
    """
    config = ARCHITECTURES[arch].sized(shape, vocab_size, LONGEST_SEQUENCE)
    network = create(config, "cpu", Options())
    seconds = []
    tokens = torch.zeros(MEASURED_TOKENS // LONGEST_SEQUENCE, LONGEST_SEQUENCE, dtype=torch.long)
    while sum(seconds) < MEASURED_SECONDS or len(seconds) < 3:
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=use_bf16):
            loss = network(tokens, tokens).sum()
        loss.backward()
        seconds.append(time.perf_counter() - began)
    return config.flops_per_token * MEASURED_TOKENS / min(seconds)


def shape_of(args: Namespace) -> Shape:
    """Layers, heads and width: each from its flag, or else from --model_size or DEFAULT_SIZE.

    Raises UserError (exit 2) for a width that the heads do not divide.
    """
    given = (args.n_layer, args.n_head, args.n_embd)
    usual = SIZES[args.model_size or DEFAULT_SIZE]
    n_layer, n_head, n_embd = (number or default for number, default in zip(given, usual, strict=True))
    if n_embd % n_head:
        raise UserError(Exit.FLAGS, f"--n_embd {n_embd}: is not a multiple of --n_head {n_head}. Give both.")
    return n_layer, n_head, n_embd


def sizing_for(vocab_size: int, num_tokens: int, speed: float, max_minutes: float | None,
               seq_length: int | None, network: tuple[str, Shape | None] = (CHOSEN_ARCH, None),
               is_helped: bool = False) -> Sizing:
    """Chooses the sizing for num_tokens of training text and speed FLOP/s.

    max_minutes and seq_length are None without their flags. Without a flag for the size the network's shape is
    None: then it is the largest that text and time allow, or else the smallest. is_helped, by a teacher or
    noise, allows more passes and parameters for a text.
    """
    arch, shape = network
    most_parameters = MOST_PARAMETERS_PER_TOKEN * (FACTOR_OF_HELPED if is_helped else 1) * num_tokens
    minutes = max_minutes or USUAL_MINUTES
    seq_length = seq_length or power_of_two(num_tokens // LEAST_SEQUENCES, SHORTEST_SEQUENCE, LONGEST_SEQUENCE)
    flops = speed * 60 * minutes
    configs = [ARCHITECTURES[arch].sized(each, vocab_size, seq_length)
               for each in ([shape] if shape else SHAPES)]

    def fits(config: ModelConfig) -> bool:
        least_passes = LEAST_PASSES_OF_WIDE if config.n_embd >= WIDE else LEAST_PASSES
        least_tokens = min(LEAST_TOKENS_PER_PARAMETER * config.num_parameters, USUAL_PASSES * num_tokens,
                           max(LEAST_OF_REPEATED * config.num_parameters, least_passes * num_tokens))
        return config.num_parameters <= most_parameters and least_tokens * config.flops_per_token <= flops

    config = next((config for config in reversed(configs) if fits(config)), configs[0])
    reasons = {"seq_length": f"{LONGEST_SEQUENCE} without an NVIDIA GPU, less for few tokens"}
    least_steps, most_step_tokens = STEPS_OF_A_CORPUS, MOST_STEP_TOKENS
    if not shape:
        least_steps = STEPS_OF_CHOSEN
        most_step_tokens = 1 << (MUON_PAYS * config.n_embd - 1).bit_length()
        reasons |= {"arch": "learns more than gpt2 in the same time", "n_embd": f"by the text and {minutes:g} min"}

    passes_in_time = int(flops / config.flops_per_token / num_tokens)
    wanted_passes = -(-TOKENS_PER_PARAMETER * config.num_parameters // num_tokens)
    epochs = max(1, min(most_passes(num_tokens, config.num_parameters, is_helped), passes_in_time, wanted_passes))
    step_tokens = power_of_two(epochs * num_tokens // least_steps, LEAST_STEP_TOKENS, most_step_tokens)
    chosen = None if shape else (config.n_layer, config.n_head, config.n_embd)
    spare = 0.0
    if chosen and max_minutes and num_tokens < config.num_parameters:
        most_tokens = most_passes(num_tokens, config.num_parameters, is_helped) * num_tokens
        spare = max(0.0, 1 - most_tokens * config.flops_per_token / flops)
    batch_size = max(1, min(step_tokens, num_tokens) // seq_length)
    is_large = chosen is not None and config.num_parameters > LARGE_PARAMETERS_PER_TOKEN * num_tokens
    return Sizing(speed, arch, chosen, seq_length=seq_length, batch_size=batch_size, epochs=epochs, reasons=reasons,
                  spare=spare, is_large=is_large)


def power_of_two(number: float, least: int = 1, most: int = 2**62) -> int:
    """The largest power of two up to the number, within two bounds that are powers of two."""
    return min(most, max(least, 1 << max(1, int(number)).bit_length() - 1))


# ---------------------------------------------------------------- the network's config, and how it is computed

LOSS_CHUNK = 2048  # tokens whose logits exist at a time, on a GPU or compiled
DEFAULT_SEQ_LENGTH = 1024
LONGEST_DEFAULT_SEQ_LENGTH = 2048  # of pretrained weights: Qwen3 allows 40,960 positions, too many for any memory


def choose_config(args: Namespace, vocab_size: int, num_tokens: int, sizing: Sizing | None = None,
                  ) -> ModelConfig:
    """The model's shape from the flags, --init_from or the sizing; T is shorter than requested for a shorter corpus.

    The model of --init_from gets an id for each of the corpus. Raises UserError. Exit 2 means a width that the
    heads do not divide, or a T longer than --init_from allows. Exit 3 means a corpus of fewer than two tokens.
    Exit 4 means that --init_from names no model.
    """
    if num_tokens < 2:
        raise UserError(Exit.DATA, f"the corpus has {several(num_tokens, 'token')}, and training needs at least 2. "
                                   "Give pretokenize.py more text.")
    if args.init_from:
        _, config = starting_config(args.init_from)
        if (args.seq_length or 1) > config.seq_length:
            raise UserError(Exit.FLAGS, f"--seq_length {args.seq_length}: --init_from has {config.seq_length} "
                                        "positions. Lower it.")
        seq_length = min(args.seq_length or min(config.seq_length, LONGEST_DEFAULT_SEQ_LENGTH), num_tokens - 1)
        return replace(config, vocab_size=max(vocab_size, config.vocab_size), seq_length=seq_length,
                       dropout=args.dropout or 0.0)

    shape = (sizing and sizing.shape) or shape_of(args)
    seq_length = args.seq_length or (sizing.seq_length if sizing else DEFAULT_SEQ_LENGTH)
    architecture = ARCHITECTURES[sizing.arch if sizing else args.arch or DEFAULT]
    others = {name: getattr(args, name) for name in own_fields_with_flags(architecture.Config, vars(args))
              if getattr(args, name) is not None}
    return architecture.sized(shape, vocab_size, min(seq_length, num_tokens - 1), **others)


def choose_options(recompute: bool, has_weights: bool, machine: Machine,
                   recorded_environment: Mapping[str, Any]) -> Options:
    """Chooses how the model is computed during training: dtypes, recomputation, and chunks of the loss.

    recompute is --activation_checkpointing; has_weights is True for a run from pretrained weights. The
    environment that a resumed run recorded keeps a residual stream with the range of fp32 that began so; it is
    empty for a new run.
    """
    # Trained weights can make activations beyond the largest number of fp16, 65,504. A
    # resumed run keeps its dtype.
    stays_wide = machine.precision == "fp16" and (
        has_weights or recorded_environment.get("residual") in ("fp32", "bf16"))
    # Pre-Ampere cards only emulate bf16. With recomputation torch 2.11 would keep the
    # results of custom operations.
    is_half = machine.precision == "fp16" or (machine.precision == "bf16" and machine.backend.has_bf16())
    rounds = machine.backend.sums_in_fp32 and is_half and not recompute
    return Options(rounded_to=machine.dtype if rounds else None, recompute=recompute,
                   residual_dtype=None if stays_wide or machine.precision == "fp32" else machine.dtype,
                   loss_chunk=LOSS_CHUNK if machine.on_gpu or machine.compile else 0)
