"""The settings of sampling with their defaults, and the state of one text. Needs no torch."""

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """The distribution of the next id: temperature, top_k and top_p, applied in this order, as in transformers.

    Temperature 0 always takes the likeliest id; top_k 0 and top_p 1 are off. generate.py has the same defaults.
    """

    temperature: float = 0.8
    top_k: int = 200
    top_p: float = 1.0


class Continuation:
    """The state of one text: the prompt's ids, the new ids and their log-probabilities.

    finish_reason is empty until the text ends: 'length', 'end_of_text', or another word of a caller that
    ends it. The random numbers are a pure function of the seed.
    """

    def __init__(self, prompt: Sequence[int], max_new_tokens: int, seed: int):
        self.ids = list(prompt)
        self.num_prompt = len(prompt)
        self.max_new_tokens = max_new_tokens
        self.log_probabilities: list[float] = []
        self.finish_reason = ""
        self.random = random.Random(seed)

    @property
    def new_ids(self) -> list[int]:
        """The ids generated so far."""
        return self.ids[self.num_prompt:]

    def add(self, new_id: int, log_probability: float) -> None:
        """Appends an id; the text ends when it has max_new_tokens new ids."""
        self.ids.append(new_id)
        self.log_probabilities.append(log_probability)
        if len(self.log_probabilities) >= self.max_new_tokens:
            self.finish_reason = "length"
