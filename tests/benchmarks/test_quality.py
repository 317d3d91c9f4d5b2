"""The quality ladder: what is there is not repeated, what is not is trained, what others work on is left to them."""

import importlib.util
import io
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import bench
from benchmarks.answers import Material
from benchmarks.ladder import Shape
from benchmarks.processes import Ended
from benchmarks.quality import compare_recipes
from benchmarks.quality_runs import RunWatch, steps_of
from checkpoint.folder import owned
from common.errors import Exit, UserError
from common.outputs import Output
from common.progress import Progress
from tests.helpers.bench import Imagined
from tests.helpers.terminals import terminal
from tests.helpers.token_files import write_raw

MATERIAL = Material("a CPU, 1 thread", "torch", False, 4, 128, 1_000_000, 786_432, 40_000_000, "a" * 64, 300_000,
                    600_000)
SHAPE = Shape("tiny", 2048, 128, 16)
FINALS = {"nanogpt": 5.0, "before": 4.5, "ours": 4.0}  # of the first seed; the second one ends 0.1 higher
MS = {"nanogpt": 100, "before": 100, "ours": 120}


class Trainer:
    """Children that train as train.py would: every run falls from 8 to its recipe's end in a straight line."""

    def __init__(self, folder: Path, **endings: Ended):
        self.folder = folder
        self.children = Imagined(folder / "children", self.answer)
        self.endings = endings  # instead of a run, by the name of its folder
        self.started: list[str] = []
        self.material = MATERIAL

    def answer(self, words):
        if words[1] == "material":
            return Ended(0, json.dumps(asdict(self.material)), "")
        flags = dict(zip(words[1::1], [*words[2:], ""], strict=True))
        output = Path(flags["--output_dir"])
        name = output.name
        is_timing = name.startswith("timing-")
        self.started.append(name)
        if name in self.endings:
            return self.endings[name]
        output.mkdir(parents=True, exist_ok=True)
        if is_timing:
            rows = [{"step": step, "loss": 8.0, "seconds": MS[name[7:]] / 1000} for step in range(1, 17)]
        else:
            assert flags["--resume_from"] == "auto"
            recipe, seed = name.rsplit("-", 1)
            assert flags["--seed"] == seed
            final = FINALS.get(recipe, 3.0) + 0.1 * (int(seed) - 1337)
            steps, every = int(flags["--max_steps"]), int(flags["--eval_interval"])
            rows = [{"step": step, "val_loss": 8 - (8 - final) * step / steps}
                    for step in range(every, steps + 1, every)]
        (output / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Ended(0, "", "")

    def compare(self, *flags: str, stream=None) -> tuple[int, str]:
        """The exit code and what was said; the figures are in found.json."""
        args = bench.read_flags(["--quality", "--data_dir", "data", "--quality_dir", str(self.folder / "runs"), *flags])
        stream = stream or io.StringIO()
        code = compare_recipes(args, SHAPE, self.children, Progress(stream), Output("--json", str(self.json)), None)
        return code, stream.getvalue() if isinstance(stream, io.StringIO) else ""

    @property
    def json(self) -> Path:
        return self.folder / "found.json"


@pytest.fixture
def trainer(tmp_path):
    return Trainer(tmp_path)


THREE = ("--recipes", "nanogpt,before,ours")
RUNS = [f"{name}-{seed}" for seed in (1337, 1338) for name in FINALS]
TIMINGS = [f"timing-{name}" for name in FINALS]


# ---------------------------------------------------------------- the runs


def test_every_recipe_is_run_with_every_seed_and_timed_in_turns(trainer):
    code, said = trainer.compare(*THREE, "--timing_turns", "2")
    assert code == Exit.DONE
    assert trainer.started == [*RUNS, *TIMINGS, *TIMINGS]
    assert "nanogpt, seed 1337: 5.0000 after 19,988,480 tokens" in said
    found = json.loads(trainer.json.read_text())
    ours = found["recipes"]["ours"]
    assert ours["final_loss"] == pytest.approx(4.05)
    assert ours["spread"] == pytest.approx(0.1)
    assert ours["seconds_per_step"] == pytest.approx(0.12)
    assert ours["share_of_tokens_to"]["nanogpt"] == pytest.approx(2.95 / 3.95)
    assert ours["share_of_seconds_to"]["nanogpt"] == pytest.approx(1.2 * 2.95 / 3.95)
    assert found["recipes"]["nanogpt"]["share_of_tokens_to"]["ours"] is None
    assert found["equal_seconds"] == pytest.approx(9760 * 0.1)
    assert [run["seed"] for run in ours["runs"]] == [1337, 1338]
    assert len(ours["runs"][0]["val_losses"]) == 20
    assert found["contest"]["tokens_per_run"] == 19_988_480


def test_the_tables_fit_80_columns(trainer, monkeypatch):
    with terminal(80, monkeypatch) as opened:
        trainer.compare(*THREE, stream=opened.stream)
        lines = opened.close().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("nats, mean"))
    assert lines[first + 1].split() == ["nanogpt", "7.2625", "6.5250", "5.7875", "5.0500", "0.1000", "100.0", "1.00x",
                                        "5.0500"]
    assert lines[first + 3].split() == ["ours", "7.0125", "6.0250", "5.0375", "4.0500", "0.1000", "120.0", "1.20x",
                                        "4.7083"]
    second = next(number for number, line in enumerate(lines) if line.startswith("tokens to the final loss"))
    assert lines[second + 1].split() == ["nanogpt", "before", "ours"]
    assert lines[second + 4].split() == ["ours", "74.7%", "87.3%", "-"]
    assert lines[second + 2].split() == ["nanogpt", "-", "never", "never"]
    assert max(len(line) for line in lines if "/" not in line) <= 80  # a path is as long as it is


