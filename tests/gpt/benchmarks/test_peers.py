"""A step beside nanoGPT's: its train.py is started as it expects to be."""

import io
from dataclasses import replace

from gpt.benchmarks import peers
from gpt.benchmarks.bench import synthesise
from gpt.benchmarks.ladder import Bench, Shape
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


def test_nanogpts_own_train_is_timed_beside_our_best_rung_in_its_precision(tmp_path):
    (peer := tmp_path / "peer").mkdir()
    (peer / "train.py").write_text(TRAIN)
    (peer / "configurator.py").write_text("import sys; given = dict(w[2:].split('=') for w in sys.argv[1:])")

    def answer(words):
        if words[0] == "-c":
            return Bench(**vars(bench)).run(words)
        assert "--no-use_amp" in words
        assert "--compile" in words
        return leave_a_run(words)

    bench = replace(make_bench(tmp_path, answer, out := io.StringIO()), shape=Shape("tiny", 16, 2, 300))
    synthesise(tmp_path, 300, 100_000)
    peers.time_step(bench, str(peer))
    assert [line.split() for line in out.getvalue().splitlines() if line.endswith("x")] == [
        ["nanoGPT", "1", "seconds", "1.00x"], ["ours", "0.5", "seconds", "2.00x"]]
