"""What a step of nanoGPT costs on a card that is not there: GPT-2, biases as well, with its own AdamW and clipping.

    python -m tests.without_gpu.nanogpt 90 ~/nanoGPT 2 16       of 2 layers, 16 sequences: answers with a line of JSON
"""

import json
import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.without_gpu.compiling import Compiler, Ledger, fused_attention
from tests.without_gpu.costs import milliseconds_by_card, watched
from tests.without_gpu.pretended import CARDS, pretend


def measure(capability: int, n_layer: int, batch_size: int) -> dict[str, Any]:
    """The milliseconds of the second step, by card, for each factor of SPAN."""
    nanogpt: Any = __import__("model")
    half, ledger = torch.bfloat16 if capability >= 80 else torch.float16, Ledger()
    torch.nn.functional.scaled_dot_product_attention = fused_attention(half)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, torch.device("cuda"):
        Compiler(fake, ledger)
        model = nanogpt.GPT(nanogpt.GPTConfig(n_layer=n_layer, vocab_size=50304, dropout=0.0, bias=True))
        optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cuda")
        scaler = torch.amp.GradScaler("cuda", enabled=half == torch.float16)
        unscale, clip, update = (watched(one, ledger) for one in (
            scaler.unscale_, torch.nn.utils.clip_grad_norm_, optimizer.step))
        compiled = torch.compile(model, dynamic=False)
        ids = torch.zeros(batch_size, 1024, dtype=torch.int64)
        for _ in range(2):
            ledger.launches.clear()
            with torch.autocast("cuda", half):
                loss = compiled(ids, ids)[1]
            scaler.scale(loss).backward()
            unscale(optimizer)
            clip(model.parameters(), 1.0, foreach=True)
            update()
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
    return {"ms": milliseconds_by_card(ledger.launches, capability)}


if __name__ == "__main__":
    pretend(CARDS[int(sys.argv[1])])
    sys.path.insert(0, sys.argv[2])
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]))))
