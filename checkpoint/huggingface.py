"""config.json and model.safetensors of a Hugging Face folder, there and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from common.errors import Exit, UserError
from common.files import read_text
from common.words import printable
from model import GPT, GPTConfig
from ops.linear import ACTIVATIONS

TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # transformers' Conv1D stores [in, out]
# Bounds that any real GPT-2 is within, so that a hostile config.json cannot ask for the machine's memory.
BOUNDS = {"vocab_size": 2**24, "seq_length": 2**20, "n_layer": 1024, "n_head": 1024, "n_embd": 2**16}


class Damaged(Exception):
    """This folder cannot be a checkpoint; says why."""


# ---------------------------------------------------------------- the config, there and back



def to_hf_config(config: GPTConfig, end_of_text_id: int | None) -> dict[str, Any]:
    """GPT2Config's fields for config.json."""
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": config.activation,
        "vocab_size": config.vocab_size, "n_positions": config.seq_length, "n_ctx": config.seq_length,
        "n_embd": config.n_embd, "n_layer": config.n_layer, "n_head": config.n_head, "n_inner": None,
        "attn_pdrop": config.dropout, "embd_pdrop": config.dropout, "resid_pdrop": config.dropout,
        "layer_norm_epsilon": config.layer_norm_epsilon, "initializer_range": 0.02, "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False, "use_cache": True,
        "tie_word_embeddings": config.tie_weights, "bos_token_id": end_of_text_id, "eos_token_id": end_of_text_id,
        "dtype": "float32", "torch_dtype": "float32",
    }


def read_config(folder: Path) -> GPTConfig:
    """The model's shape from a checkpoint's or a Hugging Face GPT-2 folder's config.json.

    Raises Damaged for what is no GPT-2 that model.py computes exactly, naming the field.
    """
    fields = _read_json(folder / "config.json")
    if fields.get("model_type") != "gpt2":
        raise Damaged(f"config.json: model_type is {_shown(fields.get('model_type'))}, not 'gpt2'")
    defaults = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
    numbers = {key: fields.get(key, default) for key, default in defaults.items()}
    numbers["seq_length"] = numbers.pop("n_positions")
    for key, high in BOUNDS.items():
        theirs = "n_positions" if key == "seq_length" else key
        _check_whole("config.json", theirs, numbers[key], 1, high)
    if numbers["n_embd"] % numbers["n_head"]:
        raise Damaged(f"config.json: n_embd {numbers['n_embd']} is no multiple of n_head {numbers['n_head']}")
    only = {"n_inner": (None, 4 * numbers["n_embd"]), "scale_attn_weights": (True,), "add_cross_attention": (False,),
            "reorder_and_upcast_attn": (False,), "scale_attn_by_inverse_layer_idx": (False,)}
    for key, allowed in only.items():
        if fields.get(key, allowed[0]) not in allowed:
            raise Damaged(f"config.json: {key} is {_shown(fields[key])}; only {allowed[-1]!r} is computed here")
    activation = fields.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise Damaged(f"config.json: activation_function is {_shown(activation)}, not one of {', '.join(ACTIVATIONS)}")
    epsilon, dropout = fields.get("layer_norm_epsilon", 1e-5), fields.get("resid_pdrop", 0.1)
    for key, value in (("layer_norm_epsilon", epsilon), ("resid_pdrop", dropout)):
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
            raise Damaged(f"config.json: {key} is {_shown(value)}, not a number from 0 to 1")
    tied = fields.get("tie_word_embeddings", True)
    if not isinstance(tied, bool):
        raise Damaged(f"config.json: tie_word_embeddings is {_shown(tied)}, not true or false")
    return GPTConfig(**numbers, dropout=float(dropout), tie_weights=tied,
                     activation=activation, layer_norm_epsilon=float(epsilon))


def _shown(value: Any) -> str:
    """A value from a file, as a message may show it."""
    return printable(repr(value))[:60]


def _check_whole(file: str, key: str, value: Any, low: int, high: int) -> None:
    """Raises Damaged unless the value is a whole number from low to high."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Damaged(f"{file}: {key} is {_shown(value)}, not a whole number from {low:,} to {high:,}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(read_text(path))
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        why = printable(getattr(error, "strerror", None) or str(error))[:100]
        raise Damaged(f"{path.name} cannot be read ({why})") from error
    if not isinstance(fields, dict):
        raise Damaged(f"{path.name} holds no JSON object")
    return fields


# ---------------------------------------------------------------- tensors



def to_hf_tensors(config: GPTConfig, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Views of a model's state dict by GPT2LMHeadModel's names and layout: padding trimmed, absent biases zero."""
    found = {}
    for name, tensor in tensors.items():
        owner = name.split(".")[-2]
        if owner in ("wte", "lm_head"):
            tensor = tensor[:config.vocab_size]
        found[name] = tensor.t() if name.endswith(TRANSPOSED) else tensor
        if not config.bias and owner not in ("wte", "wpe", "lm_head"):
            found[name.removesuffix("weight") + "bias"] = torch.zeros(found[name].size(-1), dtype=tensor.dtype)
    return found


