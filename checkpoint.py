"""A checkpoint is a Hugging Face GPT-2 folder plus training state: write, verify, find, load.

    config.json  model.safetensors  tokenizer.json  tokenizer_config.json  generation_config.json    for transformers
    optimizer.safetensors  trainer_state.json                                                        for resuming
    README.md  manifest.json                                         the model card; sizes and sha256, written last

A folder is written under a temporary name, flushed to disk, read back, and renamed: it is there whole or not at all. No
file is a pickle; tensors are safetensors, the rest is JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from cli import Exit, UserError, printable, sha256_of, sync
from model import ACTIVATIONS, GPT, GPTConfig

try:
    import fcntl
except ImportError:  # Windows: no lock there
    fcntl = None

STATE_FORMAT = "gpt-trainer"
STATE_VERSION = 1
TEMPORARY = ".tmp-checkpoint-"
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
        raise Damaged(f"config.json: model_type is {fields.get('model_type')!r}, not 'gpt2'")
    defaults = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
    numbers = {key: fields.get(key, default) for key, default in defaults.items()}
    numbers["seq_length"] = numbers.pop("n_positions")
    for key, high in BOUNDS.items():
        if not isinstance(numbers[key], int) or isinstance(numbers[key], bool) or not 1 <= numbers[key] <= high:
            raise Damaged(f"config.json: {key} is {numbers[key]!r}, not a whole number from 1 to {high:,}")
    if numbers["n_embd"] % numbers["n_head"]:
        raise Damaged(f"config.json: n_embd {numbers['n_embd']} is no multiple of n_head {numbers['n_head']}")
    only = {"n_inner": (None, 4 * numbers["n_embd"]), "scale_attn_weights": (True,), "add_cross_attention": (False,),
            "reorder_and_upcast_attn": (False,), "scale_attn_by_inverse_layer_idx": (False,)}
    for key, allowed in only.items():
        if fields.get(key, allowed[0]) not in allowed:
            raise Damaged(f"config.json: {key} is {fields[key]!r}; only {allowed[-1]!r} is computed here")
    activation = fields.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise Damaged(f"config.json: activation_function is {activation!r}, not one of {', '.join(ACTIVATIONS)}")
    epsilon, dropout = fields.get("layer_norm_epsilon", 1e-5), fields.get("resid_pdrop", 0.1)
    for key, value in (("layer_norm_epsilon", epsilon), ("resid_pdrop", dropout)):
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise Damaged(f"config.json: {key} is {value!r}, not a number from 0 to 1")
    return GPTConfig(**numbers, dropout=float(dropout), tie_weights=bool(fields.get("tie_word_embeddings", True)),
                     activation=activation, layer_norm_epsilon=float(epsilon))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path.name} cannot be read ({printable(str(error))[:100]})") from error
    if not isinstance(fields, dict):
        raise Damaged(f"{path.name} holds no JSON object")
    return fields


# ---------------------------------------------------------------- tensors


def to_hf_tensors(model: GPT) -> dict[str, torch.Tensor]:
    """The weights by GPT2LMHeadModel's names and layout, on the host: padding trimmed, absent biases zero."""
    config, tensors = model.config, {}
    for name, tensor in model.state_dict().items():
        tensor, owner = tensor.detach().cpu(), name.split(".")[-2]
        if owner in ("wte", "lm_head"):
            tensor = tensor[:config.vocab_size]
        tensors[name] = (tensor.t() if name.endswith(TRANSPOSED) else tensor).contiguous()
        if not config.bias and owner not in ("wte", "wpe", "lm_head"):
            tensors[name.removesuffix("weight") + "bias"] = torch.zeros(tensors[name].size(-1), dtype=tensor.dtype)
    return tensors


def weights_of(folder: Path) -> Path:
    """The folder's model.safetensors. Raises Damaged if there is none."""
    path = folder / "model.safetensors"
    if not path.is_file():
        if (folder / "pytorch_model.bin").exists():
            raise Damaged("its weights are a pickle (pytorch_model.bin), which can run code and is never opened")
        raise Damaged("model.safetensors is missing")
    return path


