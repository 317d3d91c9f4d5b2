"""What train.py leaves behind when disk, machine or user fail it, at every moment: checkpoints, losses, exit codes.

Runs are children of a process that has imported everything (fork), so that one costs half a second; the disk fails by
faulty.c, preloaded. Exact means: losses and final tensors equal, byte for byte, those of a run that nothing disturbed.
"""


import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from architectures.table import ARCHITECTURES
from checkpoint.find import newest_sound, steps_in
from checkpoint.verify import verify
from tests.helpers.commands import ROOT
from tests.helpers.forks import Forks, Raised
from tests.helpers.training import metrics_of
from tests.helpers.trials import MEASURED, TINY, Background, Trial, calls_in, fill, tensors
from training.optimizers import OPTIMIZERS

FAILED = re.compile(r"warning: checkpoint-\d+ could not be saved: .*needs about [\d,]+ bytes, [\d,]+ are free|"
                    r"warning: checkpoint-\d+ is saved, but the validation of its step could not be recorded in it: ")


@pytest.fixture(scope="module")
def corpus(make_corpus, tmp_path_factory):
    """1,000 training tokens: 31 steps an epoch."""
    return make_corpus(tmp_path_factory.mktemp("faults") / "corpus")


# ---------------------------------------------------------------- a disk that fails at one call of one save


class Sweep:
    """One save of a run, whose every call on the disk can be made to fail.

    before is the folder the run finds, least the step that no fault may lose, damaged what was so before.
    """

    def __init__(self, trial: Trial, step: int, least: int, before: Path | None = None, flags: tuple = (),
                 damaged: str = "none"):
        self.trial, self.step, self.least, self.before, self.flags = trial, step, least, before, flags
        self.damaged = damaged
        self.counted, log = trial.folder / "counted", trial.folder / "calls.tsv"
        log.touch()
        code, text, _ = self.run(self.counted, "count", 0, log)
        assert (code, trial.unsound(self.counted)) == (0, []), text
        self.calls = calls_in(log)

    def run(self, out: Path, action: str, at: int, log: Path | None = None) -> tuple[int, str, float]:
        """The run whose save meets the fault."""
        if self.before:
            shutil.copytree(self.before, out)
        env = {"FAULTY_FOLDER": str(out), "FAULTY_STEP": str(self.step), "FAULTY_ACTION": action, "FAULTY_AT": str(at)}
        return self.trial.run(out, *self.flags, env={**env, "FAULTY_LOG": str(log or "")})

    def cases(self) -> list[tuple[str, int]]:
        """Every fault at every call it makes a difference to."""
        faults = ("kill", "tear", "nospace", "full", "eio")
        return [(action, at) for at, (_, kind, _, _) in enumerate(self.calls, 1)
                for action in (*faults, *(["short"] if kind == "write" else []))]

    def wrong(self, case: tuple[str, int]) -> list[str]:
        """What is wrong after a fault, and after going on from there."""
        (action, at), trial = case, self.trial
        out, log = trial.folder / f"{action}-{at}", trial.folder / f"{action}-{at}.tsv"
        log.touch()
        code, text, _ = self.run(out, action, at, log)
        if len(made := calls_in(log)) < at:
            return [f"{action} at call {at}: the run made {len(made)} calls\n{text}"]
        _, kind, path, _ = made[at - 1]  # two files are written at once, in an order that differs from run to run
        expected = -9 if action in ("kill", "tear") else 0 if trial.last in steps_in(out) else 5
        wrong = [f"exit {code}, expected {expected}\n{text}"] if code != expected else []
        wrong += [problem for problem in trial.unsound(out) if not problem.startswith(self.damaged)]
        if expected >= 0:
            failed, fails = FAILED.search(text), action in ("nospace", "full", "eio")
            if "Traceback" in text or "a bug in the program" in text:
                wrong.append(text)
            if ("could not be" in text) != bool(failed) and expected == 0:
                wrong.append(f"no figures in the warning\n{text}")
            said = "warning: starts.jsonl: " in text if path.endswith("/starts.jsonl") else failed
            if fails and kind in ("write", "open", "mkdir", "link") and not said:
                wrong.append(f"no warning\n{text}")
            if action == "short" and failed:
                wrong.append("half a write was taken for a failed one")
            if not (action == "eio" and kind == "unlink"):
                wrong += [f"{path.name} was left" for path in out.glob(".tmp-*")]
        wrong += trial.ends_exactly(out, self.least)
        shutil.rmtree(out)
        return [f"{action} at call {at}, {kind} {path}: {problem}" for problem in wrong]


