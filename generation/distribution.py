"""The distribution that a token is drawn from. None of it waits for a GPU but candidates, which may look twice.

Shapes: B rows, V vocabulary, M candidates of a row, L room for the ids of a text, n ids of a run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from generation.continuation import Sampling

CANDIDATES = 512  # the number of likeliest ids among which a nucleus is looked for before the vocabulary is sorted


# ---------------------------------------------------------------- penalties


def penalised(logits_BV: torch.Tensor, histories: Sequence[Sequence[int]], banned: Sequence[Sequence[int]],
              repetition_penalty: float) -> torch.Tensor:
    """Logits in which the ids of a row's history are less likely (Keskar et al. 2019, section 4.1), banned ids -inf."""
    logits_BV = logits_BV.clone()
    for logits_V, history, banned_ids in zip(logits_BV, histories, banned, strict=True):
        if repetition_penalty != 1 and history:
            ids = torch.tensor(history, device=logits_V.device)
            logits_V[ids] = less_likely(logits_V[ids], repetition_penalty)
        if banned_ids:
            logits_V[torch.tensor(banned_ids, device=logits_V.device)] = -torch.inf
    return logits_BV


def less_likely(logits: torch.Tensor, repetition_penalty: float) -> torch.Tensor:
    """Logits of ids that the text already contains, penalised."""
    return torch.where(logits < 0, logits * repetition_penalty, logits / repetition_penalty)


def without_repeats(logits_BV: torch.Tensor, history_BL: torch.Tensor, num_ids_B: torch.Tensor, n: int) -> torch.Tensor:
    """Logits with -inf for the ids that would complete a run of n ids that a row's history already contains.

    num_ids are the ids of each history, which lies on the device; n is at most L.
    """
    B, V = logits_BV.shape
    device = logits_BV.device
    last_places = num_ids_B[:, None] + torch.arange(1 - n, 0, device=device)
    last_ids = history_BL.gather(1, last_places.clamp(min=0))

    runs = history_BL.unfold(1, n, 1)
    is_written = torch.arange(n - 1, history_BL.size(1), device=device) < num_ids_B[:, None]
    is_repeat = (runs[..., :-1] == last_ids[:, None]).all(-1) & is_written
    banned = torch.zeros(B, V + 1, dtype=torch.bool, device=device)
    banned.scatter_(1, runs[..., -1].masked_fill(~is_repeat, V), True)
    return logits_BV.masked_fill(banned[:, :V], -torch.inf)


# ---------------------------------------------------------------- candidates


def candidates(logits_BV: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits over temperature, likeliest first, and their ids, [B, M] each; those that are not kept have -inf.

    Kept are the k likeliest, of these the nucleus, which is the smallest set of likeliest ids that holds at least top_p
    (Holtzman et al. 2019, section 3.1), and of these the ids at least min_p times as likely as the first (Nguyen et al.
    2024, section 3).
    """
    V = logits_BV.size(-1)
    for num in (few_candidates(V, sampling), V):
        values, ids, is_enough_B = likeliest(logits_BV, sampling, num)
        if num == V or is_enough_B.all():
            break
    return values, ids


def few_candidates(vocab_size: int, sampling: Sampling) -> int:
    """The number of sorted ids that are nearly always enough: all that are kept, and one more, are among them."""
    has_k = 0 < sampling.top_k < vocab_size
    return min(vocab_size, sampling.top_k + 32 if has_k else CANDIDATES)


def likeliest(logits_BV: torch.Tensor, sampling: Sampling, num: int,
              ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The candidates among the num likeliest ids of each row, as candidates has them; and bool [B].

    Each rule keeps the first of the sorted ids, so num of them are enough where the last one of them is not kept.
    """
    logits_BV = logits_BV / sampling.temperature
    V = logits_BV.size(-1)
    has_k = 0 < sampling.top_k < V

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
    return values.masked_fill(~kept, -torch.inf), ids, ~kept[:, -1]


# ---------------------------------------------------------------- drawing


def draws_from_all(sampling: Sampling) -> bool:
    """True if every id may be drawn, so that none has to be sorted."""
    return sampling.top_k == 0 and sampling.top_p == 1 and sampling.min_p == 0


def draw(logits_BV: torch.Tensor, sampling: Sampling, uniforms: Sequence[float]) -> torch.Tensor:
    """One id for each row of fp32 logits, int64 [B]: the likeliest if greedy, else chosen by a number in [0, 1)."""
    if sampling.is_greedy:
        return logits_BV.argmax(-1)
    if draws_from_all(sampling):
        values, ids = logits_BV / sampling.temperature, None
    else:
        values, ids = candidates(logits_BV, sampling)
    return id_at(values, ids, torch.tensor(uniforms, dtype=torch.float64, device=values.device))


def draw_among(logits_BV: torch.Tensor, sampling: Sampling, uniform_B: torch.Tensor, num: int,
               ) -> tuple[torch.Tensor, torch.Tensor]:
    """What draw returns, if the num likeliest ids of a row are enough; and whether they are, bool [B].

    The host is asked for nothing: uniform_B is on the device, float64.
    """
    is_enough_B = torch.ones(len(logits_BV), dtype=torch.bool, device=logits_BV.device)
    if sampling.is_greedy:
        return logits_BV.argmax(-1), is_enough_B
    if draws_from_all(sampling):
        return id_at(logits_BV / sampling.temperature, None, uniform_B), is_enough_B
    values, ids, found_B = likeliest(logits_BV, sampling, num)
    return id_at(values, ids, uniform_B), is_enough_B if num == logits_BV.size(-1) else found_B


def id_at(values_BM: torch.Tensor, ids_BM: torch.Tensor | None, uniform_B: torch.Tensor) -> torch.Tensor:
    """The id at which the cumulative probability passes a number in [0, 1), int64 [B]; without ids its place."""
    cumulative = values_BM.double().softmax(-1).cumsum(-1)
    at = uniform_B[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, at, right=True).clamp(max=values_BM.size(-1) - 1)
    return (chosen if ids_BM is None else ids_BM.gather(1, chosen))[:, 0]
