"""The decisions before the first step (Setup), and the seconds of a run's parts (Pace)."""

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
    allow (None). samples is False for a run without samples of text. memory decides the bytes of a step, which
    memory_parts predicts; checkpoint_bytes is the size of one checkpoint. why_strategy is '' for a single
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


@dataclass(frozen=True)
class Pace:
    """The seconds of a step, a validation token, a sample, a save while training waits, and the last save.

    The seconds of saves follow from the bytes of a checkpoint, the others are measured. val_tokens is the
    number of validation tokens. sample is 0 in a run without samples.
    """

    step: float
    val_token: float
    val_tokens: int
    sample: float
    save: float
    last_save: float

    def validation(self, recipe: Recipe) -> float:
        """Seconds of one validation; 0 without validation tokens."""
        return self.val_token * min(self.val_tokens, recipe.eval_tokens)

    def ending(self, recipe: Recipe, save_seconds: float) -> float:
        """Seconds from any step to the end, with a step under way; the previous save took save_seconds."""
        return 2 * self.step + self.validation(recipe) + self.sample + max(self.last_save, save_seconds)

    def seconds(self, recipe: Recipe, steps_done: int = 0) -> float:
        """Seconds from the steps done to the end of the run. Each epoch may save, and each validation."""
        steps = recipe.total_steps - steps_done
        validations = recipe.num_times(recipe.eval_interval, steps_done)
        samples = recipe.num_times(recipe.sample_interval, steps_done)
        epochs = steps * recipe.samples_per_step // recipe.windows_per_epoch
        between_steps = validations * (self.validation(recipe) + self.save) + samples * self.sample + epochs * self.save
        return steps * self.step + between_steps + self.last_save
