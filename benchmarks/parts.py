"""What bench.py has its children do: look at the machine and the tokens, and time a part of ours or another's.

B batch, T time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

import data
import generate
import train
from benchmarks.ladder import LEARNING_RATE, SEED, Shape
from benchmarks.peers import TURNS, in_turns
from checkpoint.contents import Tensors, tensor_files, text_files
from checkpoint.save import Snapshot, save
from common.errors import Exit, UserError, optional
from common.files import write_whole
from common.words import printable, several
from generation.continuation import Continuation, Sampling
from generation.sampling import decode
from machine import device
from machine.backends import NVIDIA
from model import GPT, SIZES, GPTConfig
from planning.inputs import find_corpus
from tokens.corpus import Corpus, open_corpus
from tokens.layouts import native_dtype
from tokens.metadata import METADATA_FORMAT, METADATA_VERSION
from tokens.stream import DTYPES

PROMPT_TOKENS, NEW_TOKENS = 32, 256
MOST_TOKENS = 20_000_000  # of the text that is tokenized
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"  # GPT-2's, for tiktoken
OUR_DECODING = {"ours fp32": ["--no-use_amp"], "ours bf16": ["--use_amp"], "ours int8": ["--quantize", "int8"],
                "ours bf16, compiled": ["--use_amp", "--compile"]}


def prepare(folder: str, data_dir: str | None, shape: dict[str, Any], num_tokens: int,
            use_gpu: bool | None) -> dict[str, Any]:
    """The fields of the Machine, ids and parameters of the model; without data_dir tokens are made up in the folder.

    Raises UserError: exit 3 for tokens that no run could train on, exit 5 if use_gpu is True and there is none.
    """
    if use_gpu and (reason := NVIDIA.why_not()):
        raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or drop the flag to time the CPU.")
    vocab_size, seq_length = shape["vocab_size"], shape["seq_length"]
    if data_dir is None:
        synthesise(Path(folder), vocab_size, num_tokens)
    else:
        corpus = find_corpus(train.read_flags(["--data_dir", data_dir]).data)
        vocab_size = corpus.vocab_size
        if corpus.train.length <= seq_length:
            raise UserError(Exit.DATA, f"--data_dir {printable(data_dir)}: its {several(corpus.train.length, 'token')} "
                                       f"are too few for a sequence of T {seq_length:,}. Give a --shape with fewer, "
                                       "or more text to pretokenize.py.")
    config = GPTConfig(vocab_size, seq_length, *SIZES[shape["model_size"]])
    machine = device.choose(use_gpu is not False and NVIDIA.why_not() is None, True, "auto", True)
    on_gpu = machine.on_gpu
    has_half = on_gpu or machine.backend.has_bf16()
    return {
        "vocab_size": vocab_size,
        "num_parameters": config.num_parameters,
        "name": machine.name if on_gpu else f"{machine.name}, {several(torch.get_num_threads(), 'thread')}",
        "software": f"torch {torch.__version__}, Python {sys.version.split()[0]}",
        "on_gpu": on_gpu,
        "half": machine.precision if has_half else "bf16",
        "why_no_half": "" if has_half else "this CPU has no bf16 instructions",
        "why_no_compile": machine.backend.why_no_compile() or "",
    }


def synthesise(folder: Path, vocab_size: int, num_tokens: int) -> None:
    """Writes train.bin with so many tokens, whose frequencies follow Zipf's law, and metadata.json."""
    dtype = native_dtype(vocab_size)
    # Log-uniform: the frequency of an id is as 1 / rank.
    tokens = vocab_size ** np.random.default_rng(SEED).random(num_tokens) - 1
    tokens.astype(np.dtype(dtype).newbyteorder("<")).tofile(folder / "train.bin")
    fields = {"format": METADATA_FORMAT, "version": METADATA_VERSION, "vocab_size": vocab_size, "dtype": dtype,
              "splits": {"train": {"tokens": num_tokens}}}
    write_whole(folder / "metadata.json", json.dumps(fields))


