"""The distribution that is drawn from, and the schedule of several texts in the rows of one decoder."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from common.errors import Exit, UserError
from generation.decoder import Decoder
from model import GPT

CANDIDATES = 512  # the likeliest ids that a nucleus is sought in before the whole vocabulary is sorted


# ---------------------------------------------------------------- the distribution



@dataclass(frozen=True)
class Sampling:
    """What is drawn from: penalties, temperature (0: the likeliest), top-k, top-p, min-p, in transformers' order."""

    temperature: float = 0.8
    top_k: int = 200
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-6  # as good as 0, and dividing by it would overflow


def penalised(logits_BV: torch.Tensor, histories: Sequence[Sequence[int]], banned: Sequence[Sequence[int]],
              repetition_penalty: float) -> torch.Tensor:
    """Logits with ids of a row's history made less likely (Keskar et al. 2019, section 4.1) and banned ones at -inf."""
    logits_BV = logits_BV.clone()
    for logits_V, history, forbidden in zip(logits_BV, histories, banned, strict=True):
        if repetition_penalty != 1 and history:
            ids = torch.tensor(history, device=logits_V.device)
            found = logits_V[ids]
            logits_V[ids] = torch.where(found < 0, found * repetition_penalty, found / repetition_penalty)
        if forbidden:
            logits_V[torch.tensor(forbidden, device=logits_V.device)] = -torch.inf
    return logits_BV


