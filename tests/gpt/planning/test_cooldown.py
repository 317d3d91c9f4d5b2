"""Decays that begin at a checkpoint or are left: --cooldown_from, and a wsd run that is made longer."""

import json
import shutil

import pytest

from gpt.checkpoint.steps import steps_in
from gpt.common.errors import Exit
from gpt.watching.monitor import Monitor
from tests.helpers.training import metrics_of, same_tensors

EVERY = ["--log_interval", "1", "--checkpoint_every_steps", "5", "--keep_checkpoints", "99", "--learning_rate", "1e-3"]


@pytest.fixture
def killed(run, monkeypatch):
    """A function: as run, but the run is killed after the step; what it has saved until then stays."""

    def call(kill: int, *flags: str, out: str):
        def dying(monitor, result):
            if monitor.state.step == kill:
                raise KeyboardInterrupt
            add(monitor, result)

        add = Monitor.add
        with monkeypatch.context() as patch:
            patch.setattr(Monitor, "add", dying)
            with pytest.raises(KeyboardInterrupt):
                run(*flags, out=out)

    return call


def rates_of(folder) -> dict[int, float]:
    return {row["step"]: row["lr"] for row in metrics_of(folder) if "lr" in row}


def settings_of(folder) -> dict:
    return json.loads((folder / "trainer_state.json").read_text())["settings"]


# ---------------------------------------------------------------- the plateau


@pytest.mark.parametrize(("cooldown", "end"), [([], 16), (["--cooldown", "5"], 15)])
def test_the_checkpoint_of_the_plateau_stays_and_a_longer_run_equals_one_planned_so_long(run, cooldown, end):
    """--cooldown is recorded as it was given, in steps too."""
    flags = ["--lr_schedule", "wsd", "--log_interval", "1", "--learning_rate", "1e-3", "--warmup_steps", "2",
             "--keep_checkpoints", "1", "--checkpoint_every_steps", "3"]
    assert run(*flags, *cooldown, "--max_steps", "20")[0] == 0
    out = run.folder / "out"
    assert end in steps_in(out)
    assert rates_of(out)[end] == 1e-3 > rates_of(out)[end + 1] > rates_of(out)[20] > 0

    text = run.ok(*flags, "--max_steps", "30", "--resume_from", str(out / f"checkpoint-{end}"), "--overwrite")
    assert f"resume      from checkpoint-{end}, step {end} of 30" in text
    assert run(*flags, *cooldown, "--max_steps", "30", out="whole")[0] == 0
    assert metrics_of(out) == metrics_of(run.folder / "whole")
    assert same_tensors(out / "checkpoint-30", run.folder / "whole/checkpoint-30")


# ---------------------------------------------------------------- a cooldown


@pytest.fixture
def plateau(run):
    """The folder of a run of 20 steps at a constant rate, with a checkpoint every 5 steps."""
    assert run("--no-use_lr_scheduler", "--max_steps", "20", "--dropout", "0.1", *EVERY)[0] == 0
    return run.folder / "out"


@pytest.mark.parametrize(("out", "kills"), [
    pytest.param("out", (21,), id="in its folder, before its first checkpoint"),
    pytest.param("elsewhere", (22, 24, 27), id="elsewhere, thrice"),
    pytest.param("out", (22, 24, 27), id="in its folder, thrice", marks=pytest.mark.slow),
    pytest.param("elsewhere", (21,), id="elsewhere, before its first checkpoint", marks=pytest.mark.slow)])
def test_a_cooldown_that_was_killed_and_resumed_equals_one_that_was_not(run, killed, plateau, out, kills):
    shutil.copytree(plateau, run.folder / "whole")
    cool = ["--cooldown", "8"]
    assert run("--cooldown_from", str(run.folder / "whole/checkpoint-20"), *cool, out="whole")[0] == 0
    begin, again = ["--cooldown_from", str(plateau / "checkpoint-20"), *cool], ["--resume_from", "auto"]
    for start, kill in enumerate(kills):
        killed(kill, *(again if start else begin), out=out)
    run.ok(*again, out=out)
    cooled = run.folder / out
    assert max(steps_in(cooled)) == 28
    assert same_tensors(cooled / "checkpoint-28", run.folder / "whole/checkpoint-28")
    rates = rates_of(cooled)
    assert [rates[step] for step in range(21, 29)] == pytest.approx([1e-3 * (9 - n) / 9 for n in range(1, 9)])
    assert settings_of(cooled / "checkpoint-28")["cooldown_start"] == 20


@pytest.mark.parametrize("flags", [
    pytest.param(["--lr_schedule", "linear"], id="linear"),
    *(pytest.param(words, id=" ".join(words), marks=pytest.mark.slow) for words in (
        ["--use_lr_scheduler"], ["--lr_schedule", "wsd"], ["--lr_schedule", "constant"]))])
