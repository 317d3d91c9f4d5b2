"""Continues a text with a trained model.

    python generate.py --ckpt out                                    the newest checkpoint of train.py's output folder
    python generate.py --ckpt out/best                               the checkpoint with the best validation
    python generate.py --ckpt out/checkpoint-1200 --prompt "Once upon a time" --num_samples 3
    python generate.py --ckpt ~/gpt2 --temperature 0                 a GPT-2, Qwen3 or Llama of Hugging Face; greedy
    python generate.py --prompt_file story.txt --json                a JSON object per sample
    python generate.py --num_samples 4 --compare_with data           and the passages that they quote from the text
    python generate.py --chat --system "You are kind."               a conversation with a model that learned to answer

The text goes to stdout while it is generated, in whole characters; one line about the speed goes to stderr.
The parts are in gpt/generation/.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from gpt.common import flags
from gpt.common.config import Relations
from gpt.common.ending import guard
from gpt.common.errors import Exit, UserError, is_out_of_memory, require, warn
from gpt.generation.continuation import Sampling
from gpt.hub.names import check_package, problems_with_name
from gpt.machine.environment import SPIN_COUNT_OF_DECODING, set_up_environment

# ---------------------------------------------------------------- flags


RELATIONS = {
    "ckpt": Relations(aliases=flags.ALSO_CKPT),
    "prompt": Relations(aliases="start text input_text"),
    "prompt_file": Relations(conflicts="prompt"),
    "chat": Relations(aliases="interactive conversation cnv"),
    "system": Relations(aliases="system_prompt sys", requires="chat"),
    "compare_with": Relations(conflicts="chat"),
    "num_samples": Relations(aliases="num_return_sequences n_samples samples"),
    "max_new_tokens": Relations(aliases="max_tokens max_length n_predict num_tokens n"),
    "temperature": Relations(aliases="temp t do_sample"),
    "top_k": Relations(aliases="topk"),
    "quantize": Relations(aliases="quant"),
    "use_gpu": Relations(aliases="device cuda gpu cpu no_cuda"),
    "use_amp": Relations(aliases="amp dtype precision fp16 bf16"),
    "amp_dtype": Relations(conflicts="bf16: no-use_amp, fp16: no-use_amp"),
}


def read_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line. Raises UserError (exit 2) that lists every problem."""
    parser = flags.Parser("generate.py", "Continues a text with a trained model.", RELATIONS)
    g = parser.add_argument_group("what to continue")
    g.add_argument("--ckpt", type=flags.text(), default="out", help=flags.ANY_MODEL)
    g.add_argument("--prompt", type=flags.ValueKind(str, "text", "TEXT"), help="text to continue; empty "
                   "for a new document (default: a newline)")
    g.add_argument("--prompt_file", type=flags.text(), help="file with the text to continue; - is standard "
                   "input (default: none)")
    g.add_argument("--chat", action=flags.Switch, default=False, help="answer each line that you type, or the "
                   "prompt; a model that was not trained on conversations continues the lines")
    g.add_argument("--system", type=flags.text("TEXT"), help="what the model is told before the conversation "
                   "(default: nothing)")
    g = parser.add_argument_group("how far and how often")
    g.add_argument("--num_samples", type=flags.whole(1, 1_000_000), default=1, help="continuations of the prompt")
    g.add_argument("--batch_size", type=flags.whole(1, 1024), default=8, help="continuations generated at "
                   "once; changes no text")
    g.add_argument("--max_new_tokens", type=flags.whole(1, 1_000_000), default=256, help="new tokens; an "
                   "end-of-text token ends a text sooner")
    g.add_argument("--seed", type=flags.whole(0, 2**63 - 1), default=0, help="the same seed gives the same "
                   "text; sample i has the seed N + i")
    g = parser.add_argument_group("sampling, in this order")
    g.add_argument("--temperature", type=flags.real(0, 100), default=Sampling.temperature, help="0: always the "
                   "likeliest token; 1: the model's own probabilities")
    g.add_argument("--top_k", type=flags.whole(0), default=Sampling.top_k, help="only the k likeliest tokens; "
                   "0: all")
    g.add_argument("--top_p", type=flags.real(0, 1, excludes_low=True), default=Sampling.top_p, help="only the "
                   "likeliest tokens with this probability in total; 1: all")
    g = parser.add_argument_group("output, machine")
    g.add_argument("--json", action=flags.Switch, default=False, help="a JSON object per continuation: "
                   "text, ids, log-probabilities, reason of its end")
    g.add_argument("--compare_with", type=flags.text(), help="folder of the training tokens: finds the longest "
                   "passage of each continuation that stands there word for word (default: none)")
    g.add_argument("--use_gpu", action=flags.Switch, help="require a GPU; exit 5 when there is none "
                   "(default: a GPU when there is one)")
    g.add_argument("--use_amp", action=flags.Switch, help="16-bit weights and arithmetic (default: on with "
                   "a GPU, off on a CPU)")
    g.add_argument("--amp_dtype", type=flags.one_of("auto", "bf16", "fp16"), default="auto", help="a named "
                   "type turns --use_amp on; auto: bf16 where the hardware has it, else fp16 on a GPU")
    g.add_argument("--quantize", type=flags.one_of("none", "int8"), default="none", help="int8: 8-bit weights; "
                   "on a GPU faster only with --compile")
    g.add_argument("--compile", action=flags.Switch, default=False, help="compile the step, which takes half a "
                   "minute the first time; on a CPU for one continuation at a time")
    return parser.read(argv, check)


