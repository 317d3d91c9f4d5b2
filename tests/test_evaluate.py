"""evaluate.py: its figures, its refusals, and its output after an interruption."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

import evaluate
from gpt.common.errors import Exit, UserError
from gpt.evaluation import scoring
from gpt.machine.backends import CPU
from tests.helpers.models import replaced_meanwhile
from tests.helpers.refusals import refused
from tests.helpers.scoring import T


@pytest.fixture(scope="module")
def folder(make_checkpoint, tmp_path_factory):
    """An output folder with one checkpoint."""
    folder = tmp_path_factory.mktemp("evaluate") / "out"
    make_checkpoint(folder, 3, seq_length=T)
    return folder


@pytest.fixture
def call(folder, tmp_path):
    """Runs main on the checkpoint; returns the results of --json."""

    def main(*flags: str | Path, ckpt: Path = folder) -> list[dict]:
        path = tmp_path / "figures.json"
        assert evaluate.main(["--ckpt", str(ckpt), "--no-use_gpu", "--json", str(path), *map(str, flags)]) == 0
        return json.loads(path.read_text())["results"]

    return main


def test_a_checkpoint_that_a_run_replaces_while_it_is_read_gives_way_to_the_next(call, make_checkpoint, tmp_path,
                                                                               monkeypatch):
    (tmp_path / "a.txt").write_text("the cat sat on the mat")
    load = replaced_meanwhile(evaluate.load_model, tmp_path / "out", make_checkpoint)
    monkeypatch.setattr(evaluate, "load_model", load)
    assert call("--text", tmp_path / "a.txt", ckpt=tmp_path / "out")[0]["tokens"]
    assert os.listdir(tmp_path / "out") == ["checkpoint-2"]


def test_the_command_prints_a_line_for_each_measurement(folder, tmp_path, forks):
    (tmp_path / "a.txt").write_text("the cat sat on the mat")
    done = forks.run(f"evaluate.py --ckpt '{folder}' --text a.txt --no-use_gpu", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert re.search(r"seq_length  16\ndevice      .*\nprecision   fp32\n", done.stdout)
    assert re.search(r"^a.txt\n  documents 1 \| tokens \d+ \| bytes 22 \| nats per token \S+ \| perplexity \S+ \| "
                     r"bits per byte \S+$", done.stdout, re.M)


def test_16_bits_without_their_instructions_are_warned_of(call, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(type(CPU), "has_bf16", lambda self: False)
    (tmp_path / "a.txt").write_text("the cat sat on the mat")
    call("--text", tmp_path / "a.txt", "--use_amp")
    assert "no bf16 instructions" in capsys.readouterr().err


def test_json_for_standard_output_stands_there_alone(folder, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("the cat sat on the mat")
    text = str(tmp_path / "a.txt")
    assert evaluate.main(["--ckpt", str(folder), "--no-use_gpu", "--text", text, "--json", "-"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["results"][0]["bytes"] == 22
    assert "bits per byte" in printed.err


def test_json_replaces_earlier_figures_and_no_other_file(call, folder, tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("the cat sat on the mat")
    assert call("--text", text) == call("--text", text)
    config = folder / "checkpoint-3" / "config.json"
    for path in (text, config):
        before = path.read_bytes()
        with refused(f"{path.name} exists", Exit.FLAGS):
            evaluate.main(["--ckpt", str(folder), "--no-use_gpu", "--text", str(text), "--json", str(path)])
        assert path.read_bytes() == before


def test_counts_are_printed_whole():
    assert scoring.whole_or_rounded(1_049_864) == "1,049,864"
    assert scoring.whole_or_rounded(0.123456789) == "0.123457"
    assert scoring.whole_or_rounded(None) == "n/a"


@pytest.mark.parametrize("flag", ["--text", "--tokens"])
def test_a_missing_file_ends_the_command_with_3(call, tmp_path, flag):
    with pytest.raises(UserError, match=r"No such file|is missing") as caught:
        call(flag, tmp_path / "none.jsonl")
    assert caught.value.code == Exit.DATA


def test_a_signal_ends_it_and_what_was_finished_is_kept(folder, tmp_path, monkeypatch):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("the cat sat on the mat " * 40)
    score_batch, calls = scoring.score_batch, []

    def score(*args):
        calls.append(args)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return score_batch(*args)

    monkeypatch.setattr(scoring, "score_batch", score)
    monkeypatch.setattr(CPU, "busy_tokens", 256)
    monkeypatch.chdir(tmp_path)
    found = evaluate.main(["--ckpt", str(folder), "--text", "a.txt", "b.txt", "--no-use_gpu", "--json", "j.json"])
    assert found == 128 + signal.SIGTERM
    results = json.loads((tmp_path / "j.json").read_text())["results"] if (tmp_path / "j.json").exists() else []
    assert len(calls) == 3
    assert [result["file"] for result in results] == ["a.txt"]


def test_files_without_a_token_are_refused(call, tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UserError, match="no token to score"):
        call("--text", tmp_path / "a.txt")


def test_a_text_that_the_tokenizer_cannot_encode_is_refused(call, folder, tmp_path):
    shutil.copytree(folder / "checkpoint-3", tmp_path / "words", ignore=shutil.ignore_patterns("manifest.json", "*er*"))
    Tokenizer(models.WordLevel({"the": 0, "cat": 1})).save(str(tmp_path / "words/tokenizer.json"))
    (tmp_path / "a.txt").write_text("zebra")
    with pytest.raises(UserError, match="for which the model's tokenizer has no ids") as caught:
        call("--text", tmp_path / "a.txt", ckpt=tmp_path / "words")
    assert caught.value.code == Exit.DATA
