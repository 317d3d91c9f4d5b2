"""Several processes train one model as one process does: the same losses, one voice, one folder.

They speak by gloo. Most are forks, which start in a tenth of a second (tests/helpers/forks.py), some torchrun's own.
Kills, signals, damages and failing disks befall several processes in test_faults.py.
"""

import dataclasses
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gpt.checkpoint.load import load_model
from gpt.checkpoint.steps import steps_in
from gpt.common.errors import Exit
from tests.helpers.commands import ROOT
from tests.helpers.forks import Raised
from tests.helpers.training import metrics_of
from tests.helpers.trial import MEASURED, STEP, Trial, tensors

SMALL = ["--no-use_gpu", "--n_layer", "2", "--n_head", "2", "--n_embd", "32", "--seq_length", "8", "--batch_size", "2",
         "--gradient_accumulation_steps", "4", "--max_steps", "12", "--eval_interval", "5", "--log_interval", "1",
         "--sample_interval", "0", "--checkpoint_every_minutes", "0"]
EXACT = 1e-5  # of losses and norms in fp32, whose sums have another order
TEAMS = {"ddp": (2, 1), "fsdp": (2, 1), "hsdp": (4, 2)}  # processes, and machines that they are said to be on
PRECISIONS = {  # flags, and how far losses and norms may be from those of one process in the same precision
    "fp32": ([], EXACT),
    "bf16": (["--use_amp", "--amp_dtype", "bf16"], 1e-2),  # fsdp gathers weights in bf16, autocast rounds elsewhere
    "fp16": (["--use_amp", "--amp_dtype", "fp16"], 5e-3),
}
MODELS = ["--dropout 0.1", "--compile", "--activation_checkpointing", "--no-tie_weights",
          "--arch qwen3", "--arch llama", "--compile --teacher TEACHER"]


@pytest.fixture
def train(forks, make_corpus, tmp_path):
    """A function: runs train.py in so many processes on a small corpus, which end with this exit code (None: any)."""
    corpus = make_corpus(tmp_path / "corpus")

    def run(world_size: int, *flags: str, out: str = "out", code: int | None = 0, **more):
        argv = ["train.py", "--data_dir", str(corpus), "--output_dir", str(tmp_path / out), *SMALL, *flags]
        done = forks.run(argv, world_size=world_size, **{"alarm": 120, **more})
        assert code in (None, done.code), done.stderr
        return done

    run.folder, run.corpus = tmp_path, corpus  # type: ignore[attr-defined]
    return run


def figures(folder: Path) -> list[float]:
    """Loss and norm of each step, and each validation."""
    return [row[key] for row in metrics_of(folder) for key in ("loss", "grad_norm", "val_loss") if key in row]


def test_losses_do_not_depend_on_the_number_of_processes(train):
    for out, world_size, strategy in (("alone", 1, "ddp"), ("ddp", 2, "ddp"), ("fsdp", 2, "fsdp")):
        train(world_size, "--optimizer", "adamw", "--dropout", "0.1", "--input_noise", "0.2", "--model_parallel",
              strategy, out=out)
    alone = figures(train.folder / "alone")
    assert len(alone) == 27
    for out in ("ddp", "fsdp"):
        assert figures(train.folder / out) == pytest.approx(alone, rel=EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", [*(f"--optimizer adamw {flags}" for flags in MODELS), "--optimizer muon",
                                  "--optimizer muon --compile", "--optimizer adamw8bit"])
def test_forty_losses_are_those_of_one_process_and_the_same_again(train, name, precision):
    """Muon multiplies in bf16, where another order of sums counts; a rounding may give a code of 8 bits its neighbour.
    """
    flags, tolerance = PRECISIONS[precision]
    tolerance = max(tolerance, 1e-5 if "adamw " in name else 2e-3)
    flags = [*name.split(), *flags, "--max_steps", "40", "--epochs", "9", "--eval_interval", "20"]
    if "TEACHER" in flags:
        train(1, "--n_embd", "16", out="teacher")
        flags[flags.index("TEACHER")] = str(train.folder / "teacher")
    train(1, *flags, out="alone")
    expected = figures(train.folder / "alone")
    for strategy, (world_size, num_machines) in TEAMS.items():
        if "adamw8bit" in name and strategy != "ddp":
            continue
        for out in (strategy, f"{strategy}-again"):
            done = train(world_size, *flags, "--model_parallel", strategy, out=out, num_machines=num_machines)
            assert "torch.compile failed" not in done.stderr
        found = figures(train.folder / strategy)
        assert found == pytest.approx(expected, rel=tolerance)
        assert found == figures(train.folder / f"{strategy}-again")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", TEAMS)
