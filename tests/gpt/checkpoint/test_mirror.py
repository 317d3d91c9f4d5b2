"""mirror.py: copies are there whole or not at all, training never waits for them, and a run goes on from them."""

import contextlib
import errno
import io
import shutil
import threading
from argparse import Namespace
from pathlib import Path

import pytest

from gpt.checkpoint import mirror as room
from gpt.checkpoint.folder import Retention
from gpt.checkpoint.mirror import Mirror, bring_back, copy_checkpoint, copy_run_files, is_copied
from gpt.checkpoint.steps import steps_in
from gpt.checkpoint.stored import verify
from gpt.common.config import Origin
from gpt.common.errors import Exit, InvalidCheckpoint
from gpt.common.progress import Progress
from tests.helpers.checkpoints import edit, flip, names_in, seal
from tests.helpers.training import QUIET, metrics_of, trained


@pytest.fixture(scope="module")
def sound(make_checkpoint, tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("sound"), 900)[0]


@pytest.fixture
def numbered(sound, tmp_path):
    """A function: makes sound checkpoints of these steps in the run's folder, and returns the last."""

    def make(*steps):
        path = sound
        for step in steps:
            path = Path(shutil.copytree(sound, tmp_path / "out" / f"checkpoint-{step}"))
            edit(path / "trainer_state.json", step=step, best_step=0, stays=False)
            seal(path)
        return path

    return make


@pytest.fixture
def drive(tmp_path):
    return tmp_path / "drive"


# ---------------------------------------------------------------- copies


def test_another_copy_of_its_step_takes_the_place_of_a_copy(numbered, drive):
    drive.mkdir()
    source = numbered(9)
    for validated in (0, 9):
        edit(source / "trainer_state.json", validated_step=validated)
        seal(source)
        assert not is_copied(source, drive / source.name)
        copy_checkpoint(source, drive)
        assert is_copied(source, drive / source.name)
        assert names_in(drive) == ["checkpoint-9"]


@pytest.mark.parametrize("where", ["source", "copy"])
def test_a_copy_that_does_not_verify_does_not_appear(numbered, drive, monkeypatch, where):
    drive.mkdir()
    source, real = numbered(1), shutil.copyfileobj
    if where == "source":
        flip(source / "model.safetensors")
    else:
        monkeypatch.setattr(shutil, "copyfileobj", lambda reader, writer, size: (
            real(reader, writer, size), writer.write(b"?")))
    with pytest.raises(InvalidCheckpoint):
        copy_checkpoint(source, drive)
    assert names_in(drive) == []


# ---------------------------------------------------------------- the thread


@pytest.fixture
def printed():
    return io.StringIO()


@pytest.fixture
def mirror(tmp_path, drive, printed, capsys):
    (tmp_path / "out").mkdir()
    with contextlib.closing(Progress(printed)) as out:
        args = Namespace(overwrite=False, mirror_to=str(drive), output_dir=str(tmp_path / "out"),
                         origin=Origin(frozenset({"mirror_to"}), "", ()))
        made = Mirror(args, out)
        yield made
        made.finish()


def retention(saved, keep=3, protected=()):
    return Retention(saved, keep, frozenset(protected))


def update(mirror, step, **rest):
    """Requests an update of the mirror and waits for its end."""
    mirror.update(retention(step, **rest))
    mirror._thread.join(60)
    assert not mirror._thread.is_alive()


def test_the_mirror_holds_what_the_run_keeps_copied_newest_first_after_the_rows(mirror, numbered, drive, monkeypatch):
    order, real = [], copy_checkpoint

    def watched(path, *rest):
        order.append((path.name, (drive / "metrics.jsonl").read_text()))
        real(path, *rest)

    monkeypatch.setattr(room, "copy_checkpoint", watched)
    out = numbered(1, 2, 3, 4, 5).parent
    (out / "metrics.jsonl").write_text("rows")
    update(mirror, 5, keep=2, protected=(1,))
    assert order == [(f"checkpoint-{step}", "rows") for step in (5, 4, 1)]
    numbered(6, 7)  # the run has not asked for the later one yet
    update(mirror, 6, keep=2, protected=(1,))
    update(mirror, 6, keep=2, protected=(1,))
    assert names_in(drive) == ["checkpoint-1", "checkpoint-5", "checkpoint-6", "metrics.jsonl"]
    for path in steps_in(drive).values():
        verify(path)


