"""evaluate.py: its figures are those of transformers computed by the definitions."""

import gzip
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import evaluate
from common.errors import Exit, UserError
from tokens.tokenizer import END_OF_TEXT

ROOT = Path(evaluate.__file__).parent
T = 16


@pytest.fixture(scope="module")
def folder(make_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate") / "out"
    make_checkpoint(folder, 3, seq_length=T)
    return folder


@pytest.fixture(scope="module")
def theirs(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder / "checkpoint-3").eval().double()


@pytest.fixture
def call(folder, tmp_path):
    """Runs main on the checkpoint; returns the results of --json."""

    def main(*flags: str | Path, ckpt: Path = folder) -> list[dict]:
        path = tmp_path / "figures.json"
        assert evaluate.main(["--ckpt", str(ckpt), "--no-use_gpu", "--json", str(path), *map(str, flags)]) == 0
        return json.loads(path.read_text())["results"]

    return main


def log_probabilities(theirs, ids: list[int]) -> list[tuple[float, bool]]:
    """Of each id but the first after those before it, in transformers; and whether it is the likeliest."""
    with torch.no_grad():
        logits = theirs(torch.tensor([ids[:-1]])).logits[0]
    return [(float(row.log_softmax(-1)[index]), int(row.argmax()) == index)
            for row, index in zip(logits, ids[1:], strict=True)]


# ---------------------------------------------------------------- text


@pytest.mark.parametrize("stride", [None, 5, 16])
def test_perplexity_is_that_of_transformers_on_the_same_windows(call, theirs, tokenizer, texts, tmp_path, stride):
    content = " ".join(texts)[:240]
    (tmp_path / "a.txt").write_bytes(content.encode())
    ids, moves = [0, *tokenizer.encode(content).ids], stride or T // 2
    assert len(ids) > 5 * T
    ends = [min(T + max(0, math.ceil((at - T) / moves)) * moves, len(ids) - 1) for at in range(1, len(ids))]
    of_window = {end: log_probabilities(theirs, ids[max(0, end - T):end + 1]) for end in set(ends)}
    nats = -sum(of_window[end][at - max(0, end - T) - 1][0] for at, end in enumerate(ends, 1))
    found, = call("--text", tmp_path / "a.txt", *([] if stride is None else ["--stride", str(stride)]))
    assert found["tokens"] == len(ids) - 1
    assert found["bytes"] == len(content.encode())
    assert found["nats_per_token"] == pytest.approx(nats / (len(ids) - 1), rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(nats / (len(ids) - 1)), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(content.encode()), rel=1e-6)


@pytest.mark.parametrize(("length", "seq_length", "stride"), [(2, 8, 4), (9, 8, 4), (10, 8, 3), (100, 8, 8),
                                                               (57, 8, 1), (40, 7, 5)])
def test_windows_score_each_id_once_with_the_promised_context(length, seq_length, stride):
    scored = []
    for window in evaluate.windows_of(np.arange(length), seq_length, stride, 0):
        assert len(window.ids) <= seq_length + 1
        first = len(window.ids) - window.num_scored
        assert window.ids[0] == 0 or first > seq_length - stride
        scored += list(window.ids[first:])
    assert scored == list(range(1, length))


def test_documents_count_alike_in_whatever_form_they_come(call, texts, tmp_path):
    names = []
    for number, content in enumerate(texts):
        names.append(tmp_path / f"{number}.txt")
        names[-1].write_bytes(content.encode())
    lines = "".join(json.dumps({"text": content}) + "\n" for content in texts)
    (tmp_path / "all.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "all.txt").write_bytes("\n##\n".join(texts).encode())
    *single, whole = call("--text", *names)
    assert whole["documents"] == len(texts)
    assert whole["tokens"] == sum(found["tokens"] for found in single)
    for found in (*call("--text", tmp_path / "all.jsonl.gz"),
                  *call("--text", tmp_path / "all.txt", "--document_separator", r"\n##\n")):
        for name in ("documents", "tokens", "bytes"):
            assert found[name] == whole[name]
        assert found["nats_per_token"] == pytest.approx(whole["nats_per_token"], rel=1e-6)
        assert found["bits_per_byte"] == pytest.approx(whole["bits_per_byte"], rel=1e-6)


def test_the_batch_size_changes_no_figure(call, texts, tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": content}) + "\n" for content in texts))
    first, second = (call("--text", tmp_path / "a.jsonl", "--batch_size", size)[0] for size in ("1", "7"))
    assert second["nats_per_token"] == pytest.approx(first["nats_per_token"], rel=1e-6)


def test_a_document_longer_than_a_part_has_the_ids_of_the_whole(call, tokenizer, tmp_path, monkeypatch, texts):
    monkeypatch.setattr(evaluate.text, "PART_BYTES", 64)
    content = " ".join(texts)
    (tmp_path / "a.txt").write_bytes(content.encode())
    assert call("--text", tmp_path / "a.txt")[0]["tokens"] == len(tokenizer.encode(content).ids)


def test_without_an_end_of_text_id_the_first_token_is_context_alone(call, tokenizer, tmp_path, capsys):
    fields = json.loads(tokenizer.to_str())
    fields["added_tokens"] = []
    fields["model"]["vocab"]["other"] = fields["model"]["vocab"].pop(END_OF_TEXT)
    (tmp_path / "plain.json").write_text(json.dumps(fields))
    (tmp_path / "a.txt").write_text("the cat sat")
    found, = call("--text", tmp_path / "a.txt", "--tokenizer_file", tmp_path / "plain.json")
    ids = tokenizer.encode("the cat sat").ids
    assert found["tokens"] == len(ids) - 1
    assert found["bytes"] == len("the cat sat") - len(tokenizer.decode(ids[:1]))
    assert "no end-of-text id" in capsys.readouterr().err


# ---------------------------------------------------------------- HellaSwag and LAMBADA

WORDS = ["the", "cat", "sat", "on", "mat", "and", "dog", "ran", "to", "sea"]


def words(rng, low: int, high: int) -> str:
    return " ".join(rng.choice(WORDS, rng.integers(low, high)))


def by_definition(theirs, tokenizer, context: str, continuation: str) -> tuple[float, bool]:
    """lm-evaluation-harness's loglikelihood (api/model.py, models/huggingface.py), written anew."""
    kept = context.rstrip()
    whole, before = tokenizer.encode(context + continuation).ids, tokenizer.encode(kept).ids
    answer = whole[len(before):]
    ids = ((before or [0]) + answer)[-(T + 1):]
    found = log_probabilities(theirs, ids)[-len(answer):]
    return sum(nats for nats, _ in found), all(hit for _, hit in found)


def test_hellaswag_is_that_of_the_definition(call, theirs, tokenizer, tmp_path):
    rng = np.random.default_rng(0)
    items, hits, hits_per_character, lengths = [], [], [], []
    for number in range(24):
        endings = [words(rng, 1, 8) + ("[substeps]  so" if number % 4 == 0 else "") for _ in range(4)]
        items.append({"activity_label": "Cat", "ctx_a": ("[header] [title] " if number % 3 else "") + words(rng, 1, 2),
                      "ctx_b": words(rng, 0, 2), "endings": endings, "label": str(number % 4), "ind": number})
        context = f"Cat: {items[-1]['ctx_a']} {items[-1]['ctx_b'].capitalize()}".strip()
        context, *endings = (re.sub(r"\[.*?\]", "", part.replace(" [title]", ". ")).replace("  ", " ")
                             for part in (context, *endings))
        lengths += [len(tokenizer.encode(context + " " + ending).ids) for ending in endings]
        nats = np.array([by_definition(theirs, tokenizer, context, " " + ending)[0] for ending in endings])
        hits.append(np.argmax(nats) == number % 4)
        hits_per_character.append(np.argmax(nats / [len(ending) for ending in endings]) == number % 4)
    assert hits != hits_per_character
    assert min(lengths) < T + 1 < max(lengths)  # some lose their beginning
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    found, = call("--hellaswag", tmp_path / "h.jsonl")
    assert (found["items"], found["acc"], found["acc_norm"]) == (24, np.mean(hits), np.mean(hits_per_character))
    assert found["acc_stderr"] == pytest.approx(np.std(hits, ddof=1) / math.sqrt(24))


def test_lambada_is_that_of_the_definition(call, theirs, tokenizer, tmp_path):
    rng = np.random.default_rng(1)
    texts = [words(rng, 1, 7) for _ in range(20)]
    for context in [words(rng, 1, 4) for _ in range(100)]:  # some whose last word the model would write
        ids = tokenizer.encode(context).ids
        with torch.no_grad():
            word = tokenizer.decode([int(theirs(torch.tensor([ids])).logits[0, -1].argmax())])
        if re.fullmatch(r" \w+", word) and tokenizer.encode(context + word).ids[:-1] == ids:
            texts.append(context + word)
    pairs = [text.rpartition(" ") for text in texts]
    scores = [by_definition(theirs, tokenizer, context, " " + last) for context, _, last in pairs]
    assert 0 < sum(hit for _, hit in scores) < len(scores)
    assert any(not context for context, _, _ in pairs)
    (tmp_path / "l.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found, = call("--lambada", tmp_path / "l.jsonl")
    assert found["acc"] == np.mean([hit for _, hit in scores])
    assert found["perplexity"] == pytest.approx(math.exp(-np.mean([nats for nats, _ in scores])), rel=1e-5)


# ---------------------------------------------------------------- the command


def test_the_command_prints_a_line_for_each_measurement(folder, tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat on the mat")
    (tmp_path / "l.jsonl").write_text('{"text": "the cat sat on the mat"}\n')
    done = subprocess.run([sys.executable, str(ROOT / "evaluate.py"), "--ckpt", str(folder), "--text", "a.txt",
                           "--lambada", "l.jsonl", "--no-use_gpu"], capture_output=True, text=True, timeout=120,
                          cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"window 16, stride 8 \| .* \| fp32 \(", done.stdout)
    assert re.search(r"^a.txt \| \d+\.\d{4} nats per token \| perplexity [\d,]+\.\d\d \| bits per byte \d+\.\d{4} \| "
                     r"\d+ tokens \| 22 bytes \| \d+\.\d s \| [\d,]+ tok/s$", done.stdout, re.MULTILINE)
    assert re.search(r"^lambada l.jsonl \| acc \d\.\d{4} \+- \d\.\d{4} \| perplexity .* \| 1 items", done.stdout,
                     re.MULTILINE)


@pytest.mark.parametrize("flags", [["--ckpt", "out"], ["--stride", "3"], ["--lambada", "a", "--stride", "3"],
                                   ["--text", "a", "--stride", "0"], ["--text", "a", "--amp_dtype", "fp16"],
                                   ["--hellaswag", "a", "--document_separator", "b"], ["--txt", "a"]], ids=" ".join)
def test_bad_flags_end_the_command_with_2(flags):
    with pytest.raises(UserError) as caught:
        evaluate.read_flags(flags)
    assert caught.value.code == Exit.FLAGS


def test_bad_flags_are_answered_before_torch_is_imported(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit(99)")
    done = subprocess.run([sys.executable, str(ROOT / "evaluate.py"), "--stride", "0"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == Exit.FLAGS
    assert done.stderr.startswith("error: --stride '0': must be a whole number of at least 1")


def test_a_stride_beyond_the_window_is_refused(call, tmp_path):
    (tmp_path / "a.txt").write_text("the cat")
    with pytest.raises(UserError, match="--stride 17: more than the model's window") as caught:
        call("--text", tmp_path / "a.txt", "--stride", "17")
    assert caught.value.code == Exit.FLAGS


@pytest.mark.parametrize(("line", "why"), [("{", "JSONDecodeError"), ("[]", "TypeError"), ('{"text": 3}', "Attribute"),
                                           ('{"tex": "a b"}', "KeyError: 'text'"), ("", "holds no item")])
def test_a_line_that_is_no_item_is_named(call, tmp_path, line, why):
    good = '{"text": "a b"}\n\n' if line else ""
    (tmp_path / "l.jsonl").write_text(good + line + "\n")
    with pytest.raises(UserError, match=why) as caught:
        call("--lambada", tmp_path / "l.jsonl")
    assert caught.value.code == Exit.DATA
    assert not line or "line 3" in str(caught.value)


def test_an_answer_longer_than_the_window_is_refused(call, tmp_path):
    (tmp_path / "l.jsonl").write_text(json.dumps({"text": "a " + "x\u6f22" * 20}) + "\n")
    with pytest.raises(UserError, match=r"item 1 has an answer of \d+ tokens, the model sees 16") as caught:
        call("--lambada", tmp_path / "l.jsonl")
    assert caught.value.code == Exit.DATA


@pytest.mark.parametrize("flag", ["--text", "--hellaswag", "--lambada"])
def test_a_missing_file_ends_the_command_with_3(call, tmp_path, flag):
    with pytest.raises(UserError, match="No such file") as caught:
        call(flag, tmp_path / "none.jsonl")
    assert caught.value.code == Exit.DATA


def test_an_empty_file_is_refused(call, tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UserError, match="no token to score"):
        call("--text", tmp_path / "a.txt")


def test_a_signal_ends_it_and_what_was_finished_is_kept(folder, tmp_path, monkeypatch):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("the cat sat on the mat " * 40)
    scored, calls = evaluate.score, []

    def score(*args):
        calls.append(args)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return scored(*args)

    monkeypatch.setattr(evaluate, "score", score)
    monkeypatch.chdir(tmp_path)
    found = evaluate.main(["--ckpt", str(folder), "--text", "a.txt", "b.txt", "--batch_size", "16", "--no-use_gpu",
                           "--json", "j.json"])
    assert found == 128 + signal.SIGTERM
    results = json.loads((tmp_path / "j.json").read_text())["results"] if (tmp_path / "j.json").exists() else []
    assert len(calls) == 3
    assert [result["file"] for result in results] == ["a.txt"]


def test_a_model_whose_logits_are_no_numbers_is_said_to_be_diverged(call, make_model, write_folder, tmp_path):
    model = make_model()
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight").fill_(torch.nan)
    path = write_folder(tmp_path / "model", model)
    (tmp_path / "a.txt").write_text("the cat")
    with pytest.raises(UserError, match="not finite") as caught:
        call("--text", tmp_path / "a.txt", ckpt=path)
    assert caught.value.code == Exit.DIVERGED


def test_pruning_zeroes_the_smallest_weights_of_each_matrix_and_both_figures_are_told(call, make_model, write_folder,
                                                                                      tmp_path):
    model = make_model()
    path = write_folder(tmp_path / "model", model)
    (tmp_path / "a.txt").write_text("the cat sat on the mat and the dog ran to the sea " * 5)
    whole = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    zeros, total = evaluate.prune(model, 0.3)
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
