"""What a training step costs on a card that is not there. In a process of its own, which believes in the card:

    python -m tests.without_gpu.costs 90 --n_layer 2 --batch_size 16          answers with a line of JSON
    python -m tests.without_gpu.costs 90 --nanogpt FOLDER --n_layer 2 ...     the same of nanoGPT's model

The rest of the command line are flags of train.py. The step is the second one, when the optimizer's state is there.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.without_gpu.compiling import Compiler, Ledger, fused_attention, tensors_in
from tests.without_gpu.pretended import CARDS, pretend

VOCABULARY = 50_257


def measure(capability: int, flags: list[str], nanogpt: str | None) -> dict[str, Any]:
    """Peak bytes of the step, those predicted, and each launch in turn with its bytes and FLOP."""
    import train
    from machine.device import Machine
    from planning.memory import MemorySetting, memory_parts, predicted_peak
    from planning.recipe import choose_config, choose_options
    from tests.helpers.training import run_of
    from training.optimizers import OPTIMIZERS, dtype_of_products, parameter_groups
    from training.parallel import Alone
    from training.recovery import compiles_in_parts

    card = CARDS[capability]
    half = torch.bfloat16 if capability >= 80 else torch.float16
    machine = Machine(torch.device("cuda", 0), card.name, "", half, "", True, "", ())
    args = train.read_flags(flags)
    config = choose_config(args, VOCABULARY, 10**9)
    options = choose_options(args, machine, fused_attention(half), {})
    kind = OPTIMIZERS["adamw" if args.optimizer == "auto" else args.optimizer]
    B, T = args.batch_size, config.seq_length

    ledger = Ledger()
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        compiler = Compiler(fake, ledger)
        with machine.device:  # not .to(): tensors without memory cannot be moved
            model: Any = build_nanogpt(nanogpt, config, half) if nanogpt else build(config, options)
        groups = [{"params": list(model.parameters())}] if nanogpt else parameter_groups(model, kind, 0.1)
        optimizer: Any = kind.build(groups, 1e-3, (0.9, 0.95), torch.optim.AdamW, dtype_of_products(machine))
        scaler = torch.amp.GradScaler("cuda", enabled=half == torch.float16)
        run = run_of(model, scaler, machine=machine, optimizer=optimizer, parallel=Alone(model))
        run.parallel.compile(compiles_in_parts(args, machine) and not nanogpt)
        if hasattr(optimizer, "compile_step"):
            optimizer.compile_step()
        else:
            optimizer.step = watched(optimizer.step, ledger)
        torch.nn.utils.get_total_norm = watched(torch.nn.utils.get_total_norm, ledger)
        for _ in range(2):
            for x in tensors_in([*model.parameters(), *model.buffers(), list(optimizer.state.values())]):
                ledger.see(x)
            ledger.clear()
            rows = torch.zeros(B, T + 1, dtype=torch.int32, device="cuda")
            accumulation = args.gradient_accumulation_steps
            train.try_step(run, [(rows[:, :-1], rows[:, 1:])] * accumulation, accumulation)

    setting = MemorySetting.of(machine, options, args.gradient_accumulation_steps > 1, False, kind.memory_bytes(config))
    wide = [shape for dtype, shape in ledger.made if dtype == torch.float32
            and math.prod(shape) >= B * T * config.n_embd and B * T in (shape[0], math.prod(shape[:2]))]
    return {"peak": ledger.peak, "peak_at": ledger.peak_at, "predicted": predicted_peak(config, B, setting),
            "parts": memory_parts(config, B, setting), "graphs": compiler.graphs, "num_launches": len(ledger.launches),
            "launches": [tuple(launch) for launch in ledger.launches], "fp32_activations": sorted(wide)}


def watched(function: Callable[..., Any], ledger: Ledger) -> Callable[..., Any]:
    """The function, whose operations the ledger notes."""
    def call(*args: Any, **kwargs: Any) -> Any:
        with ledger:
            return function(*args, **kwargs)

    return call


def build(config: Any, options: Any) -> torch.nn.Module:
    from architectures.table import architecture_of

    return architecture_of(config).build(config, options).train()


def build_nanogpt(folder: str, config: Any, half: torch.dtype) -> torch.nn.Module:
    """nanoGPT's model, called as ours is, with the attention kernel that the card would take."""
    from benchmarks.peers import load_module
    from ops.attention import Context

    nanogpt = load_module("nanogpt", Path(folder) / "model.py")
    kernel = fused_attention(half)
    torch.nn.functional.scaled_dot_product_attention = (
        lambda q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False: kernel(q, k, v, Context(dropout_p)))
    net = nanogpt.GPT(nanogpt.GPTConfig(config.seq_length, config.padded_vocab_size, config.n_layer, config.n_head,
                                        config.n_embd, 0.0, True))
    forward = net.forward
    net.forward = lambda inputs, targets, label_smoothing: forward(inputs.long(), targets.long())[1]
    return net.train()


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("capability", type=int)
    parser.add_argument("--nanogpt")
    args, flags = parser.parse_known_args(argv)
    pretend(CARDS[args.capability])
    print(json.dumps(measure(args.capability, flags, args.nanogpt)))


if __name__ == "__main__":
    main(sys.argv[1:])