@pytest.fixture(scope="module", params=["new", "over a damaged one"])
def sweep(request, disk, corpus, tmp_path_factory):
    """A save that finds nothing under its name and prunes, and one that finds a damaged checkpoint there."""
    folder = tmp_path_factory.mktemp("sweep")
    trial = Trial(disk, corpus, folder, 12, ["--checkpoint_every_steps", "3", "--eval_interval", "1000"])
    if request.param == "new":
        return Sweep(trial, 6, 3, flags=("--keep_checkpoints", "1"))
    shutil.copytree(trial.whole, folder / "before")
    for step in (9, 12):
        shutil.rmtree(folder / f"before/checkpoint-{step}")
    os.truncate(folder / "before/checkpoint-6/optimizer.safetensors", 100)
    return Sweep(trial, 6, 3, folder / "before", damaged="checkpoint-6: optimizer.safetensors has 100 bytes")


def test_what_a_save_writes_is_on_the_disk_before_it_is_seen(sweep):
    """Of each file all bytes, then fsync; then the folder; then the name; then the folder that holds the name."""
    calls = [(kind, Path(path), int(size)) for _, kind, path, size in sweep.calls]
    temporary = next(path for kind, path, _ in calls if kind == "mkdir")
    renamed = calls.index(("rename", temporary, 0))
    for path in (sweep.trial.whole / f"checkpoint-{sweep.step}").iterdir():
        mine = [(kind, size) for kind, at, size in calls[:renamed] if at == temporary / path.name]
        if path.name not in ("README.md", "trainer_state.json"):  # they tell the flags, which differ
            assert sum(size for kind, size in mine if kind == "write") == path.stat().st_size, path.name
        assert mine[-1][0] == "fsync", path.name
    assert any(kind == "fsync" and path == temporary for kind, path, _ in calls[:renamed])
    assert any(kind == "fsync" and path == sweep.counted for kind, path, _ in calls[renamed:])