def weights_of(folder: Path) -> Path:
    """The folder's model.safetensors. Raises Damaged if there is none."""
    path = folder / "model.safetensors"
    if not path.is_file():
        if (folder / "pytorch_model.bin").exists():
            raise Damaged("its weights are a pickle (pytorch_model.bin), which can run code and is never opened")
        raise Damaged("model.safetensors is missing")
    return path


def weights_in(folder: Path, config: GPTConfig) -> dict[str, torch.Tensor]:
    """A folder's weights by the names and shapes of GPT.state_dict(), without padding: views of the mapped file.

    Absent biases are zero in a model with bias off, and left out. A shorter seq_length takes the first positions.
    Raises Damaged, naming the first three, for tensors that are missing, too many, or of another shape or type.
    """
    path, wanted = weights_of(folder), GPT(config).state_dict()
    try:
        with safe_open(path, framework="pt") as file:
            stored = {}
            for key in file.keys():  # noqa: SIM118 - no mapping
                name = key if key.startswith(("transformer.", "lm_head.")) else f"transformer.{key}"
                if not name.endswith((".attn.bias", ".attn.masked_bias")):  # masks that old versions stored
                    stored[name] = file.get_tensor(key)
    except (SafetensorError, OSError) as error:
        raise Damaged(f"model.safetensors cannot be read ({printable(str(error))[:100]})") from error
    if config.tie_weights:
        stored.pop("lm_head.weight", None)
    problems, found = [], {}
    for name in {**wanted, **stored}:
        if name not in stored:
            problems.append(f"{name} is missing")
        elif name not in wanted:
            if config.bias or not name.endswith(".bias") or stored[name].any():
                problems.append(f"{name} is not part of this model")
        else:
            tensor, shape = stored[name], list(wanted[name].shape)
            tensor = tensor.mT if name.endswith(TRANSPOSED) and tensor.dim() == 2 else tensor
            if name in ("transformer.wte.weight", "lm_head.weight"):
                shape[0] = config.vocab_size
            if name == "transformer.wpe.weight" and tensor.dim() == 2:
                shape[0] = max(shape[0], len(tensor))
            if list(tensor.shape) != shape:
                problems.append(f"{name} has shape {list(tensor.shape)}, the config asks for {shape}")
            elif not tensor.is_floating_point():
                problems.append(f"{name} holds {str(tensor.dtype)[6:]}, not numbers with a fraction")
            else:
                found[name] = tensor[:len(wanted[name])]
    if problems:
        rest = [f"and {len(problems) - 3} more"] if len(problems) > 3 else []
        raise Damaged("; ".join([*problems[:3], *rest]))
    return found


def load_weights(folder: Path, model: GPT) -> None:
    """Copies a folder's weights into the model, whose config must be the folder's.

    Raises Damaged as weights_in does; the model is then unchanged.
    """
    _copy(weights_in(folder, model.config), model)


def _copy(weights: dict[str, torch.Tensor], model: GPT) -> None:
    with torch.no_grad():
        for name, target in model.state_dict().items():
            tensor = weights[name]
            target[:len(tensor)] = tensor.to(target.device, target.dtype)
            target[len(tensor):] = 0.0


def open_model(folder: Path) -> tuple[GPTConfig, dict[str, torch.Tensor]]:
    """Shape and weights of a checkpoint or a Hugging Face GPT-2 folder, as weights_in. Raises UserError (exit 4)."""
    try:
        config = read_config(folder)
        stored = weights_of(folder).stat().st_size
        if 2 * config.num_parameters > 1.1 * stored + 2**20:
            raise Damaged(f"config.json asks for {config.num_parameters:,} parameters, model.safetensors has "
                          f"{stored:,} bytes")
        return config, weights_in(folder, config)
    except Damaged as error:
        raise UserError(Exit.CHECKPOINT, f"checkpoint {printable(str(folder))}: {error}. Give a checkpoint of train.py "
                                         "or a Hugging Face GPT-2 folder with safetensors.") from error


def load_model(folder: Path, device: torch.device) -> GPT:
    """The model of a checkpoint or a Hugging Face GPT-2 folder, in fp32. Raises UserError (exit 4)."""
    config, weights = open_model(folder)
    model = GPT(config)
    _copy(weights, model)
    return model.to(device)
