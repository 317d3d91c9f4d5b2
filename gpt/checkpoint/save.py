"""Writing a checkpoint's files, in which order; folder.py makes them appear at once.

A folder is written under a temporary name, flushed to disk, read back and verified, and only then renamed. Training
waits only for a copy of the tensors; a thread writes the copy.
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
                copied[name] = place.copy_(full_tensor(tensor), non_blocking=backend.runs_ahead)
                used += aligned(tensor.nbytes)
        if backend.runs_ahead:
            backend.synchronize()
        return copies

    def close(self) -> None:
        """Gives the memory back."""
        self._buffer.close()
        self._buffer = HostBuffer(0, False)


def save(output_dir: Path, step: int, tensors: Mapping[str, Mapping[str, torch.Tensor]], texts: Mapping[str, str],
         ) -> Path:
    """Writes output_dir/checkpoint-STEP of these files; nobody sees it before all of it is on disk and was read back.

    Raises OSError if it could not be written and NotFinite if it must not be; nothing is then left of it.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_folder(output_dir, f"checkpoint-{step}") as folder:
            with ThreadPoolExecutor(len(tensors)) as writers:  # the disk and the hash wait less for each other
                written = writers.map(lambda name: write_tensors(folder / name, tensors[name]), tensors)
            entries = dict(zip(tensors, written, strict=True))
            for name, text in texts.items():
                entries[name] = write_file(folder / name, [text.encode()])
            write_file(folder / MANIFEST, [manifest_text(entries).encode()])
    except InvalidCheckpoint as error:
        raise OSError(f"what was written reads back differently: {error}") from error
    return output_dir / f"checkpoint-{step}"
