"""What train.py leaves behind when disk, machine or user fail it, at every moment: checkpoints, losses, exit codes.

Runs are children of a process that has imported everything (fork), so that one costs half a second; the disk fails by
faulty.c, preloaded. Exact means: losses and final tensors equal, byte for byte, those of a run that nothing disturbed.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt.architectures.table import ARCHITECTURES
from gpt.checkpoint.folder import owned
from gpt.checkpoint.steps import steps_in
from gpt.optimizers.table import OPTIMIZERS
from tests.helpers.commands import ROOT
from tests.helpers.forks import Raised
from tests.helpers.training import metrics_of
from tests.helpers.trial import MEASURED, STEP, TINY, Sweep, Trial, damage, prove, some, tensors

EVERY_10 = "--checkpoint_every_steps 10 --eval_interval 10 --dropout 0.1"
USUAL = f"{EVERY_10} --sample_interval 15 --gradient_accumulation_steps 2"
MIXTURE = f"{EVERY_10} --data_dir"  # two folders follow
MATRIX = {  # flags: processes and machines
    USUAL: (1, 1),
    "--checkpoint_every_steps 1 --keep_checkpoints 1 --eval_interval 7": (1, 1),
    "--checkpoint_every_steps 11 --preload mmap --dropout 0.2 --input_noise 0.1 --eval_interval 9": (1, 1),
    "--checkpoint_every_steps 6 --use_amp --eval_interval 4 --sample_interval 10": (1, 1),
    "--checkpoint_every_steps 13 --use_amp --amp_dtype fp16 --gradient_accumulation_steps 2": (1, 1),
    "--checkpoint_every_steps 8 --no-tie_weights --activation_checkpointing": (1, 1),
    "--keep_checkpoints 1 --eval_interval 10": (1, 1),
    f"{EVERY_10} --compile": (1, 1),
    **{f"{EVERY_10} --arch {arch} --optimizer {name}": (1, 1) for arch in ARCHITECTURES for name in OPTIMIZERS},
    MIXTURE: (1, 1),
    f"{EVERY_10} --optimizer adamw --model_parallel ddp": (2, 1),
    f"{EVERY_10} --optimizer adamw --model_parallel fsdp": (2, 1),
    f"{EVERY_10} --optimizer muon --model_parallel hsdp": (4, 2),
}
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PHASES = {  # a function and the number of the call that begins the phase, in a run that goes on from step 10 of 40
    "checking the tokens": ("gpt.planning.inputs:open_corpus", 1),
    "verifying the checkpoint": ("gpt.checkpoint.find:verify", 1),
    "measuring a step": (STEP, 2),
    "first step": (STEP, MEASURED + 1),
    "training": (STEP, MEASURED + 17),
    "accumulating": ("data:Batches.get", 2 * MEASURED + 44),
    "validating": ("gpt.training.validation:sum_losses", 2 + 2),  # two are measured
    "sampling": ("gpt.training.validation:sample", 1 + 1),
    "saving": ("", 0),  # by the disk, at any call of a save
}


@pytest.fixture(scope="module")
def corpus(make_corpus, tmp_path_factory):
    """1,000 training tokens: 31 steps an epoch."""
    return make_corpus(tmp_path_factory.mktemp("faults") / "corpus")


@pytest.fixture(scope="module")
def usual(forks, corpus, tmp_path_factory):
    """A run of 40 steps with a checkpoint every 10."""
    return Trial(forks, corpus, tmp_path_factory.mktemp("usual"), 40, *USUAL.split())


@pytest.fixture(scope="module", params=MATRIX)
def trial(request, forks, corpus, make_corpus, tmp_path_factory):
    """A run of 40 steps in each mode."""
    folder, flags = tmp_path_factory.mktemp("trial"), request.param.split()
    if request.param == MIXTURE:
        flags += [f"{make_corpus(folder / name)}:{share}" for name, share in (("one", 0.7), ("two", 0.3))]
    world_size, num_machines = MATRIX[request.param]
    return Trial(forks, corpus, folder, 40, *flags, world_size=world_size, num_machines=num_machines)


@pytest.fixture(scope="module", params=["new", "over a damaged one", "mirror"])
def sweep(request, disk, corpus, tmp_path_factory):
    """A save that finds nothing under its name and prunes; one that finds a damaged checkpoint there; a copy."""
    folder = tmp_path_factory.mktemp("sweep")
    trial = Trial(disk, corpus, folder, 12, "--checkpoint_every_steps", "3", "--eval_interval", "1000")
    if request.param == "new":
        return Sweep(trial, 6, 3, "--keep_checkpoints", "1")
    if request.param == "mirror":
        return Sweep(trial, 12, 0, mirror=True)
    os.truncate(trial.before("before", 6) / "checkpoint-6/optimizer.safetensors", 100)
    return Sweep(trial, 6, 3, before=folder / "before", damaged="checkpoint-6: optimizer.safetensors has 100 bytes")


# ---------------------------------------------------------------- a few cases of each harness


def test_a_run_killed_at_random_moments_is_exact(usual):
    prove(usual.killed, range(3))
    assert usual.kills


def test_what_a_save_writes_is_on_the_disk_before_it_is_seen(sweep):
    assert sweep.unordered() == []


def test_a_save_that_fails_at_any_call_costs_nothing_but_itself(sweep):
    prove(sweep.wrong, random.Random(0).sample(sweep.cases(), 4))


def test_training_goes_on_from_the_checkpoint_before_a_damaged_one(usual):
    prove(usual.damaged, range(2))


def test_a_signal_stops_the_run_and_loses_no_step(usual):
    for phase, number in (("training", signal.SIGTERM), ("validating", signal.SIGINT),
                          ("measuring a step", signal.SIGHUP)):
        assert usual.signalled((PHASES[phase], number, 0.0, None)) == []


# ---------------------------------------------------------------- the long proofs


def sweep_of(trial: Trial) -> Sweep:
    """The save of a run's second checkpoint."""
    least, step, *_ = sorted(trial.tensors)
    return Sweep(trial, step, least, "--keep_checkpoints", "1")


