"""A checkpoint of nanoGPT or build-nanogpt, or a plain state dict with their names, as a Hugging Face folder of GPT-2.

Such a .pt file is a pickle. It is never opened in this process: checkpoint/pickled.py reads it in another one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import checkpoint
from architectures.gpt2 import GPT2
from checkpoint.contents import model_card, text_files
from checkpoint.load import weights_of
from common.children import SAFE_PATH, ask
from common.errors import Exit, InvalidCheckpoint, UserError
from common.names import STATE, WEIGHTS
from common.signals import Signals
from common.words import count, printable
from model import GPTConfig
from tokens.tokenizer import end_of_text_id, load_with_size

READER = Path(checkpoint.__file__).with_name("pickled.py")
PADDING = 128  # a vocabulary is padded to a multiple of 64 or 128


def convert(path: Path, folder: Path, tokenizer_file: str | None, n_head: int | None, signals: Signals,
            warn: Callable[[str], None]) -> str:
    """Writes the file's model as a new folder; returns what was found in words.

    Its activation is what nanoGPT (exact GELU) or build-nanogpt (tanh) compute. Raises UserError: exit 3 for a
    tokenizer that is not the model's, exit 4 for a file that is not read; OSError.
    """
    shown = f"--from_nanogpt {printable(str(path))}"
    folder.mkdir(parents=True)
    found = folder.with_name("found.safetensors")  # beside the folder, which is temporary with all that is beside it
    answer = ask([sys.executable, str(READER), os.path.abspath(path), str(found)], signals, env={SAFE_PATH: "1"})
    if answer.code:
        raise UserError(Exit.CHECKPOINT, f"{shown}: {answer.reason}. Give a ckpt.pt of nanoGPT, or save "
                                         "model.state_dict() alone with torch.save.")
    facts, weights = json.loads(answer.printed), load_file(found)
    try:
        activation = "gelu_new" if facts["is_object"] else "gelu"
        config = _config(weights, n_head or facts["n_head"], activation)
        weights_of(config, GPT2().to_hf_tensors(config, weights))
    except InvalidCheckpoint as error:
        raise UserError(Exit.CHECKPOINT, f"{shown}: {error}. {error.cure or 'Give a GPT-2 by its names.'}") from error

    tokenizer_json = end_id = None
    if tokenizer_file is None:
        warn(f"the folder gets no tokenizer, and all {config.vocab_size:,} ids stay. Give --tokenizer_file.")
    else:
        tokenizer, num_ids = load_with_size(Path(tokenizer_file))
        if not 0 <= config.vocab_size - num_ids < PADDING:
            raise UserError(Exit.DATA, f"--tokenizer_file {printable(tokenizer_file)} has {num_ids:,} ids, the model "
                                       f"{config.vocab_size:,}: it was trained with another. Give that one, or none.")
        tokenizer_json, end_id = tokenizer.to_str(), end_of_text_id(tokenizer)
        config = replace(config, vocab_size=num_ids)

    said = {"converted from": printable(path.name), "activation": config.activation,
            **{name.replace("_", " "): f"{value:g}" for name, value in facts["run"].items()}}
    texts = text_files(0, config, {}, tokenizer_json, end_id, model_card(config, said))
    for name in texts.keys() - {STATE}:
        (folder / name).write_text(texts[name], encoding="utf-8")
    stored = {name: tensor.contiguous() for name, tensor in GPT2().to_hf_tensors(config, weights).items()
              if name != "lm_head.weight" or not config.tie_weights}
    save_file(stored, folder / WEIGHTS, {"format": "pt"})
    return (f"{count(config.num_parameters)} parameters, {config.n_layer} layers, {config.n_head} heads, width "
            f"{config.n_embd}, T {config.seq_length:,}, vocabulary {config.vocab_size:,}, {config.activation}")


def _config(weights: dict[str, torch.Tensor], n_head: int | None, activation: str) -> GPTConfig:
    """The model's shape by its tensors, which do not tell the heads. Raises InvalidCheckpoint."""
    embedding, positions = (weights.get(f"transformer.{name}.weight", torch.empty(0)) for name in ("wte", "wpe"))
    if embedding.dim() != 2 or positions.dim() != 2:
        raise InvalidCheckpoint("it has no transformer.wte.weight and transformer.wpe.weight, GPT-2's embeddings")
    width, head = embedding.shape[1], weights.get("lm_head.weight")
    if not n_head or width % n_head:
        raise InvalidCheckpoint(f"its tensors do not tell the number of heads of a width of {width}",
                                f"Give --n_head, {width // 64} if it is shaped as GPT-2 is.")
    return GPTConfig(vocab_size=embedding.shape[0], seq_length=positions.shape[0], n_head=n_head, n_embd=width,
                     n_layer=len({name.split(".")[2] for name in weights if name.startswith("transformer.h.")}),
                     bias="transformer.ln_f.bias" in weights, activation=activation,
                     tie_weights=head is None or torch.equal(embedding, head))