def load_weights(folder: Path, model: GPT) -> None:
    """Copies a folder's weights into the model, whose config must be the folder's; biases it lacks must be zero there.

    Raises Damaged, naming the first three, for tensors that are missing, too many, or of another shape or type; the
    model is then unchanged.
    """
    path, wanted = weights_of(folder), dict(model.state_dict())
    try:
        with safe_open(path, framework="pt") as file:
            stored = {}
            for key in file.keys():  # noqa: SIM118 - no mapping
                name = key if key.startswith(("transformer.", "lm_head.")) else f"transformer.{key}"
                if not name.endswith((".attn.bias", ".attn.masked_bias")):  # masks that old versions stored
                    stored[name] = key
            if model.config.tie_weights:
                stored.pop("lm_head.weight", None)
            problems = []
            for name in {**wanted, **stored}:
                if name not in stored:
                    problems.append(f"{name} is missing")
                elif name not in wanted:
                    if model.config.bias or not name.endswith(".bias") or file.get_tensor(stored[name]).any():
                        problems.append(f"{name} is not part of this model")
                else:
                    shape = list(wanted[name].shape)
                    if name in ("transformer.wte.weight", "lm_head.weight"):
                        shape[0] = model.config.vocab_size
                    tensor = file.get_slice(stored[name])
                    found = tensor.get_shape()[::-1] if name.endswith(TRANSPOSED) else tensor.get_shape()
                    if found != shape:
                        problems.append(f"{name} has shape {found}, the config asks for {shape}")
                    elif not tensor.get_dtype().startswith(("F", "BF")):
                        problems.append(f"{name} holds {tensor.get_dtype()}, not numbers with a fraction")
            if problems:
                rest = [f"and {len(problems) - 3} more"] if len(problems) > 3 else []
                raise Damaged("; ".join([*problems[:3], *rest]))
            with torch.no_grad():
                for name, target in wanted.items():
                    tensor = file.get_tensor(stored[name])
                    tensor = tensor.t() if name.endswith(TRANSPOSED) else tensor
                    target[:tensor.size(0)] = tensor.to(target.device, target.dtype)
                    target[tensor.size(0):] = 0.0
    except (SafetensorError, OSError) as error:
        raise Damaged(f"model.safetensors cannot be read ({printable(str(error))[:100]})") from error


def load_model(folder: Path, device: torch.device) -> GPT:
    """The model of a checkpoint or a Hugging Face GPT-2 folder, in fp32. Raises UserError (exit 4)."""
    try:
        config = read_config(folder)
        stored = weights_of(folder).stat().st_size
        if 2 * config.num_parameters > 1.1 * stored + 2**20:
            raise Damaged(f"config.json asks for {config.num_parameters:,} parameters, model.safetensors has "
                          f"{stored:,} bytes")
        model = GPT(config)
        load_weights(folder, model)
    except Damaged as error:
        raise UserError(Exit.CHECKPOINT, f"checkpoint {printable(str(folder))}: {error}. Give a checkpoint of train.py "
                                         "or a Hugging Face GPT-2 folder with safetensors.") from error
    return model.to(device)


