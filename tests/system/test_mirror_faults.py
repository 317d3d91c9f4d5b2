"""What train.py leaves in its mirror when the mirror's disk, the machine or its user fail it, at every moment.

The run's own folder is deleted after each kill, as a machine that is gone takes it along: what goes on goes on from the
mirror, and ends byte for byte as a run that nothing disturbed.

    python -m pytest -m slow tests/system/test_mirror_faults.py
"""

import json
import re
import shutil
import signal
import statistics
import subprocess
from pathlib import Path

import pytest

from checkpoint.find import newest_sound, steps_in
from checkpoint.verify import verify
from tests.helpers.forks import Raised
from tests.helpers.several import Several
from tests.helpers.training import metrics_of
from tests.helpers.trials import Background, Trial, calls_in, fill, tensors

LAST = 6
KILLS = ("kill", "tear")
SAID = re.compile(r"warning: --mirror_to \S+: (it is full|Input/output error|it is not there|it cannot be written|what "
                  r"was written reads back)")


def drive_of(out: Path) -> Path:
    return out.with_name(f"{out.name}-drive")


class Mirrored(Trial):
    """A run with a mirror beside its folder."""

    def argv(self, out: Path) -> list[str]:
        return [*super().argv(out), "--mirror_to", str(drive_of(out))]


@pytest.fixture(scope="module")
def corpus(make_corpus, tmp_path_factory):
    """1,000 training tokens: 31 steps an epoch."""
    return make_corpus(tmp_path_factory.mktemp("mirrored") / "corpus")


@pytest.fixture(scope="module")
def trial(disk, corpus, tmp_path_factory):
    """The last of two checkpoints is copied, and again when its validation has been recorded."""
    flags = ["--checkpoint_every_steps", "3", "--eval_interval", "1000"]
    return Mirrored(disk, corpus, tmp_path_factory.mktemp("trial"), LAST, flags)


class CopySweep:
    """The copies of the last checkpoint, whose every call on the mirror's disk can be made to fail."""

    def __init__(self, trial: Mirrored):
        self.trial, log = trial, trial.folder / "calls.tsv"
        log.touch()
        code, text, _ = self.run(trial.folder / "counted", "count", 0, log)
        assert (code, trial.unsound(drive_of(trial.folder / "counted"))) == (0, []), text
        self.calls = calls_in(log)

    def run(self, out: Path, action: str, at: int, log: Path | None = None) -> tuple[int, str, float]:
        env = {"FAULTY_FOLDER": str(drive_of(out)), "FAULTY_STEP": str(LAST), "FAULTY_ACTION": action,
               "FAULTY_AT": str(at), "FAULTY_LOG": str(log or "")}
        return self.trial.run(out, env=env)

    def cases(self, *actions: str) -> list[tuple[str, int]]:
        return [(action, at) for at in range(1, len(self.calls) + 1) for action in actions]

    def wrong(self, case: tuple[str, int]) -> list[str]:
        """What is wrong after a fault, and after going on from the mirror alone."""
        (action, at), trial = case, self.trial
        out, log = trial.folder / f"{action}-{at}", trial.folder / f"{action}-{at}.tsv"
        log.touch()
        code, text, _ = self.run(out, action, at, log)
        is_killed = action in KILLS and code == -signal.SIGKILL  # the number of calls differs a little
        wrong = [] if is_killed or code == 0 else [f"exit {code}\n{text}"]
        wrong += trial.unsound(drive_of(out)) + trial.unsound(out)
        if not is_killed:
            made = calls_in(log)
            # Fewer calls than that where the copy began late, and both states of the checkpoint were one.
            kind = made[at - 1][1] if len(made) >= at else None
            if "Traceback" in text or "a bug in the program" in text:
                wrong.append(text)
            if action in ("full", "eio") and kind in ("write", "open", "mkdir") and not SAID.search(text):
                wrong.append(f"nothing was said\n{text}")
            if len(SAID.findall(text)) > 1:
                wrong.append(f"said twice\n{text}")
            if trial.last not in steps_in(out):
                wrong.append("the run's own checkpoint is missing")
        else:
            shutil.rmtree(out)  # the machine is gone
        wrong += trial.ends_exactly(out) + trial.unsound(drive_of(out))
        if trial.last not in steps_in(drive_of(out)):
            wrong.append("the mirror lacks the last checkpoint in the end")
        wrong += [f"{path.name} was left in the mirror" for path in drive_of(out).glob(".tmp-*")]
        for folder in (out, drive_of(out)):
            shutil.rmtree(folder)
        return [f"{action} at call {at}: {problem}" for problem in wrong]


