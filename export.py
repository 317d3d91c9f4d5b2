"""A checkpoint in the form others take: one GGUF file for llama.cpp, or a Hugging Face folder to publish.

    python export.py --ckpt out --output model.gguf                              what llama.cpp and its kin run
    python export.py --ckpt out --output model.gguf --dtype f16                  half the size
    python export.py --ckpt out --output my-gpt2 --format huggingface --dtype bf16

llama.cpp's own converter knows a vocabulary by a hash of some ids, so it refuses every newly trained one; this writes
the file directly, under the names and types that converter uses for GPT-2. The Hugging Face folder is the checkpoint
without what only resuming needs. Both are written under another name, read back and renamed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from common import flags
from common.errors import guard, optional, require

# ---------------------------------------------------------------- flags



def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) with every problem found."""
    path, one_of = flags.text, flags.one_of
    parser = flags.Parser("export.py", "Writes a checkpoint as a GGUF file, or as a Hugging Face folder to publish.")
    g = parser.group("what is exported")
    g.flag("--ckpt", path(), "out", "a checkpoint, a folder of them (newest), or a Hugging Face GPT-2 folder")
    g.flag("--tokenizer_file", path(), None, "tokenizer.json, or vocab.json beside merges.txt; gguf only",
           "the checkpoint's")
    g = parser.group("what is written")
    g.flag("--output", path(), None, "file, or folder with --format huggingface", "required")
    g.flag("--format", one_of("gguf", "huggingface"), "gguf", "gguf needs the package gguf")
    g.flag("--dtype", one_of("f32", "f16", "bf16"), "f32", "of the matrices; in gguf norms, biases, positions stay f32")
    g.switch("--overwrite", False, "replace what an earlier export wrote")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """What is missing, or cannot be together."""
    problems = []
    if args.output is None:
        problems.append("--output: required; name the file or folder to write")
    if args.tokenizer_file is not None and args.format != "gguf":
        problems.append("--tokenizer_file: has no effect with --format huggingface, which copies the checkpoint's")
    return problems


def answer_early(argv: Sequence[str]) -> int:
    """Flags and packages, before the seconds that importing torch takes."""
    args = read_flags(argv)
    require("torch", "numpy", "tokenizers", "safetensors")
    if args.format == "gguf":
        optional("gguf", "--format gguf")
    return 0


if __name__ == "__main__":
    guard(answer_early)

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer

from checkpoint.find import resolve
from checkpoint.huggingface import TRANSPOSED, load_model, to_hf_tensors
from common.errors import Exit, UserError, warn
from common.files import sync
from common.signals import Signals, Stopped
from common.words import printable, size
from model import GPT
from ops.linear import ACTIVATIONS
from tokens import tokenizer as tokens_tokenizer
from tokens.tokenizer import tokenizer_of

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# A Hugging Face folder's files but the weights; what a checkpoint has beside them serves resuming alone.
PUBLISHED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json",
             "merges.txt", "special_tokens_map.json", "added_tokens.json", "README.md", "LICENSE")


# ---------------------------------------------------------------- GGUF



