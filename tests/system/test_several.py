"""Several processes train one model as one process does: the same losses, one voice, one folder."""

import re
import signal

import pytest

from checkpoint.find import steps_in
from checkpoint.folder import owned
from common.errors import Exit
from planning.pace import WARM_STEPS
from tests.helpers.forks import Raised
from tests.helpers.several import EXACT, SMALL, Several, figures
from tests.helpers.training import metrics_of


@pytest.fixture
def train(forks, make_corpus, tmp_path):
    """Several(...).run: runs train.py in so many processes on a small corpus."""
    return Several(forks, make_corpus(tmp_path / "corpus"), tmp_path)


def test_losses_do_not_depend_on_the_number_of_processes(train):
    for out, world_size, way in (("alone", 1, "ddp"), ("ddp", 2, "ddp"), ("fsdp", 2, "fsdp")):
        done = train(world_size, "--optimizer", "adamw", "--dropout", "0.1", "--model_parallel", way, out=out)
        assert done.code == 0, done.stderr
    alone = figures(train.folder / "alone")
    assert len(alone) == 27
    for out in ("ddp", "fsdp"):
        assert figures(train.folder / out) == pytest.approx(alone, rel=EXACT)


@pytest.mark.slow
def test_a_run_goes_on_in_another_number_of_processes(train):
    flags = ["--optimizer", "adamw", "--dropout", "0.1", "--lr_schedule", "constant", "--learning_rate", "1e-3"]
    assert train(1, *flags, out="alone").code == 0
    for world_size, last in ((2, "4"), (1, "8"), (4, "12")):
        done = train(world_size, *flags, "--resume_from", "auto", "--max_steps", last)
        assert done.code == 0, done.stderr
        assert world_size == 2 or "losses will differ in the last digits: processes" in done.stdout
    found, alone = ({row["step"]: row["loss"] for row in metrics_of(train.folder / out) if "loss" in row}
                    for out in ("out", "alone"))
    assert found == pytest.approx(alone, rel=EXACT)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_process_that_is_killed_takes_the_others_with_it_and_nothing_saved_is_lost(train, rank):
    flags = ["--optimizer", "adamw", "--dropout", "0.1", "--checkpoint_every_steps", "2", "--resume_from", "auto"]
    killed = Raised("train:train_step", WARM_STEPS + 1 + 8, signal.SIGKILL, rank=rank)
    died = train(2, *flags, raised=[killed])
    assert died.code in (128 + signal.SIGKILL, Exit.MACHINE)  # whichever is noticed first
    assert died.seconds < 20
    assert "bug" not in died.stderr
    assert rank == 0 or "error: another process of this run has ended" in died.stderr
    assert max(steps_in(train.folder / "out")) >= 4
    assert train(2, *flags).code == 0
    assert train(2, *flags, out="whole").code == 0
    assert figures(train.folder / "out") == figures(train.folder / "whole")


@pytest.mark.parametrize("rank", [*(pytest.param(rank, marks=pytest.mark.slow) for rank in (0, None)), 1])
def test_a_signal_to_any_process_stops_all_after_the_same_step_and_is_no_loss(train, rank):
    flags = ["--optimizer", "adamw", "--resume_from", "auto"]
    asked = [Raised("train:train_step", WARM_STEPS + 1 + 5, signal.SIGTERM, rank=rank)]
    stopped = train(2, *flags, raised=asked)
    assert stopped.code == 128 + signal.SIGTERM, stopped.stderr
    assert "stopped by SIGTERM; to continue: python train.py --resume_from" in stopped.stdout
    assert 5 <= max(steps_in(train.folder / "out")) <= 8
    assert train(2, *flags).code == 0
    assert train(2, *flags, out="whole").code == 0
    assert figures(train.folder / "out") == figures(train.folder / "whole")


def test_a_step_grows_with_the_number_of_processes_unless_a_flag_says_its_size(train):
    flags = [flag for flag in SMALL if flag not in ("--gradient_accumulation_steps", "4")]
    argv = ["train.py", "--data_dir", str(train.corpus), "--output_dir", str(train.folder / "out"), *flags]
    done = train.forks.run([*argv, "--max_steps", "2"], world_size=2, alarm=120)
    assert done.code == 0, done.stderr
    done = train.forks.run(["train.py", "--resume_from", str(train.folder / "out"), "--max_steps", "4"], alarm=120)
    assert done.code == 0, done.stderr
    assert [row["tokens"] for row in metrics_of(train.folder / "out") if "loss" in row] == [32, 64, 96, 128]


