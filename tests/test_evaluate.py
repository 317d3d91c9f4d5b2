"""evaluate.py: what it prints and writes, refuses, and keeps when it is interrupted; pruning."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch

import evaluate
from common.errors import Exit, UserError
from evaluation import scoring
from evaluation.pruning import prune_blocks
from tests.helpers.commands import run
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
    (tmp_path / "l.jsonl").write_text('{"text": "the cat sat on the mat"}\n')
    done = forks.run(f"evaluate.py --ckpt '{folder}' --text a.txt --lambada l.jsonl --no-use_gpu", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert re.search(r"parameters, window 16, stride 8\ndevice      .*\nprecision   fp32 \(", done.stdout)
    assert re.search(r"^a.txt\n  loss \d+\.\d{4} nats per token \| perplexity [\d.,]+ \| bits per byte \d+\.\d{4}\n"
                     r"  \d+ tokens of 22 bytes in 1 document \| \d+\.\d s \| [\d,]+ tok/s$", done.stdout, re.M)
    assert re.search(r"^lambada l.jsonl\n  acc \d+\.\d% \+- \d\.\d%: [01] of 1 last word right\n  perplexity \S+ a "
                     "word", done.stdout, re.M)
    assert max(map(len, done.stdout.replace(str(folder), "out").splitlines())) <= 80


@pytest.mark.parametrize("flags", [["--ckpt", "out"], ["--stride", "3"], ["--lambada", "a", "--stride", "3"],
                                   ["--text", "a", "--stride", "0"], ["--text", "a", "--amp_dtype", "fp16"],
                                   ["--hellaswag", "a", "--document_separator", "b"], ["--txt", "a"]], ids=" ".join)
def test_bad_flags_end_the_command_with_2(flags):
    with pytest.raises(UserError) as caught:
        evaluate.read_flags(flags)
    assert caught.value.code == Exit.FLAGS


def test_bad_flags_are_answered_before_torch_is_imported(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit(99)")
    done = run("evaluate", "--stride", "0", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == Exit.FLAGS
    assert done.stderr.startswith("error: --stride '0': must be a whole number of at least 1")


def test_a_stride_beyond_the_window_is_refused(call, tmp_path):
    (tmp_path / "a.txt").write_text("the cat")
    with pytest.raises(UserError, match="--stride 17: more than the model's window") as caught:
        call("--text", tmp_path / "a.txt", "--stride", "17")
    assert caught.value.code == Exit.FLAGS


@pytest.mark.parametrize("flag", ["--text", "--hellaswag", "--lambada"])
def test_a_missing_file_ends_the_command_with_3(call, tmp_path, flag):
    with pytest.raises(UserError, match="No such file") as caught:
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


def test_a_model_whose_logits_are_not_finite_is_said_to_have_diverged(call, make_model, write_folder, tmp_path):
    model = make_model()
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight").fill_(torch.nan)
    path = write_folder(tmp_path / "model", model)
    (tmp_path / "a.txt").write_text("the cat")
    with pytest.raises(UserError, match="not finite") as caught:
        call("--text", tmp_path / "a.txt", ckpt=path)
    assert caught.value.code == Exit.DIVERGED


def test_pruning_zeroes_the_smallest_weights_of_each_matrix_and_both_figures_are_given(call, make_model, write_folder,
                                                                                      tmp_path):
    model = make_model()
    path = write_folder(tmp_path / "model", model)
    (tmp_path / "a.txt").write_text("the cat sat on the mat and the dog ran to the sea " * 5)
    whole = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    zeros, total = prune_blocks(model, 0.3)
    assert zeros == pytest.approx(0.3 * total, abs=8)
    for name, weight in model.named_parameters():
        kept = weight != 0
        if weight.dim() == 2 and ".h." in name:
            assert 1 - kept.float().mean() == pytest.approx(0.3, abs=1e-3)
            assert whole[name][kept].abs().min() >= whole[name][~kept].abs().max()
        assert torch.equal(weight[kept], whole[name][kept])
    pruned = write_folder(tmp_path / "pruned", model)
    before, after = call("--text", tmp_path / "a.txt", "--prune", "0.3", ckpt=path)
    [alone] = call("--text", tmp_path / "a.txt", ckpt=pruned)
    assert (before["pruned"], after["pruned"]) == (0.0, 0.3)
    assert after["nats_per_token"] == pytest.approx(alone["nats_per_token"], rel=1e-6)
    assert before["nats_per_token"] != after["nats_per_token"]


def test_the_batch_size_changes_no_figure(call, texts, tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": content}) + "\n" for content in texts))
    first, second = (call("--text", tmp_path / "a.jsonl", "--batch_size", size)[0] for size in ("1", "7"))
    assert second["nats_per_token"] == pytest.approx(first["nats_per_token"], rel=1e-6)


def test_the_flags_that_say_how_text_is_read_are_used(call, tmp_path):
    (tmp_path / "a.txt").write_text("the cat\n##\na dog")
    (tmp_path / "b.jsonl").write_text('{"body": "the cat"}\n{"body": "a dog"}\n')
    found, = call("--text", tmp_path / "a.txt", "--document_separator", r"\n##\n")
    assert found["documents"] == 2
    same, = call("--text", tmp_path / "b.jsonl", "--text_field", "body", "--stride", "3")
    assert [same[name] for name in ("documents", "tokens", "bytes")] == [
        found[name] for name in ("documents", "tokens", "bytes")]


@pytest.mark.parametrize(("text", "separator"), [(r"\n\t", "\n\t"), (r"\\n", r"\n"), (r"\d", r"\d")])
def test_a_separator_is_read_as_pretokenize_reads_it(text, separator):
    import pretokenize

    flags = ["--document_separator", text]
    assert evaluate.read_flags(["--text", "a", *flags]).document_separator == separator
    assert pretokenize.read_flags(["a", *flags]).document_separator == separator


def test_a_tokenizer_without_an_end_of_text_is_a_warning(call, tokenizer, tmp_path, capsys):
    fields = json.loads(tokenizer.to_str())
    fields["added_tokens"] = []
    fields["model"]["vocab"]["other"] = fields["model"]["vocab"].pop("<|endoftext|>")
    (tmp_path / "plain.json").write_text(json.dumps(fields))
    (tmp_path / "a.txt").write_text("the cat sat")
    call("--text", tmp_path / "a.txt", "--tokenizer_file", tmp_path / "plain.json")
    assert "no end-of-text id: the first token of each document is not scored" in capsys.readouterr().err
