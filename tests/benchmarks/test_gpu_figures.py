"""The tables of tests/gpu.sh: what was measured stands in them, and what was not is said."""

import json
import re

import pytest

from benchmarks import gpu_figures
from benchmarks.gpu_figures import PARTS, section
from tests.helpers.commands import ROOT


@pytest.fixture
def folder(tmp_path):
    """What a GPU's commands would have left."""
    (tmp_path / "machine.json").write_text(json.dumps({"": "2026-11-23", "on": "NVIDIA T1", "torch": "2.15.0"}))
    return tmp_path


def left(folder, name, text="", code=0, command="python x.py", **figures):
    (folder / f"{name}.status").write_text(f"{code}\n12\n2026-11-23\n{command}\n")
    (folder / f"{name}.txt").write_text(text)
    if figures:
        (folder / f"{name}.json").write_text(json.dumps(figures))


def run_of(folder, name, losses, **fields):
    (folder / name).mkdir()
    rows = [{"step": step, "loss": loss, "seconds": 0.03, "tokens_per_second": 5e5, "mfu": 0.44, "tokens": 1e6 * step,
             "memory_bytes": 7 * 2**30, "time": 60.0 * step, **fields} for step, loss in enumerate(losses, 1)]
    rows += [{"step": len(losses), "val_loss": 3.25, "bits_per_byte": None, "time": 60.0 * len(losses)}]
    (folder / name / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"step": 9, "lo')


def test_every_part_of_the_script_has_a_table_even_where_nothing_was_run(folder):
    script = (ROOT / "tests/gpu.sh").read_text()
    parts = re.search(r"^all=\((.*)\)$", script, re.MULTILINE)
    assert parts
    assert parts[1].split() == [*dict.fromkeys(["tests", "peers", "ladder", "memory", "fp16", "decode", "saving", "run",
                                                "graphs", "tuned", "steps"])]
    assert set(parts[1].split()) == PARTS.keys()
    for part in PARTS:
        lines = section(folder, f"{part}-A" if part in ("peers", "ladder", "tuned") else part).splitlines()
        assert lines[0].startswith(f"### {part}")
        assert lines[2].startswith("2026-11-23; on NVIDIA T1; torch 2.15.0. `bash tests/gpu.sh ")


def rows_of(folder, part):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section(folder, part).splitlines()
            if line.startswith("| ")]


def test_ours_stands_beside_the_peers_and_a_peer_that_failed_says_why(folder):
    medians = {"ours": {"ms_median": 33.0, "peak_memory_bytes": 6 * 2**30},
               "nanogpt": {"ms_median": 40.0, "peak_memory_bytes": 10 * 2**30}}
    left(folder, "nanogpt-B", medians=medians, loss_difference=0.002)
    left(folder, "transformers-B", "...\nerror: no such package", 5)
    assert rows_of(folder, "peers-B")[2:] == [
        ["nanogpt", "33.0", "40.0", "0.82x", "6.00", "10.00", "2e-03"],
        ["transformers", "exit code 5: error: no such package", "", "", "", "", ""]]


def test_the_ladder_is_put_together_from_its_halves(folder):
    rung = {"ms_p90": 1.0, "tokens_per_second": 1e5, "mfu": None, "peak_memory_bytes": 2**30, "loss_ok": True}
    low = [{"rung": 0, "name": "naive", "status": "done", "ms_median": 400.0, **rung},
           {"rung": 2, "name": "TF32", "status": "skipped", "reason": "needs a GPU"}]
    high = [low[0], {"rung": 8, "name": "chunks", "status": "done", "ms_median": 40.0, "compile_seconds": 61.2, **rung},
            {"rung": 10, "name": "FP8 head", "status": "failed", "reason": "out of memory"}]
    left(folder, "ladder-low-A", rungs=low)
    left(folder, "ladder-high-A", "killed", 124, rungs=high)
    found = rows_of(folder, "ladder-A")[2:]
    assert [row[:3] for row in found] == [["0", "naive", "400.0"], ["8", "chunks", "40.0"],
                                          ["10", "FP8 head", "failed: out of memory"], ["", "ladder-high-A", "stopped"]]
    assert found[1][5:9] == ["n/a", "1.00", "61", "10.00x"]


def test_memory_predicted_stands_beside_memory_held(folder):
    text = "memory      7.0 GiB predicted: weights 0.5\nstep_seconds: 0.0310, the fastest of 3\n" \
           "tokens_per_second: 507000\nmfu: 44.0%\npeak_memory: 7.35 GiB\n"
    left(folder, "memoryuse_amp", text, command="python train.py --verbose --dry_run --use_amp --loss_kernel")
    assert rows_of(folder, "memory")[2:] == [["--use_amp --loss_kernel", "7.00", "7.35", "1.05", "31.0", "507000",
                                              "44.0%", ""]]


def test_runs_are_read_from_their_metrics_and_a_cut_line_is_left_out(folder):
    for name in ("whole", "killed"):
        run_of(folder, f"saving-{name}", [5.0, 4.0, 3.0 + (name == "killed")])
    left(folder, "saving-resumed", "resume      from checkpoint-2\n")
    assert "2 of 3 losses are equal bit for bit, resumed from checkpoint-2" in section(folder, "saving")
    run_of(folder, "graphs-tiny-default", [5.0, 4.0])
    left(folder, "graphs-tiny-default", "skipped_steps: 0\n")
    assert rows_of(folder, "graphs")[2:] == [["tiny", "default", "30.00", "500,000", "7.00", "4.0000", "0", ""]]
    run_of(folder, "run", [5.0, 4.0])
    left(folder, "run", "", 124)
    assert rows_of(folder, "run")[2:] == [["2", "2.0", "1.0", "3.2500", ""]]
    assert "500,000 tok/s, MFU 44.0%, 7.00 GiB at step 2. stopped" in section(folder, "run")


def test_tests_and_samplers_are_counted(folder):
    left(folder, "tests", "FAILED tests/a.py::b - no\n1 failed, 13 passed, 2 skipped in 9.1s\n", 1)
    assert rows_of(folder, "tests")[2][:4] == ["13", "1", "2", "12"]
    assert "- tests/a.py::b" in section(folder, "tests")
    left(folder, "decode", "gpt2, 124,439,808 parameters\nours bf16, 8                  905.1 tok/s, median of 2\n")
    assert rows_of(folder, "decode")[2:] == [["ours bf16, 8", "905.1", "2"]]


def test_the_machine_is_kept_and_a_missing_gpu_is_an_error(tmp_path):
    assert gpu_figures.main(["machine", str(tmp_path), "--no-use_gpu"]) == 0
    assert {"", "on", "driver", "torch", "Python"} == json.loads((tmp_path / "machine.json").read_text()).keys()
