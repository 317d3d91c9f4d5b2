"""Relations of flags: they name flags that exist, and no name in another program hides a flag of ours."""

import pytest

import evaluate
import export
import generate
import plot
import pretokenize
import train
from gpt.benchmarks import bench
from gpt.common.errors import UserError
from gpt.common.flags import Parser

COMMANDS = {"bench": bench, "evaluate": evaluate, "export": export, "generate": generate, "plot": plot,
            "pretokenize": pretokenize, "train": train}


def noting(found: dict, name: str):
    """The parser's own __init__, which also enters the parser into a dict."""
    original = Parser.__init__

    def init(parser, *args):
        found[name] = parser
        original(parser, *args)

    return init


@pytest.fixture(scope="module")
def parsers():
    """The parser of each command by its name."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "stop", lambda parser: None)  # a command without the flags that it needs
        for name, command in COMMANDS.items():
            patch.setattr(Parser, "__init__", noting(found, name))
            command.read_flags([])
    return found


@pytest.fixture(scope="module")
def known(parsers):
    """The flags of each command by its name, --no- forms included."""
    return {command: {option for action in parser._actions for option in action.option_strings}
            for command, parser in parsers.items()}


def test_relations_name_flags_that_exist_and_conditions_that_can_hold(parsers):
    for parser in parsers.values():
        assert parser.relations.keys() <= parser.flags.keys()
        for relations in parser.relations.values():
            rules = [*relations.requires.split(", "), *relations.conflicts.split(", ")]
            conditions = [rule.rpartition(": ")[2].partition(" ") for rule in rules if rule]
            names = {name.removeprefix("no-") for name, _, _ in conditions}
            assert {*relations.overrides.split(), *relations.invalidates.split(), *names} <= parser.flags.keys()
            for name, _, values in conditions:
                for value in filter(None, values.split("|")):
                    parser.flags[name.removeprefix("no-")].type(value)


def test_no_alias_is_a_flag_of_ours_and_none_stands_twice(parsers, known):
    for command, parser in parsers.items():
        names = [name for relations in parser.relations.values() for name in relations.aliases.split()]
        assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
        assert not {f"--{name}" for name in names} & known[command]


def said(command: str, *words: str) -> str:
    with pytest.raises(UserError) as caught:
        COMMANDS[command].read_flags(words)
    return str(caught.value)


@pytest.mark.parametrize(("words", "meant"), [
    ("--lr 1e-3", "--learning_rate"), ("--block_size=256", "--seq_length"), ("--device cuda", "--use_gpu"),
    ("--dtype bfloat16", "--amp_dtype"), ("--train.micro_batch_size 4", "--batch_size"),
    ("--max-seq-len 5", "--seq_length"), ("--decay_lr=False", "--lr_schedule")])
def test_the_words_of_others_are_answered_with_ours(words, meant):
    message = said("train", *words.split())
    assert meant in message
    assert "See --help" not in message


@pytest.mark.parametrize(("command", "flag"), [("evaluate", "text"), ("generate", "prompt"), ("export", "ckpt")])
def test_a_word_without_a_flag_gets_the_flag_of_texts(command, flag):
    with pytest.raises(UserError, match=f" --{flag} 'a.txt'"):
        COMMANDS[command].read_flags(["a.txt"])


@pytest.mark.parametrize(("theirs", "ours"), [
    ("--lr_decay_iters=200", "--max_steps"), ("--always_save_checkpoint=False", "--keep_checkpoints"),
    ("--bf16=True", "--use_amp"), ("--eval_only=True", "python evaluate.py"), ("--do_train", "drop it"),
    ("--train_file=a.txt", "first argument"), ("--validation_file=a.txt", "--val_fraction")])
def test_flags_of_other_programs_have_counterparts(theirs, ours):
    with pytest.raises(UserError, match=rf" {ours}\b"):
        COMMANDS["train"].read_flags(["--compile=False", theirs])


@pytest.mark.parametrize(("words", "kept"), [
    ("--seed 2", {"epochs": 37, "weight_decay": 3.7, "batch_size": 4, "n_layer": 2, "warmup_steps": 80}),
    ("--data_dir other", {"epochs": None, "weight_decay": None, "batch_size": None, "n_layer": 2}),
    ("--seq_length 64", {"epochs": None, "batch_size": None, "n_layer": 2}),
    ("--n_embd 64", {"epochs": None, "weight_decay": None, "n_layer": 2})])
def test_another_run_chooses_anew_what_was_chosen_by_a_flag_that_changes(words, kept, tmp_path):
    decided = "epochs = 37\nweight_decay = 3.7\nbatch_size = 4\nn_layer = 2\nwarmup_steps = 80\nseq_length = 32\n"
    (tmp_path / "config.toml").write_text(f'data_dir = "data"\n[decided]\n{decided}')
    args = vars(COMMANDS["train"].read_flags(["--config", str(tmp_path), *words.split()]))
    assert {name: args[name] for name in kept} == kept
