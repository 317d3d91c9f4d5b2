"""What a training step costs on a card that is not there: computed. In a process of its own, which believes in it:

    python -m tests.without_gpu.costs 90 --n_layer 2 --batch_size 16          answers with a line of JSON

The rest of the command line are flags of train.py. The step is the second one, when the optimizer's state is there.
"""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpt.machine.cards import find_card
from tests.without_gpu.compiling import Compiler, Launch, Ledger, fused_attention, tensors_in
from tests.without_gpu.pretended import CARDS, pretend

VOCABULARY = 50_257


# GB/s of the data sheet; shares of it that kernels reach by others' logs: of memory, products, attention, its backward
# pass; seconds that a launch takes at least.
RATES = {75: (320, 0.75, 0.40, 0.15, 0.12, 4e-6), 80: (2039, 0.79, 0.75, 0.48, 0.38, 2.5e-6),
         89: (1008, 0.85, 0.75, 0.50, 0.40, 2e-6), 90: (4800, 0.75, 0.63, 0.26, 0.22, 2e-6),
         100: (7700, 0.75, 0.60, 0.20, 0.17, 2e-6)}
PRODUCTS_IN_FP32 = 0.55  # their share of the sheet, assumed
# What most of a step's time depends on, the share of products, is known least: 0.70 or 0.55 of an H200's sheet instead
# of 0.63, and as many percent more or less on the other cards.
SPAN = (0.70 / 0.63, 1.0, 0.55 / 0.63)


def milliseconds(launches: list[Launch], capability: int, factor: float) -> float:
    """The time of launches that follow each other, each as long as its FLOP or its bytes need, or as its start.

    factor multiplies the share of the sheet that products reach.
    """
    sheet, seconds = find_card(CARDS[capability].name), 0.0
    bandwidth, memory, products, forward, backward, launch = RATES[capability]
    assert sheet
    for name, num_bytes, flops in launches:
        share = (backward if "backward" in name else forward) if "attention" in name else products * factor
        rate = PRODUCTS_IN_FP32 * sheet.fp32_tflops if name.endswith("fp32") else share * sheet.half_tflops
        seconds += max(flops / rate / 1e12, num_bytes / (memory * bandwidth * 1e9), launch)
    return 1e3 * seconds


def milliseconds_by_card(launches: list[Launch], capability: int) -> dict[int, list[float]]:
    """The same on the cards that train in the same dtype, for each factor of SPAN."""
    cards = [card for card in RATES if (card == 75) == (capability == 75)]
    return {card: [milliseconds(launches, card, factor) for factor in SPAN] for card in cards}


def measure(capability: int, flags: list[str]) -> dict[str, Any]:
    """Peak bytes of the step, those predicted, the shapes of activations in fp32, launches, milliseconds by card."""
    import train
    from gpt.architectures.table import architecture_of
    from gpt.machine.device import Machine
    from gpt.optimizers.build import build_optimizer, dtype_of_products, parameter_groups, state_bytes
    from gpt.optimizers.table import optimizer_with_largest_state
    from gpt.planning.memory import MemorySetting, memory_parts, predicted_peak
    from gpt.planning.sizing import choose_config, choose_options
    from gpt.training.compiling import compiles_blocks
    from gpt.training.strategies import Strategy
    from tests.helpers.training import run_of

    card = CARDS[capability]
    half = torch.bfloat16 if capability >= 80 else torch.float16
    machine = Machine(torch.device("cuda", 0), card.name, "", half, "", True, "", ())
    args = train.read_flags(flags)
    config = choose_config(args, VOCABULARY, 10**9)
    options = choose_options(args.activation_checkpointing, False, machine, {})
    torch.nn.functional.scaled_dot_product_attention = fused_attention(half)
    name = optimizer_with_largest_state(args.optimizer)
    B, T = args.batch_size, config.seq_length

    ledger = Ledger()
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        Compiler(fake, ledger)
        with machine.device:  # not .to(): tensors without memory cannot be moved
            model: Any = architecture_of(config).build(config, options).train()
        optimizer: Any = build_optimizer(name, parameter_groups(model, name, 0.1), 1e-3, (0.9, 0.95),
                                         dtype=dtype_of_products(machine))
        scaler = torch.amp.GradScaler("cuda", enabled=half == torch.float16)
        run = run_of(model, scaler, machine=machine, optimizer=optimizer, strategy=Strategy(model))
        for part in run.strategy.parts_to_compile(compiles_blocks(args.compile_mode, run.setup.runtime)):
            part.compile(dynamic=False)
        if hasattr(optimizer, "compile_step"):
            optimizer.compile_step()
        adamw = getattr(optimizer, "_adamw", optimizer)
        adamw.step = watched(adamw.step, ledger)
        scaler.unscale_ = watched(scaler.unscale_, ledger)
        model.round_weights = watched(model.round_weights, ledger)
        torch.nn.utils.get_total_norm = watched(torch.nn.utils.get_total_norm, ledger)
        for _ in range(2):
            for x in tensors_in([*model.parameters(), *model.buffers(), list(optimizer.state.values())]):
                ledger.see(x)
            ledger.peak = ledger.now()
            ledger.launches.clear()
            rows = torch.zeros(B, T + 1, dtype=torch.int32, device="cuda")
            accumulation = args.gradient_accumulation_steps
            train.try_step(run, [(rows[:, :-1], rows[:, 1:])] * accumulation, accumulation)

    setting = replace(MemorySetting.of(machine, options, state_bytes(name, config)), saves_through_copy=False,
                      accumulates=args.gradient_accumulation_steps > 1)
    wide = [shape for dtype, shape in ledger.made if dtype == torch.float32
            and math.prod(shape) >= B * T * config.n_embd and B * T in (shape[0], math.prod(shape[:2]))]
    return {"peak": ledger.peak, "predicted": predicted_peak(config, B, setting),
            "parts": memory_parts(config, B, setting), "fp32_activations": sorted(wide), "launches": ledger.launches,
            "ms": milliseconds_by_card(ledger.launches, capability)}


def watched(function: Callable[..., Any], ledger: Ledger) -> Callable[..., Any]:
    """The function, whose operations the ledger notes."""
    def call(*args: Any, **kwargs: Any) -> Any:
        with ledger:
            return function(*args, **kwargs)

    return call


if __name__ == "__main__":
    pretend(CARDS[int(sys.argv[1])])
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[2:])))
