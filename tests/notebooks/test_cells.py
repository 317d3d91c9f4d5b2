"""notebooks/cells.py: commands in a cell, what the stop button does, the folders of each kind of machine."""

import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from notebooks import cells

STUBBORN = """
import signal, sys, time
count = 0
def hear(number, frame):
    global count
    count += 1
    print("heard", count, flush=True)
    if count == 2: sys.exit(3)
signal.signal(signal.SIGINT, hear)
print("ready", flush=True)
while True: time.sleep(0.05)
"""


def test_the_stop_button_is_the_commands_ctrl_c_and_a_second_one_its_second(tmp_path, capsys):
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    presses = ["ready", "heard 1"]

    def press():
        if presses:
            presses.pop()
            raise KeyboardInterrupt

    with pytest.raises(cells.CellFailed, match="ended with exit code 3"):
        cells.run(tmp_path / "stubborn.py", meanwhile=press)
    assert capsys.readouterr().out.splitlines() == ["ready", "heard 1", "heard 2"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a command outlives its kernel")
def test_a_command_hears_that_its_kernel_is_gone(tmp_path):
    """A process with a command, which ends at the command's first line, as a kernel that is started again."""
    (tmp_path / "command.py").write_text(f"""
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: (pathlib.Path({str(tmp_path / "heard")!r}).touch(), sys.exit()))
print("ready", flush=True)
time.sleep(60)
""")
    kernel = ("import os; from notebooks import cells\n"
              f"cells.run({str(tmp_path / 'command.py')!r}, meanwhile=lambda: os._exit(7))")
    done = subprocess.run([sys.executable, "-c", kernel], check=False,
                          env={**os.environ, "PYTHONPATH": str(cells.ROOT)})
    assert done.returncode == 7
    until = time.monotonic() + 30
    while not (tmp_path / "heard").exists():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_command_that_fails_ends_the_cell_with_one_line(capsys):
    with pytest.raises(cells.CellFailed) as caught:
        cells.run("train.py", "--lerning_rate", 1)
    assert caught.value._render_traceback_() == [
        "train.py ended with exit code 2: the line that begins with 'error:' says why, and what to do."]
    assert "Did you mean --learning_rate?" in capsys.readouterr().out


# ---------------------------------------------------------------- machines


def test_on_colab_the_drive_is_mounted_and_checkpoints_are_kept_there(monkeypatch, tmp_path, capsys):
    mounted = []
    colab, drive = types.ModuleType("google.colab"), types.ModuleType("google.colab.drive")
    drive.mount = mounted.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google.colab.drive", drive)
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    place = cells.find_place("first", "/content/drive/MyDrive/my text.txt", "models", str(tmp_path))
    assert mounted == ["/content/drive"]
    assert place.mirror == Path("/content/drive/MyDrive/models/first")
    assert place.tokens == tmp_path / "data" / "content-drive-MyDrive-my-text.txt"
    assert place.out == tmp_path / "out/first"
    assert "kept in      /content/drive/MyDrive/models/first" in capsys.readouterr().out


def test_elsewhere_nothing_is_mounted_and_no_mirror_is_made_up(tmp_path, monkeypatch):
    place = cells.find_place("first", "demo", "", str(tmp_path))
    assert place.mirror is None
    assert "--mirror_to" not in cells.flags_of(place, "auto", 0, False, "")
    monkeypatch.setattr(cells, "KAGGLE", tmp_path)
    assert cells.find_place("first", "demo", "").mirror == tmp_path / "kept/first"


def test_the_form_becomes_flags():
    place = cells.Place(Path("t"), Path("o"), Path("m"), Path("e"))
    assert cells.flags_of(place, "mini", 55.5, True, "--seed 2") == [
        "--data_dir", "t", "--output_dir", "o", "--resume_from", "auto", "--mirror_to", "m", "--model_size", "mini",
        "--max_minutes", "55.5", "--use_gpu", "--seed", "2"]
    assert cells.words_of("demo")[0] == "--demo"
    assert cells.words_of("'my text.txt' more/*.jsonl") == ["my text.txt", "more/*.jsonl"]


def test_the_curve_of_a_run_that_has_just_begun_is_no_error(tmp_path):
    updates = []
    handle = types.SimpleNamespace(update=lambda data, **more: updates.append(data))
    cells.draw(tmp_path, handle)
    (tmp_path / "metrics.jsonl").write_text("")
    cells.draw(tmp_path, handle)
    assert updates == []
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"step": step, "loss": 5 / step}) + "\n"
                                                    for step in range(1, 9)))
    cells.draw(tmp_path, handle)
    assert len(updates) == 1
    assert "loss in nats per token" in updates[0]["text/plain"]
