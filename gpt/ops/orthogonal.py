"""The nearest orthogonal matrices, approximately: four Newton-Schulz iterations on matrices of one shape.

The plain form is U V' of the singular value decomposition U S V'.

Shapes: N matrices of R rows and C columns.
"""

import torch

# An iteration replaces X by (a1 + a3 G + a5 G^2) X, with G = X X'. These factors make small singular values
# grow fastest; all singular values end between about 0.7 and 1.2 (Jordan et al. 2024).
A1 = 3.4445
A3 = -4.7750
A5 = 2.0315
WIDE = 1.5  # columns per row from which two iterations on G take fewer FLOP than two on X


def orthogonalized(matrices_NRC: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Each matrix with singular values near 1, [N, R, C] in dtype, which is the dtype of the products.

    R must be at most C. A matrix of zeros stays zero.
    """
    R = matrices_NRC.shape[-2]
    # First scale X to norm R^(1/4): the norm of G^2 then lies between 1 / sqrt(R) and R, within fp16's range.
    norm_N11 = torch.linalg.matrix_norm(matrices_NRC, keepdim=True)
    x_NRC = (matrices_NRC * (R**0.25 / norm_N11.clamp(min=1e-7)).to(matrices_NRC.dtype)).to(dtype)

    # Then scale X to a largest singular value just below 1, whose fourth power is at most the norm of G^2.
    # Scaled by its own norm instead, X would need one more iteration.
    gram_NRR = x_NRC @ x_NRC.mT
    square_NRR = gram_NRR @ gram_NRR
    norm_N11 = torch.linalg.matrix_norm(square_NRR, dtype=torch.float32, keepdim=True)
    scale_N11 = (norm_N11.clamp(min=1e-3)**-0.25).to(dtype)  # finite in fp16 for a matrix of zeros
    x_NRC.mul_(scale_N11)
    gram_NRR.mul_(scale_N11**2)
    first_NRR = square_NRR.mul_(A5 * scale_N11**4).add_(gram_NRR, alpha=A3)
    x_NRC = two_iterations(x_NRC, gram_NRR, first_NRR)

    gram_NRR = x_NRC @ x_NRC.mT
    return two_iterations(x_NRC, gram_NRR, polynomial(gram_NRR))


def polynomial(gram_NRR: torch.Tensor) -> torch.Tensor:
    """a3 G + a5 G^2."""
    return torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=A3, alpha=A5)


def two_iterations(x_NRC: torch.Tensor, gram_NRR: torch.Tensor, first_NRR: torch.Tensor) -> torch.Tensor:
    """X after two iterations, from X, its G and the first iteration's polynomial of G.

    A wide X is multiplied only once, by the product of both polynomials P = a1 + a3 G + a5 G^2, since the
    next G is P G P (Zhang et al. 2026, Gram Newton-Schulz). More than two iterations at once drift in bf16.
    The polynomials are stored without a1, which would cost their diagonals digits.
    """
    if x_NRC.size(-1) < WIDE * x_NRC.size(-2):
        x_NRC = torch.baddbmm(x_NRC, first_NRR, x_NRC, beta=A1)
        return torch.baddbmm(x_NRC, polynomial(x_NRC @ x_NRC.mT), x_NRC, beta=A1)
    half_NRR = torch.baddbmm(gram_NRR, first_NRR, gram_NRR, beta=A1)
    second_NRR = polynomial(torch.baddbmm(half_NRR, half_NRR, first_NRR, beta=A1))
    both_NRR = torch.baddbmm(first_NRR, second_NRR, first_NRR, beta=A1).add_(second_NRR, alpha=A1)
    return torch.baddbmm(x_NRC, both_NRR, x_NRC, beta=A1**2)
