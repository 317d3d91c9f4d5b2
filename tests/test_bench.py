"""bench.py: a small ladder for real, its naive parts against the product's, what it does when a rung fails."""

import contextlib
import io
import itertools
import json
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bench
import data
import train
from common.errors import Exit, UserError
from common.progress import Progress
from common.signals import Signals, Stopped
from model import GPT, GPTConfig
from ops.attention import causal_attention
from tokens.corpus import open_corpus
from tokens.layouts import Part, TokenStream

ROOT = Path(__file__).parent.parent
TINY = ["--model_size", "tiny", "--vocab_size", "256", "--seq_length", "32", "--batch_size", "4"]
CPU = {"device": "cpu", "name": "a CPU", "software": "torch", "half": "bf16", "why_no_half": "", "why_no_compile": None,
       "why_no_fp8": "a GPU's",
       "peak_flops": None, "matmul_flops": {"fp32": 1e12, "bf16": 2e12}, "matmul_width": 2048, "flops_per_token": 10**6}
GPU = {**CPU, "device": "cuda", "peak_flops": 1e15, "why_no_fp8": ""}


@pytest.fixture(scope="module")
def small_ladder(tmp_path_factory):
    """What two rungs of a tiny shape, and one that a CPU has not, print, and the JSON they leave."""
    path = tmp_path_factory.mktemp("bench") / "ladder.json"
    words = [*TINY, "--rungs", "0,2,4", "--steps", "3", "--warmup", "2", "--no-use_gpu", "--precision", "bf16"]
    done = subprocess.run([sys.executable, ROOT / "bench.py", *words, "--json", path], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(path.read_text())


def test_the_table_has_a_line_for_every_rung(small_ladder):
    said, found = small_ladder
    lines = {line.split()[0]: line for line in said.splitlines() if line.startswith("   ")}
    assert list(lines) == ["0", "2", "4"]
    assert lines["2"].endswith("skipped: a GPU's")
    for number in "04":
        rung = next(rung for rung in found["rungs"] if rung["rung"] == int(number))
        assert f" {rung['name']} " in lines[number]
        assert f"{rung['ms_median']:,.1f}" in lines[number]
        assert lines[number].count("same, to ") == 1
    assert " 1.00x " in lines["0"]


def test_the_json_has_what_the_table_was_made_of(small_ladder):
    found = small_ladder[1]
    assert found["shape"]["vocab_size"] == 256
    assert found["machine"]["device"] == "cpu"
    first, *_, last = (rung for rung in found["rungs"] if rung["status"] == "done")
    assert first["naive"] == ["loader", "attention", "optimizer"]
    assert last["naive"] == ["optimizer"]
    assert [first["precision"], last["precision"]] == ["fp32", "bf16"]
    for rung in (first, last):
        assert list(rung["losses"]) == ["1", "2", "3", "4", "5"]
        assert rung["timed"] == 3
        assert 0 < rung["ms_median"] <= rung["ms_p90"]
        assert rung["tokens_per_second"] == pytest.approx(128e3 / rung["ms_median"])
        assert rung["peak_memory_bytes"] > 2**26
        assert rung["loss_ok"] is True
    assert last["speedup"] == pytest.approx(first["ms_median"] / last["ms_median"])


def test_the_losses_of_the_first_rungs_are_the_same_to_rounding_and_fall(small_ladder):
    naive, _, half = (rung.get("losses") for rung in small_ladder[1]["rungs"])
    assert half == pytest.approx(naive, rel=1e-3)
    assert half != naive
    assert naive["5"] < naive["1"] - 0.1


# ---------------------------------------------------------------- the naive parts


@pytest.mark.parametrize("length", [7, 200])
def test_the_naive_attention_is_the_products(length):
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, length, 8, requires_grad=True) for _ in range(3)]
    results = []
    q, k, v = inputs
    for attention in (bench.naive_attention, causal_attention):
        output = attention(q, k, v, 0.0)
        results.append((output, *torch.autograd.grad(output.square().sum(), inputs)))
    for naive, ours in zip(*results, strict=True):
        torch.testing.assert_close(naive, ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_parts", [1, 3])
def test_the_naive_loader_gives_the_products_batches(tmp_path, num_parts):
    tokens = np.random.default_rng(0).integers(0, 60_000, 999)
    parts = []
    for i, piece in enumerate(np.split(tokens, num_parts)):
        piece.astype("<u2").tofile(tmp_path / f"{i}.bin")
        parts.append(Part(tmp_path / f"{i}.bin", "uint16", len(piece)))
    cpu = torch.device("cpu")
    windows = data.CorpusWindows(TokenStream(tuple(parts)), "ram", 16, 5, cpu)
    naive, ours = bench.NaiveBatches(windows, 4, cpu), data.Batches(windows, 4, cpu)
    for samples_seen, micro in ((0, 0), (0, 1), (8, 0), (56, 1)):  # the last one straddles two epochs
        for a, b in zip(naive.get(samples_seen, micro), ours.get(samples_seen, micro), strict=True):
            assert a.dtype == b.dtype == torch.int32
            assert torch.equal(a, b)


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
def test_the_naive_optimizer_takes_the_fused_ones_step_or_none(found_inf):
    results = []
    makes: list[Any] = [bench.naive_optimizer, torch.optim.AdamW]
    for make in makes:
        weight = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        optimizer = make([weight], 0.1, (0.9, 0.95), fused=True)
        for _ in range(3):
            weight.grad = weight.detach() ** 2
            optimizer.found_inf = torch.tensor(found_inf)
            optimizer.step()
            assert float(optimizer.found_inf) == found_inf  # train.py counts it afterwards
        results.append(weight.detach())
    torch.testing.assert_close(*results)
    assert torch.equal(results[0], torch.linspace(-1, 1, 12).reshape(3, 4)) == bool(found_inf)


def test_a_peer_of_transformers_starts_where_our_model_does():
    config = GPTConfig(200, 16, 2, 2, 32, tie_weights=False)
    ours = GPT.create(config)
    weights = {name: tensor[:200] if "wte" in name or "lm_head" in name else tensor
               for name, tensor in ours.state_dict().items()}
    theirs = bench.make_transformers(config, weights, torch.device("cpu"), None)[0]
    ids, targets = torch.randint(0, 200, (2, 2, 16))
    loss = theirs(input_ids=ids, labels=targets, shift_labels=targets).loss
    torch.testing.assert_close(loss, ours(ids, targets))


def test_the_made_up_tokens_are_a_corpus_and_the_loader_reads_it(tmp_path):
    assert bench.synthesise(str(tmp_path), 300, 200_000) == {}
    corpus = open_corpus(tmp_path, None, tmp_path / "metadata.json", None)
    assert corpus.vocab_size == 300
    assert corpus.train.length >= 200_000
    counts = np.bincount(np.fromfile(tmp_path / "train.bin", "<i2"), minlength=300)
    assert counts[0] > 3 * counts[10]
    found = bench.loader(str(tmp_path))["microseconds"]
    assert set(found) == {"ours, from RAM", "get_batch", "ours, from a warm map"}
    assert found["ours, from RAM"] < found["get_batch"]


# ---------------------------------------------------------------- what a rung is


@pytest.mark.parametrize("machine", [CPU, GPU, {**CPU, "half": "fp32", "why_no_half": "none", "why_no_compile": "x"}])
def test_every_rung_is_understood_by_train_and_keeps_what_the_one_below_brought(machine):
    rungs = bench.ladder(bench.SHAPES["B"], machine, None)
    assert [rung.number for rung in rungs] == list(range(11))
    for rung in rungs:
        args = train.read_flags(rung.flags)
        assert args.batch_size * args.gradient_accumulation_steps == 16
    brought = [rung for rung in rungs if not rung.why_not]
    for below, above in itertools.pairwise(brought):
        assert set(above.naive) <= set(below.naive)
        assert (above.naive, above.flags) != (below.naive, below.flags) or above.number == 6
    assert not brought[-1].naive


def test_a_gpu_has_all_rungs_and_a_cpu_says_what_it_lacks():
    assert not [rung for rung in bench.ladder(bench.SHAPES["A"], GPU, None) if rung.why_not]
    on_cpu = bench.ladder(bench.SHAPES["mini"], CPU, None)
    assert [rung.number for rung in on_cpu if rung.why_not] == [2, 9, 10]
    assert not bench.ladder(bench.SHAPES["mini"], CPU, True)[9].why_not
    assert bench.ladder(bench.SHAPES["mini"], GPU, False)[9].why_not


# ---------------------------------------------------------------- when something is wrong


def make_bench(tmp_path, out) -> bench.Bench:
    """A Bench on an imagined CPU that writes to out."""
    args = Namespace(rungs=None, tuned=None, limit_minutes=1.0, png=None, json=str(tmp_path / "found.json"))
    return bench.Bench(args, Progress(out), Signals(), tmp_path, str(tmp_path), bench.SHAPES["mini"], CPU, 2, 1)


def flags_of(words) -> list[str]:
    """train.py's flags in a command line of train.py, or of bench.py in its place."""
    return json.loads(words[2])["flags"] if words[1] == "naive" else words[1:]


def leave_a_run(words, *, lose=0.0, complaint="", code=0) -> bench.Ended:
    """Writes what a run of train.py with these words leaves, every loss a share `lose` too high."""
    flags = flags_of(words)
    folder = Path(flags[flags.index("--output_dir") + 1])
    folder.mkdir()
    steps = [{"step": step, "loss": (5 - step) * (1 + lose), "seconds": 0.5} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    closing = "attention   flash\ncompile_seconds: 1.5\npeak_memory_bytes: 1000000\nloss: 2.0 at step 3\n"
    return bench.Ended(code, closing, complaint)


def test_a_failed_rung_says_why_and_the_others_go_on(tmp_path, monkeypatch):
    def run(words, *_):
        if words[1] != "naive":
            return bench.Ended(-9, "", "warning: this is why")
        if "--use_amp" in flags_of(words):
            return leave_a_run(words, complaint="warning: a\nerror: out of luck. Try again.\nlater", code=5)
        if "--preload auto" in " ".join(flags_of(words)):
            return leave_a_run(words, complaint="warning: torch.compile failed, running eagerly: x")
        return leave_a_run(words)

    monkeypatch.setattr(bench, "run", run)
    out = io.StringIO()
    assert bench.time_ladder(make_bench(tmp_path, out)) == bench.SLOW_EXIT
    kept = json.loads((tmp_path / "found.json").read_text())
    said = {line.split()[0]: line for line in out.getvalue().splitlines() if line.startswith("   ")}
    assert "same, to 0.0e+00" in said["0"]
    assert said["1"].endswith("failed: torch.compile failed, running eagerly: x")
    assert said["3"].endswith("failed: out of luck. Try again.")
    assert said["8"].endswith("failed: killed by signal 9")
    assert [rung["status"] for rung in kept["rungs"]][:3] == ["done", "failed", "skipped"]


def test_a_rung_that_computes_something_else_is_found_out(tmp_path, monkeypatch):
    def run(words, *_):
        return leave_a_run(words, lose=wrong * ("--compile" in flags_of(words)))

    monkeypatch.setattr(bench, "run", run)
    wrong = 0.015
    out = io.StringIO()
    assert bench.time_ladder(make_bench(tmp_path, out)) == bench.SLOW_EXIT
    kept = json.loads((tmp_path / "found.json").read_text())
    assert [rung["rung"] for rung in kept["rungs"] if rung.get("loss_ok") is False] == [5, 6, 7, 8]
    assert "DIFFERENT, to 1.5e-02" in out.getvalue()  # within bf16's reach of fp32, but not of the other bf16 rungs
    wrong = 0.005
    assert bench.time_ladder(make_bench(tmp_path, out)) == 0


def test_losses_that_are_no_numbers_are_never_the_same():
    assert bench.loss_difference({1: 2.0, 2: 3.0}, {1: 2.0, 2: 3.3}) == pytest.approx(0.1 / 1.1)
    assert bench.loss_difference({1: None}, {1: None}) == float("inf")
    assert bench.loss_difference({1: 1.0}, {2: 1.0}) == float("inf")
    assert bench.loss_difference({1: 1.0, 21: 9.0}, {1: 1.0, 21: 1.0}) == 0


def test_a_process_that_hangs_is_ended_with_its_children(tmp_path):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    started = time.monotonic()
    ended = bench.run(["-c", code], tmp_path, 0.5, Signals())
    assert time.monotonic() - started < 10
    assert ended.problem == "not done within 0.00833 minutes"


def test_saving_is_timed_beside_a_raw_write(tmp_path):
    shape = {"model_size": "tiny", "vocab_size": 300, "seq_length": 16, "tie_weights": True}
    found = bench.saving(shape, str(tmp_path), False)
    assert found["bytes"] > 3 * 4 * 12 * 4 * 128**2
    assert all(seconds > 0 for seconds in found["seconds"].values())
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["checkpoint-1"]


def test_a_signal_ends_the_process_that_runs(tmp_path):
    signals = Signals()
    signals.number = 15
    with pytest.raises(Stopped):
        bench.run(["-c", "import time; time.sleep(60)"], tmp_path, 60, signals)


def test_a_naive_part_that_was_passed_over_is_a_bug(monkeypatch):
    for owner, name in ((data, "Batches"), (model, "causal_attention"), (torch.optim, "AdamW")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # so that they come back
    monkeypatch.setattr(train, "main", lambda argv: 0)
    monkeypatch.setattr(bench, "USED", {"loader"})
    assert bench.train_naively(["loader"], []) == {}
    with pytest.raises(AssertionError, match="attention"):
        bench.train_naively(["loader", "attention"], [])


@pytest.mark.parametrize(("flags", "said"), [
    (["--rungs", "0,12"], "--rungs '0,12': must be numbers from 0 to 10"),
    (["--rungs", "1,"], "--rungs '1,'"),
    (["--batch_size", "3"], "--batch_size: is odd"),
    (["--peer", "nanogpt"], "--peer nanogpt: needs --peer_dir"),
    (["--peer_dir", "x"], "--peer_dir: has no effect"),
    (["--loader", "--peer", "transformers"], "--loader: not with --peer"),
    (["--saving", "--loader"], "--saving: not with --peer or --loader"),
    (["--loader", "--png", "x.png"], "--png: is a picture of the ladder"),
    (["--vocab_size", "9", "--data_dir", "x"], "--vocab_size: comes from --data_dir"),
    (["--step", "3"], "--step: no such flag. Did you mean --steps?"),
    (["ladder"], "'ladder': unexpected argument")])
def test_impossible_flags_are_refused(flags, said):
    with pytest.raises(UserError) as caught:
        bench.main(flags)
    assert caught.value.code == Exit.FLAGS
    assert said in str(caught.value)


def test_what_is_not_installed_is_said_before_anything_runs(monkeypatch, tmp_path):
    found = bench.importlib.util.find_spec
    missing = ("matplotlib", "transformers")
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None if name in missing else found(name))
    for flags, said in ((["--png", "x.png"], "--png: matplotlib is not installed. Run: python"),
                        (["--peer", "transformers"], "--peer: transformers is not installed. Run: python"),
                        (["--peer", "nanogpt", "--peer_dir", str(tmp_path)], "has no model.py. Give nanoGPT's folder")):
        with pytest.raises(UserError) as caught:
            bench.main(flags)
        assert caught.value.code == Exit.MACHINE
        assert said in str(caught.value)


def test_a_folder_without_tokens_is_named(tmp_path):
    with pytest.raises(UserError, match=r"metadata\.json cannot be read") as caught:
        bench.main(["--data_dir", str(tmp_path)])
    assert caught.value.code == Exit.DATA


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_gpu_that_is_not_there_is_named(capsys):
    with pytest.raises(UserError, match="--use_gpu: ") as caught:
        bench.main([*TINY, "--use_gpu"])
    assert caught.value.code == Exit.MACHINE


def test_the_picture_is_drawn(tmp_path, small_ladder):
    pytest.importorskip("matplotlib")
    bench.picture(small_ladder[1]["rungs"], "tiny", str(tmp_path / "ladder.png"))
    with contextlib.closing((tmp_path / "ladder.png").open("rb")) as file:
        assert file.read(4) == b"\x89PNG"
