"""The recipe: what the flags leave open is filled in with reasons, and what a resumed run began with stays."""

import types
from pathlib import Path
from typing import Any

import pytest
import torch

import train
from gpt.checkpoint.stored import FoundCheckpoint, StoredState, TrainState
from gpt.common.errors import Exit
from gpt.machine.device import Machine
from gpt.optimizers.build import dtype_of_products
from gpt.planning.defaults import default_decay, usual_rates
from gpt.planning.inputs import Inputs
from gpt.planning.recipe import Recipe, choose_recipe
from gpt.planning.sizing import choose_options
from model import GPTConfig

NUM_TOKENS = 8 * 4001


def recipe(*flags: str, width: int = 16, num_tokens: int = NUM_TOKENS, converses: bool = False,
           began_from: str = "", **settings) -> Recipe:
    """What flags and the settings of a checkpoint make of a tiny model, four sequences of eight tokens a step."""
    args = train.read_flags(["--optimizer", "adamw", *flags])
    found = None
    if settings:
        state = TrainState(100, samples_seen=400, init_from=began_from)
        found = FoundCheckpoint(Path("out/checkpoint-100"), StoredState(state, {"optimizer": "adamw", **settings}))
    corpus: Any = types.SimpleNamespace(train=types.SimpleNamespace(length=num_tokens), converses=converses)
    return choose_recipe(Inputs(args, corpus, None, GPTConfig(70, 8, 1, 2, width), found, None), 4)


@pytest.mark.parametrize(("flags", "expected"), [
    ("", {"epochs": 3}),  # 20 tokens for each of 4,752 parameters, 32,008 tokens a pass
    ("--epochs 2", {"epochs": 2, "total_steps": 2000}),
    ("--max_steps 5000", {"epochs": 5, "total_steps": 5000}),  # not held back by a default
    ("--max_steps 50", {"total_steps": 50, "warmup_steps": 5, "log_interval": 1}),
    ("--max_steps 90000", {"warmup_steps": 2000}),
    ("--epochs 1 --gradient_accumulation_steps 5", {"total_steps": 200, "accumulation": 5}),
    ("--learning_rate 1e-3", {"learning_rate": 1e-3, "min_lr": 0.0, "lr_schedule": "linear"}),
    ("--learning_rate 1e-3 --use_lr_scheduler", {"min_lr": 1e-3 / 100, "lr_schedule": "cosine"}),
    ("--lr_schedule wsd --cooldown 0.5", {"decay_share": 0.5}),
    ("--lr_schedule wsd --cooldown 50 --max_steps 500", {"decay_share": 50, "plateau_end": 450}),
    ("--use_lr_scheduler --lr_schedule wsd", {"lr_schedule": "wsd", "decay_share": 0.2, "min_lr": 0.0}),
    ("--no-use_lr_scheduler", {"lr_schedule": "constant", "warmup_steps": 0}),
    ("--lr_schedule constant --warmup_steps 7", {"lr_schedule": "constant", "warmup_steps": 7}),
    ("--weight_decay 0.3 --beta2 0.9 --grad_clip 0", {"weight_decay": 0.3, "beta2": 0.9, "grad_clip": 0.0})])
