"""A checkpoint is a Hugging Face GPT-2 folder plus training state: write, verify, find, load.

    config.json  model.safetensors  tokenizer.json  tokenizer_config.json  generation_config.json    for transformers
    optimizer.safetensors  trainer_state.json                                                        for resuming
    README.md  manifest.json                                         the model card; sizes and sha256, written last

A folder is written under a temporary name, flushed to disk, read back, and renamed: it is there whole or not at all.
Training waits for a copy of the tensors alone; a thread writes it. No file is a pickle; tensors are safetensors, the
rest is JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from cli import Exit, UserError, printable, read_text, sha256_of, sync
from model import ACTIVATIONS, GPT, GPTConfig

try:
    import fcntl
except ImportError:  # Windows: no lock there
    fcntl = None

STATE_FORMAT = "gpt-trainer"
STATE_VERSION = 1
TEMPORARY = ".tmp-checkpoint-"
REPLACED = ".tmp-replaced-"  # one of the same step, put aside for the moment that the new one takes its name
DTYPES = {torch.float32: "F32", torch.uint8: "U8"}  # safetensors' names of what is written
BLOCK_BYTES = 2**24
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # transformers' Conv1D stores [in, out]
# Bounds that any real GPT-2 is within, so that a hostile config.json cannot ask for the machine's memory.
BOUNDS = {"vocab_size": 2**24, "seq_length": 2**20, "n_layer": 1024, "n_head": 1024, "n_embd": 2**16}


MAX_STATE = 2**53
# The fields of torch's GradScaler and their ranges, both ends included; those that end at MAX_STATE are whole.
SCALER = (("scale", 2**-149, 2**127), ("growth_factor", 1, 2**16), ("backoff_factor", 2**-16, 1),
          ("growth_interval", 1, MAX_STATE), ("_growth_tracker", 0, MAX_STATE))
T = TypeVar("T")


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


def starting_config(wish: str, warn: Callable[[str], None]) -> tuple[Path, GPTConfig]:
    """The folder that --init_from means and its model's shape. Raises UserError (exit 4)."""
    folder = resolve(Path(wish), warn, to_train=False)
    try:
        weights_of(folder)
        return folder, read_config(folder)
    except Damaged as error:
        raise UserError(Exit.CHECKPOINT, f"--init_from {printable(wish)}: {error}. Give a checkpoint of train.py or a "
                                         "Hugging Face GPT-2 folder with safetensors.") from error


def start_from(folder: Path, model: GPT) -> None:
    """load_weights for --init_from. Raises UserError (exit 4)."""
    try:
        load_weights(folder, model)
    except Damaged as error:
        raise UserError(Exit.CHECKPOINT, f"--init_from {printable(str(folder))}: {error}. Give another one.") from error


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


