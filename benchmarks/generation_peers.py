"""Generating with a model of GPT-2 Small's size: other projects' samplers and ours, in turns. Run by hand.

    python -m benchmarks.generation_peers --turns 2 [--use_gpu] [--nanogpt DIR]
    python -m benchmarks.generation_peers --turns 3 --arch qwen3
    python -m benchmarks.generation_peers --first_token tokenizer.json

The weights are random, prompts have 32 ids, the temperature is 0.8 and top_k 200. Compared are the generate() of
transformers with its cache, in fp32 and bf16, that of nanoGPT (DIR holds its model.py), and ours as generate.py lays
the weights out: one prompt and eight at once; new tokens per second, the pass over the prompt included. Figures are in
LOG.md. With --first_token it measures instead the seconds from the shell to the first new token of generate.py, beside
those for importing torch and reading the weights.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import generate
from architectures.table import ARCHITECTURES, DEFAULT
from common.errors import optional
from generation.continuation import Continuation, Sampling
from generation.sampling import decode
from model import SIZES

FLAGS = {
    "ours fp32": ["--no-use_amp"],
    "ours bf16": ["--use_amp"],
    "ours int8": ["--quantize", "int8"],
    "ours fp32, compiled": ["--no-use_amp", "--compile"],
    "ours bf16, compiled": ["--use_amp", "--compile"],
    "ours int8, compiled": ["--quantize", "int8", "--compile"],
}
GPU_FLAGS = {
    "ours bf16, no graphs": ["--use_amp", "--no-cuda_graphs"],
    "ours bf16, compiled, no graphs": ["--use_amp", "--compile", "--no-cuda_graphs"],
}
VOCAB_SIZE = 50257
PROMPT_TOKENS = 32
SAMPLING = Sampling(temperature=0.8, top_k=200)
READING = """
import torch
from safetensors.torch import load_file
weights = load_file("FOLDER/model.safetensors")
print("Once", sum(float(weight.sum()) for weight in weights.values()), flush=True)
"""

Sampler = Callable[[], None]  # makes new tokens for all its prompts, once


# ---------------------------------------------------------------- samplers


def our_sampler(folder: str, flags: list[str], prompts: list[list[int]], num_tokens: int, device: str) -> Sampler:
    """Ours, built as generate.py builds it."""
    where = "--use_gpu" if device == "cuda" else "--no-use_gpu"
    decoder = generate.load_decoder(generate.read_flags(["--ckpt", folder, where, *flags]), Path(folder), len(prompts))

    def run() -> None:
        texts = [Continuation(prompt, num_tokens, seed) for seed, prompt in enumerate(prompts)]
        for _ in decode(decoder, texts, SAMPLING, ()):
            pass

    return run


def transformers_sampler(model: Any, prompts: list[list[int]], num_tokens: int, device: str) -> Sampler:
    """transformers' generate, with its cache."""
    ids = torch.tensor(prompts, device=device)

    def run() -> None:
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=SAMPLING.temperature,
                           top_k=SAMPLING.top_k, max_new_tokens=num_tokens, pad_token_id=0)

    return run


