"""A checkpoint of nanoGPT or build-nanogpt, or a plain state dict with their names, as a Hugging Face folder of GPT-2.

Such a .pt file is a pickle. It is never opened in this process: checkpoint/pickled.py reads it in another one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import checkpoint
from architectures import gpt2
from checkpoint.contents import STATE, WEIGHTS, model_card, text_files
from checkpoint.pickled import SPARE_BYTES, TIMES
from common.children import SAFE_PATH, script_environment
from common.errors import Exit, UserError
from common.words import count, printable, size
from model import GPTConfig
from tokens.tokenizer import end_of_text_id, load_with_size

READER = Path(checkpoint.__file__).with_name("pickled.py")
SECONDS, BYTES_PER_SECOND = 300.0, 2e7  # within which a file is read: so long, and its size at so many
HEAD_WIDTH = 64  # of every GPT-2
PADDING = 128  # a vocabulary is padded to a multiple of 64 or 128
GPT2_IDS = 50257


def convert(path: Path, folder: Path, tokenizer_file: str | None, n_head: int | None, activation: str | None,
            warn: Callable[[str], None]) -> str:
    """Writes the file's model as a new folder; returns what was found in words.

    activation is 'gelu' or 'gelu_new', by default what nanoGPT (exact GELU) or build-nanogpt (tanh) compute. Raises
    UserError: exit 3 for a tokenizer that is not the model's, exit 4 for a file that is not read.
    """
    weights, facts = _read(path)
    config = _config(path, weights, facts, n_head, activation)
    content, config = _fit_tokenizer(path, config, tokenizer_file, warn)
    tensors = {name: tensor[:config.vocab_size] if name in ("transformer.wte.weight", "lm_head.weight") else tensor
               for name, tensor in weights.items()}
    _check_shapes(path, config, tensors)
    run = facts["run"]
    said = {"converted from": printable(path.name), "activation": config.activation,
            **{name.replace("_", " "): f"{value:g}" for name, value in run.items()}}
    end_id = end_of_text_id(load_with_size(Path(tokenizer_file))[0]) if tokenizer_file else None
    texts = text_files(int(run.get("iter_num", run.get("step", 0))), config, {}, content, end_id,
                       model_card(config, said))
    folder.mkdir(parents=True)
    for name, text in texts.items():
        if name != STATE:
            (folder / name).write_text(text, encoding="utf-8")
    stored = gpt2.to_hf_tensors(config, tensors)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / WEIGHTS, {"format": "pt"})
    return (f"{count(config.num_parameters)} parameters, {config.n_layer} layers, {config.n_head} heads, width "
            f"{config.n_embd}, T {config.seq_length:,}, vocabulary {config.vocab_size:,}, {config.activation}")


# ---------------------------------------------------------------- the file


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights and facts of the file, as the other process found them. Raises UserError (exit 4)."""
    shown = printable(str(path))
    if not path.is_file():
        raise UserError(Exit.CHECKPOINT, f"--from_nanogpt {shown}: there is no such file. Name a ckpt.pt.")
    try:
        with tempfile.TemporaryDirectory(prefix="nanogpt-") as folder:
            target = Path(folder) / WEIGHTS
            facts = _read_elsewhere(path, shown, target)
            return load_file(target), facts
    except OSError as error:
        raise _failure(shown, f"it could not be read in a process of its own: {error.strerror or error}",
                       "Look at the disk of TMPDIR, and at the limits of processes") from error


def _read_elsewhere(path: Path, shown: str, target: Path) -> dict[str, Any]:
    """Has another process write the weights to target; returns what it found besides. Raises UserError, OSError."""
    environment = {**script_environment(), SAFE_PATH: "1"}
    limit = SECONDS + path.stat().st_size / BYTES_PER_SECOND
    try:
        done = subprocess.run([sys.executable, str(READER), os.path.abspath(path), str(target)], env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        raise _failure(shown, f"it was not read within {limit:.0f} s", "Copy it to a faster disk") from error
    if done.returncode == -9:  # SIGKILL, which Windows does not name
        most = size(TIMES * path.stat().st_size + SPARE_BYTES)
        raise _failure(shown, "the process that read it was ended by SIGKILL, as a system does that runs out of "
                              f"memory: it may take {most}", "Free memory, or use a larger machine")
    if done.returncode < 0:
        raise _refusal(shown, f"the process that read it was ended by {signal.Signals(-done.returncode).name}")
    try:
        facts = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError) as error:
        last = (done.stderr.strip().splitlines() or [f"the process that read it ended with {done.returncode}"])[-1]
        raise _refusal(shown, printable(last)[:150]) from error
    if why := facts.get("unwritten"):
        raise _failure(shown, f"its tensors could not be written to {printable(str(target.parent))}: "
                              f"{printable(why)[:100]}", "Free some space there, or set TMPDIR to another folder")
    if "refused" in facts:
        raise _refusal(shown, printable(facts["refused"])[:200])
    return facts


