"""Matrices made orthogonal, against the singular value decomposition."""

import pytest
import torch

from gpt.ops.orthogonal import orthogonalized


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 16, 40)], ids=str)
def test_singular_vectors_stay_and_singular_values_come_near_1(shape):
    matrices = random(*shape)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    inner = left.mT @ orthogonalized(matrices, torch.float32) @ right.mT
    values = inner.diagonal(dim1=-2, dim2=-1)
    assert torch.allclose(inner, torch.diag_embed(values), atol=1e-4)
    assert ((values > 0.6) & (values < 1.25)).all()


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.float16, 0.01), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("shape", [(64, 64), (64, 160)], ids=str)
def test_it_is_four_iterations_of_a_matrix_whose_largest_singular_value_is_hardly_below_1(shape, dtype, error):
    matrix = random(*shape)
    x = matrix.double()
    x = x / torch.linalg.svdvals(x).pow(8).sum() ** (1 / 8)
    assert torch.linalg.svdvals(x).max() > 0.7
    for _ in range(4):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    assert (orthogonalized(matrix[None], dtype)[0] - x).norm() < error * x.norm()


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.float16, 1e-2)], ids=str)
def test_each_matrix_is_made_orthogonal_on_its_own_whatever_its_size(dtype, error):
    one, other = random(2, 8, 12)
    together = orthogonalized(torch.stack([1e-6 * one, 1e6 * other]), dtype)
    assert torch.allclose(together[0].float(), orthogonalized(one[None], torch.float32)[0], atol=error)
    assert torch.allclose(together[1].float(), orthogonalized(other[None], torch.float32)[0], atol=error)
    assert not orthogonalized(torch.zeros(1, 4, 6), dtype).any()
