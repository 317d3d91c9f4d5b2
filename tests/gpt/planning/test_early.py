"""Texts on the command line of train.py: made tokens once, and found again as long as they are the same."""

import os

import pytest

import train
from gpt.common.errors import Exit, UserError
from tests.helpers.commands import run
from tests.helpers.training import TINY

MAKE = "pretokenize.py texts --output_dir texts.tokens"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py", "texts"])
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("the cat sat on the mat and the dog ran to the sea\n" * 400)
    return tmp_path


def refusal(line: str):
    with pytest.raises(UserError) as caught:
        train.answer_early(line.split())
    return caught.value.code, str(caught.value)


def test_texts_become_tokens_once_and_the_run_trains_on_them(place, capfd):
    done = run("train", "texts", *TINY, "--max_steps", "2", "--no-use_gpu", cwd=place)
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(words) for words in (f"python {MAKE}\n", "reading a.txt", "step 2/2")] == [1, 1, 1]
    assert 'data_dir = "texts.tokens"' in (place / "out/config.toml").read_text()
    assert train.answer_early(["texts/"]) == train.answer_early(["texts.tokens"]) == 0
    assert capfd.readouterr().out == "texts       their tokens: texts.tokens\n"

    (place / "texts/b.txt").write_text("more")
    os.utime(place / "texts/b.txt", (1, 1))
    go_on = (f"    python {MAKE} --overwrite --tokenizer_file texts.tokens/tokenizer.json\n"
             "    python train.py texts --resume_from auto --allow_new_data")
    assert refusal("texts") == (Exit.DATA, f"texts.tokens holds the tokens of a.txt. Type:\n{go_on}")
    (place / "texts/b.txt").unlink()
    os.utime(place / "texts/a.txt", (2**32, 2**32))
    assert "of a.txt; texts/a.txt is new. Type" in refusal("texts")[1]


@pytest.mark.parametrize(("line", "says"), [
    *((f"texts --{name} x", f"texts: not with --{name}") for name in ("data_dir", "bin_file", "init_from")),
    *((line, f"texts has no tokens yet. Type first: python {MAKE}") for line in ("texts", "texts --dry_run"))])
def test_texts_that_cannot_be_taken_are_refused(place, monkeypatch, line, says):
    monkeypatch.setattr("gpt.planning.early.is_one_of_several", lambda: line == "texts")  # as under torchrun
    assert refusal(line) == (Exit.FLAGS, says)


def test_a_text_that_is_not_there_is_named_by_pretokenize(place, capfd):
    with pytest.raises(SystemExit) as ended:
        train.answer_early(["none"])
    assert ended.value.code == Exit.DATA
    assert "error: none: No such file" in capfd.readouterr().err
    assert not (place / "none.tokens").exists()