@pytest.fixture(scope="module")
def copies(trial):
    return CopySweep(trial)


@pytest.mark.slow
@pytest.mark.sweeps
def test_what_is_copied_is_on_the_mirrors_disk_before_it_is_seen(copies):
    calls = [(kind, Path(path)) for _, kind, path, _ in copies.calls]
    temporary = next(path for kind, path in calls if kind == "mkdir")
    renamed = calls.index(("rename", temporary))
    for name in (path.name for path in (copies.trial.whole / f"checkpoint-{LAST}").iterdir()):
        mine = [kind for kind, path in calls[:renamed] if path == temporary / name]
        assert mine[-1] == "fsync", name
    assert any(kind == "fsync" and path == temporary for kind, path in calls[:renamed])
    assert any(kind == "fsync" and path == drive_of(copies.trial.folder / "counted") for kind, path in calls[renamed:])


@pytest.mark.slow
@pytest.mark.kills
def test_a_machine_that_is_gone_while_a_checkpoint_is_copied_costs_no_checkpoint(copies, tally):
    """A kill, or a torn write, at every call of the copies; then a new machine, which has the mirror alone."""
    cases = tally.some(copies.cases(*KILLS))
    wrong = copies.trial.forks.map(copies.wrong, cases)
    tally.add("kills", runs=len(cases), calls=len(copies.calls), wrong=len(wrong))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.sweeps
def test_a_mirror_that_fails_at_any_call_costs_the_run_nothing(copies, tally):
    cases = tally.some(copies.cases("nospace", "full", "eio", "short"))
    wrong = copies.trial.forks.map(copies.wrong, cases)
    tally.add("sweeps", runs=len(cases), calls=len(copies.calls), wrong=len(wrong))
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------- real disks


LONG = ["--checkpoint_every_steps", "10", "--eval_interval", "1000", "--gradient_accumulation_steps", "8",
        "--checkpoint_interval", "1000"]


def on_a_disk(small_disk: Path, trial: Trial, out: Path, *flags: str) -> Background:
    return Background(trial, out, "--mirror_to", str(small_disk / "run"), "--keep_checkpoints", "1", *flags)


@pytest.mark.slow
def test_a_full_mirror_is_said_once_and_used_again_when_there_is_space(disk, corpus, tmp_path, small_disk):
    trial = Trial(disk, corpus, tmp_path, 200, LONG)
    run = on_a_disk(small_disk, trial, tmp_path / "out")
    run.wait(lambda text: "is in" in text)
    ballast = fill(small_disk)
    run.wait(lambda text: "it is full (No space left on device" in text)
    held = newest_sound(small_disk / "run", print)
    ballast.unlink()
    code, text = run.ended()
    assert code == 0, text
    assert held
    assert text.count("it is full") == 1
    assert "can be written again and has all that it lacked" in text
    assert trial.unsound(small_disk / "run") == []
    assert tensors(small_disk / "run/checkpoint-200") == trial.tensors[200]


@pytest.mark.slow
def test_a_mirror_that_is_unmounted_is_not_made_anew_on_the_machines_own_disk(disk, corpus, tmp_path, small_disk):
    trial = Trial(disk, corpus, tmp_path, 200, LONG)
    run = on_a_disk(small_disk, trial, tmp_path / "out")
    run.wait(lambda text: "is in" in text)
    subprocess.run(["umount", "-l", str(small_disk)], check=True)
    code, text = run.ended()
    assert code == 0, text
    assert text.count("it is not there any more") == 2, "once when it happens, once in the line at the end"
    assert list(small_disk.iterdir()) == []
    assert re.search(r"lacks checkpoint-200: .*Copy it by hand: cp -r", text)
    assert tensors(tmp_path / "out/checkpoint-200") == trial.tensors[200]


