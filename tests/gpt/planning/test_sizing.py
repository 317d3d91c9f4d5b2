"""The size that is chosen where no flag names one."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import train
from gpt.machine.backends import CPU, NVIDIA
from gpt.planning.sizing import choose_sizing, sizing_for
from tests.helpers.training import metrics_of


@pytest.mark.parametrize(("vocab_size", "num_tokens", "threads", "minutes", "expected"), [
    (1024, 443_000, 2, None, (4, 192, 256, 8, 7)),  # a megabyte of text on an old laptop
    (1024, 443_000, 9, 16.0, (4, 256, 256, 8, 12)),  # more passes by a larger model
    (1024, 443_000, 3, 16.0, (4, 192, 256, 8, 11)),  # of which it makes eight or more, or a smaller one learns more
    (640, 90_000, 9, 16.0, (4, 192, 256, 8, 10)),  # for which this text is too short
    (1024, 443_000, 2, 4.0, (2, 128, 256, 4, 6)),  # a smaller model, which has the time to learn
    (5632, 2_600_000, 4, None, (2, 128, 256, 4, 4)),  # more text takes the time of more passes
    (32_000, 25_000_000, 2, None, (2, 128, 256, 4, 1)),  # one pass at least
    (32_000, 250_000_000, 64, 600.0, (6, 512, 256, 16, 1)),  # a server and a night
    (512, 800, 2, None, (2, 128, 32, 16, 10)),
    (260, 100, 2, None, (2, 128, 32, 3, 10))])  # a step that reads the text once
def test_the_size_follows_from_corpus_machine_and_time(vocab_size, num_tokens, threads, minutes, expected):
    found = sizing_for(vocab_size, num_tokens, 25e9 * threads, minutes, None)
    assert found.shape
    assert (found.shape[0], found.shape[2], found.seq_length, found.batch_size, found.epochs) == expected


def test_a_flag_for_the_length_holds_and_a_small_corpus_gets_a_shorter_one():
    assert sizing_for(1024, 443_000, 5e10, None, 64).seq_length == 64
    found = [sizing_for(1024, tokens, 5e10, None, None).seq_length for tokens in (100, 16_383, 16_384, 10**9)]
    assert found == [32, 128, 256, 256]


@pytest.mark.parametrize(("flags", "arch", "shape", "batch_size"), [
    ("", "qwen3", (4, 4, 192), 8), ("--arch gpt2", "gpt2", (4, 4, 192), 8), ("--no-bias", "gpt2", (4, 4, 192), 8),
    ("--model_size tiny", "gpt2", None, 4), ("--n_layer 4 --n_head 4 --n_embd 128 --arch qwen3", "qwen3", None, 4)])
def test_a_size_that_flags_name_is_gpt2s_and_one_that_is_chosen_qwen3s(flags, arch, shape, batch_size, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr("gpt.planning.sizing.measured_speed", lambda *_: 7e10)
    corpus: Any = SimpleNamespace(vocab_size=1024, train=SimpleNamespace(length=443_000))
    found: Any = choose_sizing(train.read_flags(["--no-use_gpu", *flags.split()]), corpus, None)
    assert (found.arch, found.shape, found.seq_length, found.batch_size) == (arch, shape, 256, batch_size)


def test_the_shape_that_a_first_measurement_chooses_is_measured_too(monkeypatch):
    """A shape that is faster than the one that is measured first leaves minutes for a larger one."""
    speeds = {(2, 4, 256): 1e11, (4, 6, 384): 1.3e11}
    monkeypatch.setattr("gpt.planning.sizing.measured_speed", lambda *given: speeds[given[-1]])
    corpus: Any = SimpleNamespace(vocab_size=1024, train=SimpleNamespace(length=411_489))
    found: Any = choose_sizing(train.read_flags(["--no-use_gpu"]), corpus, 64.0)
    assert found.shape == (6, 6, 384)
    assert found.speed == 0.75 * 1.3e11


def test_with_a_gpu_gpt2_small_stays_the_default(monkeypatch):
    monkeypatch.setattr(NVIDIA, "why_unavailable", lambda: None)
    assert choose_sizing(train.read_flags([]), None, None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("has_bf16", "flags", "precision"), [
    (True, [], "bf16"), (False, [], "fp32"),
    pytest.param(True, ["--no-use_amp"], "fp32", marks=pytest.mark.slow)])
def test_a_run_without_a_size_takes_bf16_where_the_processor_has_it_and_resumes_as_it_began_on_another_machine(
        has_bf16, flags, precision, corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CPU, "has_bf16", lambda: has_bf16)
    monkeypatch.setattr("gpt.planning.sizing.measured_speed", lambda *_: 1e10)  # bf16 may be slow on this processor
    first = ["--data_dir", str(corpus), "--no-use_gpu", "--eval_interval", "9", "--sample_interval", "0"]
    assert train.main([*first, *flags, "--max_steps", "2"]) == 0
    monkeypatch.setattr("gpt.planning.sizing.measured_speed", lambda *_: 1e20)
    assert train.main(["--resume_from", "out", "--max_steps", "3"]) == 0
    assert "\nsize        2 x 128: " in capsys.readouterr().out
    assert train.main(["--config", "out", "--output_dir", "again", "--max_steps", "3"]) == 0
    for folder in ("out", "again"):
        state = json.loads((tmp_path / folder / "checkpoint-3/trainer_state.json").read_text())
        assert state["environment"]["precision"] == precision
    assert [line["step"] for line in metrics_of(tmp_path / "out") if "loss" in line] == [1, 2, 3]
