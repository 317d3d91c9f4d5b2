"""Continue a text with a trained model.

    python generate.py --ckpt out                                    the newest checkpoint of train.py's output folder
    python generate.py --ckpt out/checkpoint-1200 --prompt "Once upon a time" --num_samples 3
    python generate.py --ckpt ~/gpt2 --temperature 0                 any Hugging Face GPT-2 folder; greedy

Text goes to stdout as it is made, never half a character; one line of timing goes to stderr. B batch, V vocabulary.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

import cli

MAX_NEW_TOKENS = 1_000_000
MAX_PROMPT_BYTES = 2**20

# ---------------------------------------------------------------- flags


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) with every problem found."""
    whole, real, text, one_of = cli.whole, cli.real, cli.text, cli.one_of
    parser = cli.Parser("generate.py", "Continues a text with a trained model.")
    g = parser.group("what to continue")
    g.flag("--ckpt", text(), "out", "a checkpoint, a folder of them (newest), or a Hugging Face GPT-2 folder")
    g.flag("--tokenizer_file", text(), None, "tokenizer.json, or vocab.json beside merges.txt", "the checkpoint's")
    g.flag("--prompt", cli.Kind(str, "text", "TEXT"), None, "text to continue; empty: a new document", "a new line")
    g.flag("--prompt_file", text(), None, "file whose whole text is continued", "none")
    g = parser.group("how far and how often")
    g.flag("--num_samples", whole(1, 1_000_000), 1, "continuations to write")
    g.flag("--max_new_tokens", whole(1, MAX_NEW_TOKENS), 256, "tokens to add; an end-of-text id ends it sooner")
    g.flag("--seed", whole(0, 2**63 - 1), 0, "the same seed gives the same text; sample i of several takes seed + i")
    g = parser.group("sampling")
    g.flag("--temperature", real(0, 100), 0.8, "0: always the likeliest token; 1: the model's own probabilities")
    g.flag("--top_k", whole(0), 200, "only the k likeliest tokens; 0: all")
    g.flag("--top_p", real(0, 1, above=True), 1.0, "only the likeliest tokens that hold this share of probability")
    g = parser.group("machine")
    g.switch("--use_gpu", None, "require CUDA, exit 5 when there is none", "a GPU when there is one")
    g.switch("--use_amp", None, "16-bit weights and arithmetic", "on with CUDA, off on a CPU")
    g.flag("--amp_dtype", one_of("auto", "bf16", "fp16"), "auto", "auto: bf16 where the hardware has it, else fp16")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """What cannot be together."""
    problems = []
    if args.prompt is not None and args.prompt_file is not None:
        problems.append("--prompt and --prompt_file: give one of them")
    if args.amp_dtype != "auto" and not args.use_amp:
        problems.append("--amp_dtype: has no effect without --use_amp")
    return problems


def answer_early(argv: Sequence[str]) -> int:
    """Flags and packages, before the seconds that importing torch takes."""
    read_flags(argv)
    cli.require("torch", "numpy", "tokenizers", "safetensors")
    return 0


if __name__ == "__main__":
    cli.guard(answer_early)

import contextlib
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

import checkpoint
import data
import device
from cli import Exit, UserError, printable
from model import GPT, KVCache

# ---------------------------------------------------------------- the sampler


