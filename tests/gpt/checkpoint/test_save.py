"""checkpoint/save.py: bytes are those of safetensors, a failed write leaves nothing, only finite values are saved."""

import mmap
import threading
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE

from gpt.checkpoint import folder as folders
from gpt.checkpoint import save as room
from gpt.checkpoint import stored
from gpt.checkpoint.contents import Tensors, tensor_files, text_files
from gpt.checkpoint.save import Snapshot, save, write_file
from gpt.checkpoint.stored import verify
from gpt.machine.backends import HostBuffer
from tests.helpers.checkpoints import flip, names_in


def test_the_bytes_are_those_that_safetensors_writes(make_checkpoint, tmp_path):
    path, model, optimizer = make_checkpoint(tmp_path)
    tensors = Tensors.of(model, optimizer)
    for name, part in (("model", tensor_files(model.config, tensors)["model.safetensors"]),
                       ("optimizer", load_file(path / "optimizer.safetensors"))):
        save_file({name: tensor.contiguous() for name, tensor in part.items()}, tmp_path / "theirs", {"format": "pt"})
        assert (path / f"{name}.safetensors").read_bytes() == (tmp_path / "theirs").read_bytes()


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(("module", "broken", "calls_that_work"), [
    (folders, "sync", 0), (folders, "sync", 1), (room, "write_tensors", 0), (room, "write_tensors", 1),
    (room, "write_file", 0), (room, "write_file", 1), (room, "write_file", 2), (room, "write_file", 8),
    (stored, "sha256_of", 0), (stored, "sha256_of", 7)])
def test_a_write_that_fails_leaves_the_older_checkpoint_and_nothing_else(make_model, sound, folder, monkeypatch, module,
                                                                         broken, calls_that_work):
    works, calls = getattr(module, broken), []

    def full(*args, **kwargs):
        calls.append(args)
        if len(calls) > calls_that_work:
            raise OSError(28, "No space left on device")
        return works(*args, **kwargs)

    model = make_model()
    files = tensor_files(model.config, Tensors.of(model, torch.optim.AdamW(model.parameters())))
    monkeypatch.setattr(module, broken, full)
    for step in (1000, 1100):  # one over an older checkpoint of the step, one new
        calls.clear()
        with pytest.raises(OSError, match="No space left on device"):
            save(folder, step, files, text_files(step, model.config, {}, Tokenizer(BPE()).to_str(), 0, "card"))
        assert names_in(folder) == ["checkpoint-1000", "checkpoint-900"]
    monkeypatch.undo()
    for step in (900, 1000):
        assert verify(folder / f"checkpoint-{step}") == verify(sound / f"checkpoint-{step}")


def test_a_tensor_that_reads_back_differently_is_a_failed_write(make_checkpoint, tmp_path, monkeypatch):
    def faulty(path, content):
        entry = write_file(path, content)
        if path.name == "model.safetensors":
            flip(path)
        return entry

    monkeypatch.setattr(room, "write_file", faulty)
    with pytest.raises(OSError, match=r"model\.safetensors"):
        make_checkpoint(tmp_path)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_never_saved(make_model, tmp_path, value):
    model = make_model()
    tensors = Tensors.of(model, torch.optim.AdamW(model.parameters()))
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight")[0, 0] = value
    with pytest.raises(FloatingPointError, match=r"transformer\.wpe\.weight"):
        save(tmp_path, 1, tensor_files(model.config, tensors), {})
    assert names_in(tmp_path) == []


# ---------------------------------------------------------------- copies, and the thread that writes


def test_a_snapshot_is_a_copy_that_training_does_not_change(make_model):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.long)).backward()
    optimizer.step()
    live, snapshot = Tensors.of(model, optimizer), Snapshot()
    before = {name: tensor.clone() for name, tensor in {**live.model, **live.training}.items()}
    for _ in range(2):  # the second one takes the same memory
        taken = snapshot.take(live)
        copies = {**taken.model, **taken.training}
        with torch.no_grad():
            for tensor in live.model.values():
                tensor.fill_(7.0)
        assert copies.keys() == before.keys()
        for name, tensor in copies.items():
            assert torch.equal(tensor, before[name]), name
            assert tensor.dtype == before[name].dtype
        model.load_state_dict({name: before[name] for name in live.model})


def test_pinned_memory_is_as_large_as_the_copy_and_given_back(monkeypatch):
    cuda, empty = a_cuda(monkeypatch), torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **kwargs: (
        pytest.fail("PyTorch rounds this up to a power of two") if pin_memory else empty(*shape, **kwargs)))
    snapshot = Snapshot()
    for num_bytes in (9000, 8000, 9001):
        snapshot.reserve(num_bytes, pinned=True)
    snapshot.close()
    (_, first, *size), given_back, (_, second, *larger), also = cuda
    assert (size, larger) == ([9000, 1], [9001, 1])
    assert not first % mmap.PAGESIZE
    assert (given_back, also) == (("cudaHostUnregister", first), ("cudaHostUnregister", second))
    assert HostBuffer(9000, pinned=False).is_pinned is False


def a_cuda(monkeypatch, refuses=False):
    """Pretends that there is CUDA's runtime, and returns the list of what it will be asked."""
    asked = []

    def answer(name, *arguments):
        assert threading.current_thread() is not threading.main_thread(), "an error would stay in the thread"
        asked.append((name, *arguments))
        return 1 if refuses else 0

    cudart = SimpleNamespace(cudaHostRegister=partial(answer, "cudaHostRegister"),
                             cudaHostUnregister=partial(answer, "cudaHostUnregister"))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    return asked
