"""architectures/rotary.py: loss, gradients, logits of transformers' Qwen3 and Llama; memory, causality, one graph."""

import math

import pytest
import torch
import torch.nn.functional as F

from gpt.architectures.table import ARCHITECTURES, architecture_of, create
from gpt.ops.rotary import RotaryScaling
from model import SIZES, Options
from tests.helpers.decoding import largest_difference
from tests.helpers.models import kept_by_autograd, make_rotary

VARIANTS = [{}, {"tie_weights": False}, {"n_kv_head": 1}, {"n_kv_head": 6, "rope_theta": 1e6}, {"n_inner": 80},
            {"tie_weights": False, "vocab_size": 384}, {"rope_scaling": RotaryScaling(4.0, 1.0, 4.0, 32)}]


def theirs_of(folder):
    """transformers' model of a folder that ours was written to."""
    transformers = pytest.importorskip("transformers")
    theirs, found = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert theirs.config.architectures == [type(theirs).__name__]
    assert not {*found["missing_keys"], *found["unexpected_keys"]}
    return theirs.eval()


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_logits_loss_and_gradients_are_those_of_transformers(arch, changes, write_folder, tmp_path):
    model = make_rotary(arch, **changes)
    theirs = theirs_of(write_folder(tmp_path, model))
    ids, targets = torch.randint(0, model.config.vocab_size, (2, 2, 32))

    logits = theirs(ids).logits
    assert largest_difference(model(ids), logits) < 1e-5
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss = model(ids, targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)

    loss.backward()
    expected.backward()
    config, gradients = model.config, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    found = architecture_of(config).to_hf_tensors(config, gradients)
    for name, parameter in theirs.named_parameters():
        assert largest_difference(found[name], parameter.grad) < 1e-5, name


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tie_weights", [True, False])
def test_the_parameters_counted_are_those_there_are_and_the_blocks_are_as_large_as_those_of_gpt2(arch, size,
                                                                                                 tie_weights):
    architecture = ARCHITECTURES[arch]
    config = architecture.sized(SIZES[size], 50_257, 1024, tie_weights=tie_weights)
    shapes = architecture.shapes(config)
    assert config.num_parameters == sum(torch.Size(shape).numel() for shape in shapes.values())

    matrices = architecture.hidden_matrices(config)
    assert config.num_block_weights == sum(torch.Size(shapes[name]).numel() for name in matrices)
    assert all(sum(rows) == shapes[name][0] for name, rows in matrices.items())
    of_gpt2 = ARCHITECTURES["gpt2"].sized(SIZES[size], 50_257, 1024).num_block_weights
    assert abs(config.num_block_weights / of_gpt2 - 1) < 0.02


# ---------------------------------------------------------------- the network itself


@pytest.mark.parametrize("deviation", [0.02, 0.05])
def test_the_initial_weights_are_as_wide_as_said(deviation):
    config = ARCHITECTURES["qwen3"].sized((3, 6, 192), 1000, 64, tie_weights=False)
    torch.manual_seed(0)
    model = create(config, "cpu", Options(), deviation)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert parameter.equal(torch.ones_like(parameter)), name
            continue
        std = deviation / math.sqrt(2 * 3) if name.endswith(("o_proj.weight", "down_proj.weight")) else deviation
        assert parameter[:1000].std().item() == pytest.approx(std, rel=0.05), name
        assert not parameter[1000:].any() or not name.startswith(("lm_head", "model.embed"))
    again = torch.manual_seed(0) and create(config, "cpu", Options(residual_dtype=torch.bfloat16), deviation)
    assert all(a.equal(b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
@pytest.mark.parametrize(("dtype", "seq_length", "shares"), [
    (torch.float32, 64, True), (torch.bfloat16, 64, True), (torch.bfloat16, 600, True), (torch.float32, 64, False)])
def test_a_blocks_activations_are_what_autograd_keeps_of_it(arch, dtype, seq_length, shares, monkeypatch):
    for module in ("gpt.ops.attention", "gpt.architectures.llama"):
        monkeypatch.setattr(f"{module}.shares_heads", lambda *_: shares)
    architecture = ARCHITECTURES[arch]
    shallow, deep = (architecture.sized((layers, 6, 96), 256, seq_length) for layers in (1, 3))
    assert shallow.n_kv_head < shallow.n_head
    found = (kept_by_autograd(deep, 4, dtype) - kept_by_autograd(shallow, 4, dtype)) / 2
    if dtype == torch.bfloat16:
        found -= 2 * shallow.num_block_weights  # the copies of the matrices
    assert 4 * seq_length * architecture.block_bytes(deep, "cpu", dtype, 4) == pytest.approx(found, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["qwen3", "llama"])
def test_compiled_it_is_one_graph_with_the_same_loss_and_gradients(arch):
    model = make_rotary(arch).train()
    ids, found = torch.randint(0, 400, (2, 32)), []
    for compiles in (False, True):
        model.zero_grad()
        if compiles:
            model.compile(dynamic=False, fullgraph=True)
        loss = model(ids, ids)
        loss.backward()
        found.append([loss, *(parameter.grad for parameter in model.parameters())])
    assert all(largest_difference(one, other) < 1e-4 for one, other in zip(*found, strict=True))
