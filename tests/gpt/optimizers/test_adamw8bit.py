"""AdamW with moments in 8 bits against the fused one; what a step must not touch; the moments in a checkpoint."""

from functools import partial

import pytest
import torch
from safetensors import safe_open

from gpt.optimizers import adamw8bit
from gpt.optimizers.adamw8bit import AdamW8bit, split

BETAS = (0.9, 0.95)
fused = partial(torch.optim.AdamW, lr=1e-2, betas=BETAS, fused=True)


def groups_of(parameters: list[torch.Tensor]) -> list[dict]:
    return [{"params": parameters, "rule": "adamw8bit", "weight_decay": 0.1, "lr": 1e-2}]


def parameters_of(seed: int) -> list[torch.Tensor]:
    """A matrix of 64 blocks, one that has no whole blocks, a vector."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in ((256, 64), (5, 7), (256,))]


def ours(parameters: list[torch.Tensor]) -> AdamW8bit:
    return AdamW8bit(groups_of(parameters), 1e-2, BETAS, fused)


def give_gradients(seed: int, *models: list[torch.Tensor]) -> None:
    """Gradients whose columns differ in size by 400 times, with a mean beside the noise."""
    for index, each in enumerate(zip(*models, strict=True)):
        generator = torch.Generator().manual_seed(100 * seed + index)
        noise = torch.randn(each[0].shape, generator=generator)
        for parameter in each:
            parameter.grad = (noise + 0.3) * torch.linspace(-6, 0, parameter.shape[-1]).exp()


def bits_of(optimizer: torch.optim.Optimizer) -> list[bytes]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    tensors = [*parameters, *(value for p in parameters for value in optimizer.state[p].values())]
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


def test_it_moves_weights_as_pytorchs_fused_adamw_and_what_has_no_whole_blocks_bit_for_bit():
    eight, full, start = parameters_of(0), parameters_of(0), parameters_of(0)
    optimizer, reference = ours(eight), fused(groups_of(full))
    for seed in range(100):
        give_gradients(seed, eight, full)
        optimizer.step()
        reference.step()
        if seed == 0:  # its moments were zeros, which codes hold exactly
            assert torch.allclose(eight[0], full[0], atol=1e-6)
    moved, expected = (weights[0].detach() - start[0].detach() for weights in (eight, full))
    assert (moved - expected).norm() < 0.08 * expected.norm()
    columns = moved.norm(dim=0) / expected.norm(dim=0)  # from the smallest gradients to the largest
    assert (columns - 1).abs().max() < 0.1
    assert all(torch.equal(a, b) for a, b in zip(eight[1:], full[1:], strict=True))
    eight[0].grad[0, 0] = 1e6  # type: ignore[index]  # beside it all others of its block are next to nothing
    optimizer.step()
    assert optimizer.state[eight[0]]["exp_avg_sq_codes"].min() > 0  # by zero the next first moment would be divided


def test_matrices_of_whole_blocks_are_in_8_bits_and_all_else_is_in_32():
    matrix, odd, vector = parameters = parameters_of(0)
    group = {"params": parameters, "rows": [(256,), (5,)], "rule": "adamw8bit", "lr_scale": 3.0, "weight_decay": 0.1}
    eight, rest = split(group)
    assert (eight["rule"], [id(p) for p in eight["params"]]) == ("adamw8bit", [id(matrix)])
    assert (rest["rule"], [id(p) for p in rest["params"]]) == ("adamw", [id(odd), id(vector)])
    assert eight["lr_scale"] == rest["lr_scale"] == 3.0
    optimizer = ours(parameters)
    give_gradients(0, parameters)
    optimizer.step()
    assert sum(kept.nbytes for kept in optimizer.state[matrix].values()) < 0.26 * 8 * matrix.numel()
    assert set(optimizer.state[vector]) == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("as_on_a_gpu", [False, True], ids=["on a CPU", "where the host waits for nothing"])
def test_a_step_with_found_inf_changes_no_bit(as_on_a_gpu, monkeypatch):
    optimizer = ours(parameters := parameters_of(0))
    if as_on_a_gpu:
        monkeypatch.setattr(optimizer, "_host_knows", False)

    def step(found_inf: float) -> None:
        optimizer.found_inf = torch.tensor(found_inf)
        optimizer.step()

    give_gradients(0, parameters)
    step(0.0)
    before = bits_of(optimizer)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, float("nan"))
    step(1.0)
    assert bits_of(optimizer) == before
    give_gradients(1, parameters)
    step(0.0)
    assert optimizer.state[parameters[0]]["step"] == 2
    changed = [a != b for a, b in zip(bits_of(optimizer), before, strict=True)]
    assert all(changed)


def test_pieces_and_the_traced_graph_make_the_same_step():
    whole, pieces, traced = (parameters_of(0) for _ in range(3))
    optimizers = [ours(parameters) for parameters in (whole, pieces, traced)]
    optimizers[1]._piece = 3 * adamw8bit.BLOCK
    graphs = []

    def count(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    optimizers[2]._update = torch.compile(adamw8bit.update_all, fullgraph=True, dynamic=False, backend=count)
    optimizers[2]._host_knows, optimizers[2]._piece = False, 2**62  # as on a GPU
    for optimizer in optimizers:
        optimizer.found_inf = torch.zeros(())
    for seed in range(4):
        give_gradients(seed, whole, pieces, traced)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 1e-2 / (seed + 1)
            optimizer.step()
    assert bits_of(optimizers[0]) == bits_of(optimizers[1])
    assert torch.allclose(whole[0], traced[0], atol=1e-5)  # traced, a power is computed in another precision
    assert len(graphs) == 1  # another learning rate or step is not another graph


def test_blocks_of_zeros_and_of_the_smallest_gradients_stay_finite():
    optimizer = ours(parameters := parameters_of(0))
    for scale in (0.0, 1e-30, 1e-20, 0.0, 1e4):
        give_gradients(1, parameters)
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad *= scale
        optimizer.step()
        assert all(parameter.isfinite().all() for parameter in parameters)
        assert (parameters[0] - parameters_of(0)[0]).abs().max() < 0.2


def test_a_moment_below_half_a_code_arrives_in_the_mean_of_some_steps():
    """Of a block whose first gradient is 100,000 times the others': these move too, by steps of the same sign."""
    weight = torch.zeros(1, 256, requires_grad=True)
    params = [weight, torch.zeros(1, requires_grad=True)]
    optimizer = AdamW8bit([{"params": params, "rule": "adamw8bit", "weight_decay": 0.0}], 1e-2, BETAS, fused)
    weight.grad = torch.full_like(weight, 1e-5)
    weight.grad[0, 0] = 1
    for _ in range(50):
        optimizer.step()
    assert weight.max() < 0
    assert weight.min() > -4 * 50 * 1e-2


def test_a_checkpoint_holds_codes_and_scales_under_their_own_names(run):
    run.ok("--max_steps", "2", "--optimizer", "adamw8bit")
    name = "transformer.h.0.mlp.c_fc.weight"
    with safe_open(run.folder / "out/checkpoint-2/optimizer.safetensors", "pt") as file:
        stored = {key: file.get_tensor(f"{key}.{name}") for key in (*adamw8bit.CODES, *adamw8bit.SCALES, "step")}
    assert [stored[key].dtype for key in adamw8bit.CODES] == [torch.int8, torch.uint8]
    assert [stored[key].shape for key in adamw8bit.SCALES] == [(stored["exp_avg_codes"].numel() // 256,)] * 2
    assert stored["step"] == 2
    assert all(tensor.any() for tensor in stored.values())
