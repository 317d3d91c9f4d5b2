"""Writes the files of a checkpoint.

A folder is written under a temporary name, flushed to disk, read back and verified, and only then renamed.
Training waits only for a snapshot of the tensors; a thread writes the snapshot.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from gpt.checkpoint.contents import Tensors, aligned, manifest_text
from gpt.checkpoint.folder import atomic_folder
from gpt.checkpoint.tensors import write_file, write_tensors
from gpt.common.errors import InvalidCheckpoint
from gpt.common.names import MANIFEST
from gpt.machine.backends import backend_of
from gpt.machine.pinned import HostBuffer
from gpt.ops.shards import full_tensor


class Snapshot:
    """A copy of a checkpoint's tensors in one buffer of host memory, which every save reuses.

    The buffer is kept because new pages cost more time than the copy itself. For a GPU the buffer is pinned.
    """

    def __init__(self) -> None:
        self._buffer = HostBuffer(0, False)

    def reserve(self, num_bytes: int, pinned: bool) -> None:
        """Allocates the buffer now rather than at the first save. Raises RuntimeError for too little memory."""
        if self._buffer.bytes.nbytes < num_bytes:
            self.close()
            self._buffer = HostBuffer(num_bytes, pinned)

    def take(self, tensors: Tensors) -> Tensors:
        """Copies the tensors; the copies are complete on return and valid until the next call."""
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
        """Frees the memory."""
        self._buffer.close()
        self._buffer = HostBuffer(0, False)


def save(output_dir: Path, step: int, tensors: Mapping[str, Mapping[str, torch.Tensor]], texts: Mapping[str, str],
         ) -> Path:
    """Writes output_dir/checkpoint-STEP, which gets its name after all files are on disk and were read back.

    Raises OSError if a file cannot be written, and NotFinite for a tensor with NaN or infinity; the folder
    is then removed.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_folder(output_dir, f"checkpoint-{step}") as folder:
            with ThreadPoolExecutor(len(tensors)) as writers:  # writing and hashing overlap
                written = writers.map(lambda name: write_tensors(folder / name, tensors[name]), tensors)
            entries = dict(zip(tensors, written, strict=True))
            for name, text in texts.items():
                entries[name] = write_file(folder / name, [text.encode()])
            write_file(folder / MANIFEST, [manifest_text(entries).encode()])
    except InvalidCheckpoint as error:
        raise OSError(f"a file reads back differently: {error}") from error
    return output_dir / f"checkpoint-{step}"
