"""Flags that contradict each other: each pair has a message, and flags that fit together have none."""

import pytest

import train
from gpt.common.errors import Exit, UserError
from gpt.planning.early import expand_shorthands


@pytest.mark.parametrize(("words", "message"), [
    ("--data_dir a b --bin_file c.bin", "--bin_file: not with several folders in --data_dir"),
    ("--min_lr 1 --learning_rate 0.1", "--min_lr: is above --learning_rate"),
    ("--no-use_lr_scheduler --min_lr 0", "--min_lr: has no effect with a constant learning rate"),
    ("--warmup_steps 10 --max_steps 10", "--warmup_steps: does not end before --max_steps"),
    ("--n_embd 10 --n_head 3", "--n_embd: is not a multiple of --n_head"),
    ("--init_from a --no-tie_weights", "--tie_weights: not with --init_from"),
    ("--n_inner 64", "--n_inner: has no effect without --arch qwen3|llama"),
    ("--no-use_amp --amp_dtype bf16", "--amp_dtype bf16: not with --no-use_amp"),
    ("--init_from=resume", "--init_from resume: drop it; --resume_from auto"),
    ("--init_from=scratch", "--init_from scratch: drop it"),
    ("--teacher hf://a/b", "--teacher: not a model of the hub"),
    ("--overwrite --resume_from auto", "--overwrite: not with --resume_from auto"),
    ("--output_dir a --mirror_to a/b", "--mirror_to: lies in --output_dir"),
    ("--mirror_to s3://bucket/a", "--mirror_to: must be a folder of this machine or of a mounted disk"),
    *((f"--compile_mode reduce-overhead {words}", "--compile_mode") for words in (
        "--no-use_gpu", "--activation_checkpointing", "--batch_size auto", "--dropout 0.1", "--deterministic")),
    ("--lr_schedule constant --use_lr_scheduler", "--lr_schedule constant: not with --use_lr_scheduler"),
    ("--gpu_cost_per_hour 2", "--gpu_cost_per_hour: has no effect without --dry_run or --check")])
def test_flags_that_contradict_each_other_are_answered(words, message):
    with pytest.raises(UserError) as caught:
        train.read_flags(words.split())
    assert caught.value.code == Exit.FLAGS
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", ["--init_from a --tie_weights", "--init_from a --dropout 0.1",
                                   "--compile_mode blocks --no-use_gpu", "--arch qwen3 --n_kv_head 1",
                                   "--use_lr_scheduler --min_lr 0", "--label_smoothing 0.1 --teacher a",
                                   "--compile_mode reduce-overhead --gradient_accumulation_steps 4",
                                   "--compile_mode reduce-overhead --dropout 0"])
def test_flags_that_go_together_are_taken(words):
    train.read_flags(words.split())


def test_a_folder_to_write_has_no_slash_at_its_end():
    given = {"output_dir": "out/", "mirror_to": "/", "data_dir": "data/"}
    assert expand_shorthands(given) == {"output_dir": "out", "mirror_to": "/", "data_dir": "data/"}
