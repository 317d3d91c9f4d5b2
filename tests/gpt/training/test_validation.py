"""The validation loss against a plain loop."""

import contextlib
import json
import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers

import data
from gpt.checkpoint.stored import StoredState, TrainState
from gpt.machine.processes import Processes
from gpt.ops.loss import IGNORED
from gpt.tokens.layouts import Part
from gpt.tokens.stream import TokenStream
from gpt.training.starting import forget_best_on_other_tokens
from gpt.training.strategies import CudaGraphs
from gpt.training.validation import LossSums, sum_losses
from model import GPT, GPTConfig
from tests.helpers.training import recipe, small_batch, small_model
from tests.helpers.training_texts import sentencepiece_tokenizer


@pytest.mark.parametrize("vocabulary", [{"the": 0, "cat": 1}, {"the": 0, "cat": 1, "[UNK]": 2}])
def test_a_run_whose_tokenizer_has_no_ids_for_the_prompt_shows_no_sample(run, tmp_path, vocabulary):
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[misc]
    tokenizer.save(str(tmp_path / "t.json"))
    (np.arange(900) % 2).astype("<i2").tofile(tmp_path / "train.bin")
    for prompt in ("\n", "unknown"):
        text = run.ok("--data_dir", str(tmp_path), "--tokenizer_file", str(tmp_path / "t.json"), "--max_steps", "4",
                      "--sample_interval", "2", "--sample_prompt", prompt, "--overwrite")
        assert ("sample at step" in text) == (prompt == "unknown" and len(vocabulary) == 3)


def test_a_sample_keeps_the_blank_behind_its_prompt(run, tmp_path, monkeypatch):
    tokenizer = sentencepiece_tokenizer(("\u2581", "t"), letters="at")
    tokenizer.save(str(tmp_path / "t.json"))
    (np.arange(900) % 200).astype("<i2").tofile(tmp_path / "train.bin")
    monkeypatch.setattr("gpt.training.validation.sample", lambda *_, **__: tokenizer.encode("t at").ids)
    assert "at t at" in run.ok("--data_dir", str(tmp_path), "--tokenizer_file", str(tmp_path / "t.json"),
                               "--max_steps", "2", "--sample_interval", "2", "--sample_prompt", "at")


def test_a_prompt_without_a_tokenizer_is_said_to_have_no_effect(run, tmp_path):
    (np.arange(900) % 2).astype("<i2").tofile(tmp_path / "train.bin")
    text = run.ok("--data_dir", str(tmp_path), "--vocab_size", "300", "--max_steps", "2",
                  "--sample_interval", "2", "--sample_prompt", "a")
    assert text.count("--sample_prompt has no effect: there is no tokenizer.json beside the tokens") == 1


@pytest.fixture
def tokens(tmp_path):
    """75 tokens, so that the last window of 8 has 2 targets and the last batch of 4 windows 2 of them."""
    (np.arange(75) % 70).astype("<i2").tofile(tmp_path / "val.bin")
    return data.Tokens(TokenStream((Part(tmp_path / "val.bin", "int16", 75),), 2**16), "ram", torch.device("cpu"))


def sums_of(model, batches, lengths=None) -> LossSums:
    sums = sum_losses(model, batches, lengths, contextlib.nullcontext, lambda: False)
    assert sums is not None
    return sums


def test_evaluation_is_the_exact_mean_over_all_targets(tokens):
    model = small_model()
    x, y = small_batch(2)
    padding = (x, torch.full_like(y, IGNORED))
    found = sums_of(model, [*data.validation_batches(tokens, 8, 4, 100), padding], torch.arange(70)).mean()
    total, targets = 0.0, []
    with torch.no_grad():
        for start in range(0, 74, 8):
            window = torch.from_numpy(tokens.read(start, min(start + 9, 75) - start)).long()[None]
            total += F.cross_entropy(model(window[:, :-1])[0], window[0, 1:], reduction="sum").item()
            targets += window[0, 1:].tolist()
    assert found.nats == pytest.approx(total / 74, rel=1e-5)
    assert found.bits_per_byte == pytest.approx(total / math.log(2) / sum(targets), rel=1e-5)
    assert sum_losses(model, iter([(x, y)]), None, contextlib.nullcontext, lambda: True) is None
    assert model.training