def test_a_run_goes_on_in_another_number_of_processes(train, strategy):
    """A constant rate, so that the end of a run changes nothing before it; a step has 12 sequences, for 1 to 4.

    Each start ends with a validation, which the run of one start does not have.
    """
    def steps(out: str) -> list[float]:
        return [row[key] for row in metrics_of(train.folder / out) if "loss" in row for key in ("loss", "grad_norm")]

    flags = ["--optimizer", "adamw", "--dropout", "0.1", "--lr_schedule", "constant", "--learning_rate", "1e-3",
             "--batch_size", "1", "--gradient_accumulation_steps", "12", "--eval_interval", "1000"]
    train(1, *flags, "--max_steps", "10", out="alone")
    for world_size, last in ((2, "2"), (1, "4"), (4, "6"), (3, "8"), (2, "10")):
        num_machines = 2 if strategy == "hsdp" and world_size in (2, 4) else 1
        done = train(world_size, *flags, "--model_parallel", strategy, "--resume_from", "auto", "--max_steps", last,
                     num_machines=num_machines)
        assert last == "2" or "losses will differ in the last digits: processes" in done.stdout
    assert len(steps("alone")) == 20
    assert steps("out") == pytest.approx(steps("alone"), rel=EXACT)


@pytest.mark.slow
def test_checkpoints_are_the_same_files_where_the_mathematics_is_the_same_and_open_in_transformers(train):
    """Two micro-batches a step, whose halves are added: there is one order of two. Nothing depends on a norm."""
    transformers = pytest.importorskip("transformers")
    flags = ["--optimizer", "adamw", "--max_steps", "6", "--gradient_accumulation_steps", "2", "--grad_clip", "0"]
    for out, world_size, strategy in (("alone", 1, "ddp"), ("ddp", 2, "ddp"), ("fsdp", 2, "fsdp")):
        train(world_size, *flags, "--model_parallel", strategy, out=out)
    one, *others = (steps_in(train.folder / out)[6] for out in ("alone", "ddp", "fsdp"))
    for path in one.iterdir():
        if path.name not in ("trainer_state.json", "manifest.json", "README.md"):  # environment, seconds, flags
            assert {path.read_bytes()} == {(other / path.name).read_bytes() for other in others}, path.name
    model = load_model(one, torch.device("cpu")).eval()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(others[1]).eval()
    ids = torch.arange(model.config.seq_length)[None] % model.config.vocab_size
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, model(ids), rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- one voice


def test_a_step_grows_with_the_number_of_processes_unless_a_flag_says_its_size(train, forks):
    flags = [flag for flag in SMALL if flag not in ("--gradient_accumulation_steps", "4")]
    argv = ["train.py", "--data_dir", str(train.corpus), "--output_dir", str(train.folder / "out"), *flags]
    assert forks.run([*argv, "--max_steps", "2"], world_size=2, alarm=120).code == 0
    done = forks.run(["train.py", "--resume_from", str(train.folder / "out"), "--max_steps", "4"], alarm=120)
    assert done.code == 0, done.stderr
    assert [row["tokens"] for row in metrics_of(train.folder / "out") if "loss" in row] == [32, 64, 96, 128]


def test_one_process_prints_and_saves_and_sigusr1_to_any_saves_too(train):
    asked = Raised(STEP, MEASURED + 7, signal.SIGUSR1, rank=1)
    alone, both = (train(world_size, out=str(world_size), raised=[asked] * (world_size - 1)) for world_size in (1, 2))

    def words(text):
        return [re.sub(r"[\d.,]+", "", line) for line in text.splitlines() if line.startswith(("step", "validation"))]

    assert words(both.stdout) == words(alone.stdout)
    assert both.stderr == alone.stderr
    saved = set(steps_in(train.folder / "2")) - set(steps_in(train.folder / "1"))
    assert len(saved) == 1
    assert 7 <= saved.pop() <= 10