@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE as llama.cpp stores it: a token and its kind for each id, and the merges in order."""

    tokens: list[str]
    kinds: list[str]  # gguf.TokenType's names
    merges: list[str]
    end_of_text_id: int


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """The tokenizer's vocabulary, filled up to the model's with unused ids as convert_hf_to_gguf.py does.

    Raises UserError (exit 3) for a tokenizer that llama.cpp's "gpt-2" would not encode alike.
    """
    vocabulary = tokens_tokenizer.vocabulary_of(tokenizer)
    if not vocabulary.is_known_kind:
        raise UserError(Exit.DATA, "the tokenizer is not of GPT-2's kind (byte-level BPE with GPT-2's pattern, no "
                                   "normalizer), so llama.cpp would split text otherwise. Give --format huggingface.")
    fields = json.loads(vocabulary.content)
    kinds, tokens = ["UNUSED"] * vocab_size, [f"[PAD{index}]" for index in range(vocab_size)]
    for token, index in fields["model"]["vocab"].items():
        tokens[index], kinds[index] = token, "NORMAL"
    for token in fields["added_tokens"]:
        tokens[token["id"]], kinds[token["id"]] = token["content"], "CONTROL"
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in fields["model"]["merges"]]
    return Vocabulary(tokens, kinds, merges, vocabulary.end_id)


def gguf_tensors(gguf: Any, model: GPT, dtype: str) -> dict[str, tuple[np.ndarray, Any]]:
    """The weights by llama.cpp's names as [out, in], in their GGUF type. Raises UserError (exit 2) where f16 overflows.

    Matrices have the type asked for; vectors and positions stay f32, as in convert_hf_to_gguf.py, because llama.cpp's
    kernels add them to f32. A tied head is not stored: where output.weight is missing the embedding serves.
    """
    kinds, found = gguf.GGMLQuantizationType, {}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, model.config.n_layer)
    for name, tensor in to_hf_tensors(model.config, model.state_dict()).items():
        tensor = tensor.t() if name.endswith(TRANSPOSED) else tensor
        array = np.ascontiguousarray(tensor.float().numpy())
        small = dtype == "f32" or array.ndim == 1 or name == "transformer.wpe.weight"
        kind = kinds.F32 if small else kinds.F16 if dtype == "f16" else kinds.BF16
        fits_in(tensor, "f32" if small else dtype, name)
        found[names.get_name(name, (".weight", ".bias"))] = gguf.quants.quantize(array, kind), kind
    return found


def fits_in(tensor: torch.Tensor, dtype: str, name: str) -> None:
    """Raises UserError: exit 6 for a weight that is not finite, exit 2 for one that would not be in this type."""
    if not tensor.isfinite().all():
        raise UserError(Exit.DIVERGED, f"{name} holds numbers that are not finite: the model diverged. Give an earlier "
                                       "checkpoint.")
    if not tensor.to(DTYPES[dtype]).isfinite().all():
        raise UserError(Exit.FLAGS, f"--dtype {dtype}: {name} reaches {tensor.abs().max():,.0f}, more than this type "
                                    "holds. Give --dtype bf16.")


def write_gguf(model: GPT, vocabulary: Vocabulary, name: str, path: Path, dtype: str) -> int:
    """Writes the file, reads it back, and returns the number of tensors. Raises UserError, OSError."""
    gguf, config = optional("gguf", "--format gguf"), model.config
    tensors = gguf_tensors(gguf, model, dtype)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.GPT2])
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.seq_length)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    types = gguf.LlamaFileType
    writer.add_file_type({"f32": types.ALL_F32, "f16": types.MOSTLY_F16, "bf16": types.MOSTLY_BF16}[dtype])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types([gguf.TokenType[kind] for kind in vocabulary.kinds])
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(vocabulary.end_of_text_id)
    writer.add_eos_token_id(vocabulary.end_of_text_id)
    writer.add_add_bos_token(False)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, (array, kind) in tensors.items():
        writer.add_tensor(key, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    sync(path)
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    for key, (array, _) in tensors.items():
        if key not in stored or stored[key].tobytes() != array.tobytes():
            raise OSError(f"{key} read back differs from what was written")
    return len(tensors)


# ---------------------------------------------------------------- a Hugging Face folder



def write_folder(source: Path, folder: Path, dtype: str) -> int:
    """Copies a checkpoint without its training state; returns the number of tensors. Raises UserError, OSError."""
    folder.mkdir()
    for name in PUBLISHED:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    fields = json.loads((source / "config.json").read_text(encoding="utf-8"))
    fields.update(dict.fromkeys(("dtype", "torch_dtype"), str(DTYPES[dtype]).removeprefix("torch.")))
    (folder / "config.json").write_text(json.dumps(fields, indent=1), encoding="utf-8")
    tensors, path = {}, folder / "model.safetensors"
    with safe_open(source / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            fits_in(file.get_tensor(name), dtype, name)
            tensors[name] = file.get_tensor(name).to(DTYPES[dtype])
    save_file(tensors, path, metadata={"format": "pt"})
    with safe_open(path, framework="pt") as file:
        if any(not torch.equal(file.get_tensor(name), tensor) for name, tensor in tensors.items()):
            raise OSError(f"{path.name} read back differs from what was written")
    for written in folder.iterdir():
        sync(written)
    sync(folder)
    return len(tensors)


# ---------------------------------------------------------------- the command



def check_output(args: argparse.Namespace) -> None:
    """Raises UserError (exit 2) for an output that is there, unless --overwrite may replace it as an earlier export."""
    path, name = Path(args.output), printable(args.output)
    if not os.path.lexists(path):
        return
    if path.is_dir():
        strangers = sorted({inside.name for inside in path.iterdir()} - {*PUBLISHED, "model.safetensors"})
        if strangers or args.format == "gguf":
            what = f"a folder that holds {printable(strangers[0])}" if strangers else "a folder"
            raise UserError(Exit.FLAGS, f"--output {name} is {what}, not an earlier export. Give another name.")
    elif args.format != "gguf":
        raise UserError(Exit.FLAGS, f"--output {name} is a file, and --format huggingface writes a folder. Give "
                                    "another name.")
    elif path.open("rb").read(4) != b"GGUF":
        raise UserError(Exit.FLAGS, f"--output {name} is a file, not an earlier export. Give another name.")
    if not args.overwrite:
        raise UserError(Exit.FLAGS, f"--output {name} is there already. Give --overwrite, or another name.")


def export(args: argparse.Namespace, signals: Signals) -> None:
    """Writes what was asked for under another name and renames it. Raises UserError, OSError, Stopped."""
    check_output(args)
    source, target = resolve(Path(args.ckpt), warn), Path(args.output)
    model = load_model(source, torch.device("cpu"))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        signals.look()
        if args.format == "gguf":
            if ACTIVATIONS[model.config.activation] != "tanh":
                raise UserError(Exit.CHECKPOINT, f"the model's activation is {model.config.activation}, and "
                                                 "llama.cpp's GPT-2 computes gelu_new. Give --format huggingface.")
            tokenizer = tokenizer_of(source, args.tokenizer_file, model.config.vocab_size)
            vocabulary = vocabulary_of(tokenizer, model.config.vocab_size)
            num_tensors = write_gguf(model, vocabulary, source.resolve().name, temporary, args.dtype)
        else:
            num_tensors = write_folder(source, temporary, args.dtype)
        signals.look()
        if target.is_dir():
            shutil.rmtree(target)
        temporary.replace(target)
    except SafetensorError as error:  # how the library reports a full disk
        raise OSError(f"{error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True) if temporary.is_dir() else temporary.unlink(missing_ok=True)
    sync(target.parent)
    written = [target] if target.is_file() else list(target.iterdir())
    print(f"{printable(str(source))} -> {printable(str(target))}: {num_tensors} tensors, {args.dtype}, "
          f"{size(sum(path.stat().st_size for path in written))}")


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    args = read_flags(argv)
    with Signals() as signals:
        try:
            export(args, signals)
        except Stopped:
            return 128 + (signals.number or 0)
    return Exit.DONE


if __name__ == "__main__":
    guard(main)
