"""Converts a checkpoint of nanoGPT or build-nanogpt, or its state dict, to a Hugging Face folder of GPT-2.

Such a .pt file is a pickle, which can name any function to call; torch's reader for
plain tensors refuses those.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file

from gpt.architectures.gpt2 import GPT2, STALE_MASKS
from gpt.checkpoint.commands import transformers_command
from gpt.checkpoint.contents import model_card, text_files
from gpt.checkpoint.load import weights_of
from gpt.common.errors import Exit, InvalidCheckpoint, UserError
from gpt.common.names import INDEX, STATE, WEIGHTS
from gpt.common.words import count, first_line, printable, several
from gpt.tokens.tokenizer import end_of_text_id, load_with_size
from model import GPTConfig

PADDING = 128  # a vocabulary is padded to a multiple of 64 or 128
PREFIXES = re.compile(r"^((_orig_mod|module|model)\.)+")  # of torch.compile, of DDP, of a wrapper


def convert(path: Path, folder: Path, tokenizer_file: str | None, n_head: int | None,
            warn: Callable[[str], None]) -> str:
    """Writes the file's model as a new folder; returns a description of the model.

    The activation is exact GELU for nanoGPT and its tanh form for build-nanogpt. Without tokenizer_file
    (None) the folder has no tokenizer, with a warning; n_head None takes the file's own number. Raises
    UserError: exit 2 for an n_head that the file contradicts, exit 3 for another model's tokenizer, exit 4 for an
    unreadable file. Raises OSError, also if the folder exists.
    """
    try:
        weights, facts = _read(path)
        saved = facts.get("config")
        is_object = isinstance(saved, SimpleNamespace)
        shape = vars(saved) if is_object else facts.get("model_args") or {}
        saved_heads = shape.get("n_head")
        if n_head and saved_heads and n_head != saved_heads:
            raise UserError(Exit.FLAGS, f"--n_head {n_head}: {printable(path)} says {saved_heads}. Drop --n_head.")
        config = _config(weights, n_head or saved_heads, "gelu_new" if is_object else "gelu")
        weights_of(config, GPT2().to_hf_tensors(config, weights))
    except (InvalidCheckpoint, KeyError, IndexError) as error:
        cure = (transformers_command(path.parent) or getattr(error, "cure", "")
                or "Give a ckpt.pt of nanoGPT, or its model.state_dict() saved by torch.save.")
        why = f"it has no tensor {error.args[0]}" if isinstance(error, KeyError) else error
        raise UserError(Exit.CHECKPOINT, f"--from_nanogpt {printable(path)} does not hold a GPT-2: "
                                         f"{printable(why)}. {cure}") from error

    tokenizer_json = end_id = None
    if tokenizer_file is None:
        warn(f"the folder gets no tokenizer, and all {config.vocab_size:,} ids stay. Give --tokenizer_file.")
    else:
        tokenizer, num_ids = load_with_size(Path(tokenizer_file))
        if not 0 <= config.vocab_size - num_ids < PADDING:
            raise UserError(Exit.DATA, f"--tokenizer_file {printable(tokenizer_file)} has {num_ids:,} ids, the "
                                       f"model {config.vocab_size:,}: it was trained with another. Give that one, "
                                       "or none.")
        tokenizer_json, end_id = tokenizer.to_str(), end_of_text_id(tokenizer, Path(tokenizer_file))
        config = replace(config, vocab_size=num_ids)

    folder.mkdir(parents=True)
    texts = text_files(0, config, {}, tokenizer_json, end_id, model_card(config, {
        "converted from": printable(path.name), "activation": config.activation}))
    for name in texts.keys() - {STATE, INDEX}:
        (folder / name).write_text(texts[name], encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in GPT2().to_hf_tensors(config, weights).items()
               if name != "lm_head.weight" or not config.tie_weights}, folder / WEIGHTS, {"format": "pt"})
    return (f"{count(config.num_parameters)} parameters, {several(config.n_layer, 'layer')}, "
            f"{several(config.n_head, 'head')}, width {config.n_embd}, T {config.seq_length:,}, "
            f"vocabulary {config.vocab_size:,}, {config.activation}")


def _read(path: Path) -> tuple[dict[str, torch.Tensor], Mapping[str, Any]]:
    """The weights in fp32, and the file's whole content. Raises InvalidCheckpoint."""
    # build-nanogpt saves an object of its class GPTConfig; here it becomes one without methods.
    known: list[Any] = [(SimpleNamespace, f"{module}.GPTConfig") for module in ("__main__", "model", "train_gpt2")]
    try:
        with torch.serialization.safe_globals(known):
            found = torch.load(path, map_location="cpu", weights_only=True)
        inside = (found.get(name) for name in ("model", "model_state_dict", "state_dict"))
        stored = next((place for place in inside if isinstance(place, Mapping)), found)
        return {PREFIXES.sub("", name): tensor.detach().float() for name, tensor in stored.items()
                if not name.endswith(STALE_MASKS)}, found
    except Exception as error:  # a broken pickle can raise any error
        unknown = re.search(r"GLOBAL '?([\w.]+)", str(error))
        reason = getattr(error, "strerror", None) or first_line(error).partition(". ")[0]
        why = f"it names {unknown[1]}" if unknown else reason
        raise InvalidCheckpoint(f"it cannot be read as names with tensors and numbers alone ({why})") from error


def _config(weights: dict[str, torch.Tensor], n_head: int | None, activation: str) -> GPTConfig:
    """The config from the tensors and the number of heads. Raises InvalidCheckpoint, KeyError, IndexError."""
    embedding, positions = weights["transformer.wte.weight"], weights["transformer.wpe.weight"]
    width, head = embedding.shape[1], weights.get("lm_head.weight")
    if not n_head or width % n_head:
        why = f"{n_head} heads do not divide" if n_head else "its tensors do not tell the number of heads of"
        raise InvalidCheckpoint(f"{why} a width of {width}",
                                f"Give --n_head {max(1, width // 64)} if it is shaped as GPT-2 is.")
    return GPTConfig(vocab_size=embedding.shape[0], seq_length=positions.shape[0], n_head=n_head, n_embd=width,
                     n_layer=len({name.split(".")[2] for name in weights if name.startswith("transformer.h.")}),
                     bias="transformer.ln_f.bias" in weights, activation=activation,
                     tie_weights=head is None or torch.equal(embedding, head))
