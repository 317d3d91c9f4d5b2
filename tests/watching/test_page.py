"""The page: all that a run recorded, as text that runs nothing, whatever its files hold."""

import json
import sys

import pytest

import plot
from watching.page import MOST_SAMPLES


@pytest.fixture
def run(tmp_path):
    """The output folder of a run with samples, advice, starts, flags and a checkpoint."""
    folder = tmp_path / "out"
    (folder / "checkpoint-9").mkdir(parents=True)
    lines = [{"step": step, "loss": 9 - step / 100, "tokens": step, "seconds": 1.0} for step in range(1, 201)]
    lines += [{"step": step, "sample": f"</pre><script>alert({step})\ud800"} for step in range(1, 201)]
    lines += [{"step": 7, "advice": "the loss explodes"}, {"step": 9, "val_loss": 3.0}]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    starts = [{"event": "start", "time": 1.7e9, "step": 0, "warnings": ["few tokens"]},
              {"event": "end", "time": 1.7e9 + 60, "step": 200, "how": "finished"}]
    (folder / "starts.jsonl").write_text("\n".join(map(json.dumps, starts)) + '\n{"event": "sta')
    (folder / "config.toml").write_text('data_dir = "/home/someone/data"\nseed = 7\n')
    (folder / "checkpoint-9" / "manifest.json").write_text("{}")
    return folder


def page_of(run, tmp_path) -> str:
    assert plot.main([str(run), "--output", str(tmp_path / "x.html")]) == 0
    return (tmp_path / "x.html").read_text(encoding="utf-8")


def test_the_page_has_all_that_a_run_recorded_and_loads_nothing(run, tmp_path):
    pytest.importorskip("matplotlib")
    page = page_of(run, tmp_path)
    for part in ("<svg", "few tokens\nstep 7: the loss explodes", "<h3>step 200</h3>", "checkpoint-9", "finished",
                 "2023-11-14 22:13 UTC", "data_dir = &quot;data&quot;", "seed = 7"):
        assert part in page
    assert "<script" not in page
    assert "src=" not in page.replace("default-src=", "")
    assert "someone" not in page
    assert page.count("<h3>") <= MOST_SAMPLES


def test_without_matplotlib_the_curves_are_characters(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = page_of(run, tmp_path)
    assert "<svg" not in page
    assert "loss in nats per token" in page


@pytest.mark.parametrize("starts", ["[" * 100_000, "7", '{"warnings": 3, "time": "x"}', '{"time": 1e300}',
                                    '{"time": NaN, "warnings": [null]}', "\xff\xfe"])
def test_a_page_is_made_of_whatever_lies_in_the_folder(run, tmp_path, starts):
    (run / "starts.jsonl").write_text(starts, encoding="latin-1")
    (run / "config.toml").write_bytes(b"\xff")
    (run / "checkpoint-9" / "manifest.json").unlink()
    assert "<h3>step 200</h3>" in page_of(run, tmp_path)
