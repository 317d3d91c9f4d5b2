"""Several processes that are timed: who trains, how they are started, what the figures are, what is said of them."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import bench
from benchmarks import report, scaling_report
from benchmarks.answers import SharingTimes
from benchmarks.ladder import Setting, Shape
from benchmarks.processes import Ended, Launch
from benchmarks.scaling import chosen_processes, compare_processes
from benchmarks.scaling_runs import ALONE, COMPARED_STEPS, Measured, Runs, Team, figures_of, teams_of, unsteady
from common.errors import Exit, UserError
from common.outputs import Output
from common.progress import Progress
from tests.helpers.bench import CPU, GPU, SETTING, Imagined
from tests.helpers.commands import run
from tests.helpers.poison import marks, poison
from tests.helpers.terminals import terminal

CORES = replace(SETTING, machine=replace(CPU, num_threads=2))
GPUS = replace(SETTING, machine=replace(GPU, num_gpus=8))
SECONDS = {"alone": 1.0, "torchrun": 1.01, "ddp": 2.5, "fsdp": 4.0}
TINY = ["--model_size", "tiny", "--vocab_size", "300", "--seq_length", "16", "--batch_size", "2"]


def times(seconds, silent=()):
    """One turn of a team; silent seconds are those without the exchange."""
    several = bool(silent)
    return SharingTimes([seconds], list(silent), 1e-3 * several or None, 2e-3 * several or None,
                        [1_000_000, 2_000_000] if several else [1_000_000])


class Teams:
    """Children that answer as teams would: SECONDS of a step, a fifth of which is gone without the exchange."""

    def __init__(self, folder: Path, setting: Setting = CORES):
        self.folder, self.setting = folder, setting
        self.children = Imagined(folder, self.answer)
        self.timed: list[str] = []
        self.wrong_loss_of = self.failing = ""

    def answer(self, words):
        flags = json.loads(words[2])["flags"] if words[1] == "sharing" else list(words[1:])
        way = flags[flags.index("--model_parallel") + 1] if "--model_parallel" in flags else "alone"
        if words[1] == "sharing":
            self.timed.append(way)
            if way == self.failing:
                return Ended(1, "", "error: out of luck. Try again.\nTraceback\n=====\n")
            seconds = SECONDS[way]
            return Ended(0, json.dumps(vars(times(seconds, [0.8 * seconds] if way != "alone" else []))), "")
        assert flags[flags.index("--gradient_accumulation_steps") + 1] == "2"  # the same samples for all
        output = Path(flags[len(flags) - 1 - flags[::-1].index("--output_dir") + 1])
        output.mkdir()
        loss = 5.0 + 1e-3 * (way == self.wrong_loss_of)
        rows = [json.dumps({"step": step, "loss": loss}) for step in range(1, COMPARED_STEPS + 1)]
        (output / "metrics.jsonl").write_text("\n".join(rows))
        return Ended(0, "", "")

    def compare(self, *flags, stream=None):
        """The exit code and what was said; the figures are in found.json."""
        args, stream = bench.read_flags(["--scaling", *flags]), stream or io.StringIO()
        record = report.Record(Output("--json", str(self.folder / "found.json"), is_rewritten=True), self.setting)
        code = compare_processes(args, self.setting, self.children, Progress(stream), record, None)
        return code, stream.getvalue() if isinstance(stream, io.StringIO) else ""


# ---------------------------------------------------------------- who trains, and how they are started


@pytest.mark.parametrize(("machine", "requested", "chosen"), [
    (CPU, None, (1, 2)), (replace(GPU, num_gpus=1), None, (1,)), (replace(GPU, num_gpus=8), None, (1, 2, 4, 8)),
    (replace(GPU, num_gpus=3), None, (1, 2)), (replace(GPU, num_gpus=3), (3,), (1, 3)), (CPU, (2, 4), (1, 2, 4))])
def test_one_process_and_powers_of_two_up_to_the_number_of_gpus(machine, requested, chosen):
    assert chosen_processes(requested, machine) == chosen


def test_more_processes_than_gpus_are_refused():
    with pytest.raises(UserError, match="--processes 4: each process takes a GPU, and this machine has 2") as caught:
        chosen_processes((1, 4), replace(GPU, num_gpus=2))
    assert caught.value.code == Exit.MACHINE


def test_on_a_cpu_the_processes_share_its_threads_and_on_gpus_nothing_is_set():
    four = replace(CPU, num_threads=4)
    threads = [team.launch(four).environment["OMP_NUM_THREADS"] for team in teams_of((1, 2, 8), ("ddp",))]
    assert threads == ["4", "4", "2", "1"]
    assert Team(ALONE).launch(GPU) == Launch(0, {})
    assert [team.launch(GPU) for team in teams_of((1, 2), ("fsdp",))[1:]] == [Launch(1, {}), Launch(2, {})]


# ---------------------------------------------------------------- figures


def test_a_figure_is_the_median_of_the_turns_and_a_ratio_that_of_one_turn():
    alone = Measured(Team(ALONE), [times(1.0), times(2.0), times(4.0)])
    both = Measured(Team("ddp", 2), [times(2.5, [2.0]), times(5.0, [4.5]), times(10.0, [8.0])])
    on_cores, on_gpus = (figures_of(both, alone, setting) for setting in (CORES, GPUS))
    assert on_cores
    assert on_gpus
    assert (on_cores.seconds, on_cores.peak_memory_bytes) == (5.0, 2_000_000)
    assert on_cores.tokens_per_second == pytest.approx(2 * CORES.shape.tokens_per_step / 5.0)
    assert on_cores.efficiency == pytest.approx(0.8)  # of the same cores
    assert on_gpus.efficiency == pytest.approx(0.4)  # of each GPU
    assert on_cores.exposed == pytest.approx(0.2)
    assert (on_cores.message, on_cores.agreement) == (1e-3, 2e-3)
    assert figures_of(Measured(Team("fsdp", 2)), alone, CORES) is None


def test_times_that_differ_from_turn_to_turn_are_no_measure():
    steady = Measured(Team(ALONE), [times(1.0), times(1.02)])
    assert unsteady([steady, Measured(Team("fsdp", 2))]) == ""
    said = unsteady([steady, Measured(Team("ddp", 2), [times(1.0), times(2.0)]), Measured(Team("fsdp", 2))])
    assert said.startswith("a step of ddp x 2 took 1,000.0 ms in one turn and 2,000.0 ms in another: other work")


# ---------------------------------------------------------------- the whole comparison


def test_the_teams_take_turns_and_are_compared_with_one_process(tmp_path):
    teams = Teams(tmp_path)
    code, said = teams.compare("--timing_turns", "2")
    assert code == Exit.DONE, said
    in_order = ["alone", "alone", "ddp", "fsdp"]
    assert teams.timed == [*in_order, *reversed(in_order)]
    assert [launch.num_processes for launch in teams.children.launches] == [0, 2, 2, 0, 1, 2, 2, 2, 2, 1, 0]
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line.startswith(("alone", "ddp", "fsdp"))}
    assert rows["alone"][1:5] == ["1", "1,000.0", "2,048", "100.0%"]
    assert rows["ddp"][1:6] == ["2", "2,500.0", "1,638", "80.0%", "20.0%"]
    assert rows["fsdp"][-3:] == ["same,", "to", "0e+00"]
    assert "agreement   ddp x 2: the sum of five numbers takes 1.000 ms, 0.04% of a step;" in said
    kept = json.loads((tmp_path / "found.json").read_text())["scaling"]
    assert [(row["team"]["way"], len(row["turns"])) for row in kept] == [
        ("alone", 2), ("torchrun", 2), ("ddp", 2), ("fsdp", 2)]


def test_one_process_alone_is_compared_with_itself_under_torchrun(tmp_path):
    teams = Teams(tmp_path)
    code, said = teams.compare("--processes", "1", "--timing_turns", "1")
    assert code == Exit.DONE
    assert [launch.num_processes for launch in teams.children.launches] == [0, 1]  # there are no losses to compare
    assert "torchrun    a step of one process takes 1.000x as long under torchrun as without" in said


def test_other_losses_than_one_process_has_are_found_out(tmp_path):
    teams = Teams(tmp_path)
    teams.wrong_loss_of = "fsdp"
    code, said = teams.compare("--timing_turns", "1")
    assert code == 1
    assert "DIFFERENT, to 2e-04" in said
    assert "same, to 0e+00" in said


def test_what_fails_says_why_and_is_not_timed_again(tmp_path):
    teams = Teams(tmp_path)
    teams.failing = "ddp"
    code, said = teams.compare("--timing_turns", "2")
    assert code == 1
    assert teams.timed.count("ddp") == 1
    assert "ddp               2  failed: sharing failed: out of luck. Try again.\n" in said


def test_in_80_columns_the_table_has_a_figure_less(tmp_path, monkeypatch):
    with terminal(80, monkeypatch) as opened:
        Teams(tmp_path).compare("--timing_turns", "1", stream=opened.stream)
        lines = opened.close().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("way"))
    assert lines[first].split() == ["way", "processes", "tok/s", "efficiency", "exposed", "memory", "losses"]
    assert lines[first + 3].split()[:5] == ["ddp", "2", "1,638", "80.0%", "20.0%"]
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(("machine", "numbers", "said"), [
    (replace(CPU, num_threads=2), (1, 2), "1 and 2 processes on the 2 cores of one machine, by gloo, .*not what"),
    (replace(CPU, num_threads=2), (1, 2, 4), "; 4 take turns on them: this shows that each way works"),
    (replace(GPU, num_gpus=1), (1,), "one process, .* where there are several GPUs, and"),
    (CPU, (1,), "^one process, by itself and under torchrun$"),
    (replace(GPU, num_gpus=4), (1, 2, 4), "^1, 2 and 4 processes on one machine, each with a GPU of its own, by NCCL"),
])
def test_it_says_what_the_figures_of_this_machine_mean(machine, numbers, said):
    assert re.search(said, scaling_report.what_is_measured(machine, numbers))


def test_the_picture_is_drawn():
    pytest.importorskip("matplotlib")
    alone = Measured(Team(ALONE), [times(1.0)])
    all_measured = [alone, Measured(Team("ddp", 2), [times(2.5, [2.0])]), Measured(Team("fsdp", 2), problem="no luck")]
    found = {measured.team: figures_of(measured, alone, CORES) for measured in all_measured}
    assert scaling_report.scaling_picture(found, CORES, "two cores", "png")[:4] == b"\x89PNG"


@pytest.mark.parametrize(("flags", "said"), [
    (["--scaling", "--processes", "0,2"], "--processes '0,2': must be numbers from 1 to 1,024 with commas between"),
    (["--scaling", "--ways", "ddp,tensor"], "--ways 'ddp,tensor': must be some of ddp, fsdp with commas between"),
    (["--processes", "1,2"], "--processes: has no effect without --scaling"),
    (["--train_flags=--compile"], "--train_flags: has no effect without --quality or --scaling"),
    (["--scaling", "--timing_turns", "0"], "--timing_turns 0: --scaling has nothing else"),
    (["--scaling", "--loader"], "--scaling: not with --peer, --loader, --saving or --quality")])
def test_impossible_flags_are_refused(flags, said):
    with pytest.raises(UserError) as caught:
        bench.main(flags)
    assert caught.value.code == Exit.FLAGS
    assert said in str(caught.value)


# ---------------------------------------------------------------- for real


@pytest.mark.slow
def test_without_the_exchange_each_process_goes_its_own_way_and_with_it_none(forks, make_corpus, tmp_path):
    corpus = make_corpus(tmp_path / "corpus")
    done = forks.run(["tests.helpers.silence", "--data_dir", str(corpus), "--no-use_gpu", "--n_layer", "1", "--n_head",
                      "2", "--n_embd", "32", "--seq_length", "8", "--batch_size", "2", "--max_steps", "2",
                      "--gradient_accumulation_steps", "2", "--learning_rate", "1e-3"], world_size=2, alarm=100)
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    for way in ("ddp", "fsdp"):
        assert found[f"{way} shared"] < 1e-7
        assert found[f"{way} again"] < 1e-7
        assert found[f"{way} silent"] > 1e-5


@pytest.mark.slow
def test_two_processes_time_a_step_and_one_of_them_answers(forks, make_corpus, tmp_path):
    def together(words):
        done = forks.run(["bench.py", *words[1:]], world_size=2, alarm=100)
        return Ended(done.code, done.stdout, done.stderr)

    folder, shape, children = make_corpus(tmp_path / "corpus"), Shape("tiny", 400, 8, 2), Imagined(tmp_path, together)
    measured = Measured(Team("fsdp", 2))
    Runs(replace(CORES, shape=shape, data_dir=str(folder)), [], 2, children).time(measured)
    assert not measured.problem
    turn, = measured.turns
    assert (len(turn.seconds), len(turn.silent_seconds), len(turn.peak_memory_bytes)) == (2, 2, 2)
    assert turn.message_seconds
    assert turn.agreement_seconds


@pytest.mark.slow
def test_the_whole_command_starts_processes_by_torchrun_and_finds_the_same_losses(tmp_path):
    done = run("bench", "--scaling", *TINY, "--steps", "2", "--warmup", "1", "--timing_turns", "1", "--no-use_gpu",
               "--json", "found.json", cwd=poison(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert marks(tmp_path) == []
    assert done.stdout.count("same, to ") == 2
    kept = json.loads((tmp_path / "found.json").read_text())["scaling"]
    assert [row["is_good"] for row in kept] == [True] * 4