@dataclass(frozen=True)
class Tensors:
    """What a checkpoint stores: the model's state dict; 'exp_avg.transformer.wte.weight' and the like, 'rng.cpu'."""

    model: dict[str, torch.Tensor]
    training: dict[str, torch.Tensor]

    @staticmethod
    def of(model: GPT, optimizer: torch.optim.Optimizer) -> Tensors:
        """The tensors themselves, where they are; only the random generators' states are copies."""
        training = {f"{key}.{name}": value.detach() for name, parameter in model.named_parameters()
                    for key, value in optimizer.state[parameter].items()}
        training["rng.cpu"] = torch.get_rng_state()
        where = next(model.parameters()).device
        if where.type == "cuda":
            training["rng.cuda"] = torch.cuda.get_rng_state(where)
        return Tensors({name: tensor.detach() for name, tensor in model.state_dict().items()}, training)

    @property
    def num_bytes(self) -> int:
        return sum(-(-tensor.nbytes // 64) * 64 for part in (self.model, self.training) for tensor in part.values())


class Snapshot:
    """A copy of a checkpoint's tensors on the host, in one buffer that every save takes again.

    The buffer is kept because new pages cost more than the copy itself; on a GPU it is pinned.
    """

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def reserve(self, num_bytes: int, pinned: bool) -> None:
        """Takes the buffer's pages now, so that the first save need not. Raises RuntimeError if there are none."""
        if self._buffer.nbytes >= num_bytes:
            return
        if pinned:
            with contextlib.suppress(RuntimeError):  # the system may pin less than it has; a plain copy is only slower
                self._buffer = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        if self._buffer.nbytes < num_bytes:
            self._buffer = torch.empty(num_bytes, dtype=torch.uint8)
        self._buffer.zero_()

    def take(self, tensors: Tensors) -> Tensors:
        """The tensors' copies, complete on return; they last until the next take."""
        on_gpu = any(tensor.is_cuda for tensor in tensors.model.values())
        self.reserve(tensors.num_bytes, on_gpu)
        used, copies = 0, Tensors({}, {})
        for part, copied in ((tensors.model, copies.model), (tensors.training, copies.training)):
            for name, tensor in part.items():
                place = self._buffer[used:used + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                copied[name] = place.copy_(tensor, non_blocking=True)
                used += -(-tensor.nbytes // 64) * 64
        if on_gpu:
            torch.cuda.synchronize()
        return copies


def load_training(folder: Path, model: GPT, optimizer: torch.optim.Optimizer, anew: bool = False) -> list[str]:
    """Restores weights, optimizer state and random-number generators from a verified checkpoint.

    Returns what it could not restore, in words. anew leaves the optimizer as it is. Raises UserError (exit 4) if the
    state belongs to another model.
    """
    where, notes = next(model.parameters()).device, []
    try:
        load_weights(folder, model)
        with safe_open(folder / "optimizer.safetensors", framework="pt") as file:
            names = set(file.keys())
            if anew:
                notes.append("the optimizer starts anew (--reset_optimizer)")
            else:
                optimizer.state.update(_optimizer_state(file, names, model))
            if "rng.cpu" not in names:
                raise Damaged("optimizer.safetensors: rng.cpu is missing")
            try:
                torch.set_rng_state(file.get_tensor("rng.cpu"))
                if where.type == "cuda" and "rng.cuda" in names:
                    torch.cuda.set_rng_state(file.get_tensor("rng.cuda"), where)
                elif where.type == "cuda":
                    notes.append("the checkpoint is a CPU's: dropout's draws on the GPU start anew")
            except (RuntimeError, TypeError) as error:
                why = printable(str(error)).split("\n")[0][:120]
                raise Damaged(f"optimizer.safetensors: rng.cpu or rng.cuda is no generator's state ({why})") from error
    except (Damaged, SafetensorError, OSError) as error:
        raise UserError(Exit.CHECKPOINT, f"checkpoint {printable(str(folder))}: {error}. It cannot be resumed with "
                                         "these flags; start anew in another --output_dir.") from error
    return notes


def _optimizer_state(file: Any, names: set[str], model: GPT) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
    """AdamW's state of every parameter, all checked before any is used. Raises Damaged."""
    problems, states, cure = [], {}, "--reset_optimizer starts it anew"
    for name, parameter in model.named_parameters():
        for key, shape in (("step", []), ("exp_avg", list(parameter.shape)), ("exp_avg_sq", list(parameter.shape))):
            if f"{key}.{name}" not in names:
                problems.append(f"{key}.{name} is missing")
            elif (found := file.get_slice(f"{key}.{name}")).get_shape() != shape:
                problems.append(f"{key}.{name} has shape {found.get_shape()}, the model {shape}")
            elif found.get_dtype() != "F32":
                problems.append(f"{key}.{name} holds {found.get_dtype()}, not F32")
    if problems:
        raise Damaged(f"optimizer.safetensors: {'; '.join(problems[:3])}; {cure}")
    for name, _ in model.named_parameters():
        if not 0 <= (step := float(file.get_tensor(f"step.{name}"))) <= MAX_STATE:  # AdamW divides by 1 - beta^step
            raise Damaged(f"optimizer.safetensors: step.{name} is {step:g}, not 0 or more; {cure}")
    for name, parameter in model.named_parameters():
        states[parameter] = {key: file.get_tensor(f"{key}.{name}").to(parameter.device)
                             for key in ("step", "exp_avg", "exp_avg_sq")}
    return states


# ---------------------------------------------------------------- writing


class NotFinite(Exception):
    """A tensor that is not finite is not saved over good ones; says which."""


def save(output_dir: Path, step: int, config: GPTConfig, tensors: Tensors, state: dict[str, Any],
         tokenizer_json: str | None, end_of_text_id: int | None, card: str) -> Path:
    """Writes output_dir/checkpoint-STEP: all of it, on the disk and read back, before any of it is seen.

    state holds what trainer_state.json shall, JSON values. Raises OSError if it could not be written, NotFinite if it
    should not; nothing of it is then left.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    final, replaced = output_dir / f"checkpoint-{step}", output_dir / f"{REPLACED}checkpoint-{step}"
    temporary = output_dir / f"{TEMPORARY}{step}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        parts = {"model.safetensors": to_hf_tensors(config, tensors.model), "optimizer.safetensors": tensors.training}
        with ThreadPoolExecutor(len(parts)) as writers:  # the disk and the hash have to wait for each other less
            written = {name: writers.submit(write_tensors, temporary / name, part) for name, part in parts.items()}
        manifest = {name: entry.result() for name, entry in written.items()}
        files = {"config.json": to_hf_config(config, end_of_text_id),
                 "generation_config.json": {"bos_token_id": end_of_text_id, "eos_token_id": end_of_text_id},
                 "trainer_state.json": {"format": STATE_FORMAT, "version": STATE_VERSION, "step": step,
                                        "model": asdict(config), **state}}
        texts = {name: json.dumps(fields, indent=1) for name, fields in files.items()}
        if tokenizer_json is not None:
            texts["tokenizer.json"] = tokenizer_json
            texts["tokenizer_config.json"] = json.dumps(
                _tokenizer_config(tokenizer_json, end_of_text_id, config.seq_length), indent=1)
        for name, content in {**texts, "README.md": card}.items():
            manifest[name] = _write_bytes(temporary / name, [content.encode()])
        listed = {"version": STATE_VERSION, "files": dict(sorted(manifest.items()))}
        _write_bytes(temporary / "manifest.json", [json.dumps(listed, indent=1).encode()])
        sync(temporary)
        verify(temporary)
        if final.exists():  # an older, or a damaged, one of the same step
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
        try:
            temporary.rename(final)
            sync(output_dir)
        except OSError:  # what the disk may not hold is not offered
            with contextlib.suppress(OSError):
                final.rename(temporary)
            _put_back(replaced, final)
            raise
    except Damaged as error:
        raise OSError(f"what was written reads back differently: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
    return final


def _put_back(replaced: Path, final: Path) -> None:
    """Gives a checkpoint that was put aside its name again, if no other took it."""
    with contextlib.suppress(OSError):
        if replaced.exists() and not final.exists():
            replaced.rename(final)


def bytes_needed(config: GPTConfig) -> int:
    """Bytes of a checkpoint: weights and both moments in fp32, a little text."""
    return 12 * config.num_parameters + 2**20


def model_card(config: GPTConfig, facts: dict[str, str], curve: Sequence[tuple[int, float, float | None]] = (),
               command: str = "") -> str:
    """README.md of a checkpoint: what it is, what it saw, its curve (step, loss, bits per byte), how to open it."""
    lines = "".join(f"- {name}: {value}\n" for name, value in facts.items())
    if curve:
        lines += "\n| step | validation loss in nats | bits per byte |\n| --- | --- | --- |\n" + "".join(
            f"| {step:,} | {loss:.4f} | {'n/a' if bits is None else f'{bits:.4f}'} |\n" for step, loss, bits in curve)
    lines += f"\n    {command}\n" if command else ""
    return ("---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n\n"
            f"# GPT-2, {config.num_parameters:,} parameters\n\n- layers {config.n_layer}, heads {config.n_head}, width "
            f"{config.n_embd}, context {config.seq_length}, vocabulary {config.vocab_size:,}\n{lines}\n"
            "    from transformers import AutoModelForCausalLM, AutoTokenizer\n"
            "    model = AutoModelForCausalLM.from_pretrained(\"path of this folder\")\n"
            "    tokenizer = AutoTokenizer.from_pretrained(\"path of this folder\")\n")


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Writes a safetensors file, one contiguous tensor at a time; returns its manifest entry when it is on the disk.

    The bytes are those of safetensors' save_file. Raises OSError, and NotFinite before a tensor that is not.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # the library's own order
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        end = offset + tensors[name].nbytes
        header[name] = {"dtype": DTYPES[tensors[name].dtype], "shape": list(tensors[name].shape),
                        "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)

    def content() -> Iterator[memoryview | bytes]:
        yield struct.pack("<Q", len(text)) + text
        for name in names:
            tensor = tensors[name].detach().cpu().contiguous()
            if tensor.is_floating_point() and not tensor.sum().isfinite():  # a sum costs a pass, not a copy
                raise NotFinite(name)
            yield tensor.view(-1).view(torch.uint8).numpy().data

    return _write_bytes(path, content())


def _write_bytes(path: Path, content: Iterable[memoryview | bytes]) -> dict[str, Any]:
    """Writes a new file, its sha256 computed beside, and waits for the disk; returns its manifest entry."""
    digest, num_bytes = hashlib.sha256(), 0
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with ThreadPoolExecutor(1) as hasher:
            for part in content:
                for start in range(0, len(part), BLOCK_BYTES):
                    block = memoryview(part)[start:start + BLOCK_BYTES]
                    hashed = hasher.submit(digest.update, block)
                    while block:
                        block = block[os.write(handle, block):]
                    hashed.result()
                    if hasattr(os, "posix_fadvise"):  # begins to write out, so that fsync has less left to do
                        os.posix_fadvise(handle, num_bytes + start, BLOCK_BYTES, os.POSIX_FADV_DONTNEED)
                num_bytes += len(part)
        os.fsync(handle)
    finally:
        os.close(handle)
    return {"bytes": num_bytes, "sha256": digest.hexdigest()}


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
            if match and (path / "manifest.json").exists():
                found[int(match[1])] = path
    return dict(sorted(found.items(), reverse=True))


def verify(folder: Path, to_train: bool = True) -> dict[str, Any]:
    """Compares every file with the manifest and returns trainer_state.json's fields. Raises Damaged with the reason.

    Without to_train only the size of the optimizer's file, two thirds of the bytes, is looked at.
    """
    manifest = _read_json(folder / "manifest.json")
    files, needed = manifest.get("files"), {"model.safetensors", "optimizer.safetensors", "trainer_state.json"}
    if manifest.get("version") != STATE_VERSION:
        raise Damaged(f"manifest.json: version {_shown(manifest.get('version'))}, this program reads {STATE_VERSION}")
    if not isinstance(files, dict) or not needed <= set(files):
        raise Damaged("manifest.json does not list a checkpoint's files")
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as hashers:
        waiting = [(name, hashers.submit(_check_file, folder, name, entry, to_train or name != "optimizer.safetensors"))
                   for name, entry in files.items()]
        for name, checked in waiting:
            try:
                checked.result()
            except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
                raise Damaged(f"{printable(name)[:60]}: {getattr(error, 'strerror', error)}") from error
    state = _read_json(folder / "trainer_state.json")
    check_state(state)
    named = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    if named and int(named[1]) != state["step"]:
        raise Damaged(f"trainer_state.json: step is {state['step']:,}, the folder's name says {named[1]}")
    return state


def _check_file(folder: Path, name: str, entry: Any, to_its_end: bool) -> None:
    """Raises Damaged if a file is not what the manifest's entry says, OSError if it cannot be read."""
    path = folder / name
    if path.parent != folder or not isinstance(entry, dict):
        raise Damaged("manifest.json holds an entry that is no file of this folder")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # a device has no end
        raise Damaged(f"{name} is no regular file")
    if status.st_size != entry.get("bytes"):
        raise Damaged(f"{name} has {status.st_size:,} bytes, the manifest says {_shown(entry.get('bytes'))}")
    if to_its_end and sha256_of(path) != entry.get("sha256"):
        raise Damaged(f"{name} does not have the manifest's sha256: its content changed after it was saved")


def check_state(state: dict[str, Any]) -> None:
    """Raises Damaged for a field of trainer_state.json that no run of train.py could have left there."""
    if state.get("format") != STATE_FORMAT:
        raise Damaged(f"trainer_state.json: format is {_shown(state.get('format'))}, not {STATE_FORMAT!r}")
    if state.get("version") != STATE_VERSION:
        raise Damaged(f"trainer_state.json: version {_shown(state.get('version'))}, this program reads {STATE_VERSION}")
    _check_whole("trainer_state.json", "step", state.get("step"), 0, MAX_STATE)
    for key, high in (("samples_seen", MAX_STATE), ("skipped_steps", state["step"]), ("best_step", state["step"]),
                      ("validated_step", state["step"]), ("validations_without_gain", state["step"])):
        _check_whole("trainer_state.json", key, state.get(key, 0), 0, high)
    best = state.get("best_val_loss")
    if best is not None and not _is_finite(best):
        raise Damaged(f"trainer_state.json: best_val_loss is {_shown(best)}, not a finite number")
    for key in ("settings", "environment", "scaler"):
        if not isinstance(state.get(key, {}), dict):
            raise Damaged(f"trainer_state.json: {key} is {_shown(state[key])}, not an object")
    scaler = state.get("scaler", {})
    for key, low, high in SCALER if scaler else ():
        value = scaler.get(key)
        if not _is_finite(value) or not low <= value <= high or (high == MAX_STATE and not isinstance(value, int)):
            raise Damaged(f"trainer_state.json: scaler.{key} is {_shown(value)}, not a number from {low:g} to {high:g}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def newest_sound(folder: Path, warn: Callable[[str], None], to_train: bool = True,
                 ) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint of a folder that verifies, with its state; damaged ones are warned of and passed over.

    None if the folder holds none at all. Raises UserError (exit 4) if all are damaged, each with its reason.
    """
    reasons = []
    for path in steps_in(folder).values():
        try:
            return path, verify(path, to_train)
        except Damaged as error:
            if not path.exists():
                continue  # a run that trains has pruned it since
            reasons.append(f"{path.name}: {error}")
            warn(f"{printable(str(path))} is damaged and passed over: {error}")
    if reasons:
        raise UserError(Exit.CHECKPOINT, f"no sound checkpoint in {printable(str(folder))}. {'; '.join(reasons[:3])}. "
                                         "Nothing was deleted; restore one from a copy, or start in another folder.")
    return None


def resolve(path: Path, warn: Callable[[str], None], to_train: bool = True) -> Path:
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
            verify(path, to_train)
        except Damaged as error:
            raise UserError(Exit.CHECKPOINT, f"checkpoint {name} is damaged: {error}. Give the folder it is in to take "
                                             "the newest sound one.") from error
        return path
    if (path / "trainer_state.json").exists() and (path / "optimizer.safetensors").exists():
        raise UserError(Exit.CHECKPOINT, f"{name} has training state but no manifest.json: it was never finished. Give "
                                         "another checkpoint.")
    if (path / "config.json").is_file():
        return path
    if path.exists() and not path.is_dir():
        raise UserError(Exit.CHECKPOINT, f"{name} is neither a file nor a folder. Give a checkpoint of train.py or a "
                                         "Hugging Face GPT-2 folder.")
    found = newest_sound(path, warn, to_train)
    stranger = next((file for file in ("ckpt.pt", "model.safetensors", "pytorch_model.bin") if (path / file).exists()),
                    None)
    if found is None and stranger == "model.safetensors":
        raise UserError(Exit.CHECKPOINT, f"{name} has model.safetensors but no config.json, which says what model it "
                                         "is. Copy it there from where the weights come from.")
    if found is None and stranger is not None:
        raise UserError(Exit.CHECKPOINT, f"{name} holds {stranger}, a pickle, which can run code and is never opened. "
                                         "Give a checkpoint of train.py or a Hugging Face GPT-2 folder with "
                                         "safetensors.")
    if found is None:
        what = "holds no checkpoint" if path.is_dir() else "does not exist"
        raise UserError(Exit.CHECKPOINT, f"{name} {what}. Train one first: python train.py --output_dir {name}")
    return found[0]


def read(path: Path, warn: Callable[[str], None], reader: Callable[[Path], T]) -> T:
    """What reader makes of the folder that path resolves to; again, if a run that trains replaced it meanwhile.

    Raises UserError (exit 4), and what reader raises.
    """
    for _ in range(5):
        folder = resolve(path, warn, to_train=False)
        try:
            return reader(folder)
        except (UserError, OSError):
            if folder.exists():
                raise
    raise UserError(Exit.CHECKPOINT, f"{printable(str(path))} changes while it is read. Give one of its checkpoints.")


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
            raise UserError(Exit.CHECKPOINT, f"the checkpoint is of another model: {key} is {_shown(model.get(key))} "
                                             f"there, {value} here. Give its own flags, or another --output_dir.")
    for key, here, cure in (("tokenizer_sha256", tokenizer_sha256, "Give that one's data."),
                            ("train_sha256", train_sha256, "Give that data, or --allow_new_data to go on with these.")):
        there = str(data.get(key))
        if there != str(here) and not (key == "train_sha256" and allow_new_data):
            what = "with another tokenizer" if key == "tokenizer_sha256" else "on other tokens"
            raise UserError(Exit.DATA, f"the checkpoint was trained {what} (sha256 {printable(there[:12])}, here "
                                       f"{str(here)[:12]}). {cure}")


# ---------------------------------------------------------------- the output folder


@contextlib.contextmanager
def owned(output_dir: Path) -> Iterator[None]:
    """Creates the folder, shows that it can be written, holds its lock, and sweeps what a killed run left half-written.

    Raises UserError: exit 7 if another run holds it, exit 5 if it cannot be written.
    """
    name, is_new = printable(str(output_dir)), not output_dir.exists()
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
        for leftover in output_dir.glob(f"{REPLACED}checkpoint-*"):
            _put_back(leftover, output_dir / leftover.name.removeprefix(REPLACED))
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            yield
        except UserError:
            if is_new:  # a run that never began leaves no folder behind
                with contextlib.suppress(OSError):
                    (output_dir / ".lock").unlink()
                    output_dir.rmdir()
            raise


class Saver:
    """Saves behind the training's back, one checkpoint at a time; a second one waits for the first."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "saver", self._yield_the_cores)
        self._pending: Future | None = None

    @staticmethod
    def _yield_the_cores() -> None:
        with contextlib.suppress(OSError, AttributeError):  # only Linux gives a thread a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)

    @property
    def is_busy(self) -> bool:
        return self._pending is not None

    def start(self, work: Callable[[], Any]) -> None:
        """Begins the work. The one before must have been taken."""
        assert self._pending is None
        self._pending = self._thread.submit(work)

    def take(self, wait: bool) -> Any:
        """The result of the work that has ended, or raises what it raised; None if it has not and wait is off."""
        if self._pending is None or not (wait or self._pending.done()):
            return None
        pending, self._pending = self._pending, None
        return pending.result()

    def close(self) -> None:
        """Waits for the work in flight."""
        self._thread.shutdown(wait=True)


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