def nanogpt_sampler(folder: str, prompts: list[list[int]], num_tokens: int, device: str) -> Sampler:
    """nanoGPT's generate, which has no cache."""
    spec = importlib.util.spec_from_file_location("nanogpt", Path(folder) / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["nanogpt"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with contextlib.redirect_stdout(io.StringIO()):
        model = module.GPT(module.GPTConfig(vocab_size=VOCAB_SIZE, dropout=0.0)).eval().to(device)

    def run() -> None:
        with torch.no_grad():
            model.generate(torch.tensor(prompts, device=device), num_tokens, temperature=SAMPLING.temperature,
                           top_k=SAMPLING.top_k)

    return run


def all_samplers(folder: str, models: dict[str, Any], nanogpt: str | None, num_tokens: int, device: str,
                 only: Sequence[str]) -> dict[str, tuple[Sampler, int]]:
    """Every sampler by its name, with the number of prompts that it continues at once; only those, if any is named."""
    prompts = torch.randint(VOCAB_SIZE, (8, PROMPT_TOKENS)).tolist()
    found = {}
    for num in (1, 8):
        for name, model in models.items():
            if is_chosen(f"{name}, {num}", only):
                found[f"{name}, {num}"] = transformers_sampler(model, prompts[:num], num_tokens, device), num
        for name, flags in (FLAGS | GPU_FLAGS if device == "cuda" else FLAGS).items():
            fits = num == 1 or device == "cuda" or "--compile" not in flags  # on a CPU the compiled step serves one row
            if fits and is_chosen(f"{name}, {num}", only):
                found[f"{name}, {num}"] = our_sampler(folder, flags, prompts[:num], num_tokens, device), num
    if nanogpt:
        found["nanoGPT fp32, 1"] = nanogpt_sampler(nanogpt, prompts[:1], num_tokens, device), 1
    return found


def is_chosen(name: str, only: Sequence[str]) -> bool:
    """True if the sampler is to run: its name is among those given, or none is."""
    return not only or name in only


# ---------------------------------------------------------------- measuring


def compare_speed(samplers: dict[str, tuple[Sampler, int]], num_tokens: int, num_turns: int, device: str) -> None:
    """Runs the samplers in turns, the first of which warms up, and prints the median of new tokens per second."""
    rates: dict[str, list[float]] = {name: [] for name in samplers}
    for turn in range(num_turns + 1):
        for name, (run, num_prompts) in samplers.items():
            runs_once = name.startswith("nanoGPT")  # it takes a minute, and has nothing to warm up
            if turn and runs_once:
                continue
            started = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn or runs_once:
                rates[name].append(num_prompts * num_tokens / (time.perf_counter() - started))
    for name, found in rates.items():
        print(f"{name:<28}{statistics.median(found):>8.1f} tok/s, median of {len(found)}")


def compare_first_token(folder: str, tokenizer_file: str, num_turns: int, device: str) -> None:
    """Prints the seconds from the start of a process to the first byte after the prompt, in turns."""
    command = [str(Path(generate.__file__)), "--ckpt", folder, "--tokenizer_file", tokenizer_file, "--prompt", "Once",
               "--max_new_tokens", "2", "--use_gpu" if device == "cuda" else "--no-use_gpu"]
    base = "import torch, read the weights"
    processes = {base: ["-c", READING.replace("FOLDER", folder)]}
    processes |= {name: [*command, *flags] for name, flags in FLAGS.items() if "--compile" not in flags}
    seconds: dict[str, list[float]] = {name: [] for name in processes}
    for turn in range(num_turns + 1):
        for name, words in processes.items():
            taken = seconds_to_first_token(words)
            if turn:  # the first turn warms up
                seconds[name].append(taken)

    unit = statistics.median(seconds[base])
    for name, found in seconds.items():
        print(f"{name:<32}{statistics.median(found):>6.2f} s, {statistics.median(found) / unit:.2f}x, "
              f"{num_turns} turns")


def seconds_to_first_token(words: list[str]) -> float:
    """Starts Python with these words and measures until more than the prompt is written."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # compiled modules are kept, as a user's are
    started, num_shown = time.perf_counter(), 0
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          env=environment) as child:
        assert child.stdout is not None
        while num_shown <= len("Once"):
            num_shown += len(os.read(child.stdout.fileno(), 100)) or 100
        taken = time.perf_counter() - started
        child.stdout.read()
    assert child.returncode == 0, words
    return taken


def main() -> None:
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--use_gpu", action="store_true")
    parser.add_argument("--arch", choices=ARCHITECTURES, default=DEFAULT)
    parser.add_argument("--nanogpt", metavar="DIR", help="gpt2 only")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=(), help="samplers, as 'ours bf16, 1'")
    parser.add_argument("--first_token", metavar="TOKENIZER")
    chosen = parser.parse_args()
    if chosen.nanogpt and chosen.arch != DEFAULT:
        parser.error("--nanogpt: nanoGPT has gpt2 alone")
    device = "cuda" if chosen.use_gpu else "cpu"

    transformers = optional("transformers", "benchmarks/generation_peers.py")
    torch.manual_seed(0)
    config = ARCHITECTURES[chosen.arch].sized(SIZES["gpt2_small"], VOCAB_SIZE, 1024)
    fields = ARCHITECTURES[chosen.arch].to_hf_config(config, None)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**fields)).eval()
    print(f"{chosen.arch}, {config.num_parameters:,} parameters, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        if chosen.first_token:
            compare_first_token(folder, chosen.first_token, chosen.turns, device)
            return
        half = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        models = {"transformers fp32": model.to(device), "transformers bf16": half.to(device)}
        for each in models.values():
            each.generation_config.eos_token_id = None
        samplers = all_samplers(folder, models, chosen.nanogpt, chosen.tokens, device, chosen.only)
        compare_speed(samplers, chosen.tokens, chosen.turns, device)


if __name__ == "__main__":
    main()
