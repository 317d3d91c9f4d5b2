"""bench.py: a small ladder for real, what the table says of it, and what it does when a rung fails."""

import importlib.util
import io
import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from typing import TextIO

import pytest

import bench
from benchmarks import report
from benchmarks.answers import Done
from benchmarks.ladder import Setting, Shape
from benchmarks.processes import Children, Ended
from common.errors import Exit, UserError
from common.outputs import Output
from common.progress import Progress
from common.signals import Signals
from tests.helpers.bench import CPU, SETTING, Imagined, flags_of, leave_a_run
from tests.helpers.commands import ROOT, run_python
from tests.helpers.terminals import terminal

TINY = ["--model_size", "tiny", "--vocab_size", "256", "--seq_length", "32", "--batch_size", "4"]
ALL_RUNGS = Namespace(rungs=None, tuned=None, png=None)


def make_bench(out: TextIO, children: Children, setting: Setting = SETTING) -> bench.Bench:
    """A benchmark that prints to out and keeps its figures in found.json of the children's folder."""
    found = Output("--json", str(children.folder / "found.json"), is_rewritten=True)
    return bench.Bench(Progress(out), children, setting, report.Record(found, setting))


# ---------------------------------------------------------------- a small ladder


@pytest.fixture(scope="module")
def small_ladder(tmp_path_factory):
    """What two rungs of a tiny shape, and one that a CPU has not, print; the JSON they leave; a picture."""
    folder = tmp_path_factory.mktemp("bench")
    children, out = Children(Signals(), 600, folder), io.StringIO()
    shape = Shape("tiny", 256, 32, 4)
    children.ask(Done, "tokens", folder=str(folder), vocab_size=256, num_tokens=7 * shape.tokens_per_step)
    made = make_bench(out, children, Setting(shape, CPU, str(folder), steps=3, warmup=2))
    args = Namespace(rungs=(0, 2, 4), tuned=None, png=str(folder / "ladder.png"))
    png = Output("--png", args.png) if importlib.util.find_spec("matplotlib") else None
    assert bench.time_ladder(args, made, png) == Exit.DONE, out.getvalue()
    return out.getvalue(), json.loads((folder / "found.json").read_text()), folder / "ladder.png"


def test_the_table_has_a_line_for_every_rung(small_ladder):
    said, found, _ = small_ladder
    lines = {line.split()[0]: line for line in said.splitlines() if line.startswith("   ")}
    assert list(lines) == ["0", "2", "4"]
    assert lines["2"].endswith("skipped: needs a GPU")
    for number in "04":
        rung = next(rung for rung in found["rungs"] if rung["rung"] == int(number))
        assert f" {rung['name']} " in lines[number]
        assert f"{rung['ms_median']:,.1f}" in lines[number]
        assert lines[number].count("same, to ") == 1
    assert " 1.00x " in lines["0"]
    assert "attention from rung 0: naive\nattention from rung 4: " in said


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


