"""docs/notebooks/cells.py: commands in a cell, the stop button, and the folders on each kind of machine."""

import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from docs.notebooks import cells
from gpt.pretokenization.sources import identity_of

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

    def press(line):
        print(line)
        if presses:
            presses.pop()
            raise KeyboardInterrupt

    with pytest.raises(cells.CellFailed, match="ended with exit code 3"):
        cells.run(tmp_path / "stubborn.py", show=press)
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
    kernel = ("import os; from docs.notebooks import cells\n"
              f"cells.run({str(tmp_path / 'command.py')!r}, show=lambda _: os._exit(7))")
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
        "train.py ended with exit code 2: its line of 'error:' says why. Flags go into cell 1."]
    assert "Did you mean --learning_rate?" in capsys.readouterr().out


# ---------------------------------------------------------------- machines


def test_on_colab_the_drive_is_mounted_and_checkpoints_are_kept_there(monkeypatch, tmp_path, capsys):
    mounted = []
    colab, drive = types.ModuleType("google.colab"), types.ModuleType("google.colab.drive")
    drive.mount = mounted.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google.colab.drive", drive)
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    place = cells.prepare_folders("first", "/content/drive/MyDrive/my text.txt", "models", str(tmp_path))
    assert mounted == ["/content/drive"]
    assert place.mirror == Path("/content/drive/MyDrive/models/first")
    assert place.tokens == tmp_path / "data" / "content-drive-MyDrive-my-text.txt"
    assert place.out == tmp_path / "out/first"
    assert "kept in      /content/drive/MyDrive/models/first" in capsys.readouterr().out


def test_elsewhere_nothing_is_mounted_and_no_mirror_is_made_up(tmp_path):
    place = cells.prepare_folders("first", "demo", "", str(tmp_path))
    assert place.mirror is None
    assert "--mirror_to" not in cells.flags_of(place, "auto", 0, "auto", "")


def test_texts_whose_words_end_alike_have_folders_of_their_own(tmp_path):
    corpora = [f"hf://datasets/{owner}/a-data-set-with-a-long-name --text_field story_text --val_fraction 0.01"
               for owner in ("one", "two")] + ["hf://datasets/a/b_c", "hf://datasets/a/b-c"]
    folders = {cells.prepare_folders("first", corpus, "", str(tmp_path)).tokens for corpus in corpora}
    assert len(folders) == 4


def test_the_form_becomes_flags():
    place = cells.Place(Path("t"), Path("o"), Path("m"), Path("e"))
    assert list(map(str, cells.flags_of(place, "mini", 55.5, "yes", "--seed 2"))) == [
        "--data_dir", "t", "--output_dir", "o", "--resume_from", "auto", "--mirror_to", "m", "--model_size", "mini",
        "--max_minutes", "55.5", "--use_gpu", "--seed", "2"]
    assert [cells.flags_of(place, "auto", 0, word, "")[-1] for word in ("no", "auto")] == ["--no-use_gpu", place.mirror]
    assert cells.words_of("demo") == ["--demo", "--val_fraction", "0.03"]
    assert cells.words_of("'my text.txt' more/*.jsonl") == ["my text.txt", "more/*.jsonl"]


def test_a_name_with_a_blank_or_an_apostrophe_is_one_word_where_it_is_there(tmp_path):
    text = tmp_path / "Alice's text.txt"
    text.touch()
    assert cells.words_of(str(text)) == [str(text)]
    assert cells.words_of(str(tmp_path / "Alice's *.txt")) == [str(tmp_path / "Alice's *.txt")]
    with pytest.raises(cells.CellFailed, match="corpus: No closing quotation"):
        cells.words_of("Bob's text.txt")
    with pytest.raises(cells.CellFailed, match="more_flags: No closing quotation"):
        cells.flags_of(cells.Place(Path("t"), Path("o"), None, Path("e")), "auto", 0, "auto", "--sample_prompt Bob's")


def test_tokens_of_a_replaced_text_are_made_again(tmp_path):
    text, folder = tmp_path / "text.txt", tmp_path / "tokens"
    text.write_text("a verse\n")
    words = [str(text), "--text_field", "story"]
    assert not cells.holds_tokens(folder, words)
    folder.mkdir()
    (folder / "metadata.json").write_text(json.dumps({"sources_identity": identity_of([(str(text), text)])}))
    assert cells.holds_tokens(folder, words)
    text.write_text("another verse\n")
    assert not cells.holds_tokens(folder, words)
    text.unlink()
    for others in (words, [f"{tmp_path}/*.txt"], ["--demo"], ["hf://datasets/OWNER/NAME"]):
        assert cells.holds_tokens(folder, others)


SMI = "| NVIDIA-SMI 550.54 Driver Version: 550.54 CUDA {}: {} |"


