"""Writes and reads the safetensors files of a folder.

Large models come in several files and an index, model.safetensors.index.json, whose weight_map names the
file of each tensor. Files are mapped into memory: a tensor is read from the disk when it is used.
"""

import hashlib
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from gpt.architectures.fields import shown
from gpt.checkpoint.contents import DTYPES
from gpt.checkpoint.verify import read_json
from gpt.common.errors import InvalidCheckpoint
from gpt.common.files import write_all
from gpt.common.names import INDEX, WEIGHTS
from gpt.common.words import printable

BLOCK_BYTES = 2**24  # written at a time, while a thread hashes them
FILE_NAME = re.compile(r"[^/\\\0]+\.safetensors")
COPY_WHOLE = "Download the model again, or copy all of its files."


class NotFinite(Exception):
    """A tensor holds NaN or infinity and is not saved over good values; the message is its name."""


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the folder's weights by their names in the files, as views of the mapped files.

    An index beside model.safetensors is ignored, as in transformers. Raises InvalidCheckpoint for missing
    weights, a damaged file, and an index that differs from its files.
    """
    if os.path.isfile(folder / WEIGHTS):
        return mapped(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        raise InvalidCheckpoint(f"{WEIGHTS} is missing, and {INDEX} too (pickles can run code and are never opened)",
                                COPY_WHOLE)
    file_of = read_json(folder / INDEX).get("weight_map")
    if not isinstance(file_of, dict) or not file_of or not all(
            isinstance(file, str) and FILE_NAME.fullmatch(file) for file in file_of.values()):
        raise InvalidCheckpoint(f"{INDEX}: weight_map is {shown(file_of)}, not an object with the safetensors file of "
                                "each tensor in the same folder", COPY_WHOLE)
    tensors_in = {file: mapped(folder / file) for file in sorted({*file_of.values()})}
    held = {(name, file) for file, tensors in tensors_in.items() for name in tensors}
    if wrong := sorted(held ^ {*file_of.items()}):
        where = said([f"{printable(name)[:100]} in {file}" for name, file in wrong])
        raise InvalidCheckpoint(f"{INDEX} and its files differ: {where}", COPY_WHOLE)
    return {name: tensors_in[file][name] for name, file in file_of.items()}


def mapped(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of one file. Raises InvalidCheckpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is no mapping
    except (SafetensorError, OSError, ValueError) as error:  # a name that is not UTF-8 is a ValueError
        raise InvalidCheckpoint(f"{path.name} cannot be read ({printable(error)[:100]})", COPY_WHOLE) from error


def said(problems: list[str]) -> str:
    """The first three problems, and the number of further ones."""
    rest = [f"and {len(problems) - 3} more"] if len(problems) > 3 else []
    return "; ".join([*problems[:3], *rest])


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Writes a safetensors file and waits for the disk; returns the file's entry in the manifest.

    safetensors' own save_file writes the same bytes, but needs all tensors contiguous in memory at once.
    Raises OSError, and NotFinite before it writes a tensor with NaN or infinity.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # the library's own order

    def content() -> Iterator[memoryview | bytes]:
        yield _header(tensors, names)
        for name in names:
            tensor = tensors[name].detach().cpu().contiguous()
            if tensor.is_floating_point() and not tensor.sum().isfinite():  # one pass over the tensor, no copy
                raise NotFinite(name)
            yield tensor.view(-1).view(torch.uint8).numpy().data

    return write_file(path, content())


def _header(tensors: Mapping[str, torch.Tensor], names: Iterable[str]) -> bytes:
    """The first bytes of a safetensors file: the length of the header, and the header in whole 8 bytes."""
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
    """Writes a new file and waits for the disk; returns its entry in the manifest: bytes and sha256."""
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
                    if hasattr(os, "posix_fadvise"):  # starts early what fsync waits for
                        os.posix_fadvise(handle, num_bytes + start, BLOCK_BYTES, os.POSIX_FADV_DONTNEED)
                num_bytes += len(part)
        os.fsync(handle)
    finally:
        os.close(handle)
    return {"bytes": num_bytes, "sha256": digest.hexdigest()}