def optimizer_tensors(model: GPT, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state and the random generators' by name, on the host: 'exp_avg.transformer.wte.weight', ..."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"{key}.{name}"] = value.detach().cpu().contiguous()
    tensors["rng.cpu"] = torch.get_rng_state()
    where = next(model.parameters()).device
    if where.type == "cuda":
        tensors["rng.cuda"] = torch.cuda.get_rng_state(where)
    return tensors


def load_training(folder: Path, model: GPT, optimizer: torch.optim.Optimizer) -> None:
    """Restores weights, optimizer state and random-number generators from a verified checkpoint.

    Raises UserError (exit 4) if the state belongs to another model.
    """
    try:
        load_weights(folder, model)
        with safe_open(folder / "optimizer.safetensors", framework="pt") as file:
            names = set(file.keys())
            for name, parameter in model.named_parameters():
                state = {}
                for key in ("step", "exp_avg", "exp_avg_sq"):
                    if f"{key}.{name}" not in names:
                        raise Damaged(f"optimizer.safetensors: {key}.{name} is missing")
                    value = file.get_tensor(f"{key}.{name}")
                    if key != "step" and value.shape != parameter.shape:
                        raise Damaged(f"optimizer.safetensors: {key}.{name} has shape {list(value.shape)}, the model "
                                      f"{list(parameter.shape)}")
                    state[key] = value.to(parameter.device)
                optimizer.state[parameter] = state
            torch.set_rng_state(file.get_tensor("rng.cpu"))
            where = next(model.parameters()).device
            if "rng.cuda" in names and where.type == "cuda":
                torch.cuda.set_rng_state(file.get_tensor("rng.cuda"), where)
    except (Damaged, SafetensorError, OSError) as error:
        raise UserError(Exit.CHECKPOINT, f"checkpoint {printable(str(folder))}: {error}. It cannot be resumed with "
                                         "these flags; start anew in another --output_dir.") from error


# ---------------------------------------------------------------- writing


def save(output_dir: Path, step: int, model: GPT, optimizer: torch.optim.Optimizer, state: dict[str, Any],
         tokenizer_json: str | None, end_of_text_id: int | None, card: str) -> Path:
    """Writes output_dir/checkpoint-STEP: all of it, on the disk and read back, before any of it is seen.

    state holds what trainer_state.json shall, JSON values; RNG and optimizer tensors are taken from where they are.
    Raises OSError if it could not be written; nothing of it is then left.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    final = output_dir / f"checkpoint-{step}"
    temporary = output_dir / f"{TEMPORARY}{step}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        _write_tensors(temporary / "model.safetensors", to_hf_tensors(model))
        _write_tensors(temporary / "optimizer.safetensors", optimizer_tensors(model, optimizer))
        files = {"config.json": to_hf_config(model.config, end_of_text_id),
                 "generation_config.json": {"bos_token_id": end_of_text_id, "eos_token_id": end_of_text_id},
                 "trainer_state.json": {"format": STATE_FORMAT, "version": STATE_VERSION, "step": step,
                                        "model": asdict(model.config), **state}}
        if tokenizer_json is not None:
            files["tokenizer_config.json"] = _tokenizer_config(tokenizer_json, end_of_text_id, model.config.seq_length)
            _write_text(temporary / "tokenizer.json", tokenizer_json)
        for name, fields in files.items():
            _write_text(temporary / name, json.dumps(fields, indent=1))
        _write_text(temporary / "README.md", card)
        manifest = {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
                    for path in sorted(temporary.iterdir())}
        _write_text(temporary / "manifest.json", json.dumps({"version": STATE_VERSION, "files": manifest}, indent=1))
        sync(temporary)
        if final.exists():  # an older, or a damaged, one of the same step
            discarded = output_dir / f"{TEMPORARY}{step}-{os.getpid()}-old"
            final.rename(discarded)
            temporary.rename(final)
            shutil.rmtree(discarded, ignore_errors=True)
        else:
            temporary.rename(final)
        sync(output_dir)
    except SafetensorError as error:  # how the library reports a full disk
        raise OSError(f"{error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def bytes_needed(config: GPTConfig) -> int:
    """Bytes of a checkpoint: weights and both moments in fp32, a little text."""
    return 12 * config.num_parameters + 2**20


def model_card(config: GPTConfig, facts: dict[str, str]) -> str:
    """README.md of a checkpoint: what it is, what it saw, how to open it."""
    lines = "".join(f"- {name}: {value}\n" for name, value in facts.items())
    return ("---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n\n"
            f"# GPT-2, {config.num_parameters:,} parameters\n\n- layers {config.n_layer}, heads {config.n_head}, width "
            f"{config.n_embd}, context {config.seq_length}, vocabulary {config.vocab_size:,}\n{lines}\n"
            "    from transformers import AutoModelForCausalLM, AutoTokenizer\n"
            "    model = AutoModelForCausalLM.from_pretrained(\"path of this folder\")\n"
            "    tokenizer = AutoTokenizer.from_pretrained(\"path of this folder\")\n")


def _write_text(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
    sync(path)


def _write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes a safetensors file, waits for the disk, and reads every tensor back."""
    save_file(tensors, path, metadata={"format": "pt"})
    sync(path)
    with safe_open(path, framework="pt") as file:
        for name, tensor in tensors.items():
            if not torch.equal(file.get_tensor(name).view(torch.uint8) if tensor.dim() else file.get_tensor(name),
                               tensor.view(torch.uint8) if tensor.dim() else tensor):  # as bytes: NaN equals NaN
                raise OSError(f"{path.name}: {name} read back differs from what was written")


def _tokenizer_config(tokenizer_json: str, end_of_text_id: int | None, seq_length: int) -> dict[str, Any]:
    """What AutoTokenizer needs beside tokenizer.json, in transformers 4 and 5."""
    names = {token["id"]: token["content"] for token in json.loads(tokenizer_json).get("added_tokens", [])}
    fields: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": seq_length,
                              "clean_up_tokenization_spaces": False}
    if end_of_text_id in names:
        fields.update(dict.fromkeys(("bos_token", "eos_token", "unk_token"), names[end_of_text_id]))
    return fields


# ---------------------------------------------------------------- finding and verifying