LONG_PROOFS: dict[str, Callable[[Trial], tuple[Any, Any]]] = {  # a harness, and its cases
    "kills": lambda trial: (trial.killed, range(5)),
    "damages": lambda trial: (trial.damaged, range(50, 56)),
    "signals": lambda trial: (trial.signalled, [(PHASES[phase], number, delay, rank) for phase, number, delay, rank in (
        ("first step", signal.SIGTERM, 0.0, 0), ("training", signal.SIGINT, 0.01, None),
        ("saving", signal.SIGTERM, 0.01, None), ("validating", signal.SIGTERM, 0.0, trial.team["world_size"] - 1))]),
    "sweeps": lambda trial: ((sweep := sweep_of(trial)).wrong, random.Random(2).sample(sweep.cases(), 10)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in LONG_PROOFS])
def test_nothing_is_lost_in_any_mode(trial, disk, kind):
    prove(*LONG_PROOFS[kind](trial))


@pytest.mark.slow
@pytest.mark.sweeps
def test_a_save_that_fails_at_every_call_costs_nothing_but_itself(sweep):
    prove(sweep.wrong, sweep.cases())


@pytest.mark.slow
@pytest.mark.signals
def test_every_signal_in_every_phase_loses_no_step(usual, disk):
    """At the phase's first moment, and at random ones soon after."""
    rng = random.Random(0)
    prove(usual.signalled, [(phase, number, delay, None) for phase in PHASES.values() for number in SIGNALS
                            for delay in (0.0, rng.uniform(0, 0.02), rng.uniform(0, 0.06))])


@pytest.mark.parametrize("seeds", [
    range(2), pytest.param(range(100, 300), marks=[pytest.mark.slow, pytest.mark.damages])])
