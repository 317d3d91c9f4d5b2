"""The nearest orthogonal matrix, nearly: five Newton-Schulz iterations, for many matrices of one shape at a time.

The plain form is U V' of the singular value decomposition U S V'. Shapes: N matrices of R rows and C columns.
"""

import torch

# Chosen so that small singular values grow fastest: all end between about 0.7 and 1.2 (Jordan et al. 2024).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalized(matrices_NRC: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Each matrix with its singular values near 1; one of zeros stays zero. Same shape, in the dtype of the products.

    It takes 5 (4 R^2 C + 2 R^3) FLOP a matrix where R <= C; others are transposed on the way, as that is cheaper.
    """
    if matrices_NRC.size(-2) > matrices_NRC.size(-1):
        return orthogonalized(matrices_NRC.mT, dtype).mT
    a, b, c = COEFFICIENTS
    # Of norm 1 first: fp16 cannot tell most gradients from zero.
    x = (matrices_NRC / torch.linalg.matrix_norm(matrices_NRC, keepdim=True).clamp(min=1e-7)).to(dtype)
    for _ in range(5):  # training/optimizers.py counts them where it chooses Muon
        gram_NRR = x @ x.mT
        polynomial_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial_NRR, x, beta=a)
    return x
