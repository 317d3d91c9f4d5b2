"""The decisions before the first step."""

from collections.abc import Callable
from dataclasses import dataclass

from gpt.machine.runtime import Runtime
from gpt.planning.evidence import NgramStatistics
from gpt.planning.inputs import Inputs
from gpt.planning.kernels import Kernels
from gpt.planning.memory import MemorySetting
from gpt.planning.recipe import Recipe
from model import Options


@dataclass(frozen=True)
class Setup(Inputs):
    """The inputs of a run and every decision about it, each made once. config has the decided dropout.

    micro_batch is the planned number of sequences in a forward pass of each process. token_place is 'gpu',
    'ram' or 'mmap'. recipe_for makes the recipe for another last step, or for the last step that flags and text
    allow (None). shows_samples is False for a run without samples of text. memory decides the bytes of a step,
    which memory_parts predicts; checkpoint_bytes is the size of one checkpoint. why_strategy is '' for a single
    process. ngrams holds the text's n-gram statistics in the main process, where a forecast is possible.
    """

    runtime: Runtime
    options: Options
    kernels: Kernels
    recipe: Recipe
    memory: MemorySetting
    checkpoint_bytes: int
    token_place: str
    why_token_place: str
    micro_batch: int
    why_strategy: str
    recipe_for: Callable[[int | None], Recipe]
    shows_samples: bool
    ngrams: NgramStatistics | None = None

    @property
    def tokens_per_step(self) -> int:
        return self.recipe.samples_per_step * self.config.seq_length
