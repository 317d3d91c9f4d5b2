"""The words of other programs: each leads to flags that exist, and none hides a flag of ours."""

import re

import pytest

import bench
import evaluate
import export
import generate
import plot
import pretokenize
import train
from common import synonyms
from common.errors import UserError
from common.flags import Parser

COMMANDS = {"bench": bench, "evaluate": evaluate, "export": export, "generate": generate, "plot": plot,
            "pretokenize": pretokenize, "train": train}


@pytest.fixture(scope="module")
def known():
    """The flags of each command by its name, --no- forms included."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "read", lambda parser, *rest: found.update({parser.command: {
            option for action in parser._actions for option in action.option_strings}}))
        for command in COMMANDS.values():
            command.read_flags([])
    return found


def test_every_flag_that_is_suggested_exists(known):
    for command, table in synonyms.CALLED.items():
        assert set(table) <= known[command]
    sentences = [(command, answer) for command, table in synonyms.ANSWERS.items() for answer in table.values()]
    sentences += list(synonyms.LONELY_WORDS.items())
    for command, answer in sentences:
        there, here = re.match(r"(?s)(.*?)(?:python (\w+)\.py.*)?$", answer), re.findall(r"--[\w-]+", answer)
        assert there
        allowed = set().union(*known.values()) if command == "all" else known[command] | known.get(there[2], set())
        assert set(here) <= allowed, answer


def test_what_is_said_for_every_command_holds_for_those_that_use_a_device(known):
    for command in ("train", "generate", "evaluate", "bench"):
        assert {"--use_gpu", "--no-use_gpu", "--debug", "--config"} <= known[command]


def test_no_name_of_others_is_a_flag_of_ours_and_none_stands_twice(known):
    for command in COMMANDS:
        names = [name for table in (synonyms.CALLED[command], synonyms.ANSWERS[command]) for key, value in table.items()
                 for name in (value if key.startswith("--") else key).split()]
        assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
        assert not {f"--{name}" for name in names} & known[command]


def test_every_value_that_is_suggested_is_one(known):
    for flag, table in synonyms.VALUES.items():
        assert any(flag in flags for flags in known.values())
        names = [name for value in table.values() for name in value.split()]
        assert len(names) == len(set(names))


def said(command: str, *words: str) -> str:
    with pytest.raises(UserError) as caught:
        COMMANDS[command].read_flags(words)
    return str(caught.value)


@pytest.mark.parametrize(("words", "meant"), [
    ("--lr 1e-3", "--learning_rate"), ("--d_model 3", "--n_embd"), ("--n_layers 3", "--n_layer"),
    ("--block_size=256", "--seq_length"), ("--device cuda", "--use_gpu"), ("--device=cpu", "--no-use_gpu"),
    ("--out_dir o", "--output_dir"), ("--data d", "--data_dir"), ("--optim adamw", "--optimizer"),
    ("--eps 1e-8", "AdamW"),
    ("--data-path 0.7 a 0.3 b", "--data_dir"), ("--train-data-weights 0.7 0.3", "--data_dir a:0.7 b:0.3"),
    ("--use_mmap", "--preload mmap"), ("--start hi", "generate.py --prompt"), ("--wandb", "--tracker wandb"),
    ("--val_split 0.1", "pretokenize.py FILE --val_fraction"), ("--max_norm 1", "--grad_clip"),
    ("--smoothing 0.1", "--label_smoothing"), ("--weight_tying", "--tie_weights"), ("--max_iters 5", "--max_steps"),
    ("--eval_iters 5", "--eval_batches"), ("--gradient_accumulation 5", "--gradient_accumulation_steps"),
    ("--per_device_train_batch_size 5", "--batch_size"), ("--num_train_epochs 5", "--epochs"),
    ("--bf16", "--use_amp --amp_dtype bf16"), ("--fp16 True", "--use_amp --amp_dtype fp16"),
    ("--dtype float16", "--amp_dtype"), ("--warmup_iters 5", "--warmup_steps"), ("--depth=4", "--n_layer"),
    ("--max_seq_len 5", "--seq_length"), ("--max-seq-len 5", "--seq_length"),
    ("--model_name_or_path gpt2", "--init_from"), ("--train.micro_batch_size 4", "--batch_size"),
    ("--train.max_norm 1", "--grad_clip"),
    ("--train.max_time 60", "--max_minutes"), ("--save_total_limit 3", "--keep_checkpoints"),
    ("--wandb_log=True", "--tracker wandb"), ("--report_to wandb", "--tracker"),
    ("--lr_decay_iters 5", "--max_steps"), ("--decay_lr", "--use_lr_scheduler"),
    ("--model_size small", "Did you mean gpt2_small?"), ("--model_size 124M", "Did you mean gpt2_small?"),
    ("--model_size gpt2", "Did you mean gpt2_small?"), ("--model_size gpt2-medium", "Did you mean gpt2_medium?"),
    ("--model_size openai-community/gpt2-xl", "Did you mean gpt2_xl?"), ("--model_size nano", "Did you mean tiny?"),
    ("--amp_dtype bfloat16", "Did you mean bf16?"), ("--preload disk", "Did you mean mmap?"),
    ("--compile=False --use_amp=1 --seed 1.5", "--compile: takes no value. Give --no-compile.\n"
                                               "error: --use_amp: takes no value. Give --use_amp.\nerror: --seed"),
    ("--compile False", "--NAME turns it on, --no-NAME off"), ("config/train_gpt2.py", "--config FILE"),
    ("corpus.txt", "python pretokenize.py FILE")])
def test_the_words_of_others_are_answered_with_ours(words, meant):
    message = said("train", *words.split())
    assert meant in message
    assert "See --help" not in message


@pytest.mark.parametrize(("command", "words", "meant"), [
    ("generate", "--start=hi", "--prompt"), ("generate", "--out_dir o", "--ckpt"), ("generate", "hello", "--prompt"),
    ("generate", "--dtype bfloat16", "--amp_dtype"), ("generate", "--t 1", "--temperature"),
    ("generate", "-p hi", "--prompt"), ("pretokenize", "--input x.txt", "python pretokenize.py FILE"),
    ("pretokenize", "a.txt --val_split 0.1", "--val_fraction"), ("pretokenize", "a.txt --num_proc 8", "--num_workers"),
    ("evaluate", "--model m --text x", "--ckpt"), ("evaluate", "--tasks hellaswag", "--hellaswag"),
    ("evaluate", "x.txt", "--text"), ("export", "--outfile x", "--output"), ("export", "--output o --outtype f16",
                                                                          "--dtype"),
    ("export", "--output o --dtype float16", "Did you mean f16?"), ("plot", "--save x.png", "--output")])
def test_so_are_those_that_other_commands_get(command, words, meant):
    assert meant in said(command, *words.split())
