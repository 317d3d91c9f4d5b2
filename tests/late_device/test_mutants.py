"""The late device notices a wait or a pinned copy that the program leaves out, and a wait too many.

    python -m pytest -m late_device
"""

import ast
import inspect
import pkgutil
import textwrap

import pytest
import torch

from gpt.checkpoint.contents import Tensors
from gpt.checkpoint.save import Snapshot
from gpt.common.files import sha256_of
from tests.late_device import NEEDS

pytestmark = NEEDS

LATER = '.to("cpu", non_blocking=True)'
MUTANTS = [  # function, a piece of its source, what stands there instead, flags of train.py
    # A wait less.
    ("gpt.machine.runtime:Mark.wait", "self.event.synchronize()", "pass", ""),
    ("gpt.watching.monitor:Monitor.add", "clock.mark()", "clock._lap_began", ""),
    ("gpt.watching.monitor:Monitor.catch_up", ".item()", f"{LATER}.item()", ""),
    ("gpt.training.validation:sum_losses", "float(loss)", f"float(loss{LATER})", ""),
    ("gpt.checkpoint.save:Snapshot.take", "backend.synchronize()", "pass", ""),
    ("gpt.generation.sampling:_next_ids", ".tolist()", f"{LATER}.tolist()", ""),
    ("gpt.evaluation.scoring:score_batch", ".cpu()", LATER, ""),
    # A pinned copy less, or one that is used again too early.
    ("gpt.machine.backends:to_host", ", pin_memory=True", "", ""),
    ("gpt.machine.backends:to_device", ".pin_memory()", "", ""),
    ("gpt.machine.backends:to_device", "x.pin_memory().to(device, non_blocking=True)",
     "[pinned := x.pin_memory(), pinned.to(device, non_blocking=True), pinned.zero_()][1]", ""),
    ("data:_as_batch", "to_device(torch.from_numpy(rows.view(f'<i{rows.itemsize}')), device)",
     "torch.from_numpy(rows.view(f'<i{rows.itemsize}')).to(device)", "--preload ram"),
    ("data:Tokens.rows", "to_device(torch.from_numpy(starts), self._on_gpu.device)",
     "torch.from_numpy(starts).to(self._on_gpu.device)", "--preload gpu"),
    # A wait more.
    ("train:try_step", "if run.recipe.grad_clip:", "if run.recipe.grad_clip and norm.isfinite():", ""),
    ("gpt.optimizers.adamw8bit:AdamW8bit.update", "self._host_knows and found_inf", "found_inf",
     "--optimizer adamw8bit"),
]


def mutate(monkeypatch, function: str, before: str, after: str) -> None:
    """Replaces the code of a function, named as module:path, whoever has imported it."""
    original = inspect.unwrap(pkgutil.resolve_name(function))
    tree = ast.parse(textwrap.dedent(inspect.getsource(original)))
    source = ast.unparse(tree.body[0])
    assert before in source, f"{function} has changed: {before} is not there"
    mutant = ast.parse(source.replace(before, after)).body[0]
    assert isinstance(mutant, ast.FunctionDef)
    mutant.decorator_list = []
    names = dict(original.__globals__)
    exec(compile(ast.Module([mutant], []), function, "exec"), names)
    monkeypatch.setattr(original, "__code__", names[mutant.name].__code__)


@pytest.fixture
def findings(late, trained, generated, evaluated, waits_of, tmp_path):
    """A function: all that the device sees of the commands, with an error in place of what it ended."""

    def of(work):
        try:
            return work()
        except Exception as error:
            return repr(error)

    def call(out, *flags):
        """Trains and saves, generates, evaluates, and takes a snapshot."""
        flags = ["--use_gpu", "--use_amp", "--log_interval", "2", "--eval_interval", "3", *flags]
        before, found = late.hazards(), {}
        waits = waits_of(lambda: found.update(train=of(lambda: trained(out, 6, *flags).metrics)))
        saved = tmp_path / out / "checkpoint-6" / "model.safetensors"
        snapshot = Snapshot()
        found |= {"waits": {cause: num for cause, num in waits.items() if cause != "synchronize"},
                  "weights": sha256_of(saved) if saved.exists() else None,
                  "copies": snapshot.take(Tensors({"": torch.arange(6, device="late")}, {})).model[""].tolist(),
                  "ids": of(lambda: generated(tmp_path / "sound", 12, "--use_gpu")),
                  "loss": of(lambda: evaluated(tmp_path / "sound", "--use_gpu"))}
        late.synchronize()
        snapshot.close()
        found["hazards"] = late.hazards() - before
        return found

    return call


@pytest.mark.parametrize(("function", "before", "after", "flags"), MUTANTS,
                         ids=[f"{function.split(':')[1]}-{number}" for number, (function, *_) in enumerate(MUTANTS)])
def test_a_mutant_is_noticed(findings, monkeypatch, function, before, after, flags):
    sound = findings("sound", *flags.split())
    assert sound == {**findings("again", *flags.split()), "hazards": 0}
    mutate(monkeypatch, function, before, after)
    found = findings("mutant", *flags.split())
    noticed = {name for name in sound if found[name] != sound[name]}
    print(f"\n{function}: {after or before} is noticed by {', '.join(sorted(noticed)) or 'nothing'}")
    assert noticed