def test_the_picture_is_drawn(small_ladder):
    pytest.importorskip("matplotlib")
    assert small_ladder[2].read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_the_whole_command_measures_the_machine_makes_tokens_and_climbs(tmp_path):
    words = [*TINY, "--rungs", "0,4", "--steps", "3", "--warmup", "2", "--no-use_gpu", "--precision", "bf16"]
    done = subprocess.run([sys.executable, ROOT / "bench.py", *words, "--json", tmp_path / "found.json"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same, to ") == 2
    assert [rung["status"] for rung in json.loads((tmp_path / "found.json").read_text())["rungs"]] == ["done"] * 2


# ---------------------------------------------------------------- when something is wrong


def test_a_failed_rung_says_why_and_the_others_go_on(tmp_path):
    def answer(words):
        if words[1] != "naive":
            return Ended(-9, "", "warning: this is why")
        if "--use_amp" in flags_of(words):
            return leave_a_run(words, complaint="warning: a\nerror: out of luck. Try again.\nlater", code=5)
        if "--preload auto" in " ".join(flags_of(words)):
            return leave_a_run(words, complaint="warning: torch.compile failed, running eagerly: x")
        return leave_a_run(words)

    out = io.StringIO()
    assert bench.time_ladder(ALL_RUNGS, make_bench(out, Imagined(tmp_path, answer))) == bench.SLOW_EXIT
    said = {line.split()[0]: line for line in out.getvalue().splitlines() if line.startswith("   ")}
    assert "same, to 0.0e+00" in said["0"]
    assert said["1"].endswith("failed: torch.compile failed, running eagerly: x")
    assert said["3"].endswith("failed: out of luck. Try again.")
    assert said["8"].endswith("failed: killed by signal 9")
    kept = json.loads((tmp_path / "found.json").read_text())
    assert [rung["status"] for rung in kept["rungs"]][:3] == ["done", "failed", "skipped"]


def test_at_80_columns_the_table_has_fewer_columns_and_still_says_where_losses_differ(tmp_path, monkeypatch):
    def answer(words):
        return leave_a_run(words, lose=0.5 if "--use_amp" in flags_of(words) else 0.0)

    with terminal(80, monkeypatch) as opened:
        assert bench.time_ladder(ALL_RUNGS, make_bench(opened.stream, Imagined(tmp_path, answer))) == bench.SLOW_EXIT
        lines = opened.close().splitlines()
    assert lines[0].split() == ["rung", "name", "ms", "tok/s", "memory", "speed-up"]
    table = lines[1:next(number for number, line in enumerate(lines) if line.startswith("attention"))]
    assert all(len(line) <= 78 for line in table if "skipped" not in line and "DIFFER" not in line)
    assert any(line.endswith("x") for line in table)
    assert any(line.endswith("losses DIFFER") for line in table)


def test_a_rung_that_computes_something_else_is_found_out(tmp_path):
    def compiled_loses(share):
        return Imagined(tmp_path, lambda words: leave_a_run(words, lose=share * ("--compile" in flags_of(words))))

    out = io.StringIO()
    assert bench.time_ladder(ALL_RUNGS, make_bench(out, compiled_loses(0.015))) == bench.SLOW_EXIT
    kept = json.loads((tmp_path / "found.json").read_text())
    assert [rung["rung"] for rung in kept["rungs"] if rung.get("loss_ok") is False] == [5, 6, 7, 8]
    assert "DIFFERENT, to 1.5e-02" in out.getvalue()  # within bf16's reach of fp32, but not of the other bf16 rungs
    assert bench.time_ladder(ALL_RUNGS, make_bench(out, compiled_loses(0.005))) == 0


def test_a_peer_is_timed_in_turns_with_our_best_rung_and_compared(tmp_path):
    def answer(words):
        if words[1] != "peer":
            return leave_a_run(words)
        request = json.loads(words[2])
        assert (request["every"], request["precision"], request["num_steps"]) == (1, "bf16", 3)
        return Ended(0, json.dumps({"seconds": [9.0, 1.0, 1.0], "losses": losses, "notes": "theirs",
                                    "compile_seconds": 9.0, "peak_memory_bytes": 2_000_000}), "")

    args = Namespace(**vars(ALL_RUNGS), peer="transformers", peer_dir=None, peer_turns=2)
    losses, out = [4.0, 3.0, 2.0], io.StringIO()
    assert bench.time_peer(args, make_bench(out, Imagined(tmp_path, answer))) == Exit.DONE
    assert out.getvalue().endswith("2.000x the speed of transformers, 0.500x its memory; losses differ by 0e+00 at "
                                   "most; medians of 2 turns\n")
    kept = json.loads((tmp_path / "found.json").read_text())
    assert [len(kept["turns"][name]) for name in ("ours", "transformers")] == [2, 2]
    assert kept["medians"]["transformers"] == {"ms_median": 1000.0, "peak_memory_bytes": 2_000_000}
    losses = [4.0, 3.0, 2.1]
    assert bench.time_peer(args, make_bench(out, Imagined(tmp_path, answer))) == bench.SLOW_EXIT
    only_impossible = Namespace(**{**vars(args), "rungs": (2,)})
    with pytest.raises(UserError, match="--rungs: none of these"):
        bench.time_peer(only_impossible, make_bench(out, Imagined(tmp_path, answer)))


def test_the_fp8_head_is_not_timed_beside_a_peer_unless_it_is_asked_for():
    on_gpu = replace(SETTING, machine=replace(CPU, device="cuda", why_no_fp8=""))
    assert bench.best_rung(ALL_RUNGS, on_gpu).number == 9
    assert bench.best_rung(Namespace(**{**vars(ALL_RUNGS), "rungs": (9, 10)}), on_gpu).number == 10


def test_the_process_that_starts_the_others_never_imports_torch():
    assert run_python("import sys, bench; print('torch' in sys.modules)").stdout == "False\n"


@pytest.mark.parametrize(("flags", "said"), [
    (["--rungs", "0,12"], "--rungs '0,12': must be numbers from 0 to 11"),
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
    found, missing = importlib.util.find_spec, ("matplotlib", "transformers")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else found(name))
    for flags, said in ((["--png", "x.png"], "--png: matplotlib is not installed. Run: python"),
                        (["--peer", "transformers"], "--peer: transformers is not installed. Run: python"),
                        (["--peer", "nanogpt", "--peer_dir", str(tmp_path)], "has no model.py. Give nanoGPT's folder")):
        with pytest.raises(UserError) as caught:
            bench.main(flags)
        assert caught.value.code == Exit.MACHINE
        assert said in str(caught.value)


def test_a_folder_without_tokens_is_named(tmp_path):
    with pytest.raises(UserError, match=r"metadata\.json: No such file") as caught:
        bench.main(["--data_dir", str(tmp_path)])
    assert caught.value.code == Exit.DATA


@pytest.mark.parametrize(("content", "why"), [
    ("[" * 200_000, "is not JSON"), ('{"vocab_size": 1e999}', "vocab_size is inf, not a whole number"),
    ('{"vocab_size": true}', "vocab_size is True"),
    ("{}", "does not record its vocab_size"), ("[1]", "no JSON object")])
def test_a_folder_whose_metadata_is_wrong_ends_the_command_with_3(tmp_path, content, why):
    (tmp_path / "metadata.json").write_text(content)
    with pytest.raises(UserError, match=why) as caught:
        bench.main(["--data_dir", str(tmp_path)])
    assert caught.value.code == Exit.DATA


def test_tokens_that_cannot_be_trained_on_end_the_command_with_3_before_anything_is_timed(tmp_path):
    def answer(words):
        asked.append(words[1])
        return Ended(3, "", "error: token file x.bin: id -1 at position 0. Run pretokenize.py again.")

    args = Namespace(data_dir="x", loader=False, use_gpu=None, precision=None, steps=None, warmup=None)
    asked, children, out = [], Imagined(tmp_path, answer), Progress(io.StringIO())
    with pytest.raises(UserError, match=r"^token file x\.bin: id -1 at position 0") as caught:
        bench.measure_machine(args, Shape("tiny", 256, 32, 4), out, children)
    assert (caught.value.code, asked) == (Exit.DATA, ["corpus"])


def test_tokens_that_are_damaged_while_the_ladder_is_climbed_end_it_with_3(tmp_path):
    children = Imagined(tmp_path, lambda words: leave_a_run(words, complaint="error: token file x.bin", code=3))
    with pytest.raises(UserError, match=r"^token file x\.bin$") as caught:
        bench.time_ladder(ALL_RUNGS, make_bench(io.StringIO(), children))
    assert caught.value.code == Exit.DATA


def test_nothing_is_called_the_same_where_no_rung_was_run(tmp_path):
    out = io.StringIO()
    children = Imagined(tmp_path, lambda words: Ended(5, "", "error: no room"))
    assert bench.time_ladder(ALL_RUNGS, make_bench(out, children)) == bench.SLOW_EXIT
    assert "failed: no room" in out.getvalue()
    assert "the same" not in out.getvalue()
