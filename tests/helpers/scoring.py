"""Log-probabilities by definition, from transformers."""

import torch

T = 16  # the window of the models that tests evaluate


def log_probabilities(theirs, ids: list[int]) -> list[tuple[float, bool]]:
    """Of each id except the first after those before it, and whether it is the likeliest; theirs is transformers'."""
    with torch.no_grad():
        logits = theirs(torch.tensor([ids[:-1]])).logits[0]
    return [(float(row.log_softmax(-1)[index]), int(row.argmax()) == index)
            for row, index in zip(logits, ids[1:], strict=True)]
