"""From a text to a model that answers, as docs/conversations.md has it: facts, sums, words backwards, refusals.

Six minutes on two quiet cores.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

import pretokenize
import train
from gpt.checkpoint.find import resolve
from gpt.checkpoint.load import open_model
from gpt.generation.continuation import Continuation, Sampling
from gpt.generation.decoder import Decoder
from gpt.generation.sampling import generate_texts
from gpt.tokens.chat import END, Turn, prompt_ids
from gpt.tokens.tokenizer import load_tokenizer
from tests.helpers import conversations
from tests.helpers.commands import run_python

BASE = "--arch qwen3 --n_layer 4 --n_head 4 --n_embd 256 --seq_length 256 --batch_size 4 --max_steps 1776"


class Question(Continuation):
    """A held-out question, asked greedily."""

    def __init__(self, record: dict, ids: list[int]):
        super().__init__(ids, 60, 0)
        self.kind = record["kind"]
        self.expected = record["messages"][1]["content"]


@torch.no_grad()
def exact_answers(run: Path, questions: Path) -> dict[str, float]:
    """The fraction of exact answers of each kind, with the token that ends them."""
    folder = resolve(run, print)
    tokenizer = load_tokenizer(folder)
    asked = [Question(record, prompt_ids([Turn("user", record["messages"][0]["content"])], tokenizer))
             for record in map(json.loads, questions.read_text().splitlines())]
    for _ in generate_texts(Decoder(*open_model(folder), 32), asked, Sampling(0.0), (tokenizer.token_to_id(END),)):
        pass
    right = Counter(each.kind for each in asked
                    if each.finish_reason == "end_of_text" and tokenizer.decode(each.new_ids) == each.expected)
    return {kind: right[kind] / number for kind, number in Counter(each.kind for each in asked).items()}


@pytest.mark.slow
def test_a_base_answers_nothing_and_a_tuned_model_answers_held_out_questions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pretokenize.main(["--demo", "--vocab_size", "512", "--val_fraction", "0.02"])
    assert train.main(["--use_amp", "--sample_interval", "0", "--output_dir", "base", *BASE.split()]) == 0
    conversations.main(tmp_path / "chats")
    pretokenize.main(["chats/train.jsonl", "--tokenizer_file", "base/best", "--output_dir", "chats/tokens"])
    assert train.main(["--init_from", "base/best", "--data_dir", "chats/tokens", "--use_amp"]) == 0
    questions = tmp_path / "chats/held_out.jsonl"
    assert max(exact_answers(tmp_path / "base", questions).values()) < 0.03
    answers = exact_answers(tmp_path / "out", questions)
    assert answers.pop("fact") >= 0.9
    assert min(answers.values()) >= 0.95


def test_the_command_that_makes_the_conversations_says_its_usage():
    done = run_python("import runpy\nrunpy.run_module('tests.helpers.conversations', run_name='__main__')")
    assert done.returncode == 1
    assert done.stderr == "usage: python -m tests.helpers.conversations FOLDER\n"