@pytest.mark.slow
def test_a_mirror_that_becomes_read_only_is_said(disk, corpus, tmp_path, small_disk):
    trial = Trial(disk, corpus, tmp_path, 200, LONG)
    run = on_a_disk(small_disk, trial, tmp_path / "out")
    run.wait(lambda text: "is in" in text)
    while subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], capture_output=True).returncode:
        pass  # busy, while a file is written there
    code, text = run.ended()
    assert code == 0, text
    assert "it cannot be written (Read-only file system). Make it writable. Training goes on" in text
    assert trial.unsound(small_disk / "run") == []
    assert newest_sound(small_disk / "run", print)


# ---------------------------------------------------------------- a slow disk


def seconds_of_steps(out: Path) -> list[float]:
    """The times of the steps but the first ones."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["seconds"] for row in rows if "loss" in row][10:]


@pytest.mark.slow
def test_training_waits_for_nothing_however_slow_the_mirror_is(disk, corpus, tmp_path):
    """Each call on the mirror's disk takes 0.3 s or more: a copy takes half a minute, or three times a run.

    What the steps take is printed, not asserted: it depends on what else the machine does. Asserted is that the run did
    all its saves while a copy was on the way, and that the last one is waited for.
    """
    trial = Trial(disk, corpus, tmp_path, 60, [*LONG, "--checkpoint_every_steps", "5"])
    out, drive = tmp_path / "slow", tmp_path / "drive"
    slow = {"FAULTY_FOLDER": str(drive), "FAULTY_STEP": "5", "FAULTY_SLOW": str(max(300, round(75 * trial.seconds)))}
    code, text, seconds = trial.run(out, "--mirror_to", str(drive), "--log_interval", "1", env=slow)
    assert code == 0, text
    first = text.index("mirror      checkpoint-5 is in")
    assert text.index("step 60/60") < first, "all steps were done before the first copy"
    assert "saved checkpoint-" in text
    assert f"mirror      checkpoint-60 is in {drive}, verified" in text
    assert metrics_of(out) == trial.losses
    assert trial.unsound(drive) == []
    medians = [statistics.median(seconds_of_steps(folder)) for folder in (trial.whole, out)]
    print(f"\nmedian step without a mirror {1000 * medians[0]:.2f} ms, beside a slow one {1000 * medians[1]:.2f} ms; "
          f"the run {trial.seconds:.1f} and {seconds:.1f} s, the last copy included")


@pytest.mark.slow
@pytest.mark.signals
def test_a_second_signal_leaves_the_last_copy(disk, corpus, tmp_path):
    trial = Trial(disk, corpus, tmp_path, LAST, ["--eval_interval", "1000"])
    out, drive = tmp_path / "left", tmp_path / "drive"
    slow = {"FAULTY_FOLDER": str(drive), "FAULTY_STEP": str(LAST), "FAULTY_SLOW": "1000"}
    raised = [Raised("training.checkpointing:Checkpointer._finish_mirror", 1, signal.SIGINT, delay)
              for delay in (0.5, 3)]
    code, text, _ = trial.run(out, "--mirror_to", str(drive), env=slow, raised=raised)
    assert code == 128 + signal.SIGINT, text
    assert f"SIGINT: stopping; the last copy to {drive} is waited for. Ctrl-C again ends it at once and loses" in text
    assert f"Lost: that copy to {drive}. Safe: checkpoint-{LAST}" in text
    assert verify(out / f"checkpoint-{LAST}")
    assert trial.unsound(drive) == []


@pytest.mark.slow
def test_of_several_processes_the_first_one_copies(forks, make_corpus, tmp_path):
    train = Several(forks, make_corpus(tmp_path / "corpus"), tmp_path)
    done = train(2, "--max_steps", "6", "--mirror_to", str(tmp_path / "drive"), "--eval_interval", "3", out="two")
    assert done.code == 0, done.stderr
    assert steps_in(tmp_path / "drive").keys() == steps_in(tmp_path / "two").keys() > {6}
    assert done.stdout.count("checkpoint-6 is in") == 1
    shutil.rmtree(tmp_path / "two")
    done = train(2, "--max_steps", "8", "--mirror_to", str(tmp_path / "drive"), "--resume_from", "auto", out="two")
    assert done.code == 0, done.stderr
    assert 8 in steps_in(tmp_path / "drive")