def test_one_process_prints_and_saves(train):
    alone, both = (train(world_size, out=str(world_size)) for world_size in (1, 2))

    def words(text):
        return [re.sub(r"[\d.,]+", "", line) for line in text.splitlines() if line.startswith(("step", "validation"))]

    assert words(both.stdout) == words(alone.stdout)
    assert both.stderr == alone.stderr
    assert list(steps_in(train.folder / "2")) == list(steps_in(train.folder / "1"))


@pytest.mark.parametrize(("flags", "code", "message"), [
    (["--data_dir", "nowhere"], 3, "error: --data_dir nowhere does not exist. Run: python pretokenize.py TEXT\n"),
    (["--n_layer", "many"], 2, "error: --n_layer 'many'"),
    (["--batch_size", "3", "--gradient_accumulation_steps", "1"], 2,
     "error: a step has 3 sequences, which 2 processes cannot share evenly. Give --batch_size and "
     "--gradient_accumulation_steps whose product is 4, for example.\n"),
])
def test_an_error_is_said_once(train, flags, code, message):
    done = train(2, *flags)
    assert done.code == code
    assert done.stderr.startswith(message)
    assert done.stderr.count("error:") == 1


# ---------------------------------------------------------------- what may befall one of them


def test_a_loss_that_is_not_finite_in_one_process_skips_the_step_in_all(train):
    spoilt = [Raised("model:GPT.forward", 2 * (WARM_STEPS + 1) + 2 * 4 + 1, rank=1, spoils=True)]
    done = train(2, "--optimizer", "adamw", raised=spoilt)
    assert done.code == 0, done.stderr
    assert "skipped_steps: 1\n" in done.stdout
    rows = {row["step"]: row for row in metrics_of(train.folder / "out") if "loss" in row}
    assert [step for step, row in rows.items() if row["loss"] is None] == [5]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_out_of_memory_in_one_process_is_remembered_and_the_next_start_takes_less_at_a_time(train, way):
    flags = ["--optimizer", "adamw", "--model_parallel", way, "--checkpoint_every_steps", "2", "--resume_from", "auto"]
    full = [Raised("train:train_step", WARM_STEPS + 1 + 6, rank=1, error="MemoryError")]
    died = train(2, *flags, raised=full)
    assert died.code == Exit.MACHINE
    assert re.search(r"error: process 1: out of memory with 2 sequences at a time: .* held, of .*\. What was saved is "
                     r"safe\. Start again with --resume_from auto: at most half", died.stderr)
    again = train(2, *flags)
    assert again.code == 0, again.stderr
    assert "batch_size  1 x 8 micro-batches: with 2 sequences at a time the run was out of memory" in again.stdout
    assert train(2, *flags, out="whole").code == 0
    assert figures(train.folder / "out") == pytest.approx(figures(train.folder / "whole"), rel=EXACT)


def test_a_process_with_another_recipe_or_other_tokens_says_in_what_it_differs(train, make_corpus):
    found = train(2, own_words={"1": ["--learning_rate", "0.01"]})
    assert found.code == Exit.MACHINE
    assert re.search(r"error: process 1: learning_rate: 0\.01 here, 0\.\d+ in process 0\. Give all machines the same",
                     found.stderr)
    other = make_corpus(train.folder / "other", seed=1)
    found = train(2, own_words={"1": ["--data_dir", str(other)]})
    assert "error: process 1: training tokens: " in found.stderr
    found = train(2, own_words={"1": ["--data_dir", "nowhere"]})
    assert "error: process 1: --data_dir nowhere does not exist." in found.stderr


def test_a_second_run_in_the_same_folder_is_refused_in_all_processes(train):
    with owned(train.folder / "out"):
        done = train(2)
    assert done.code == Exit.BUSY
    assert done.stderr.count("is in use by another run") == 1


@pytest.mark.slow
def test_a_process_that_stands_still_for_a_while_is_waited_for(train):
    done = train(2, raised=[Raised("train:train_step", WARM_STEPS + 1 + 3, signal.SIGSTOP, delay=1.0, rank=1)])
    assert done.code == 0, done.stderr
    assert done.seconds > 1
    assert metrics_of(train.folder / "out")[-1]["step"] == 12


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_sigusr1_to_any_process_saves_and_the_run_goes_on(train, rank):
    done = train(2, raised=[Raised("train:train_step", WARM_STEPS + 1 + 7, signal.SIGUSR1, rank=rank)])
    assert done.code == 0, done.stderr
    assert [step for step in steps_in(train.folder / "out") if step not in (5, 10, 12)]