def _corpus(data_dir: Path) -> Corpus:
    return open_corpus(data_dir, None, data_dir / "metadata.json", None)


# ---------------------------------------------------------------- a step of nanoGPT's


def time_step(peer_dir: str, data_dir: str, shape: dict[str, Any], num_steps: int, every: int, precision: str,
         on_gpu: bool) -> dict[str, Any]:
    """Trains nanoGPT's model, compiled, and measures the seconds of every step, its loss, and the memory.

    The device is waited for after the first step, and then after every so many: as often as our run waits for it.
    """
    machine = device.choose(on_gpu, precision in ("bf16", "fp16"), "auto", True)
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    batches, config, weights = _ours(Path(data_dir), Shape(**shape), machine.device)

    # By another name than model, which is ours.
    spec = importlib.util.spec_from_file_location("nanogpt", Path(peer_dir) / "model.py")
    assert spec is not None
    assert spec.loader is not None
    nanogpt = sys.modules["nanogpt"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nanogpt)
    net = nanogpt.GPT(nanogpt.GPTConfig(config.seq_length, config.vocab_size, config.n_layer, config.n_head,
                                        config.n_embd, 0.0, True))
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
            machine.backend.synchronize()
            seconds += [(time.perf_counter() - lap_began) / len(unread)] * len(unread)
            unread.clear()
            if number == 0:
                machine.backend.forget_peak()  # what the compiler tried out, as train.py does
            lap_began = time.perf_counter()
    return {"seconds": seconds, "losses": losses, "peak_memory_bytes": machine.backend.peak_memory()}


def _ours(data_dir: Path, shape: Shape, where: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The batches that train.py would train on, the config of its model, and the weights that it starts with.

    The weights have GPT-2's names, and no rows that pad the vocabulary.
    """
    corpus = _corpus(data_dir)
    windows = data.CorpusWindows(corpus.train, "ram", shape.seq_length, SEED, where)
    config = GPTConfig(corpus.vocab_size, shape.seq_length, *SIZES[shape.model_size])
    torch.manual_seed(SEED)
    weights = {name: tensor[:config.vocab_size] if "wte" in name or "lm_head" in name else tensor
               for name, tensor in GPT(config).init_weights().state_dict().items()}
    weights.setdefault("lm_head.weight", weights["transformer.wte.weight"])
    return data.Batches(windows, shape.batch_size, where), config, weights


# ---------------------------------------------------------------- decoding, beside transformers'


def time_decode(folder: str, on_gpu: bool, **_: Any) -> dict[str, float]:
    """New tokens a second of GPT-2 Small with random weights, by transformers' generate and as generate.py decodes.

    Prompts have 32 ids, one and eight at once; the pass over the prompt is included.
    """
    transformers = optional("transformers", "--peer decode")
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


# ---------------------------------------------------------------- tokenizing


def write_text(data_dir: str, tokenizer: str, out: str) -> dict[str, Any]:
    """The text of the first tokens of a folder, in a file."""
    stream = _corpus(Path(data_dir)).train
    ids = data.Tokens(stream, "mmap", torch.device("cpu")).read(0, min(stream.length, MOST_TOKENS))
    Path(out).write_text(Tokenizer.from_file(tokenizer).decode(ids.tolist()), encoding="utf-8")
    return {}


def by_tiktoken(text: str, tokenizer: str, out: str) -> dict[str, Any]:
    """nanoGPT's data/shakespeare/prepare.py: the text in one string, its ids by tiktoken, uint16."""

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
    B, T = 64, 512
    device.set_up(device.choose(False, None, "auto", False), Path())  # as train.py does, for all three
    stream, cpu = _corpus(Path(data_dir)).train, torch.device("cpu")
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
    machine = device.choose(on_gpu, None, "auto", False)
    device.set_up(machine, Path())
    what, place = Shape(**shape), Path(folder)
    model = GPT(GPTConfig(what.vocab_size, what.seq_length, *SIZES[what.model_size])).init_weights().to(machine.device)
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
