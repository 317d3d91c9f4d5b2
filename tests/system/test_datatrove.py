"""What datatrove writes by the recipe of docs/data.md is what train.py reads."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.commands import ROOT
from tests.helpers.texts import STRINGS, lines, words, write
from tokens.corpus import open_corpus
from tokens.tokenizer import load_tokenizer


@pytest.mark.slow
def test_what_datatrove_writes_by_the_documents_recipe_is_what_train_reads(tokenizer_file, tmp_path, monkeypatch):
    pytest.importorskip("datatrove")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/data.md").read_text()
    recipe = re.search(r"```python\n(from datatrove.*?)```.*?\n    python (train\.py .*?)\n", page, re.DOTALL)
    assert recipe is not None
    texts = [words(300 + number, number) + STRINGS[number % 11] for number in range(30)]
    for number in range(3):  # fewer than tasks: the others write empty files
        write(f"corpus/{number}.jsonl", lines(texts[10 * number : 10 * number + 10]))
    write("tokenizer/tokenizer.json", tokenizer_file.read_bytes())
    write("recipe.py", recipe[1])
    done = subprocess.run([sys.executable, "recipe.py"], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    parts = sorted(Path("tokens").glob("*.ds"))
    ids = np.concatenate([np.fromfile(part, "<u2") for part in parts]).tolist()
    tokenizer = load_tokenizer(tokenizer_file)
    end = tokenizer.token_to_id("<|endoftext|>")
    order = [number for task in range(8) for number in range(30) if number // 10 % 8 == task]
    texts = [texts[number] for number in order]  # a task reads every eighth file
    assert ids == [i for content in texts for i in [*tokenizer.encode(content).ids, end]]
    argv = [sys.executable, str(ROOT / "train.py"), *shlex.split(recipe[2])[1:], "--no-use_gpu", "--max_steps", "3"]
    tiny = "--n_layer 1 --n_head 2 --n_embd 16 --seq_length 16 --batch_size 2 --sample_interval 0"
    done = subprocess.run([*argv, *tiny.split()], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    corpus = open_corpus(Path("tokens"), None, None, Path("tokenizer/tokenizer.json"))
    assert corpus.val is not None
    assert corpus.train.length + corpus.val.length == len(ids)