def test_a_checkpoint_that_stays_as_it_holds_an_export_is_copied_once(mirror, numbered, drive, monkeypatch):
    copied, real = [], copy_checkpoint
    monkeypatch.setattr(room, "copy_checkpoint", lambda path, *rest: copied.append(path.name) or real(path, *rest))
    (numbered(1) / "model.gguf").write_text("")
    numbered(2)
    for _ in range(3):
        update(mirror, 2, keep=1)
    assert copied == ["checkpoint-2", "checkpoint-1"]
    assert list(steps_in(drive)) == [2, 1]


def test_a_disk_that_takes_the_place_of_the_folder_loses_nothing(mirror, numbered, drive, tmp_path, capsys):
    """The first save finds the mount point without its disk, which has the checkpoints of another run."""
    out = numbered(1).parent
    (out / "metrics.jsonl").write_text("this run\n")
    update(mirror, 1)
    drive.rename(tmp_path / "local")
    (numbered(900)).rename(tmp_path / "checkpoint-900")
    drive.mkdir()
    (tmp_path / "checkpoint-900").rename(drive / "checkpoint-900")
    (drive / "metrics.jsonl").write_text("another run\n")
    numbered(2)
    update(mirror, 2)
    assert names_in(drive) == ["checkpoint-900", "metrics.jsonl"]
    assert (drive / "metrics.jsonl").read_text() == "another run\n"
    assert "does not hold the checkpoints of this run" in capsys.readouterr().err
    shutil.rmtree(drive)
    (tmp_path / "local").rename(drive)
    update(mirror, 2)
    assert list(steps_in(drive)) == [2, 1]


def test_a_disk_that_hangs_holds_up_neither_the_run_nor_its_end(mirror, numbered, drive, tmp_path, monkeypatch, capsys):
    begun, goes_on, real = threading.Event(), threading.Event(), copy_checkpoint

    def hanging(path, *rest):
        begun.set()
        assert goes_on.wait(60)
        return real(path, *rest)

    monkeypatch.setattr(room, "copy_checkpoint", hanging)
    monkeypatch.setattr(room, "LONGEST_WAIT_SECONDS", 0.4)
    numbered(1)
    mirror.update(retention(1, keep=1))
    assert begun.wait(60)
    assert mirror.copying_step == 1
    numbered(2, 3)
    mirror.update(retention(3, keep=1))
    assert list(steps_in(drive)) == []
    mirror.finish()
    assert f"cp -r {tmp_path}/out/checkpoint-3 {drive}" in capsys.readouterr().err
    goes_on.set()
    update(mirror, 3, keep=1)
    assert max(steps_in(drive)) == 3
    assert mirror.copying_step == 0


def test_a_mirror_that_fails_costs_one_warning_and_is_used_again(mirror, numbered, drive, tmp_path, printed, capsys):
    update(mirror, numbered(1) and 1)
    drive.rename(tmp_path / "unplugged")
    numbered(2)
    for _ in range(3):
        update(mirror, 2)
    assert not drive.exists(), "it may be where a disk is mounted"
    warned = capsys.readouterr().err
    assert warned.count("warning: --mirror_to") == 1
    assert "No such file or directory. Look at that disk." in warned
    assert "Errno" not in warned
    (tmp_path / "unplugged").rename(drive)
    mirror.update(retention(2))
    mirror.finish()
    assert f"checkpoint-2 is in {drive}" in printed.getvalue()
    assert list(steps_in(drive)) == [2, 1]


