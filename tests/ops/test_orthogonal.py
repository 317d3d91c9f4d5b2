"""Matrices made orthogonal, against the singular value decomposition."""

import pytest
import torch

from ops.orthogonal import orthogonalized


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 16, 40), (2, 40, 16)], ids=str)
def test_singular_vectors_stay_and_singular_values_come_near_1(shape):
    matrices = random(*shape)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    inner = left.mT @ orthogonalized(matrices) @ right.mT
    values = inner.diagonal(dim1=-2, dim2=-1)
    assert torch.allclose(inner, torch.diag_embed(values), atol=1e-4)
    assert ((values > 0.6) & (values < 1.25)).all()


def test_each_matrix_is_made_orthogonal_on_its_own_whatever_its_size():
    one, other = random(2, 8, 12)
    together = orthogonalized(torch.stack([1e-3 * one, 1e3 * other]))
    assert torch.allclose(together[0], orthogonalized(one[None])[0], atol=1e-5)
    assert torch.allclose(together[1], orthogonalized(other[None])[0], atol=1e-5)
    assert not orthogonalized(torch.zeros(1, 4, 6)).any()
