"""The corpora that have a short name: pretokenize.py --corpus tinystories. A line of the table is a corpus."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import NamedTuple

from common.flags import having
from common.words import shell_word
from hub.names import DATASET, parse_name

ON_A_GPU = "--use_gpu --use_amp --compile"


class NamedCorpus(NamedTuple):
    """A corpus of the hub: hf:// name with commit and path, column, licence, and what trains on it."""

    word: str
    text_field: str
    about: str
    license: str
    train_flags: str  # of train.py, after --data_dir


CORPORA = {
    "shakespeare": NamedCorpus(
        "hf://datasets/karpathy/tiny_shakespeare@refs/pr/2/data/train-00000-of-00001.parquet", "text",
        "plays of Shakespeare, nine tenths of the 1.1 MB", "public domain",
        "--arch qwen3 --n_layer 2 --n_head 4 --n_embd 256 --seq_length 128 --batch_size 20 --max_steps 425"),
    "tinystories": NamedCorpus(
        "hf://datasets/roneneldan/TinyStories@f54c09fd23315a6f9c86f9dc80f725de7d8f9c64/data/train-*.parquet", "text",
        "2,119,719 stories in small children's words, 991 MB", "CDLA-Sharing-1.0",
        f"{ON_A_GPU} --model_size mini --seq_length 512 --max_minutes 60"),
    "wikitext": NamedCorpus(
        "hf://datasets/EleutherAI/wikitext_document_level@647234772b9554e208af6c826f23b99e3cac88c8"
        "/wikitext-103-raw-v1/wikitext-103-raw-v1-train.parquet", "page",
        "29,444 articles of Wikipedia (WikiText-103)", "CC BY-SA 3.0",
        f"{ON_A_GPU} --model_size gpt2_small --max_minutes 60"),
    "fineweb-sample": NamedCorpus(
        "hf://datasets/HuggingFaceFW/fineweb@9bb295ddab0e05d785b879661af7260fed5140fc/sample/10BT/000_00000.parquet",
        "text", "English web pages, 1 of 15 files of 10BT, 2,147 MB", "ODC-By 1.0",
        f"{ON_A_GPU} --model_size gpt2_small --max_minutes 60"),
}


def with_corpus(args: Namespace) -> Namespace:
    """The flags, with the dataset and the column of --corpus in the place of FILE and --text_field."""
    if args.corpus is None:
        return args
    corpus = CORPORA[args.corpus]
    return having(args, files=[corpus.word], text_field=corpus.text_field)


def introduce(name: str, data_dir: str, say: Callable[[str], None]) -> None:
    """Says what a corpus is, before it is downloaded: origin, license, size, and the command that trains on it."""
    corpus = CORPORA[name]
    say(f"corpus      {name}: {corpus.about}\n"
        f"            https://huggingface.co/datasets/{parse_name(corpus.word, DATASET).repo}\n"
        f"            license: {corpus.license}\n"
        f"            afterwards:\n    {next_command(name, data_dir)}")


def next_command(name: str, data_dir: str) -> str:
    """The command that trains on the corpus."""
    where = "" if data_dir == "data" else f" --data_dir {shell_word(data_dir)}"
    return f"python train.py{where} {CORPORA[name].train_flags}"
