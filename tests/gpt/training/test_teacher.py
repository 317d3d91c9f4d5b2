"""A model that is distilled from a finished one: its loss, how it is refused, stopped and resumed."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

import train
from gpt.checkpoint import stored
from gpt.checkpoint.load import load_model
from gpt.checkpoint.steps import steps_in
from gpt.common.errors import Exit
from gpt.ops.loss import TEACHERS_SHARE
from gpt.training.teacher import Teacher, load_teacher
from model import Options
from tests.helpers.training import metrics_of, on_cpu, run_of, same_tensors

STEPS = ["--max_steps", "8", "--log_interval", "1", "--eval_interval", "4"]


@pytest.fixture
def with_teacher(run):
    """The runner of train.main, with a teacher in the folder `first` of its folder."""
    run.ok(*STEPS, "--arch", "qwen3", "--n_embd", "32", "--seed", "3", out="first")
    return run


@pytest.fixture
def student(with_teacher):
    """A model that was distilled from the teacher, in the folder `second`."""
    with_teacher.ok(*STEPS, "--teacher", str(with_teacher.folder / "first"), "--dropout", "0.1", out="second")


@pytest.mark.usefixtures("student")
def test_half_of_each_target_is_what_the_teacher_expects(with_teacher):
    teacher, student = (load_model(with_teacher.folder / name / "checkpoint-8", torch.device("cpu")).eval()
                        for name in ("first", "second"))
    ids = torch.randint(student.config.vocab_size, (2, 9))
    with torch.no_grad():
        expected = teacher(ids[:, :-1]).softmax(-1)
        wanted = TEACHERS_SHARE * expected
        wanted.scatter_add_(-1, ids[:, 1:, None], torch.full((2, 8, 1), 1 - TEACHERS_SHARE))
        loss = -(wanted * student(ids[:, :-1]).log_softmax(-1)).sum(-1).mean()
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    result = train.try_step(run_of(student, teacher=Teacher(teacher)), [(ids[:, :-1], ids[:, 1:])], 1)
    assert float(result["loss"]) == pytest.approx(float(loss), rel=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


def test_a_teacher_that_is_missing_is_told_with_an_output_folder_of_another_run(with_teacher):
    text = with_teacher.refused(Exit.CHECKPOINT, *STEPS, "--teacher", "nosuch", out="first")
    assert "holds the checkpoints of another run" in text
    assert "error: --teacher nosuch does not exist. Give --teacher" in text


def test_a_teacher_whose_weights_are_kept_in_bf16_expects_the_same(with_teacher):
    machine, ids = dataclasses.replace(on_cpu(), dtype=torch.bfloat16), torch.randint(99, (2, 8))
    with machine.autocast():
        found, expected = (load_teacher(str(with_teacher.folder / "first" / "checkpoint-8"), Options(rounded_to=dtype),
                                        machine)(ids)[0] for dtype in (torch.bfloat16, None))  # type: ignore[misc]
    assert torch.equal(found, expected)


def test_a_teacher_in_fp16_has_a_residual_stream_in_fp32(with_teacher):
    machine = dataclasses.replace(on_cpu(), dtype=torch.float16)
    options = Options(residual_dtype=torch.float16)
    teacher = load_teacher(str(with_teacher.folder / "first/checkpoint-8"), options, machine)
    assert teacher._model.options.residual_dtype is None  # activations of trained weights may exceed 65,504


def test_a_distilling_run_that_was_stopped_ends_with_the_same_bytes(with_teacher):
    shown = str(with_teacher.folder / "first" / "checkpoint-8")
    flags = [*STEPS, "--teacher", shown, "--dropout", "0.1", "--label_smoothing", "0.1", "--warmup_steps", "1",
             "--lr_schedule", "constant"]
    with_teacher.ok(*flags, "--max_steps", "4", out="whole")
    resume = ["--resume_from", str(with_teacher.folder / "whole"), "--max_steps", "8"]
    moved = (with_teacher.folder / "first").rename(with_teacher.folder / "moved")  # after the run recorded where it is
    assert "where it is now" in with_teacher.refused(Exit.CHECKPOINT, *resume, out="whole")
    assert f"teacher     {moved}" in with_teacher.ok(*resume, "--teacher", str(moved), out="whole")
    moved.rename(with_teacher.folder / "first")
    with_teacher.ok(*flags, out="again")
    assert same_tensors(with_teacher.folder / "whole" / "checkpoint-8", with_teacher.folder / "again" / "checkpoint-8")


@pytest.mark.usefixtures("student")
def test_a_run_goes_on_with_the_weights_that_taught_it_before(with_teacher):
    run, folder = with_teacher, with_teacher.folder
    resume = ["--resume_from", str(folder / "second"), "--max_steps", "9"]
    (folder / "first").rename(folder / "before")
    run.ok(*STEPS, "--arch", "qwen3", "--n_embd", "32", "--seed", "4", out="first")
    for requested in ([], ["--teacher", str(folder / "first")]):
        assert "--teacher" in run.refused(Exit.CHECKPOINT, *resume, *requested, out="second")
    shutil.copytree(folder / "second", folder / "third")
    run.ok(*resume, "--teacher", str(folder / "before"), out="second")
    run.ok("--resume_from", str(folder / "third"), "--max_steps", "9", "--allow_new_data", out="third")
    shutil.copytree(folder / "before/checkpoint-8", folder / "second/base")  # in the run's folder, but not its own
    run.ok(*resume[:2], "--max_steps", "10", "--teacher", str(folder / "second/base"), out="second")
    run.ok("--resume_from", str(folder / "first"), "--n_embd", "32", "--max_steps", "10", "--teacher",
           str(folder / "third"), out="first")  # which had no teacher


@pytest.mark.usefixtures("student")
def test_a_run_of_a_version_that_recorded_no_weights_goes_on(with_teacher, monkeypatch):
    monkeypatch.setattr("gpt.planning.inputs._weights_sha256", lambda _: "other")
    resume = ["--resume_from", str(with_teacher.folder / "second"), "--max_steps", "9"]
    with_teacher.refused(Exit.CHECKPOINT, *resume, out="second")
    recorded = stored.parse_state

    def without_sha256(content):
        content["settings"].pop("teacher_sha256")
        return recorded(content)

    monkeypatch.setattr(stored, "parse_state", without_sha256)
    with_teacher.ok(*resume, out="second")


def test_a_validation_is_of_the_text_alone(with_teacher):
    flags = [*STEPS, "--learning_rate", "1e-30", "--min_lr", "0"]
    with_teacher.ok(*flags, "--teacher", str(with_teacher.folder / "first"), "--label_smoothing", "0.1",
                    out="distilled")
    with_teacher.ok(*flags, out="alone")
    (distilled, rows) = (metrics_of(with_teacher.folder / name) for name in ("distilled", "alone"))
    assert [row.get("val_loss") for row in distilled] == [row.get("val_loss") for row in rows]
    assert [row.get("loss") for row in distilled] != [row.get("loss") for row in rows]


def test_what_is_no_teacher_is_refused(with_teacher, corpus):
    first, refused = str(with_teacher.folder / "first"), with_teacher.refused
    other_ids = ["--bin_file", f"{corpus}/train.bin", "--vocab_size", "4000"]
    assert "4,000" in refused(Exit.DATA, "--teacher", first, *other_ids, out="other")
    assert "--seq_length 64" in refused(Exit.FLAGS, "--teacher", first, "--seq_length", "64", out="other")
    assert "--teacher nowhere" in refused(Exit.CHECKPOINT, "--teacher", "nowhere", out="other")
    assert "--overwrite" in refused(Exit.FLAGS, "--teacher", first, "--overwrite", out="first")
    assert steps_in(Path(first))


@pytest.mark.usefixtures("student")
def test_no_run_is_its_own_teacher_and_its_first_model_is_another_run(with_teacher):
    run, first = with_teacher, with_teacher.folder / "first"
    for resumed in ("auto", str(first), str(first / "checkpoint-8")):
        for teacher in (first, first / "checkpoint-8", first / "best"):
            said = run.refused(Exit.FLAGS, "--resume_from", resumed, "--max_steps", "9", "--arch", "qwen3",
                               "--n_embd", "32", "--teacher", str(teacher), out="first")
            assert "--teacher" in said
    assert max(steps_in(first)) == 8
    shutil.copytree(first, with_teacher.folder / "second/first_model")
    run.ok("--resume_from", "auto", "--max_steps", "9", "--teacher",
           str(with_teacher.folder / "second/first_model/checkpoint-8"), out="second")
