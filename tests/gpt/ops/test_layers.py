"""Linear layers, GELU and SwiGLU against PyTorch's and transformers' own."""

import pytest
import torch
import torch.nn.functional as F

from gpt.ops import layers
from gpt.ops.layers import ACTIVATIONS, LinearInHalf, linear, onednn_linear, swiglu
from tests.helpers.decoding import largest_difference


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("shape", [(7, 24), (2, 5, 24)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_product_by_onednn_and_its_gradients_are_those_of_pytorch(monkeypatch, shape, has_bias):
    by_onednn = []
    real = onednn_linear
    monkeypatch.setattr(layers, "onednn_linear", lambda *args: by_onednn.append(1) or real(*args))
    x, weight, bias = torch.randn(shape), torch.randn(40, 24), torch.randn(40) if has_bias else None
    found = {}
    for is_faster in (False, True):
        monkeypatch.setattr(layers, "ONEDNN_IS_FASTER", is_faster)
        leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
        y = linear(*leaves)
        y.mul(torch.arange(40)).transpose(0, -1).sum().backward()
        found[is_faster] = [y.detach(), *(leaf.grad for leaf in leaves)]
    assert len(by_onednn) == 2
    for mine, theirs in zip(found[True], found[False], strict=True):
        assert largest_difference(mine, theirs) < 2e-6


def test_products_in_half_precision_and_without_avx512_are_pytorchs(monkeypatch):
    monkeypatch.setattr(layers, "onednn_linear", None)
    x, weight = torch.randn(3, 24), torch.randn(40, 24)
    monkeypatch.setattr(layers, "ONEDNN_IS_FASTER", False)
    assert linear(x, weight).equal(F.linear(x, weight))
    monkeypatch.setattr(layers, "ONEDNN_IS_FASTER", True)
    assert linear(x.bfloat16(), weight.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16


@pytest.mark.parametrize(("half", "rounding"), [(torch.bfloat16, 1e-3), (torch.float16, 1e-4)])
def test_a_product_in_half_precision_is_autocasts_and_gradients_of_its_weights_are_not_rounded(half, rounding):
    x, weight, bias = torch.randn(2, 64, 24).to(half), torch.randn(40, 24), torch.randn(40)
    dy, found = torch.randn(2, 64, 40).to(half), []
    for rounded in ([weight.to(half)], []):
        leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
        with torch.autocast("cpu", half):
            y = (LinearInHalf.apply if rounded else F.linear)(*leaves, *rounded)
        y.backward(dy)
        found.append([y, *(leaf.grad for leaf in leaves)])
    (y, dx, dw, db), theirs = found
    assert y.equal(theirs[0])
    assert dx.equal(theirs[1])
    for mine, its, exact in ((dw, theirs[2], dy.flatten(0, 1).double().mT @ x.flatten(0, 1).double()),
                             (db, theirs[3], dy.double().sum((0, 1)))):
        assert largest_difference(mine.double(), exact) < 1e-6 < rounding < largest_difference(its.double(), exact)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_the_one_transformers_calls_by_that_name(name):
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(ACTIVATIONS[name](x), ACT2FN[name](x), atol=1e-6, rtol=0)


def test_swiglu_is_that_of_transformers_and_keeps_its_input_alone():
    transformers = pytest.importorskip("transformers")
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    theirs = modeling.LlamaMLP(transformers.LlamaConfig(hidden_size=12, intermediate_size=20, num_attention_heads=2))
    x = torch.randn(5, 12, requires_grad=True)
    stacked = torch.cat([theirs.gate_proj.weight, theirs.up_proj.weight])
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        hidden = swiglu(F.linear(x, stacked))
    y, expected = F.linear(hidden, theirs.down_proj.weight), theirs(x)
    torch.testing.assert_close(y, expected)
    assert [tensor.numel() for tensor in kept if tensor.dim() == 2 and len(tensor) == 5] == [5 * 12, 5 * 40]
