"""Rotary positions: those of transformers, values and gradients; only the distance of two positions matters."""

import pytest
import torch

from ops.rotary import rotary_tables, rotate


def test_queries_and_keys_are_rotated_as_transformers_does():
    transformers = pytest.importorskip("transformers")
    modeling = pytest.importorskip("transformers.models.qwen3.modeling_qwen3")
    config = transformers.Qwen3Config(head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    q, k = torch.randn(2, 40, 6, 16, requires_grad=True), torch.randn(2, 40, 2, 16, requires_grad=True)

    cos, sin = modeling.Qwen3RotaryEmbedding(config)(q, torch.arange(40)[None])
    expected = modeling.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)
    tables = rotary_tables(40, 16, 5e5)
    for x, reference in zip((q, k), expected, strict=True):
        y = rotate(x, *tables)
        torch.testing.assert_close(y, reference)
        direction = torch.randn_like(y)
        torch.testing.assert_close(torch.autograd.grad(y, x, direction), torch.autograd.grad(reference, x, direction))


def test_the_product_of_a_query_and_a_key_depends_on_their_distance_alone():
    q, k = torch.randn(2, 16)
    q_TK, k_TK = (rotate(x.expand(1, 50, 1, 16), *rotary_tables(50, 16, 100.0))[0, :, 0] for x in (q, k))
    products_TT = q_TK @ k_TK.T
    for distance in (0, 1, 17):
        diagonal = products_TT.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(products_TT.diagonal(-1)[0], products_TT.diagonal(-17)[0])
    torch.testing.assert_close(q_TK.norm(dim=1), q.norm().expand(50))
