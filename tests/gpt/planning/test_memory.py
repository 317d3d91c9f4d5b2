"""memory.py: the prediction against what autograd keeps, what fits, the search for it, and the words."""

import io
import re
from argparse import Namespace
from dataclasses import replace
from typing import Any

import pytest
import torch

from gpt.architectures.gpt2 import GPT2
from gpt.common.errors import Exit
from gpt.common.names import TOO_LARGE
from gpt.common.progress import Progress
from gpt.machine.device import Machine
from gpt.machine.processes import Processes
from gpt.planning import memory
from gpt.planning.memory import (
    GIB,
    MemorySetting,
    choose_sharing,
    describe_memory,
    divisors,
    halve_after_out_of_memory,
    largest_micro_batch,
    memory_parts,
    peak_bytes,
    predicted_peak,
    remember_too_many,
)
from model import SIZES, GPTConfig, Options
from tests.helpers.machines import CPU
from tests.helpers.models import kept_by_autograd
from tests.helpers.one_of_many import Step, held_bytes
from tests.helpers.training import OUT_OF_MEMORY, forward_that_needs, recipe

CONFIG = GPTConfig(32_000, 512, 12, 12, 768, tie_weights=False)
HALF = MemorySetting("cuda", torch.bfloat16)
FULL = MemorySetting("cuda", torch.float32)
SETTINGS = [HALF, FULL, MemorySetting("cpu", torch.bfloat16, compiled=True, accumulates=False, saves_through_copy=True)]


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("shape", [(3, 4, 64, 64, 4), (2, 2, 64, 256, 2), (4, 4, 128, 600, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_blocks_activations_are_what_autograd_keeps_of_it(shape, dtype):
    """Two depths, so that what is outside of the blocks cancels out; their matrices in half precision are no part."""
    layers, heads, width, seq_length, batch_size = shape
    shallow, deep = (GPTConfig(256, seq_length, n, heads, width) for n in (layers, layers + 2))
    found = (kept_by_autograd(deep, batch_size, dtype) - kept_by_autograd(shallow, batch_size, dtype)) / 2
    if dtype == torch.bfloat16:
        found -= 2 * 12 * width**2
    predicted = batch_size * seq_length * GPT2().block_bytes(deep, "cpu", dtype, 4)
    assert predicted == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_kept_outside_of_the_blocks_is_a_norm_a_hidden_state_and_the_log_probabilities(dtype):
    config, setting = GPTConfig(2048, 64, 1, 2, 64), MemorySetting("cpu", dtype)
    parts = memory_parts(config, 4, setting)
    found = kept_by_autograd(config, 4, dtype)
    assert parts["activations"] + parts["logits"] / 3 == pytest.approx(found, rel=0.02)


def test_weights_gradients_and_two_moments_take_sixteen_bytes_a_parameter():
    parts = memory_parts(CONFIG, 1, FULL)
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == 16 * 134_601_216
    in_half = 2 * (CONFIG.num_block_weights + CONFIG.vocab_size * CONFIG.n_embd)
    assert memory_parts(CONFIG, 1, HALF)["weights"] == parts["weights"] + in_half
    padded = memory_parts(GPTConfig(50_257, 1024, 12, 12, 768), 1, FULL)
    assert padded["weights"] == 4 * (124_439_808 + 47 * 768)


@pytest.mark.parametrize(("more", "less"), [
    ({"dtype": torch.float32}, {}), ({}, {"accumulates": False}), ({}, {"residual_bytes": 2}),
    ({}, {"loss_chunk": 1024}), ({"residual_bytes": 2}, {"recomputes": True})])
def test_what_saves_memory_is_seen_by_the_prediction(more, less):
    assert predicted_peak(CONFIG, 8, replace(HALF, **less)) < predicted_peak(CONFIG, 8, replace(HALF, **more))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("memory_gib", [0, 4, 24, 141])
def test_the_micro_batch_that_fits_is_the_largest(memory_gib, setting):
    found = largest_micro_batch(CONFIG, setting, memory_gib * GIB)
    assert found == 0 or predicted_peak(CONFIG, found, setting) <= memory_gib * GIB
    assert predicted_peak(CONFIG, found + 1, setting) > memory_gib * GIB


def test_a_copy_of_the_state_counts_where_it_lies_in_the_same_memory():
    for setting, copied in ((HALF, 0), (SETTINGS[2], 12 * CONFIG.num_parameters)):
        without, with_copy = (predicted_peak(CONFIG, 4, replace(setting, saves_through_copy=does))
                              for does in (False, True))
        assert with_copy - without == copied


def test_the_weights_of_a_teacher_count_at_the_peak_and_make_the_micro_batch_smaller():
    taught = replace(HALF, teacher_bytes=6 * GIB)
    assert predicted_peak(CONFIG, 8, taught) == predicted_peak(CONFIG, 8, HALF) + 6 * GIB
    assert largest_micro_batch(CONFIG, taught, 16 * GIB) < largest_micro_batch(CONFIG, HALF, 16 * GIB)


def test_the_words_have_every_part_and_the_peak():
    words = describe_memory(CONFIG, 64, FULL)
    assert words.startswith(f"{predicted_peak(CONFIG, 64, FULL) / GIB:.1f} GiB predicted at the peak; weights 513.5")
    assert all(name in words for name in memory_parts(CONFIG, 64, FULL))


# ---------------------------------------------------------------- several processes

EIGHT_ON_TWO_MACHINES = Processes(0, 8, 0, 4)
GPU = Machine(torch.device("cuda"), "", "", torch.bfloat16, "", True, "", ())
XL = GPTConfig(50_257, 1024, *SIZES["gpt2_xl"])


def flags(**given) -> Any:
    return Namespace(**{"model_parallel": "auto", "optimizer": "auto", "batch_size": None,
                        "gradient_accumulation_steps": 8, "teacher": None, **given})


STEPS = [Step("ddp", 2, accumulation=2), Step("fsdp", 8, half=True, batch_size=8)]
MORE_STEPS = [Step(strategy, world_size, optimizer, half, accumulation, batch_size)
              for strategy, world_size in (("ddp", 2), ("fsdp", 2), ("fsdp", 8), ("hsdp", 8))
              for optimizer, batch_size in (("adamw", 1), ("adamw", 16), ("muon", 16))
              for half in (False, True) for accumulation in (1, 2)]


@pytest.mark.parametrize("step", [*STEPS, *(pytest.param(step, marks=pytest.mark.slow) for step in MORE_STEPS)])
def test_what_each_process_holds_is_what_was_predicted(step):
    """Within 8%: of sharded weights, the peak can lie amid the backward pass, where a prediction has its ends alone.

    Not with a small batch and Muon, whose working memory, half a GiB at most, is much of a tiny model's alone.
    """
    machines = 2 if step.strategy == "hsdp" else 1
    config = GPTConfig(1000, 64, 4, 2, 128)
    processes = Processes(0, step.world_size, 0, step.world_size // machines)
    machine = replace(CPU, dtype=torch.bfloat16 if step.half else torch.float32)
    setting = replace(MemorySetting.of(machine, Options(), memory.state_bytes(step.optimizer, config), step.strategy,
                                       processes), accumulates=step.accumulation > 1, saves_through_copy=False)
    parts = {**memory_parts(config, step.batch_size, setting), "program": 0}
    found = held_bytes(config, step, machines)
    assert peak_bytes(parts, setting) == pytest.approx(found, rel=0.08)


@pytest.mark.parametrize(("gib", "strategy", "why"), [
    (80, "ddp", r"a copy takes 3\d\.\d GiB, each has 73\.0 GiB"),
    (24, "hsdp", r"a copy takes 3\d\.\d GiB, each has 21\.5 GiB"),
    (15, "fsdp", r"a copy takes 3\d\.\d GiB, each has 13\.2 GiB")])
def test_the_model_is_sharded_as_little_as_memory_allows(monkeypatch, gib, strategy, why):
    monkeypatch.setattr(type(GPU.backend), "total_memory", lambda _: gib * GIB)
    options = Options(residual_dtype=torch.bfloat16, loss_chunk=2048)
    found = choose_sharing(flags(), None, XL, options, GPU, EIGHT_ON_TWO_MACHINES)
    assert found[0] == strategy
    assert re.fullmatch(why, found[1])
    assert choose_sharing(flags(model_parallel="fsdp"), None, XL, options, GPU, EIGHT_ON_TWO_MACHINES)[0] == "fsdp"
    assert choose_sharing(flags(), None, XL, options, GPU, Processes())[:2] == ("alone", "")


@pytest.mark.parametrize(("gib", "most"), [(1, 1), (8, 8), (80, 16)])  # 16,384 tokens keep a GPU busy
def test_the_default_micro_batch_is_a_power_of_two_that_fits(monkeypatch, gib, most):
    monkeypatch.setattr(type(GPU.backend), "total_memory", lambda _: gib * GIB)
    options = Options(residual_dtype=torch.bfloat16, loss_chunk=2048)
    assert choose_sharing(flags(), None, GPTConfig(50257, 1024, 12, 12, 768), options, GPU)[2] == most


# ---------------------------------------------------------------- the micro-batch of a run


def test_batch_size_auto_keeps_the_samples_of_a_step(run, monkeypatch):
    monkeypatch.setattr("gpt.planning.memory.MOST_MICRO_BATCH_TOKENS", 320)  # five sequences of 64
    flags = ["--seq_length", "64", "--batch_size", "auto", "--gradient_accumulation_steps", "3"]
    text = run.ok("--max_steps", "1", *flags)
    assert re.findall(r"^batch_size  (\d+) x (\d+) micro-batches", text, re.MULTILINE) == [("4", "6")]
    text = run.ok("--max_steps", "2", *flags, "--resume_from", "auto")
    assert not re.search(r"^batch_size |changed: .*batch_size", text, re.MULTILINE)
    monkeypatch.setattr("gpt.planning.memory.available_ram", lambda: 2**20)
    assert "not even one sequence" in run.refused(Exit.MACHINE, "--max_steps", "1", *flags, out="other")


def test_batch_size_auto_is_halved_by_a_step_that_does_not_fit_and_a_resumed_run_begins_there(run, monkeypatch):
    forward_that_needs(monkeypatch, 2, OUT_OF_MEMORY["cpu"])
    flags = ["--batch_size", "auto", "--gradient_accumulation_steps", "1", "--eval_interval", "100"]
    text = run.ok("--max_steps", "1", *flags)
    assert "out of memory in step 1" in text
    text = run.ok("--max_steps", "2", *flags, "--resume_from", "auto")
    assert "out of memory" not in text


def test_divisors_are_ascending_and_one_is_always_among_them():
    assert divisors(120, 200) == [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60, 120]
    assert divisors(7, 0) == [1]


# ---------------------------------------------------------------- after memory ran out


@pytest.mark.parametrize(("too_many", "found"), [(8, 4), (6, 2), (2, 1), (1, 1), (16, 8)])
def test_half_of_what_did_not_fit_is_taken_as_a_divisor_of_the_step(tmp_path, too_many, found):
    """A step has 32 sequences; what did not fit another time is no reason to take more than the recipe's 8."""
    def fits() -> int:
        of_32 = recipe(batch_size=8, accumulation=4)
        return halve_after_out_of_memory(tmp_path / "out", of_32, Progress(io.StringIO()))

    assert fits() == 8
    remember_too_many(tmp_path / "out", too_many)
    assert fits() == found
    (tmp_path / "out" / TOO_LARGE).write_text("[]")
    assert fits() == 8
    remember_too_many(tmp_path / "out" / TOO_LARGE, too_many)  # a folder that cannot be written is no other error