@pytest.mark.parametrize(("driver", "torch", "index", "says"), [
    (SMI.format("Version", "12.4"), "2.10.0+cu126", "cu126", "whl/cu126; the driver's CUDA: 12"),
    (SMI.format("UMD Version", "13.1"), "2.13.0+cpu", "cu130", "whl/cu130; the driver's CUDA: 13"),
    (SMI.format("Version", "13.0") + "\n|   0  Tesla P100-PCIE-16GB  Off |", "2.9.1", "cu126", "CUDA: 13"),
    (SMI.format("Version", "12.4"), "2.11.0+cu128", "", "2.11.0+cu128; the driver's CUDA: 12"),
    ("NVIDIA-SMI has failed", "2.13.0+cpu", "", "CPU. For a GPU: Runtime > Change runtime type > T4"),
    ("NVIDIA-SMI has failed", "2.9.1", "cpu", "whl/cpu; the driver's CUDA: none")])
def test_pip_takes_the_build_for_the_driver_and_leaves_a_torch_that_serves(driver, torch, index, says, monkeypatch,
                                                                           capsys):
    monkeypatch.setattr(cells.subprocess, "run", lambda *_, **more: types.SimpleNamespace(stdout=driver))
    monkeypatch.setattr(cells.metadata, "version", lambda _: torch)
    monkeypatch.setattr(sys, "platform", "linux")
    command = cells.choose_build("auto")
    assert (f"torch --index-url https://download.pytorch.org/whl/{index} && " in command) == bool(index)
    assert command.endswith('requirements.txt"')
    assert says in capsys.readouterr().out
    if "failed" in driver:
        with pytest.raises(cells.CellFailed, match=r"No GPU here: Runtime > .* Or set use_gpu to auto"):
            cells.choose_build("yes")


# ---------------------------------------------------------------- the lines in a cell


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """A function: watches a command that prints the given lines, and returns the drawn texts in turn."""
    drawn = []
    handle = types.SimpleNamespace(update=lambda data, **_: drawn.append(*data.values()))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=lambda *_, **more: handle))

    def watch(lines, **more):
        monkeypatch.setattr(cells, "run", lambda script, show: [show(line) for line in lines])
        cells.watch("train.py", **more)
        return drawn

    return watch


def test_the_latest_step_is_shown_below_the_lines_every_ten_seconds(watch, monkeypatch):
    now = 100

    def steps():
        nonlocal now
        yield "size"
        for now in range(100, 131):
            yield f"step {now}/130 | 1 min left"
        yield from map("line {}".format, range(40))

    monkeypatch.setattr(time, "monotonic", lambda: now)
    *drawn, last = watch(steps())
    assert [text.splitlines()[1] for text in drawn[1:6]] == [
        *(f"step {step}/130 | 1 min left" for step in (100, 110, 120, 130)), "line 0"]
    assert drawn[-1].startswith("line 20\n")
    assert last.startswith("size\nline 0\n")


@pytest.mark.parametrize(("line", "says"), [
    ("error: --use_gpu: broken, or give --no-use_gpu", "error: use_gpu: broken, or give use_gpu no"),
    ("next: python generate.py --ckpt out", "next: cell 7"), ("next: python train.py --data_dir a", "next: cell 5"),
    ("by Ctrl-C; to continue: python train.py --resume_from out", "by the stop button; to continue: Run all again"),
    ("python train.py --resume_from out --max_steps 90", "max_minutes 0, --max_steps 90 in more_flags"),
    ("python train.py --resume_from out --max_minutes 8", "max_minutes 8, then Run all again"),
    ("python train.py --resume_from out --max_minutes 8 --patience 9",
     "max_minutes 8, --patience 9 in more_flags, then Run all again"),
    ("python train.py --resume_from out --epochs 6", "max_minutes 0, --epochs 6 in more_flags, then Run all again"),
    ("python train.py --config 'my run' \\\n    --teacher 'my run/best' --output_dir 'my run-2'",
     "--teacher 'my run/best' in more_flags, another run_name"),
    ("  |     x = 1 + \\\n  |         2", "  |     x = 1 + \\\n  |         2"),
    ("to open it: python generate.py --ckpt kept", "to open it: python generate.py --ckpt kept"),
    ("or teach a second model: python train.py --config o --teacher o/best --output_dir o-2",
     "or teach a second model: --teacher o/best in more_flags, another run_name"),
    ("python pretokenize.py MORE --output_dir more-2 \\\n    --tokenizer_file t", "more in corpus, another run_name"),
    ("python train.py --resume_from o \\\n    --data_dir a more-2 --allow_new_data --max_steps 4", "Run all again"),
    ("python train.py --config o/config.toml --model_size mini --output_dir o-mini", "model_size mini, another"),
    ("  | --use_gpu", "  | --use_gpu")])
def test_cures_are_said_in_the_words_of_the_form(watch, line, says):
    assert watch(line.splitlines())[-1].startswith(says)


def test_of_the_plan_its_lines_are_shown_and_all_from_an_error_on(watch):
    lines = ["corpus      a", "cost: 2", "error: another tokenizer. More text:", "python a.py MORE \\", "    --seed 2"]
    assert watch(lines, only=cells.PLAN)[-1].splitlines() == [*lines[1:3], "python a.py MORE --seed 2"]
