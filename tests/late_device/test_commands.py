"""The commands on the late device: the processor's figures, no value read too early, no wait of the host in a step.

    python -m pytest -m late_device
"""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from gpt.checkpoint.contents import Tensors
from gpt.checkpoint.save import Snapshot
from gpt.checkpoint.steps import steps_in
from gpt.common.errors import Exit, UserError
from gpt.machine.backends import Backend
from gpt.ops.layers import _Dropout
from tests.helpers.commands import ROOT
from tests.helpers.training import same_tensors
from tests.late_device import NEEDS
from tests.late_device.device import Late

pytestmark = NEEDS

# Measured. A log line waits twice for one event, the second time for nothing. A token waits
# for the copy of its inputs and for the copy of its results.
MOST_WAITS_A_LOG_LINE = 2
MOST_WAITS_A_TOKEN = 2

VARIANTS = [
    "--optimizer adamw", "--optimizer adamw8bit", "--optimizer muon", "--arch qwen3", "--arch llama",
    "--activation_checkpointing", "--gradient_accumulation_steps 3", "--dropout 0.1"]
FP32, LATE = ["--use_gpu", "--no-use_amp"], ["--use_gpu", "--use_amp"]
WITHIN_AN_EPOCH = ["--batch_size", "1", "--gradient_accumulation_steps", "2"]  # nothing is saved before the end


@pytest.fixture(autouse=True)
def without_hazard(library):
    """Fails a test in which the host changed memory too early."""
    before = library.hazards()
    yield
    assert library.hazards() == before


@pytest.fixture
def kernels(monkeypatch):
    """Each of attention's kernels runs once: the number of runs in a timing depends on the time."""
    monkeypatch.setattr("gpt.planning.kernels.seconds_of", lambda work: work() and 1.0)


def largest_difference(found, expected):
    """The largest difference between the losses of two runs."""
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    return max(abs(a[name] - b[name]) for a, b in zip(found, expected, strict=True)
               for name in ("loss", "val_loss") if name in b)


# ---------------------------------------------------------------- train.py


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_are_those_of_the_processor(late, trained, monkeypatch, variant):
    for kind in (Backend, Late):  # Muon's products would be in bf16
        monkeypatch.setattr(kind, "has_bf16", lambda backend: False)
    monkeypatch.setattr(_Dropout, "apply", torch.nn.functional.dropout)  # a processor has cheaper masks of its own
    on_host = trained("host", 6, "--no-use_gpu", "--no-compile", *variant.split())
    on_late = trained("late", 6, *FP32, *variant.split())
    assert largest_difference(on_late.metrics, on_host.metrics) < 1e-6


def test_a_teacher_gives_the_losses_of_the_processor(late, trained):
    teacher = str(trained("teacher", 3, "--no-use_gpu", "--no-compile").folder)
    on_host = trained("host", 6, "--no-use_gpu", "--no-compile", "--teacher", teacher)
    on_late = trained("late", 6, *FP32, "--teacher", teacher)
    assert largest_difference(on_late.metrics, on_host.metrics) < 1e-6


def test_tokens_give_the_same_losses_in_all_three_places(late, trained):
    runs = [trained(place, 6, *LATE, "--preload", place) for place in ("gpu", "ram", "mmap")]
    assert runs[0].metrics == runs[1].metrics == runs[2].metrics


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(("optimizer", "place"), [("adamw", "gpu"), ("adamw8bit", "ram"), ("muon", "mmap")])
def test_no_step_waits_between_log_lines(late, trained, waits_of, kernels, optimizer, dtype, place):
    flags = [*LATE, "--amp_dtype", dtype, "--optimizer", optimizer, "--preload", place, "--log_interval", "100",
             *WITHIN_AN_EPOCH]
    short = waits_of(lambda: trained("short", 4, *flags))
    assert waits_of(lambda: trained("long", 14, *flags)) == short