def _failure(shown: str, why: str, cure: str) -> UserError:
    """What the machine, and not the file, is the cause of."""
    return UserError(Exit.MACHINE, f"--from_nanogpt {shown}: {why}. {cure}.")


def _refusal(shown: str, why: str) -> UserError:
    return UserError(Exit.CHECKPOINT, f"--from_nanogpt {shown}: {why}. Give a ckpt.pt of nanoGPT, or save "
                                      "model.state_dict() alone with torch.save.")


def _config(path: Path, weights: Mapping[str, torch.Tensor], facts: Mapping[str, Any], n_head: int | None,
            activation: str | None) -> GPTConfig:
    """The model's shape by its tensors, and by what the file records of it. Raises UserError (exit 4)."""
    shown, shape = printable(str(path)), facts["shape"]
    embedding, positions = weights.get("transformer.wte.weight"), weights.get("transformer.wpe.weight")
    if embedding is None or positions is None or embedding.dim() != 2 or positions.dim() != 2:
        raise _refusal(shown, "it has no transformer.wte.weight and transformer.wpe.weight, GPT-2's embeddings")
    width = embedding.shape[1]
    heads = n_head or shape.get("n_head")
    if not heads:
        guess = f", {width // HEAD_WIDTH} if it is shaped as GPT-2 is" if width % HEAD_WIDTH == 0 else ""
        raise UserError(Exit.CHECKPOINT, f"--from_nanogpt {shown}: tensors alone do not tell the number of heads. Give "
                                         f"--n_head{guess}.")
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise _refusal(shown, f"a width of {width} cannot be divided into {heads} heads")
    n_layer = len({name.split(".")[2] for name in weights if name.startswith("transformer.h.")})
    return GPTConfig(vocab_size=embedding.shape[0], seq_length=positions.shape[0], n_layer=n_layer, n_head=heads,
                     n_embd=width, bias="transformer.ln_f.bias" in weights, tie_weights=facts["is_tied"],
                     activation=activation or ("gelu_new" if facts["is_object"] else "gelu"))


def _check_shapes(path: Path, config: GPTConfig, weights: Mapping[str, torch.Tensor]) -> None:
    """Raises UserError (exit 4) unless the tensors are those of this GPT-2."""
    expected = gpt2.shapes(config)
    problems = [f"{name} is missing" for name in expected if name not in weights]
    problems += [f"{printable(name)[:80]} is no part of GPT-2" for name in weights if name not in expected]
    problems += [f"{name} has shape {list(weights[name].shape)}, not {shape}" for name, shape in expected.items()
                 if name in weights and list(weights[name].shape) != shape]
    if problems:
        raise _refusal(printable(str(path)), "; ".join(problems[:3]))


# ---------------------------------------------------------------- the tokenizer


def _fit_tokenizer(path: Path, config: GPTConfig, tokenizer_file: str | None, warn: Callable[[str], None],
                   ) -> tuple[str | None, GPTConfig]:
    """The tokenizer.json to put beside the weights, and the config without the rows that only pad its vocabulary.

    Raises UserError (exit 3) for a tokenizer with other ids than the model can have been trained with.
    """
    has, shown = config.vocab_size, printable(str(path))
    if tokenizer_file is None:
        hint = (" It looks like GPT-2's, padded: with GPT-2's tokenizer the padding goes." if has > GPT2_IDS
                and has - GPT2_IDS < PADDING else " nanoGPT's meta.pkl is a pickle and is not opened: docs/export.md "
                "shows how to make a tokenizer.json of its characters." if has < 1000 else "")
        warn(f"the folder gets no tokenizer, and all {has:,} ids of {shown} stay. Give --tokenizer_file.{hint}")
        return None, config
    tokenizer, num_ids = load_with_size(Path(tokenizer_file))
    if num_ids > has or has - num_ids >= PADDING:
        kind = " (characters, maybe)" if has < 1000 else ""
        raise UserError(Exit.DATA, f"--tokenizer_file {printable(tokenizer_file)} has {num_ids:,} ids, the model in "
                                   f"{shown} {has:,}{kind}: it was trained with another. Give that one, or none.")
    fields = {**config.__dict__, "vocab_size": num_ids}
    return tokenizer.to_str(pretty=True), GPTConfig(**fields)
