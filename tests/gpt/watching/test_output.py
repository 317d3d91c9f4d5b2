"""starts.jsonl: each start of a run, and how it ended."""

import errno
import json

from gpt.checkpoint.steps import steps_in
from gpt.common.errors import Exit
from gpt.common.names import STARTS
from gpt.watching.recorder import append_row


def starts_of(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / STARTS).read_text().splitlines()]


def test_each_start_is_recorded_and_how_it_ended(run):
    run("--max_steps", "4", "--checkpoint_every_steps", "2")
    run("--max_steps", "6", "--resume_from", "auto")
    first, end, second, last = starts_of(run.folder / "out")
    assert (first["event"], first["step"], end["event"], end["step"]) == ("start", 0, "end", 4)
    assert (second["step"], last["step"], last["how"]) == (4, 6, "finished")
    assert first["time"] < end["time"] < last["time"]
    run("--max_steps", "2", out="out/first_model")  # as of two models
    run("--max_steps", "2", "--overwrite")
    assert not steps_in(run.folder / "out/first_model"), "or --resume_from auto would take it for this run's"
    assert [row["step"] for row in starts_of(run.folder / "out")] == [0, 2], "a new run begins the file again"


def test_what_train_py_did_not_write_is_not_overwritten(run):
    run("--max_steps", "2")
    export = run.folder / "out/checkpoint-2/model.gguf"
    export.touch()
    said = run.refused(Exit.CHECKPOINT, "--max_steps", "2", "--overwrite")
    assert said == f"--overwrite: would delete {export}, which train.py did not write. Move it to another folder."
    export.unlink()
    run.ok("--max_steps", "2", "--overwrite")
    config = run.folder / "mine/config.toml"
    config.parent.mkdir()
    config.write_text("# my notes\nmax_steps = 2\n")
    steps_before = str(run.folder / "out/checkpoint-2")
    for flags in (["--config", str(config)], ["--resume_from", "auto"], ["--resume_from", steps_before]):
        said = run.refused(Exit.CHECKPOINT, *flags, out="mine")
        assert said.startswith(f"{config}: train.py did not write it, and would replace it. Give another --output_dir")
    run.ok("--resume_from", "auto", "--dry_run", out="mine")
    assert config.read_text().startswith("# my notes")
    config.write_bytes((run.folder / "out/config.toml").read_bytes())  # as of a run that was killed early
    run.ok("--max_steps", "2", out="mine")


def test_a_disk_that_is_full_at_the_start_is_named(run, monkeypatch):
    run.ok("--max_steps", "2")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gpt.watching.recorder.write_whole", full)
    said = run.refused(Exit.MACHINE, "--max_steps", "4", "--resume_from", "auto")
    assert said.startswith(f"--output_dir {run.folder}/out cannot be written: No space left on device. Free some space")


def test_a_full_disk_costs_the_line_and_not_the_run(tmp_path, capsys):
    (tmp_path / STARTS).mkdir()
    append_row(tmp_path / STARTS, {}, "this end")
    assert "starts.jsonl: Is a directory" in capsys.readouterr().err
