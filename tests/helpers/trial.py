"""A run of train.py that something disturbs, compared byte for byte with the run that nothing disturbed.

A Trial is a command line, for one process or several. Four harnesses disturb it: kills, a disk that fails at one call
(Sweep), damaged checkpoints, signals. Each returns what is wrong in words, nothing if all is as it should be.
"""

import os
import random
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from gpt.checkpoint.find import newest_sound
from gpt.checkpoint.steps import steps_in
from gpt.checkpoint.stored import verify
from gpt.common.errors import Exit, InvalidCheckpoint
from gpt.training.pacing import WARM_STEPS
from tests.helpers.forks import Ended, Forks, Raised
from tests.helpers.training import metrics_of

T = TypeVar("T")
SHARE = float(os.environ.get("FAULTS_SHARE", "1"))  # of the cases of a proof, for a short try of it
STEP = "train:take_step"
MEASURED = 1 + WARM_STEPS  # steps that are measured, and undone, before the first one
TENSORS = ("model.safetensors", "optimizer.safetensors")
TINY = ["--no-use_gpu", "--n_layer", "2", "--n_head", "2", "--n_embd", "32", "--seq_length", "8", "--batch_size", "4",
        "--log_interval", "1", "--sample_interval", "0", "--checkpoint_every_minutes", "0"]
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL, Exit.MACHINE)  # whichever of several processes notices first
MOST_SECONDS = 60  # from a kill or a signal to the end of all processes
FAILED = re.compile(r"warning: checkpoint-\d+ could not be saved: .*needs about \d")


def some(cases: Sequence[T]) -> list[T]:
    """All cases of a proof in random order, or the share of them that FAULTS_SHARE asks for, at least one."""
    return random.Random(0).sample(cases, max(1, round(SHARE * len(cases))))


def prove(check: Callable[[T], list[str]], cases: Sequence[T]) -> None:
    """Tries the cases, two at a time, and fails with all that is wrong after any of them."""
    with ThreadPoolExecutor(2) as pool:
        wrong = [problem for problems in pool.map(check, some(cases)) for problem in problems]
    assert not wrong, "\n".join(wrong)


def tensors(path: Path) -> list[bytes]:
    """The bytes of a checkpoint's tensors."""
    return [(path / name).read_bytes() for name in TENSORS]


