"""Several processes train one model as one process does: the same losses, one voice, one folder."""

import re
import signal

import pytest

from checkpoint.find import steps_in
from common.errors import Exit
from tests.helpers.forks import Raised
from tests.helpers.training import metrics_of
from training.pace import WARM_STEPS

SMALL = ["--no-use_gpu", "--n_layer", "2", "--n_head", "2", "--n_embd", "32", "--seq_length", "8", "--batch_size", "2",
         "--gradient_accumulation_steps", "4", "--max_steps", "12", "--eval_interval", "5", "--log_interval", "1",
         "--sample_interval", "0", "--checkpoint_every_minutes", "0"]
EXACT = 1e-5  # of losses and norms in fp32, whose sums have another order


@pytest.fixture(scope="module")
def corpus(make_corpus, tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("several") / "corpus")


@pytest.fixture
def train(forks, corpus, tmp_path):
    """A function: runs train.py in so many processes on the small corpus."""

    def run(world_size, *flags, out="out", **more):
        argv = ["train.py", "--data_dir", str(corpus), "--output_dir", str(tmp_path / out), *SMALL, *flags]
        return forks.run(argv, world_size=world_size, alarm=120, **more)

    run.folder, run.corpus, run.forks = tmp_path, corpus, forks  # type: ignore[attr-defined]
    return run


def figures(folder):
    """Loss and norm of each step, and each validation."""
    rows = metrics_of(folder)
    return [row[key] for row in rows for key in ("loss", "grad_norm", "val_loss") if key in row]


@pytest.mark.parametrize("flags", [("--optimizer", "adamw", "--dropout", "0.1"), ("--arch", "qwen3"),
                                   ("--optimizer", "adamw", "--model_parallel", "fsdp")])
def test_losses_do_not_depend_on_the_number_of_processes(train, flags):
    for world_size in (1, 2, 4):
        done = train(world_size, *flags, out=str(world_size))
        assert done.code == 0, done.stderr
    alone = figures(train.folder / "1")
    assert len(alone) == 27
    for world_size in ("2", "4"):
        assert figures(train.folder / world_size) == pytest.approx(alone, rel=EXACT)


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


@pytest.mark.parametrize("rank", [0, 1])
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


@pytest.mark.parametrize("rank", [0, 1, None])
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
