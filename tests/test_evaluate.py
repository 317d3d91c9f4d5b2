"""evaluate.py: what it prints and writes, refuses, and keeps when it is interrupted; pruning."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

import evaluate
from common.errors import Exit, UserError
from evaluation import scoring
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


def test_the_command_prints_a_line_for_each_measurement(folder, tmp_path, forks):
    (tmp_path / "a.txt").write_text("the cat sat on the mat")
    done = forks.run(f"evaluate.py --ckpt '{folder}' --text a.txt --no-use_gpu", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert re.search(r"parameters, window 16, stride 8\ndevice      .*\nprecision   fp32 \(", done.stdout)
    assert re.search(r"^a.txt\n  loss \d+\.\d{4} nats per token \| perplexity [\d.,]+ \| bits per byte \d+\.\d{4}\n"
                     r"  \d+ tokens of 22 bytes in 1 document \| \d+\.\d s \| [\d,]+ tok/s$", done.stdout, re.M)
    assert max(map(len, done.stdout.replace(str(folder), "out").splitlines())) <= 80


@pytest.mark.parametrize("flags", [["--ckpt", "out"], ["--stride", "3"],
                                   ["--text", "a", "--stride", "0"], ["--text", "a", "--amp_dtype", "fp16"],
                                   ["--txt", "a"]], ids=" ".join)
def test_bad_flags_end_the_command_with_2(flags):
    with pytest.raises(UserError) as caught:
        evaluate.read_flags(flags)
    assert caught.value.code == Exit.FLAGS


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
    monkeypatch.chdir(tmp_path)
    found = evaluate.main(["--ckpt", str(folder), "--text", "a.txt", "b.txt", "--batch_size", "16", "--no-use_gpu",
                           "--json", "j.json"])
    assert found == 128 + signal.SIGTERM
    results = json.loads((tmp_path / "j.json").read_text())["results"] if (tmp_path / "j.json").exists() else []
    assert len(calls) == 3
    assert [result["file"] for result in results] == ["a.txt"]


def test_a_tokenizer_without_an_end_of_text_is_a_warning(call, make_model, write_folder, tokenizer, tmp_path, capsys):
    fields = json.loads(tokenizer.to_str())
    fields["added_tokens"] = []
    fields["model"]["vocab"]["other"] = fields["model"]["vocab"].pop("<|endoftext|>")
    path = write_folder(tmp_path / "model", make_model())
    (path / "tokenizer.json").write_text(json.dumps(fields))
    (tmp_path / "a.txt").write_text("the cat sat")
    call("--text", tmp_path / "a.txt", ckpt=path)
    assert "no end-of-text id: the first token of each document is not scored" in capsys.readouterr().err
