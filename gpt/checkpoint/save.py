"""Writes the files of a checkpoint.

A folder is written under a temporary name, flushed to disk, read back and verified, and only then renamed.
Training waits only for a snapshot of the tensors; a thread of training/checkpointing.py writes it.
"""

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from gpt.checkpoint.contents import SAFETENSORS_TYPES, STATE_VERSION, Tensors, aligned, json_text
from gpt.checkpoint.folder import atomic_folder
from gpt.common.errors import InvalidCheckpoint
from gpt.common.files import write_all
from gpt.common.names import MANIFEST
from gpt.machine.backends import HostBuffer, backend_of
from gpt.ops.shards import full_tensor

WRITTEN_BYTES = 2**24  # written at a time, while a thread hashes them


class Snapshot:
    """A copy of a checkpoint's tensors in one buffer of host memory, which every save reuses.

    The buffer is kept because new pages cost more time than the copy itself. For a GPU the buffer is pinned.
    """

    def __init__(self) -> None:
        self._buffer = HostBuffer(0, False)

    def reserve(self, num_bytes: int, pinned: bool) -> None:
        """Allocates the buffer now rather than at the first save; does nothing if it is large enough.

        pinned speeds up copies from a GPU. Raises RuntimeError for too little memory.
        """
        if self._buffer.bytes.nbytes < num_bytes:
            self.close()
            self._buffer = HostBuffer(num_bytes, pinned)

    def take(self, tensors: Tensors) -> Tensors:
        """Copies the tensors to the host; the copies are complete on return and valid until the next call.

        While it gathers sharded tensors, every other process must call Tensors.join_gather(). Raises
        RuntimeError for too little memory.
        """
        backend = backend_of(next(iter(tensors.model.values())))
        self.reserve(tensors.num_bytes, backend.runs_ahead)
        used, copies = 0, Tensors({}, {})
        for part, copied in ((tensors.model, copies.model), (tensors.training, copies.training)):
            for name, tensor in part.items():
                place = self._buffer.bytes[used:used + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                copied[name] = place.copy_(full_tensor(tensor), non_blocking=backend.runs_ahead)
                used += aligned(tensor.nbytes)
        if backend.runs_ahead:
            backend.synchronize()
        return copies

    def close(self) -> None:
        """Unpins and drops the buffer; the memory itself lasts as long as copies of take() do."""
        self._buffer.close()
        self._buffer = HostBuffer(0, False)


def save(output_dir: Path, step: int, tensors: Mapping[str, Mapping[str, torch.Tensor]],
         texts: Mapping[str, str]) -> Path:
    """Writes and returns output_dir/checkpoint-STEP; it gets its name once all files were read back.

    tensors holds the tensors of each safetensors file by name; texts holds all other files except the manifest.
    Raises OSError if a file cannot be written, and FloatingPointError with the name of a tensor that holds
    NaN or infinity. The unfinished folder is then removed, and an older checkpoint of this step stays.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_folder(output_dir, f"checkpoint-{step}") as folder:
            with ThreadPoolExecutor(len(tensors)) as writers:  # writing and hashing overlap
                written = writers.map(lambda name: write_tensors(folder / name, tensors[name]), tensors)
            entries = dict(zip(tensors, written, strict=True))
            for name, text in texts.items():
                entries[name] = write_file(folder / name, [text.encode()])
            manifest = {"version": STATE_VERSION, "files": dict(sorted(entries.items()))}
            write_file(folder / MANIFEST, [json_text(manifest).encode()])
    except InvalidCheckpoint as error:
        raise OSError(f"a file reads back differently: {error}") from error
    return output_dir / f"checkpoint-{step}"


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Writes a new safetensors file and waits for the disk; returns its manifest entry: bytes and sha256.

    safetensors' own save_file writes the same bytes, but needs all tensors contiguous in memory at once.
    The types of the tensors are in contents.SAFETENSORS_TYPES; others are a KeyError. Raises OSError, also
    if the file exists, and FloatingPointError before it writes a tensor with NaN or infinity. After an
    error a part of the file stays.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # the library's own order

    def content() -> Iterator[memoryview | bytes]:
        yield _header(tensors, names)
        for name in names:
            tensor = tensors[name].detach().cpu().contiguous()
            if tensor.is_floating_point() and not tensor.sum().isfinite():  # one pass over the tensor, no copy
                raise FloatingPointError(name)
            yield tensor.view(-1).view(torch.uint8).numpy().data

    return write_file(path, content())


def _header(tensors: Mapping[str, torch.Tensor], names: Iterable[str]) -> bytes:
    """The first bytes of a safetensors file: the length of the header, and the header in whole 8 bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        tensor = tensors[name]
        offset, end = end, end + tensor.nbytes
        header[name] = {"dtype": SAFETENSORS_TYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_file(path: Path, content: Iterable[memoryview | bytes]) -> dict[str, Any]:
    """Writes a new file and waits for the disk; returns its entry in the manifest: bytes and sha256.

    Raises OSError, also if the file exists. After an error a part of the file stays.
    """
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("xb", buffering=0) as file, ThreadPoolExecutor(1) as hasher:
        for part in content:
            for start in range(0, len(part), WRITTEN_BYTES):
                block = memoryview(part)[start:start + WRITTEN_BYTES]
                hashed = hasher.submit(digest.update, block)
                write_all(file.fileno(), block)
                hashed.result()
                with contextlib.suppress(AttributeError, OSError):  # starts early what fsync waits for
                    os.posix_fadvise(file.fileno(), num_bytes + start, WRITTEN_BYTES, os.POSIX_FADV_DONTNEED)
            num_bytes += len(part)
        os.fsync(file.fileno())
    return {"bytes": num_bytes, "sha256": digest.hexdigest()}
