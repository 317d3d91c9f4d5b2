"""How well a model predicts: perplexity and bits per byte of any text, HellaSwag and LAMBADA from local files.

    python evaluate.py --ckpt out --text held-out.txt other.jsonl       the newest checkpoint of train.py's folder
    python evaluate.py --ckpt ~/gpt2 --text book.txt --stride 256       GPT-2, Qwen3, Llama of Hugging Face
    python evaluate.py --ckpt out --tokens data nanogpt/val.bin         token files: the validation tokens of a folder
    python evaluate.py --ckpt out --hellaswag hellaswag_val.jsonl --lambada lambada_test.jsonl --json figures.json
    python evaluate.py --ckpt out --text held-out.txt --prune 0.3       before and after the smallest weights are zero

Every token of a document is scored once, the first one after an end-of-text id. A window of T tokens moves on by
--stride tokens, so beyond the document's first T tokens each one has at least T - stride tokens of context.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from common import flags
from common.errors import guard, require
from hub.names import as_recorded, check_package, problems_with_name

# ---------------------------------------------------------------- flags


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) that lists every problem."""
    whole, text, one_of = flags.whole, flags.text, flags.one_of
    parser = flags.Parser("evaluate.py",
                          "Measures how well a model predicts: any text, HellaSwag's endings, LAMBADA's last words.")
    g = parser.group("what is measured")
    g.flag("--ckpt", text(), "out", "a checkpoint, a folder of them (newest), its best by validation (out/best) or "
           "last, a Hugging Face folder of GPT-2, Qwen3 or Llama, or such a model on the hub: hf://OWNER/NAME",
           called="checkpoint checkpoint_dir out_dir model model_path ckpt_path")
    g.flag("--tokenizer_file", text(), None, "tokenizer.json, or vocab.json beside merges.txt", "the checkpoint's",
           called="tokenizer tokenizer_path")
    g.group.add_argument("--text", nargs="+", action="extend", metavar="FILE",
                         help="text as pretokenize.py takes it: files, folders, globs (default: none)")
    g.group.add_argument("--tokens", nargs="+", action="extend", metavar="FILE",
                         help="token files in any layout that train.py reads: files, folders, globs, made with the "
                              "model's tokenizer (default: none)")
    g.flag("--hellaswag", text(), None, "HellaSwag's own .jsonl: activity_label, ctx_a, ctx_b, endings, label", "none")
    g.flag("--lambada", text(), None, ".jsonl with a text on each line, whose last word is to be predicted", "none")
    g.flag("--prune", flags.real(0, 1, above=True, below=True), None, "measure a second time with this share of each "
           "block's matrices, the smallest weights, set to zero", "only the model as it is")
    g = parser.group("how the text is read")
    g.flag("--text_field", text("NAME"), "text", "field of a JSON line or table that holds the text")
    g.flag("--document_separator", flags.escaped(), None,
           r"text between documents of a text file; \n is a newline, \t a tab, \\ a backslash",
           "each file is one document")
    g.flag("--encoding", flags.encoding(), None, "encoding of the text, such as cp1251, shift_jis or utf-16", "utf-8")
    g.flag("--stride", whole(1), None, "tokens by which a window moves on; fewer: more context, slower", "half of T")
    g = parser.group("machine")
    g.flag("--batch_size", whole(1), None, "windows of T tokens per forward, more of shorter ones; halve it on "
                                           "out-of-memory", "16,384 tokens on a GPU, 4,096 on a CPU",
           called="per_device_eval_batch_size device_batch_size")
    g.switch("--use_gpu", None, "require a GPU, NVIDIA's or Apple's; exit 5 when there is none", "a GPU when there is "
             "one")
    g.switch("--use_amp", None, "16-bit arithmetic", "on with a GPU, off on a CPU")
    g.flag("--amp_dtype", one_of("auto", "bf16", "fp16"), "auto", "auto: bf16 where the hardware has it, else fp16")
    g = parser.group("output")
    g.flag("--json", text(), None, "file for all figures", "none", called="output output_path out")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """The flags that are missing or have no effect."""
    problems = problems_with_name("--ckpt", args.ckpt)
    if not (args.text or args.tokens or args.hellaswag or args.lambada):
        problems.append("--text: nothing to measure; give it files, or give --tokens, --hellaswag or --lambada")
    problems += [f"--{name} '': must be text that is not empty" for name in ("text", "tokens")
                 if "" in (vars(args)[name] or [])]
    if args.stride is not None and not (args.text or args.tokens):
        problems.append("--stride: has no effect without --text or --tokens")
    if not args.text:
        given = {"--document_separator": args.document_separator is not None,
                 "--text_field": args.text_field != "text", "--encoding": args.encoding is not None}
        problems += [f"{name}: has no effect without --text" for name, is_given in given.items() if is_given]
    if args.amp_dtype != "auto" and not args.use_amp:
        problems.append("--amp_dtype: has no effect without --use_amp")
    return problems


def answer_early(argv: Sequence[str]) -> int:
    """Checks flags and packages before the second that importing torch takes."""
    args = read_flags(argv)
    require("torch", "numpy", "tokenizers", "tqdm", "safetensors")
    check_package(args.ckpt)
    return 0


if __name__ == "__main__":
    guard(answer_early)

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

