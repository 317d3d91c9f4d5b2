"""What the tests of checkpoints share: refusals, damage, a folder as transformers writes it."""

import json
import random
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from gpt.common.files import sha256_of
from gpt.optimizers.build import adamw_schema

ADAMW_STATE = adamw_schema


def no_warning(message: str) -> None:
    """A warn function for what must not warn."""
    raise AssertionError(message)


def edit(path: Path, **fields) -> None:
    """Changes fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def seal(folder: Path) -> None:
    """Makes a checkpoint's manifest anew, so that it verifies as it is now."""
    entries = {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
               for path in folder.iterdir() if path.name != "manifest.json"}
    (folder / "manifest.json").write_text(json.dumps({"version": 1, "files": entries}))


def flip(path: Path) -> None:
    """Flips one bit of a file, always the same for a file's name."""
    content, rng = bytearray(path.read_bytes()), random.Random(path.name)
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def names_in(folder: Path) -> list[str]:
    """The sorted names of what a folder holds."""
    return sorted(path.name for path in folder.iterdir())


def cut_into_shards(folder: Path, num_files: int = 3) -> list[Path]:
    """Distributes a folder's model.safetensors over several files with an index, as large models come."""
    tensors = load_file(folder / "model.safetensors")
    files = [folder / f"model-{i + 1:05}-of-{num_files:05}.safetensors" for i in range(num_files)]
    names, weight_map = list(tensors), {}
    for i, file in enumerate(files):
        save_file({name: tensors[name] for name in names[i::num_files]}, file, {"format": "pt"})
        weight_map.update(dict.fromkeys(names[i::num_files], file.name))
    fields = {"metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(fields))
    (folder / "model.safetensors").unlink()
    return files


def hugging_face_folder(folder: Path):
    """Writes a tiny GPT-2 by transformers' save_pretrained and returns its model."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=16, n_embd=32, n_layer=2, n_head=2,
                                        bos_token_id=0, eos_token_id=0)).eval()
    theirs.save_pretrained(folder)
    return theirs
