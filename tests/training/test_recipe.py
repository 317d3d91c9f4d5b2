"""The defaults."""

import pytest

import train
from model import SIZES, GPTConfig
from tests.helpers.training import TINY
from training.recipe import choose_config, choose_recipe, default_learning_rate, fix_eval_tokens


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"epochs": 3}),  # 20 tokens for each of 4,752 parameters, 32,008 tokens a pass
        (["--epochs", "2"], {"epochs": 2, "total_steps": 2000}),
        (["--max_steps", "5000"], {"epochs": 5, "total_steps": 5000}),  # not held back by a default
        (["--max_steps", "50"], {"total_steps": 50, "warmup_steps": 10, "log_interval": 1}),
        (["--epochs", "1", "--gradient_accumulation_steps", "5"], {"total_steps": 200, "accumulation": 5}),
        (["--learning_rate", "1e-3"], {"learning_rate": 1e-3, "min_lr": 1e-5}),
        (["--no-use_lr_scheduler"], {"schedule": "constant"}),
    ],
)
def test_defaults_fill_in_what_the_flags_leave_open(flags, expected):
    args = train.read_flags([*TINY, *flags])
    config = GPTConfig(70, 8, 1, 2, 16)
    found = choose_recipe(args, config, 8 * 4001, 4)
    assert {key: getattr(found, key) for key in expected} == expected
    assert 0 <= found.warmup_steps <= max(1, found.total_steps // 5)
    assert 0 < found.min_lr <= found.learning_rate


def test_the_default_learning_rate_falls_with_size_and_rises_with_the_batch():
    rates = [default_learning_rate(GPTConfig(50257, 1024, *SIZES[name]), 10**10, 2**19) for name in SIZES]
    assert rates == sorted(rates, reverse=True)
    small = GPTConfig(50257, 1024, *SIZES["gpt2_small"])
    assert default_learning_rate(small, 3 * 10**11, 2**19) == pytest.approx(6e-4, rel=0.2)  # nanoGPT's, by hand
    assert default_learning_rate(small, 10**10, 2**14) < default_learning_rate(small, 10**10, 2**19)


def test_model_sizes_are_those_of_the_table():
    for name, shape in SIZES.items():
        config = choose_config(train.read_flags(["--model_size", name]), 300, 10_000)
        assert (config.n_layer, config.n_head, config.n_embd, config.seq_length) == (*shape, 1024)


def eval_tokens(*flags: str, settings: dict | None = None, batch_size: int = 4, num_tokens: int = 8 * 4001) -> int:
    """What a run with these flags and this micro-batch measures at each validation."""
    args = train.read_flags(["--seq_length", "8", "--batch_size", str(batch_size), *flags])
    config = GPTConfig(70, 8, 1, 2, 16)
    return fix_eval_tokens(args, choose_recipe(args, config, num_tokens, 4), config, settings or {}).eval_tokens


def test_the_tokens_of_a_validation_depend_neither_on_the_batch_nor_on_its_accumulation():
    for flags, expected in (((), 80_000), (("--epochs", "3"), 240_000), (("--epochs", "99"), 2**19),
                            (("--max_steps", "1000"), 40_960), (("--max_steps", "1000", "--epochs", "1"), 40_960),
                            (("--max_steps", "9"), 2**14), (("--eval_tokens", "7"), 7)):
        found = {eval_tokens(*flags, batch_size=batch_size, num_tokens=8_000_000) for batch_size in (1, 2, 16, 512)}
        assert found == {expected}, flags
    assert eval_tokens("--eval_batches", "3", batch_size=5) == 3 * 5 * 8


def test_a_resumed_run_keeps_its_validation_tokens_unless_others_are_given():
    for flags, expected in (((), 555), (("--eval_batches", "3"), 555), (("--eval_tokens", "7"), 7)):
        assert eval_tokens(*flags, settings={"batch_size": 2, "eval_tokens": 555}, batch_size=16) == expected
    assert eval_tokens(settings={"batch_size": 2}, batch_size=16) == 50 * 2 * 8  # of a program before --eval_tokens
    assert eval_tokens("--eval_batches", "3", settings={"batch_size": 2}, batch_size=16) == 3 * 2 * 8
