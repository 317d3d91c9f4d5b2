"""Continue texts with a trained model.

    python generate.py --ckpt out                                    the newest checkpoint of train.py's output folder
    python generate.py --ckpt out/checkpoint-1200 --prompt "Once upon a time" --num_samples 3
    python generate.py --ckpt ~/gpt2 --temperature 0                 any Hugging Face GPT-2 folder; greedy
    python generate.py --prompt_file prompts.txt --prompt_lines --json    a prompt a line, an object a continuation
    python generate.py --interactive --quantize int8                 a line, its continuation, and so on

Text goes to stdout as it is made, never half a character; one line of timing goes to stderr.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from common import flags
from common.errors import guard, require
from common.files import hash_ahead

MAX_NEW_TOKENS = 1_000_000
MAX_PROMPT_BYTES = 2**20


# ---------------------------------------------------------------- flags



def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) with every problem found."""
    whole, real, text, one_of = flags.whole, flags.real, flags.text, flags.one_of
    parser = flags.Parser("generate.py", "Continues a text with a trained model.")
    g = parser.group("what to continue")
    g.flag("--ckpt", text(), "out", "a checkpoint, a folder of them (newest), or a Hugging Face GPT-2 folder")
    g.flag("--tokenizer_file", text(), None, "tokenizer.json, or vocab.json beside merges.txt", "the checkpoint's")
    g.flag("--prompt", flags.Kind(str, "text", "TEXT"), None, "text to continue; empty: a new document", "a new line")
    g.flag("--prompt_file", text(), None, "file whose whole text is continued; -: standard input", "none")
    g.switch("--prompt_lines", False, "each line of --prompt_file is a prompt, or its JSON field prompt or text")
    g.switch("--interactive", False, "continue what is typed, line by line; /help lists the commands")
    g = parser.group("how far and how often")
    g.flag("--num_samples", whole(1, 1_000_000), 1, "continuations of each prompt")
    g.flag("--batch_size", whole(1, 1024), 8, "continuations made at once; changes no text")
    g.flag("--max_new_tokens", whole(1, MAX_NEW_TOKENS), 256, "tokens to add; an end-of-text id ends it sooner")
    g.group.add_argument("--stop", action="append", metavar="TEXT", type=str,
                         help="text that ends a continuation and is left out; may be given several times")
    g.flag("--seed", whole(0, 2**63 - 1), 0, "the same seed gives the same text; sample i of several takes seed + i")
    g = parser.group("sampling, in this order")
    g.flag("--repetition_penalty", real(0, 100, above=True), 1.0, "above 1: ids that were there are less likely")
    g.flag("--no_repeat_ngram_size", whole(0), 0, "no run of so many tokens comes twice; 0: any may")
    g.flag("--temperature", real(0, 100), 0.8, "0: always the likeliest token; 1: the model's own probabilities")
    g.flag("--top_k", whole(0), 200, "only the k likeliest tokens; 0: all")
    g.flag("--top_p", real(0, 1, above=True), 1.0, "only the likeliest tokens that hold this share of probability")
    g.flag("--min_p", real(0, 1), 0.0, "only tokens at least this times as likely as the likeliest")
    g = parser.group("output, machine")
    g.switch("--json", False, "a JSON object a line for each continuation: text, ids, log-probabilities, why it ended")
    g.switch("--use_gpu", None, "require CUDA, exit 5 when there is none", "a GPU when there is one")
    g.switch("--use_amp", None, "16-bit weights and arithmetic", "on with CUDA, off on a CPU")
    g.flag("--amp_dtype", one_of("auto", "bf16", "fp16"), "auto", "auto: bf16 where the hardware has it, else fp16")
    g.flag("--quantize", one_of("none", "int8"), "none", "int8: 8-bit weights, a scale per output channel")
    g.switch("--compile", False, "compile the step, half a minute the first time; on a CPU if one is made at a time")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """What cannot be together."""
    problems = []
    if args.prompt is not None and args.prompt_file is not None:
        problems.append("--prompt and --prompt_file: give one of them")
    if args.prompt_lines and args.prompt_file is None:
        problems.append("--prompt_lines: needs --prompt_file")
    if args.interactive and (args.prompt is not None or args.prompt_file is not None or args.json
                             or args.num_samples > 1):
        problems.append("--interactive: goes with none of --prompt, --prompt_file, --num_samples, --json")
    if args.stop and "" in args.stop:
        problems.append("--stop '': must be text that is not empty")
    if args.amp_dtype != "auto" and not args.use_amp:
        problems.append("--amp_dtype: has no effect without --use_amp")
    return problems