def test_recorded_flags_that_are_damaged_are_named_or_taken(usual, forks, seeds):
    """Such a file may be edited, so a changed value is taken. What is no TOML, or no value of a flag, is named."""

    def wrong_after(seed: int) -> list[str]:
        out = shutil.copytree(usual.whole, usual.folder / f"flags-{seed}")
        (alone := out.with_suffix(".alone")).mkdir()
        shutil.move(out / "config.toml", alone)
        what, _ = damage(random.Random(seed), alone, may_swap=False)
        shutil.move(alone / "config.toml", out)
        done = forks.run(["train.py", "--resume_from", str(out)], merged=True)
        wrong, is_said = [], done.code == 0 or "error: " in done.stdout
        if done.code not in (0, 2, 3, 4, 5) or "Traceback" in done.stdout or not is_said:
            wrong.append(f"exit {done.code}\n{done.stdout}")
        cure = r"or empty it|no such flag|must be |is a table"
        if done.code and "config.toml" in done.stdout and not re.search(cure, done.stdout):
            wrong.append(f"no cure\n{done.stdout}")
        if tensors(out / "checkpoint-40") != usual.tensors[40]:
            wrong.append("the checkpoint has changed")
        shutil.rmtree(out)
        return [f"seed {seed}, {what}: {problem}" for problem in wrong]

    prove(wrong_after, seeds)


# ---------------------------------------------------------------- signals of other kinds


def test_a_signal_abandons_a_long_step_between_two_micro_batches(forks, corpus, tmp_path):
    """A step of minutes: the signal comes in its micro-batch 40, after the 8 that were measured, and it ends there."""
    words = ["train.py", "--data_dir", str(corpus), "--output_dir", str(tmp_path / "out"), *TINY, "--max_steps", "3",
             "--gradient_accumulation_steps", "20000"]
    done = forks.run(words, alarm=60, merged=True, raised=[Raised("data:Batches.get", 48, signal.SIGINT)])
    assert done.code == 128 + signal.SIGINT, done.stdout
    abandoned = r"^step 1 .* 4\d of 20,000 micro-batches"
    assert re.search(abandoned, done.stdout, re.MULTILINE), done.stdout
    assert "stopped by Ctrl-C; to continue: python train.py --resume_from " in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_slow_save_at_once(usual, disk, number):
    """Each call on the disk takes 0.2 s; the second signal comes 0.5 s into the save, the one after the epoch's."""
    out = usual.before(f"twice-{number:d}", 10)
    slow = {"FAULTY_FOLDER": str(out), "FAULTY_STEP": "18", "FAULTY_SLOW": "200"}
    done = usual.run(out, env=slow, raised=[Raised(STEP, MEASURED + 8, number),
                                            Raised("gpt.checkpoint.save:save", 2, number, 0.5)])
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert done.code == 128 + number, done.stdout
    assert f"{name}: stopping; the state is saved first (now: " in done.stdout
    assert re.search(rf"^{name}: ended at once\. Lost: the \d steps since checkpoint-16\. Safe: checkpoint-16, "
                     rf"from which --resume_from {out} goes on\.$", done.stdout, re.MULTILINE)
    assert done.seconds < usual.seconds + 0.5 + 2
    assert (usual.newest(out), usual.unsound(out)) == (16, [])  # of the epoch's end
    assert usual.ends_exactly(out) == []


@pytest.mark.slow
@pytest.mark.signals
@pytest.mark.parametrize("when", ["importing", "compiling"])
def test_a_signal_while_importing_or_compiling_ends_quietly(usual, when):
    """In processes of their own. Before 0.3 s Python itself starts."""
    for number, delay in some([(number, delay) for number in SIGNALS for delay in (0.3, 1.0, 2.0)]):
        out = usual.before(f"{when}-{number:d}-{delay}", 10)
        flags = ["--compile"] if when == "compiling" else []
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *usual.flags, "--output_dir", str(out), *flags], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**usual.forks.env, "XDG_CACHE_HOME": str(out.with_suffix(".cache"))})
        assert process.stdout
        while when == "compiling" and not process.stdout.readline().startswith("size "):
            assert process.poll() is None
        time.sleep(delay)
        process.send_signal(number)
        sent = time.monotonic()
        text = process.communicate()[0]
        assert time.monotonic() - sent < 15
        assert process.returncode in (128 + number, -number), text
        assert "Traceback" not in text
        assert usual.ends_exactly(out) == []


