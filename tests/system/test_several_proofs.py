"""The long proofs of several processes: every way of sharing, kills and signals at any moment, any number after any.

They speak by gloo. Most are forks, which start in a tenth of a second (tests/helpers/forks.py), some torchrun's own.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from architectures.fields import InvalidCheckpoint
from checkpoint.find import steps_in
from checkpoint.huggingface import load_model
from checkpoint.verify import verify
from common.errors import Exit
from planning.pace import WARM_STEPS
from tests.helpers.commands import ROOT
from tests.helpers.forks import Raised
from tests.helpers.several import EXACT, SMALL, Several, figures
from tests.helpers.training import metrics_of

pytestmark = pytest.mark.slow

WAYS = {"ddp": (2, 1), "fsdp": (2, 1), "hsdp": (4, 2)}  # processes, and machines that they are said to be on
TEAMS = [*((way, *team) for way, team in WAYS.items()), ("ddp", 4, 1), ("fsdp", 4, 1)]
PRECISIONS = {  # flags, and how far losses and norms may be from those of one process in the same precision
    "fp32": ([], EXACT),
    "bf16": (["--use_amp", "--amp_dtype", "bf16"], 1e-2),  # fsdp gathers weights in bf16, autocast rounds elsewhere
    "fp16": (["--use_amp", "--amp_dtype", "fp16"], 5e-3),
}
MODELS = {
    "gpt2": ["--optimizer", "adamw"],
    "dropout": ["--optimizer", "adamw", "--dropout", "0.1"],
    "compiled": ["--optimizer", "adamw", "--compile"],
    "recomputed": ["--optimizer", "adamw", "--activation_checkpointing"],
    "untied": ["--optimizer", "adamw", "--no-tie_weights", "--label_smoothing", "0.1"],
    "qwen3": ["--optimizer", "adamw", "--arch", "qwen3"],
    "llama": ["--optimizer", "adamw", "--arch", "llama"],
}
LONG = ["--max_steps", "60", "--epochs", "9", "--gradient_accumulation_steps", "8", "--eval_interval", "20"]
ENDS = (128 + signal.SIGKILL, -signal.SIGKILL, Exit.MACHINE)  # by which it is seen that one was killed
MOST_SECONDS = 60  # from a kill to the end of all processes


@pytest.fixture
def train(forks, make_corpus, tmp_path):
    return Several(forks, make_corpus(tmp_path / "corpus"), tmp_path)


def tensors(folder: Path) -> list[bytes]:
    """The bytes of the last checkpoint's tensors."""
    newest = steps_in(folder)[max(steps_in(folder))]
    return [(newest / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")]


# ---------------------------------------------------------------- the same losses


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_sixty_losses_are_those_of_one_process_and_the_same_again(train, name, precision):
    flags, tolerance = PRECISIONS[precision]
    flags = [*LONG, *MODELS[name], *flags]
    alone = train(1, *flags, out="alone")
    assert alone.code == 0, alone.stderr
    expected = figures(train.folder / "alone")
    for way, world_size, machines in TEAMS:
        team = f"{way}-{world_size}"
        for attempt in ("first", "again"):
            done = train(world_size, *flags, "--model_parallel", way, out=f"{team}-{attempt}", num_machines=machines)
            assert done.code == 0, done.stderr
            assert "torch.compile failed" not in done.stderr
        found = figures(train.folder / f"{team}-first")
        print(f"\n{name} {precision} {team}: {max(abs(a / b - 1) for a, b in zip(found, expected, strict=True)):.1e}")
        assert found == pytest.approx(expected, rel=tolerance)
        assert found == figures(train.folder / f"{team}-again")
        assert tensors(train.folder / f"{team}-first") == tensors(train.folder / f"{team}-again")


@pytest.mark.parametrize(("name", "tolerance"), [("muon", 2e-3), ("adamw8bit", 1e-3)])
def test_the_other_optimizers_are_those_of_one_process(train, name, tolerance):
    """Muon multiplies in bf16, where another order of sums counts; a rounding may give a code of 8 bits its neighbour.
    """
    flags = [*LONG, "--optimizer", name]
    assert train(1, *flags, out="alone").code == 0
    for way, (world_size, num_machines) in WAYS.items():
        if way != "ddp" and name == "adamw8bit":
            continue
        done = train(world_size, *flags, "--model_parallel", way, out=way, num_machines=num_machines)
        assert done.code == 0, done.stderr
        found, expected = figures(train.folder / way), figures(train.folder / "alone")
        print(f"\n{name} {way}: {max(abs(a / b - 1) for a, b in zip(found, expected, strict=True)):.1e}")
        assert found == pytest.approx(expected, rel=tolerance)


# ---------------------------------------------------------------- the same checkpoints


@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_of_any_number_of_processes_goes_on_in_any_other(train, way):
    """S is 12, which 1 to 4 processes share; a constant rate, so that the end of a run changes nothing before it."""
    flags = ["--optimizer", "adamw", "--dropout", "0.1", "--lr_schedule", "constant", "--learning_rate", "1e-3",
             "--batch_size", "1", "--gradient_accumulation_steps", "12", "--eval_interval", "1000"]
    assert train(1, *flags, "--max_steps", "6", out="alone").code == 0
    expected = [row["loss"] for row in metrics_of(train.folder / "alone") if "loss" in row]
    for first in (1, 2, 3, 4):
        out = f"from-{first}"
        machines = 2 if way == "hsdp" and first in (2, 4) else 1
        done = train(first, *flags, "--model_parallel", way, "--max_steps", "3", out=out, num_machines=machines)
        assert done.code == 0, done.stderr
        for second in (1, 2, 3, 4):
            shutil.copytree(train.folder / out, train.folder / f"{out}-to-{second}")
            machines = 2 if way == "hsdp" and second in (2, 4) else 1
            done = train(second, *flags, "--model_parallel", way, "--max_steps", "6", "--resume_from", "auto",
                         out=f"{out}-to-{second}", num_machines=machines)
            assert done.code == 0, done.stderr
            rows = [row for row in metrics_of(train.folder / f"{out}-to-{second}") if "loss" in row]
            assert [row["loss"] for row in rows] == pytest.approx(expected, rel=EXACT)
            verify(steps_in(train.folder / f"{out}-to-{second}")[6])


def test_transformers_opens_what_several_processes_saved(train):
    """With the logits that the model itself computes."""
    transformers = pytest.importorskip("transformers")
    for way in ("ddp", "fsdp"):
        done = train(2, "--optimizer", "adamw", "--max_steps", "6", "--model_parallel", way, out=way)
        assert done.code == 0, done.stderr
        folder = steps_in(train.folder / way)[6]
        model = load_model(folder, torch.device("cpu")).eval()
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        ids = torch.arange(model.config.seq_length)[None] % model.config.vocab_size
        with torch.no_grad():
            torch.testing.assert_close(theirs(ids).logits, model(ids), rtol=1e-4, atol=1e-4)


def test_checkpoints_are_the_same_files_where_the_mathematics_is_the_same(train):
    """Two micro-batches a step, whose halves are added: there is one order of two. Nothing depends on a norm."""
    flags = ["--optimizer", "adamw", "--max_steps", "6", "--gradient_accumulation_steps", "2", "--grad_clip", "0"]
    for out, world_size, way in (("alone", 1, "ddp"), ("ddp", 2, "ddp"), ("fsdp", 2, "fsdp")):
        done = train(world_size, *flags, "--model_parallel", way, out=out)
        assert done.code == 0, done.stderr
    files = [{path.name: path.read_bytes() for path in steps_in(train.folder / out)[6].iterdir()}
             for out in ("alone", "ddp", "fsdp")]
    for name in files[0]:
        if name not in ("trainer_state.json", "manifest.json", "README.md"):  # environment, seconds, flags
            assert files[0][name] == files[1][name] == files[2][name], name


# ---------------------------------------------------------------- a full disk


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_disk_that_is_full_for_one_save_costs_nothing_but_it(train, way):
    if train.forks.shim is None:
        pytest.skip("needs Linux and a C compiler")
    flags = ["--model_parallel", way, "--optimizer", "adamw", "--checkpoint_every_steps", "3", "--eval_interval", "99"]
    full = {"FAULTY_FOLDER": str(train.folder / "out"), "FAULTY_STEP": "6", "FAULTY_ACTION": "nospace",
            "FAULTY_AT": "9"}
    done = train(2, *flags, env=full)
    assert done.code == 0, done.stderr
    assert done.stderr.count("warning: checkpoint-6 could not be saved: No space left on device.") == 1
    assert sorted(steps_in(train.folder / "out")) == [3, 9, 12]
    assert train(2, *flags, out="whole").code == 0
    assert tensors(train.folder / "out") == tensors(train.folder / "whole")


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_disk_that_stays_full_ends_the_run_in_words(train, way):
    if train.forks.shim is None:
        pytest.skip("needs Linux and a C compiler")
    full = {"FAULTY_FOLDER": str(train.folder / "out"), "FAULTY_STEP": "5", "FAULTY_ACTION": "full", "FAULTY_AT": "9"}
    done = train(2, "--model_parallel", way, "--optimizer", "adamw", env=full)
    assert done.code == Exit.MACHINE
    assert done.stderr.count("error: the last state could not be saved") == 1
    assert not list(steps_in(train.folder / "out"))


# ---------------------------------------------------------------- kills


@dataclass
class Chaos:
    """Kills runs and starts them again, and says what is wrong about how they ended."""

    train: Several
    world_size: int
    flags: list[str]
    changes: bool  # each start may have another number of processes
    kills: int = 0
    identical: int = 0
    slowest: float = 0.0
    expected: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        return f"{self.world_size}{'+' if self.changes else ''}{''.join(self.flags[:4])}"

    def prepare(self) -> None:
        """The run that nothing disturbs."""
        done = self.train(self.world_size, *self.flags, out=self.name)
        assert done.code == 0, done.stderr
        self.seconds, self.expected = done.seconds, figures(self.train.folder / self.name)

    def wrong(self, seed: int) -> list[str]:
        """One run, killed two to five times before it is left alone."""
        rng, out, world_size = random.Random(seed), f"{self.name}-{seed}", self.world_size
        flags = [*self.flags, "--resume_from", "auto"]
        for _ in range(rng.randint(2, 5)):
            after = rng.uniform(0.05, 1.1 * self.seconds)
            victim = rng.choice([None, *range(world_size)]) if world_size > 1 else None
            done = self.train(world_size, *flags, out=out, kill_after=after, victim=victim)
            if done.code == 0:
                break
            with self.lock:
                self.kills += 1
                self.slowest = max(self.slowest, done.seconds - after)
            if done.code not in ENDS or done.seconds - after > MOST_SECONDS:
                return [f"{out}: {done.code} {done.seconds - after:.0f} s after a kill\n{done.stdout}{done.stderr}"]
            world_size = rng.choice([1, 2, 4]) if self.changes else world_size
        done = self.train(world_size, *flags, out=out)
        return self._differences(out, done.code, done.stdout + done.stderr)

    def _differences(self, out: str, code: int, text: str) -> list[str]:
        folder, wrong = self.train.folder / out, []
        if code:
            return [f"{out}: exit {code}\n{text}"]
        for path in steps_in(folder).values():
            try:
                verify(path)
            except InvalidCheckpoint as error:
                wrong.append(f"{out}: {path.name}: {error}")
        found = figures(folder)
        if self.changes:
            is_same = found == pytest.approx(self.expected, rel=EXACT)
        else:
            is_same = (found, tensors(folder)) == (self.expected, tensors(self.train.folder / self.name))
        with self.lock:
            self.identical += is_same
        wrong += [] if is_same else [f"{out}: other losses\n{text}"]
        return wrong + [f"{out}: {path.name} was not swept" for path in folder.glob(".tmp-*")]


@pytest.mark.kills
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
@pytest.mark.parametrize("changes", [False, True])
def test_runs_whose_processes_are_killed_at_random_moments_are_exact(train, tally, way, changes):
    flags = ["--model_parallel", way, "--optimizer", "adamw", "--dropout", "0.1", "--checkpoint_every_steps", "3",
             "--max_steps", "24"]
    chaos = Chaos(train, 2, flags, changes)
    chaos.prepare()
    seeds = tally.some(range(14))
    wrong = train.forks.map(chaos.wrong, seeds)
    tally.add("kills of several", runs=len(seeds), kills=chaos.kills, exact=chaos.identical, wrong=len(wrong),
              slowest_end_ms=int(1000 * chaos.slowest))
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------- torchrun itself


def torchrun(folder: Path, corpus: Path, *flags: str, restarts: int = 0) -> subprocess.Popen:
    """train.py on two processes, started as a user would, in a session of its own; what it prints goes to a file."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--max_restarts", str(restarts),
             "--master_port", str(random.Random(str(folder)).randrange(20_000, 30_000)),
             str(ROOT / "train.py"), "--data_dir", str(corpus), "--output_dir", str(folder), *SMALL, *flags]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    with open(printed_by(folder), "a") as stream:
        return subprocess.Popen(words, env=env, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)


def printed_by(folder: Path) -> Path:
    """The file of what a run in the folder has printed."""
    return folder.with_suffix(".txt")


def workers_of(agent: subprocess.Popen) -> list[int]:
    """The processes that torchrun has started, none while it restarts them."""
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(agent.pid)], capture_output=True, text=True)
    return [int(line.split()[0]) for line in found.stdout.splitlines() if "train.py" in line]


def wait_for_all(folder: Path, seconds: float) -> float:
    """How long it took until no process of the run in the folder was left; torchrun's are in sessions of their own."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if not subprocess.run(["pgrep", "-f", f"train.py .*--output_dir {folder} "], capture_output=True).stdout:
            break
        time.sleep(0.1)
    return time.monotonic() - began


@pytest.mark.kills
@pytest.mark.parametrize("flags", [["--optimizer", "adamw", "--dropout", "0.1"], ["--optimizer", "adamw", "--compile"]])
def test_torchrun_restarts_what_is_killed_and_the_run_is_exact(make_corpus, tmp_path, tally, flags):
    corpus, kills, exact, seeds = make_corpus(tmp_path / "corpus"), 0, 0, tally.some(range(2))
    long = [*flags, "--max_steps", "400", "--epochs", "99", "--checkpoint_every_steps", "20", "--eval_interval", "1000",
            "--resume_from", "auto"]
    whole = torchrun(tmp_path / "whole", corpus, *long)
    assert whole.wait(timeout=300) == 0, printed_by(tmp_path / "whole").read_text()
    for seed in seeds:
        rng, out = random.Random(seed), tmp_path / str(seed)
        agent = torchrun(out, corpus, *long, restarts=9)
        for _ in range(3):
            time.sleep(rng.uniform(3, 14))
            if workers := workers_of(agent):
                os.kill(rng.choice(workers), signal.SIGKILL)
                kills += 1
        if seed % 2:  # torchrun too; all its processes end, and it is started again by hand
            agent.kill()
            agent.wait()
            kills += 1
            assert wait_for_all(out, MOST_SECONDS) < MOST_SECONDS
            agent = torchrun(out, corpus, *long)
        code = agent.wait(timeout=400)
        printed = printed_by(out).read_text()
        assert code == 0, printed
        assert (figures(out), tensors(out)) == (figures(tmp_path / "whole"), tensors(tmp_path / "whole")), printed
        exact += 1
    tally.add("kills under torchrun", runs=len(seeds), kills=kills, exact=exact)


# ---------------------------------------------------------------- signals


PHASES = {  # where a signal comes: the function and its call, and whether there is a state to save by then
    "before": ("train:check_inputs", 1, False),
    "measuring": ("train:train_step", 2, False),
    "first step": ("train:train_step", WARM_STEPS + 2, True),
    "a step": ("train:train_step", WARM_STEPS + 9, True),
    "validation": ("training.validation:Validator.measure", 1, True),
    "save": ("training.checkpointing:Checkpointer.save", 1, True),
    "last step": ("train:train_step", WARM_STEPS + 1 + 24, True),
}


@pytest.mark.signals
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
@pytest.mark.parametrize("rank", [0, 1, None])
def test_a_signal_in_any_phase_to_any_process_ends_all_and_loses_no_step(train, tally, way, rank):
    flags = ["--model_parallel", way, "--optimizer", "adamw", "--max_steps", "24", "--eval_interval", "8",
             "--resume_from", "auto"]
    assert train(2, *flags, out="whole").code == 0
    count = 0
    for phase, (function, call, is_saved) in PHASES.items():
        if phase == "before" and rank == 1:
            continue  # the first process alone does that
        for number in (signal.SIGTERM, signal.SIGINT):
            out = f"{phase}-{number}"
            done = train(2, *flags, out=out, raised=[Raised(function, call, number, rank=rank)])
            count += 1
            assert done.seconds < MOST_SECONDS
            assert "Traceback" not in done.stderr
            codes = [128 + number]
            if not is_saved:  # the others learn it from torchrun, or from a closed connection
                codes += [128 + signal.SIGTERM, Exit.MACHINE]
            if phase == "last step":  # it came too late
                codes.append(0)
            assert done.code in codes, (phase, done.code, done.stderr)
            if is_saved and phase != "last step":
                begun = call - WARM_STEPS - 1 if function == "train:train_step" else 5
                assert max(steps_in(train.folder / out)) >= begun, (phase, done.stdout)
            again = train(2, *flags, out=out)
            assert again.code == 0, again.stderr
            assert figures(train.folder / out) == figures(train.folder / "whole"), phase
    tally.add("signals to several", signals=count, wrong=0)


@pytest.mark.signals
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_signal_while_blocks_are_compiled_ends_all(train, tally, way):
    """Seconds after the first step began, in which both processes compile; a resumed run is as if it never came."""
    flags = ["--model_parallel", way, "--optimizer", "adamw", "--max_steps", "8", "--compile", "--resume_from", "auto"]
    assert train(2, *flags, out="whole").code == 0
    count = 0
    for rank, number, delay in ((0, signal.SIGTERM, 0.5), (1, signal.SIGTERM, 1.5), (None, signal.SIGINT, 1.0)):
        out = f"{rank}-{number}"
        done = train(2, *flags, out=out, raised=[Raised("train:train_step", 1, number, delay=delay, rank=rank)])
        count += 1
        assert done.seconds < MOST_SECONDS
        assert done.code in (128 + number, 128 + signal.SIGTERM, Exit.MACHINE), done.stderr
        assert "Traceback" not in done.stderr
        again = train(2, *flags, out=out)
        assert again.code == 0, again.stderr
        assert figures(train.folder / out) == figures(train.folder / "whole")
    tally.add("signals while compiling", signals=count, wrong=0)


@pytest.mark.signals
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_process_that_stands_still_for_20_seconds_is_waited_for(train, way):
    flags = ["--model_parallel", way, "--optimizer", "adamw", "--max_steps", "12"]
    assert train(2, *flags, out="whole").code == 0
    done = train(2, *flags, out="slow",
                 raised=[Raised("train:train_step", WARM_STEPS + 4, signal.SIGSTOP, delay=20.0, rank=1)])
    assert done.code == 0, done.stderr
    assert done.seconds > 20
    assert figures(train.folder / "slow") == figures(train.folder / "whole")


@pytest.mark.signals
@pytest.mark.parametrize(("numbers", "code"), [
    ((signal.SIGTERM,), 1), ((signal.SIGTERM, signal.SIGTERM), 1), ((signal.SIGINT,), 1),
    ((signal.SIGINT, signal.SIGINT), 1), ((signal.SIGUSR1,), 0)])
def test_a_signal_to_torchrun_or_to_its_workers_saves_and_ends(make_corpus, tmp_path, tally, numbers, code):
    """SIGUSR1 goes to a worker, which saves and goes on; a terminal sends Ctrl-C to all of the session."""
    corpus, out = make_corpus(tmp_path / "corpus"), tmp_path / "out"
    agent = torchrun(out, corpus, "--optimizer", "adamw", "--max_steps", "600", "--epochs", "99", "--eval_interval",
                     "1000", "--log_interval", "50")
    while "\nstep 50/" not in printed_by(out).read_text():
        time.sleep(0.1)
    for number in numbers:
        if number == signal.SIGUSR1:
            os.kill(workers_of(agent)[1], number)
        elif number == signal.SIGINT:
            os.killpg(agent.pid, number)
        else:
            agent.send_signal(number)
        time.sleep(0.3)
    found = agent.wait(timeout=300)
    assert wait_for_all(out, MOST_SECONDS) < MOST_SECONDS
    printed = printed_by(out).read_text()
    assert (found != 0) == bool(code), printed
    steps = list(steps_in(out))
    if len(numbers) == 1 or numbers[0] == signal.SIGTERM:
        assert steps
        assert max(steps) >= 50, printed
    if numbers[0] == signal.SIGUSR1:
        assert 600 in steps
        assert len(steps) > 1
    tally.add("signals under torchrun", signals=len(numbers))