def test_a_cooldown_begins_at_any_checkpoint_at_the_rate_of_that_step(run, flags):
    assert run(*flags, "--max_steps", "20", *EVERY)[0] == 0
    text = run.ok("--cooldown_from", str(run.folder / "out/checkpoint-15"), "--verbose", out="new")
    rate = rates_of(run.folder / "out")[15]
    assert f"\nschedule    cooldown: from {rate:.2e} at step 15 down to 0.00e+00 at step 18" in text
    assert f"the learning rate was {rate:.2e}," in text
    rates = rates_of(run.folder / "new")
    assert [rates[step] for step in (16, 17, 18)] == pytest.approx([rate * fraction for fraction in (0.75, 0.5, 0.25)])
    assert max(steps_in(run.folder / "new")) == 18
    assert max(steps_in(run.folder / "out")) == 20


def test_a_checkpoint_at_which_the_cooldown_does_not_begin_is_named(run, plateau):
    earlier, line = str(plateau / "checkpoint-10"), "resume      without --resume_from "
    both = ["--cooldown_from", str(plateau), "--cooldown", "2", *EVERY]
    text = run.ok("--resume_from", earlier, *both, out="new")
    assert f"{line}{earlier}: the cooldown begins at {plateau}/checkpoint-20\n" in text
    for number, requested in enumerate((str(plateau), str(plateau / "checkpoint-20"), "auto")):
        assert line not in run.ok("--resume_from", requested, *both, out=f"new-{number}")


@pytest.mark.slow
def test_a_run_goes_on_from_its_plateau_after_a_cooldown(run, plateau):
    assert run("--cooldown_from", str(plateau), "--cooldown", "4")[0] == 0
    _, text = run("--resume_from", "auto")
    assert "already at step 24 of 24; cooled down" in text
    assert f"--resume_from {plateau}/checkpoint-20 --output_dir {plateau}-longer" in text
    run.ok("--resume_from", str(plateau / "checkpoint-20"), "--max_steps", "30", "--overwrite")
    assert rates_of(plateau)[30] == 1e-3
    assert run("--no-use_lr_scheduler", "--max_steps", "30", "--dropout", "0.1", *EVERY, out="whole")[0] == 0
    assert same_tensors(plateau / "checkpoint-30", run.folder / "whole/checkpoint-30")


@pytest.mark.parametrize("checkpoints", ["replaced", "deleted before"])
def test_a_cooldown_in_the_place_of_another_run_keeps_nothing_of_its_metrics(checkpoints, run, plateau):
    run.ok("--max_steps", "12", "--eval_interval", "4", *EVERY, out="other")
    assert rates_of(run.folder / "other").keys() >= {1, 12}
    if checkpoints == "deleted before":
        for folder in steps_in(run.folder / "other").values():
            shutil.rmtree(folder)
    run.ok("--cooldown_from", str(plateau / "checkpoint-10"), "--overwrite", *EVERY, out="other")
    assert min(rates_of(run.folder / "other")) == 11


def test_the_advice_after_a_cooldown_is_the_command_that_a_resume_of_it_prints(run, plateau, monkeypatch):
    monkeypatch.setattr("gpt.watching.monitor.best_improvement", lambda *_: ("longer", "it still learns"))
    text = run.ok("--cooldown_from", str(plateau), "--cooldown", "4", *EVERY, out="new")
    command = text.split("To improve: it still learns\n")[1].splitlines()[0]
    assert command.endswith("--max_steps 48")
    assert command in run.ok("--resume_from", str(run.folder / "new"), out="new")


def test_a_cooldown_that_is_not_possible_is_refused(run, plateau):
    assert run("--cooldown_from", str(plateau / "checkpoint-10"))[0].code == Exit.CHECKPOINT  # later ones are there
    said = run.refused(Exit.FLAGS, "--cooldown_from", str(plateau / "checkpoint-10"), "--min_lr", "0.001", out="new")
    assert "0.001 already" in said
    assert "--min_lr is 0.001" in said
    said = run.refused(Exit.FLAGS, "--cooldown_from", str(plateau / "checkpoint-10"), "--learning_rate", "1", out="new")
    assert "--learning_rate: a cooldown falls from the learning rate of its checkpoint" in said
    run.refused(Exit.CHECKPOINT, "--cooldown_from", "auto", out="new")
    run.ok("--lr_schedule", "cosine", "--max_steps", "8", out="fallen")  # to a hundredth of its peak
    run.refused(Exit.FLAGS, "--cooldown_from", str(run.folder / "fallen"), out="new")