def filtered(logits_BV: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Logits to draw from: temperature, then the k likeliest, then the nucleus; what is out has -inf.

    The nucleus is the smallest set of likeliest ids that holds at least top_p (Holtzman et al. 2019, section 3.1).
    """
    logits_BV = logits_BV / temperature
    if 0 < top_k < logits_BV.size(-1):
        kth_B1 = logits_BV.topk(top_k).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < kth_B1, -torch.inf)
    if top_p < 1:
        sorted_BV, order_BV = logits_BV.sort(descending=True)
        before_BV = sorted_BV.softmax(-1).cumsum(-1) - sorted_BV.softmax(-1)
        outside_BV = torch.zeros_like(before_BV, dtype=torch.bool).scatter(-1, order_BV, before_BV >= top_p)
        logits_BV = logits_BV.masked_fill(outside_BV, -torch.inf)
    return logits_BV


def pick(logits_BV: torch.Tensor, temperature: float, top_k: int, top_p: float,
         generator: torch.Generator | None) -> torch.Tensor:
    """One id per row of fp32 logits, int64 [B]; the likeliest if the temperature is 0."""
    if temperature < 1e-6:  # as good as 0, and dividing by it would overflow
        return logits_BV.argmax(-1)
    probabilities_BV = filtered(logits_BV, temperature, top_k, top_p).softmax(-1)
    return torch.multinomial(probabilities_BV, 1, generator=generator)[:, 0]


def sample(model: GPT, prompt: Sequence[int], max_new_tokens: int, temperature: float, top_k: int, top_p: float,
           seed: int, end_of_text_id: int | None,
           autocast: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext) -> Iterator[int]:
    """Yields up to max_new_tokens ids that continue the prompt, the end-of-text id not among them.

    The model's mode is the caller's. Keys and values are cached; when the window of T positions is full its older half
    is dropped and the newer half read again. Raises UserError (exit 6) for logits that are not finite.
    """
    where = next(model.parameters())
    generator = torch.Generator(where.device).manual_seed(seed)
    window = model.config.seq_length
    ids = list(prompt)[-window:]
    cache = KVCache(model.config, 1, where.device, where.dtype)
    unread = ids
    for _ in range(max_new_tokens):
        if cache.length + len(unread) > window:
            cache.length, unread = 0, ids[-(window // 2 or 1):]
        with torch.inference_mode(), autocast():
            logits_BV = model.next_logits(torch.tensor([unread], device=where.device), cache)
            if not logits_BV.isfinite().all():
                raise UserError(Exit.DIVERGED, "the model's logits are not finite: it diverged, or overflows in fp16. "
                                               "Give an earlier checkpoint, or --no-use_amp.")
            new = int(pick(logits_BV, temperature, top_k, top_p, generator))
        if new == end_of_text_id:
            return
        unread = [new]
        ids = [*ids[-window:], new]
        yield new


# ---------------------------------------------------------------- the command


def read_prompt(name: str) -> str:
    """The text of a file, which may be a pipe. Raises UserError (exit 3)."""
    shown = printable(name)
    try:
        with open(name, "rb") as file:
            content = file.read(MAX_PROMPT_BYTES + 1)  # a device has no end
    except OSError as error:
        raise UserError(Exit.DATA, f"--prompt_file {shown}: {error.strerror}. Give a text file.") from error
    if len(content) > MAX_PROMPT_BYTES:
        raise UserError(Exit.DATA, f"--prompt_file {shown} has more than {MAX_PROMPT_BYTES:,} bytes. A model sees only "
                                   "the last tokens of it. Give the end of the text.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        cli.warn(f"--prompt_file {shown} is not UTF-8 at byte {error.start:,} ({error.reason}); what is none is "
                 "replaced by U+FFFD.")
        return content.decode(errors="replace")


def prompt_ids(args: argparse.Namespace, tokenizer: Tokenizer, end_of_text_id: int | None) -> tuple[str, list[int]]:
    """The prompt's text and ids; an empty prompt starts a new document. Raises UserError (exit 3)."""
    prompt = "\n" if args.prompt is None else args.prompt
    if args.prompt_file is not None:
        prompt = read_prompt(args.prompt_file)
    prompt = prompt.encode("utf-8", "replace").decode("utf-8")  # a stray surrogate from the shell
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
    return prompt, ids


def find_tokenizer(args: argparse.Namespace, folder: Path) -> Tokenizer:
    """The tokenizer given, or the one in the checkpoint's folder. Raises UserError (exit 3)."""
    if args.tokenizer_file is not None:
        return data.load_tokenizer(args.tokenizer_file)
    for name in data.TOKENIZER_FILES:
        if (folder / name).is_file():
            return data.load_tokenizer(folder / name)
    raise UserError(Exit.DATA, f"{printable(str(folder))} has no tokenizer.json. Give the model's --tokenizer_file.")


class Writer:
    """Writes ids as text as they come, never half a UTF-8 character, control characters escaped on a terminal."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self._stream, self._ids, self._shown = tokenizer, DecodeStream(skip_special_tokens=True), [], 0
        self._escape = printable if sys.stdout.isatty() else str

    def text(self, text: str) -> None:
        sys.stdout.write(self._escape(text))
        sys.stdout.flush()

    def id(self, index: int) -> None:
        self._ids.append(index)
        if piece := self._stream.step(self._tokenizer, index):
            self._shown += len(piece)
            self.text(piece)

    def end(self) -> None:
        """Writes what is left of an unfinished character, as U+FFFD."""
        self.text(self._tokenizer.decode(self._ids, skip_special_tokens=True)[self._shown:] + "\n")


def main(argv: Sequence[str]) -> int:
    args = read_flags(argv)
    if args.use_gpu and (reason := device.why_no_cuda()):
        raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or drop the flag.")
    machine = device.choose(args.use_gpu, args.use_amp, args.amp_dtype, False)
    model, tokenizer = checkpoint.read(Path(args.ckpt), cli.warn, lambda folder: (
        checkpoint.load_model(folder, machine.device).to(machine.dtype).eval(), find_tokenizer(args, folder)))
    if data.vocab_size_of(tokenizer) > model.config.vocab_size:
        raise UserError(Exit.DATA, f"the tokenizer has {data.vocab_size_of(tokenizer):,} ids, the model "
                                   f"{model.config.vocab_size:,}. Give the model's own --tokenizer_file.")
    end_of_text_id = data.end_of_text_id(tokenizer)
    prompt, ids = prompt_ids(args, tokenizer, end_of_text_id)
    if len(ids) > model.config.seq_length:
        cli.warn(f"the prompt has {len(ids):,} tokens, the model sees the last {model.config.seq_length:,}.")

    first_seconds, decode_seconds, num_decoded = None, 0.0, 0
    with cli.Signals() as signals:
        for number in range(args.num_samples):
            writer = Writer(tokenizer)
            writer.text(("\n" + "-" * 40 + "\n" if number else "") + prompt)
            started = time.perf_counter()
            for count, new in enumerate(sample(model, ids, args.max_new_tokens, args.temperature, args.top_k,
                                               args.top_p, args.seed + number, end_of_text_id)):
                if count == 0:
                    first_seconds = first_seconds or time.perf_counter() - started
                    started = time.perf_counter()
                writer.id(new)
                num_decoded += count > 0
                if signals.number is not None:
                    break
            decode_seconds += time.perf_counter() - started
            writer.end()
            if signals.number is not None:
                break
    rate = f"{num_decoded / decode_seconds:.1f} tok/s" if num_decoded and decode_seconds else "n/a tok/s"
    print(f"first token {first_seconds or 0.0:.3f} s, then {num_decoded} new tokens in {decode_seconds:.2f} s, {rate}",
          file=sys.stderr)
    return 128 + signals.number if signals.number is not None else 0


if __name__ == "__main__":
    cli.guard(main)
