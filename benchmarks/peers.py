"""Ours beside one named other, in turns: nanoGPT's train.py, transformers' generate."""

import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import data
import generate
from benchmarks.ladder import LEARNING_RATE, TUNED, Bench, RungFailed, ladder, problem_of, run_rung
from common.errors import Exit, optional
from common.names import METADATA
from generation.continuation import Continuation, Sampling
from generation.sampling import decode
from model import SIZES
from tokens.corpus import open_corpus

TURNS = 3
PROMPT_TOKENS, NEW_TOKENS = 32, 256
MOST_TOKENS = 20_000_000  # of a folder that another program is given
OUR_DECODING = {"ours fp32": ["--no-use_amp"], "ours bf16": ["--use_amp"], "ours int8": ["--quantize", "int8"],
                "ours bf16, compiled": ["--use_amp", "--compile"]}
# nanoGPT's train.py reads its configurator.py from the current folder, and all its arguments in there.
IN_ITS_FOLDER = ("import os, runpy, sys; os.chdir(sys.argv.pop(1)); sys.path.insert(0, os.getcwd()); "
                 "runpy.run_path('train.py', run_name='__main__')")


def say_figures(bench: Bench, unit: str, found: Mapping[str, float]) -> None:
    """A line for each figure, with its speed beside that of the first one, the peer's."""
    bench.found.update({"unit": unit, "figures": dict(found)})
    first = next(iter(found.values()))
    for name, figure in found.items():
        ratio = first / figure if unit == "seconds" else figure / first
        bench.out.say(f"{name:<40}{figure:>14,.6g} {unit}{ratio:>8.2f}x")


def in_turns(bench: Bench, ways: Mapping[str, Callable[[], float | None]]) -> dict[str, float]:
    """Seconds that each takes, or that it returns: the median of the turns after a first one, which warms up.

    Raises Stopped at a signal.
    """
    seconds = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, way in ways.items():
            bench.signals.look()
            with bench.out.phase(f"turn {turn}, {name}"):
                started = time.perf_counter()
                told = way()
                seconds[name].append(time.perf_counter() - started if told is None else told)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


# ---------------------------------------------------------------- a step, beside nanoGPT's


def time_step(bench: Bench, peer_dir: str) -> None:
    """Seconds of a step of nanoGPT's train.py as it stands, and of our best rung, in the same precision."""
    shape, on_gpu = bench.shape, bench.machine.on_gpu
    best = ladder(shape, bench.machine)[TUNED - 1]
    ours = replace(best, flags={**best.flags, "use_amp": on_gpu})  # on a CPU nanoGPT knows fp32 alone
    folder = (bench.folder / "nanogpt").resolve()
    folder.mkdir()
    stream = open_corpus(Path(bench.data_dir), None, Path(bench.data_dir) / METADATA, None).train
    tokens = data.Tokens(stream, "mmap", torch.device("cpu")).read(0, min(stream.length, MOST_TOKENS))
    for name in ("train.bin", "val.bin"):
        tokens.astype("<u2").tofile(folder / name)
    # The dict {"vocab_size": N} as nanoGPT's train.py reads it, in pickle's protocol 0.
    (folder / "meta.pkl").write_text(f"(S'vocab_size'\nI{shape.vocab_size}\nd.")
    n_layer, n_head, n_embd = SIZES[shape.model_size]
    precision = {"bf16": "bfloat16", "fp16": "float16"}.get(bench.machine.half * on_gpu, "float32")
    flags = {"dataset": folder, "out_dir": folder / "out", "eval_iters": 1, "eval_interval": 10**9, "log_interval": 1,
             "gradient_accumulation_steps": 1, "batch_size": shape.batch_size, "block_size": shape.seq_length,
             "n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, "bias": True, "decay_lr": False,
             "learning_rate": LEARNING_RATE, "max_iters": bench.warmup + bench.steps - 1,
             "device": "cuda" if on_gpu else "cpu", "dtype": precision}

    def theirs() -> float:
        answer = bench.run(["-c", IN_ITS_FOLDER, peer_dir, *(f"--{name}={value}" for name, value in flags.items())])
        steps = re.findall(r"iter (\d+): .* time ([\d.]+)ms", answer.printed)
        if problem := problem_of(answer):
            raise RungFailed(Exit.MACHINE, f"nanoGPT: {problem}")
        return statistics.median(float(ms) / 1e3 for step, ms in steps if int(step) >= bench.warmup)

    say_figures(bench, "seconds", in_turns(bench, {
        "nanoGPT": theirs, "ours": lambda: run_rung(bench, ours).ms_median / 1e3}))


# ---------------------------------------------------------------- decoding, beside transformers'


def time_decode(bench: Bench) -> None:
    """New tokens a second of GPT-2 Small with random weights, by transformers' generate and as generate.py decodes.

    Prompts have 32 ids, one and eight at once; the pass over the prompt is included.
    """
    transformers = optional("transformers", "--peer decode")
    on_gpu, place = bench.machine.on_gpu, bench.folder / "gpt2"
    where, sampling = "cuda" if on_gpu else "cpu", Sampling(temperature=0.8, top_k=200)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    model.save_pretrained(place)
    prompts = torch.randint(model.config.vocab_size, (8, PROMPT_TOKENS)).tolist()
    models = {"transformers fp32": model.to(where),
              "transformers bf16": transformers.GPT2LMHeadModel.from_pretrained(place, dtype=torch.bfloat16).to(where)}

    def theirs(model: Any, num: int) -> None:
        ids = torch.tensor(prompts[:num], device=where)
        model.generation_config.eos_token_id = None
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=0.8, top_k=200,
                           max_new_tokens=NEW_TOKENS, pad_token_id=0).tolist()  # which waits for the GPU

    def ours(decoder: Any, num: int) -> None:
        texts = [Continuation(prompt, NEW_TOKENS, seed) for seed, prompt in enumerate(prompts[:num])]
        for _ in decode(decoder, texts, sampling, ()):
            pass

    ways = {}
    for num in (1, 8):
        for name, model in models.items():
            ways[f"{name}, {num}"] = partial(theirs, model, num)
        for name, flags in OUR_DECODING.items():
            if num == 1 or on_gpu or "--compile" not in flags:  # on a CPU the compiled step serves one row
                args = generate.read_flags(["--ckpt", str(place), "--use_gpu" if on_gpu else "--no-use_gpu", *flags])
                decoder = generate.load_decoder(args, place, num)
                ways[f"{name}, {num}"] = partial(ours, decoder, num)
    say_figures(bench, "tokens/s", {name: int(name.rpartition(" ")[2]) * NEW_TOKENS / taken
                                    for name, taken in in_turns(bench, ways).items()})
