"""Ours beside one named other: nanoGPT's step and batches, transformers' decoding, tiktoken's ids, a bare save_file.

time_beside() runs in bench.py itself; what it asks for runs in children. B batch, T time.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.ladder import (
    ANY_PRECISION,
    LEARNING_RATE,
    SEED,
    TUNED,
    Bench,
    Shape,
    Timed,
    chosen,
    loss_difference,
    problem_of,
    run_rung,
    timed_of,
)
from common.children import PROGRAM
from common.errors import Exit, UserError
from common.words import size

TURNS = 3
PROMPT_TOKENS, NEW_TOKENS = 32, 256
MOST_TOKENS = 20_000_000  # of the text that is tokenized
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"  # GPT-2's, for tiktoken
OUR_DECODING = {"ours fp32": ["--no-use_amp"], "ours bf16": ["--use_amp"], "ours int8": ["--quantize", "int8"],
                "ours bf16, compiled": ["--use_amp", "--compile"]}


def time_beside(bench: Bench, peer: str, peer_dir: str | None) -> bool:
    """Times ours and the peer's in turns, and prints it; False if their losses differ by more than rounding."""
    if peer == "step":
        return compare_steps(bench, str(peer_dir))
    if peer == "tokenize":
        say_figures(bench, "seconds", compare_tokenizing(bench))
        return True
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as here, bench.out.phase(f"{peer}, in turns"):
        # The disk of the current folder is the one on which a run would save.
        folder = here if peer == "saving" else str(bench.children.folder)
        found = bench.children.ask(peer, folder=folder, data_dir=bench.data_dir, shape=asdict(bench.shape),
                                   on_gpu=bench.machine.on_gpu)
    say_figures(bench, "tokens/s" if peer == "decode" else "seconds", found)
    return True


def say_figures(bench: Bench, unit: str, found: Mapping[str, float]) -> None:
    """A line for each figure, with its speed beside that of the first one, the peer's."""
    bench.found.update({"unit": unit, "figures": dict(found)})
    first = next(iter(found.values()))
    for name, figure in found.items():
        ratio = first / figure if unit == "seconds" else figure / first
        bench.out.say(f"{name:<40}{figure:>14,.6g} {unit}{ratio:>8.2f}x")


def in_turns(ways: Mapping[str, Callable[[], object]], turns: int, settle: Callable[[], object] = lambda: None,
             ) -> dict[str, float]:
    """Seconds that each takes, the median of the turns after a first one, which warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns + 1):
        for name, way in ways.items():
            settle()
            started = time.perf_counter()
            way()
            settle()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


# ---------------------------------------------------------------- a step, beside nanoGPT's


def compare_steps(bench: Bench, peer_dir: str) -> bool:
    """Our best rung and nanoGPT's model, each in its own process, on the same batches and from the same weights."""
    best = [rung for rung in chosen(bench, None) if not rung.why_not and rung.number < TUNED][-1]
    ours, theirs = f"ours, {best.precision}", "nanoGPT"
    turns: dict[str, list[Timed]] = {theirs: [], ours: []}
    for turn in range(1, TURNS + 1):
        with bench.out.phase(f"turn {turn}, ours"):
            turns[ours].append(run_rung(bench, best))
        with bench.out.phase(f"turn {turn}, {theirs}"):
            run = bench.children.ask(
                "step", peer_dir=peer_dir, data_dir=bench.data_dir, shape=asdict(bench.shape),
                num_steps=bench.warmup + bench.steps, every=best.flags["log_interval"], precision=best.precision,
                on_gpu=bench.machine.on_gpu)
        turns[theirs].append(timed_of(bench, run["seconds"][bench.warmup:], run["peak_memory_bytes"],
                                      dict(enumerate(run["losses"], 1))))

    say_figures(bench, "seconds", {name: statistics.median(one.ms_median for one in of) / 1e3
                                   for name, of in turns.items()})
    memory = {name: statistics.median(one.peak_memory_bytes for one in of) for name, of in turns.items()}
    difference = loss_difference(turns[ours][0].losses, turns[theirs][0].losses)
    bench.found.update(peak_memory_bytes=memory, loss_difference=difference)
    bench.out.say(f"memory {' and '.join(map(size, memory.values()))}; losses of the same batches differ by "
                  f"{difference:.0e} at most; medians of {TURNS} turns")
    return difference <= ANY_PRECISION["bf16"]


