"""The draw of the next ids from the model's logits, by temperature, top_k and top_p.

Shapes: B rows, V vocabulary, M candidates of a row.
"""

import torch

from gpt.generation.continuation import Sampling

CANDIDATES = 512  # likeliest ids to search for the nucleus before the whole vocabulary is sorted


def draw(logits_BV: torch.Tensor, uniforms_B: torch.Tensor, sampling: Sampling, whole: bool = False) -> torch.Tensor:
    """Draws an id for each row of fp32 logits; at temperature 0 the likeliest.

    uniforms_B decides the draw: float64 in [0, 1). Returns float64 [3, B], which the host reads in one copy: the
    ids, their log-probabilities in the model's own distribution, and 1 where the candidates were enough. If a row
    has 0, draw again with whole, which makes every id a candidate. Log-probabilities are finite if the row's
    logits are.
    """
    if sampling.temperature < 1e-6:  # a division would overflow
        chosen_B1 = logits_BV.argmax(-1, keepdim=True)
        enough_B = torch.ones_like(uniforms_B)
    else:
        values_BM, ids_BM, enough_B = candidates(logits_BV / sampling.temperature, sampling, whole)
        cumulative_BM = values_BM.double().softmax(-1).cumsum(-1)
        at_B1 = uniforms_B[:, None] * cumulative_BM[:, -1:]
        place_B1 = torch.searchsorted(cumulative_BM, at_B1, right=True).clamp(max=values_BM.size(-1) - 1)
        chosen_B1 = place_B1 if ids_BM is None else ids_BM.gather(1, place_B1)
    log_probabilities_B = logits_BV.gather(1, chosen_B1)[:, 0] - logits_BV.logsumexp(-1)
    return torch.stack([chosen_B1[:, 0].double(), log_probabilities_B.double(), enough_B.double()])


def candidates(logits_BV: torch.Tensor, sampling: Sampling, whole: bool,
               ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Finds the ids that top_k and top_p keep, in descending order of their logits.

    logits_BV are already divided by the temperature. Returns the logits, -inf for an excluded id, and the ids,
    [B, M] each. top_k keeps the k likeliest ids; of them top_p keeps the smallest set of likeliest ids with at
    least that probability (Holtzman et al. 2019, section 3.1). If both keep every id, the logits come back
    unsorted, and the ids are None. Without whole only some of the likeliest ids are searched. The third result,
    bool [B], is False where the rules may keep more of a row: call again with whole.
    """
    V, k = logits_BV.size(-1), sampling.top_k
    if k == 0 and sampling.top_p == 1:
        return logits_BV, None, torch.ones_like(logits_BV[:, 0], dtype=torch.bool)
    k = min(k or V, V)
    M = V if whole else min(V, k + 32 if k < V else CANDIDATES)
    values_BM, ids_BM = logits_BV.topk(M)
    kept_BM = values_BM >= values_BM[:, :k][:, -1:]
    is_cut_B = kept_BM[:, -1].clone()  # ids equal to the k-th may follow, and belong to top_p's total
    if sampling.top_p < 1:
        allowed = values_BM.masked_fill(~kept_BM, -torch.inf) if k < V else logits_BV
        p_BM = (values_BM - allowed.logsumexp(-1, keepdim=True)).exp()
        kept_BM &= p_BM.cumsum(-1) - p_BM < sampling.top_p
        is_cut_B = kept_BM[:, -1] | (is_cut_B & (k < V))
    kept_BM[:, :1].fill_(True)
    return values_BM.masked_fill(~kept_BM, -torch.inf), ids_BM, ~is_cut_B | (M == V)
