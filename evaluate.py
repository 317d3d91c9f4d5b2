"""Measures how well a model predicts a text: perplexity and bits per byte.

    python evaluate.py --ckpt out --text held-out.txt other.jsonl       the newest checkpoint of train.py's folder
    python evaluate.py --ckpt ~/gpt2 --text book.txt                    a GPT-2, Qwen3 or Llama of Hugging Face
    python evaluate.py --ckpt out --tokens data nanogpt/val.bin         a folder's validation tokens, and a token file

Every token of a document is scored once. The tokenizer's opening id, or else an end-of-text id, precedes the
first one (in a token file both). A window of T tokens moves on by T / 2 tokens, so that each token beyond the
document's first T has at least T / 2 tokens of context.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from gpt.common import flags
from gpt.common.config import Relations
from gpt.common.ending import guard
from gpt.common.errors import Exit, UserError, require
from gpt.hub.names import as_recorded, check_package, problems_with_name
from gpt.machine.environment import set_up_environment

RELATIONS = {
    "ckpt": Relations(aliases=flags.ALSO_CKPT),
    "json": Relations(aliases="output output_path out"),
}


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line. Raises UserError (exit 2) that lists every problem."""
    parser = flags.Parser("evaluate.py", "Measures how well a model predicts any text.", RELATIONS)
    g = parser.add_argument_group("what is measured, and where")
    g.add_argument("--ckpt", type=flags.text(), default="out", help=flags.ANY_MODEL)
    g.add_argument("--text", nargs="+", type=flags.text("FILE"), help="text files, JSON lines, Parquet; "
                   "folders or globs of them (default: none)")
    g.add_argument("--tokens", nargs="+", type=flags.text("FILE"), help="token files of the model's tokenizer, "
                   "in any layout that train.py reads (default: none)")
    g.add_argument("--use_gpu", action=flags.Switch, help="require a GPU; exit 5 when there is none "
                   "(default: a GPU when there is one)")
    g.add_argument("--use_amp", action=flags.Switch, help="16-bit arithmetic (default: on with a GPU, off "
                                                          "on a CPU)")
    g.add_argument("--json", type=flags.text(), help="file for all figures, - for standard output "
                   "(default: none)")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """The problems that argparse does not see, one line each."""
    problems = problems_with_name("--ckpt", args.ckpt)
    if not args.text and not args.tokens:
        problems.append("--text: nothing to measure; give it files, or the tokens of training: --tokens data")
    if "-" in flags.as_list(args.text):
        problems.append("--text -: standard input is not read; give a file")
    return problems


def answer_early(argv: Sequence[str]) -> None:
    """Checks flags and packages (UserError: exit 2, 5) before torch is imported, which takes a second."""
    args = read_flags(argv)
    set_up_environment()
    require("torch", "numpy", "tokenizers", "tqdm", "safetensors")
    check_package(args.ckpt)


if __name__ == "__main__":
    guard(answer_early)

import contextlib
import json
import sys

from gpt.checkpoint.find import read_checkpoint
from gpt.checkpoint.load import load_model
from gpt.common.outputs import STDOUT, Output
from gpt.common.progress import Progress
from gpt.common.signals import Signals, Stopped
from gpt.common.words import printable
from gpt.evaluation.documents import texts_of, token_files_of
from gpt.evaluation.scoring import Scorer
from gpt.hub.download import download_flag
from gpt.machine import device
from gpt.tokens.tokenizer import end_of_text_id, tokenizer_of

OUTPUT_MARK = b'{\n "ckpt": '  # begins each file of --json


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code, 128 + a signal's number after a signal. Raises UserError."""
    args = read_flags(argv)
    stream = sys.stderr if args.json in STDOUT else sys.stdout  # standard output then has the JSON alone
    with Progress(stream) as out, Signals(out.note) as signals, contextlib.suppress(Stopped):
        signals.at_once = "before anything was measured"
        measure_everything(args, out, signals)
    return Exit.DONE if signals.number is None else 128 + signals.number


def measure_everything(args: argparse.Namespace, out: Progress, signals: Signals) -> None:
    """Loads the model, measures every requested text, and prints the figures.

    --json gets the figures of the finished files even if a signal or an error ends the rest. Raises Stopped
    at a signal, and UserError, with exit 3 also if no file has a token to score.
    """
    figures = Output("--json", args.json, OUTPUT_MARK) if args.json else None
    machine = device.choose_for_inference(args.use_gpu, args.use_amp, "auto", out.warn)
    args = download_flag(args, "ckpt", out, signals.raise_if_stopped)

    def load(folder: Path) -> Scorer:
        model = load_model(folder, machine.device).eval()
        tokenizer = tokenizer_of(folder, None, model.config.vocab_size)
        return Scorer(model, folder, tokenizer, end_of_text_id(tokenizer, folder), machine, out, signals)

    # If a training run deletes the folder meanwhile, the next one is loaded.
    with out.phase("loading the model"):
        scorer = read_checkpoint(Path(args.ckpt), out.warn, load)
    facts = {"ckpt": as_recorded(str(scorer.folder)), "seq_length": scorer.model.config.seq_length,
             "device": machine.name, "precision": machine.precision}
    for name, value in facts.items():
        out.say(f"{name:<12}{printable(value)}")
    signals.on_stop(lambda: f"stopping (now: {out.doing or 'preparing'})")

    results = []
    try:
        for flag, words, documents_of in (("text", args.text, texts_of), ("tokens", args.tokens, token_files_of)):
            for name, documents in documents_of(flags.as_list(words), scorer) if words else ():
                results.append({"task": flag, "file": name, **scorer.measure(documents, name)})
        if not any(result["tokens"] for result in results):
            raise UserError(Exit.DATA, "no token to score. Give other files.")
    finally:
        if figures is not None and results:
            figures.write(json.dumps({**facts, "results": results}, indent=1).encode() + b"\n")


if __name__ == "__main__":
    guard(main)
