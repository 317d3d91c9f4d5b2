"""Weights set to zero by their magnitude. Zeros save neither memory nor time: they are stored and multiplied too."""

import torch

from gpt.architectures.table import Network, architecture_of


@torch.no_grad()
def prune_blocks(model: Network, share: float) -> str:
    """Sets the smallest share of each matrix of the blocks to zero, by magnitude; stacked matrices count as one.

    Embeddings, biases and norms stay: the layer-wise magnitude pruning of Han et al. (2015), section 3. Returns what a
    model card says of it.
    """
    num_zeros = num_weights = 0
    for name in architecture_of(model.config).hidden_matrices(model.config):
        weight = model.get_parameter(name)
        smallest = weight.abs().flatten().argsort(stable=True)[:round(share * weight.numel())]
        weight.view(-1)[smallest] = 0.0
        num_zeros += len(smallest)
        num_weights += weight.numel()
    return (f"\n## Pruned\n\nOf each matrix in the blocks the smallest {100 * share:.4g}% of the weights are zero, "
            f"{num_zeros:,} of {num_weights:,}: it takes the same memory and time (Han et al. 2015, section 3).\n")