@pytest.mark.parametrize("most", [5, 100])
def test_the_loss_is_the_same_for_every_batch_size_and_number_of_processes(tokens, most):
    model = small_model()
    lengths = torch.arange(70)
    found = {size: sums_of(model, data.validation_batches(tokens, 8, size, most), lengths) for size in (1, 2, 3, 7, 16)}
    for sums in found.values():
        assert sums.mean().nats == pytest.approx(found[1].mean().nats, rel=1e-6)
        assert (sums.num_tokens, sums.num_bytes) == (found[1].num_tokens, found[1].num_bytes)
    shares = [sums_of(model, data.validation_batches(tokens, 8, 2, most, Processes(rank, 3)), lengths)
              for rank in range(3)]
    together = LossSums(*(sum(column) for column in zip(*(vars(share).values() for share in shares), strict=True)))
    assert together.mean().nats == pytest.approx(found[1].mean().nats, rel=1e-6)
    assert together.num_bytes == found[1].num_bytes


# ---------------------------------------------------------------- in runs of train.py


@pytest.mark.parametrize(("interval", "fits"), [("0", True), ("1", False)])
def test_nothing_is_sampled_without_samples_or_without_memory_for_them(run, monkeypatch, interval, fits):
    monkeypatch.setattr("gpt.planning.setup.has_room_for_sample", lambda *_: fits)
    monkeypatch.setattr("gpt.training.validation.sample", None)
    run.ok("--max_steps", "1", "--sample_interval", interval)


def eval_tokens_in(folder, step: int) -> int:
    return json.loads((folder / f"checkpoint-{step}/trainer_state.json").read_text())["settings"]["eval_tokens"]


def test_a_resumed_run_keeps_its_validation_windows_whatever_its_batch_size(run):
    assert run("--max_steps", "4", "--eval_interval", "2", "--eval_batches", "2")[0] == 0
    assert eval_tokens_in(run.folder / "out", 4) == 2 * 4 * 8
    text = run.ok("--max_steps", "8", "--eval_interval", "2", "--eval_batches", "2", "--batch_size", "3",
                  "--resume_from", "auto")
    assert "does not count any more" not in text
    assert "--eval_batches: validation keeps its 64 tokens" in text
    assert "eval_tokens 64 ->" not in text
    assert eval_tokens_in(run.folder / "out", 8) == 2 * 4 * 8


@pytest.mark.parametrize(("settings", "val_sha256", "forgotten"), [
    ({"eval_tokens": 40}, "a", False), ({"eval_tokens": 47}, "a", True), ({"eval_tokens": 80}, "a", True),
    ({"eval_tokens": 40}, "b", True), ({}, None, False)])
def test_the_best_loss_counts_only_where_the_same_tokens_are_measured(settings, val_sha256, forgotten):
    state = TrainState(step=9000, best_val_loss=0.1, best_step=5000, validated_step=8000, validations_without_gain=2)
    corpus: Any = SimpleNamespace(val="tokens", val_identity="a")
    stored = StoredState(settings=settings, data={} if val_sha256 is None else {"val_sha256": val_sha256})
    said: list[str] = []
    setup: Any = SimpleNamespace(corpus=corpus, config=GPTConfig(70, 8, 1, 2, 16), stored=stored,
                                 runtime=SimpleNamespace(out=SimpleNamespace(say=said.append)))
    run: Any = SimpleNamespace(setup=setup, state=state, recipe=recipe(eval_tokens=40))
    forget_best_on_other_tokens(run)
    assert (state.best_val_loss is None) == forgotten
    assert state.measured_from == (8000 if forgotten else 0)
    assert ("0.1000 at step 5,000, does not count any more" in "".join(said)) == forgotten


def test_each_batch_of_a_validation_begins_a_pass_of_cuda_graphs(run, monkeypatch):
    forward, events = GPT.forward, []

    def noted(*rest):
        events.append("pass")
        return forward(*rest)

    monkeypatch.setattr(GPT, "forward", noted)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: events.append("mark"))
    monkeypatch.setattr("gpt.training.strategies.Strategy", CudaGraphs)
    run.ok("--max_steps", "1", "--gradient_accumulation_steps", "1")
    assert events == ["mark", "pass"] * events.count("pass")
    assert len(events) > 12


def test_a_resumed_dry_run_tells_what_is_left_and_writes_nothing(run):
    run("--max_steps", "3")
    before = {path: path.stat().st_mtime_ns for path in (run.folder / "out").rglob("*")}
    text = run.ok("--max_steps", "9", "--resume_from", "auto", "--dry_run")
    assert "from checkpoint-3, step 3 of 9" in text
    assert re.search(r"^time        about .*, estimated: 6 steps of ", text, re.MULTILINE)
    assert before == {path: path.stat().st_mtime_ns for path in (run.folder / "out").rglob("*")}
