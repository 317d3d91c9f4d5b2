"""Downloads from a hub that are cut and killed at random: the same bytes in the end, and hardly any fetched twice.

    python -m pytest -m slow tests/system/test_hub_interrupted.py -s        prints the figures
"""

import hashlib
import io
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.house import ROOT
from tests.helpers.hub import LocalHub, at_random

MIB = 2**20
FETCH = """
import sys
from common.progress import Progress
from hub.download import fetch_model
print(fetch_model("--ckpt", sys.argv[1], Progress()))
"""


@pytest.fixture
def server():
    pytest.importorskip("huggingface_hub", reason="the hub is reached through huggingface_hub")
    with LocalHub() as hub:
        yield hub


def run_and_kill(words, environment, place, seconds):
    """Runs a command, killed after so many seconds; None if it was, else what it printed."""
    process = subprocess.Popen([sys.executable, "-B", *words], cwd=place, env={**environment, "PYTHONPATH": str(ROOT)},
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    assert process.returncode == 0, printed
    return printed


@pytest.mark.slow
def test_a_model_that_is_cut_and_killed_at_random_has_the_bytes_of_the_hub(server, tmp_path):
    rng, weights = random.Random(0), random.Random(1).randbytes(16 * MIB)
    server.put("model", "someone/small", {"config.json": b"{}", "model.safetensors": weights})
    sha256, num_kills, again = hashlib.sha256(weights).hexdigest(), 0, []
    cut = at_random(rng, 12 * MIB, 0.4)
    server.bytes_per_second = 20e6
    server.cut_after = lambda path: cut(path) if path == sha256 else None
    for number in range(30):
        environment = {**os.environ, **server.environment(tmp_path / str(number))}
        server.sent.clear()
        printed = None
        for _ in range(2):
            printed = printed or run_and_kill(["-c", FETCH, "hf://someone/small"], environment, tmp_path,
                                              rng.uniform(0.6, 2.2))
            num_kills += printed is None
        printed = printed or run_and_kill(["-c", FETCH, "hf://someone/small"], environment, tmp_path, 120)
        assert printed is not None
        folder = Path(printed.splitlines()[-1])
        assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == sha256
        again.append(server.sent[sha256] - len(weights))
    num_cuts = server.num_cuts
    print(f"\n30 downloads of {len(weights) / MIB:.0f} MiB, {num_cuts} connections cut, {num_kills} processes killed: "
          f"all hashes equal; fetched again in all {sum(again) / MIB:.1f} MiB, at most {max(again) / MIB:.2f} in one")
    assert num_cuts >= 10
    assert num_kills >= 10
    assert sum(again) < (num_cuts + num_kills + 1) * len(weights)  # a killed process begins its file again


def table(rng):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(3000)]
    texts = [" ".join(rng.choices(words, k=60)) for _ in range(6000)]
    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"story": texts}), file, compression="none")
    return file.getvalue()


@pytest.mark.slow
def test_a_dataset_that_is_killed_at_random_gives_the_same_tokens(server, tmp_path):
    rng = random.Random(2)
    files = {f"data/train-{number:05}-of-00004.parquet": table(rng) for number in range(4)}
    server.put("dataset", "someone/tales", files)
    total, num_kills, again = sum(map(len, files.values())), 0, []
    words = [str(ROOT / "pretokenize.py"), "hf://datasets/someone/tales", "--vocab_size", "400", "--num_workers", "1",
             "--output_dir"]
    environment = {**os.environ, **server.environment(tmp_path / "whole")}
    assert run_and_kill([*words, "whole-data"], environment, tmp_path, 120)
    whole = {name: (tmp_path / "whole-data" / name).read_bytes() for name in ("train.bin", "val.bin", "tokenizer.json")}
    server.cut_after, server.bytes_per_second = at_random(rng, 4 * MIB, 0.3), 10e6

    for number in range(10):
        environment = {**os.environ, **server.environment(tmp_path / str(number))}
        server.sent.clear()
        printed = None
        for _ in range(4):
            printed = printed or run_and_kill([*words, f"data-{number}"], environment, tmp_path, rng.uniform(0.7, 3.5))
            num_kills += printed is None
            if (tmp_path / f"data-{number}" / "metadata.json").exists():  # the kill came after the last word
                printed = "done"
        assert printed or run_and_kill([*words, f"data-{number}"], environment, tmp_path, 300)
        for name, content in whole.items():
            assert (tmp_path / f"data-{number}" / name).read_bytes() == content
        again.append(sum(server.sent.values()) - total)
    num_cuts = server.num_cuts
    print(f"\n10 datasets of 4 files, {total / MIB:.1f} MiB, {num_cuts} connections cut, {num_kills} processes killed: "
          f"the same tokens; fetched again in all {sum(again) / MIB:.1f} MiB, at most {max(again) / MIB:.2f} in one")
    assert num_kills >= 10
    assert sum(again) < 10 * total / 4