def answer_early(argv: Sequence[str]) -> int:
    """Flags and packages, before the second that importing torch takes; meanwhile the checkpoint's hash is computed."""
    args = read_flags(argv)
    require("torch", "numpy", "tokenizers", "safetensors")
    hash_ahead(Path(args.ckpt))
    return 0


if __name__ == "__main__":
    guard(answer_early)

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator

import torch
from tokenizers import Tokenizer

from checkpoint.find import read_checkpoint
from checkpoint.huggingface import open_model
from common.errors import Exit, UserError, warn
from common.files import cache_folder
from common.signals import Signals
from common.words import printable
from generation.decoder import Decoder
from generation.sampling import Continuation, Sampling, run
from generation.streaming import Clock, Text, show
from generation.weights import INT8_ROWS, layout
from machine import device
from machine.memory import is_out_of_memory
from tokens import tokenizer as tokens_tokenizer
from tokens.tokenizer import tokenizer_of

SEPARATOR = "\n" + "-" * 40 + "\n"
HELP = """/seed N         the next continuation's seed; each one after takes the next number
/temperature X  0: always the likeliest token
/reset          forget what was said
/quit           leave, as does the end of the input
Anything else is added to the text so far as a line of its own, and the model continues it; Ctrl-C cuts that short."""


# ---------------------------------------------------------------- prompts



def read_prompts(args: argparse.Namespace) -> list[str]:
    """The texts to continue, at least one. Raises UserError (exit 3)."""
    if args.prompt_file is None:
        prompt = "\n" if args.prompt is None else args.prompt
        return [prompt.encode("utf-8", "replace").decode("utf-8")]  # a stray surrogate from the shell
    content = read_prompt(args.prompt_file)
    return prompts_in_lines(content, printable(args.prompt_file)) if args.prompt_lines else [content]