def candidates(logits_BV: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits over temperature, likeliest first, and their ids, [B, M] each; what is out has -inf.

    The k likeliest, then the nucleus, the smallest set of likeliest ids that holds at least top_p (Holtzman et al.
    2019, section 3.1), then ids at least min_p times as likely as the first (Nguyen et al. 2024, section 3). Each rule
    keeps the first of the sorted ids, so it is enough to sort a few when the last of them is out.
    """
    logits_BV, V = logits_BV / sampling.temperature, logits_BV.size(-1)
    has_k = 0 < sampling.top_k < V
    few = min(V, sampling.top_k + 32 if has_k else CANDIDATES)
    for num in (few, V):
        values, ids = logits_BV.topk(num)
        kept = torch.ones_like(values, dtype=torch.bool)
        if has_k:
            kept = values >= values[:, sampling.top_k - 1:sampling.top_k]
        if sampling.top_p < 1:
            total = values.masked_fill(~kept, -torch.inf) if has_k else logits_BV
            p = (values - total.logsumexp(-1, keepdim=True)).exp()
            kept &= p.cumsum(-1) - p < sampling.top_p
        if sampling.min_p > 0:
            kept &= (values - values[:, :1]).exp() >= sampling.min_p
        kept[:, 0] = True
        if num == V or not kept[:, -1].any():
            break
    return values.masked_fill(~kept, -torch.inf), ids


def draw(logits_BV: torch.Tensor, sampling: Sampling, uniforms: Sequence[float]) -> torch.Tensor:
    """One id per row of fp32 logits, int64 [B], chosen by a number of [0, 1) each; the likeliest if greedy."""
    if sampling.is_greedy:
        return logits_BV.argmax(-1)
    if sampling.top_k == 0 and sampling.top_p == 1 and sampling.min_p == 0:
        values, ids = logits_BV / sampling.temperature, None
    else:
        values, ids = candidates(logits_BV, sampling)
    cumulative = values.double().softmax(-1).cumsum(-1)
    at = torch.tensor(uniforms, dtype=torch.float64, device=values.device)[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, at, right=True).clamp(max=values.size(-1) - 1)
    return (chosen if ids is None else ids.gather(1, chosen))[:, 0]


# ---------------------------------------------------------------- the schedule



class Continuation:
    """One text on its way: the ids read and made, the log-probabilities of those made, why it ended ('' while not).

    A caller may set finish to end it. The draws are a pure function of the seed.
    """

    def __init__(self, prompt: Sequence[int], max_new_tokens: int, seed: int):
        self.ids, self.num_prompt, self.max_new_tokens = list(prompt), len(prompt), max_new_tokens
        self.log_probabilities: list[float] = []
        self.finish = ""
        self._random = random.Random(seed)
        self._followers: dict[tuple[int, ...], list[int]] = {}  # of each n - 1 ids
        self._indexed = 0

    @property
    def new_ids(self) -> list[int]:
        return self.ids[self.num_prompt:]

    def uniform(self) -> float:
        return self._random.random()

    def banned(self, n: int) -> list[int]:
        """The ids that would complete a run of n ids that has been there."""
        for end in range(max(self._indexed, n - 1), len(self.ids)):
            self._followers.setdefault(tuple(self.ids[end - n + 1:end]), []).append(self.ids[end])
        self._indexed = max(self._indexed, len(self.ids))
        return self._followers.get(tuple(self.ids[len(self.ids) - n + 1:]), []) if len(self.ids) >= n else []


def run(decoder: Decoder, continuations: Iterable[Continuation], sampling: Sampling, end_of_text_id: int | None,
        ) -> Iterator[Continuation]:
    """Yields a continuation each time it got an id or ended, several at a time in the decoder's rows, until all have.

    Finish is 'length' after max_new_tokens and 'end_of_text' for that id, which is not among the ids. When a window of
    T positions is full, its older half is dropped and the newer half read again.
    Raises UserError (exit 6) for logits that are not finite.
    """
    waiting, active = iter(continuations), []
    while True:
        for row in reversed(range(len(active))):  # the last takes the place of one that ended
            if active[row].finish:
                last = active.pop()
                if row < len(active):
                    active[row] = last
                    decoder.move(len(active), row)
        while len(active) < decoder.num_rows and (new := next(waiting, None)) is not None:
            decoder.fill(len(active), new.ids[-decoder.window:][:-1])
            active.append(new)
        if not active:
            return
        for row, text in enumerate(active):
            if decoder.lengths[row] == decoder.window:
                decoder.fill(row, text.ids[-(decoder.window // 2 or 1):][:-1])
        with torch.inference_mode():
            logits_BV = decoder.step([text.ids[-1] for text in active])
            total_B = logits_BV.logsumexp(-1)
            if not total_B.isfinite().all():
                raise UserError(Exit.DIVERGED, "the model's logits are not finite: it diverged, or overflows in fp16. "
                                               "Give an earlier checkpoint, or --no-use_amp.")
            wanted_BV = logits_BV
            if sampling.repetition_penalty != 1 or sampling.no_repeat_ngram_size:
                n = sampling.no_repeat_ngram_size
                wanted_BV = penalised(logits_BV, [text.ids for text in active],
                                      [text.banned(n) if n else [] for text in active], sampling.repetition_penalty)
            chosen_B = draw(wanted_BV, sampling, [text.uniform() for text in active])
            log_probabilities = (logits_BV.gather(1, chosen_B[:, None])[:, 0] - total_B).tolist()
        for text, new_id, log_probability in zip(list(active), chosen_B.tolist(), log_probabilities, strict=True):
            if new_id == end_of_text_id:
                text.finish = "end_of_text"
            else:
                text.ids.append(new_id)
                text.log_probabilities.append(log_probability)
                if len(text.log_probabilities) >= text.max_new_tokens:
                    text.finish = "length"
            yield text


def sample(model: GPT, prompt: Sequence[int], max_new_tokens: int, seed: int, end_of_text_id: int | None,
           sampling: Sampling = Sampling()) -> list[int]:
    """Up to max_new_tokens ids that continue the prompt, by the weights where they are. Raises UserError (exit 6)."""
    text = Continuation(prompt, max_new_tokens, seed)
    decoder = Decoder(model.config, model.state_dict(), 1, next(model.parameters()).device)
    for _ in run(decoder, [text], sampling, end_of_text_id):
        pass
    return text.new_ids
