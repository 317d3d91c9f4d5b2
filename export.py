"""Exports a checkpoint as a GGUF file, or as a Hugging Face folder to publish.

    python export.py --ckpt out --output model.gguf                              for llama.cpp and programs built on it
    python export.py --ckpt out --output model.gguf --dtype f16                  half the size
    python export.py --ckpt out --output model.gguf --dtype q8_0                 a quarter; q5_0 and q4_0 are smaller
    python export.py --ckpt out --output my-gpt2 --format huggingface --dtype bf16
    python export.py --ckpt out --output pruned --prune 0.3                      30% of the weights in blocks are zero
    python export.py --from_nanogpt ckpt.pt --output my-gpt2 --tokenizer_file gpt2/tokenizer.json

llama.cpp's own converter recognizes a tokenizer by a hash of some ids, so it refuses every newly trained
one. This program writes the GGUF file directly, with the converter's names and types (see
gpt/architectures/). The Hugging Face folder is the checkpoint without its training state. An export is
written under a temporary name and then renamed.
"""

import argparse
from collections.abc import Mapping, Sequence

from gpt.common import flags
from gpt.common.config import Relations
from gpt.common.ending import guard
from gpt.common.errors import Exit, UserError, optional, require, writing
from gpt.common.names import CARD, CONFIG, TOKENIZER, WEIGHTS
from gpt.common.words import printable, several, shell_line, shell_word
from gpt.hub.names import as_recorded, check_package, problems_with_name

# ---------------------------------------------------------------- flags


QUANTIZED = ("q8_0", "q5_0", "q4_0")  # llama.cpp's types of 32 weights with one scale

