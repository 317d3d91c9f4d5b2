"""Text to tokens by others' scripts and by ours, in turns.

    python benchmarks/pretokenize_peers.py FILE.jsonl TOKENIZER.json

Whole commands, from a JSON-lines file to a finished .bin: nanoGPT's data/*/prepare.py (tiktoken, the whole file at
once), build-nanogpt's fineweb.py (tiktoken, half of the cores as it is written, and all of them), encode_batch_fast of
tokenizers with its ids extracted, and ours with both engines. Needs tiktoken and gigatoken; figures are in LOG.md.
"""


import importlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

END = "<|endoftext|>"
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
encoding = None


def tiktoken_encoding(path: str):
    """The same vocabulary for tiktoken: a rank for each token's bytes."""
    tiktoken = importlib.import_module("tiktoken")
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    byte_of = {chr(b) if b in set(plain) else chr(next(others)): b for b in range(256)}
    vocab = json.loads(Path(path).read_text())["model"]["vocab"]
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in vocab.items() if token != END}
    return tiktoken.Encoding("ours", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={END: vocab[END]})


def read_texts(path: str):
    """The documents of a JSON-lines file."""
    with open(path) as file:
        for line in file:
            yield json.loads(line)["text"]


def nanogpt(path: str, tokenizer: str, out: str) -> None:
    """data/shakespeare/prepare.py: the text in one string."""
    import numpy as np

    ids = tiktoken_encoding(tokenizer).encode_ordinary("\n".join(read_texts(path)))
    np.array(ids, dtype=np.uint16).tofile(out)


def open_tokenizer(tokenizer: str) -> None:
    """A worker's encoding."""
    global encoding
    encoding = tiktoken_encoding(tokenizer)


def one_document(text: str):
    """fineweb.py's tokenize()."""
    import numpy as np

    ids = np.array([0, *encoding.encode_ordinary(text)])  # type: ignore[attr-defined]
    assert (ids >= 0).all()
    assert (ids < 2**16).all()
    return ids.astype(np.uint16)


def fineweb(path: str, tokenizer: str, out: str, processes: int) -> None:
    """fineweb.py: a pool of processes, a document each, into shards of 100 million tokens."""
    import numpy as np

    shard, filled = np.empty(10**8, np.uint16), 0
    with multiprocessing.Pool(processes, open_tokenizer, (tokenizer,)) as pool:
        for ids in pool.imap(one_document, read_texts(path), chunksize=16):
            shard[filled:filled + len(ids)] = ids
            filled += len(ids)
    np.save(out, shard[:filled])


def bare(path: str, tokenizer: str, out: str) -> None:
    """encode_batch_fast, a thousand documents at a time, and their ids."""
    import numpy as np
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    reference = Tokenizer.from_file(tokenizer)
    reference.encode_special_tokens = True
    texts = list(read_texts(path))
    with open(out, "wb") as file:
        for first in range(0, len(texts), 1000):
            for found in reference.encode_batch_fast(texts[first:first + 1000], add_special_tokens=False):
                file.write(np.array(found.ids, np.uint16).tobytes())


def main(path: str, tokenizer: str, rounds: int = 5) -> None:
    """Runs all of them, in turns; prints medians."""
    cores = os.cpu_count() or 1
    here = [sys.executable, __file__, path, tokenizer]
    ours = [sys.executable, str(Path(__file__).parent.parent / "pretokenize.py"), path, "--tokenizer_file", tokenizer]
    commands = {
        "nanoGPT's prepare.py": [*here, "nanogpt"],
        f"fineweb.py as written, {max(1, cores // 2)} of {cores} cores": [*here, f"fineweb {max(1, cores // 2)}"],
        f"fineweb.py, {cores} cores": [*here, f"fineweb {cores}"],
        "ours, gigatoken": [*ours, "--engine", "gigatoken"],
        "tokenizers, encode_batch_fast": [*here, "bare"],
        "ours, tokenizers": [*ours, "--engine", "tokenizers"],
        "ours, tokenizers, 1 worker": [*ours, "--engine", "tokenizers", "--num_workers", "1"],
    }
    megabytes = sum(len(text.encode()) for text in read_texts(path)) / 1e6
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                is_ours = "--tokenizer_file" in command
                more = ["--output_dir", f"{folder}/data"] if is_ours else [f"{folder}/x.bin"]
                subprocess.run([*command, *more], check=True, stdout=subprocess.DEVNULL)
                seconds[name].append(time.perf_counter() - began)
    for name, found in seconds.items():
        middle = statistics.median(found)
        spread = f"{min(found):.2f} to {max(found):.2f}, n = {rounds}"
        print(f"{name}: {middle:.2f} s ({spread}), {megabytes / middle:.1f} MB/s")


if __name__ == "__main__":
    if len(sys.argv) <= 4:
        main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
    elif sys.argv[3].startswith("fineweb"):
        fineweb(sys.argv[1], sys.argv[2], sys.argv[4], int(sys.argv[3].split()[1]))
    else:
        {"nanogpt": nanogpt, "bare": bare}[sys.argv[3]](sys.argv[1], sys.argv[2], sys.argv[4])