def test_defaults_fill_in_what_the_flags_leave_open(flags, expected):
    found = recipe(*flags.split())
    assert {key: getattr(found, key) for key in expected} == expected
    assert 0 <= found.warmup_steps <= max(1, found.total_steps // 5)


@pytest.mark.parametrize(("flags", "expected"), [
    ((), 80_000), (("--epochs", "3"), 240_000), (("--epochs", "99"), 2**19), (("--max_steps", "1000"), 40_960),
    (("--max_steps", "1000", "--epochs", "1"), 40_960), (("--max_steps", "9"), 2**14), (("--eval_tokens", "7"), 7)])
def test_the_tokens_of_a_validation_do_not_depend_on_the_batch(flags, expected):
    assert {recipe("--batch_size", batch_size, *flags, num_tokens=8_000_000).eval_tokens
            for batch_size in ("1", "512")} == {expected}


def test_a_resumed_run_keeps_its_validation_tokens_unless_others_are_given():
    assert recipe("--eval_batches", "3").eval_tokens == 3 * 4 * 8
    for flags, expected in (((), 555), (("--eval_batches", "3"), 555), (("--eval_tokens", "7"), 7)):
        assert recipe(*flags, batch_size=2, eval_tokens=555).eval_tokens == expected


def test_every_default_is_given_with_its_reason_and_no_other_value():
    found = recipe("--batch_size", "4", "--max_steps", "50", "--lr_schedule", "wsd")
    assert set(found.reasons) == {"learning_rate", "min_lr", "warmup_steps", "embedding_learning_rate", "init_std",
                                  "weight_decay", "beta2", "grad_clip", "cooldown"} <= set(found.flags())
    assert all(len(reason) > 20 for reason in found.reasons.values())
    words = ("--batch_size 4 --max_steps 50 --learning_rate 1e-3 --lr_schedule wsd --warmup_steps 3 --cooldown 0.1 "
             "--beta2 0.9 --weight_decay 0 --grad_clip 0 --min_lr 0 --embedding_learning_rate 1e-3 --init_std 0.02")
    assert not recipe(*words.split()).reasons


def test_a_resumed_run_keeps_its_peak_and_its_warm_up_when_it_is_made_longer():
    def resumed(*flags: str) -> Recipe:
        return recipe("--max_steps", "5000", *flags, batch_size=4, accumulation=1, learning_rate=3e-4, warmup_steps=6)

    assert (resumed().learning_rate, resumed().warmup_steps, resumed().embedding_learning_rate) == (3e-4, 6, 3e-4)
    assert (resumed("--learning_rate", "1e-3").learning_rate, resumed("--warmup_steps", "9").warmup_steps) == (1e-3, 9)
    rates: Any = {"learning_rate": 3e-4, "embedding_learning_rate": 9e-4}
    assert recipe("--max_steps", "5000", batch_size=4, accumulation=1, **rates).embedding_learning_rate == 9e-4
    larger = resumed("--batch_size", "8")
    assert larger.learning_rate != 3e-4  # another step, another peak
    # What was read in smaller steps stays so.
    assert (larger.num_samples, resumed().num_samples) == (400 + 4900 * 8, 5000 * 4)


def test_a_constant_rate_without_a_warm_up_never_begins_one():
    assert recipe("--lr_schedule", "linear", "--max_steps", "5000", batch_size=4, accumulation=1).warmup_steps == 0


def test_a_resumed_run_keeps_its_step_with_an_automatic_micro_batch():
    auto = recipe("--batch_size", "auto", "--gradient_accumulation_steps", "2", "--max_steps", "300", batch_size=16,
                  accumulation=1)
    assert (auto.samples_per_step, auto.num_samples, auto.accumulation) == (16, 400 + 200 * 16, 1)
    assert recipe("--batch_size", "auto", "--gradient_accumulation_steps", "2").samples_per_step == 8


@pytest.mark.parametrize(("flags", "decay"), [
    ("--epochs 1", 0.1), ("--epochs 7", 0.7), ("--epochs 99", 4.0), ("--epochs 99 --max_steps 5000", 0.5),
    ("--epochs 99 --init_from weights", 0.1), ("--epochs 99 --lr_schedule wsd", 0.1),
    ("--epochs 99 --weight_decay 0.2", 0.2), ("--epochs 99 --optimizer adamw", 0.1)])
def test_a_small_text_that_muon_reads_often_wants_more_weight_decay(flags, decay):
    assert recipe("--optimizer", "muon", *flags.split(), width=128).weight_decay == pytest.approx(decay)
    assert recipe("--optimizer", "muon", *flags.split(), width=16).weight_decay in (0.1, 0.2)  # more tokens


def test_a_pass_wants_more_decay_the_more_parameters_a_token_has():
    found = [default_decay(passes, 15) for passes in (0.5, 1, 2, 10, 20)]
    assert found == pytest.approx([0.1, 0.1, 0.1 + 0.1 * 1.5**2.5, 0.1 + 0.9 * 1.5**2.5, 4.0])
    assert default_decay(10, 3) == default_decay(10, 10) == pytest.approx(1.0)


def test_initial_weights_are_wide_for_adamws_default_rate_alone():
    found = [recipe("--max_steps", "500", *words.split(), width=160).init_std for words in (
        "", "--optimizer adamw8bit", "--optimizer muon", "--learning_rate 1e-3", "--init_from weights",
        "--init_std 0.3")]
    assert found == [0.05, 0.05, 0.02, 0.02, 0.02, 0.3]


def test_half_of_muons_rate_is_advised_with_the_flag_that_keeps_muon():
    found = recipe("--optimizer", "muon")
    assert found.lower_rate_argument == f"{found.learning_rate / 2:.2g} --optimizer muon"
    assert recipe("--learning_rate", "1e-4").lower_rate_argument == "5e-05"


@pytest.mark.parametrize(("flags", "num_tokens", "epochs"), [
    ("", 4 * NUM_TOKENS, 15), ("", 8 * 801, 10), ("--max_minutes 60", 4 * NUM_TOKENS, 15),
    ("--epochs 99", NUM_TOKENS, 99), ("--optimizer adamw", NUM_TOKENS, 10),
    ("--optimizer adamw --max_minutes 60", 4 * NUM_TOKENS, 15),
    ("--lr_schedule wsd --max_minutes 60", NUM_TOKENS, 2**40)])
def test_a_small_text_is_read_until_only_learning_by_heart_is_left(flags, num_tokens, epochs):
    found = recipe("--optimizer", "muon", *flags.split(), num_tokens=num_tokens, width=256)
    assert found.epochs == epochs


@pytest.mark.parametrize(("flags", "rate"), [
    ("", usual_rates("adamw", GPTConfig(70, 8, 1, 2, 512), 32, 500 * 32).embedding_learning_rate),
    ("--learning_rate 1e-3", 1e-3),  # which has always meant embeddings too
    ("--learning_rate 1e-3 --embedding_learning_rate 5e-3", 5e-3)])
def test_embeddings_have_a_rate_of_their_own(flags, rate):
    assert recipe("--max_steps", "500", *flags.split(), width=512).embedding_learning_rate == rate


@pytest.mark.parametrize(("device", "dtype", "is_native", "is_rounded", "of_muon"), [
    ("cuda", "bfloat16", True, True, "bfloat16"), ("cuda", "float16", False, True, "float16"),
    ("cuda", "bfloat16", False, None, "float32"), ("cpu", "float16", False, None, "float32")])
def test_products_have_the_dtype_that_the_device_is_fast_in(monkeypatch, device, dtype, is_native, is_rounded, of_muon):
    machine = Machine(torch.device(device), "", "", getattr(torch, dtype), "", True, "", ())
    monkeypatch.setattr(type(machine.backend), "has_bf16", lambda self: is_native)
    rounded_to = [choose_options(it, False, machine, {}).rounded_to for it in (False, True)]
    assert (*rounded_to, dtype_of_products(machine)) == (is_rounded and machine.dtype, None, getattr(torch, of_muon))


@pytest.mark.parametrize("began", ["bf16", "fp32"])
def test_a_run_that_goes_on_in_fp16_keeps_the_range_of_its_residual_stream(began):
    machine = Machine(torch.device("cuda"), "", "", torch.float16, "", True, "", ())
    assert choose_options(False, False, machine, {}).residual_dtype is torch.float16
    assert choose_options(False, False, machine, {"residual": began}).residual_dtype is None


def test_pretrained_weights_learn_to_answer_in_small_steps_at_the_rate_of_a_new_model():
    weights = ("--init_from", "out")
    text, chats = recipe(*weights, width=64), recipe(*weights, width=64, converses=True)
    assert (text.epochs, chats.epochs) == (3, 8)  # fewer tokens than parameters
    assert recipe(*weights, num_tokens=100_001, converses=True).epochs == 3
    for flags in ((), ("--gradient_accumulation_steps", "8")):  # 204,800 tokens at least
        assert recipe(*weights, *flags, width=64, num_tokens=801, converses=True).epochs == 259
    assert chats.learning_rate == pytest.approx(10 * text.learning_rate, rel=0.3)
    many = 8 * 2**20
    assert (recipe(*weights, width=64, num_tokens=many, converses=True).batch_size, text.batch_size) == (4, 4)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_from_pretrained_weights_keeps_the_rules_for_them(optimizer):
    """Another step size gets another rate, and many passes over a small text neither decay nor dropout."""
    flags = ("--optimizer", optimizer, "--max_steps", "50000", "--batch_size", "4")
    new = recipe("--init_from", "out", *flags, width=64)
    resumed = recipe(*flags, width=64, began_from="out", optimizer=optimizer, batch_size=2, accumulation=1,
                     learning_rate=1e-9)
    for name in ("learning_rate", "usual_learning_rate", "weight_decay", "is_regularized"):
        assert getattr(resumed, name) == getattr(new, name), name
    assert recipe(*flags, width=64).learning_rate > 5 * new.learning_rate


def test_a_resumed_run_refuses_what_its_optimizer_excludes(run):
    run.ok("--max_steps", "2", "--optimizer", "adamw8bit")
    said = run.refused(Exit.FLAGS, "--resume_from", "auto", "--max_steps", "4", "--model_parallel", "fsdp")
    assert "--model_parallel fsdp: not with adamw8bit" in said
    run.ok("--resume_from", "auto", "--max_steps", "4")


@pytest.mark.parametrize(("passes", "interval"), [(0.4, 1), (20.04, 1), (21.0, 2), (40.04, 2), (1000.0, 50)])
def test_at_most_20_checkpoints_stay_by_default(passes, interval):
    found: Any = types.SimpleNamespace(passes=passes)
    assert [Recipe.checkpoint_interval(found, each) for each in (None, 3)] == [interval, 3]
