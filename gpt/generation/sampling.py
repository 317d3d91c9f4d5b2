"""The loop that generates several texts in the rows of one decoder, and the draw of their next ids.

Shapes: B rows, V vocabulary, M candidates of a row.
"""

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

import torch

from gpt.architectures.table import Network
from gpt.common.errors import Exit, UserError
from gpt.generation.continuation import DEFAULTS, Continuation, Sampling
from gpt.generation.decoder import Decoder
from gpt.machine.backends import backend_of
from gpt.ops.shards import full_tensors

NOT_FINITE = ("the model's logits are not finite: it diverged, or overflows in fp16. Give an earlier "
              "checkpoint, or --no-use_amp.")
CANDIDATES = 512  # likeliest ids to search for the nucleus before the whole vocabulary is sorted


def decode(decoder: Decoder, continuations: Iterable[Continuation], sampling: Sampling,
           end_ids: Container[int | None], ) -> Iterator[Continuation]:
    """Generates the texts, several at a time in the decoder's rows; yields a text after each new id and at its end.

    A text ends after max_new_tokens, at one of end_ids, which is not added, or when the caller sets
    finish_reason. A free row takes the next text of continuations. When a window of T positions is full,
    its older half is dropped and the newer half is read again. Raises UserError (exit 6) if the logits are
    not finite.
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
    """Draws the next id of each text, with its log-probability in the model's own distribution."""
    logits_BV = decoder.step([text.ids[-1] for text in active])
    if not backend_of(logits_BV).has_float64:  # draw() needs it
        logits_BV = logits_BV.cpu()
    total_B = logits_BV.logsumexp(-1)
    if not total_B.isfinite().all():
        raise UserError(Exit.DIVERGED, NOT_FINITE)
    chosen_B = draw(logits_BV, sampling, [text.random.random() for text in active])
    log_probabilities_B = logits_BV.gather(1, chosen_B[:, None])[:, 0] - total_B
    return chosen_B.tolist(), log_probabilities_B.tolist()


def sample(model: Network, prompt: Sequence[int], max_new_tokens: int, seed: int, end_of_text_id: int | None,
           sampling: Sampling = DEFAULTS, should_stop: Callable[[], bool] = lambda: False) -> list[int]:
    """Continues a prompt by up to max_new_tokens ids, on the device of the model's weights.

    should_stop() is asked after each id. Raises UserError (exit 6) if the logits are not finite.
    """
    text = Continuation(prompt, max_new_tokens, seed)
    decoder = Decoder(model.config, full_tensors(model.state_dict()), 1, next(model.parameters()).device)
    for _ in decode(decoder, [text], sampling, (end_of_text_id,)):
        if should_stop():
            break
    return text.new_ids


def draw(logits_BV: torch.Tensor, sampling: Sampling, uniforms: Sequence[float]) -> torch.Tensor:
    """Draws one id, int64 [B], for each row of fp32 logits: by a number in [0, 1), or the likeliest if greedy."""
    if sampling.temperature < 1e-6:  # a division would overflow
        return logits_BV.argmax(-1)
    values_BM, ids_BM = candidates(logits_BV / sampling.temperature, sampling)
    cumulative_BM = values_BM.double().softmax(-1).cumsum(-1)
    at_B1 = torch.tensor(uniforms, dtype=torch.float64, device=values_BM.device)[:, None] * cumulative_BM[:, -1:]
    place_B1 = torch.searchsorted(cumulative_BM, at_B1, right=True).clamp(max=values_BM.size(-1) - 1)
    return (place_B1 if ids_BM is None else ids_BM.gather(1, place_B1))[:, 0]


def candidates(logits_BV: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The logits of the likeliest ids in descending order, and the ids, [B, M] each; excluded ids have -inf.

    The k likeliest ids are kept, then the nucleus among them: the smallest set of likeliest ids with a
    probability of at least top_p (Holtzman et al. 2019, section 3.1). If every id is kept, nothing is
    sorted: the ids are None.
    """
    V, k = logits_BV.size(-1), sampling.top_k
    if k == 0 and sampling.top_p == 1:
        return logits_BV, None
    k = min(k or V, V)
    # Each rule keeps the first of the sorted ids. So a few sorted ids are enough if the last one of them is
    # excluded.
    for num in (min(V, k + 32 if k < V else CANDIDATES), V):
        values_BM, ids_BM = logits_BV.topk(num)
        kept_BM = values_BM >= values_BM[:, :k][:, -1:]
        if sampling.top_p < 1:
            total = values_BM.masked_fill(~kept_BM, -torch.inf) if k < V else logits_BV
            p_BM = (values_BM - total.logsumexp(-1, keepdim=True)).exp()
            kept_BM &= p_BM.cumsum(-1) - p_BM < sampling.top_p
        kept_BM[:, 0] = True
        if not kept_BM[:, -1].any():
            break
    return values_BM.masked_fill(~kept_BM, -torch.inf), ids_BM
