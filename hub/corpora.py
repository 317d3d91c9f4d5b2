"""The corpora that have a short name: pretokenize.py --corpus tinystories. A line of the table is a corpus.

Revision, files, sizes and licences are those that public projects quote of these datasets, looked up in November 2026
(docs/data.md says where); the hub states sizes and hashes again when a file is fetched, and those count.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import NamedTuple

from common.flags import having
from common.words import duration, shell_word
from hub.names import DATASET, parse_name

DOWNLOAD_RATE = 10e6  # bytes per second of a network, by which a time is said before the hub is asked
LARGE_BYTES = 10**8  # of text, from which on it is worth saying how long its tokens take
ENCODING_RATES = {"tokenizers": 5.8e6, "gigatoken": 105e6}  # measured: bytes of text per second on 2 cores (LOG.md)


class NamedCorpus(NamedTuple):
    """A corpus of the hub: hf:// name with commit and path, column, licence, and what trains on it.

    file_bytes are those of its files on the hub, text_bytes those of the text in them; 0 where no source tells.
    """

    word: str
    text_field: str
    about: str
    license: str
    file_bytes: int
    text_bytes: int
    train_flags: str  # of train.py, after --data_dir


CORPORA = {
    "shakespeare": NamedCorpus(
        "hf://datasets/karpathy/tiny_shakespeare@refs/pr/2/data/train-00000-of-00001.parquet", "text",
        "plays of Shakespeare, nine tenths of the 1.1 MB", "public domain",
        0, 1_003_854,
        "--arch qwen3 --n_layer 2 --n_head 4 --n_embd 256 --seq_length 128 --batch_size 20 --max_steps 425"),
    "tinystories": NamedCorpus(
        "hf://datasets/roneneldan/TinyStories@f54c09fd23315a6f9c86f9dc80f725de7d8f9c64/data/train-*.parquet", "text",
        "2,119,719 stories in the words of small children", "CDLA-Sharing-1.0",
        990_786_315, 1_924_281_556,
        "--use_gpu --use_amp --compile --model_size mini --seq_length 512 --max_minutes 60"),
    "wikitext": NamedCorpus(
        "hf://datasets/EleutherAI/wikitext_document_level@647234772b9554e208af6c826f23b99e3cac88c8"
        "/wikitext-103-raw-v1/wikitext-103-raw-v1-train.parquet", "page",
        "29,444 articles of Wikipedia (WikiText-103)", "CC BY-SA 3.0",
        0, 0,
        "--use_gpu --use_amp --compile --model_size gpt2_small --max_minutes 60"),
    "fineweb-sample": NamedCorpus(
        "hf://datasets/HuggingFaceFW/fineweb@9bb295ddab0e05d785b879661af7260fed5140fc/sample/10BT/000_00000.parquet",
        "text", "English web pages, 1 of 15 files of FineWeb's 10BT", "ODC-By 1.0",
        2_147_292_183, 0,
        "--use_gpu --use_amp --compile --model_size gpt2_small --max_minutes 60"),
}


def with_corpus(args: Namespace) -> Namespace:
    """The flags, with the dataset and the column of --corpus in the place of FILE and --text_field."""
    if args.corpus is None:
        return args
    corpus = CORPORA[args.corpus]
    return having(args, files=[corpus.word], text_field=corpus.text_field)


def introduce(name: str, data_dir: str, say: Callable[[str], None]) -> None:
    """Says what a corpus is, before it is downloaded: origin, license, size, time, and the command that trains on it.
    """
    corpus = CORPORA[name]
    dataset = parse_name(corpus.word, DATASET)
    lines = [f"{name}: {corpus.about}", f"https://huggingface.co/datasets/{dataset.repo}",
             f"license: {corpus.license}"]
    if corpus.file_bytes:
        lines.append(f"{corpus.file_bytes / 1e6:,.0f} MB to download: {duration(corpus.file_bytes / DOWNLOAD_RATE)} at "
                     f"{DOWNLOAD_RATE / 1e6:.0f} MB/s")
    if corpus.text_bytes > LARGE_BYTES:
        times = " or ".join(f"{duration(corpus.text_bytes / rate)} by {engine}"
                            for engine, rate in ENCODING_RATES.items())
        lines += [f"{corpus.text_bytes / 1e6:,.0f} MB of text", f"to tokens on 2 cores: {times}"]
    for label, line in zip(["corpus", *[""] * len(lines)], lines, strict=False):
        say(f"{label:<12}{line}")
    say(f"            afterwards:\n    {next_command(name, data_dir)}")


def next_command(name: str, data_dir: str) -> str:
    """The command that trains on the corpus."""
    where = "" if data_dir == "data" else f" --data_dir {shell_word(data_dir)}"
    return f"python train.py{where} {CORPORA[name].train_flags}"