class Trial:
    """A command line, what it leads to when nothing disturbs it, and what is wrong after something did."""

    def __init__(self, forks: Forks, corpus: Path, folder: Path, last: int, *flags: str, world_size: int = 1,
                 num_machines: int = 1):
        folder.mkdir(exist_ok=True)
        self.forks, self.folder, self.last = forks, folder, last
        self.team = {"world_size": world_size, "num_machines": num_machines}
        self.flags = ["--data_dir", str(corpus), *TINY, "--max_steps", str(last), "--resume_from", "auto", *flags]
        self.kills, self.whole = 0, folder / "whole"
        done = self.run(self.whole, "--keep_checkpoints", "1000")
        assert done.code == 0, done.stdout
        self.seconds, self.losses = done.seconds, metrics_of(self.whole)
        self.tensors = {step: tensors(path) for step, path in steps_in(self.whole).items()}

    def run(self, out: Path, *flags: str, **more: Any) -> Ended:
        """Runs the command into a folder; more is for Forks.run. stdout of the result is all that it printed."""
        words = ["train.py", *self.flags, "--output_dir", str(out), *flags]
        env = {"TORCHINDUCTOR_COMPILE_THREADS": "1", **more.pop("env", {})}
        return self.forks.run(words, merged=True, env=env, **{"alarm": 300, **self.team, **more})

    def before(self, name: str, step: int) -> Path:
        """A new output folder that holds the checkpoints up to a step."""
        out = shutil.copytree(self.whole, self.folder / name)
        for later in [path for number, path in steps_in(out).items() if number > step]:
            shutil.rmtree(later)
        return out

    # ------------------------------------------------------------ what is wrong

    def unsound(self, out: Path) -> list[str]:
        """The checkpoints of a folder that are not, byte for byte, those of the run that nothing disturbed.

        One at a step of its own, which a process saves that was asked to stop as its parent died, need only be whole.
        """
        wrong = []
        for step, path in steps_in(out).items():
            try:
                verify(path)
                if step in self.tensors and tensors(path) != self.tensors[step]:
                    wrong.append(f"{path.name}: other tensors")
            except InvalidCheckpoint as error:
                wrong.append(f"{path.name}: {error}")
        return wrong

    def newest(self, out: Path) -> int:
        """The step that a run would go on from; 0 for the start."""
        found = newest_sound(out, lambda message: None)
        return found.stored.state.step if found else 0

    def ends_exactly(self, out: Path, *flags: str, least: int = 0) -> list[str]:
        """Resumes to the end, from step least or later; in what losses, tensors, exit code or leftovers are others."""
        done = self.run(out, *flags)
        wrong = [f"resumed: exit {done.code}\n{done.stdout}"] if done.code else []
        found = re.search(r"^(?:resume +from checkpoint-|already at step )(\d+)", done.stdout, re.MULTILINE)
        if least and (not found or int(found[1]) < least):
            wrong.append(f"the checkpoint of step {least} is lost\n{done.stdout}")
        if not wrong and metrics_of(out) != self.losses:
            wrong.append("other losses")
        if not wrong and tensors(out / f"checkpoint-{self.last}") != self.tensors[self.last]:
            wrong.append("other weights")
        return wrong + [f"{path.name} was not swept" for path in out.glob(".tmp-*")]

    # ------------------------------------------------------------ the harnesses

    def killed(self, seed: int) -> list[str]:
        """A run killed one to four times, at any moment or soon after a step, and then left alone."""
        rng, out, size = random.Random(seed), self.folder / f"killed-{seed}", self.team["world_size"]
        for _ in range(rng.randint(1, 4)):
            victim = rng.choice([None, *range(size)]) if size > 1 else None
            how: dict[str, Any] = {"kill_after": rng.uniform(0.1, self.seconds), "victim": victim}
            if rng.random() < 0.6:
                step = MEASURED + rng.randint(1, max(1, (self.last - self.newest(out)) // 2))
                delay = rng.choice((0.0, rng.uniform(0, 0.01)))
                how = {"raised": [Raised(STEP, step, signal.SIGKILL, delay, victim)]}
            done = self.run(out, **how)
            if done.code not in (0, *KILLED) or done.seconds > self.seconds + MOST_SECONDS:
                return [f"seed {seed}: exit {done.code} after {done.seconds:.0f} s\n{done.stdout}"]
            self.kills += done.code != 0
        wrong = self.unsound(out) + self.ends_exactly(out)
        shutil.rmtree(out)
        return [f"seed {seed}, {' '.join(self.flags)}: {problem}" for problem in wrong]

    def damaged(self, seed: int) -> list[str]:
        """The newest checkpoint is damaged: that is named, and the one before it taken."""
        out = shutil.copytree(self.whole, self.folder / f"damaged-{seed}")
        what, names = damage(random.Random(seed), out / f"checkpoint-{self.last}")
        done = self.run(out)
        is_named = any(f"checkpoint-{self.last} was skipped: {name}" in done.stdout for name in names)
        is_exact = (metrics_of(out), self.unsound(out)) == (self.losses, [])
        shutil.rmtree(out)
        if done.code == 0 and is_named and is_exact:
            return []
        return [f"seed {seed}, {what}: exit {done.code}\n{done.stdout}"]

    def signalled(self, case: tuple[tuple[str, int], int, float, int | None]) -> list[str]:
        """A signal comes in a call of a function, that many seconds after it began, to one process or to each.

        What is wrong with the stopped run, and after going on from where it stopped.
        """
        (function, call), number, delay, rank = case
        out = self.before("-".join(map(str, (function, call, int(number), delay, rank))), 10)
        disk = {"FAULTY_FOLDER": str(out), "FAULTY_STEP": "20", "FAULTY_ACTION": f"{number:d}",
                "FAULTY_AT": str(1 + int(1000 * delay))}
        done = self.run(out, env={} if function else disk,
                        raised=[Raised(function, call, number, delay, rank)] if function else [])
        text = done.stdout
        wrong = [f"took {done.seconds:.1f} s"] if done.seconds > MOST_SECONDS else []
        may_be = {128 + number, -number, *((128 + signal.SIGTERM, *KILLED) if self.team["world_size"] > 1 else ())}
        if done.code not in may_be and not (done.code == 0 and self.last in steps_in(out)):
            wrong.append(f"exit {done.code}\n{text}")
        if "Traceback" in text or ("error:" in text and self.team["world_size"] == 1):
            wrong.append(text)
        if done.code == 128 + number and text and not re.search("to continue: .* train.py|nothing was lost", text):
            wrong.append(f"how to go on is not said\n{text}")
        logged = max([0, *map(int, re.findall(r"^step (\d+)/", text, re.MULTILINE))])
        if (newest := self.newest(out)) < logged:
            wrong.append(f"step {logged} was logged and is lost; {newest} is left\n{text}")
        wrong += self.ends_exactly(out)
        shutil.rmtree(out)
        return [f"{case}: {problem}" for problem in wrong]


class Sweep:
    """One save of a run, whose every call on the disk can be made to fail.

    before is the folder the run finds, least the step that no fault may lose, damaged what was so before. saved_in
    gives the folder whose calls are meant, the run's own unless it is a mirror.
    """

    def __init__(self, trial: Trial, step: int, least: int, *flags: str, before: Path | None = None,
                 damaged: str = "none", mirror: bool = False):
        self.trial, self.step, self.least, self.flags, self.before = trial, step, least, flags, before
        self.damaged, self.mirror = damaged, mirror
        self.counted = trial.folder / "counted"
        done, self.calls = self.run(self.counted, "count", 0)
        assert (done.code, trial.unsound(self.disk_of(self.counted))) == (0, []), done.stdout

    def disk_of(self, out: Path) -> Path:
        """The folder that lies on the disk that fails."""
        return out.with_name(f"{out.name}-drive") if self.mirror else out

    def flags_of(self, out: Path) -> list[str]:
        """The flags of a run into a folder."""
        return [*self.flags, *(["--mirror_to", str(self.disk_of(out))] if self.mirror else [])]

    def run(self, out: Path, action: str, at: int) -> tuple[Ended, list[list[str]]]:
        """The run whose save meets the fault, and the calls that it made: number, kind, path and bytes of each."""
        if self.before:
            shutil.copytree(self.before, out)
        (log := out.with_suffix(".tsv")).touch()
        env = {"FAULTY_FOLDER": str(self.disk_of(out)), "FAULTY_STEP": str(self.step), "FAULTY_ACTION": action,
               "FAULTY_AT": str(at), "FAULTY_LOG": str(log)}
        done = self.trial.run(out, *self.flags_of(out), env=env)
        return done, [line.split("\t") for line in log.read_text().splitlines()]

    def cases(self) -> list[tuple[str, int]]:
        """Every fault at every call it makes a difference to."""
        return [(action, at) for at, (_, kind, _, _) in enumerate(self.calls, 1)
                for action in ("kill", "tear", "nospace", "full", "eio", *(["short"] if kind == "write" else []))]

    def wrong(self, case: tuple[str, int]) -> list[str]:
        """What is wrong after a fault, and after going on from there; a machine that is gone leaves its mirror."""
        (action, at), trial = case, self.trial
        out = trial.folder / f"{action}-{at}"
        done, made = self.run(out, action, at)
        if len(made) < at and not self.mirror:
            return [f"{action} at call {at}: the run made {len(made)} calls\n{done.stdout}"]
        _, kind, path, _ = made[at - 1] if len(made) >= at else ("", "", "", "")
        is_killed = done.code in KILLED and action in ("kill", "tear")
        expected = 0 if trial.last in steps_in(out) else Exit.MACHINE
        wrong = [] if is_killed or done.code == expected else [f"exit {done.code}, expected {expected}\n{done.stdout}"]
        for folder in {out, self.disk_of(out)}:
            wrong += [problem for problem in trial.unsound(folder) if not problem.startswith(self.damaged)]
        if "Traceback" in done.stdout or "a bug in the program" in done.stdout:
            wrong.append(done.stdout)
        if action in ("nospace", "full", "eio") and kind in ("write", "open", "mkdir", "link"):
            said = "warning: --mirror_to" if self.mirror else "warning: starts.jsonl: " if path.endswith(
                "/starts.jsonl") else ""
            if not (said in done.stdout if said else FAILED.search(done.stdout)):
                wrong.append(f"no warning\n{done.stdout}")
        if is_killed and self.mirror:
            shutil.rmtree(out)
        elif not is_killed and not (action == "eio" and kind == "unlink"):
            wrong += [f"{path.name} was left" for path in out.glob(".tmp-*")]
        wrong += trial.ends_exactly(out, *self.flags_of(out), least=self.least)
        may_lack = action in ("nospace", "full", "eio")  # nothing is copied again when the run is done
        if self.mirror and (trial.unsound(self.disk_of(out))
                            or not (may_lack or trial.last in steps_in(self.disk_of(out)))):
            wrong.append("the mirror is unsound or lacks the last checkpoint in the end")
        for folder in {out, self.disk_of(out)}:
            shutil.rmtree(folder)
        return [f"{action} at call {at}, {kind} {path}: {problem}" for problem in wrong]

    def unordered(self) -> list[str]:
        """What was seen before it was on the disk: a file's bytes, its folder, the name, the folder of the name."""
        calls = [(kind, Path(path), int(size)) for _, kind, path, size in self.calls]
        temporary = next(path for kind, path, _ in calls if kind == "mkdir")
        renamed, wrong = calls.index(("rename", temporary, 0)), []
        for path in (self.trial.whole / f"checkpoint-{self.step}").iterdir():
            mine = [(kind, size) for kind, at, size in calls[:renamed] if at == temporary / path.name]
            written = sum(size for kind, size in mine if kind == "write")
            if path.name not in ("README.md", "trainer_state.json", "manifest.json") and written != path.stat().st_size:
                wrong.append(f"{path.name}: {written} bytes")
            wrong += [] if mine[-1][0] == "fsync" else [f"{path.name} is not synced"]
        for folder, after in ((temporary, calls[:renamed]), (self.disk_of(self.counted), calls[renamed:])):
            wrong += [] if any(call[:2] == ("fsync", folder) for call in after) else [f"{folder.name} is not synced"]
        return wrong


# ---------------------------------------------------------------- damage


DAMAGES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "flip": lambda rng, held: _with(held, at := rng.randrange(len(held)), bytes([held[at] ^ 1 << rng.randrange(8)])),
    "cut": lambda rng, held: held[:rng.randrange(len(held))],
    "zeros": lambda rng, held: _with(held, at := rng.randrange(len(held)), bytes(min(4096, len(held) - at))),
    "tail": lambda rng, held: held + rng.randbytes(rng.randint(1, 100)) + b"\x00",
    "text": lambda rng, held: b"Dear diary, today my optimizer diverged.\n",
    "zip": lambda rng, held: b"PK\x03\x04\x14\x00\x00\x00\x08\x00" + bytes(30),
    "empty": lambda rng, held: b"",
}


def _with(held: bytes, at: int, part: bytes) -> bytes:
    return held[:at] + part + held[at + len(part):]


def damage(rng: random.Random, folder: Path, may_swap: bool = True) -> tuple[str, set[str]]:
    """Damages one file of a folder, or swaps two; what was done, and the names of which one is to be said."""
    path = rng.choice(sorted(folder.iterdir()))
    kind = rng.choice([*DAMAGES, "folder", *["swap"] * may_swap])
    content = path.read_bytes()
    if kind == "swap":
        other = rng.choice(sorted(set(folder.iterdir()) - {path}))
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
        return f"{path.name} and {other.name} swapped", {path.name, other.name}
    if kind == "folder":
        path.unlink()
        path.mkdir()
    else:
        changed = content
        while changed == content:  # zeros in the place of zeros
            changed = DAMAGES[kind](rng, content)
        path.write_bytes(changed)
    return f"{kind} in {path.name}", {path.name}
