"""Beside others: nanoGPT's train.py is started as it expects to be, and every part has its figures."""

import io
from dataclasses import replace

import pytest

from benchmarks import peers
from benchmarks.ladder import Bench, Shape
from benchmarks.prepare import synthesise
from tests.helpers.bench import leave_a_run, make_bench

TRAIN = """
import numpy, pickle
exec(open('configurator.py').read())
tokens = numpy.memmap(given['dataset'] + '/train.bin', dtype=numpy.uint16, mode='r')
assert tokens.max() < pickle.load(open(given['dataset'] + '/meta.pkl', 'rb'))['vocab_size'] == 300
assert (given['device'], given['dtype'], given['batch_size'], given['max_iters']) == ('cpu', 'float32', '2', '2')
print('iter 0: loss 5.0000, time 9000.00ms, mfu -100.00%')
print('iter 1: loss 4.0000, time 1000.00ms, mfu -100.00%')
print('iter 2: loss 3.0000, time 1000.00ms, mfu -100.00%')
"""


def test_nanogpts_own_train_is_timed_in_turns_with_our_best_rung_in_its_precision(tmp_path):
    (peer := tmp_path / "peer").mkdir()
    (peer / "train.py").write_text(TRAIN)
    (peer / "configurator.py").write_text("import sys; given = dict(w[2:].split('=') for w in sys.argv[1:])")

    def answer(words):
        if words[0] == "-c":
            return Bench(**vars(bench)).run(words)
        assert "--no-use_amp" in words
        assert "--compile" in words
        return leave_a_run(words)

    bench = replace(make_bench(tmp_path, answer, out := io.StringIO()), shape=Shape("tiny", 300, 16, 2),
                    data_dir=str(tmp_path))
    synthesise(tmp_path, 300, 100_000)
    peers.time_step(bench, str(peer))
    assert [line.split() for line in out.getvalue().splitlines() if line.endswith("x")] == [
        ["nanoGPT", "1", "seconds", "1.00x"], ["ours", "0.5", "seconds", "2.00x"]]


def test_decoding_is_timed_with_every_precision(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    small = transformers.GPT2Config(vocab_size=300, n_positions=64, n_embd=32, n_layer=1, n_head=2)
    monkeypatch.setattr(transformers, "GPT2Config", lambda: small)
    monkeypatch.setattr(peers, "NEW_TOKENS", 3)
    monkeypatch.setattr(peers, "OUR_DECODING", {name: flags for name, flags in peers.OUR_DECODING.items()
                                                if "--compile" not in flags})
    bench = make_bench(tmp_path, leave_a_run)
    peers.time_decode(bench)
    found = bench.found["figures"]
    assert [f"{name}, {num}" for num in (1, 8) for name in (
        "transformers fp32", "transformers bf16", "ours fp32", "ours bf16", "ours int8")] == list(found)
    assert all(rate > 0 for rate in found.values())