# ---------------------------------------------------------------- disks and folders


LONG = ["--checkpoint_every_steps", "10", "--eval_interval", "1000", "--gradient_accumulation_steps", "8",
        "--checkpoint_interval", "1000"]


class Background:
    """A run that goes on while the test does something to its folder."""

    def __init__(self, trial: Trial, out: Path, *flags: str):
        self.printed = trial.folder / f"{out.name}.txt"
        self.printed.touch()
        self.done: list[Any] = []
        self.thread = threading.Thread(
            target=lambda: self.done.append(trial.run(out, *flags, printed_to=self.printed)))
        self.thread.start()

    def wait(self, words: str, times: int = 1) -> None:
        """Waits until these words were printed so often."""
        while self.printed.read_text().count(words) < times:
            assert self.thread.is_alive(), self.printed.read_text()
            time.sleep(0.005)

    def ended(self) -> tuple[int, str]:
        """The exit code and all that was printed."""
        self.thread.join()
        return self.done[0].code, self.done[0].stdout


def test_a_folder_that_is_deleted_is_made_anew(forks, corpus, tmp_path):
    trial = Trial(forks, corpus, tmp_path / "trial", 30, *LONG)
    run = Background(trial, tmp_path / "out")
    run.wait("saved checkpoint-10")
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "elsewhere")
    code, text = run.ended()
    assert code == 0, text
    assert trial.newest(tmp_path / "out") == 30
    assert trial.unsound(tmp_path / "out") == []
    assert all(line in trial.losses for line in metrics_of(tmp_path / "out"))


# ---------------------------------------------------------------- token files that change


@pytest.mark.slow
@pytest.mark.parametrize("change", ["cut", "written", "emptied", "replaced"])
def test_a_run_whose_tokens_change_saves_and_can_be_resumed_and_a_replaced_file_does_no_harm(forks, make_corpus,
                                                                                            tmp_path, change):
    corpus = make_corpus(tmp_path / "corpus")
    path, content = corpus / "train.bin", (corpus / "train.bin").read_bytes()
    status = path.stat()
    flags = ["--preload", "mmap", "--epochs", "9999", "--checkpoint_interval", "9999", "--eval_interval", "99999"]
    trial = Trial(forks, corpus, tmp_path / "trial", 100, *flags)
    run = Background(trial, tmp_path / "out", "--max_steps", "3000" if change == "replaced" else "100000")
    run.wait("step 40/")
    if change == "replaced":
        (tmp_path / "new").write_bytes(b"")
        (tmp_path / "new").replace(path)
    elif change == "written":
        with path.open("r+b") as file:
            file.write(content[::-1])
    else:
        os.truncate(path, 0 if change == "emptied" else 100)
    code, text = run.ended()
    said = re.search(r"error: token file \S+train.bin was (written to or cut) .*while it was read.* "
                     r"The last good checkpoint is checkpoint-(\d+)\. Resume", text.replace("\n", " "))
    if change == "replaced":
        assert (code, said) == (0, None), text
        return
    assert code == 3, text
    assert said, text
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    done = trial.run(tmp_path / "out", "--max_steps", str(int(said[2]) + 5))
    assert done.code == 0, done.stdout
    assert f"from checkpoint-{said[2]}" in done.stdout


def test_the_folder_of_another_run_is_refused_in_all_processes(usual):
    out = usual.folder / "held"
    out.mkdir()
    with owned(out):
        for world_size in (1, 2):
            done = usual.run(out, world_size=world_size)
            assert done.code == 7, done.stdout
            assert done.stdout.count("is in use by another run") == 1
    assert not steps_in(out)
