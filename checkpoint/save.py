"""A checkpoint is a Hugging Face GPT-2 folder plus training state: write, verify, find, load.

    config.json  model.safetensors  tokenizer.json  tokenizer_config.json  generation_config.json    for transformers
    optimizer.safetensors  trainer_state.json                                                        for resuming
    README.md  manifest.json                                         the model card; sizes and sha256, written last

A folder is written under a temporary name, flushed to disk, read back, and renamed: it is there whole or not at all.
Training waits for a copy of the tensors alone; a thread writes it. No file is a pickle; tensors are safetensors, the
rest is JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from checkpoint.find import STATE_FORMAT, STATE_VERSION, verify
from checkpoint.folder import REPLACED, TEMPORARY, _put_back
from checkpoint.huggingface import Damaged, to_hf_config, to_hf_tensors
from common.files import sync
from model import GPT, GPTConfig

DTYPES = {torch.float32: "F32", torch.uint8: "U8"}  # safetensors' names of what is written
BLOCK_BYTES = 2**24


@dataclass(frozen=True)
class Tensors:
    """What a checkpoint stores: the model's state dict; 'exp_avg.transformer.wte.weight' and the like, 'rng.cpu'."""

    model: dict[str, torch.Tensor]
    training: dict[str, torch.Tensor]

    @staticmethod
    def of(model: GPT, optimizer: torch.optim.Optimizer) -> Tensors:
        """The tensors themselves, where they are; only the random generators' states are copies."""
        training = {f"{key}.{name}": value.detach() for name, parameter in model.named_parameters()
                    for key, value in optimizer.state[parameter].items()}
        training["rng.cpu"] = torch.get_rng_state()
        where = next(model.parameters()).device
        if where.type == "cuda":
            training["rng.cuda"] = torch.cuda.get_rng_state(where)
        return Tensors({name: tensor.detach() for name, tensor in model.state_dict().items()}, training)

    @property
    def num_bytes(self) -> int:
        return sum(-(-tensor.nbytes // 64) * 64 for part in (self.model, self.training) for tensor in part.values())


class Snapshot:
    """A copy of a checkpoint's tensors on the host, in one buffer that every save takes again.

    The buffer is kept because new pages cost more than the copy itself; on a GPU it is pinned.
    """

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def reserve(self, num_bytes: int, pinned: bool) -> None:
        """Takes the buffer's pages now, so that the first save need not. Raises RuntimeError if there are none."""
        if self._buffer.nbytes >= num_bytes:
            return
        if pinned:
            with contextlib.suppress(RuntimeError):  # the system may pin less than it has; a plain copy is only slower
                self._buffer = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        if self._buffer.nbytes < num_bytes:
            self._buffer = torch.empty(num_bytes, dtype=torch.uint8)
        self._buffer.zero_()

    def take(self, tensors: Tensors) -> Tensors:
        """The tensors' copies, complete on return; they last until the next take."""
        on_gpu = any(tensor.is_cuda for tensor in tensors.model.values())
        self.reserve(tensors.num_bytes, on_gpu)
        used, copies = 0, Tensors({}, {})
        for part, copied in ((tensors.model, copies.model), (tensors.training, copies.training)):
            for name, tensor in part.items():
                place = self._buffer[used:used + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                copied[name] = place.copy_(tensor, non_blocking=True)
                used += -(-tensor.nbytes // 64) * 64
        if on_gpu:
            torch.cuda.synchronize()
        return copies


# ---------------------------------------------------------------- writing



class NotFinite(Exception):
    """A tensor that is not finite is not saved over good ones; says which."""


def save(output_dir: Path, step: int, config: GPTConfig, tensors: Tensors, state: dict[str, Any],
         tokenizer_json: str | None, end_of_text_id: int | None, card: str) -> Path:
    """Writes output_dir/checkpoint-STEP: all of it, on the disk and read back, before any of it is seen.

    state holds what trainer_state.json shall, JSON values. Raises OSError if it could not be written, NotFinite if it
    should not; nothing of it is then left.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    final, replaced = output_dir / f"checkpoint-{step}", output_dir / f"{REPLACED}checkpoint-{step}"
    temporary = output_dir / f"{TEMPORARY}{step}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        parts = {"model.safetensors": to_hf_tensors(config, tensors.model), "optimizer.safetensors": tensors.training}
        with ThreadPoolExecutor(len(parts)) as writers:  # the disk and the hash have to wait for each other less
            written = {name: writers.submit(write_tensors, temporary / name, part) for name, part in parts.items()}
        manifest = {name: entry.result() for name, entry in written.items()}
        files = {"config.json": to_hf_config(config, end_of_text_id),
                 "generation_config.json": {"bos_token_id": end_of_text_id, "eos_token_id": end_of_text_id},
                 "trainer_state.json": {"format": STATE_FORMAT, "version": STATE_VERSION, "step": step,
                                        "model": asdict(config), **state}}
        texts = {name: json.dumps(fields, indent=1) for name, fields in files.items()}
        if tokenizer_json is not None:
            texts["tokenizer.json"] = tokenizer_json
            texts["tokenizer_config.json"] = json.dumps(
                _tokenizer_config(tokenizer_json, end_of_text_id, config.seq_length), indent=1)
        for name, content in {**texts, "README.md": card}.items():
            manifest[name] = _write_bytes(temporary / name, [content.encode()])
        listed = {"version": STATE_VERSION, "files": dict(sorted(manifest.items()))}
        _write_bytes(temporary / "manifest.json", [json.dumps(listed, indent=1).encode()])
        sync(temporary)
        verify(temporary)
        if final.exists():  # an older, or a damaged, one of the same step
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
        try:
            temporary.rename(final)
            sync(output_dir)
        except OSError:  # what the disk may not hold is not offered
            with contextlib.suppress(OSError):
                final.rename(temporary)
            _put_back(replaced, final)
            raise
    except Damaged as error:
        raise OSError(f"what was written reads back differently: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
    return final


def bytes_needed(config: GPTConfig) -> int:
    """Bytes of a checkpoint: weights and both moments in fp32, a little text."""
    return 12 * config.num_parameters + 2**20


def model_card(config: GPTConfig, facts: dict[str, str], curve: Sequence[tuple[int, float, float | None]] = (),
               command: str = "") -> str:
    """README.md of a checkpoint: what it is, what it saw, its curve (step, loss, bits per byte), how to open it."""
    lines = "".join(f"- {name}: {value}\n" for name, value in facts.items())
    if curve:
        lines += "\n| step | validation loss in nats | bits per byte |\n| --- | --- | --- |\n" + "".join(
            f"| {step:,} | {loss:.4f} | {'n/a' if bits is None else f'{bits:.4f}'} |\n" for step, loss, bits in curve)
    lines += f"\n    {command}\n" if command else ""
    return ("---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n\n"
            f"# GPT-2, {config.num_parameters:,} parameters\n\n- layers {config.n_layer}, heads {config.n_head}, width "
            f"{config.n_embd}, context {config.seq_length}, vocabulary {config.vocab_size:,}\n{lines}\n"
            "    from transformers import AutoModelForCausalLM, AutoTokenizer\n"
            "    model = AutoModelForCausalLM.from_pretrained(\"path of this folder\")\n"
            "    tokenizer = AutoTokenizer.from_pretrained(\"path of this folder\")\n")


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Writes a safetensors file, one contiguous tensor at a time; returns its manifest entry when it is on the disk.

    The bytes are those of safetensors' save_file. Raises OSError, and NotFinite before a tensor that is not.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # the library's own order
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        end = offset + tensors[name].nbytes
        header[name] = {"dtype": DTYPES[tensors[name].dtype], "shape": list(tensors[name].shape),
                        "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)

    def content() -> Iterator[memoryview | bytes]:
        yield struct.pack("<Q", len(text)) + text
        for name in names:
            tensor = tensors[name].detach().cpu().contiguous()
            if tensor.is_floating_point() and not tensor.sum().isfinite():  # a sum costs a pass, not a copy
                raise NotFinite(name)
            yield tensor.view(-1).view(torch.uint8).numpy().data

    return _write_bytes(path, content())


def _write_bytes(path: Path, content: Iterable[memoryview | bytes]) -> dict[str, Any]:
    """Writes a new file, its sha256 computed beside, and waits for the disk; returns its manifest entry."""
    digest, num_bytes = hashlib.sha256(), 0
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with ThreadPoolExecutor(1) as hasher:
            for part in content:
                for start in range(0, len(part), BLOCK_BYTES):
                    block = memoryview(part)[start:start + BLOCK_BYTES]
                    hashed = hasher.submit(digest.update, block)
                    while block:
                        block = block[os.write(handle, block):]
                    hashed.result()
                    if hasattr(os, "posix_fadvise"):  # begins to write out, so that fsync has less left to do
                        os.posix_fadvise(handle, num_bytes + start, BLOCK_BYTES, os.POSIX_FADV_DONTNEED)
                num_bytes += len(part)
        os.fsync(handle)
    finally:
        os.close(handle)
    return {"bytes": num_bytes, "sha256": digest.hexdigest()}


def _tokenizer_config(tokenizer_json: str, end_of_text_id: int | None, seq_length: int) -> dict[str, Any]:
    """What AutoTokenizer needs beside tokenizer.json, in transformers 4 and 5."""
    names = {token["id"]: token["content"] for token in json.loads(tokenizer_json).get("added_tokens", [])}
    fields: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": seq_length,
                              "clean_up_tokenization_spaces": False}
    if end_of_text_id in names:
        fields.update(dict.fromkeys(("bos_token", "eos_token", "unk_token"), names[end_of_text_id]))
    return fields


class Saver:
    """Saves behind the training's back, one checkpoint at a time; a second one waits for the first."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "saver", self._yield_the_cores)
        self._pending: Future | None = None

    @staticmethod
    def _yield_the_cores() -> None:
        with contextlib.suppress(OSError, AttributeError):  # only Linux gives a thread a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)

    @property
    def is_busy(self) -> bool:
        return self._pending is not None

    def start(self, work: Callable[[], Any]) -> None:
        """Begins the work. The one before must have been taken."""
        assert self._pending is None
        self._pending = self._thread.submit(work)

    def take(self, wait: bool) -> Any:
        """The result of the work that has ended, or raises what it raised; None if it has not and wait is off."""
        if self._pending is None or not (wait or self._pending.done()):
            return None
        pending, self._pending = self._pending, None
        return pending.result()

    def close(self) -> None:
        """Waits for the work in flight."""
        self._thread.shutdown(wait=True)
