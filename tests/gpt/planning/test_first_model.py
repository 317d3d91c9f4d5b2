"""Two models in the minutes of one: which runs have them, and that a killed run ends as one that was never stopped."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

import train
from gpt.checkpoint.stored import TrainState
from gpt.common.errors import Exit, UserError
from gpt.common.flags import with_values
from gpt.common.names import TRAINS_NEXT
from gpt.planning import first_model
from gpt.planning import inputs as inputs_of
from gpt.planning.defaults import has_teacher_or_noise
from gpt.planning.first_model import after_first_model
from gpt.planning.inputs import Inputs
from gpt.planning.sizing import choose_config, sizing_for
from tests.helpers.commands import ROOT
from tests.helpers.refusals import refused

LENGTH = "--max_minutes 10"
SHAPE: Any = SimpleNamespace(seq_length=1024)


def answer(flags: str, spare: float = 0.9, world_size: int = 1, is_large: bool = False, **more: Any) -> str:
    """What a run with these flags says about two models; its inputs must not change."""
    said: list[str] = []
    processes = SimpleNamespace(world_size=world_size)
    runtime: Any = SimpleNamespace(out=SimpleNamespace(say=said.append), processes=processes)
    args = train.read_flags(f"{flags} --dry_run".split())
    inputs: Any = SimpleNamespace(args=args, sizing=SimpleNamespace(spare=spare, is_large=is_large), resumed=None)
    vars(inputs).update(more)
    assert after_first_model(inputs, runtime, []) is inputs
    return "".join(said)


def test_a_run_of_the_default_recipe_whose_text_leaves_minutes_has_two_models():
    assert "The first trains for 2 min in out/first_model" in answer(LENGTH)
    assert "The first trains for 2 min in b/first_model" in answer(f"{LENGTH} --output_dir b --seed 3")
    for minutes, of_first in (("2", "0.6"), ("5", "1.5"), ("16", "2.4"), ("64", "9.6")):
        assert f"The first trains for {of_first} min" in answer(f"--max_minutes {minutes}")
    assert answer("--max_minutes 64", spare=0.151)
    of_large = answer("--max_minutes 64", spare=0.0, is_large=True)
    assert "they learn more in this time than one large model" in of_large
    assert "The first trains for 16 min" in of_large


@pytest.mark.parametrize(("flags", "more"), [
    (LENGTH, {"spare": 0.19}), ("--max_minutes 64", {"spare": 0.149}), ("--max_minutes 4", {"spare": 0.29}),
    (LENGTH, {"sizing": None}), (LENGTH, {"resumed": True}), (LENGTH, {"world_size": 2}),
    (f"{LENGTH} --mirror_to m", {}), (f"{LENGTH} --teacher other", {}), (f"{LENGTH} --learning_rate 1e-3", {}),
    (f"{LENGTH} --init_from other", {}), (f"{LENGTH} --epochs 3", {}), (f"{LENGTH} --max_steps 50", {}),
    ("--max_minutes 1", {}), ("--max_minutes 13", {"spare": 0.0, "is_large": True})])
def test_every_other_run_trains_one_model(flags, more):
    assert answer(flags, **more) == ""


def test_a_first_model_has_none_before_it(monkeypatch):
    monkeypatch.setenv(TRAINS_NEXT, "train.py")
    assert answer(LENGTH) == ""


@pytest.fixture
def two_models(monkeypatch, tmp_path):
    """A function: the inputs of a second model, their beginning, and the commands of first models with their lines.

    It takes the state in which the first model ended, the command's flags, and what one model alone would leave. A
    line is the one by which the command is typed again after a stop.
    """
    monkeypatch.chdir(tmp_path)
    typed: list[tuple[list[str], str]] = []

    def run(command: list[str], _: object, env: dict[str, str]) -> int:
        typed.append((command, env[TRAINS_NEXT]))
        return 0

    monkeypatch.setattr(first_model, "run_child", run)
    monkeypatch.setattr(first_model, "mixture_in_words", lambda *_: "")
    for name, answer_of in (
            ("check_lengths", lambda *_: None),
            ("choose_teacher", lambda found, *_: found), ("choose_config", lambda *_: SHAPE),
            ("choose_sizing", lambda flags, *more: (has_teacher_or_noise(flags), round(more[1])))):
        monkeypatch.setattr(inputs_of, name, answer_of)
    monkeypatch.setattr(first_model.find, "check_same", lambda *_: None)
    monkeypatch.setattr(first_model.load, "read_config", lambda folder: SHAPE)

    def call(state: TrainState, argv: list[str], spare: float = 0.9) -> tuple[Inputs, float, Any]:
        typed.clear()
        stored = SimpleNamespace(state=state, settings={"max_minutes": 1.7})
        first = SimpleNamespace(folder=Path("out/first_model/checkpoint-9"), stored=stored)
        monkeypatch.setattr(first_model.find, "newest_sound", lambda *_: first)
        runtime: Any = SimpleNamespace(out=MagicMock(), signals=MagicMock(), processes=SimpleNamespace(world_size=1),
                                       began=time.monotonic())
        inputs = Inputs(train.read_flags(argv), MagicMock(), MagicMock(spare=spare, is_large=False), MagicMock(), None,
                        None)
        second = after_first_model(inputs, runtime, argv)
        assert "to go on, add --resume_from auto" in runtime.signals.at_once
        return second, runtime.began, typed

    return call


@pytest.mark.parametrize(("val_loss", "teacher", "noise"), [
    (4.0, "out/first_model/checkpoint-9", 0.0), (4.2, "out/first_model/checkpoint-9", 0.1),
    (None, "out/first_model/checkpoint-9", 0.0)])
def test_a_first_model_teaches_the_second_and_tells_if_it_needs_noise(val_loss, teacher, noise, two_models):
    state = TrainState(step=9, seconds=120.0)
    rows = [{"step": 1, "loss": 9.0}, {"step": 9, "loss": 3.0}, {"step": 9, "val_loss": val_loss}] if val_loss else []
    Path("out/first_model").mkdir(parents=True)
    Path("out/first_model/metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    argv = ["--max_minutes", "10", "--seed", "3"]
    second, began, typed = two_models(state, argv)
    assert time.monotonic() - began >= 120, "earlier starts count"
    assert typed == [([sys.executable, str(ROOT / "train.py"), *argv, "--output_dir=out/first_model", "--max_minutes",
                       "2"], "train.py --max_minutes 10 --seed 3")]
    assert (second.args.teacher, second.args.input_noise) == (teacher, noise)
    assert first_model.lowest_loss(second.args) == (val_loss or math.inf)
    assert (second.sizing, second.config) == ((True, 8), SHAPE)


def test_a_first_model_that_has_begun_goes_on_where_it_is_asked_to(two_models):
    steps = [Path("out/checkpoint-5"), Path("out/first_model/checkpoint-9")]
    for folder in steps:
        folder.mkdir(parents=True)
        (folder / "manifest.json").touch()
    _, _, [(command, _)] = two_models(TrainState(), [*LENGTH.split(), "--resume_from", "auto"], spare=0.1)
    assert command[-1] == "1.7", "its own minutes, though fewer are left than at its start"
    Path("out/config.toml").touch()
    _, _, [(command, resumed)] = two_models(TrainState(), [*LENGTH.split(), "--overwrite"])
    assert train.read_flags(["--resume_from", "out"]).max_minutes == 10, "as this command, not as the deleted run"
    assert "--overwrite" in command, "the first model's own checkpoints go too"
    assert resumed == "train.py --max_minutes 10"
    assert not steps[0].exists(), "a later --resume_from auto would go on with it"
    argv = ["--resume_from", "out", *LENGTH.split(), "--sample_prompt", r"a\\nb\n"]
    _, _, [(command, _)] = two_models(TrainState(), argv)
    assert command[2:6] == ["--config", "out/config.toml", "--resume_from", "auto"]
    assert train.read_flags(command[2:4]).sample_prompt == r"a\\nb\n", "read as it was typed"


def test_a_first_model_that_another_command_leaves_alone_is_named(two_models, monkeypatch):
    folder = Path("out/first_model/checkpoint-9")
    folder.mkdir(parents=True)
    (folder / "manifest.json").touch()
    runtime: Any = SimpleNamespace(out=MagicMock(), processes=SimpleNamespace(world_size=1), began=100.0)
    first = SimpleNamespace(stored=SimpleNamespace(state=TrainState(9, seconds=34.0)))
    monkeypatch.setattr(first_model.find, "newest_sound", lambda *_: first)
    inputs = Inputs(train.read_flags(["--resume_from", "auto"]), MagicMock(), MagicMock(), MagicMock(), None, None)
    assert after_first_model(inputs, runtime, []) is inputs
    assert "the model in out/first_model is not used" in runtime.out.warn.call_args[0][0]
    assert runtime.began == 100
    runtime.out.warn.reset_mock()
    for noise in (0.0, 0.1):  # as the second one recorded
        decided = {"teacher": "out/first_model/checkpoint-9", "input_noise": noise}
        args = with_values(train.read_flags(["--resume_from", "out", *LENGTH.split()]), **decided)
        inputs = Inputs(args, MagicMock(), MagicMock(spare=0.0, is_large=False), MagicMock(), None, None)
        assert after_first_model(inputs, runtime, []) is inputs
    runtime.out.warn.assert_not_called()
    assert runtime.began == 100 - 2 * 34, "the minutes of the first model are over"


def test_a_first_model_that_learned_other_tokens_is_refused(two_models, monkeypatch):
    def compare(first, config, identity, *_):
        raise UserError(Exit.DATA, f"{first.folder} {identity}")

    monkeypatch.setattr(first_model.find, "check_same", compare)
    with refused("out/first_model/checkpoint-9 <MagicMock name='mock.identity'", Exit.DATA):
        two_models(TrainState(), LENGTH.split())


def test_the_text_leaves_what_its_passes_do_not_take():
    speed, num_tokens = 2e11, 100_000
    found = sizing_for(1024, num_tokens, speed, 16.0, None)
    assert found.shape
    config = choose_config(train.read_flags([]), 1024, num_tokens, found)
    seconds = 10 * num_tokens * config.flops_per_token / speed  # its parameters allow the usual ten passes
    assert found.spare == pytest.approx(1 - seconds / 960)
    assert 0.3 < found.spare < 0.99
    for minutes, tokens, shape in ((None, num_tokens, None), (16.0, num_tokens, (2, 2, 128)), (16.0, 10**7, None)):
        assert sizing_for(1024, tokens, speed, minutes, None, ("qwen3", shape)).spare == 0


def run_until(command: list[str], file: Path, lines: int) -> None:
    """Runs a command until a file has so many lines, then kills it with all its processes."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not file.exists() or file.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, "it ended before"
        time.sleep(0.05)
    [children] = [Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    for number in (process.pid, *map(int, children)):
        os.kill(number, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_both_models_killed_and_resumed_end_with_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text((ROOT / "docs/LOG.md").read_text(encoding="utf-8")[:30_000], encoding="utf-8")
    subprocess.run([sys.executable, str(ROOT / "pretokenize.py"), "a.txt", "--vocab_size", "512"], check=True)
    flags = "--max_minutes 3 --no-use_gpu --sample_interval 0 --log_interval 1 --checkpoint_every_steps 5 --output_dir"
    command = [sys.executable, str(ROOT / "train.py"), *flags.split()]

    whole = subprocess.run([*command, "whole"], check=True, capture_output=True, text=True).stdout
    assert re.findall(r"^(?:next|To improve|stopped)", whole, re.MULTILINE)[:1] == ["next"]
    assert whole.count("next: ") == 1, "the first model has no next command"

    run_until([*command, "cut"], tmp_path / "cut/first_model/metrics.jsonl", 20)
    again = [*command, "cut", "--resume_from", "auto"]
    run_until(again, tmp_path / "cut/metrics.jsonl", 20)
    subprocess.run(again, check=True)
    for folder in ("first_model/", ""):
        [ours, theirs] = [max((tmp_path / name / folder).glob("checkpoint-*"), key=lambda path: path.stat().st_mtime_ns)
                          for name in ("whole", "cut")]
        assert ours.name == theirs.name
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert (ours / name).read_bytes() == (theirs / name).read_bytes()

    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        shutil.rmtree("cut")
        process = subprocess.Popen([*command, "cut"], stdout=subprocess.PIPE, text=True)
        assert process.stdout
        for line in process.stdout:
            if line.startswith("step 10/"):
                process.send_signal(number)
                break
        said = process.stdout.read()  # ends when the first model's process ends too
        assert process.wait() == code
        assert f"to continue: python train.py {flags} cut --resume_from auto" in said
