"""Groups of parameters, and what an optimizer keeps."""

from typing import Any

import pytest
import torch

import train
from gpt.checkpoint.contents import StateTensor
from gpt.checkpoint.stored import NEW_RUN, StoredState
from gpt.common.errors import Exit
from gpt.optimizers.build import (
    AdamWForMPS,
    adamw_for,
    parameter_groups,
    state_bytes,
    state_schema,
)
from gpt.optimizers.table import OPTIMIZERS
from gpt.planning.recipe import choose_optimizer
from gpt.training.run import Run
from model import GPT, GPTConfig
from tests.helpers import apple
from tests.helpers.training import run_of, small_batch, small_model

KINDS = pytest.mark.parametrize("name", OPTIMIZERS)


@KINDS
def test_every_parameter_is_in_exactly_one_group_with_its_decay_and_rate(name):
    with torch.device("meta"):
        model = GPT(GPTConfig(50257, 1024, 12, 12, 768, tie_weights=False))
    groups = parameter_groups(model, name, 0.1, lr_scale=3.0)
    names = {id(p): name for name, p in model.named_parameters()}
    grouped = [[names[id(p)] for p in group["params"]] for group in groups]
    assert sorted(name for group in grouped for name in group) == sorted(names.values())
    hidden, embeddings, vectors = grouped
    assert {name.split(".", 3)[3] for name in hidden} == {
        "attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"}
    assert set(embeddings) == {"transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"}
    assert all(name.endswith(".bias") or ".ln_" in name for name in vectors)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.1, 0.0]
    assert [group["lr_scale"] for group in groups] == [1.0, 3.0, 3.0]
    assert groups[0]["rows"][:2] == [(768, 768, 768), (768,)]


@KINDS
def test_the_state_that_is_declared_is_the_state_the_optimizer_makes(name):
    learner = run_of(model := small_model(vocab_size=128, n_embd=256), name=name)
    optimizer = learner.optimizer
    model(*small_batch(2)).backward()
    optimizer.step()
    made = {parameter: dict(optimizer.state[parameter]) for parameter in model.parameters()}
    for parameter, state in made.items():
        assert {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in state.items()} == {
            key: (kept.shape, kept.dtype) for key, kept in state_schema(optimizer, parameter).items()}
    num_bytes = sum(tensor.nbytes for state in made.values() for tensor in state.values())
    scalars = sum(tensor.nbytes for state in made.values() for tensor in state.values() if tensor.dim() == 0)
    expected = state_bytes(name, model.config) * model.config.num_parameters
    assert num_bytes - scalars == pytest.approx(expected)


def test_what_is_kept_may_depend_on_the_matrices_that_are_stacked(monkeypatch):
    monkeypatch.setattr("gpt.optimizers.muon.Muon.schema_of", lambda parameter, rows: {  # as of Shampoo
        str(number): StateTensor((each, each), torch.float32) for number, each in enumerate(rows)})
    run, c = run_of(model := small_model(vocab_size=128), name="muon"), model.config
    assert len(state_schema(run.optimizer, model.get_parameter("transformer.h.0.attn.c_attn.weight"))) == 3
    assert state_bytes("muon", c) * c.num_parameters == pytest.approx(
        2 * 4 * (5 * 16**2 + 64**2) + 8 * (c.num_parameters - c.num_block_weights))


def stepped(run: Run, *seeds: int, grad_scale: float | None = None) -> list[torch.Tensor]:
    """The weights after steps on the batches of these seeds."""
    for seed in seeds:
        (run.model(*small_batch(2, seed)) * (grad_scale or 1.0)).backward()
        run.optimizer.grad_scale = None if grad_scale is None else torch.tensor(grad_scale)  # type: ignore[attr-defined]
        run.optimizer.step()
        run.optimizer.zero_grad()
    return [weight.detach().clone() for weight in run.model.parameters()]


@KINDS
def test_the_gradient_is_divided_by_grad_scale(name):
    plain, scaled = (stepped(run_of(small_model(), name=name), 0, grad_scale=scale) for scale in (None, 64.0))
    assert all(torch.equal(a, b) for a, b in zip(plain, scaled, strict=True))


# ---------------------------------------------------------------- which one


@pytest.mark.parametrize(("flags", "tokens", "expected", "why"), [
    ([], 6_144, "muon", "Muon adds 35.0% to the blocks' FLOPs"),
    ([], 5_120, "adamw", "Muon adds 42.0% to the blocks' FLOPs"),
    (["--learning_rate", "1e-3"], 2**19, "adamw", "--learning_rate given"),
    (["--beta1", ".9", "--beta2", ".95"], 2**19, "adamw", "--beta1, --beta2 given"),
    (["--init_from", "gpt2"], 2**19, "adamw", "trained weights"),
    (["--optimizer", "muon", "--learning_rate", "1e-3"], 1024, "muon", ""),
    (["--optimizer", "adamw"], 2**19, "adamw", "")])
def test_auto_takes_muon_where_it_pays_and_says_why(flags, tokens, expected, why):
    chosen, reason = choose_optimizer(train.read_flags(flags), GPTConfig(50257, 1024, 12, 12, 768), tokens // 1024,
                                      NEW_RUN)
    assert chosen == expected
    assert reason.startswith(why) if why.startswith("-") else why in reason
    assert bool(why) == bool(reason)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adamw"}], ids=["names none", "names AdamW"])
def test_a_run_goes_on_with_the_optimizer_of_its_checkpoint_an_older_one_with_adamw(settings):
    args = train.read_flags(["--resume_from", "auto"])
    stored = StoredState(settings=settings)
    assert choose_optimizer(args, GPTConfig(50257, 1024, 12, 12, 768), 512, stored)[0] == "adamw"


def test_the_moments_of_another_optimizer_are_refused(run):
    run("--max_steps", "2", "--optimizer", "muon")
    said = run.refused(Exit.CHECKPOINT, "--max_steps", "3", "--resume_from", "auto", "--optimizer", "adamw")
    assert "--optimizer adamw: the run trains with 'muon', and another optimizer cannot continue it" in said


# ---------------------------------------------------------------- where the host decides


def test_only_apples_gpu_needs_the_host():
    assert adamw_for(torch.device("cpu")) is torch.optim.AdamW
    assert adamw_for(apple.GPU) is AdamWForMPS


def test_scaled_and_skipped_steps_are_those_of_the_kernel_bit_for_bit():
    torch.manual_seed(1)
    start, found = torch.randn(40, 8), []
    gradients, scales, infinite = torch.randn(6, 40, 8), [1.0, 3.7, 1.0, 2.2, 1.9, 1.0], [1, 0, 0, 1, 0, 0]
    for kind in (torch.optim.AdamW, AdamWForMPS):
        weight = torch.nn.Parameter(start.clone())
        optimizer: Any = kind([weight], 1e-2, (0.9, 0.95), fused=True)
        for gradient, scale, is_infinite in zip(gradients, scales, infinite, strict=True):
            weight.grad = gradient.clone() * (torch.inf if is_infinite else 1)
            optimizer.grad_scale = torch.tensor(scale)
            optimizer.found_inf = torch.tensor(float(is_infinite))
            optimizer.step()
            assert optimizer.found_inf == is_infinite  # the loop reads it afterwards
            assert set(optimizer.state[weight]) == {"step", "exp_avg", "exp_avg_sq"}
        found.append([weight.detach(), *optimizer.state[weight].values()])
    assert all(torch.equal(theirs, ours) for theirs, ours in zip(*found, strict=True))
    assert found[0][0].isfinite().all()
    assert found[0][1] == 4
