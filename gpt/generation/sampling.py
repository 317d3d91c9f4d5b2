"""The loop that generates several texts in the rows of one decoder.

Shapes: B rows, V vocabulary.
"""

import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

import torch

from gpt.common.errors import Exit, UserError
from gpt.generation.continuation import Continuation, Sampling
from gpt.generation.decoder import Decoder
from gpt.generation.drawing import draw
from gpt.ops.shards import full_tensor
from model import LanguageModel


def generate_texts(decoder: Decoder, continuations: Iterable[Continuation], sampling: Sampling,
                   end_ids: Container[int | None]) -> Iterator[Continuation]:
    """Generates texts, several at a time; yields a text after each new id and at its end.

    A text ends after max_new_tokens, at one of end_ids, which is not added, or when the caller
    sets finish_reason. A free row takes the next text of continuations. When a window of T
    positions is full, its older half is dropped and the newer half is read again. Raises UserError
    (exit 6) if the logits are not finite.
    """
    waiting = iter(continuations)
    active: list[Continuation] = []  # the text in each row
    while True:
        for row in reversed(range(len(active))):
            if active[row].finish_reason:  # the last row takes its place
                last = active.pop()
                if row < len(active):
                    active[row] = last
                    decoder.move(len(active), row)
        for new in itertools.islice(waiting, decoder.num_rows - len(active)):
            decoder.fill(len(active), new.ids[-decoder.window:][:-1])
            active.append(new)
        if not active:
            return

        for row, text in enumerate(active):
            if decoder.lengths[row] == decoder.window:
                decoder.fill(row, text.ids[-(decoder.window // 2 or 1):][:-1])

        new_ids, log_probabilities = _next_ids(decoder, active, sampling)
        for text, new_id, log_probability in zip(list(active), new_ids, log_probabilities, strict=True):
            if new_id in end_ids:
                text.finish_reason = "end_of_text"
            else:
                text.add(new_id, log_probability)
            yield text


@torch.inference_mode()
def _next_ids(decoder: Decoder, active: Sequence[Continuation], sampling: Sampling) -> tuple[list[int], list[float]]:
    """Draws the next id of each text, with its log-probability in the model's own distribution.

    The host waits for the device twice: to copy the step's numbers there, and to read the drawn ids.
    """
    num = len(active)
    logits_BV, uniforms_B = decoder.step([text.ids[-1] for text in active], [text.random.random() for text in active])
    new_ids, log_probabilities, enough = decoder.draw(logits_BV, uniforms_B, sampling)[:, :num].tolist()
    for row in range(num):
        if not enough[row]:  # many ids of one probability, or a flat nucleus; a text does not depend on its neighbours
            again = draw(logits_BV[row:row + 1], uniforms_B[row:row + 1], sampling, whole=True).tolist()
            new_ids[row], log_probabilities[row] = again[0][0], again[1][0]
    if not all(map(math.isfinite, log_probabilities)):
        raise UserError(Exit.DIVERGED, "the model's logits are not finite: it diverged, or overflows in fp16. Give an "
                                       "earlier checkpoint, or --no-use_amp; drop --amp_dtype.")
    return list(map(int, new_ids)), log_probabilities


def sample(model: LanguageModel, prompt: Sequence[int], max_new_tokens: int, seed: int, end_of_text_id: int | None,
           sampling: Sampling | None = None, should_stop: Callable[[], bool] = lambda: False) -> list[int]:
    """Continues a prompt by up to max_new_tokens ids, on the device of the model's weights.

    Without sampling it has the defaults. should_stop() is called after each id. Raises UserError (exit 6) if the
    logits are not finite.
    """
    text = Continuation(prompt, max_new_tokens, seed)
    weights = {name: full_tensor(tensor) for name, tensor in model.state_dict().items()}
    decoder = Decoder(model.config, weights, 1, next(model.parameters()).device)
    for _ in generate_texts(decoder, [text], sampling or Sampling(), (end_of_text_id,)):
        if should_stop():
            break
    return text.new_ids
