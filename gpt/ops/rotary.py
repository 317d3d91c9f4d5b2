"""Rotary position embedding (Su et al. 2021, RoFormer, section 3.4.2), in the layout of Hugging Face's models.

Frequency i rotates the pair of dimensions i and i + K/2. The paper pairs 2 i and 2 i + 1, which is the same
function after a permutation of the rows of the q and k projections.

Shapes: B batch, T time, H heads, K head size.
"""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RotaryScaling:
    """Slower rotations for longer sequences than the model was first trained on: 'llama3' of transformers.

    A frequency with fewer than low_freq_factor turns within the original positions is divided by factor.
    One with more than high_freq_factor turns is kept. Frequencies between the two are interpolated. Llama
    3.1 and 3.2 use it; Meta's code defines it (llama-models, models/llama3).
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_seq_length: int

    def of(self, frequency_K2: torch.Tensor) -> torch.Tensor:
        """The scaled frequencies, with the bits of transformers, whose order of operations this follows."""
        wavelength_K2 = 2 * math.pi / frequency_K2
        turns_K2 = self.original_seq_length / wavelength_K2
        kept_K2 = (turns_K2 - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        between_K2 = (1 - kept_K2) * frequency_K2 / self.factor + kept_K2 * frequency_K2

        is_fast = wavelength_K2 < self.original_seq_length / self.high_freq_factor
        is_slow = wavelength_K2 > self.original_seq_length / self.low_freq_factor
        return torch.where(is_slow, frequency_K2 / self.factor, torch.where(is_fast, frequency_K2, between_K2))


def rotary_frequencies(head_dim: int, theta: float, scaling: RotaryScaling | None = None) -> torch.Tensor:
    """The rotation angle of each pair per position, fp32 [K/2]: theta^(-2 i / K), scaled."""
    exponent_K2 = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequency_K2 = 1.0 / theta**exponent_K2
    return scaling.of(frequency_K2) if scaling else frequency_K2


def rotary_tables(seq_length: int, head_dim: int, theta: float, scaling: RotaryScaling | None = None,
                  ) -> tuple[torch.Tensor, torch.Tensor]:
    """The cosines and sines of position times frequency, fp32 [T, K/2] each."""
    angle_TK2 = torch.outer(torch.arange(seq_length).float(), rotary_frequencies(head_dim, theta, scaling))
    return angle_TK2.cos(), angle_TK2.sin()


def rotate(x_BTHK: torch.Tensor, cos_TK2: torch.Tensor, sin_TK2: torch.Tensor) -> torch.Tensor:
    """Queries or keys rotated by the angles of their positions, computed in fp32, in their own dtype."""
    cos_T1K2, sin_T1K2 = cos_TK2[:, None], sin_TK2[:, None]
    first, second = x_BTHK.float().chunk(2, -1)
    rotated = torch.cat([first * cos_T1K2 - second * sin_T1K2, second * cos_T1K2 + first * sin_T1K2], -1)
    return rotated.to(x_BTHK.dtype)
