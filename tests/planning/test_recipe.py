"""The defaults."""

import pytest

import train
from model import SIZES, GPTConfig
from planning.defaults import embedding_rate
from planning.recipe import choose_config, choose_recipe, fix_eval_tokens
from tests.helpers.training import TINY


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"epochs": 3}),  # 20 tokens for each of 4,752 parameters, 32,008 tokens a pass
        (["--epochs", "2"], {"epochs": 2, "total_steps": 2000}),
        (["--max_steps", "5000"], {"epochs": 5, "total_steps": 5000}),  # not held back by a default
        (["--max_steps", "50"], {"total_steps": 50, "warmup_steps": 5, "log_interval": 1}),
        (["--max_steps", "90000"], {"warmup_steps": 2000}),
        (["--epochs", "1", "--gradient_accumulation_steps", "5"], {"total_steps": 200, "accumulation": 5}),
        (["--learning_rate", "1e-3"], {"learning_rate": 1e-3, "min_lr": 0.0, "schedule": "linear"}),
        (["--learning_rate", "1e-3", "--use_lr_scheduler"], {"min_lr": 1e-3 / 100, "schedule": "cosine"}),
        (["--learning_rate", "1e-3", "--lr_schedule", "cosine"], {"min_lr": 1e-5, "schedule": "cosine"}),
        (["--use_lr_scheduler", "--lr_schedule", "wsd"], {"schedule": "wsd", "decay_share": 0.2, "min_lr": 0.0}),
        (["--no-use_lr_scheduler"], {"schedule": "constant", "warmup_steps": 0}),
        (["--lr_schedule", "constant", "--warmup_steps", "7"], {"schedule": "constant", "warmup_steps": 7}),
        (["--weight_decay", "0.3", "--beta2", "0.9", "--grad_clip", "0"],
         {"weight_decay": 0.3, "beta2": 0.9, "grad_clip": 0.0}),
    ],
)
def test_defaults_fill_in_what_the_flags_leave_open(flags, expected):
    args = train.read_flags([*TINY, *flags])
    config = GPTConfig(70, 8, 1, 2, 16)
    found = choose_recipe(args, config, 8 * 4001, 4)
    assert {key: getattr(found, key) for key in expected} == expected
    assert 0 <= found.warmup_steps <= max(1, found.total_steps // 5)
    assert 0 <= found.min_lr <= found.learning_rate


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


def test_every_default_is_given_with_its_reason_and_no_other_value():
    config, names = GPTConfig(70, 8, 1, 2, 16), ["beta1", "learning_rate", "lr_schedule", "min_lr",
                                                 "warmup_steps", "embedding_learning_rate", "init_std",
                                                 "weight_decay", "embedding_weight_decay", "beta2",
                                                 "grad_clip"]
    open_ends = choose_recipe(train.read_flags(["--batch_size", "4", "--max_steps", "50"]), config, 8 * 4001, 4)
    assert [reason.split(" ")[0] for reason in open_ends.reasons] == names
    assert all(len(reason.partition(": ")[2]) > 20 for reason in open_ends.reasons)
    words = "--batch_size 4 --max_steps 50 --learning_rate 1e-3 --lr_schedule linear --warmup_steps 3 --weight_decay 0 "
    given = train.read_flags([*words.split(), "--beta1", "0.9", "--beta2", "0.9", "--grad_clip", "0", "--min_lr", "0",
                             "--embedding_learning_rate", "1e-3", "--init_std", "0.02"])
    assert choose_recipe(given, config, 8 * 4001, 4).reasons == ()


def test_a_resumed_run_keeps_its_peak_and_its_warm_up_when_it_is_made_longer():
    config, settings = GPTConfig(70, 8, 1, 2, 16), {"batch_size": 4, "accumulation": 1, "learning_rate": 3e-4,
                                                    "warmup_steps": 6}

    def resumed(*flags: str):
        return choose_recipe(train.read_flags(["--max_steps", "5000", *flags]), config, 8 * 4001, 4, 100, 400,
                             settings=settings)

    assert (resumed().learning_rate, resumed().warmup_steps) == (3e-4, 6)
    assert (resumed("--learning_rate", "1e-3").learning_rate, resumed("--warmup_steps", "9").warmup_steps) == (1e-3, 9)
    larger = resumed("--batch_size", "8")
    assert larger.learning_rate == larger.usual_learning_rate != 3e-4  # another step, another peak


def test_initial_weights_are_wide_for_adamws_default_rate_alone():
    config = GPTConfig(70, 8, 1, 2, 160)

    def std(*flags: str, optimizer: str = "adamw") -> float:
        args = train.read_flags(["--batch_size", "4", "--max_steps", "500", *flags])
        return choose_recipe(args, config, 8 * 4001, 4, optimizer=optimizer).init_std

    assert std() == std(optimizer="adamw8bit") == 0.05
    assert std(optimizer="muon") == std("--learning_rate", "1e-3") == std("--init_from", "weights") == 0.02
    assert std("--init_std", "0.3", optimizer="muon") == 0.3


def test_embeddings_have_a_rate_and_a_decay_of_their_own():
    config = GPTConfig(70, 8, 1, 2, 512)

    def rates(*flags: str, settings: dict | None = None) -> tuple[float, float]:
        args = train.read_flags(["--batch_size", "4", "--max_steps", "500", *flags])
        found = choose_recipe(args, config, 8 * 4001, 4, settings=settings or {})
        return found.embedding_learning_rate, found.embedding_weight_decay

    assert rates() == (embedding_rate("adamw", config, 32, 500 * 32), 0.1)
    given = "--learning_rate", "1e-3"
    assert rates(*given) == (1e-3, 0.1)  # which has always meant embeddings too
    assert rates(*given, "--embedding_learning_rate", "5e-3", "--embedding_weight_decay", "0") == (5e-3, 0.0)
    assert rates(*given, "--weight_decay", "0.3") == (1e-3, 0.3)  # so has this one
    assert rates(*given, settings={"learning_rate": 1e-3}) == (1e-3, 0.1)  # a run of before the flag had one rate
