"""Writing a checkpoint: after a crash at any moment the folder is there whole, or not at all.

A folder is written under a temporary name, flushed to disk, read back and verified, and only then renamed. Training
waits only for a copy of the tensors; a thread writes the copy.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from checkpoint.contents import (
    DTYPES,
    MANIFEST,
    Tensors,
    aligned,
    manifest_text,
)
from checkpoint.folder import appearing
from common.errors import InvalidCheckpoint
from common.files import write_all
from machine.backends import backend_of
from machine.pinned import HostBuffer
from ops.shards import assembled

BLOCK_BYTES = 2**24  # written, and hashed meanwhile, at a time


class NotFinite(Exception):
    """A tensor holds NaN or infinity and is not saved over good values; the message is its name."""


# ---------------------------------------------------------------- the copy that training waits for


class Snapshot:
    """A copy of a checkpoint's tensors on the host, in one buffer that every save uses again.

    The buffer is kept because new pages cost more time than the copy itself. On a GPU's host it is pinned.
    """

    def __init__(self) -> None:
        self._buffer = HostBuffer(0, False)

    def reserve(self, num_bytes: int, pinned: bool) -> None:
        """Takes the buffer's memory now rather than at the first save. Raises RuntimeError if there is too little."""
        if self._buffer.bytes.nbytes < num_bytes:
            self.close()
            self._buffer = HostBuffer(num_bytes, pinned)

    def take(self, tensors: Tensors) -> Tensors:
        """Copies of the tensors, complete on return and valid until the next call."""
        backend = backend_of(next(iter(tensors.model.values())))
        self.reserve(tensors.num_bytes, backend.runs_ahead)
        used, copies = 0, Tensors({}, {})
        for part, copied in ((tensors.model, copies.model), (tensors.training, copies.training)):
            for name, tensor in part.items():
                place = self._buffer.bytes[used:used + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                copied[name] = place.copy_(assembled(tensor), non_blocking=backend.runs_ahead)
                used += aligned(tensor.nbytes)
        if backend.runs_ahead:
            backend.synchronize()
        return copies

    def close(self) -> None:
        """Gives the memory back."""
        self._buffer.close()
        self._buffer = HostBuffer(0, False)


# ---------------------------------------------------------------- the folder


def save(output_dir: Path, step: int, tensors: Mapping[str, Mapping[str, torch.Tensor]], texts: Mapping[str, str],
         ) -> Path:
    """Writes output_dir/checkpoint-STEP of these files; nobody sees it before all of it is on disk and was read back.

    Raises OSError if it could not be written and NotFinite if it must not be; nothing is then left of it.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    try:
        with appearing(output_dir, f"checkpoint-{step}") as folder:
            with ThreadPoolExecutor(len(tensors)) as writers:  # the disk and the hash wait less for each other
                written = {name: writers.submit(write_tensors, folder / name, part) for name, part in tensors.items()}
            entries = {name: entry.result() for name, entry in written.items()}
            for name, text in texts.items():
                entries[name] = write_file(folder / name, [text.encode()])
            write_file(folder / MANIFEST, [manifest_text(entries).encode()])
    except InvalidCheckpoint as error:
        raise OSError(f"what was written reads back differently: {error}") from error
    return output_dir / f"checkpoint-{step}"


# ---------------------------------------------------------------- one file


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Writes a safetensors file, one contiguous tensor at a time, and waits for the disk; returns its manifest entry.

    The bytes are those of safetensors' own save_file, which would need all tensors contiguous in memory at once. Raises
    OSError, and NotFinite before it writes a tensor with NaN or infinity.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # the library's own order

    def content() -> Iterator[memoryview | bytes]:
        yield _header(tensors, names)
        for name in names:
            tensor = tensors[name].detach().cpu().contiguous()
            if tensor.is_floating_point() and not tensor.sum().isfinite():  # a sum costs a pass over it, not a copy
                raise NotFinite(name)
            yield tensor.view(-1).view(torch.uint8).numpy().data

    return write_file(path, content())


def _header(tensors: Mapping[str, torch.Tensor], names: Iterable[str]) -> bytes:
    """The first bytes of a safetensors file: the header's length and the header, padded to a multiple of 8 bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_file(path: Path, content: Iterable[memoryview | bytes]) -> dict[str, Any]:
    """Writes a new file, hashes it meanwhile, and waits for the disk; returns its manifest entry."""
    digest, num_bytes = hashlib.sha256(), 0
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with ThreadPoolExecutor(1) as hasher:
            for part in content:
                for start in range(0, len(part), BLOCK_BYTES):
                    block = memoryview(part)[start:start + BLOCK_BYTES]
                    hashed = hasher.submit(digest.update, block)
                    write_all(handle, block)
                    hashed.result()
                    if hasattr(os, "posix_fadvise"):  # starts writing to the disk, so that less is left for fsync
                        os.posix_fadvise(handle, num_bytes + start, BLOCK_BYTES, os.POSIX_FADV_DONTNEED)
                num_bytes += len(part)
        os.fsync(handle)
    finally:
        os.close(handle)
    return {"bytes": num_bytes, "sha256": digest.hexdigest()}
