"""bench.py: two rungs for real, its flags, and what it says before it starts anything."""

import json

import pytest

from gpt.benchmarks import bench
from gpt.benchmarks.ladder import SHAPES, Shape
from gpt.common.errors import Exit
from tests.helpers.commands import run
from tests.helpers.refusals import refused


@pytest.mark.slow
def test_the_whole_command_makes_tokens_and_climbs(tmp_path):
    words = ["--shape", "tiny,32,4,256", "--rungs", "0,3", "--steps", "3", "--no-use_gpu"]
    done = run("bench", *words, "--json", tmp_path / "found.json")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("   ")}
    assert list(lines) == ["0", "3"]
    found = json.loads((tmp_path / "found.json").read_text())
    assert (tmp_path / "found.json").read_bytes().startswith(bench.OUTPUT_MARK), "the next run may replace it"
    assert found["shape"]["vocab_size"] == 256
    first, last = found["rungs"]
    assert first["naive"] == ["loader", "attention", "optimizer"]
    assert last["naive"] == ["optimizer"]
    assert [first["precision"], last["precision"]] == ["fp32", "bf16"]
    for rung in (first, last):
        assert f"{rung['ms_median']:,.1f}" in lines[str(rung["number"])]
        assert len(rung["losses"]) == 7
        assert rung["tokens_per_second"] == pytest.approx(128e3 / rung["ms_median"])
        assert rung["loss_ok"] is True
    assert last["speedup"] == pytest.approx(first["ms_median"] / last["ms_median"])
    assert list(last["losses"].values()) == pytest.approx(list(first["losses"].values()), rel=1e-3)
    assert last["losses"] != first["losses"]
    assert first["losses"]["7"] < first["losses"]["1"] - 0.1


def test_a_shape_has_a_name_or_is_written_out():
    assert bench.read_flags(["--shape", "B"]).shape == SHAPES["B"]
    assert bench.read_flags(["--shape", "tiny,64,8,512"]).shape == Shape("tiny", 64, 8, 512)


def test_a_single_rung_is_a_list_of_one():
    assert bench.read_flags(["--rungs", "0"]).rungs == (0,)
    assert bench.read_flags(["--rungs", "6,0"]).rungs == (0, 6)


@pytest.mark.parametrize(("flags", "said"), [
    (["--rungs", "0,8"], "--rungs '0,8': must be numbers from 0 to 7"),
    (["--rungs", "1,"], "--rungs '1,'"),
    *((["--shape", shape], f"--shape '{shape}'") for shape in ("C", "tiny", "tiny,64,4", "tiny,64,3,512", "x,64,4,512",
                                                                       "tiny,a,4,512")),])
def test_impossible_flags_are_refused(flags, said):
    with refused(code=Exit.FLAGS) as caught:
        bench.main(flags)
    assert said in str(caught.value)