def time_step(peer_dir: str, data_dir: str, shape: dict[str, Any], num_steps: int, every: int, precision: str,
         on_gpu: bool) -> dict[str, Any]:
    """Trains nanoGPT's model, compiled, and measures the seconds of every step, its loss, and the memory.

    The device is waited for after the first step, and then after every so many: as often as our run waits for it.
    """
    import torch

    from machine import device
    from machine.memory import forget_peak, peak_memory
    from machine.timing import synchronize

    machine = device.choose(on_gpu, precision in ("bf16", "fp16"), "auto", True)
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    batches, config, weights = _ours(Path(data_dir), Shape(**shape), machine.device)

    nanogpt = load_module("nanogpt", Path(peer_dir) / "model.py")
    net = nanogpt.GPT(nanogpt.GPTConfig(config.seq_length, config.vocab_size, config.n_layer, config.n_head,
                                        config.n_embd, 0.0, True))
    if not config.tie_weights:
        net.lm_head.weight = torch.nn.Parameter(net.lm_head.weight.detach().clone())
    net.load_state_dict(weights)
    net.to(machine.device)
    optimizer = net.configure_optimizers(0.1, LEARNING_RATE, (0.9, 0.95), machine.device.type)
    compiled = torch.compile(net)
    scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.precision == "fp16")

    seconds: list[float] = []
    losses: list[float] = []
    unread: list[torch.Tensor] = []
    lap_began = time.perf_counter()
    for number in range(num_steps):
        inputs_BT, targets_BT = (ids_BT.long() for ids_BT in batches.get(number * batches.batch_size, 0))
        with machine.autocast():
            loss = compiled(inputs_BT, targets_BT)[1]
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

        unread.append(loss.detach())
        if number == 0 or (number + 1) % every == 0 or number + 1 == num_steps:
            losses += torch.stack(unread).tolist()
            synchronize(machine)
            seconds += [(time.perf_counter() - lap_began) / len(unread)] * len(unread)
            unread.clear()
            if number == 0:
                forget_peak(machine)  # what the compiler tried out, as train.py does
            lap_began = time.perf_counter()
    return {"seconds": seconds, "losses": losses, "peak_memory_bytes": peak_memory(machine)}


def _ours(data_dir: Path, shape: Shape, where: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The batches that train.py would train on, the config of its model, and the weights that it starts with.

    The weights have GPT-2's names, and no rows that pad the vocabulary.
    """
    import torch

    import data
    from model import GPT, SIZES, GPTConfig
    from tokens.corpus import open_corpus

    corpus = open_corpus(data_dir, None, data_dir / "metadata.json", None)
    windows = data.CorpusWindows(corpus.train, "ram", shape.seq_length, SEED, where)
    config = GPTConfig(corpus.vocab_size, shape.seq_length, *SIZES[shape.model_size], tie_weights=shape.tie_weights)
    torch.manual_seed(SEED)
    weights = {name: tensor[:config.vocab_size] if "wte" in name or "lm_head" in name else tensor
               for name, tensor in GPT.create(config).state_dict().items()}
    weights.setdefault("lm_head.weight", weights["transformer.wte.weight"])
    return data.Batches(windows, shape.batch_size, where), config, weights


def load_module(name: str, path: Path) -> ModuleType:
    """The module in a file outside the program; ours called model is imported already."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- decoding, beside transformers'


def time_decode(folder: str, on_gpu: bool, **_: Any) -> dict[str, float]:
    """New tokens a second of GPT-2 Small with random weights, by transformers' generate and as generate.py decodes.

    Prompts have 32 ids, one and eight at once; the pass over the prompt is included.
    """
    import torch
    import transformers

    import generate
    from generation.continuation import Continuation, Sampling
    from generation.sampling import decode

    where, place, sampling = "cuda" if on_gpu else "cpu", Path(folder) / "gpt2", Sampling(temperature=0.8, top_k=200)
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
                           max_new_tokens=NEW_TOKENS, pad_token_id=0)

    def ours(decoder: Any, num: int) -> None:
        texts = [Continuation(prompt, NEW_TOKENS, seed) for seed, prompt in enumerate(prompts[:num])]
        for _ in decode(decoder, texts, sampling, ()):
            pass

    ways: dict[str, Callable[[], None]] = {}
    for num in (1, 8):
        for name, model in models.items():
            ways[f"{name}, {num}"] = lambda model=model, num=num: theirs(model, num)
        for name, flags in OUR_DECODING.items():
            if num == 1 or on_gpu or "--compile" not in flags:  # on a CPU the compiled step serves one row
                args = generate.read_flags(["--ckpt", str(place), "--use_gpu" if on_gpu else "--no-use_gpu", *flags])
                decoder = generate.load_decoder(args, place, num)
                ways[f"{name}, {num}"] = lambda decoder=decoder, num=num: ours(decoder, num)
    seconds = in_turns(ways, TURNS, torch.cuda.synchronize if on_gpu else lambda: None)
    return {name: int(name.rpartition(" ")[2]) * NEW_TOKENS / taken for name, taken in seconds.items()}


# ---------------------------------------------------------------- tokenizing, beside nanoGPT's way with tiktoken


def compare_tokenizing(bench: Bench) -> dict[str, float]:
    """Seconds of whole commands, from a text file to a finished .bin, with the tokenizer and the text of --data_dir."""
    tokenizer, text, out = (Path(bench.data_dir) / "tokenizer.json", bench.children.folder / "text.txt",
                            bench.children.folder / "tokens")
    bench.children.ask("text", data_dir=bench.data_dir, tokenizer=str(tokenizer), out=str(text))
    request = json.dumps({"text": str(text), "tokenizer": str(tokenizer), "out": str(out)})
    commands = {"nanoGPT's prepare.py, tiktoken": [PROGRAM / "bench.py", "tiktoken", request],
                "ours": [PROGRAM / "pretokenize.py", text, "--tokenizer_file", tokenizer, "--output_dir", out]}

    def run(name: str) -> None:
        with bench.out.phase(name):
            answer = bench.children.run(list(map(str, commands[name])))
        if problem := problem_of(answer):
            raise UserError(Exit.DATA if answer.code == Exit.DATA else Exit.MACHINE, f"{name}: {problem}")
        shutil.rmtree(out, ignore_errors=True)

    return in_turns({name: lambda name=name: run(name) for name in commands}, TURNS)