def prompts_in_lines(content: str, where: str) -> list[str]:
    """A prompt from each line that is not blank; JSON in all lines if in the first one. Raises UserError (exit 3)."""
    lines = [(number, line.removesuffix("\r")) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    if not lines:
        raise UserError(Exit.DATA, f"--prompt_file {where}: no line that is not blank. Write a prompt into each line.")
    if field_of(lines[0][1]) is None:
        return [line for _, line in lines]
    prompts = []
    for number, line in lines:
        if (prompt := field_of(line)) is None:
            raise UserError(Exit.DATA, f"--prompt_file {where}, line {number:,}: no JSON object with a text in "
                                       "'prompt' or 'text', as the first line is. Mend the line.")
        prompts.append(prompt)
    return prompts


def field_of(line: str) -> str | None:
    """The text in field prompt or text of a JSON object; None if the line is none."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = fields.get("prompt", fields.get("text")) if isinstance(fields, dict) else None
    return found.encode("utf-8", "replace").decode("utf-8") if isinstance(found, str) else None


def read_prompt(name: str) -> str:
    """The text of a file, which may be a pipe; of stdin for -. Raises UserError (exit 3)."""
    shown = printable(name)
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb") as file:
            content = file.read(MAX_PROMPT_BYTES + 1)  # a device has no end
    except OSError as error:
        raise UserError(Exit.DATA, f"--prompt_file {shown}: {error.strerror}. Give a text file.") from error
    if len(content) > MAX_PROMPT_BYTES:
        raise UserError(Exit.DATA, f"--prompt_file {shown} has more than {MAX_PROMPT_BYTES:,} bytes. A model sees only "
                                   "the last tokens of it. Give the end of the text.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        warn(f"--prompt_file {shown} is not UTF-8 at byte {error.start:,} ({error.reason}); what is none is "
                 "replaced by U+FFFD.")
        return content.decode(errors="replace")


def ids_of(prompt: str, tokenizer: Tokenizer, end_of_text_id: int | None, vocab_size: int) -> list[int]:
    """A prompt's ids, at least one, all the model's; an empty prompt starts a document. Raises UserError (exit 3)."""
    try:
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    except Exception as error:  # that of a word vocabulary without a token for the unknown
        raise UserError(Exit.DATA, f"the tokenizer has no ids for the prompt ({printable(str(error))[:120]}). Give the "
                                   "model's own --tokenizer_file, or another --prompt.") from error
    if not ids:
        if end_of_text_id is None:
            raise UserError(Exit.DATA, "an empty prompt, and the tokenizer has no end-of-text id to start from. "
                                       "Give --prompt.")
        ids = [end_of_text_id]
    if max(ids) >= vocab_size:
        raise UserError(Exit.DATA, f"the tokenizer gives the prompt an id {max(ids):,}, the model has {vocab_size:,} "
                                   "ids. Give the model's own --tokenizer_file.")
    return ids


# ---------------------------------------------------------------- the command



def load(args: argparse.Namespace, folder: Path, num_rows: int) -> Decoder:
    """The model, laid out for decoding on the device chosen. Raises UserError (exit 4, 5)."""
    machine = device.choose(args.use_gpu, args.use_amp, args.amp_dtype, False)
    device.without_cudnn_attention()
    on_cpu, quantized = machine.device.type == "cpu", args.quantize == "int8"
    if quantized and not on_cpu:
        warn("--quantize int8: on a GPU it saves memory, not time, as every step widens the weights first.")
    if on_cpu and quantized:
        num_rows = min(num_rows, INT8_ROWS)  # more rows are multiplied otherwise, and would round otherwise
    compiles = args.compile
    if compiles and on_cpu and num_rows > 1:
        compiles = False
        warn(f"--compile: on a CPU it serves one continuation at a time, {num_rows} are made at once: running "
                 "eagerly. Give --batch_size 1 to compile.")
    if compiles and (problem := device.why_no_compile(machine.device)):
        compiles = False
        warn(f"--compile: not possible here, running eagerly: {problem}.")
    dtype = torch.bfloat16 if on_cpu and quantized else machine.dtype  # what the CPU's 8-bit product takes
    if on_cpu and dtype == torch.bfloat16 and args.use_amp and not device.cpu_has_bf16():
        warn("this CPU has no bf16 instructions: 16-bit arithmetic will be slower than fp32. Drop --use_amp.")
    try:
        config, weights = open_model(folder)
        kind = layout(machine.device, dtype, quantized, compiles)
        between = torch.float32 if compiles and on_cpu else dtype  # the compiled loops would convert bf16 at each use
        decoder = Decoder(config, weights, num_rows, machine.device, between, kind, dtype)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(Exit.MACHINE, f"out of memory with {num_rows} continuations at once. Give a smaller "
                                      "--batch_size, or --quantize int8.") from error
    if compiles:
        with contextlib.suppress(OSError):
            (compiled := cache_folder() / "compiled").mkdir(parents=True, exist_ok=True)
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))
        try:
            decoder.compile()
        except Exception as error:  # a compiler has as many errors as versions
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            warn(f"--compile: failed, running eagerly: {printable(reason)}")
    return decoder


def write(args: argparse.Namespace, decoder: Decoder, tokenizer: Tokenizer, prompts: Sequence[str],
          sampling: Sampling, end_of_text_id: int | None, signals: Signals) -> None:
    """Continues every prompt num_samples times and writes it in that order; the one whose turn it is as it comes."""
    vocab_size = decoder.config.vocab_size
    prompt_ids = [ids_of(prompt, tokenizer, end_of_text_id, vocab_size) for prompt in prompts]
    window = decoder.window
    for ids in prompt_ids:
        if len(ids) > window:
            more = sum(len(ids) > window for ids in prompt_ids) - 1
            warn(f"the prompt has {len(ids):,} tokens, the model sees the last {window:,}."
                     + (f" So it is with {more:,} more." if more else ""))
            break
    num, turn = args.num_samples, 0
    texts: dict[int, tuple[Continuation, Text]] = {}
    numbers: dict[Continuation, int] = {}

    def started() -> Iterator[Continuation]:
        for number in range(len(prompts) * num):
            new = Continuation(prompt_ids[number // num], args.max_new_tokens, args.seed + number % num)
            texts[number], numbers[new] = (new, Text(tokenizer, args.stop or ())), number
            if number == turn and not args.json:
                show(opening(number))
            yield new

    def opening(number: int) -> str:
        return f"{SEPARATOR if number else ''}{prompts[number // num]}"

    def close(number: int) -> None:
        continuation, text = texts.pop(number)
        del numbers[continuation]
        rest = text.end()
        if args.json:
            finish = "stop" if text.stopped else continuation.finish or "interrupted"
            record = {"prompt": prompts[number // num], "sample": number % num, "seed": args.seed + number % num,
                      "text": text.given, "ids": continuation.new_ids,
                      "log_probabilities": continuation.log_probabilities, "finish_reason": finish}
            show(json.dumps(record) + "\n")
        else:
            show(rest + "\n")

    clock = Clock(decoder)
    for continuation in run(decoder, started(), sampling, end_of_text_id):
        number = numbers[continuation]
        text = texts[number][1]
        if continuation.finish != "end_of_text":
            clock.count()
            piece = text.add(continuation.ids[-1])
            if text.stopped:
                continuation.finish = "stop"
            if piece and number == turn and not args.json:
                show(piece)
        while turn in texts and texts[turn][0].finish:
            close(turn)
            turn += 1
            if turn in texts and not args.json:
                show(opening(turn) + texts[turn][1].given)
        if signals.number is not None:
            break
    if turn in texts and not args.json:
        close(turn)
    for number in sorted(texts) if args.json else ():
        close(number)
    print(clock.line(), file=sys.stderr)


def converse(args: argparse.Namespace, decoder: Decoder, tokenizer: Tokenizer, sampling: Sampling,
             end_of_text_id: int | None) -> None:
    """Reads lines and continues the text they make, until /quit or the end of the input."""
    history = remember_lines()
    seed, ids = args.seed, []
    is_terminal = sys.stdin.isatty()
    while True:
        try:
            line = input("> " if is_terminal else "").encode("utf-8", "replace").decode("utf-8")
        except (EOFError, KeyboardInterrupt):
            break
        word, _, value = line.partition(" ")
        if word == "/quit":
            break
        if word == "/reset":
            ids = []
        elif word in ("/seed", "/temperature"):
            try:
                if word == "/seed":
                    seed = flags.whole(0, 2**63 - 1).parse(value)
                else:
                    sampling = dataclasses.replace(sampling, temperature=flags.real(0, 100).parse(value))
            except ValueError:
                print(f"{word} {printable(value)}: must be a number. See /help.", file=sys.stderr)
        elif word.startswith("/"):
            print(HELP, file=sys.stderr)
        else:
            prompt = ids + ids_of(("\n" if ids else "") + line, tokenizer, end_of_text_id, decoder.config.vocab_size)
            new, text = Continuation(prompt, args.max_new_tokens, seed), Text(tokenizer, args.stop or ())
            clock = Clock(decoder)
            with Signals() as signals:
                for _ in run(decoder, [new], sampling, end_of_text_id):
                    if new.finish != "end_of_text":
                        clock.count()
                        show(text.add(new.ids[-1]))
                    if text.stopped or signals.number is not None:
                        new.finish = new.finish or "stop"
            show(text.end() + "\n")
            ids, seed = new.ids, seed + 1
            print(clock.line(), file=sys.stderr)
    if history is not None:
        history()


def remember_lines() -> Callable[[], None] | None:
    """Gives input() its line editing and the lines of earlier times; returns what saves them, None without readline."""
    try:
        import readline
    except ImportError:  # Windows
        return None
    path = cache_folder() / "history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)

    def save() -> None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.set_history_length(1000)
            readline.write_history_file(path)

    return save if sys.stdin.isatty() else None


def main(argv: Sequence[str]) -> int:
    args = read_flags(argv)
    if args.use_gpu and (reason := device.why_no_cuda()):
        raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or drop the flag.")
    prompts = [] if args.interactive else read_prompts(args)
    num_rows = max(1, min(args.batch_size, len(prompts) * args.num_samples))
    folder, decoder = read_checkpoint(Path(args.ckpt), warn, lambda folder: (folder, load(args, folder, num_rows)))
    tokenizer = tokenizer_of(folder, args.tokenizer_file, decoder.config.vocab_size, all_ids=False)
    end_of_text_id = tokens_tokenizer.end_of_text_id(tokenizer)
    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.min_p, args.repetition_penalty,
                               args.no_repeat_ngram_size)
    if args.interactive:
        converse(args, decoder, tokenizer, sampling, end_of_text_id)
        return 0
    with Signals() as signals:
        write(args, decoder, tokenizer, prompts, sampling, end_of_text_id, signals)
    return 128 + signals.number if signals.number is not None else 0


if __name__ == "__main__":
    guard(main)