def test_what_is_complete_is_not_repeated_and_a_new_seed_is_added(trainer):
    trainer.compare(*THREE)
    trainer.started.clear()
    said = trainer.compare(*THREE, "--seeds", "3")[1]
    assert trainer.started == [f"{name}-1339" for name in FINALS]
    assert "ours, seed 1338: 4.1000, complete before" in said
    trainer.started.clear()
    trainer.compare(*THREE, "--seeds", "3", "--timing_turns", "4")
    assert trainer.started == TIMINGS  # the turn that is missing


def test_a_run_that_was_interrupted_is_resumed(trainer):
    half = trainer.folder / "runs" / "ours-1337"
    half.mkdir(parents=True)
    (half / "metrics.jsonl").write_text('{"step": 490, "val_loss": 7.0}\n')
    assert trainer.compare("--recipes", "ours", "--seeds", "1")[0] == Exit.DONE
    assert "ours-1337" in trainer.started


def test_what_another_command_works_on_is_left_to_it_and_nothing_is_timed_beside_it(trainer):
    trainer.endings["before-1338"] = Ended(Exit.BUSY, "", "error: in use")
    code, said = trainer.compare(*THREE)
    assert code == Exit.DONE
    assert not {*TIMINGS} & {*trainer.started}
    assert "before, seed 1338: under way elsewhere" in said
    assert json.loads(trainer.json.read_text())["recipes"]["before"]["final_loss"] == 4.5
    trainer.endings.clear()
    trainer.started.clear()
    assert trainer.compare(*THREE)[0] == Exit.DONE
    assert trainer.started == ["before-1338", *TIMINGS, *TIMINGS, *TIMINGS]


def test_nothing_is_timed_while_another_command_trains_by_other_recipes(trainer):
    other = trainer.folder / "runs" / "hot-1337"
    other.mkdir(parents=True)
    with owned(other):
        said = trainer.compare(*THREE)[1]
    assert "steps are not timed now" in said
    assert trainer.started == RUNS
    trainer.compare(*THREE, "--timing_turns", "1")
    assert trainer.started[6:] == TIMINGS


def test_a_run_that_fails_says_why_and_the_others_are_reported(trainer, capsys):
    trainer.endings["nanogpt-1337"] = Ended(Exit.DIVERGED, "", "error: loss not finite. Halve it.")
    code, said = trainer.compare(*THREE, "--timing_turns", "1")
    assert code == 1
    assert "nanogpt, seed 1337: failed: loss not finite. Halve it." in said
    assert trainer.started[6:] == TIMINGS[1:]
    assert "5 of 6 runs are complete; 1 run failed" in capsys.readouterr().err
    trainer.endings["nanogpt-1337"] = Ended(Exit.DATA, "", "error: token file x.bin")
    with pytest.raises(UserError, match=r"^token file x\.bin$") as caught:
        trainer.compare(*THREE)
    assert caught.value.code == Exit.DATA


def test_runs_of_another_ladder_or_of_other_flags_are_not_mixed(trainer):
    trainer.compare("--recipes", "ours", "--own_recipes", "hot: ours --learning_rate 1", "--timing_turns", "0")
    for flags, why in ((("--tokens", "1M"), "of steps 9760, not 480"),
                       (("--tune",), "of validation reporting, not tuning"),
                       (("--train_flags=--compile",), r"of train_flags \[\], not \['--compile'\]")):
        with pytest.raises(UserError, match=why) as caught:
            trainer.compare(*flags)
        assert caught.value.code == Exit.FLAGS
    with pytest.raises(UserError, match=r"hot-1337 holds a run with other flags .* --learning_rate 1\."):
        trainer.compare("--recipes", "ours", "--own_recipes", "hot: ours --learning_rate 2")


