"""Runs of train.py that something disturbs, compared byte for byte with a run that nothing disturbed."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from architectures.fields import InvalidCheckpoint
from checkpoint.find import newest_sound, steps_in
from checkpoint.verify import verify
from planning.pace import WARM_STEPS
from tests.helpers.forks import Forks
from tests.helpers.training import metrics_of

TENSORS = ("model.safetensors", "optimizer.safetensors")
TINY = ["--no-use_gpu", "--n_layer", "2", "--n_head", "2", "--n_embd", "32", "--seq_length", "8", "--batch_size", "4",
        "--log_interval", "1", "--sample_interval", "0", "--checkpoint_every_minutes", "0"]
MEASURED = 1 + WARM_STEPS  # steps that are measured, and undone, before the first one


def calls_in(log: Path) -> list[list[str]]:
    """What faulty.c logged: of each call its number, kind, path and bytes."""
    return [line.split("\t") for line in log.read_text().splitlines()]


def tensors(path: Path) -> list[bytes]:
    """The bytes of a checkpoint's tensors."""
    return [(path / name).read_bytes() for name in TENSORS]


class Trial:
    """A command line, what it leads to when nothing disturbs it, and the comparison with a run that was disturbed."""

    def __init__(self, forks: Forks, corpus: Path, folder: Path, last: int, flags: list[str]):
        self.forks, self.folder, self.last = forks, folder, last
        self.flags = ["--data_dir", str(corpus), *TINY, "--max_steps", str(last), "--resume_from", "auto", *flags]
        self.whole = folder / "whole"
        code, text, self.seconds = self.run(self.whole, "--keep_checkpoints", "1000")
        assert code == 0, text
        self.losses = metrics_of(self.whole)
        self.tensors = {step: tensors(path) for step, path in steps_in(self.whole).items()}

    def argv(self, out: Path) -> list[str]:
        """The command line for an output folder."""
        return ["train.py", *self.flags, "--output_dir", str(out)]

    def run(self, out: Path, *flags: str, **more: Any) -> tuple[int, str, float]:
        """Runs the command; more is for Forks.run. Its exit code, all that it printed, its seconds."""
        done = self.forks.run([*self.argv(out), *flags], merged=True, **more)
        return done.code, done.stdout, done.seconds

    def resume(self, out: Path, **more: Any) -> tuple[int, str, float]:
        """Goes on with the one flag that needs no other: the run's own come from its config.toml."""
        done = self.forks.run(["train.py", "--resume_from", str(out)], merged=True, **more)
        return done.code, done.stdout, done.seconds

    def unsound(self, out: Path) -> list[str]:
        """The checkpoints of a folder that are not, byte for byte, those of the run that nothing disturbed."""

        wrong = []
        for step, path in steps_in(out).items():
            try:
                verify(path)
                if tensors(path) != self.tensors[step]:
                    wrong.append(f"{path.name}: other tensors")
            except InvalidCheckpoint as error:
                wrong.append(f"{path.name}: {error}")
        return wrong

    def newest(self, out: Path) -> int:
        """The step that a run would go on from; 0 for the start."""
        found = newest_sound(out, lambda message: None)
        return found[1]["step"] if found else 0

    def ends_exactly(self, out: Path, least: int = 0) -> list[str]:
        """Resumes to the end, from step least or later; in what losses, tensors, exit code or leftovers are others."""
        code, text, _ = self.run(out)
        wrong = [f"resumed: exit {code}\n{text}"] if code else []
        found = re.search(r"^(?:resume +from checkpoint-|already at step )(\d+)", text, re.MULTILINE)
        if least and (not found or int(found[1]) < least):
            wrong.append(f"the checkpoint of step {least} is lost\n{text}")
        if not wrong and metrics_of(out) != self.losses:
            wrong.append("other losses")
        if not wrong and tensors(out / f"checkpoint-{self.last}") != self.tensors[self.last]:
            wrong.append("other weights")
        if not wrong and verify(out / f"checkpoint-{self.last}")["validated_step"] != self.last:
            wrong.append("the checkpoint of the last step does not record its validation")
        return wrong + [f"{path.name} was not swept" for path in out.glob(".tmp-*")]


class Background:
    """A run that goes on while the test does something to its folder."""

    def __init__(self, trial: Trial, out: Path, *flags: str):
        self.printed = trial.folder / f"{out.name}.txt"
        self.done: tuple[int, str, float] | None = None
        self.printed.touch()
        self.thread = threading.Thread(target=self._run, args=(trial, out, *flags))
        self.thread.start()

    def _run(self, trial: Trial, out: Path, *flags: str) -> None:
        self.done = trial.run(out, *flags, printed_to=self.printed)

    def wait(self, reached: Callable[[str], Any]) -> None:
        """Waits until what was printed has come so far."""
        while not reached(self.printed.read_text()):
            assert self.thread.is_alive(), self.printed.read_text()
            time.sleep(0.005)

    def ended(self) -> tuple[int, str]:
        """The exit code and all that was printed."""
        self.thread.join()
        assert self.done
        return self.done[:2]


def fill(folder: Path) -> Path:
    """Fills a small file system to its last byte; returns the file that does."""
    ballast, block = folder / "ballast", bytes(4096)
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(block) == len(block):
                pass
        except OSError:
            pass
    return ballast
