"""How well a model predicts: perplexity and bits per byte of any text.

    python evaluate.py --ckpt out --text held-out.txt other.jsonl       the newest checkpoint of train.py's folder
    python evaluate.py --ckpt ~/gpt2 --text book.txt --stride 256       GPT-2, Qwen3, Llama of Hugging Face
    python evaluate.py --ckpt out --tokens data nanogpt/val.bin         token files: the validation tokens of a folder

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
    parser = flags.Parser("evaluate.py", "Measures how well a model predicts any text.")
    g = parser.group("what is measured")
    g.flag("--ckpt", text(), "out", "a checkpoint, a folder of them (newest), its best by validation (out/best) or "
           "last, a Hugging Face folder of GPT-2, Qwen3 or Llama, or such a model on the hub: hf://OWNER/NAME",
           called="checkpoint checkpoint_dir out_dir model model_path ckpt_path")
    g.group.add_argument("--text", nargs="+", action="extend", metavar="FILE",
                         help="text as pretokenize.py takes it: files, folders, globs (default: none)")
    g.group.add_argument("--tokens", nargs="+", action="extend", metavar="FILE",
                         help="token files in any layout that train.py reads: files, folders, globs, made with the "
                              "model's tokenizer (default: none)")
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
    if not (args.text or args.tokens):
        problems.append("--text: nothing to measure; give it files, or give --tokens")
    problems += [f"--{name} '': must be text that is not empty" for name in ("text", "tokens")
                 if "" in (vars(args)[name] or [])]
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
from typing import Any

from checkpoint.find import read_checkpoint
from checkpoint.load import load_model
from common.errors import Exit, UserError
from common.outputs import Output
from common.progress import Progress
from common.signals import NOTHING, USUALLY_SECONDS, Signals, Stopped
from common.words import count, printable
from evaluation.scoring import PROGRESS_TOTAL, Scorer, TextEncoder
from evaluation.texts import measure_texts
from evaluation.token_files import measure_tokens
from hub.download import with_models_here
from machine import device
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
    figures = Output("--json", args.json) if args.json else None
    if args.use_gpu and (reason := device.why_no_gpu()):
        raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or drop the flag.")
    machine = device.choose(args.use_gpu, args.use_amp, args.amp_dtype, False)
    device.without_cudnn_attention()

    args = with_models_here(args, ["ckpt"], out, signals.look)
    with out.phase("loading the model"):
        folder, model = read_checkpoint(Path(args.ckpt), out.warn,
                                        lambda folder: (folder, load_model(folder, machine.device).eval()))
        tokenizer = tokenizer_of(folder, None, model.config.vocab_size)
    config, T = model.config, model.config.seq_length
    stride = args.stride or (T + 1) // 2
    if stride > T:
        raise UserError(Exit.FLAGS, f"--stride {stride:,}: more than the model's window, tokens would be left out. "
                                    f"Give at most {T:,}.")
    encoder = TextEncoder(tokenizer, end_of_text_id(tokenizer))
    if not encoder.start_ids():
        out.warn("the tokenizer has no end-of-text id: the first token of each document is not scored.")
    shown = as_recorded(str(folder))
    out.say(f"model       {printable(shown)}\n"
            f"            {count(config.num_parameters)} parameters, window {T:,}, stride {stride:,}\n"
            f"device      {machine.name} ({machine.device_reason})\n"
            f"precision   {machine.precision} ({machine.precision_reason})")
    out.bar(PROGRESS_TOTAL, 0, "")
    signals.promise(lambda: f"stopping (now: {out.doing or 'preparing'})", lambda: NOTHING)

    tokens_per_batch = args.batch_size * T if args.batch_size else machine.backend.busy_tokens
    scorer = Scorer(model, machine.autocast, tokens_per_batch, out, signals)
    results: list[dict[str, Any]] = []
    try:
        for measure, words in ((measure_texts, args.text), (measure_tokens, args.tokens)):
            for result in measure(scorer, encoder, words, stride) if words else ():
                results.append(result.fields)
                out.say(result.line)
    finally:
        if figures is not None and results:
            facts = {"ckpt": shown, "parameters": config.num_parameters, "seq_length": T, "stride": stride,
                     "device": machine.name, "precision": machine.precision}
            figures.write(json.dumps({**facts, "results": results}, indent=1).encode() + b"\n")


if __name__ == "__main__":
    guard(main)