def test_times_that_differ_from_turn_to_turn_are_told(trainer, capsys, monkeypatch):
    trainer.compare(*THREE, "--timing_turns", "1")
    assert "turn" not in capsys.readouterr().err
    monkeypatch.setitem(MS, "before", 130)
    trainer.compare(*THREE, "--timing_turns", "2")
    assert "a step of before took 100.0 ms in one turn and 130.0 ms in another" in capsys.readouterr().err
    assert json.loads(trainer.json.read_text())["recipes"]["before"]["seconds_per_step"] == pytest.approx(0.115)


def test_seeds_that_were_trained_with_other_defaults_are_told(trainer, capsys):
    trainer.compare("--recipes", "ours", "--timing_turns", "0")
    for seed, rate in ((1337, 0.001), (1338, 0.002)):
        config = trainer.folder / f"runs/ours-{seed}/config.toml"
        config.write_text(f"seed = {seed}\n[decided]\nlearning_rate = {rate}")
    trainer.compare("--recipes", "ours", "--timing_turns", "0")
    assert "ours: its seeds were trained with different defaults of learning_rate." in capsys.readouterr().err
    runs = json.loads(trainer.json.read_text())["recipes"]["ours"]["runs"]
    assert [run["defaults"]["learning_rate"] for run in runs] == [0.001, 0.002]


def test_steps_are_those_of_the_tokens_in_twentieths():
    assert steps_of(None, 1_000_000, 2048) == 9760
    assert steps_of(1000, 1_000_000, 2048) == 20


def test_the_heartbeat_says_how_far_a_run_is(tmp_path):
    out, path = Progress(io.StringIO()), tmp_path / "metrics.jsonl"
    watch = RunWatch(path, "ours, seed 1", 100, out)
    watch.look()
    path.write_text('{"step": 7, "loss": 3.0, "tokens": 70, "seconds": 2.0}\n{"st')
    watch.look()
    assert out.doing == "ours, seed 1, step 7 of 100"
    assert watch.seconds == 14


@pytest.mark.parametrize(("flags", "said"), [
    (["--quality"], "--quality: needs --data_dir"),
    (["--quality", "--data_dir", "x", "--loader"], "--quality: not with --peer, --loader or --saving"),
    (["--seeds", "3"], "--seeds: has no effect without --quality"), (["--tune"], "--tune: has no effect"),
    (["--quality", "--data_dir", "x", "--recipes", "ours,,"], "--recipes 'ours,,': must be names")])
def test_impossible_flags_are_refused(flags, said):
    with pytest.raises(UserError) as caught:
        bench.read_flags(flags)
    assert caught.value.code == Exit.FLAGS
    assert said in str(caught.value)


def test_a_recipe_that_is_not_there_is_named(trainer):
    with pytest.raises(UserError, match=r"--recipes theirs: no such recipe\. Give some of nanogpt, before, ours"):
        trainer.compare("--recipes", "theirs")


# ---------------------------------------------------------------- for real


@pytest.mark.slow
def test_the_whole_ladder_trains_times_and_draws(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rng = np.random.default_rng(0)
    for name, length in (("train", 20_000), ("val", 1000)):
        write_raw(tmp_path / f"{name}.bin", np.repeat(rng.integers(0, 64, length // 4), 4), "int16")
    fields = {"format": "gpt-tokens", "version": 1, "vocab_size": 64, "dtype": "int16",
              "splits": {"train": {"tokens": 20_000}, "val": {"tokens": 1000}}}
    (tmp_path / "metadata.json").write_text(json.dumps(fields))
    flags = ["--quality", "--data_dir", str(tmp_path), "--quality_dir", str(tmp_path / "runs"), "--model_size", "tiny",
             "--seq_length", "16", "--batch_size", "4", "--tokens", "2000", "--recipes", "nanogpt,ours", "--seeds", "1",
             "--timing_turns", "1", "--no-use_gpu", "--json", str(tmp_path / "found.json"), "--steps", "3"]
    if importlib.util.find_spec("matplotlib"):
        flags += ["--png", str(tmp_path / "found.png")]
    assert bench.main(flags) == Exit.DONE
    found = json.loads((tmp_path / "found.json").read_text())["recipes"]
    for recipe in found.values():
        assert len(recipe["runs"][0]["val_losses"]) >= 20
        assert recipe["final_loss"] < 4.2  # guessing is 4.16
        assert recipe["seconds_per_step"] > 0
    assert found["ours"]["runs"][0]["defaults"]["learning_rate"] > 0
    if "--png" in flags:
        assert (tmp_path / "found.png").read_bytes()[:4] == b"\x89PNG"