@pytest.mark.parametrize(("flags", "code", "message"), [
    (["--data_dir", "nowhere"], 3, "error: --data_dir nowhere does not exist. If it was moved"),
    (["--n_layer", "many"], 2, "error: --n_layer 'many'"),
    (["--batch_size", "3", "--gradient_accumulation_steps", "1"], 2,
     "error: a step has 3 sequences, which 2 processes cannot share evenly. Give --batch_size and "
     "--gradient_accumulation_steps whose product is a multiple of 2.\n"),
])
def test_an_error_is_said_once(train, flags, code, message):
    done = train(2, *flags, code=code)
    assert done.stderr.startswith(message)
    assert done.stderr.count("error:") == 1


# ---------------------------------------------------------------- what may befall one of them


def test_a_process_that_is_killed_takes_the_others_with_it_and_nothing_saved_is_lost(train):
    flags = ["--optimizer", "adamw", "--dropout", "0.1", "--checkpoint_every_steps", "2", "--resume_from", "auto"]
    died = train(2, *flags, code=None, raised=[Raised(STEP, MEASURED + 8, signal.SIGKILL, rank=1)])
    assert died.code in (128 + signal.SIGKILL, Exit.MACHINE)  # whichever is noticed first
    assert died.seconds < 20
    assert "error: another process of this run has ended" in died.stderr
    assert max(steps_in(train.folder / "out")) >= 4
    for out in ("out", "whole"):
        train(2, *flags, out=out)
    assert figures(train.folder / "out") == figures(train.folder / "whole")


def test_a_signal_to_any_process_stops_all_after_the_same_step(train):
    flags = ["--optimizer", "adamw", "--resume_from", "auto"]
    stopped = train(2, *flags, code=128 + signal.SIGTERM, raised=[Raised(STEP, MEASURED + 5, signal.SIGTERM, rank=1)])
    assert "stopped by SIGTERM; to continue: torchrun --nproc_per_node 2 train.py --resume_from" in stopped.stdout
    assert 5 <= max(steps_in(train.folder / "out")) <= 8


def test_a_loss_that_is_not_finite_in_one_process_skips_the_step_in_all(train):
    spoilt = [Raised("model:GPT.forward", 2 * MEASURED - 1 + 2 + 2 * 4 + 1, rank=1, spoils=True)]
    done = train(2, "--optimizer", "adamw", raised=spoilt)
    assert "skipped     1 step\n" in done.stdout
    rows = {row["step"]: row for row in metrics_of(train.folder / "out") if "loss" in row}
    assert [step for step, row in rows.items() if row["loss"] is None] == [5]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_out_of_memory_in_one_process_is_remembered_and_the_next_start_takes_less_at_a_time(train, strategy):
    flags = ["--optimizer", "adamw", "--model_parallel", strategy, "--checkpoint_every_steps", "2", "--resume_from",
             "auto"]
    died = train(2, *flags, code=Exit.MACHINE, raised=[Raised(STEP, MEASURED + 6, rank=1, error="MemoryError")])
    assert re.search(r"error: process 1: out of memory with 2 sequences at a time: .* held, of .*\. What was saved is "
                     r"safe\. Start again with --resume_from \S*out: the run then takes half", died.stderr)
    again = train(2, *flags)
    assert "batch_size  1 x 8 micro-batches: with 2 an earlier start ran out of memory" in again.stdout
    train(2, *flags, out="whole")
    assert figures(train.folder / "out") == pytest.approx(figures(train.folder / "whole"), rel=EXACT)


@pytest.mark.slow
def test_where_one_process_cannot_compile_all_are_eager_and_out_of_memory_ends_the_run(train):
    flags = ["--compile", "--model_parallel", "ddp", "--optimizer", "muon"]
    fails = Raised("model:GPT.forward", 1, rank=1, error="RuntimeError")
    done = train(2, *flags, raised=[fails])
    assert "torch.compile failed, running eagerly: it failed in another process" in done.stderr
    died = train(2, *flags, out="died", code=Exit.MACHINE, raised=[dataclasses.replace(fails, error="MemoryError")])
    assert "out of memory" in died.stderr