def test_a_save_that_fails_at_any_call_costs_nothing_but_itself(sweep):
    """A few calls of each save; all of them with -m slow."""
    wrong = [problem for case in random.Random(0).sample(sweep.cases(), 4) for problem in sweep.wrong(case)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.sweeps
def test_a_save_that_fails_at_every_call_costs_nothing_but_itself(sweep, tally):
    cases = tally.some(sweep.cases())
    wrong = sweep.trial.forks.map(sweep.wrong, cases)
    tally.add("sweeps", runs=len(cases), calls=len(sweep.calls), wrong=len(wrong))
    assert not wrong, "\n".join(wrong)


class Record(Sweep):
    """What follows the last save: the validation that comes after it is recorded in the checkpoint."""

    def __init__(self, trial: Trial):
        super().__init__(trial, trial.last, trial.last)
        renamed = [at for at, (_, kind, _, _) in enumerate(self.calls, 1) if kind == "rename"]
        assert len(renamed) == 3, "the new one, the old one aside, the one with the record"
        self.saved = next(at for at in range(renamed[0] + 1, len(self.calls)) if self.calls[at - 1][1] == "fsync")

    def cases(self) -> list[tuple[str, int]]:
        """The faults after the save."""
        return [(action, at) for action, at in super().cases() if at > self.saved]

    def run(self, out: Path, action: str, at: int, log: Path | None = None) -> tuple[int, str, float]:
        """As Sweep.run; the newest checkpoint is one of the last step, with the validation or without it."""
        found = super().run(out, action, at, log)
        if action not in ("count", "kill", "tear"):
            state = verify(out / f"checkpoint-{self.step}")
            assert state["validated_step"] in (0, self.step)
        return found


@pytest.fixture(scope="module")
def record(disk, corpus, tmp_path_factory):
    """The last step of a run is saved, then validated, then the checkpoint records the validation."""
    folder = tmp_path_factory.mktemp("record")
    return Record(Trial(disk, corpus, folder, 6, ["--checkpoint_every_steps", "3", "--eval_interval", "1000"]))


def test_a_record_that_fails_at_any_call_leaves_the_checkpoint_without_it(record):
    """A few calls, each rename among them; all of them with -m slow."""
    cases = record.cases()
    renames = [(action, at) for action, at in cases if record.calls[at - 1][1] == "rename" and action == "tear"]
    assert len(renames) == 2
    wrong = [problem for case in (*renames, *random.Random(1).sample(cases, 3)) for problem in record.wrong(case)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.sweeps
def test_a_record_that_fails_at_every_call_leaves_the_checkpoint_without_it(record, tally):
    cases = tally.some(record.cases())
    wrong = record.trial.forks.map(record.wrong, cases)
    tally.add("sweeps", runs=len(cases), calls=len(record.calls) - record.saved, wrong=len(wrong))
    assert not wrong, "\n".join(wrong)


def test_a_sound_checkpoint_is_there_at_every_moment(disk, corpus, tmp_path):
    """Stopped between saving and validating, with one checkpoint: what the resumed run does about the best is safe."""
    trial = Trial(disk, corpus, tmp_path, 36, ["--eval_interval", "31"])
    code, text, _ = trial.run(tmp_path / "before", raised=[Raised("training.validation:evaluate", 1, signal.SIGTERM)])
    assert (code, list(steps_in(tmp_path / "before"))) == (143, [31]), text
    sweep = Sweep(trial, 31, 31, tmp_path / "before")
    renames = [at for at, call in enumerate(sweep.calls, 1) if call[1] == "rename"]
    wrong = [problem for at in renames for action in ("kill", "tear") for problem in sweep.wrong((action, at))]
    assert not wrong, "\n".join(wrong)
    kept = json.loads((sweep.counted / "checkpoint-31/trainer_state.json").read_text())
    assert kept["stays"], "the checkpoint of an epoch's end has become one that is pruned"


# ---------------------------------------------------------------- kills at random moments


MODES = [
    ["--checkpoint_every_steps", "7"],
    ["--checkpoint_every_steps", "1", "--keep_checkpoints", "1", "--eval_interval", "7"],
    ["--checkpoint_every_steps", "5", "--gradient_accumulation_steps", "3", "--dropout", "0.1"],
    ["--checkpoint_every_steps", "11", "--preload", "mmap", "--dropout", "0.2", "--eval_interval", "9"],
    ["--checkpoint_every_steps", "6", "--use_amp", "--eval_interval", "4"],
    ["--checkpoint_every_steps", "13", "--use_amp", "--amp_dtype", "fp16", "--gradient_accumulation_steps", "2"],
    ["--checkpoint_every_steps", "8", "--no-tie_weights", "--label_smoothing", "0.1", "--activation_checkpointing"],
    ["--checkpoint_every_steps", "9", "--sample_interval", "10", "--dropout", "0.3"],
    ["--keep_checkpoints", "1", "--eval_interval", "10"],
    ["--checkpoint_every_steps", "4", "--keep_checkpoints", "1", "--eval_interval", "6"],
]


class Killer:
    """Runs that are killed at random moments, and how many kills hit."""

    def __init__(self, trial: Trial):
        self.trial, self.kills, self.exact = trial, 0, 0
        self.start_up = trial.run(trial.whole)[2]  # a run that finds itself finished
        self.seconds = trial.seconds
        if "--compile" in trial.flags:  # the first has filled the compiler's cache
            _, text, self.seconds = trial.run(trial.folder / "again")
            assert "compile_seconds: " in text, text

    def run(self, seed: int, times: int | None = None) -> list[str]:
        """One run killed 1 to 4 times, between its first moment and its last; what is wrong at its end.

        With times it is killed so often, and each time while a step is done or soon after one.
        """
        rng, out, kills = random.Random(seed), self.trial.folder / str(seed), 0
        wanted = times or rng.randint(1, 4)
        for _ in range(4 * wanted):
            newest = self.trial.newest(out)
            left = (self.seconds - self.start_up) * (1 - newest / self.trial.last)
            limit: dict[str, Any] = {"kill_after": self.start_up + rng.uniform(-0.2, 0.9) * left}
            if times:
                step = rng.randint(1, max(1, (self.trial.last - newest) // 2))
                delay = rng.choice((0.0, rng.uniform(0, 0.01)))
                limit = {"raised": [Raised("train:train_step", MEASURED + step, signal.SIGKILL, delay)]}
            resume = self.trial.resume if newest and rng.random() < 0.5 else self.trial.run
            code, text, _ = resume(out, **limit)
            if code not in (0, -9):
                return [f"exit {code}\n{text}"]
            kills += code == -9
            if code == 0 or kills == wanted:
                break
        wrong = self.trial.unsound(out) + self.trial.ends_exactly(out)
        self.kills, self.exact = self.kills + kills, self.exact + (not wrong)
        shutil.rmtree(out)
        return [f"seed {seed}, {' '.join(self.trial.flags)}: {problem}" for problem in wrong]


def test_a_run_killed_at_random_moments_is_exact(forks, corpus, tmp_path):
    killer = Killer(Trial(forks, corpus, tmp_path, 40, [*MODES[2], "--keep_checkpoints", "1"]))
    assert not killer.run(3)
    assert killer.kills


@pytest.mark.slow
@pytest.mark.kills
def test_a_hundred_runs_killed_at_random_moments_are_exact(forks, corpus, tmp_path, tally):
    wrong, kills, exact, runs = [], 0, 0, 0
    compiled = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    modes = [*MODES, [*MODES[0], "--compile"], [*MODES[2], "--compile", "--use_amp"]]
    for number, flags in enumerate(modes[:None if tally.share >= 1 else len(MODES)]):
        (tmp_path / str(number)).mkdir()
        seeds = tally.some(range(100 * number, 100 * number + (5 if "--compile" in flags else 10)))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in compiled.items():
                patch.setitem(forks.always, name, value)
            killer = Killer(Trial(forks, corpus, tmp_path / str(number), 100, flags))
            wrong += forks.map(killer.run, seeds)
        kills, exact, runs = kills + killer.kills, exact + killer.exact, runs + len(seeds)
        print(f"\n{' '.join(flags)}: kills {killer.kills}, runs {len(seeds)}, identical {killer.exact}", flush=True)
    tally.add("kills", runs=runs, kills=kills, identical=exact, wrong=len(wrong))
    assert not wrong, "\n".join(wrong)
    assert exact == runs
    assert tally.share < 1 or (runs >= 100 and kills >= 200)


# ---------------------------------------------------------------- every network, every optimizer, a mixture


MIXTURE = "mixture"
KINDS = [*(f"--arch {arch} --optimizer {name}" for arch in ARCHITECTURES for name in OPTIMIZERS), MIXTURE]


@pytest.fixture(scope="module", params=KINDS)
def kind(request, make_corpus, tmp_path_factory):
    """The flags of a run of each kind: their checkpoints hold tensors of other names, shapes and types."""
    if request.param != MIXTURE:
        return request.param.split()
    folder = tmp_path_factory.mktemp("mixture")
    shares = [f"{make_corpus(folder / name)}:{share}" for name, share in (("one", 0.7), ("two", 0.3))]
    return ["--data_dir", *shares]


@pytest.mark.slow
@pytest.mark.kills
def test_sixty_steps_killed_three_times_are_exact_whatever_is_trained(forks, corpus, tmp_path, tally, kind):
    killer = Killer(Trial(forks, corpus, tmp_path, 60, ["--checkpoint_every_steps", "7", "--dropout", "0.1", *kind]))
    seeds = tally.some(range(3))
    wrong = forks.map(lambda seed: killer.run(seed, times=3), seeds)
    tally.add("kills", runs=len(seeds), kills=killer.kills, identical=killer.exact, wrong=len(wrong))
    print(f"\n{' '.join(kind)}: runs {len(seeds)}, kills {killer.kills}, identical {killer.exact}", flush=True)
    assert not wrong, "\n".join(wrong)
    assert killer.kills == 3 * len(seeds)


@pytest.mark.slow
@pytest.mark.sweeps
def test_a_save_that_fails_costs_nothing_but_itself_whatever_is_trained(disk, corpus, tmp_path, tally, kind):
    """Ten faults: a power cut, a full disk and an error of the device among them."""
    trial = Trial(disk, corpus, tmp_path, 12, ["--checkpoint_every_steps", "3", "--eval_interval", "1000", *kind])
    sweep = Sweep(trial, 6, 3, flags=("--keep_checkpoints", "1"))
    cases = tally.some(random.Random(2).sample(sweep.cases(), 10))
    wrong = disk.map(sweep.wrong, cases)
    tally.add("sweeps", runs=len(cases), wrong=len(wrong))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.damages
def test_the_checkpoint_before_a_damaged_one_is_taken_whatever_is_trained(forks, corpus, tmp_path, tally, kind):
    trial = Trial(forks, corpus, tmp_path, 8, ["--checkpoint_every_steps", "2", "--eval_interval", "1000", *kind])

    def wrong_after(seed: int) -> list[str]:
        out = shutil.copytree(trial.whole, tmp_path / str(seed))
        what, names = damage(random.Random(seed), out / "checkpoint-8")
        code, text, _ = trial.run(out)
        is_named = any(f"checkpoint-8 is damaged and was skipped: {name}" in text for name in names)
        is_exact = (metrics_of(out), trial.unsound(out)) == (trial.losses, [])
        return [] if code == 0 and is_named and is_exact else [f"seed {seed}, {what}: exit {code}\n{text}"]

    seeds = tally.some(range(50, 56))
    wrong = forks.map(wrong_after, seeds)
    tally.add("damages", damages=len(seeds), recovered=len(seeds) - len(wrong), wrong=len(wrong))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.signals
def test_a_signal_loses_no_step_whatever_is_trained(disk, corpus, tmp_path, tally, kind):
    stops = Stops(disk, corpus, tmp_path, tuple(kind))
    cases = tally.some([("first step", signal.SIGTERM, 0.0), ("training", signal.SIGINT, 0.01),
                        ("saving", signal.SIGTERM, 0.01), ("validating", signal.SIGHUP, 0.0)])
    wrong = disk.map(stops.wrong, cases)
    tally.add("signals", runs=len(cases), signals=len(cases), wrong=len(wrong))
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------- damaged checkpoints


STRANGERS = {"text": b"Dear diary, today my optimizer diverged.\n", "html": b"<!DOCTYPE html><html>404</html>\n",
             "zip": b"PK\x03\x04\x14\x00\x00\x00\x08\x00" + bytes(30), "empty": b""}


ALONE = ("flip", "cut", "zeros", "tail", "folder", *STRANGERS)  # what can be done to a single file


def damage(rng: random.Random, folder: Path, kinds: Sequence[str] = ("swap", *ALONE)) -> tuple[str, set[str]]:
    """Damages one file of a checkpoint, or swaps two; what was done, and the names of which one is to be said."""
    path = rng.choice(sorted(folder.iterdir()))
    kind = rng.choice(kinds)
    content = path.read_bytes()
    if kind == "swap":
        other = rng.choice(sorted(set(folder.iterdir()) - {path}))
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
        return f"{path.name} and {other.name} swapped", {path.name, other.name}
    if kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind in STRANGERS:
        path.write_bytes(STRANGERS[kind])
    else:
        at, changed = rng.randrange(len(content)), bytearray(content)
        if kind == "flip":
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del changed[at:]
        elif kind == "tail":
            changed += rng.randbytes(rng.randint(1, 100)) + b"\x00"
        else:
            while changed == content:
                at = rng.randrange(len(content))
                changed[at:at + rng.choice((1, 512, 4096))] = b""
                changed[at:at] = bytes(len(content) - len(changed))
        path.write_bytes(changed)
    return f"{kind} in {path.name}", {path.name}


def damages_found(seeds: Iterable[int], folder: Path, make_checkpoint: Callable[..., Any]) -> tuple[int, list[str]]:
    """How often the older of two checkpoints was taken when the newer was damaged, and what was accepted or not named.

    Damage to manifest.json may be named by the file that it then describes wrongly, or no longer by its name.
    """

    make_checkpoint(folder / "sound", step=1)
    make_checkpoint(folder / "sound", step=2)
    recovered, wrong = 0, []
    for seed in seeds:
        tried = folder / str(seed)
        shutil.copytree(folder / "sound", tried)
        what, names = damage(random.Random(seed), tried / "checkpoint-2")
        warnings: list[str] = []
        found = newest_sound(tried, warnings.append)
        recovered += found is not None and found[0].name == "checkpoint-1"
        if found is None or found[0].name != "checkpoint-1":
            wrong.append(f"seed {seed}: {what} was accepted")
        names |= {"checkpoint-2"} if "manifest.json" in names else set()
        if not any(name in message for name in names for message in warnings):
            wrong.append(f"seed {seed}: {what} was not named: {warnings}")
        shutil.rmtree(tried)
    return recovered, wrong


def test_a_damaged_file_is_named_and_the_older_checkpoint_taken(tmp_path, make_checkpoint):
    recovered, wrong = damages_found(range(30), tmp_path, make_checkpoint)
    assert not wrong, "\n".join(wrong)
    assert recovered == 30


@pytest.mark.slow
@pytest.mark.damages
def test_every_one_of_many_damages_is_found(tmp_path, make_checkpoint, tally):
    seeds = tally.some(range(1000, 2000))
    recovered, wrong = damages_found(seeds, tmp_path, make_checkpoint)
    tally.add("damages", damages=len(seeds), recovered=recovered, wrong=len(wrong))
    assert not wrong, "\n".join(wrong)
    assert recovered == len(seeds)


def flags_damaged(forks: Forks, before: Trial, seeds: Iterable[int]) -> list[str]:
    """What is wrong when a run is resumed by one flag after its config.toml was damaged.

    Such a file may be edited, so a changed value is taken. What is no TOML, or no value of a flag, is named.
    """
    wrong = []
    for seed in seeds:
        out, rng = before.folder / f"flags-{seed}", random.Random(seed)
        shutil.copytree(before.whole, out)
        held = tensors(out / f"checkpoint-{before.last}")
        path = shutil.move(out / "config.toml", out.with_suffix(".toml"))
        (alone := out.with_suffix(".alone")).mkdir()
        shutil.move(path, alone / "config.toml")
        what, _ = damage(rng, alone, ALONE)
        shutil.move(alone / "config.toml", out / "config.toml")
        code, text, _ = before.resume(out)
        if "Traceback" in text or "a bug in the program" in text or code not in (0, 2, 3, 4, 5):
            wrong.append(f"{what}: exit {code}\n{text}")
        if code and "error: " not in text:
            wrong.append(f"{what}: nothing said\n{text}")
        if tensors(out / f"checkpoint-{before.last}") != held:
            wrong.append(f"{what}: the checkpoint has changed")
        if code and "config.toml" in text:
            (out / "config.toml").write_bytes(b"")  # which the message advises
            if "or empty it" not in text and " (line " not in text:
                wrong.append(f"{what}: no cure\n{text}")
        for resumed in (before.resume, before.run):
            again, text, _ = resumed(out)
            if code and again:
                wrong.append(f"{what}: does not go on without the file: exit {again}\n{text}")
        shutil.rmtree(out)
    return [f"seed {problem}" for problem in wrong]


@pytest.fixture(scope="module")
def finished(forks, corpus, tmp_path_factory):
    """A short run that is done, with its flags recorded."""
    return Trial(forks, corpus, tmp_path_factory.mktemp("finished"), 4, ["--eval_interval", "1000"])


def test_recorded_flags_that_are_damaged_are_named_or_taken(finished, forks):
    assert flags_damaged(forks, finished, range(3)) == []


@pytest.mark.slow
@pytest.mark.damages
def test_recorded_flags_that_are_damaged_in_many_ways_are_named_or_taken(finished, forks, tally):
    seeds = tally.some(range(100, 300))
    wrong = forks.map(lambda seed: flags_damaged(forks, finished, [seed]), seeds)
    tally.add("damages", damages=len(seeds), recovered=len(seeds) - len(wrong), wrong=len(wrong))
    assert not wrong, "\n".join(wrong)


def test_training_goes_on_from_the_checkpoint_before_a_damaged_one(forks, corpus, tmp_path):
    trial = Trial(forks, corpus, tmp_path, 8, ["--checkpoint_every_steps", "2", "--eval_interval", "1000"])
    for seed in range(2):
        out = tmp_path / str(seed)
        shutil.copytree(trial.whole, out)
        what, names = damage(random.Random(seed), out / "checkpoint-8")
        code, text, _ = trial.run(out)
        assert code == 0, what
        assert "resume      from checkpoint-6" in text
        assert any(f"checkpoint-8 is damaged and was skipped: {name}" in text for name in names), text
        assert (metrics_of(out), trial.unsound(out)) == (trial.losses, []), what


# ---------------------------------------------------------------- signals


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A function and the number of the call that begins the phase, in a run that goes on from a checkpoint at step 10.
PHASES = {
    "checking the tokens": ("training.starting:open_corpus", 1),
    "verifying the checkpoint": ("checkpoint.find:verify", 1),
    "building the model": ("train:build_learner", 1),
    "loading the tokens": ("training.validation:load_tokenizer", 1),
    "measuring a step": ("train:train_step", 2),
    "first step": ("train:train_step", MEASURED + 1),
    "training": ("train:train_step", MEASURED + 17),
    "accumulating": ("data:Batches.get", 2 * MEASURED + 44),
    "validating": ("training.validation:evaluate", 2),
    "sampling": ("training.validation:sample", 1),
    "saving": ("", 0),  # by the disk, at any call of a save
    "finishing": ("train:save_and_close", 1),
}


class Stops:
    """Runs that a signal stops, which go on from the checkpoint of step 10 of 40."""

    def __init__(self, forks: Forks, corpus: Path, folder: Path, flags: tuple = ()):
        self.trial = Trial(forks, corpus, folder, 40, [
            "--checkpoint_every_steps", "10", "--eval_interval", "10", "--sample_interval", "15", "--dropout", "0.1",
            "--gradient_accumulation_steps", "2", *flags])
        shutil.copytree(self.trial.whole, folder / "before")
        for step, path in steps_in(folder / "before").items():
            if step > 10:
                shutil.rmtree(path)

    def wrong(self, case: tuple[str, int, float]) -> list[str]:
        """What is wrong after the signal came in the phase, that many seconds after it began, and after going on."""
        (phase, number, delay), trial = case, self.trial
        out = self.start(f"{phase}-{number:d}-{delay}")
        function, call = PHASES[phase]
        disk = {"FAULTY_FOLDER": str(out), "FAULTY_STEP": "20", "FAULTY_ACTION": f"{number:d}",
                "FAULTY_AT": str(1 + int(1000 * delay))}
        code, text, seconds = trial.run(out, env={} if function else disk,
                                        raised=[Raised(function, call, number, delay)] if function else [])
        return self.judged(out, f"{phase}, signal {number:d} after {delay:.3f} s", number, code, text, seconds)

    def start(self, name: str) -> Path:
        """A new output folder that holds the checkpoint of step 10."""
        return shutil.copytree(self.trial.folder / "before", self.trial.folder / name)

    def judged(self, out: Path, what: str, number: int, code: int, text: str, seconds: float) -> list[str]:
        """What is wrong with a stopped run, and after going on from there."""
        wrong = [f"took {seconds:.1f} s"] if seconds > 30 else []
        if code not in (128 + number, -number) and not (code == 0 and self.trial.last in steps_in(out)):
            wrong.append(f"exit {code}\n{text}")
        if "Traceback" in text or "error:" in text:
            wrong.append(text)
        if code == 128 + number and text and not re.search("to continue: python train.py|; nothing was lost", text):
            wrong.append(f"how to go on is not said\n{text}")
        logged = max([10, *map(int, re.findall(r"^step (\d+)/", text, re.MULTILINE))])
        if (newest := self.trial.newest(out)) < logged:
            wrong.append(f"step {logged} was logged and is lost; {newest} is left\n{text}")
        wrong += self.trial.ends_exactly(out)
        shutil.rmtree(out)
        return [f"{what}: {problem}" for problem in wrong]


@pytest.fixture(scope="module")
def stops(forks, corpus, tmp_path_factory):
    return Stops(forks, corpus, tmp_path_factory.mktemp("stops"))


def test_a_signal_stops_the_run_and_loses_no_step(stops):
    cases = [("training", signal.SIGTERM, 0.0), ("validating", signal.SIGINT, 0.0),
             ("building the model", signal.SIGHUP, 0.0)]
    wrong = [problem for case in cases for problem in stops.wrong(case)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.signals
def test_every_signal_in_every_phase_loses_no_step(stops, disk, tally):
    """At the phase's first moment, and at random ones soon after."""
    rng = random.Random(0)
    cases = [(phase, number, delay) for phase in PHASES for number in SIGNALS
             for delay in (0.0, rng.uniform(0, 0.02), rng.uniform(0, 0.06))]
    cases = tally.some(cases)
    wrong = disk.map(stops.wrong, cases)
    tally.add("signals", runs=len(cases), signals=len(cases), wrong=len(wrong))
    assert not wrong, "\n".join(wrong)


def test_an_ignored_hangup_stays_ignored(stops):
    out = stops.start("nohup")
    code, text, _ = stops.trial.run(out, ignored=[signal.SIGHUP],
                                    raised=[Raised("train:train_step", MEASURED + 5, signal.SIGHUP)])
    assert code == 0, text
    assert metrics_of(out) == stops.trial.losses


def test_a_second_signal_ends_a_slow_save_at_once(stops, disk):
    """Each call on the disk takes 0.2 s; the second signal comes 0.5 s into the save, the one after the epoch's."""
    for number in (signal.SIGTERM, signal.SIGINT):
        out = stops.start(f"twice-{number:d}")
        slow = {"FAULTY_FOLDER": str(out), "FAULTY_STEP": "18", "FAULTY_SLOW": "200"}
        code, text, seconds = stops.trial.run(out, env=slow, raised=[
            Raised("train:train_step", MEASURED + 8, number), Raised("checkpoint.save:save", 2, number, 0.5)])
        assert code == 128 + number, text
        assert "to continue" not in text  # it has left while saving
        name = signal.Signals(number).name
        assert f"{name}: stopping; the state is saved first (now: " in text
        assert re.search(rf"^{name}: ended at once\. Lost: the \d steps since checkpoint-16\. Safe: checkpoint-16, "
                         rf"from which --resume_from {out} goes on\.$", text, re.MULTILINE)
        assert seconds < stops.trial.seconds + 0.5 + 2
        assert (stops.trial.newest(out), stops.trial.unsound(out)) == (16, [])  # of the epoch's end
        assert stops.trial.ends_exactly(out) == []


def started(trial: Trial, out: Path, *flags: str, **env: str) -> subprocess.Popen:
    """train.py as a process of its own."""
    return subprocess.Popen([sys.executable, str(ROOT / "train.py"), *trial.argv(out)[1:], *flags], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**trial.forks.env, **env})


@pytest.mark.slow
@pytest.mark.signals
def test_a_signal_while_importing_ends_quietly(stops, tally):
    wrong, rng = [], random.Random(1)
    # Before 0.3 s Python itself starts.
    cases = tally.some([(number, delay) for number in SIGNALS
                        for delay in (0.3, *(rng.uniform(0.3, 3) for _ in range(5)))])
    for count, (number, delay) in enumerate(cases):
        out = stops.start(f"importing-{count}")
        process = started(stops.trial, out)
        time.sleep(delay)
        process.send_signal(number)
        sent = time.monotonic()
        text = process.communicate()[0]
        wrong += stops.judged(out, f"signal {number:d} after {delay:.2f} s", number, process.returncode, text,
                              time.monotonic() - sent)
    tally.add("signals", runs=len(cases), signals=len(cases), wrong=len(wrong))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.signals
def test_a_signal_while_compiling_is_heard(stops, tmp_path, tally):
    """Nothing can be lost then: the process leaves at once, and the run goes on as if it had not been there."""
    for number, delay in tally.some(((signal.SIGTERM, 1.0), (signal.SIGINT, 8.0), (signal.SIGHUP, 15.0))):
        tally.add("signals", runs=1, signals=1, wrong=1)  # until the opposite is shown
        out = stops.start(f"compiling-{number:d}")
        process = started(stops.trial, out, "--compile", XDG_CACHE_HOME=str(tmp_path / f"cache-{number:d}"))
        assert process.stdout
        while not process.stdout.readline().startswith("size "):  # compiling follows
            assert process.poll() is None
        time.sleep(delay)
        sent = time.monotonic()
        process.send_signal(number)
        process.wait()
        seconds = time.monotonic() - sent
        text = process.communicate()[0]  # a compiler that has not ended yet holds the pipe
        print(f"signal {number:d} after {delay:.0f} s of compiling: exit {process.returncode} {seconds:.1f} s later")
        assert process.returncode == 128 + number, text
        assert "Traceback" not in text
        assert seconds < 10
        assert stops.trial.ends_exactly(out) == []
        tally.add("signals", wrong=-1)


# ---------------------------------------------------------------- disks and folders


LONG = ["--checkpoint_every_steps", "10", "--eval_interval", "1000", "--gradient_accumulation_steps", "8",
        "--checkpoint_interval", "1000"]


@pytest.mark.slow
def test_a_full_disk_costs_saves_and_not_the_run(forks, corpus, tmp_path, small_disk):
    trial = Trial(forks, corpus, tmp_path, 150, LONG)
    out = small_disk / "out"
    run = Background(trial, out, "--keep_checkpoints", "1")
    run.wait(lambda text: "saved checkpoint-10" in text)
    ballast = fill(small_disk)
    run.wait(lambda text: text.count("could not be saved") >= 2)
    held = trial.newest(out)
    assert held >= 10
    assert trial.unsound(out) == []
    assert not list(out.glob(".tmp-*"))
    ballast.unlink()
    code, text = run.ended()
    failed = text.count("could not be saved")
    assert code == 0, text
    assert len(FAILED.findall(text)) == failed
    assert trial.unsound(out) == []
    assert tensors(out / "checkpoint-150") == trial.tensors[150]
    lines = (out / "metrics.jsonl").read_text().splitlines()
    whole = [json.loads(line) for line in lines if line.endswith("}")]  # a line cut by the full disk stays alone
    assert {fields["step"]: fields.get("loss") for fields in whole[:-1]}.items() <= {
        fields["step"]: fields.get("loss") for fields in trial.losses[:-1]}.items()
    assert 1 + failed < len(whole) < len(trial.losses)
    print(f"\nsaves that failed {failed}, held meanwhile: checkpoint-{held}; the disk freed, the next succeeded")


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_with_exit_5_and_the_run_can_go_on(forks, corpus, tmp_path, small_disk):
    trial = Trial(forks, corpus, tmp_path, 60, LONG)
    out = small_disk / "out"
    run = Background(trial, out, "--keep_checkpoints", "1")
    run.wait(lambda text: "saved checkpoint-10" in text)
    ballast = fill(small_disk)
    code, text = run.ended()
    assert code == 5, text
    assert "the last state could not be saved" in text
    assert trial.newest(out) >= 10
    ballast.unlink()
    assert trial.unsound(out) + trial.ends_exactly(out) == []


@pytest.mark.slow
def test_a_folder_that_is_unmounted_is_made_anew(forks, corpus, tmp_path, small_disk):
    trial = Trial(forks, corpus, tmp_path, 100, LONG)
    run = Background(trial, small_disk / "out", "--keep_checkpoints", "1")
    run.wait(lambda text: "saved checkpoint-10" in text)
    subprocess.run(["umount", "-l", str(small_disk)], check=True)
    code, text = run.ended()
    assert code == 0, text
    assert trial.unsound(small_disk / "out") == []
    assert trial.newest(small_disk / "out") == 100


def test_a_folder_that_is_deleted_is_made_anew(forks, corpus, tmp_path):
    trial = Trial(forks, corpus, tmp_path, 30, LONG)
    run = Background(trial, tmp_path / "out")
    run.wait(lambda text: "saved checkpoint-10" in text)
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "elsewhere")
    code, text = run.ended()
    assert code == 0, text
    assert trial.newest(tmp_path / "out") == 30
    assert trial.unsound(tmp_path / "out") == []
    assert all(line in trial.losses for line in metrics_of(tmp_path / "out"))


def test_a_folder_that_cannot_be_one_ends_with_exit_5(forks, corpus, tmp_path):
    argv = ["train.py", "--data_dir", str(corpus), *TINY, "--max_steps", "2", "--output_dir", str(tmp_path / "out")]
    for obstacle in ("file", "dangling link"):
        if obstacle == "file":
            (tmp_path / "out").write_text("mine")
        else:
            (tmp_path / "out").unlink()
            (tmp_path / "out").symlink_to(tmp_path / "nowhere")
        done = forks.run(argv)
        assert done.code == 5, f"{obstacle}: {done.stderr}"
        assert f"error: --output_dir {tmp_path / 'out'} cannot be written" in done.stderr
        assert "step 1/" not in done.stdout


@pytest.mark.slow
def test_a_read_only_folder_ends_with_exit_5_before_training(forks, corpus, small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for out in (small_disk, small_disk / "out"):
        argv = ["train.py", "--data_dir", str(corpus), *TINY, "--max_steps", "2", "--output_dir", str(out)]
        done = forks.run(argv)
        assert done.code == 5, done.stderr
        assert f"error: --output_dir {out} cannot be written: Read-only file system" in done.stderr

