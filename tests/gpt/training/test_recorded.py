"""One flag continues a run of any shape, data and recipe; what a run records is what it did."""

import functools
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

import train
from gpt.common.config import read_toml
from gpt.watching.monitor import Monitor
from tests.helpers.training import metrics_of, same_tensors

ALL = ["--n_layer", "2", "--n_head", "2", "--n_embd", "16", "--seq_length", "8", "--no-bias", "--no-tie_weights",
       "--dropout", "0.1", "--batch_size", "3", "--gradient_accumulation_steps", "2", "--epochs", "3",
       "--learning_rate", "3.3333333333333335e-3", "--min_lr", "1e-30", "--warmup_steps", "3", "--weight_decay", "0.03",
       "--beta1", "0.8", "--beta2", "0.97", "--grad_clip", "0.7", "--seed", "5",
       "--use_amp", "--preload", "mmap", "--eval_batches", "3", "--checkpoint_every_minutes", "0"]
FEW = ["--n_layer", "1", "--n_head", "2", "--n_embd", "16", "--seq_length", "8", "--batch_size", "4"]
DATA = 'the "da\\ta" $x'  # a shell and TOML would read it otherwise
COMMON = ["--no-use_gpu", "--max_steps", "20", "--log_interval", "1", "--eval_interval", "7", "--sample_interval", "0",
          "--checkpoint_every_steps", "4", "--data_dir", DATA]
STOP = 9


@pytest.fixture
def place(corpus, tmp_path, monkeypatch):
    """The current folder, with the corpus in it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(corpus, tmp_path / DATA)
    return tmp_path


def test_a_prompt_with_backslashes_is_read_back_as_it_was(place):
    argv = [*FEW, *COMMON, "--max_steps", "1", "--sample_interval", "9", "--sample_prompt", r"\\theta\n"]
    assert train.main(argv) == 0
    for flags in ("--resume_from out", "--config out/config.toml"):
        assert train.read_flags(flags.split()).sample_prompt == r"\\theta\n"


@pytest.fixture(scope="module")
def made(corpus, tmp_path_factory):
    """A function: the folder of a run that a signal stopped, parts, and of the same run undisturbed, whole."""

    @functools.cache
    def make(*flags: str) -> Path:
        folder = tmp_path_factory.mktemp("runs")
        shutil.copytree(corpus, folder / DATA)
        log_step = Monitor.add

        def stopping(monitor, *rest):
            log_step(monitor, *rest)
            if monitor.state.step == STOP:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            assert train.main([*flags, *COMMON, "--output_dir", "whole"]) == 0
            patch.setattr(Monitor, "add", stopping)
            assert train.main([*flags, *COMMON, "--output_dir", "parts"]) == 128 + signal.SIGTERM
        return folder

    return make


@pytest.fixture
def stopped(place, made):
    """A function: copies both runs into the current folder."""

    def call(flags: list[str], parts: str = "parts") -> None:
        shutil.copytree(made(*flags) / "whole", "whole")
        shutil.copytree(made(*flags) / "parts", parts)

    return call


def same_runs(a: str, b: str) -> bool:
    return metrics_of(Path(a)) == metrics_of(Path(b)) and same_tensors(Path(a, "checkpoint-20"),
                                                                      Path(b, "checkpoint-20"))


@pytest.mark.parametrize("flags", [ALL, FEW], ids=["every flag given", "few flags given"])
def test_one_flag_continues_a_run_bit_for_bit(stopped, flags, capsys):
    stopped(flags, "an out")
    capsys.readouterr()
    assert train.main(["--resume_from", "an out"]) == 0
    assert "\nresume      with the flags in an out/config.toml\n" in "\n" + capsys.readouterr().out
    assert same_runs("whole", "an out")
    assert not Path("out").exists()
    cards = [Path(out, "checkpoint-20/README.md").read_text() for out in ("whole", "an out")]
    assert cards[0] == cards[1]
    assert "\n    python train.py --data_dir " in cards[0]


def test_what_the_command_line_changes_is_said_in_one_line(stopped, capsys):
    stopped(FEW)
    rate = read_toml(Path("parts/config.toml")).decided["learning_rate"]
    capsys.readouterr()
    assert train.main(["--resume_from", "parts", "--learning_rate", "0.001", "--max_steps", "11"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"step \d+ of 11 \(planned before: 20\)\nresume      the learning rate was \S+e-0\d, is now ", out)
    assert out.partition("resume      changed: ")[2].startswith("learning_rate ")
    lines = [line for line in out.splitlines() if line.startswith("resume      with")]
    assert lines == ["resume      with the flags in parts/config.toml; on the command line max_steps 20 -> 11, "
                     f"learning_rate {rate!r} -> 0.001"]
    there = read_toml(Path("parts/config.toml"))
    assert (there.given["learning_rate"], there.given["max_steps"]) == (0.001, 11)


def test_the_file_holds_what_was_given_what_was_decided_and_nothing_of_one_call(place):
    argv = ["--data_dir", DATA, *FEW, "--max_steps", "2", "--no-use_gpu", "--resume_from", "auto"]
    assert train.main(argv) == 0
    there = read_toml(place / "out/config.toml")
    assert there.given == {"data_dir": DATA, "n_layer": 1, "n_head": 2, "n_embd": 16, "seq_length": 8,
                           "batch_size": 4, "max_steps": 2, "use_gpu": False}
    assert {"learning_rate", "warmup_steps", "weight_decay", "eval_interval", "seed"} <= set(there.decided)
    assert not {"output_dir", "resume_from", "overwrite", "dry_run", "debug", "use_amp", "compile", "model_size"} & {
        *there.values}
    text = (place / "out/config.toml").read_text()
    assert "python train.py --resume_from out" in text
    assert "\n# for " in text.partition("learning_rate")[0]  # the reason


def test_the_file_makes_another_run_alike(place):
    argv = ["--data_dir", DATA, *FEW, "--no-use_gpu", "--checkpoint_every_steps", "2", "--mirror_to", "mirror"]
    assert train.main([*argv, "--max_steps", "4"]) == 0
    assert train.main(["--config", "out/config.toml", "--output_dir", "again"]) == 0
    assert same_tensors(place / "out/checkpoint-4", place / "again/checkpoint-4")  # which has no mirror, or its own
    assert (place / "mirror/checkpoint-4").exists()


def test_another_run_over_another_text_has_no_teacher_that_learned_the_first(place):
    Path("two.toml").write_text('data_dir = "d"\n[decided]\nteacher = "two/first_model/checkpoint-9"\n'
                                "input_noise = 0.1\n")
    assert train.read_flags(["--config", "two.toml", "--output_dir", "again"]).teacher
    other = train.read_flags(["--config", "two.toml", "--data_dir", "e"])
    assert (other.teacher, other.input_noise) == (None, 0.0)


def test_a_run_whose_folder_has_moved_finds_its_first_model(stopped, monkeypatch):
    stopped(FEW)
    first = Path("moved/first_model/checkpoint-9")
    Path("parts").rename("moved")
    first.mkdir(parents=True)
    path = Path("moved/config.toml")
    path.write_text('teacher = "parts/first_model/checkpoint-9"\n' + path.read_text())
    assert train.read_flags(["--resume_from", "moved"]).teacher == str(first)
    assert train.read_flags(["--resume_from", "moved", "--teacher", "b/first_model/checkpoint-9"]).teacher[0] == "b"