def test_a_damaged_checkpoint_is_named_and_the_newest_is_copied(mirror, numbered, drive, capsys):
    flip(numbered(1) / "model.safetensors")
    numbered(2)
    for _ in range(2):
        update(mirror, 2)
    assert list(steps_in(drive)) == [2]
    assert capsys.readouterr().err.count("checkpoint-1") == 1


def test_of_two_runs_that_start_with_one_mirror_the_second_leaves_it_alone(mirror, numbered, drive, sound, capsys):
    shutil.copytree(sound, drive / "checkpoint-900")  # another run's, since this one has started
    numbered(1)
    update(mirror, 1)
    assert names_in(drive) == ["checkpoint-900"]
    assert "warning: --mirror_to" in capsys.readouterr().err


# ---------------------------------------------------------------- runs

SAVING = ("--max_steps", "6", "--checkpoint_every_steps", "2", "--log_interval", "1", "--lr_schedule", "constant")


@pytest.fixture
def finished(run, drive):
    """The run's folder, whose mirror is drive."""
    run.ok(*SAVING, "--mirror_to", str(drive))
    return run.folder / "out"


def test_a_file_that_is_not_the_runs_is_not_copied(tmp_path):
    for name in ("metrics.jsonl", "model.gguf"):
        (tmp_path / name).touch()
    (tmp_path / "copy").mkdir()
    copy_run_files(tmp_path, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["metrics.jsonl"]


def test_a_run_and_its_mirror_hold_the_same(run, drive):
    text = run.ok(*SAVING, "--mirror_to", str(drive), "--keep_checkpoints", "1", "--eval_interval", "3")
    out = run.folder / "out"
    assert steps_in(drive).keys() == steps_in(out).keys() > {6}
    for step, path in steps_in(drive).items():
        assert verify(path) == verify(steps_in(out)[step]), "the validation of the last step is recorded in both"
    for name in ("metrics.jsonl", "config.toml", "starts.jsonl"):
        assert (drive / name).read_bytes() == (out / name).read_bytes()
    assert f"checkpoint-6 is in {drive}" in text
    run.ok("--resume_from", str(out), "--max_steps", "8")
    assert max(steps_in(drive)) == 8, "a resumed run keeps its mirror"


def test_a_finished_run_completes_the_mirror_that_a_kill_has_cut_short(run, finished, drive):
    shutil.rmtree(drive / "checkpoint-6")
    text = run.ok("--resume_from", str(finished))
    assert "already at step 6" in text
    assert f"checkpoint-6 is in {drive}, verified" in text
    assert steps_in(drive).keys() == steps_in(finished).keys()


def test_on_a_new_machine_the_same_line_goes_on_from_the_mirror(run, finished, drive):
    shutil.rmtree(finished)
    flip(drive / "checkpoint-6/model.safetensors")
    same = ("--resume_from", "auto", "--mirror_to", str(drive), "--checkpoint_every_steps", "2")
    text = run.ok(*same, "--max_steps", "8")
    assert f"warning: {drive}/checkpoint-6" in text
    assert "resume      from checkpoint-4, step 4 of 8" in text
    assert list(steps_in(drive)) == [*steps_in(finished), 2] == [8, 6, 4, 2]
    assert [row["step"] for row in metrics_of(finished) if "loss" in row] == list(range(1, 9))
    shutil.rmtree(finished)
    text = run.ok("--resume_from", str(drive), "--max_steps", "9")
    assert max(steps_in(finished)) == max(steps_in(drive)) == 9, "the mirror's name alone is enough"


def test_on_a_new_machine_the_best_checkpoint_comes_back_too(run, finished, drive, monkeypatch):
    copied, real = [], copy_checkpoint
    monkeypatch.setattr(room, "copy_checkpoint", lambda path, *rest: copied.append(path.name) or real(path, *rest))
    with contextlib.closing(Progress(io.StringIO())) as out:
        bring_back(drive, finished.parent, out)
    assert copied == ["checkpoint-6"], "the newest is the best"
    shutil.rmtree(finished)
    edit(drive / "checkpoint-6/trainer_state.json", best_step=2, best_val_loss=0.0)
    seal(drive / "checkpoint-6")
    run.ok("--resume_from", "auto", "--mirror_to", str(drive), "--keep_checkpoints", "1", "--max_steps", "12")
    assert 2 in steps_in(drive)
    assert 2 in steps_in(finished)
    assert 4 not in steps_in(drive)


def test_a_cooldown_from_the_mirror_in_another_folder_leaves_the_mirror_alone(run, finished, drive):
    before = names_in(drive)
    assert "mirror" not in run.ok("--cooldown_from", str(drive), out="cool").replace("cooldown_from", "")
    assert names_in(drive) == before


def test_the_checkpoints_of_another_run_are_neither_mixed_with_nor_deleted(run, finished, drive):
    before = names_in(drive)
    for flags in ((), ("--overwrite",), ("--resume_from", str(finished / "checkpoint-4"))):
        said = run.refused(Exit.CHECKPOINT, *SAVING, "--mirror_to", str(drive), *flags, out="again")
        assert "--mirror_to" in said
        assert " step 6." in said
    run.ok(*SAVING, "--seed", "7", out="again")  # the same run twice is one run: its checkpoints are identical
    run.refused(Exit.CHECKPOINT, *SAVING, "--mirror_to", str(drive), "--resume_from", "auto", out="again")
    assert names_in(drive) == before


def test_a_copy_of_the_run_deletes_none_of_its_later_checkpoints(run, finished, drive):
    copy = shutil.copytree(finished, run.folder / "copy")
    run.ok("--resume_from", str(finished), "--max_steps", "8")
    before = names_in(drive)
    text = run.ok("--resume_from", str(copy), "--max_steps", "7", out="copy")
    assert f"copy is a copy of {finished}, which keeps its mirror {drive}: " in text
    assert before == names_in(drive)
    text = run.ok("--resume_from", str(copy), "--max_steps", "9", "--mirror_to", str(drive), out="copy")
    assert "checkpoint-8 there is later than this run's last one" in text
    assert before == names_in(drive), "not even once the copy has passed it"
    (copy / ".lock").write_text(f"pid 1, started today\n{run.folder / 'gone'}\n")
    assert "is a copy" not in run.ok("--resume_from", str(copy), "--max_steps", "10", out="copy"), "it was moved"
    run.ok("--max_steps", "1", out="gone")
    assert "is a copy" not in run.ok("--resume_from", str(copy), "--max_steps", "11", out="copy"), "of another run"
    run.ok("--resume_from", str(finished / "checkpoint-4"), "--max_steps", "5", "--overwrite")
    assert max(steps_in(drive)) == 5, "a run that goes back on purpose takes its mirror along"


def test_the_mirrors_name_alone_never_means_another_run_in_the_output_folder(run, finished, drive):
    shutil.rmtree(finished)
    run.ok(*SAVING, "--seed", "7", out="again")
    before = names_in(run.folder / "again"), names_in(drive)
    said = run.refused(Exit.CHECKPOINT, "--resume_from", str(drive), "--max_steps", "8", out="again")
    assert "of this one after step 6: " in said
    assert before == (names_in(run.folder / "again"), names_in(drive))


def test_a_run_whose_mirror_has_fallen_behind_still_knows_it(run, finished, drive):
    for path in (finished / "checkpoint-2", finished / "checkpoint-4", drive / "checkpoint-6"):
        shutil.rmtree(path)
    run.ok("--resume_from", str(finished), "--max_steps", "8")
    assert max(steps_in(drive)) == 8


def test_a_folder_of_tokens_is_no_mirror(run, corpus):
    assert "holds tokens. Give another folder" in run.refused(Exit.FLAGS, *SAVING, "--mirror_to", str(corpus))


def test_an_unwritable_mirror_ends_a_new_run_but_not_a_resumed_one(run, finished, drive, tmp_path, monkeypatch):
    def read_only(root):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(room, "check_writable", read_only)
    said = run.refused(Exit.MACHINE, *SAVING, "--mirror_to", str(tmp_path / "gone"), out="new")
    assert "--mirror_to" in said
    assert not (tmp_path / "gone").exists()
    text = run.ok("--resume_from", str(finished), "--max_steps", "8")
    assert "warning: --mirror_to" in text
    assert 8 in steps_in(finished)


# ---------------------------------------------------------------- the mirror that a run recorded


def resume(capsys, monkeypatch, folder, *flags):
    """Resumes a run by a command typed in this folder, without --output_dir; returns what it printed."""
    monkeypatch.chdir(folder)
    code, text = trained(["--no-use_gpu", *QUIET, *flags], capsys)
    assert code == 0, text
    return text


def test_a_relative_mirror_is_the_same_folder_from_everywhere(run, drive, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run.ok(*SAVING, "--mirror_to", "drive")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    resume(capsys, monkeypatch, elsewhere, "--resume_from", str(tmp_path / "out"), "--max_steps", "8")
    resume(capsys, monkeypatch, elsewhere, "--resume_from", str(tmp_path / "out"), "--max_steps", "9")
    assert max(steps_in(drive)) == 9
    assert names_in(elsewhere) == []


def test_a_checkpoint_does_not_hold_the_path_of_the_mirror(run, finished, drive, tmp_path):
    assert str(drive) in (tmp_path / "out/config.toml").read_text()
    for file in drive.glob("checkpoint-*/*"):
        assert str(drive).encode() not in file.read_bytes(), file


@pytest.mark.parametrize("place", ["drive", "moved"])
def test_the_mirror_alone_continues_a_run_in_the_current_folder(run, finished, drive, place, capsys, monkeypatch):
    shutil.rmtree(finished)
    drive = drive.rename(drive.with_name(place))
    before = names_in(drive)
    elsewhere = drive.with_name("elsewhere")
    elsewhere.mkdir()
    resume(capsys, monkeypatch, elsewhere, "--resume_from", str(drive), "--max_steps", "8")
    assert max(steps_in(elsewhere / "out")) == 8
    assert max(steps_in(drive)) == 8
    assert set(names_in(drive)) - set(before) == {"checkpoint-8"}, "no run takes the mirror for its own folder"


@pytest.mark.parametrize("flags", [["--resume_from", "out"], ["--resume_from", "auto"]])
def test_a_copy_of_the_mirror_in_the_place_of_the_output_folder_goes_on(
        run, finished, drive, flags, capsys, monkeypatch):
    shutil.rmtree(finished)
    shutil.copytree(drive, finished)
    resume(capsys, monkeypatch, finished.parent, *flags, "--output_dir", "out", "--max_steps", "8")
    assert max(steps_in(finished)) == max(steps_in(drive)) == 8


@pytest.mark.parametrize("content", ["nothing", "an empty folder", "files", "another run"])
def test_nothing_is_written_into_a_recorded_mirror_that_lacks_this_run(run, drive, tmp_path, sound, content):
    out = run.folder / "out"
    run.ok(*SAVING, "--mirror_to", str(drive))
    recorded = tmp_path / "recorded"
    if content != "nothing":
        recorded.mkdir()
    if content == "files":
        (recorded / "metrics.jsonl").write_bytes((out / "metrics.jsonl").read_bytes())
    if content == "another run":
        shutil.copytree(sound, recorded / "checkpoint-900")
    before = sorted(recorded.rglob("*"))
    config = out / "config.toml"
    config.write_text(config.read_text().replace(str(drive), str(recorded)))
    text = run.ok("--resume_from", str(out), "--max_steps", "8")
    assert text.count("warning: --mirror_to") == 1
    assert sorted(recorded.rglob("*")) == before
    assert recorded.exists() == (content != "nothing")
    assert max(steps_in(drive)) == 6
    if content == "nothing":
        run.ok("--resume_from", str(out), "--max_steps", "9", "--mirror_to", str(recorded))
        assert max(steps_in(recorded)) == 9, "the flag makes it"