RELATIONS = {
    "ckpt": Relations(aliases=flags.ALSO_CKPT),
    "from_nanogpt": Relations(conflicts="ckpt"),
    "n_head": Relations(requires="from_nanogpt"),
    "output": Relations(aliases="out outfile output_dir output_file"),
    "format": Relations(aliases="outformat output_format"),
    "dtype": Relations(aliases="outtype"),
    "prune": Relations(conflicts="format gguf"),
}


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line. Raises UserError (exit 2) that lists every problem."""
    parser = flags.Parser("export.py", "Exports a checkpoint as a GGUF file, or as a Hugging Face folder "
                                       "to publish.",
                          RELATIONS)
    g = parser.add_argument_group("what is exported")
    g.add_argument("--ckpt", type=flags.text(), default="out", help=flags.ANY_MODEL)
    g.add_argument("--from_nanogpt", type=flags.text("FILE"), help="instead of --ckpt: a ckpt.pt of nanoGPT or "
                   "build-nanogpt, or a state dict with their names; only tensors and numbers are read "
                   "(default: none)")
    g.add_argument("--n_head", type=flags.whole(1, 1024), help="attention heads of the model in --from_nanogpt "
                   "(default: as in the file)")
    g.add_argument("--tokenizer_file", type=flags.text(), help="tokenizer.json, for gguf and --from_nanogpt "
                   "(default: the checkpoint's)")
    g = parser.add_argument_group("what is written")
    g.add_argument("--output", type=flags.text(), help="file to write, or folder with --format huggingface "
                   "(default: required)")
    g.add_argument("--format", type=flags.one_of("gguf", "huggingface"), help="gguf needs the package gguf "
                   "(default: gguf; huggingface with --prune and --from_nanogpt)")
    g.add_argument("--dtype", type=flags.one_of("f32", "f16", "bf16", *QUANTIZED), default="f32",
                   help="type of the matrices; the rest of a gguf stays f32; q8_0, q5_0 and q4_0 are for gguf alone")
    g.add_argument("--overwrite", action=flags.Switch, default=False, help="replace an earlier export")
    g.add_argument("--prune", type=flags.real(0, 1, excludes_low=True, excludes_high=True), help="set this fraction of "
                   "each matrix in the blocks, the smallest weights, to zero (default: none)")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """The problems that argparse does not see, one line each."""
    problems = problems_with_name("--ckpt", args.ckpt)
    if not args.output:
        problems.append("--output: required. Name the file or folder to write")
    elif format_of(args) == "gguf" and not args.output.endswith(".gguf"):
        problems.append(f"--output {printable(args.output)}: a GGUF file ends in .gguf; for a folder give --format "
                        "huggingface")
    elif format_of(args) != "gguf" and args.output.endswith(".gguf"):
        problems.append(f"--output {printable(args.output)}: names a GGUF file, and a folder is written. Give the "
                        "folder's name")
    if args.dtype in QUANTIZED and format_of(args) != "gguf":
        problems.append(f"--dtype {args.dtype}: only in a file. Give --format gguf and --output NAME.gguf")
    if args.tokenizer_file and format_of(args) != "gguf" and not args.from_nanogpt:
        problems.append("--tokenizer_file: has no effect with --format huggingface, which copies the "
                        "checkpoint's")
    return problems


def format_of(args: argparse.Namespace) -> str:
    """The format of the export, 'gguf' or 'huggingface': --format, or the default beside other flags."""
    return args.format or ("huggingface" if args.prune or args.from_nanogpt else "gguf")


def answer_early(argv: Sequence[str]) -> None:
    """Checks flags and packages before the slow import of torch. Raises UserError."""
    args = read_flags(argv)
    require("torch", "numpy", "tokenizers", "safetensors")
    if format_of(args) == "gguf":
        optional("gguf", "--format gguf")
    check_package(args.ckpt)


if __name__ == "__main__":
    guard(answer_early)

import contextlib
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from gpt.architectures.table import ModelConfig, architecture_of
from gpt.checkpoint.contents import PUBLISHED
from gpt.checkpoint.find import read_checkpoint
from gpt.checkpoint.folder import put_in_place
from gpt.checkpoint.load import chat_template, end_ids, load_model, open_model, opening, stored_tensors
from gpt.checkpoint.nanogpt import convert
from gpt.common.files import rename, sync
from gpt.common.outputs import check_writable
from gpt.common.progress import Progress
from gpt.common.signals import Signals, Stopped
from gpt.hub.download import download_flag
from gpt.tokens.chat import can_converse
from gpt.tokens.llama_cpp import gguf_vocabulary
from gpt.tokens.tokenizer import load_tokenizer, tokenizer_of
from model import LanguageModel

EXPORT_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
                 **dict.fromkeys(QUANTIZED, torch.float16)}  # the type of a block's scale


# ---------------------------------------------------------------- the command, in the order of events


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    args = read_flags(argv)
    with Progress() as out, Signals(out.note) as signals, contextlib.suppress(Stopped):
        export(args, signals, out)
    return Exit.DONE if signals.number is None else 128 + signals.number


def export(args: argparse.Namespace, signals: Signals, out: Progress) -> None:
    """Exports one model, and prints where it is. Raises UserError, OSError, Stopped."""
    with contextlib.ExitStack() as temporary:
        target = choose_target(args.output, format_of(args), args.overwrite)
        args = download_flag(args, "ckpt", out, signals.raise_if_stopped)

        def export_of(source: Path) -> tuple[Path, int]:
            if source.resolve() == target:
                raise UserError(Exit.FLAGS, f"--output {printable(args.output)} is the model to export. "
                                            "Give another name.")
            with out.phase(f"writing {printable(target.name)}"):
                return source, write_export(args, source, target, signals)

        with writing(f"--output {printable(args.output)}", SafetensorError):  # reports a full disk
            target.parent.mkdir(parents=True, exist_ok=True)
            if args.from_nanogpt:
                folder = temporary.enter_context(tempfile.TemporaryDirectory(prefix=".nanogpt-",
                                                                             dir=target.parent))
                source = Path(folder) / Path(args.from_nanogpt).stem
                with out.phase("reading the file"):
                    out.say(convert(Path(args.from_nanogpt), source, args.tokenizer_file, args.n_head,
                                    out.warn))
                source, num_tensors = export_of(source)
            else:
                # If a training run deletes the folder meanwhile, the next one is exported.
                source, num_tensors = read_checkpoint(Path(args.ckpt), out.warn, export_of)
        say_how_to_open(args, source, num_tensors, out)


def say_how_to_open(args: argparse.Namespace, source: Path, num_tensors: int, out: Progress) -> None:
    """Prints the new export, and the commands that open and benchmark it."""
    out.say(f"{printable(args.from_nanogpt or as_recorded(str(source)))} -> {printable(args.output)}: "
            f"{several(num_tensors, 'tensor')}, {args.dtype}")
    is_file = format_of(args) == "gguf"
    output = shell_word(args.output)
    opened = str(source) if is_file else args.output
    has_tokenizer = (Path(opened) / TOKENIZER).is_file()
    if is_file:
        out.say(f"to open it: llama-server -m {output}")
    else:
        if not has_tokenizer:
            out.say(f"the folder has no tokenizer; first copy the one of the tokens:\ncp DATA/{TOKENIZER} {output}")
        chats = has_tokenizer and chat_template(source) and can_converse(load_tokenizer(opened))
        out.say(f"to open it: python generate.py --ckpt {output}{' --chat' if chats else ''}")
    if has_tokenizer and not (is_file and args.from_nanogpt):  # the folder of a converted nanoGPT file is temporary
        out.say("benchmarks: " + shell_line(["lm_eval", "--model", "hf", "--model_args", f"pretrained={opened}",
                                             "--tasks", "hellaswag,lambada_openai"]))


def write_export(args: argparse.Namespace, source: Path, target: Path, signals: Signals) -> int:
    """Writes the file or folder under a temporary name, then renames it; returns the number of tensors.

    An existing target is replaced. Raises UserError, OSError, and Stopped before the rename; the temporary
    file or folder is then removed.
    """
    temporary, old = (target.with_name(f".export-{os.getpid()}.{ending}") for ending in ("tmp", "old"))
    config, weights = open_model(source)
    try:
        signals.raise_if_stopped()
        if format_of(args) == "gguf":
            num_tensors = write_gguf(args, config, weights, source, temporary, target.stem)
        else:
            num_tensors = write_folder(args, config, source, temporary)
        signals.raise_if_stopped()
        if temporary.is_dir():
            put_in_place(temporary, target, old)
            shutil.rmtree(old, ignore_errors=True)
        else:
            rename(temporary, target)
            sync(target.parent)
        return num_tensors
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def choose_target(output: str, export_format: str, overwrite: bool) -> Path:
    """Resolves links in the output's path, and checks that the path can be written.

    Raises UserError: exit 2 if the path exists, unless it is a model and overwrite is on; exit 5
    if it cannot be written.
    """
    target = Path(output)
    with writing(f"--output {printable(output)}"):
        if export_format == "gguf":
            is_model = target.is_file() and target.open("rb").read(4) == b"GGUF"
        else:
            is_model = target.is_dir() and {path.name for path in target.iterdir()} <= {*PUBLISHED, WEIGHTS}
        if target.exists() and not (is_model and overwrite):
            raise UserError(Exit.FLAGS, f"--output {printable(output)} exists. Give another name; "
                                        "--overwrite replaces a GGUF file, or a folder that holds nothing but "
                                        "a model.")
        return check_writable(output)


def in_dtype(tensor: torch.Tensor, dtype: str, name: str) -> torch.Tensor:
    """Converts a tensor. Raises UserError: exit 6 for a value that is not finite, exit 2 for a value that overflows."""
    converted = tensor.to(EXPORT_DTYPES[dtype])
    if not converted.isfinite().all():
        if not tensor.isfinite().all():
            raise UserError(Exit.DIVERGED, f"{name} holds NaN or infinity: the model diverged. Give an earlier "
                                           "checkpoint.")
        raise UserError(Exit.FLAGS, f"{name} reaches {tensor.abs().max():,.0f}, which --dtype {dtype} cannot hold. "
                                    "Give --dtype bf16.")
    return converted


# ---------------------------------------------------------------- GGUF


def write_gguf(args: argparse.Namespace, config: ModelConfig, weights: Mapping[str, torch.Tensor], source: Path,
               path: Path, name: str) -> int:
    """Writes a GGUF file with the given model name; returns the number of tensors.

    Matrices are stored in the requested type. Vectors and positions stay f32, as in convert_hf_to_gguf.py,
    because llama.cpp's kernels add them to f32. A tied output layer is not stored: without output.weight,
    llama.cpp uses the embedding. Raises OSError, and UserError: exit 4 for a model that llama.cpp would
    compute differently, exit 3 for a tokenizer that it would read differently, and in_dtype's errors.
    """
    gguf = optional("gguf", "--format gguf")
    architecture = architecture_of(config)
    reason = architecture.why_no_gguf(config)
    if reason:
        raise UserError(Exit.CHECKPOINT, f"{reason}. Give --format huggingface, and --output with a folder's name.")
    vocabulary = gguf_vocabulary(tokenizer_of(source, args.tokenizer_file, config.vocab_size), config.vocab_size,
                                 end_ids(source, config.vocab_size))
    kind = gguf.MODEL_ARCH[architecture.GGUF_ARCHITECTURE]

    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    fields = {
        "type": gguf.GGUFType.MODEL,
        "name": printable(name),
        **architecture.gguf_fields(config),
        "file_type": gguf.LlamaFileType["ALL_F32" if args.dtype == "f32" else f"MOSTLY_{args.dtype.upper()}"],
        **vocabulary,
        "token_types": [gguf.TokenType[token_type] for token_type in vocabulary["token_types"]],
        "quantization_version": gguf.GGML_QUANT_VERSION,
    }
    template = chat_template(source)
    if isinstance(template, str):  # without the marks of answers, which are transformers' own
        fields["chat_template"] = template.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    for field, value in fields.items():
        getattr(writer, f"add_{field}")(value)
    names = gguf.get_tensor_name_map(kind, config.n_layer)
    tensors = architecture.to_gguf_tensors(config, weights)
    for key, tensor in tensors.items():
        stored_as = "f32" if tensor.dim() == 1 or key in architecture.GGUF_KEPT_IN_F32 else args.dtype
        if stored_as in QUANTIZED and tensor.shape[1] % 32:
            stored_as = "f16"  # as in convert_hf_to_gguf.py
        elif stored_as in QUANTIZED and architecture.has_vocabulary_rows(key):
            stored_as = "q8_0"  # llama.cpp spends more bits on the output layer too, which is the embedding if tied
        in_dtype(tensor, stored_as, key)  # raises UserError for a value that the type cannot hold
        array_type = gguf.GGMLQuantizationType[stored_as.upper()]
        array = gguf.quants.quantize(np.ascontiguousarray(tensor.float().numpy()), array_type)
        writer.add_tensor(names.get_name(key, (".weight", ".bias")), array, raw_dtype=array_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    sync(path)
    return len(tensors)


# ---------------------------------------------------------------- a Hugging Face folder


def write_folder(args: argparse.Namespace, config: ModelConfig, source: Path, folder: Path) -> int:
    """Copies a checkpoint without its training state, with all weights in one file; returns the number of tensors.

    The folder is new. Prunes the weights with --prune, and notes that in the model card. Raises UserError (exit
    4 for a link out of the source, and in_dtype's) and OSError.
    """
    folder.mkdir()
    with opening(f"checkpoint {printable(source)}"):
        stored = stored_tensors(source)
    for name in PUBLISHED:
        if (source / name).is_file():
            place = (source / name).resolve().parent
            # A link may lead to another folder; in the hub's cache all files are links to its blobs.
            if place not in (source.resolve(), source.resolve().parent.parent / "blobs"):
                raise UserError(Exit.CHECKPOINT, f"{printable(source / name)} is a link to a file of another folder, "
                                                 "which the export would publish. Delete the link, or replace it by "
                                                 "the file.")
            shutil.copyfile(source / name, folder / name)
    if args.prune:
        model = load_model(source, torch.device("cpu"))
        with (folder / CARD).open("a", encoding="utf-8") as file:
            file.write(prune_blocks(model, args.prune))
        stored = architecture_of(config).to_hf_tensors(config, model.state_dict())
    fields = json.loads((source / CONFIG).read_bytes())
    fields.update(dict.fromkeys(("dtype", "torch_dtype"), str(EXPORT_DTYPES[args.dtype]).removeprefix("torch.")))
    (folder / CONFIG).write_text(json.dumps(fields, indent=1), encoding="utf-8")

    path = folder / WEIGHTS
    tensors = {name: in_dtype(tensor, args.dtype, name).contiguous() for name, tensor in stored.items()}
    save_file(tensors, path, metadata={"format": "pt"})
    # Safetensors makes files that only the owner can read.
    path.chmod(stat.S_IMODE((folder / CONFIG).stat().st_mode))
    for written in folder.iterdir():
        sync(written)
    sync(folder)
    return len(tensors)


# ---------------------------------------------------------------- pruning


@torch.no_grad()
def prune_blocks(model: LanguageModel, fraction: float) -> str:
    """Sets the smallest weights of each matrix in the blocks to zero; returns a paragraph for the model card.

    The given fraction of each matrix becomes zero; stacked matrices count as one. Embeddings, biases and
    norms stay: this is the layer-wise magnitude pruning of Han et al. (2015), section 3. Zeros save neither
    memory nor time: they are stored and multiplied like other weights.
    """
    num_zeros = num_weights = 0
    for name in architecture_of(model.config).hidden_matrices(model.config):
        weight = model.get_parameter(name)
        smallest = weight.abs().flatten().argsort(stable=True)[:round(fraction * weight.numel())]
        weight.view(-1)[smallest] = 0.0
        num_zeros += len(smallest)
        num_weights += weight.numel()
    return (f"\n## Pruned\n\nOf each matrix in the blocks the smallest {100 * fraction:.4g}% of the weights are "
            f"zero, {num_zeros:,} of {num_weights:,}: it takes the same memory and time (Han et al. 2015, "
            "section 3).\n")


if __name__ == "__main__":
    guard(main)
