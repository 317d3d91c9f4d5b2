"""Muon, against PyTorch's own; what a step must not touch; the moments in a checkpoint."""


import pytest
import torch
import torch.distributed as dist

from gpt.ops.shards import full_tensor, in_shares
from gpt.optimizers import muon
from gpt.optimizers.muon import Muon
from tests.helpers.one_of_many import one_of
from tests.helpers.training import run_of, small_batch, small_model

ROWS = ((16,), (16, 16, 16), (64,), (16,))
SHAPES = ((16, 16), (48, 16), (64, 16), (16, 64))


def weights_of(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in SHAPES]


def group_of(weights: list[torch.Tensor], **changes) -> dict:
    return {"params": weights, "rows": list(ROWS), "rule": "muon", "weight_decay": 0.1, "lr": 0.02, **changes}


def no_adamw(groups: list[dict]) -> torch.optim.Optimizer:
    assert not groups
    return torch.optim.AdamW([torch.zeros(1, requires_grad=True)], fused=True)


def give_gradients(weights: list[torch.Tensor], seed: int, factor: float = 1.0) -> list[torch.Tensor]:
    gradients = [factor * gradient.detach() for gradient in weights_of(seed)]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    return gradients


def in_five_iterations(matrices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As PyTorch's Muon makes matrices orthogonal."""
    x = matrices / torch.linalg.matrix_norm(matrices, keepdim=True)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x


@pytest.mark.parametrize("at_a_time", [2**26, 16 * 64], ids=["all of a shape at a time", "one at a time"])
def test_all_but_its_iterations_equals_pytorchs_muon_where_each_stacked_matrix_is_a_parameter(at_a_time, monkeypatch):
    monkeypatch.setattr(muon, "MOST_ELEMENTS", at_a_time)
    monkeypatch.setattr(muon, "orthogonalized", in_five_iterations)
    ours = weights_of(0)
    theirs = [part.detach().clone().requires_grad_() for weight, rows in zip(ours, ROWS, strict=True)
              for part in weight.split(rows)]
    optimizer = Muon([group_of(ours)], 0.02, (0.9, 0.95), no_adamw, torch.bfloat16)
    reference = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for seed in range(1, 6):
        gradients = give_gradients(ours, seed)
        parts = [part for gradient, rows in zip(gradients, ROWS, strict=True) for part in gradient.split(rows)]
        for weight, part in zip(theirs, parts, strict=True):
            weight.grad = part.clone()
        optimizer.step()
        reference.step()
    flat = [part for weight, rows in zip(ours, ROWS, strict=True) for part in weight.split(rows)]
    for a, b in zip(flat, theirs, strict=True):
        moved = 5 * 0.02 * 0.2 * max(a.shape)**0.5
        assert (a - b).abs().max() < 0.01 * moved  # bf16 rounds to 1 in 256, and sums are taken in another order


def test_q_k_and_v_are_made_orthogonal_apart():
    whole, parts = weights_of(0)[1:2], weights_of(0)[1:2]
    for weights, rows in ((whole, (48,)), (parts, (16, 16, 16))):
        weights[0].grad = torch.cat([scale * weights_of(1)[1][:16].detach() for scale in (1.0, 1e-3, 1e3)])
        Muon([group_of(weights, rows=[rows], weight_decay=0.0)], 0.02, (0.9, 0.95), no_adamw, torch.float32).step()
    q, k, v = (parts[0] - weights_of(0)[1]).detach().split(16)
    assert torch.allclose(q, k, atol=1e-6)
    assert torch.allclose(q, v, atol=1e-6)
    assert not torch.allclose(whole[0], parts[0], atol=1e-4)


def test_the_step_of_all_hidden_matrices_is_traced_as_one_graph():
    eager, traced = (run_of(small_model(bias=False), name="muon") for _ in range(2))  # see test_train.py
    graphs = []

    def count(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    traced.optimizer._update = torch.compile(  # type: ignore[attr-defined]
        muon.update_matrices, fullgraph=True, dynamic=False, backend=count)
    for seed in range(3):
        for each in (eager, traced):
            each.model(*small_batch(2, seed)).backward()
            each.optimizer.param_groups[0]["lr"] = 1e-2 / (seed + 1)
            each.optimizer.step()
            each.optimizer.zero_grad()
    for a, b in zip(eager.model.parameters(), traced.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    assert len(graphs) == 1  # another learning rate is not another graph


def test_what_the_processes_computed_has_arrived_before_it_is_used():
    """A view of a tensor whose gather is in flight would be an AsyncCollectiveTensor."""
    with one_of(2, machines=1):
        assert type(in_shares(torch.square, torch.ones(3, 2, 2), torch.float32)) is torch.Tensor


def test_the_step_of_sharded_matrices_is_traced_too(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh, results = init_device_mesh("cpu", (1,)), []
        for shares in (False, True):
            weights, gradients, momenta = ([distribute_tensor(tensor.detach(), mesh, [Shard(0)]) if shares else
                                            tensor.detach() for tensor in weights_of(seed)] for seed in range(3))
            update = torch.compile(muon.update_matrices, fullgraph=True, dynamic=False, backend="eager")
            update(weights, gradients, momenta, ROWS, (torch.tensor(0.02), torch.tensor(0.1)),
                   (torch.tensor(0.0), torch.tensor(2.0)), torch.float32)
            results.append([full_tensor(tensor) for tensor in (*weights, *momenta)])
    finally:
        dist.destroy_process_group()
    assert all(torch.allclose(whole, shared, atol=1e-6) for whole, shared in zip(*results, strict=True))