def test_a_process_with_another_recipe_or_other_tokens_says_in_what_it_differs(train, make_corpus):
    other = make_corpus(train.folder / "other", seed=1)
    for words, says in ((["--learning_rate", "0.01"], r"learning_rate: 0\.01 here, 0\.\d+ in process 0\. Give all"),
                        (["--data_dir", str(other)], "training tokens: "),
                        (["--data_dir", "nowhere"], "--data_dir nowhere does not exist")):
        done = train(2, code=None, own_words={"1": words})
        assert done.code
        assert re.search(f"error: process 1: {says}", done.stderr)


# ---------------------------------------------------------------- torchrun itself


def workers(agent: subprocess.Popen) -> dict[int, int]:
    """The processes of train.py that an agent of torchrun has started, by rank: their ids."""
    assert agent.poll() is None, "torchrun has ended"
    found = subprocess.run(["ps", "e", "-ww", "-o", "pid=,args=", "--ppid", str(agent.pid)], capture_output=True,
                           text=True)
    return {int(rank): int(line.split()[0]) for line in found.stdout.splitlines()
            for rank in re.findall(r" RANK=(\d+)", line)}


def kill(agents: list[subprocess.Popen], out: Path, when: str, step: int, rng: random.Random) -> None:
    """Kills a process in the first second of its life, or in a step or a save after the checkpoint of that step."""
    while when != "start" and max([0, *steps_in(out)] if out.exists() else [0]) < step:
        time.sleep(0.05)
    while not all(there := [workers(agent) for agent in agents]):
        time.sleep(0.05)
    ids = {rank: pid for each in there for rank, pid in each.items()}
    victim = ids[0 if when == "save" else rng.choice([*ids])]
    time.sleep(rng.random() if when == "start" else 0)
    while when == "save":
        if list(out.glob(".tmp-*")):
            os.kill(victim, signal.SIGSTOP)
            if list(out.glob(".tmp-*")):
                break
            os.kill(victim, signal.SIGCONT)
        time.sleep(0.0002)
    os.kill(victim, signal.SIGKILL)
    while any(pid in workers(agent).values() for agent in agents for pid in ids.values()):
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.kills
@pytest.mark.parametrize("num_machines", [1, 2])
@pytest.mark.parametrize("strategy", TEAMS)
def test_a_killed_process_costs_one_restart_of_torchrun_and_nothing_else(forks, corpus, tmp_path, strategy,
                                                                         num_machines):
    """Two agents are two machines. All cores are busy, so that processes start at different times."""
    trial = Trial(forks, corpus, tmp_path, 100, "--optimizer", "adamw", "--model_parallel", strategy, "--epochs", "99",
                  "--checkpoint_interval", "99", "--checkpoint_every_steps", "10", "--eval_interval", "1000",
                  world_size=2 * num_machines, num_machines=num_machines)
    kills = [("step", 20), ("start", 0), ("save", 40), ("start", 0), ("step", 70)]
    rng, out, printed, began = random.Random(strategy), tmp_path / "out", tmp_path / "printed.txt", time.monotonic()
    port = 20_000 + os.getpid() % 10_000
    place = f"--nnodes 2 --rdzv_backend c10d --rdzv_endpoint localhost:{port}"
    place = place if num_machines > 1 else f"--master_port {port}"
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--max_restarts", str(len(kills)),
             *place.split(), str(ROOT / "train.py"), *trial.flags, "--output_dir", str(out)]
    with printed.open("w") as stream:
        more = {"stdout": stream, "stderr": stream, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
        agents = [subprocess.Popen(words, **more) for _ in range(num_machines)]
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        for when, step in kills:
            kill(agents, out, when, step, rng)
        codes = [agent.wait(timeout=300) for agent in agents]
    finally:
        for process in (*loops, *agents):
            process.kill()
    assert codes == [0] * num_machines, printed.read_text()
    assert metrics_of(out) == trial.losses
    assert tensors(out / "checkpoint-100") == trial.tensors[100]
    print(f"{strategy}, {num_machines} machines: {len(kills)} restarts, {time.monotonic() - began:.0f} s")
