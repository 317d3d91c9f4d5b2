"""Flags that contradict each other: what is said, and that nothing is said of flags that go together."""

import pytest

import train
from common.errors import Exit, UserError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data_dir a b --bin_file c.bin", "--bin_file: not with several folders in --data_dir"),
        ("--min_lr 1 --learning_rate 0.1", "--min_lr: is above --learning_rate"),
        ("--no-use_lr_scheduler --min_lr 0", "--min_lr: needs --use_lr_scheduler"),
        ("--warmup_steps 10 --max_steps 10", "--warmup_steps: ends after --max_steps"),
        ("--n_embd 10 --n_head 3", "--n_embd: is not a multiple of --n_head"),
        ("--init_from a --no-tie_weights", "--init_from: sets the model's shape"),
        ("--init_from a --init_std 0.1", "--init_std: has no effect with --init_from"),
        ("--n_inner 64", "--n_inner: needs --arch qwen3 or llama"),
        ("--no-use_amp --amp_dtype bf16", "--amp_dtype: has no effect with --no-use_amp"),
        ("--fp8_head --amp_dtype fp16", "--fp8_head: needs a GPU and mixed precision in bf16"),
        *((f"--compile_mode reduce-overhead {words}", f"--compile_mode reduce-overhead: {why}") for words, why in (
            ("--no-use_gpu", "needs a GPU"), ("--activation_checkpointing", "not with --activation_checkpointing"),
            ("--batch_size auto", "not with --batch_size auto"), ("--dropout 0.1", "not with --dropout"),
            ("--compile_blocks", "not with --compile_blocks"), ("--deterministic", "not with --deterministic"))),
        ("--gpu_cost_per_hour 2", "--gpu_cost_per_hour: has no effect without --dry_run"),
        ("--dry_run --budget 2", "--budget: needs --gpu_cost_per_hour"),
    ],
)
def test_flags_that_contradict_each_other_are_answered(words, message):
    with pytest.raises(UserError) as caught:
        train.read_flags(words.split())
    assert caught.value.code == Exit.FLAGS
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("words", ["--init_from a --tie_weights", "--init_from a --dropout 0.1",
                                   "--arch qwen3 --n_kv_head 1", "--use_lr_scheduler --min_lr 0",
                                   "--compile_mode reduce-overhead --gradient_accumulation_steps 4"])
def test_flags_that_go_together_are_taken(words):
    train.read_flags(words.split())


def test_all_contradictions_are_reported_together():
    with pytest.raises(UserError) as caught:
        train.read_flags(["--min_lr", "1", "--learning_rate", "0.1", "--budget", "2", "--n_inner", "64"])
    assert all(name in str(caught.value) for name in ("--min_lr", "--budget", "--n_inner"))