def test_a_logged_step_waits_for_its_event_alone(late, trained, waits_of, kernels):
    short = waits_of(lambda: trained("short", 4, *LATE, *WITHIN_AN_EPOCH))
    long = waits_of(lambda: trained("long", 14, *LATE, *WITHIN_AN_EPOCH))
    events = long.pop("event") - short.pop("event")
    assert long == short
    assert events <= 10 * MOST_WAITS_A_LOG_LINE


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_killed_run_resumes_bit_for_bit(late, trained, flags_of, tmp_path, optimizer):
    flags = [*LATE, "--optimizer", optimizer, "--eval_interval", "4", "--checkpoint_every_steps", "3"]
    whole = trained("whole", 40, *flags)
    words = [sys.executable, "-m", "tests.late_device.device", "train", *flags_of("parts", 40, *flags)]
    with subprocess.Popen(words, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}) as victim:
        while not steps_in(tmp_path / "parts"):
            assert victim.poll() is None
            time.sleep(0.001)
        victim.kill()
    assert victim.returncode == -signal.SIGKILL
    parts = trained("parts", 40, *flags, "--resume_from", "auto")
    assert parts.metrics == whole.metrics
    assert same_tensors(parts.folder / "checkpoint-40", whole.folder / "checkpoint-40")


def test_more_processes_than_gpus_are_told_the_flag_of_torchrun_that_works(late, flags_of):
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    command = ["-m", "tests.late_device.device", "train", *flags_of("out", 4, *LATE)]
    asked = [*torchrun, "--nproc_per_node", "2", *command]
    refused = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "2 processes were started on a machine with 1 GPU." in refused.stderr
    cure = re.findall(r"Give torchrun (--nproc_per_node \d+)\.", refused.stderr)[0].split()
    assert subprocess.run([*torchrun, *cure, *command], cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_a_run_recovers_from_too_little_memory(late, trained):
    flags = [*FP32, "--preload", "ram", "--batch_size"]
    trained("half", 4, *flags, "32")
    needed_by_32 = late.held_at_most()
    whole = trained("whole", 4, *flags, "64")
    late.allow((needed_by_32 + late.held_at_most()) // 2)
    halved = trained("halved", 4, *flags, "64")
    assert "--batch_size 32 --gradient_accumulation_steps 2" in halved.text
    assert largest_difference(halved.metrics, whole.metrics) < 1e-6


def test_memory_for_no_sequence_ends_the_run_with_5(late, trained):
    late.allow(late.held() + 300_000)
    with pytest.raises(UserError) as caught:
        trained("out", 4, *FP32)
    assert caught.value.code == Exit.MACHINE


# ---------------------------------------------------------------- generate.py and evaluate.py


@pytest.fixture
def checkpoint(late, trained):
    """The output folder of a short run."""
    return trained("model", 6, *LATE).folder


@pytest.mark.parametrize("more", ["", "--num_samples 3", "--temperature 0", "--top_k 0 --top_p 0.9"])
def test_generated_ids_are_those_of_the_processor(generated, checkpoint, more):
    on_host = generated(checkpoint, 24, "--no-use_gpu", *more.split())
    assert generated(checkpoint, 24, *FP32, *more.split()) == on_host


@pytest.mark.parametrize("more", ["--use_amp", "--use_amp --amp_dtype fp16", "--quantize int8"])
def test_generate_writes_all_tokens_in_16_and_8_bits(generated, checkpoint, more):
    assert 0 < len(generated(checkpoint, 24, "--use_gpu", *more.split())[0]) <= 24


@pytest.mark.parametrize("more", ["", "--num_samples 3", "--temperature 0"])
def test_a_token_waits_seldom(generated, checkpoint, waits_of, more):
    short = waits_of(lambda: generated(checkpoint, 2, *LATE, *more.split()))
    long = waits_of(lambda: generated(checkpoint, 12, *LATE, *more.split()))
    waits = (sum(long.values()) - sum(short.values())) / 10
    print(f"\n{waits} waits a token {more}")
    assert waits <= MOST_WAITS_A_TOKEN


def test_evaluate_measures_the_loss_of_the_processor(evaluated, checkpoint):
    on_host = evaluated(checkpoint, "--no-use_gpu")
    assert evaluated(checkpoint, *FP32) == pytest.approx(on_host, abs=1e-6)
    assert evaluated(checkpoint, *LATE) == pytest.approx(on_host, abs=1e-2)


def test_a_snapshot_is_complete_on_return(late):
    snapshot = Snapshot()
    taken = snapshot.take(Tensors({"a": torch.arange(6, device="late")}, {}))
    assert taken.model["a"].tolist() == [0, 1, 2, 3, 4, 5]
    snapshot.close()
