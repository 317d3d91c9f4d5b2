"""The loss of an output layer: smoothed labels, and chunks in fp16."""

import pytest
import torch

from gpt.ops.loss import (
    FP16_FACTOR,
    IGNORED,
    LossRule,
    OutputLayer,
    add_product_in_16_bits_,
    cross_entropy,
    linear_cross_entropy,
)


def loss_and_gradients(x_NC, weight_PC, targets_N, num_ids, scale, loss_chunk):
    x, weight = x_NC.clone().requires_grad_(), weight_PC.clone().requires_grad_()
    with torch.autocast("cpu", torch.float16):
        if loss_chunk:
            loss = linear_cross_entropy(x, weight, targets_N, LossRule(num_ids, loss_chunk))
        else:
            loss = cross_entropy(torch.nn.functional.linear(x, weight)[:, :num_ids], targets_N)
    (loss * scale).backward()
    return [loss.detach(), *(leaf.grad / scale for leaf in (x, weight) if leaf.grad is not None)]


def exact(x_NC, weight_PC, targets_N, num_ids):
    x, weight = x_NC.double().requires_grad_(), weight_PC.double().requires_grad_()
    loss = torch.nn.functional.cross_entropy((x @ weight.t())[:, :num_ids], targets_N, ignore_index=IGNORED)
    loss.backward()
    return [loss.detach(), *(leaf.grad for leaf in (x, weight) if leaf.grad is not None)]


@pytest.mark.parametrize("scale", [1.0, 2.0**16])
def test_in_fp16_the_chunks_are_as_near_as_all_logits_whatever_the_loss_scale(scale):
    torch.manual_seed(0)
    weight, x, targets = 0.05 * torch.randn(20_064, 32), torch.randn(96, 32), torch.randint(20_000, (96,))
    targets[::7] = IGNORED
    true = exact(x, weight, targets, 20_000)
    chunked = loss_and_gradients(x, weight, targets, 20_000, scale, 40)
    plain = loss_and_gradients(x, weight, targets, 20_000, 2.0**16, 0)
    for found, expected, exactly in zip(chunked, plain, true, strict=True):
        assert (found - exactly).norm() < 1.2 * (expected - exactly).norm() + 2e-4 * exactly.norm()


def test_in_fp16_many_rows_of_one_target_do_not_overflow():
    x, weight = torch.full((2048, 8), 9.0), torch.zeros(64, 8)
    _, dx, dw = loss_and_gradients(x, weight, torch.zeros(2048, dtype=torch.long), 60, 1.0, 2048)
    assert dx.isfinite().all()
    assert dw[0] == pytest.approx(-9 * 59 / 60, rel=1e-3)  # 9 x (softmax - 1), the mean over rows
    assert not dw[60:].any()


def test_the_product_in_fp16_neither_overflows_nor_loses_what_is_small():
    torch.manual_seed(0)
    targets = torch.zeros(2048, dtype=torch.long)  # all rows have one target: the largest sum there is
    for width in (0.05, 1.0, 9.0):
        x, z = width * (1 + 0.3 * torch.randn(2048, 16)), torch.randn(2048, 500)
        dz = (FP16_FACTOR * (z.softmax(-1) - torch.nn.functional.one_hot(targets, 500))).half()
        found = torch.zeros(500, 16)
        add_product_in_16_bits_(found, dz.t(), x.half())
        exactly = dz.t().double() @ x.half().double()
        assert (found - exactly).norm() < 1e-3 * exactly.norm()
        assert (found[1:] - exactly[1:]).norm() < 2e-3 * exactly[1:].norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_input_of_the_chunks_stays_as_it_was(dtype):
    x, weight = torch.randn(24, 8), torch.randn(64, 8)
    before = x.clone()
    for kept in (x, x.to(dtype)):
        leaf = kept.clone().requires_grad_()
        with torch.autocast("cpu", dtype):
            linear_cross_entropy(leaf, weight, torch.randint(60, (24,)), LossRule(60, 8)).backward()
            with torch.no_grad():
                linear_cross_entropy(leaf, weight, torch.randint(60, (24,)), LossRule(60, 8))
        assert torch.equal(leaf, before.to(leaf.dtype))


@pytest.mark.slow
@pytest.mark.parametrize("is_used_again", [False, True])
def test_compiled_gradients_in_place_of_the_input_are_those_of_an_eager_step(is_used_again):
    torch.manual_seed(0)
    x, weight, targets = torch.randn(96, 32), 0.1 * torch.randn(512, 32), torch.randint(500, (96,))

    def loss_of(leaf, weight):
        with torch.autocast("cpu", torch.float16):
            h = torch.nn.functional.layer_norm(leaf, (32,)).half()
            loss = linear_cross_entropy(h, weight, targets, LossRule(500, 40))
            return loss + h.float().square().sin().mean() if is_used_again else loss

    found = []
    for function in (loss_of, torch.compile(loss_of, fullgraph=True)):
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        loss = function(*leaves)
        loss.backward()
        found.append([loss.detach(), *(leaf.grad for leaf in leaves)])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() < 1e-3 * other.norm()


@pytest.mark.parametrize("num_targets", [None, 64.0])
@pytest.mark.parametrize("loss_chunk", [0, 40])
def test_smoothed_labels_are_those_of_pytorch_without_the_padding(loss_chunk, num_targets):
    torch.manual_seed(0)
    weight, x, targets = 0.3 * torch.randn(512, 32), torch.randn(2, 48, 32), torch.randint(500, (2, 48))
    targets[:, ::7] = IGNORED
    layer = OutputLayer(LossRule(500, loss_chunk, 0.1))
    divisor = None if num_targets is None else torch.tensor(num_targets)
    found, expected = ([leaf.clone().requires_grad_() for leaf in (x, weight)] for _ in range(2))
    loss = layer(*found, targets, None, divisor)
    logits = (expected[0] @ expected[1].t())[..., :500].flatten(0, 1)
    right = torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, label_smoothing=0.1,
                                              reduction="sum") / (num_targets or (targets != IGNORED).sum())
    for value in (loss, right):
        value.backward()
    for ours, theirs in zip((loss, *(leaf.grad for leaf in found)), (right, *(leaf.grad for leaf in expected)),
                            strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    in_validation = OutputLayer(LossRule(500, loss_chunk))(*found, targets, None, divisor)
    assert torch.equal(layer.eval()(*found, targets, None, divisor), in_validation)
    assert abs(in_validation - loss) > 1e-4
