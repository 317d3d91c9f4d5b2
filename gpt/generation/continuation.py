"""How the next token is chosen (the settings and their defaults), and one text in the making. Needs no torch."""

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """The distribution that ids are drawn from; the rules apply in transformers' order.

    First the temperature (0: always the likeliest id), then top_k (0: off) and top_p (1: off). The defaults here are
    also those of generate.py's flags.
    """

    temperature: float = 0.8
    top_k: int = 200
    top_p: float = 1.0


DEFAULTS = Sampling()


class Continuation:
    """One text in the making: the ids read and made, and the log-probabilities of those made.

    finish says why it ended and is empty before: 'length' or 'end_of_text', or what a caller sets to end it. The
    random numbers are a pure function of the seed.
    """

    def __init__(self, prompt: Sequence[int], max_new_tokens: int, seed: int):
        self.ids = list(prompt)
        self.num_prompt = len(prompt)
        self.max_new_tokens = max_new_tokens
        self.log_probabilities: list[float] = []
        self.finish = ""
        self.random = random.Random(seed)

    @property
    def new_ids(self) -> list[int]:
        """The ids made so far."""
        return self.ids[self.num_prompt:]

    def add(self, new_id: int, log_probability: float) -> None:
        """Takes in one more id; the last one of max_new_tokens ends the text."""
        self.ids.append(new_id)
        self.log_probabilities.append(log_probability)
        if len(self.log_probabilities) >= self.max_new_tokens:
            self.finish = "length"
