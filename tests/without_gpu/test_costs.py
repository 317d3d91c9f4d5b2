"""The memory of a training step on a GPU, and what it computes, as far as they can be shown without one.

Needs a CUDA build of torch and a C++ compiler; a case takes half a minute: pytest -m slow tests/without_gpu
With NANOGPT=~/nanoGPT, its folder, the table has its steps, too.
"""

import os
import re

import pytest

from model import GPTConfig
from tests.helpers.commands import ROOT
from tests.without_gpu import NEEDS
from tests.without_gpu.pretended import CARDS

pytestmark = NEEDS
SMALL = ["--model_size", "gpt2_small", "--n_layer", "2", "--seq_length", "1024"]
SHAPES = {
    "16 x 1024": (90, [*SMALL, "--batch_size", "16"]),
    "8 x 1024, accumulated": (90, [*SMALL, "--batch_size", "8", "--gradient_accumulation_steps", "2"]),
    "8 x 1024, recomputed": (90, [*SMALL, "--batch_size", "8", "--activation_checkpointing"]),
    "8 x 1024, fp16": (75, [*SMALL, "--batch_size", "8"]),
    "8 x 1024, qwen3": (90, [*SMALL, "--batch_size", "8", "--arch", "qwen3"]),
    "8 x 512, a wider llama": (90, ["--model_size", "gpt2_medium", "--n_layer", "4", "--seq_length", "512",
                                    "--batch_size", "8", "--arch", "llama"]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_peak_is_within_5_percent_of_the_plan(ask_of, shape):
    capability, flags = SHAPES[shape]
    found = ask_of("costs", capability, *flags)
    predicted = found["predicted"] - found["parts"]["program"]  # the libraries' workspaces, which nobody allocates here
    print(f"\n{shape}: {found['peak'] / 2**30:.2f} GiB, predicted {predicted / found['peak']:.3f} of it")
    assert predicted == pytest.approx(found["peak"], rel=0.05)
    # In fp32 are the sum of the embeddings, or its gradient; compiled in parts also the final norm and its gradient.
    assert len(found["fp32_activations"]) <= (2 if capability == 75 else 1)


def test_a_step_of_muon_multiplies_and_moves_what_its_formulas_say(ask_of):
    found = ask_of("costs", 90, *SMALL, "--batch_size", "16", "--optimizer", "muon")
    products = sum(flops for name, _, flops in found["launches"] if "attention" not in name)
    adamw = sum(num_bytes for name, num_bytes, _ in found["launches"] if name.startswith("_fused_adamw_"))

    config = GPTConfig(50257, 1024, 2, 12, 768)
    table = config.padded_vocab_size * config.n_embd
    iterations = 4 * (16 + 8) * 768**3 + 2 * (8 * 4 + 20) * 768**3
    assert products == 6 * (config.num_block_weights + table) * 16 * 1024 + config.n_layer * iterations
    # Of weights, gradients, both moments: read, and written, gradients too, which are divided by the norm.
    others = table + (config.seq_length + 2 * 13 + 2) * config.n_embd
    assert adamw == pytest.approx(4 * (4 + 4) * others, rel=1e-4)


@pytest.mark.parametrize(("capability", "batch_size"), [(75, 4), (90, 16)])
def test_the_documented_table_has_the_milliseconds_of_twelve_layers(ask_of, capability, batch_size):
    table = (ROOT / "docs/performance.md").read_text(encoding="utf-8").splitlines()
    rows = [[int(ms) for span in re.findall(r"(\d+) to (\d+) \|", line) for ms in span] for line in table]

    def by_card(module: str, *words: str) -> dict[str, list[float]]:  # by a straight line through two layers and three
        two, three = (ask_of(module, capability, *(word.format(layers) for word in words))["ms"] for layers in (2, 3))
        return {card: [a + 10 * (b - a) for a, b in zip(ms, three[card], strict=True)] for card, ms in two.items()}

    flags = ("--model_size", "gpt2_small", "--n_layer", "{}", "--seq_length", "1024", "--batch_size", str(batch_size))
    found = [by_card("costs", *flags, "--optimizer", name) for name in ("muon", "adamw")]
    if folder := os.environ.get("NANOGPT"):
        found.append(by_card("nanogpt", folder, "{}", str(batch_size)))
    for card in found[0]:
        spans = [column[card] for column in found]
        print(f"\n{CARDS[int(card)].name}: " + " | ".join(f"{low:.1f} to {high:.1f}" for low, _, high in spans))
        ms = [ms for low, _, high in spans for ms in (low, high)]
        # Rounded to a millisecond; nanoGPT's are 1% apart between versions of torch.
        assert any(row[:len(ms)] == pytest.approx(ms, rel=0.015, abs=0.51) for row in rows)