def check(args: argparse.Namespace) -> list[str]:
    """The problems that argparse does not see, one line each."""
    problems = problems_with_name("--ckpt", args.ckpt)
    has_prompt = args.prompt is not None or args.prompt_file is not None
    if args.chat and args.num_samples > 1 and not has_prompt:
        problems.append("--num_samples: a conversation has one answer at a time. Give --prompt or --prompt_file")
    return problems


def answer_early(argv: Sequence[str]) -> None:
    """Checks flags and packages (UserError: exit 2, 5) before torch is imported, which takes a second."""
    args = read_flags(argv)
    set_up_environment(SPIN_COUNT_OF_DECODING)
    require("torch", "numpy", "tokenizers", "safetensors")
    check_package(args.ckpt)


if __name__ == "__main__":
    guard(answer_early)

import sys
from functools import partial
from typing import Any

import torch

from gpt.checkpoint.find import read_checkpoint
from gpt.checkpoint.load import chat_template, end_ids, open_model
from gpt.common.files import cache_folder
from gpt.common.names import METADATA, TOKENIZER
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.common.terminal import print_line
from gpt.common.words import printable, several, shell_word
from gpt.generation import chat
from gpt.generation.decoder import Decoder
from gpt.generation.prompts import ModelVocabulary, read_prompt_file, without_surrogates
from gpt.generation.quoting import write_quotations
from gpt.generation.streaming import Sample, show, write_samples
from gpt.hub.download import download_flag
from gpt.machine import device
from gpt.ops.products import INT8_ROWS, fastest_kind
from gpt.tokens.corpus import Corpus, open_folder
from gpt.tokens.tokenizer import load_tokenizer, tokenizer_of

