"""Log-probabilities by definition, from transformers."""

import torch

T = 16  # the window of the models that tests evaluate


def log_probabilities(theirs, ids: list[int]) -> list[float]:
    """Of each id except the first after those before it; theirs is transformers'."""
    with torch.no_grad():
        logits = theirs(torch.tensor([ids[:-1]])).logits[0]
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