def steps_in(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder by step, newest first; strangers and unfinished ones are not among them."""
    found = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = re.fullmatch(r"checkpoint-(0|[1-9]\d{0,17})", path.name)
            if match and (path / "manifest.json").is_file():
                found[int(match[1])] = path
    return dict(sorted(found.items(), reverse=True))


def verify(folder: Path) -> dict[str, Any]:
    """Compares every file with the manifest and returns trainer_state.json's fields. Raises Damaged with the reason."""
    manifest = _read_json(folder / "manifest.json")
    files, needed = manifest.get("files"), {"model.safetensors", "optimizer.safetensors", "trainer_state.json"}
    if manifest.get("version") != STATE_VERSION:
        raise Damaged(f"manifest.json: version {manifest.get('version')!r}, this program reads {STATE_VERSION}")
    if not isinstance(files, dict) or not needed <= set(files):
        raise Damaged("manifest.json does not list a checkpoint's files")
    for name, entry in files.items():
        path = folder / name
        if path.parent != folder or not isinstance(entry, dict):
            raise Damaged("manifest.json holds an entry that is no file of this folder")
        try:
            num_bytes = path.stat().st_size
            if num_bytes != entry.get("bytes"):
                raise Damaged(f"{name} has {num_bytes:,} bytes, the manifest says {entry.get('bytes')}")
            if sha256_of(path) != entry.get("sha256"):
                raise Damaged(f"{name} does not have the manifest's sha256: its content changed after it was saved")
        except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
            raise Damaged(f"{printable(name)[:60]}: {getattr(error, 'strerror', error)}") from error
    state = _read_json(folder / "trainer_state.json")
    if state.get("format") != STATE_FORMAT or state.get("version") != STATE_VERSION:
        raise Damaged(f"trainer_state.json: version {state.get('version')!r}, this program reads {STATE_VERSION}")
    return state


def newest_sound(folder: Path, warn: Callable[[str], None]) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint of a folder that verifies, with its state; damaged ones are warned of and passed over.

    None if the folder holds none at all. Raises UserError (exit 4) if all are damaged, each with its reason.
    """
    reasons = []
    for path in steps_in(folder).values():
        try:
            return path, verify(path)
        except Damaged as error:
            reasons.append(f"{path.name}: {error}")
            warn(f"{printable(str(path))} is damaged and passed over: {error}")
    if reasons:
        raise UserError(Exit.CHECKPOINT, f"no sound checkpoint in {printable(str(folder))}. {'; '.join(reasons[:3])}. "
                                         "Nothing was deleted; restore one from a copy, or start in another folder.")
    return None


def resolve(path: Path, warn: Callable[[str], None]) -> Path:
    """The folder to load a model from: a checkpoint, the newest sound one of a folder, or a Hugging Face folder.

    Raises UserError (exit 4) for what is none of these, naming what it looks like.
    """
    name = printable(str(path))
    if path.is_file():
        head, kind = path.open("rb").read(4), "not one"
        if head.startswith((b"PK", b"\x80")):
            kind = "a pickle (nanoGPT's ckpt.pt, say), which can run code and is never opened"
        elif int.from_bytes(head, "little") == 20240326:
            kind = "llm.c's format"
        raise UserError(Exit.CHECKPOINT, f"{name} is a file: {kind}. A checkpoint is a folder. Give one of train.py "
                                         "or a Hugging Face GPT-2 folder.")
    if (path / "manifest.json").is_file():
        try:
            verify(path)
        except Damaged as error:
            raise UserError(Exit.CHECKPOINT, f"checkpoint {name} is damaged: {error}. Give the folder it is in to take "
                                             "the newest sound one.") from error
        return path
    if (path / "trainer_state.json").exists() and (path / "optimizer.safetensors").exists():
        raise UserError(Exit.CHECKPOINT, f"{name} has training state but no manifest.json: it was never finished. Give "
                                         "another checkpoint.")
    if (path / "config.json").is_file():
        return path
    found = newest_sound(path, warn)
    if found is None:
        what = "holds no checkpoint" if path.is_dir() else "does not exist"
        raise UserError(Exit.CHECKPOINT, f"{name} {what}. Train one first: python train.py --output_dir {name}")
    return found[0]


def find_resume(wish: str, output_dir: Path, overwrite: bool, warn: Callable[[str], None],
                ) -> tuple[Path, dict[str, Any]] | None:
    """The verified checkpoint that --resume_from means, with its state; None if auto finds none.

    A checkpoint, a folder of them (newest sound one), or auto: the newest sound one in output_dir. Raises UserError
    (exit 4) if there is none, or if output_dir holds checkpoints that do not lead to it and overwrite is off.
    """
    if wish == "auto" or Path(wish).resolve() == output_dir.resolve():
        return newest_sound(output_dir, warn)
    path = resolve(Path(wish), warn)
    try:
        state = verify(path)
    except Damaged as error:
        raise UserError(Exit.CHECKPOINT, f"--resume_from {printable(str(path))}: {error}. Only a checkpoint of "
                                         "train.py can be resumed.") from error
    if not overwrite and (others := not_leading_to(output_dir, path, state["step"])):
        names = ", ".join(other.name for other in others[:3])
        raise UserError(Exit.CHECKPOINT, f"--output_dir {printable(str(output_dir))} holds checkpoints that do not "
                                         f"lead to {path.name}: {names}. Give another --output_dir, or --overwrite, "
                                         f"which deletes these {len(others)}.")
    return path, state


def not_leading_to(output_dir: Path, resumed: Path | None, step: int) -> list[Path]:
    """The checkpoints in output_dir that are another run's: all, or those after the one resumed from if it is there."""
    inside = resumed is not None and resumed.resolve().parent == output_dir.resolve()
    return [path for other, path in steps_in(output_dir).items() if not inside or other > step]


def check_same(state: dict[str, Any], config: GPTConfig, train_sha256: str, tokenizer_sha256: str | None,
               allow_new_data: bool) -> None:
    """Raises UserError if a checkpoint's state is of another model (exit 4), tokenizer or corpus (exit 3)."""
    model, data = state.get("model"), state.get("data")
    if not isinstance(model, dict) or not isinstance(data, dict):
        raise UserError(Exit.CHECKPOINT, "the checkpoint's trainer_state.json lacks model or data. Give another one.")
    for key, value in asdict(config).items():
        if key != "dropout" and model.get(key) != value:
            raise UserError(Exit.CHECKPOINT, f"the checkpoint is of another model: {key} is {model.get(key)} there, "
                                             f"{value} here. Give its own flags, or another --output_dir.")
    for key, here, cure in (("tokenizer_sha256", tokenizer_sha256, "Give that one's data."),
                            ("train_sha256", train_sha256, "Give that data, or --allow_new_data to go on with these.")):
        there = str(data.get(key))
        if there != str(here) and not (key == "train_sha256" and allow_new_data):
            what = "with another tokenizer" if key == "tokenizer_sha256" else "on other tokens"
            raise UserError(Exit.DATA, f"the checkpoint was trained {what} (sha256 {there[:12]}, here "
                                       f"{str(here)[:12]}). {cure}")


# ---------------------------------------------------------------- the output folder


@contextlib.contextmanager
def owned(output_dir: Path) -> Iterator[None]:
    """Creates the folder, shows that it can be written, holds its lock, and sweeps what a killed run left half-written.

    Raises UserError: exit 7 if another run holds it, exit 5 if it cannot be written.
    """
    name = printable(str(output_dir))
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        handle = open(output_dir / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 - held for the whole run
    except OSError as error:
        raise UserError(Exit.MACHINE, f"--output_dir {name} cannot be written: {error.strerror}. Choose a folder of "
                                      "yours.") from error
    with handle:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.seek(0)
                raise UserError(Exit.BUSY, f"--output_dir {name} is in use by another run "
                                           f"({printable(handle.read(200)).strip()}). Wait for it, or choose another "
                                           "folder.") from None
            except OSError:
                pass  # a file system without locks
        try:
            handle.truncate(0)
            handle.write(f"pid {os.getpid()}, started {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
            handle.flush()
        except OSError as error:
            raise UserError(Exit.MACHINE, f"--output_dir {name} cannot be written: {error.strerror}. Free some "
                                          "space.") from error
        for leftover in output_dir.glob(f"{TEMPORARY}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def prune(output_dir: Path, keep: int, protected: set[int]) -> None:
    """Deletes rolling checkpoints but the newest keep; those of an epoch's end and the protected steps stay."""
    rolling = []
    for step, path in steps_in(output_dir).items():
        try:
            if step not in protected and not _read_json(path / "trainer_state.json").get("stays"):
                rolling.append(path)
        except Damaged:
            continue  # what cannot be read is not ours to judge
    for path in rolling[keep:]:
        discarded = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-old")  # never seen half-deleted
        with contextlib.suppress(OSError):
            path.rename(discarded)
            shutil.rmtree(discarded, ignore_errors=True)

