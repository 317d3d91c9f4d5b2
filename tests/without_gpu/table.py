"""The table of docs/performance.md of what a step would take on five cards: computed, not measured.

    python -m tests.without_gpu.table --nanogpt FOLDER        nanoGPT's model beside ours; takes a quarter of an hour
    python -m tests.without_gpu.table --sizes gpt2_small      some of the sizes

Blocks are alike, so a model of two and one of three give the rest by a straight line. Each launch takes the longer of
its FLOP and its bytes at the rates that such kernels reach, and at least what the card needs to start a kernel.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine.cards import find_card
from model import SIZES, GPTConfig
from planning.memory import room_on_card
from tests.without_gpu.asking import make_ask
from tests.without_gpu.pretended import CARDS

T, VOCABULARY, FEWER, MORE = 1024, 50_257, 2, 3


@dataclass(frozen=True)
class Rates:
    """Shares of the data sheet that kernels are assumed to reach, from what others logged; the least of a launch, s."""

    products: float
    memory: float
    attention: float
    attention_backward: float
    launch: float = 2e-6


RATES = {
    75: Rates(0.40, 0.75, 0.15, 0.12, 4e-6),
    80: Rates(0.75, 0.79, 0.48, 0.38, 2.5e-6),
    89: Rates(0.75, 0.85, 0.50, 0.40),
    90: Rates(0.63, 0.75, 0.26, 0.22),
    100: Rates(0.60, 0.75, 0.20, 0.17),
}
BATCH = {75: 4}  # sequences; 16 on all others


def seconds_of(launches: Sequence[tuple[str, int, float]], capability: int) -> float:
    """The time of a step by its launches, one after the other."""
    sheet, rates = find_card(CARDS[capability].name), RATES[capability]
    assert sheet is not None
    total = 0.0
    for name, num_bytes, flops in launches:
        share = rates.products
        if "attention" in name:
            share = rates.attention_backward if "backward" in name else rates.attention
        total += max(flops / (share * sheet.half_tflops * 1e12), num_bytes / (rates.memory * sheet.bandwidth_gbs * 1e9),
                     rates.launch)
    return total


def of_all_blocks(fewer: float, more: float, n_layer: int) -> float:
    """A straight line through a model of FEWER and one of MORE blocks."""
    return fewer + (n_layer - FEWER) * (more - fewer) / (MORE - FEWER)


def lines_of(ask: Callable[..., dict[str, Any]], sizes: Sequence[str], nanogpt: str | None) -> list[str]:
    """The rows of the table, a size after the other, on the cards that have room for its step."""
    whose = {"": [], **({"nanoGPT": ["--nanogpt", nanogpt]} if nanogpt else {})}
    lines = ["| card, size | sequences | ours: ms, MFU | GiB | nanoGPT: ms | GiB | ours / nanoGPT |",
             "| --- |" + " --- |" * 6]
    for size in sizes:
        costs: dict[tuple[str, int, int], dict[str, Any]] = {}
        for compiled_for, batch in ((90, 16), (75, BATCH[75])):
            for name, flags in whose.items():
                for n_layer in (FEWER, MORE):
                    costs[name, compiled_for, n_layer] = ask(
                        "costs", compiled_for, "--model_size", size, "--n_layer", n_layer, "--seq_length", T,
                        "--batch_size", batch, *flags)
        lines += filter(None, (_line(size, capability, costs, bool(nanogpt)) for capability in RATES))
    return lines


def _line(size: str, capability: int, costs: dict[tuple[str, int, int], dict[str, Any]],
          has_peer: bool) -> str | None:
    """The row of a size on a card, None where the card has no room for the step."""
    compiled_for, n_layer = 75 if capability == 75 else 90, SIZES[size][0]
    sheet = find_card(CARDS[capability].name)
    assert sheet is not None
    batch = BATCH.get(capability, 16)
    found = {}
    for name in ("", *(["nanoGPT"] if has_peer else [])):
        fewer, more = (costs[name, compiled_for, n] for n in (FEWER, MORE))
        seconds = (seconds_of(cost["launches"], capability) for cost in (fewer, more))
        found[name] = of_all_blocks(next(seconds), next(seconds), n_layer), of_all_blocks(
            fewer["peak"], more["peak"], n_layer)
    flops = GPTConfig(VOCABULARY, T, *SIZES[size]).flops_per_token * batch * T
    ours, peak = found[""]
    if peak > room_on_card(sheet.memory_gb):
        return None
    cells = [f"{CARDS[capability].name.removeprefix('NVIDIA ').removeprefix('Tesla ')}, {size}", str(batch),
             f"{1e3 * ours:.1f}, {flops / ours / sheet.half_tflops / 1e12:.0%}", f"{peak / 2**30:.1f}"]
    if has_peer:
        theirs, their_peak = found["nanoGPT"]
        cells += [f"{1e3 * theirs:.1f}", f"{their_peak / 2**30:.1f}", f"{ours / theirs:.2f}"]
    return f"| {' | '.join(cells)} |"


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nanogpt")
    parser.add_argument("--sizes", nargs="+", default=["gpt2_small", "gpt2_medium", "gpt2_large", "gpt2_xl"])
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(lines_of(make_ask(Path(folder)), args.sizes, args.nanogpt)))


if __name__ == "__main__":
    main(sys.argv[1:])
