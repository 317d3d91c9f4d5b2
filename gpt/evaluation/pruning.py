"""Pruning by magnitude. Zeros save neither memory nor time: they are stored and multiplied like other weights."""

import torch

from gpt.architectures.table import Network, architecture_of


@torch.no_grad()
def prune_blocks(model: Network, fraction: float) -> str:
    """Sets the smallest weights of each matrix in the blocks to zero; returns a paragraph for the model card.

    The given fraction of each matrix becomes zero; stacked matrices count as one. Embeddings, biases and
    norms stay: this is the layer-wise magnitude pruning of Han et al. (2015), section 3.
    """
    num_zeros = num_weights = 0
    for name in architecture_of(model.config).hidden_matrices(model.config):
        weight = model.get_parameter(name)
        smallest = weight.abs().flatten().argsort(stable=True)[:round(fraction * weight.numel())]
        weight.view(-1)[smallest] = 0.0
        num_zeros += len(smallest)
        num_weights += weight.numel()
    return (f"\n## Pruned\n\nOf each matrix in the blocks the smallest {100 * fraction:.4g}% of the weights are zero, "
            f"{num_zeros:,} of {num_weights:,}: it takes the same memory and time (Han et al. 2015, "
            "section 3).\n")
