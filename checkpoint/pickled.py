"""Reads a .pt file in a process of its own, which checkpoint/nanogpt.py starts, by torch's reader of plain tensors.

A pickle can name any function to call; that reader refuses to (torch.load with weights_only). What is found is written
as safetensors and as a line of JSON, and nothing else that the file holds leaves the process.

    python pickled.py FILE.pt FOUND.safetensors
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import save_file

PREFIXES = re.compile(r"^((_orig_mod|module|model)\.)+")  # of torch.compile, of DDP, of a wrapper
MASKS = (".attn.bias", ".attn.masked_bias")  # buffers of older versions, no parameters
PLACES = ("model", "model_state_dict", "state_dict")  # of the weights in a training checkpoint
WHERE_DEFINED = ("__main__", "model", "train_gpt2")  # the class GPTConfig of scripts that save it as an object


class SavedConfig:
    """Stands for a script's GPTConfig: its fields become attributes, and it has no methods to run."""


def read(path: str, target: str) -> dict[str, Any]:
    """Writes the weights, fp32, to the target; returns the shape and the progress that the file records, as numbers."""
    known: list[Any] = [(SavedConfig, f"{module}.GPTConfig") for module in WHERE_DEFINED]
    with torch.serialization.safe_globals(known):
        found = torch.load(path, map_location="cpu", weights_only=True)
    places = [*(found.get(name) for name in PLACES), found] if isinstance(found, Mapping) else []
    stored = next((place for place in places if isinstance(place, Mapping) and place
                   and all(isinstance(part, torch.Tensor) for part in place.values())), None)
    if stored is None:
        raise ValueError(f"it holds no weights: neither names with tensors, nor those under {', '.join(PLACES)}")
    weights = {PREFIXES.sub("", str(name)): tensor.detach().float().clone() for name, tensor in stored.items()
               if not str(name).endswith(MASKS)}
    save_file(weights, target)
    config = found.get("config")
    is_object = type(config) is SavedConfig
    shape = vars(config) if is_object else found.get("model_args") or {}
    run = {name: float(found[name]) for name in ("iter_num", "step", "best_val_loss", "val_loss") if name in found}
    return {"n_head": shape.get("n_head"), "is_object": is_object, "run": run}


if __name__ == "__main__":
    try:
        print(json.dumps(read(*sys.argv[1:])))
    except Exception as error:
        unknown = re.search(r"GLOBAL '?([\w.]+)", str(error))
        sys.exit(f"it names {unknown[1]}, which is no tensor and no number: to open it could run code" if unknown
                 else (str(error).splitlines() or [type(error).__name__])[0][:150])