from architectures.table import Network
from checkpoint.find import read_checkpoint
from checkpoint.load import load_model
from common.errors import Exit, UserError
from common.outputs import requested
from common.progress import Progress
from common.signals import NOTHING, USUALLY_SECONDS, Signals, Stopped
from common.words import count, printable
from evaluation.pruning import prune_blocks
from evaluation.scoring import PROGRESS_TOTAL, Measurement, Scorer, TextEncoder
from evaluation.tasks import TASKS
from evaluation.texts import measure_texts
from evaluation.token_files import measure_tokens
from hub.download import with_models_here
from machine import device
from machine.device import Machine
from pretokenization.blocks import Reading
from tokens.tokenizer import end_of_text_id, tokenizer_of

# ---------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    args = read_flags(argv)
    with contextlib.closing(Progress()) as out, Signals(out.note, USUALLY_SECONDS) as signals:
        signals.at_once = "before anything was measured"
        try:
            measure_everything(args, out, signals)
        except Stopped:
            return 128 + (signals.number or 0)
    return Exit.DONE


def measure_everything(args: argparse.Namespace, out: Progress, signals: Signals) -> None:
    """Loads the model, measures everything requested, and prints it.

    --json holds what was finished, even if a signal or an error ends the rest. Raises UserError, Stopped at a signal.
    """
    figures = requested("--json", args.json)
    if args.use_gpu and (reason := device.why_no_gpu()):
        raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or drop the flag.")
    machine = device.choose(args.use_gpu, args.use_amp, args.amp_dtype, False)
    device.without_cudnn_attention()

    args = with_models_here(args, ["ckpt"], out, signals.look)
    folder, model, tokenizer = open_model_and_tokenizer(args, machine, out)
    T = model.config.seq_length
    stride = choose_stride(args.stride, T)
    tokens_per_batch = args.batch_size * T if args.batch_size else machine.backend.busy_tokens
    scorer = Scorer(model, machine.autocast, tokens_per_batch, out, signals)
    encoder = TextEncoder(tokenizer, end_of_text_id(tokenizer))
    if encoder.start_id is None:
        out.warn("the tokenizer has no end-of-text id: the first token of each document is not scored.")
    print_header(folder, model, stride if args.text or args.tokens else None, machine, out)
    signals.promise(lambda: f"stopping (now: {out.doing or 'preparing'})", lambda: NOTHING)

    results: list[dict[str, Any]] = []
    try:
        for share in (0.0, *([args.prune] if args.prune else [])):
            if share:
                num_zeros, total = prune_blocks(model, share)
                out.say(f"pruned to {share:g}: {num_zeros:,} of {total:,} weights of the blocks are zero")
            for result in measurements(args, scorer, encoder, stride):
                results.append({**result.fields, "pruned": share})
                out.say(result.line)
    finally:
        if figures is not None and results:
            facts = {"ckpt": as_recorded(str(folder)), "parameters": model.config.num_parameters, "seq_length": T,
                     "stride": stride, "device": machine.name, "precision": machine.precision}
            figures.write(json.dumps({**facts, "results": results}, indent=1).encode() + b"\n")


def measurements(args: argparse.Namespace, scorer: Scorer, encoder: TextEncoder, stride: int) -> Iterator[Measurement]:
    """Everything requested, one result after the other. Raises UserError, Stopped at a signal."""
    if args.text:
        reading = Reading(args.text_field, args.document_separator)
        yield from measure_texts(scorer, encoder, args.text, reading, stride, args.encoding or "")
    if args.tokens:
        yield from measure_tokens(scorer, encoder, args.tokens, stride)
    for name, measure in TASKS.items():
        path = vars(args)[name]
        if path is not None:
            yield measure(scorer, encoder, path)


# ---------------------------------------------------------------- what is measured


def open_model_and_tokenizer(args: argparse.Namespace, machine: Machine,
                             out: Progress) -> tuple[Path, Network, Tokenizer]:
    """The folder that --ckpt means, its model on the device, and its tokenizer. Raises UserError (exit 3, 4)."""
    with out.phase("loading the model"):
        folder, model = read_checkpoint(Path(args.ckpt), out.warn,
                                        lambda folder: (folder, load_model(folder, machine.device).eval()))
        tokenizer = tokenizer_of(folder, args.tokenizer_file, model.config.vocab_size)
    return folder, model, tokenizer


def choose_stride(requested: int | None, window: int) -> int:
    """The tokens by which a window moves on, half of it by default. Raises UserError (exit 2) for more than it has."""
    stride = requested or (window + 1) // 2
    if stride > window:
        raise UserError(Exit.FLAGS, f"--stride {stride:,}: more than the model's window, tokens would be left out. "
                                    f"Give at most {window:,}.")
    return stride


def print_header(folder: Path, model: Network, stride: int | None, machine: Machine, out: Progress) -> None:
    """Prints the lines about model and machine, and starts the progress bar. stride None: no text is measured."""
    shown_stride = "" if stride is None else f", stride {stride:,}"
    out.say(f"model       {printable(as_recorded(str(folder)))}\n"
            f"            {count(model.config.num_parameters)} parameters, window {model.config.seq_length:,}"
            f"{shown_stride}\n"
            f"device      {machine.name} ({machine.device_reason})\n"
            f"precision   {machine.precision} ({machine.precision_reason})")
    out.bar(PROGRESS_TOTAL, 0, "")


if __name__ == "__main__":
    guard(main)
