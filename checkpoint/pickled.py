"""Reads a .pt file in a process of its own, by torch's reader that makes tensors and plain values alone.

A pickle can name any function to call. That reader refuses to (torch.load with weights_only), and this process, which
checkpoint/nanogpt.py starts and whose functions it never calls, has limits of memory, and writes what it
found as safetensors and a line of JSON. Nothing else that the file holds leaves it.

    python pickled.py FILE.pt FOUND.safetensors
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

SPARE_BYTES, TIMES = 2**30, 4  # of memory beyond what torch has: so much, and so many times the file
PREFIXES = ("_orig_mod.", "module.", "model.")  # of torch.compile, of DDP, of a wrapper
MASKS = (".attn.bias", ".attn.masked_bias")  # buffers of older versions, no parameters
PLACES = ("model", "model_state_dict", "state_dict")  # of the weights in a training checkpoint
WHERE_DEFINED = ("__main__", "model", "train_gpt2")  # the class GPTConfig of scripts that save it as an object
DEEPEST = 50


class SavedConfig:
    """Stands for a script's GPTConfig: its fields become attributes, and it has no methods to run."""


class Refused(Exception):
    """Why a file is not read."""


def limit_memory(path: str) -> None:
    """Limits what this process may still take, where the system can; torch itself is there already."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            held = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most = held + SPARE_BYTES + TIMES * os.path.getsize(path)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def load(path: str) -> Any:
    """What the file holds: tensors and plain values. Raises Refused."""
    known: list[Any] = [(SavedConfig, f"{module}.GPTConfig") for module in WHERE_DEFINED]
    try:
        with torch.serialization.safe_globals(known):
            try:
                found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError:  # a file of before torch 1.6 cannot be mapped
                found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise Refused(_why(error)) from error
    if why := _why_not_plain(found):
        raise Refused(why)
    return found


def _why(error: Exception) -> str:
    words = str(error)
    if name := re.search(r"GLOBAL '?([\w.]+)", words):
        return f"it names {name[1]}, which is no tensor and no number: to open it could run code"
    if isinstance(error, MemoryError) or "memory" in words:
        return f"opening it takes more than {TIMES} times its size"
    return (words.splitlines() or [""])[0][:150] or type(error).__name__


def _why_not_plain(value: Any, depth: int = 0) -> str:
    """Why a value holds more than plain tensors and numbers, or text; '' if it does not."""
    if depth > DEEPEST:
        return "it is nested too deeply"
    if type(value) is SavedConfig:
        value = vars(value)
    if type(value) in (dict, OrderedDict):
        inside = [*value.keys(), *value.values()]
    elif type(value) in (list, tuple, torch.Size):
        inside = list(value)
    elif type(value) in (torch.Tensor, torch.nn.Parameter):
        return "" if value.layout == torch.strided and not value.is_quantized else "it holds a tensor that is not dense"
    else:
        is_plain = value is None or type(value) in (bool, int, float, str)
        return "" if is_plain else f"it holds a {type(value).__module__}.{type(value).__qualname__}"
    return next(filter(None, (_why_not_plain(part, depth + 1) for part in inside)), "")


def weights_in(found: Any) -> dict[str, torch.Tensor]:
    """The weights by their names without wrappers, fp32. Raises Refused."""
    for place in (*(found.get(name) for name in PLACES), found) if isinstance(found, Mapping) else ():
        if isinstance(place, Mapping) and place and all(isinstance(part, torch.Tensor) for part in place.values()):
            return {_plain_name(str(name)): tensor.detach().float().contiguous() for name, tensor in place.items()
                    if not str(name).endswith(MASKS)}
    raise Refused(f"it holds no weights: neither names with tensors, nor those under {', '.join(PLACES)}")


def _plain_name(name: str) -> str:
    while any(name.startswith(prefix) for prefix in PREFIXES):
        name = name.partition(".")[2]
    return name


def facts_in(found: Any) -> dict[str, Any]:
    """The shape that the file records, and how far its run was: numbers alone."""
    config, kind = (found.get("model_args"), "model_args") if "model_args" in found else (found.get("config"), "config")
    is_object = type(config) is SavedConfig
    fields = vars(config) if is_object else config if kind == "model_args" and isinstance(config, dict) else {}
    numbers = {str(name): value for name, value in fields.items() if isinstance(value, bool | int | float)}
    run = {name: float(found[name]) for name in ("iter_num", "step", "best_val_loss", "val_loss")
           if isinstance(found.get(name), int | float) or (
               isinstance(found.get(name), torch.Tensor) and found[name].numel() == 1)}
    return {"shape": numbers, "is_object": is_object, "run": run}


def main(path: str, target: str) -> None:
    """Writes the weights to the target and prints what else was found, or why nothing was."""
    limit_memory(path)
    try:
        found = load(path)
        weights = weights_in(found)
        embedding, head = weights.get("transformer.wte.weight"), weights.get("lm_head.weight")
        is_tied = embedding is not None and head is not None and torch.equal(embedding, head)
        if is_tied:
            del weights["lm_head.weight"]
        said = {**facts_in(found), "is_tied": is_tied or head is None}
        save_file({name: tensor.clone() for name, tensor in weights.items()}, target)
    except Refused as error:
        said = {"refused": str(error)}
    except (OSError, SafetensorError) as error:
        said = {"unwritten": str(error)}
    except (MemoryError, RuntimeError) as error:
        said = {"refused": _why(error)}
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
