"""GPT-2 Small by others' samplers and by ours, in turns: python tests/peers_generate.py [--turns 2] [--use_gpu]

Random weights, prompts of 32 ids, temperature 0.8, top-k 200: transformers' generate with its cache in fp32 and bf16,
nanoGPT's generate (--nanogpt DIR, with its model.py), and ours as generate.py lays them out: fp32, bf16, int8, and
compiled. One prompt and eight at once; new tokens a second, the prompt's pass included. Figures are in LOG.md.

With --first_token TOKENIZER (a tokenizer.json, GPT-2's say) instead the seconds from the shell to generate.py's first
new token, beside importing torch and reading the weights.
"""

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
from pathlib import Path

import torch

import generate
from generation import sampling
from generation.sampling import Continuation, Sampling

sys.path.insert(0, str(Path(__file__).parent.parent))




WHERE = "cuda" if "--use_gpu" in sys.argv else "cpu"
WAYS = {"ours fp32": [], "ours bf16": ["--use_amp"], "ours int8": ["--quantize", "int8"],
        "ours fp32, compiled": ["--compile"], "ours bf16, compiled": ["--use_amp", "--compile"],
        "ours int8, compiled": ["--quantize", "int8", "--compile"]}


def ours(folder: str, flags: list[str], prompts: list[list[int]], num_tokens: int):
    """Builds a sampler as generate.py does; returns a function that runs it once."""
    args = generate.read_flags(["--ckpt", folder, "--use_gpu" if WHERE == "cuda" else "--no-use_gpu", *flags])
    decoder = generate.load(args, Path(folder), len(prompts))

    def run() -> None:
        texts = [Continuation(prompt, num_tokens, seed) for seed, prompt in enumerate(prompts)]
        for _ in sampling.run(decoder, texts, Sampling(0.8, 200), None):
            pass

    return run


def theirs(net, prompts: list[list[int]], num_tokens: int):
    """The same by transformers' generate."""
    ids = torch.tensor(prompts, device=WHERE)

    def run() -> None:
        with torch.inference_mode():
            net.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=0.8, top_k=200,
                         max_new_tokens=num_tokens, pad_token_id=0)

    return run


def nanogpts(folder: str, prompts: list[list[int]], num_tokens: int):
    """The same by nanoGPT's generate, which has no cache."""
    spec = importlib.util.spec_from_file_location("nanogpt", Path(folder) / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["nanogpt"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with contextlib.redirect_stdout(io.StringIO()):
        net = module.GPT(module.GPTConfig(vocab_size=50257, dropout=0.0)).eval().to(WHERE)

    def run() -> None:
        with torch.no_grad():
            net.generate(torch.tensor(prompts, device=WHERE), num_tokens, temperature=0.8, top_k=200)

    return run


def first_token(folder: str, tokenizer_file: str, turns: int) -> None:
    """Seconds from the start of a process to the first byte after the prompt, in turns."""
    reading = (f"import torch; from safetensors.torch import load_file; weights = load_file({folder!r} + "
               "'/model.safetensors'); print('Once', sum(float(w.sum()) for w in weights.values()), flush=True)")
    command = [str(Path(generate.__file__)), "--ckpt", folder, "--tokenizer_file", tokenizer_file, "--prompt", "Once",
               "--max_new_tokens", "2", "--use_gpu" if WHERE == "cuda" else "--no-use_gpu"]
    ways = {"import torch, read the weights": ["-c", reading],
            **{name: [*command, *flags] for name, flags in WAYS.items() if "--compile" not in flags}}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # both keep what Python has compiled
    for turn in range(turns + 1):
        for name, words in ways.items():
            started, shown = time.perf_counter(), 0
            with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  env=environment) as child:
                assert child.stdout is not None
                while shown <= len("Once"):
                    shown += len(os.read(child.stdout.fileno(), 100)) or 100
                taken = time.perf_counter() - started
                child.stdout.read()
            assert child.returncode == 0, name
            seconds[name] += [taken] if turn else []  # the first warms up
    base = statistics.median(seconds["import torch, read the weights"])
    for name, found in seconds.items():
        print(f"{name:<32}{statistics.median(found):>6.2f} s, {statistics.median(found) / base:.2f}x, {turns} turns")


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--use_gpu", action="store_true")
    parser.add_argument("--nanogpt")
    parser.add_argument("--first_token", metavar="TOKENIZER")
    args = parser.parse_args()
    torch.manual_seed(0)
    prompts = torch.randint(50257, (8, 32)).tolist()
    net = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    with tempfile.TemporaryDirectory() as folder:
        net.save_pretrained(folder)
        if args.first_token:
            first_token(folder, args.first_token, args.turns)
            return
        half = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.bfloat16).eval()
        for found in (net, half):
            found.to(WHERE)  # type: ignore[arg-type]
            found.generation_config.eos_token_id = None
        ways = {}
        for num in (1, 8):
            chosen = prompts[:num]
            ways[f"transformers fp32, {num}"] = theirs(net, chosen, args.tokens), num
            ways[f"transformers bf16, {num}"] = theirs(half, chosen, args.tokens), num
            for name, flags in WAYS.items():
                if num == 1 or WHERE == "cuda" or "--compile" not in flags:  # on a CPU the compiled step serves one row
                    ways[f"{name}, {num}"] = ours(folder, flags, chosen, args.tokens), num
        if args.nanogpt:
            ways["nanoGPT fp32, 1"] = nanogpts(args.nanogpt, prompts[:1], args.tokens), 1
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(args.turns + 1):
            for name, (run, num) in ways.items():
                if turn and name.startswith("nanoGPT") and rates[name]:
                    continue  # a minute each
                started = time.perf_counter()
                run()
                if WHERE == "cuda":
                    torch.cuda.synchronize()
                if turn or name.startswith("nanoGPT"):  # the first warms up
                    rates[name].append(num * args.tokens / (time.perf_counter() - started))
    for name, found in rates.items():
        print(f"{name:<28}{statistics.median(found):>8.1f} tok/s, median of {len(found)}")


if __name__ == "__main__":
    main()