def write_text(data_dir: str, tokenizer: str, out: str) -> dict[str, Any]:
    """The text of the first tokens of a folder, in a file."""
    import numpy as np
    import torch
    from tokenizers import Tokenizer

    import data
    from tokens.corpus import open_corpus

    stream = open_corpus(Path(data_dir), None, Path(data_dir) / "metadata.json", None).train
    ids = data.Tokens(stream, "mmap", torch.device("cpu")).at(np.arange(min(stream.length, MOST_TOKENS)))
    Path(out).write_text(Tokenizer.from_file(tokenizer).decode(ids.tolist()), encoding="utf-8")
    return {}


def by_tiktoken(text: str, tokenizer: str, out: str) -> dict[str, Any]:
    """nanoGPT's data/shakespeare/prepare.py: the text in one string, its ids by tiktoken, uint16."""
    import numpy as np

    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    byte_of = {chr(byte) if byte in plain else chr(next(others)): byte for byte in range(256)}
    vocab = json.loads(Path(tokenizer).read_text(encoding="utf-8"))["model"]["vocab"]
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in vocab.items() if set(token) <= byte_of.keys()}
    encoding = importlib.import_module("tiktoken").Encoding("ours", pat_str=PATTERN, mergeable_ranks=ranks,
                                                            special_tokens={})
    ids = encoding.encode_ordinary(Path(text).read_text(encoding="utf-8"))
    Path(out).mkdir()
    np.array(ids, dtype=np.uint16).tofile(Path(out) / "train.bin")
    return {}


# ---------------------------------------------------------------- batches and saving


def time_loader(data_dir: str, num_batches: int = 256, **_: Any) -> dict[str, float]:
    """Seconds of a batch of 64 x 512 on the CPU: by nanoGPT's get_batch, and ours from RAM and from a warm map."""
    import numpy as np
    import torch

    import data
    from machine import device
    from tokens.corpus import open_corpus
    from tokens.stream import DTYPES

    B, T = 64, 512
    device.set_up(device.choose(False, None, "auto", False), True, Path())  # as train.py does, for all three
    folder, cpu = Path(data_dir), torch.device("cpu")
    stream = open_corpus(folder, None, folder / "metadata.json", None).train
    part = stream.parts[0]

    def get_batch(_: int) -> None:
        """nanoGPT's: the map opened again, random starts, a slice and a widening for each row."""
        tokens = np.memmap(part.path, dtype=DTYPES[part.dtype], mode="r", offset=part.offset_bytes)
        starts = torch.randint(len(tokens) - T, (B,))
        for shift in (0, 1):
            torch.stack([torch.from_numpy(tokens[i + shift:i + shift + T].astype(np.int64)) for i in starts])

    ways: dict[str, Callable[[int], object]] = {"nanoGPT's get_batch": get_batch}
    for where in ("ram", "mmap"):
        batches = data.Batches(data.CorpusWindows(stream, where, T, SEED, cpu), B, cpu)
        ways[f"ours, {where}"] = lambda i, batches=batches: batches.get(i * B, 0)
    seconds = in_turns({name: lambda way=way: [way(i) for i in range(num_batches)] for name, way in ways.items()}, 9)
    return {name: taken / num_batches for name, taken in seconds.items()}


def time_saving(folder: str, shape: dict[str, Any], on_gpu: bool, **_: Any) -> dict[str, float]:
    """Seconds of a checkpoint's parts, beside safetensors' save_file of the same tensors, which checks nothing."""
    import torch
    from safetensors.torch import save_file

    from checkpoint.contents import Tensors, tensor_files, text_files
    from checkpoint.save import Snapshot, save
    from machine import device
    from model import GPT, SIZES, GPTConfig

    machine = device.choose(on_gpu, None, "auto", False)
    device.set_up(machine, True, Path())
    what, place = Shape(**shape), Path(folder)
    model = GPT.create(GPTConfig(what.vocab_size, what.seq_length, *SIZES[what.model_size],
                                 tie_weights=what.tie_weights), machine.device)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    tensors, snapshot = Tensors.of(model, optimizer), Snapshot()
    copies = snapshot.take(tensors)

    def write() -> None:
        shutil.rmtree(place / "checkpoint-1", ignore_errors=True)
        save(place, 1, tensor_files(model.config, copies), text_files(1, model.config, {}, None, None, ""))

    return in_turns({
        "safetensors' save_file": lambda: save_file({**copies.training, **copies.model}, place / "theirs"),
        "ours, training waits: the copy": lambda: snapshot.take(tensors),
        "ours, behind it: written, read back": write,
    }, TURNS, os.sync)
