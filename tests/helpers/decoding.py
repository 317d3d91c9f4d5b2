"""Decoders of tiny models, and the kinds of matrices that they can be laid out in."""

import pytest
import torch

from gpt.generation.continuation import Sampling
from gpt.generation.decoder import Decoder
from gpt.generation.sampling import sample
from gpt.ops.products import Dense, Int8, Packed, fastest_kind

GREEDY = Sampling(temperature=0.0, top_k=0)
KINDS = [(torch.float32, Dense), (torch.float32, Packed), (torch.bfloat16, Dense), (torch.bfloat16, Packed),
         (torch.bfloat16, Int8), (torch.float32, Int8)]
# Where a row must have the same bits alone and among others: products that were made for this.
EXACT_KINDS = [(torch.float32, Packed), (torch.bfloat16, Packed), (torch.bfloat16, Int8)]


def skip_unless_possible(dtype: torch.dtype, kind: type[Dense]) -> None:
    """Skips a test of packed matrices on a CPU that cannot multiply them in this dtype."""
    if kind is Packed and fastest_kind(torch.device("cpu"), dtype, False, False) is not Packed:
        pytest.skip("no packed products in this dtype here")


def decoder_of(model, num_rows: int, *choices) -> Decoder:
    """A decoder on the CPU; choices are dtype, kind and weight_dtype."""
    return Decoder(model.config, model.state_dict(), num_rows, "cpu", *choices)


def logits_after(decoder: Decoder, ids: list[int]) -> torch.Tensor:
    """The logits after one more id in each row."""
    return decoder.step(ids, [0.0] * len(ids))[0]


def take(model, prompt: list[int], max_new_tokens: int, sampling: Sampling = GREEDY, seed: int = 0) -> list[int]:
    """The ids that continue a prompt."""
    return sample(model, prompt, max_new_tokens, seed, None, sampling)


def largest_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference as a share of the largest expected value."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max().detach() / expected.abs().max().detach())