# ---------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code, 128 + a signal's number after a signal. Raises UserError."""
    args = read_flags(argv)
    sampling = Sampling(args.temperature, args.top_k, args.top_p)

    with Progress(sys.stderr) as out:
        machine = device.choose_for_inference(args.use_gpu, args.use_amp, args.amp_dtype, out.warn)
        prompt = args.prompt if args.prompt_file is None else read_prompt_file(args.prompt_file)
        args = download_flag(args, "ckpt", out)

        def load(folder: Path) -> tuple[Path, Decoder, ModelVocabulary, Any]:
            decoder = load_decoder(args, machine, folder, min(args.batch_size, args.num_samples), sampling)
            vocab_size = decoder.config.vocab_size
            tokenizer = tokenizer_of(folder, None, vocab_size)
            vocabulary = ModelVocabulary.of(tokenizer, vocab_size, end_ids(folder, vocab_size))
            return folder, decoder, vocabulary, chat_template(folder) if args.chat else None

        # If a training run deletes the folder meanwhile, the next one is loaded.
        with out.phase("loading and compiling the model" if args.compile else "loading the model"):
            folder, decoder, vocabulary, template = read_checkpoint(Path(args.ckpt), warn, load)
    corpus = None if args.compare_with is None else open_training_text(Path(args.compare_with), folder, vocabulary)
    ids_of = partial(chat.text_ids, vocabulary)
    if args.chat:
        most_prompt_ids = decoder.window - min(args.max_new_tokens, decoder.window // 2)  # leaves room for an answer
        system = without_surrogates(args.system or "")
        vocabulary, ids_of = chat.prompt_maker(vocabulary, template, folder, system, most_prompt_ids)
        if prompt is None:
            return chat.converse(decoder, ids_of, sampling, vocabulary, seed=args.seed,
                                 max_new_tokens=args.max_new_tokens, as_json=args.json)
        prompt = prompt.rstrip("\r\n")  # the newline at the end of a file is no part of a message

    text = "\n" if prompt is None else without_surrogates(prompt)
    prompt_ids = ids_of([], text)
    if len(prompt_ids) > decoder.window:
        warn(f"the prompt has {len(prompt_ids):,} tokens, the model sees the last {decoder.window:,}.")

    def sample_of(number: int) -> Sample:
        sample = Sample(number, text, prompt_ids, max_new_tokens=args.max_new_tokens, seed=args.seed + number,
                        tokenizer=vocabulary.tokenizer)
        if not args.chat:
            sample.prepend_prompt()
        return sample

    output = (lambda _text: None) if corpus and args.json else show  # JSON waits for the quotations
    # A note begins with a newline, because the text on stdout may stop within a line.
    with Signals(lambda line: print_line(f"\n{line}")) as signals:
        made = map(sample_of, range(args.num_samples))
        samples = list(made) if corpus else made
        write_samples(decoder, samples, sampling, vocabulary, args.json, signals, output)
        if corpus and (args.json or signals.number is None):
            signals.at_once = "" if args.json else "before the training text was searched"
            with Progress(sys.stderr) as out, out.phase("searching the training text"):
                write_quotations([sample for sample in samples if sample.new_ids or sample.finish_reason], corpus,
                                 vocabulary.tokenizer.decode, args.json)
    return Exit.DONE if signals.number is None else 128 + signals.number


def open_training_text(folder: Path, model_folder: Path, vocabulary: ModelVocabulary) -> Corpus:
    """Opens the training tokens in a folder of pretokenize.py.

    Raises UserError: exit 2 for a tokenizer other than the model's, exit 3 for tokens that cannot be read.
    """
    cure = ("Give the folder of the model's training tokens, or make one, and give --compare_with tokens:\n"
            f"python pretokenize.py TEXT --tokenizer_file {shell_word(model_folder)} --output_dir tokens")
    if not all((folder / name).is_file() for name in (METADATA, TOKENIZER, "train.bin")):
        raise UserError(Exit.DATA, f"--compare_with {printable(folder)} is no folder of pretokenize.py. {cure}")
    corpus = open_folder(folder)
    if load_tokenizer(folder).get_vocab() != vocabulary.tokenizer.get_vocab():
        raise UserError(Exit.FLAGS, f"--compare_with {printable(folder)}: its tokenizer differs from the model's, so "
                                    f"the same text has other tokens. {cure}")
    return corpus


def load_decoder(args: argparse.Namespace, machine: device.Machine, folder: Path, num_rows: int,
                 sampling: Sampling) -> Decoder:
    """Loads a folder's model for decoding num_rows texts at once, compiled with --compile.

    8-bit weights on a CPU decode at most INT8_ROWS texts. If the step cannot be compiled, warns and leaves
    it eager. Raises UserError: exit 4 for a folder that is no model, 5 for too little memory.
    """
    on_cpu = not machine.on_gpu
    quantized = args.quantize == "int8"
    if quantized and on_cpu:
        num_rows = min(num_rows, INT8_ROWS)  # products with more rows round differently
        if args.use_amp is False or args.amp_dtype == "fp16":
            warn("--quantize int8: on a CPU, --use_amp and --amp_dtype have no effect: it computes in bf16, "
                 "compiled in fp32.")
    reason = machine.backend.why_no_compile() if args.compile else None
    if args.compile and on_cpu and num_rows > 1:
        reason = (f"on a CPU the compiled step makes one continuation at a time, not {num_rows}. Give "
                  "--batch_size 1 to compile")
    if reason:
        warn(f"--compile: running eagerly: {reason}.")
    compiles = args.compile and not reason
    # The CPU's 8-bit product needs bf16.
    weight_dtype = torch.bfloat16 if quantized and on_cpu else machine.dtype
    # Compiled loops would convert bf16 at each use.
    dtype = torch.float32 if compiles and on_cpu else weight_dtype

    try:
        config, weights = open_model(folder)
        kind = fastest_kind(machine.device, weight_dtype, quantized, compiles)
        decoder = Decoder(config, weights, num_rows, machine.device, dtype=dtype, kind=kind,
                          weight_dtype=weight_dtype)
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        if num_rows > 1:
            cure = "Give a smaller --batch_size."
        else:
            cure = "End other programs, or take a smaller model." if quantized else "Give --quantize int8."
        raise UserError(Exit.MACHINE,
                        f"out of memory with {several(num_rows, 'continuation')} at once. {cure}") from error
    if compiles:
        compile_step(decoder, machine, sampling)
    return decoder


def compile_step(decoder: Decoder, machine: device.Machine, sampling: Sampling) -> None:
    """Compiles the decoder's step, with kernels stored for later runs; if that fails, warns and leaves it eager."""
    device.set_kernel_folder(cache_folder() / "compiled")
    try:
        device.remove_unfinished_kernels(print_line)
        decoder.compile(machine.backend.runs_ahead, sampling)
    except Exception as error:  # each version of the compiler has errors of its own
        torch.compiler.reset()  # graphs keep their memory otherwise
        machine.backend.release_memory()
        warn(f"--compile: failed, running eagerly: {device.describe_compile_error(error)}.")


if __name__ == "__main__":
    guard(main)
