"""pretokenize.py: what comes out is what went in, split as promised, committed as a whole, refused with a reason."""

import bz2
import contextlib
import gzip
import hashlib
import importlib.util
import itertools
import json
import lzma
import multiprocessing
import os
import random
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretokenize
from common.errors import Exit, UserError
from common.files import sha256_of
from common.signals import Signals
from common.words import count
from pretokenization.blocks import SAFE_PLACE, parts_of
from pretokenization.job import Job, split_of_one
from pretokenization.new_vocabulary import auto_vocab_size
from pretokenization.reader import Reader
from pretokenization.store import Folder
from pretokenization.vocabulary import LONGEST_RUN, SEPARATOR, sampled, short_runs, train
from pretokenization.workers import in_child
from tokens.corpus import open_corpus
from tokens.metadata import METADATA_FORMAT, METADATA_VERSION
from tokens.stream import DTYPES
from tokens.tokenizer import load_tokenizer, parse, vocabulary_of

ROOT = Path(pretokenize.__file__).parent
STRINGS = [
    "plain words",
    "  runs   of \n\n\n spaces\t\t\n",
    "caf\u00e9 na\u00efve",
    "\u6f22\u5b57\u3002\u304b\u306a\uff0c\u30ab",
    "\u0645\u0631\u062d\u0628\u0627",
    "\u0939\u093f\u0928\u094d\u0926\u0940",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "nul\0and\x1fmore\x7f",
    "crlf\r\nline\r",
    "a\u0301\u200f\u202e",
    "it's we'll I'm they've",
    "<|endoftext|>",
    "\ufeffinside",
]
TOKEN_FILES = ("train.bin", "val.bin", "train.idx", "val.idx", "tokenizer.json")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # main sets them; this restores them
    for name in ("ID", "COUNT", "MIN"):
        monkeypatch.delenv(f"SLURM_ARRAY_TASK_{name}", raising=False)
    yield
    assert multiprocessing.active_children() == []


def words(num_bytes: int, seed: int = 0) -> str:
    """Text that looks like language: common words are common."""
    rng = random.Random(seed)
    lexicon = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(400)]
    weights = [1 / rank for rank in range(1, 401)]
    chosen = rng.choices(lexicon, weights, k=num_bytes // 4)
    return "".join(word + rng.choice("      ,.\n") for word in chosen)[:num_bytes]


def write(name: str, content: str | bytes) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def lines(texts: list[str]) -> str:
    return "".join(json.dumps({"text": content}) + "\n" for content in texts)


def run(*argv: str, output_dir: str = "data") -> dict:
    """Runs the command, in this process unless --num_workers is given; returns its metadata."""
    more = () if "--num_workers" in argv else ("--num_workers", "1")
    assert pretokenize.main([*argv, *more, "--overwrite", "--output_dir", output_dir]) == 0
    return metadata_of(output_dir)


def metadata_of(output_dir: str = "data") -> dict:
    return json.loads(Path(output_dir, "metadata.json").read_text())


def written(output_dir: str = "data") -> dict[str, bytes]:
    """All files of a finished folder but metadata.json."""
    found = {path.name: path.read_bytes() for path in Path(output_dir).iterdir() if path.is_file()}
    assert found.pop("metadata.json")
    return {name: content for name, content in found.items() if not name.startswith(".")}


def refused(*argv: str, code: Exit = Exit.DATA, match: str = "") -> str:
    with pytest.raises(UserError, match=match or None) as caught:
        pretokenize.main([*argv, *(() if "--num_workers" in argv else ("--num_workers", "1"))])
    assert caught.value.code == code
    return str(caught.value)


def documents(part: str, output_dir: str = "data") -> list[str]:
    """What a split holds, decoded, document by document."""
    metadata = metadata_of(output_dir)
    ids = np.fromfile(f"{output_dir}/{part}.bin", DTYPES[metadata["dtype"]]).tolist()
    ends = np.fromfile(f"{output_dir}/{part}.idx", "<u8").tolist()
    assert ends[-1] == len(ids) == metadata["splits"][part]["tokens"]
    assert len(ends) == metadata["splits"][part]["documents"]
    tokenizer = load_tokenizer(Path(output_dir, "tokenizer.json"))
    found = []
    for start, end in zip([0, *ends], ends, strict=False):
        assert ids[end - 1] == metadata["end_of_text_id"]
        assert metadata["end_of_text_id"] not in ids[start : end - 1]
        found.append(tokenizer.decode(ids[start : end - 1], skip_special_tokens=False))
    return found


def hash_share(content: str) -> float:
    """Where in the range from 0 to 1 a document's hash lies."""
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:8], "big") / 2**64


def trained(texts: list[str], vocab_size: int = 600) -> str:
    Path("sample").write_bytes(b"".join(content.encode() + SEPARATOR for content in texts))
    # a process that has trained has threads, which its later children would wait for
    return in_child(Signals(), train, Path("sample"), vocab_size, 2)


def command(*argv: str, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(ROOT / "pretokenize.py"), *argv],
        input=stdin,
        capture_output=True,
        timeout=60,
        env={**os.environ, **more},
    )


# ---------------------------------------------------------------- nothing is lost


def test_every_string_comes_back_and_the_end_of_text_stays_text():
    everything = STRINGS + ["".join(map(chr, range(1, 0x500)))] + [chr(c) + "x" for c in range(256)]
    write("all.jsonl", lines(everything))
    run("all.jsonl", "--vocab_size", "300")
    kept = [content for content in everything if content.strip()]
    assert sorted(documents("train") + documents("val")) == sorted(kept)
    tokenizer = load_tokenizer("data/tokenizer.json")
    for content in everything:
        assert tokenizer.decode(tokenizer.encode(content).ids, skip_special_tokens=False) == content


def test_a_text_file_keeps_nul_crlf_and_newlines_and_loses_its_byte_order_mark():
    content = "one\r\ntwo\0three\n\n\nfour \u00e9\n"
    write("a.txt", b"\xef\xbb\xbf" + content.encode())
    run("a.txt", "--val_fraction", "0")
    assert documents("train") == [content]


def test_the_ids_are_gpt2s_wherever_the_parts_are_cut(monkeypatch):
    rng = random.Random(1)
    alphabet = [*" \n\n  \t\r", "\u00a0", "\u3000", "\x1c", *"abzAZ019.,;:!?'\"-_", "'s", "'ll", "'re", "\u00e9"]
    alphabet += ["\u00b2", "\u0660", "\u4e00", "\u3042", "\u30a2", "\u3002", "\uff0c", "\u0939\u093f", "\u0301"]
    alphabet += ["\u200d", "\U0001f600", "\u0130"]
    tokenizer = parse(trained([words(20_000) + "".join(rng.choices(alphabet, k=4000))]))
    num_cuts = 0
    for _ in range(60):
        content = "x" + "".join(rng.choices(alphabet, k=rng.randint(1, 400)))
        whole = tokenizer.encode(content, add_special_tokens=False).ids
        for part_bytes in (20, 33, 64, 200):
            monkeypatch.setattr(text, "PART_BYTES", part_bytes)
            parts = [part.decode() for part in parts_of(content.encode(), SAFE_PLACE)]
            assert "".join(parts) == content
            ends = np.cumsum([len(part) for part in parts])[:-1].tolist()
            if all(SAFE_PLACE.match(content, end - 1) for end in ends):  # no cut was a hard one
                assert [i for part in parts for i in tokenizer.encode(part, add_special_tokens=False).ids] == whole
                num_cuts += len(ends)
    assert num_cuts > 500


@pytest.mark.parametrize("change", ["normalizer", "prefix", "pattern", "word"])
def test_a_tokenizer_that_splits_otherwise_is_known(change):
    from tokenizers import normalizers, pre_tokenizers

    content = trained([words(5000)], 300)
    assert vocabulary_of(parse(content)).splits_as_gpt2
    tokenizer = parse(content)
    if change == "normalizer":
        tokenizer.normalizer = normalizers.NFC()  # type: ignore[assignment]
    elif change == "prefix":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)  # type: ignore[assignment]
    elif change == "pattern":
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    else:
        tokenizer.add_tokens(["two words"])
    assert not vocabulary_of(tokenizer).splits_as_gpt2


def test_blocks_may_cut_characters_and_separators(monkeypatch, tokenizer_file):
    parts = ["\u00e9\u6f22\U0001f600" * 3, "second", "third \u00e9"]
    write("a.txt", "<->".join(parts))
    for block_bytes in (1, 2, 3, 5, 1000):
        monkeypatch.setattr(text, "BLOCK_BYTES", block_bytes)
        run("a.txt", "--document_separator", "<->", "--tokenizer_file", str(tokenizer_file))
        assert sorted(documents("train") + documents("val")) == sorted(parts)


# ---------------------------------------------------------------- one text, many forms


def corpus(number: int = 60, seed: int = 0) -> list[str]:
    """Documents of several sizes and scripts; one is much longer than the others."""
    rng = random.Random(seed)
    texts = [words(rng.randint(5, 400), number) + rng.choice(STRINGS) for number in range(number)]
    return [*texts[:7], words(5000, 99), *texts[7:]]


def zstandard(content: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(content)


def in_forms(texts: list[str]) -> dict[str, list[str]]:
    """The same documents written in every form; how each is read."""
    separated, of_json = "<->".join(texts), lines(texts)
    for number, content in enumerate(texts):
        write(f"folder/{number:04}.txt", content)
    for ending, pack in ((".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)):
        write("a.jsonl" + ending, pack(of_json.encode()))
        write("a.txt" + ending, pack(separated.encode()))
    forms = {
        "separated": [write("a.txt", separated), "--document_separator", "<->"],
        "with a mark": [write("m.txt", "\ufeff" + separated + "<->"), "--document_separator", "<->"],
        "lines": [write("a.jsonl", of_json)],
        "crlf": [write("c.jsonl", "\ufeff" + of_json.replace("\n", "\r\n\n"))],
        "field": [write("f.jsonl", of_json.replace('{"text"', '{"text": 5, "body"')), "--text_field", "body"],
        "json.gz": [write("a.json.gz", gzip.compress(of_json.encode()))],
        "folder": ["folder"],
        "glob": ["folder/*.txt"],
        "files": sorted(map(str, Path("folder").iterdir())),
        "two": [
            write("1.jsonl", lines(texts[:9])),
            write("2.txt", "<->".join(texts[9:])),
            "--document_separator",
            "<->",
        ],
        "piped": ["-", "stdin:" + write("p.txt", separated), "--document_separator", "<->"],
        "piped lines": ["-", "stdin:a.jsonl"],
        "piped gzip": ["-", "stdin:a.json.gz"],
    }
    for ending in ("gz", "bz2", "xz"):
        forms[ending] = ["a.jsonl." + ending]
        forms["separated " + ending] = ["a.txt." + ending, "--document_separator", "<->"]
    return forms


def run_form(monkeypatch, argv: list[str], *more: str) -> dict[str, bytes]:
    piped = next((word[6:] for word in argv if word.startswith("stdin:")), os.devnull)
    with monkeypatch.context() as patch, open(piped, "rb") as stdin:
        patch.setattr(sys, "stdin", stdin)
        run(*(word for word in argv if not word.startswith("stdin:")), "--val_fraction", "0.2", *more)
    return written()


@pytest.mark.parametrize("is_trained", [False, True])
def test_the_same_documents_in_any_form_give_the_same_bytes(is_trained, monkeypatch, tokenizer_file):
    texts = corpus()
    more = ("--vocab_size", "400") if is_trained else ("--tokenizer_file", str(tokenizer_file))
    made = {form: run_form(monkeypatch, argv, *more) for form, argv in in_forms(texts).items()}
    expected = made["lines"]
    assert set(expected) == set(TOKEN_FILES)
    assert [form for form, files in made.items() if files != expected] == []
    assert documents("train") == [content for content in texts if hash_share(content) >= 0.2]
    assert documents("val") == [content for content in texts if hash_share(content) < 0.2]


def test_zstandard_and_tables_give_the_same_bytes_too(monkeypatch, tokenizer_file):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts, more = corpus(), ("--tokenizer_file", str(tokenizer_file))
    write("a.jsonl", lines(texts))
    write("a.jsonl.zst", zstandard(lines(texts).encode()))
    write("p.txt.zst", zstandard("<->".join(texts).encode()))
    parquet.write_table(pyarrow.table({"text": texts}), "a.parquet", row_group_size=9)
    expected = run_form(monkeypatch, ["a.jsonl"], *more)
    for argv in (
        ["a.jsonl.zst"],
        ["a.parquet"],
        ["-", "stdin:a.parquet"],
        ["-", "stdin:a.jsonl.zst"],
        ["p.txt.zst", "--document_separator", "<->"],
    ):
        assert run_form(monkeypatch, argv, *more) == expected


def test_any_number_of_workers_and_any_sizes_give_what_tokenizers_gives_for_each_document(monkeypatch, tokenizer_file):
    texts, tokenizer = corpus(), load_tokenizer(tokenizer_file)
    write("a.jsonl", lines(texts))
    write("a.txt", "<->".join(texts))
    write("a.jsonl.gz", gzip.compress(lines(texts).encode()))
    ids = [[*tokenizer.encode(content, add_special_tokens=False).ids, 0] for content in texts]
    expected = {
        split: [
            token
            for mine, content in zip(ids, texts, strict=True)
            if (hash_share(content) < 0.2) == (split == "val")
            for token in mine
        ]
        for split in ("train", "val")
    }
    sizes = [
        (2**22, 2**20, 2**16, 2**25),
        (500, 64, 64, 2**25),
        (64, 500, 100, 300),
        (64, 64, 64, 1),
        (300, 100, 7, 500),
    ]
    for number, (block, part, window, long_line) in enumerate(sizes):
        for name, value in (("BLOCK", block), ("PART", part), ("WINDOW", window), ("LONG_LINE", long_line)):
            monkeypatch.setattr(text, name + "_BYTES", value)
        for num_workers in ("1", "2", "3")[: 3 if number == 1 else 2]:
            for name in ("a.jsonl", "a.txt", "a.jsonl.gz"):
                run(
                    name,
                    "--document_separator",
                    "<->",
                    "--num_workers",
                    num_workers,
                    "--val_fraction",
                    "0.2",
                    "--tokenizer_file",
                    str(tokenizer_file),
                )
                for split in ("train", "val"):
                    assert np.fromfile(f"data/{split}.bin", "<i2").tolist() == expected[split]


def test_a_long_documents_bad_bytes_change_neither_its_split_nor_its_ids(monkeypatch, tokenizer_file):
    texts = [f"{number} {words(300, number)} \ufffd end" for number in range(40)]
    write("a.txt", "<->".join(texts).replace("\ufffd", "\udcff").encode(errors="surrogateescape"))
    write("a.jsonl", lines(texts))
    argv = ("--document_separator", "<->", "--val_fraction", "0.3", "--tokenizer_file", str(tokenizer_file))
    run("a.jsonl", *argv)
    expected = written()
    for block, part in ((2**22, 2**20), (2**22, 64), (64, 64)):
        monkeypatch.setattr(text, "BLOCK_BYTES", block)
        monkeypatch.setattr(text, "PART_BYTES", part)
        run("a.txt", *argv)
        assert written() == expected


def test_stdin_gives_what_the_file_gives_and_torch_is_never_imported():
    content = words(3000)
    write("stdin", content)
    run("stdin")
    expected = Path("data/train.bin").read_bytes()
    code = (
        f"import runpy, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "sys.argv = ['pretokenize.py', '-', '--output_dir', 'piped']\n"
        f"runpy.run_path({str(ROOT / 'pretokenize.py')!r}, run_name='__main__')\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], input=content.encode(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert Path("piped/train.bin").read_bytes() == expected
    assert sorted(os.listdir("piped")) == sorted(os.listdir("data"))
    assert done.stdout.decode().splitlines()[-1] == "next: python train.py --data_dir piped"


# ---------------------------------------------------------------- the split


@pytest.mark.parametrize(
    ("content", "fraction", "val"),
    [
        (words(11_153), "0.1", words(11_153)[int(11_153 * 0.9) :]),
        ("x" * 10 + "\u00e9" * 45, "0.1", "\u00e9" * 5),
        ("ab", "0.005", "b"),
        ("a" * 99 + "\u00e9" * 2, "0.02", "\u00e9"),
    ],
)
@pytest.mark.parametrize("form", ["plain", "gzip", "line", "separated", "small parts"])
def test_a_single_document_gives_its_tail_cut_at_a_character(content, fraction, val, form, monkeypatch, tokenizer_file):
    forms = {
        "plain": ("a.txt", content),
        "gzip": ("a.txt.gz", gzip.compress(b"\xef\xbb\xbf" + content.encode())),
        "line": ("a.jsonl", lines(["", content, " "])),
        "separated": ("b.txt", f"<->{content}<-> <->"),
        "small parts": ("c.jsonl", lines(["", content])),
    }
    if form == "small parts":
        for name in ("BLOCK_BYTES", "PART_BYTES", "LONG_LINE_BYTES"):
            monkeypatch.setattr(text, name, 50)
    write(*forms[form])
    more = ("--document_separator", "<->") * (form == "separated")
    for how in (("--tokenizer_file", str(tokenizer_file)), ("--vocab_size", "300")):
        metadata = run(forms[form][0], "--val_fraction", fraction, *more, *how)
        assert documents("val") == [val]
        assert documents("train") == [content.removesuffix(val)]
        assert metadata["splits"]["val"]["bytes"] == len(val.encode())


def test_tinyshakespeares_last_tenth_is_its_last_111540_bytes():
    split = split_of_one(1_115_394, 0.1)
    assert (split.cut_byte, 1_115_394 - 1_003_854) == (1_003_854, 111_540)


def test_many_documents_are_split_by_the_hash_of_each(tokenizer_file):
    texts = [f"document {number} {words(50, number)}" for number in range(300)]
    write("a.jsonl", lines(texts))
    for how in (("--tokenizer_file", str(tokenizer_file)), ("--vocab_size", "300")):
        run("a.jsonl", "--val_fraction", "0.1", *how)
        small = [content for content in texts if hash_share(content) < 0.1]
        assert 10 < len(small) < 60
        assert documents("val") == small
        assert documents("train") == [content for content in texts if content not in small]


@pytest.mark.parametrize("is_trained", [False, True])
def test_neither_part_is_ever_empty(is_trained, tokenizer_file):
    texts = [words(200, number) for number in range(6)]
    write("a.jsonl", lines(texts))
    how = ("--vocab_size", "300") if is_trained else ("--tokenizer_file", str(tokenizer_file))
    order = sorted(texts, key=hash_share)
    for fraction, val in (("1e-9", order[:1]), ("0.999999999", order[:-1])):
        metadata = run("a.jsonl", "--val_fraction", fraction, *how)
        assert documents("val") == [content for content in texts if content in val]
        assert documents("train") == [content for content in texts if content not in val]
        assert "nearest" in metadata["split_rule"] or "last that is left" in metadata["split_rule"]


def test_documents_that_are_all_the_same_are_all_for_training(tokenizer_file):
    write("a.jsonl", lines(["the same"] * 5))
    for how in (("--vocab_size", "300"), ("--tokenizer_file", str(tokenizer_file))):
        for fraction in ("0.999999", "1e-9"):
            metadata = run("a.jsonl", "--val_fraction", fraction, *how)
            assert documents("train") == ["the same"] * 5
            assert set(metadata["splits"]) == {"train"}


def test_without_validation_no_val_bin_is_written_and_an_old_one_goes(capsys):
    write("a.txt", words(3000))
    run("a.txt")
    assert Path("data/val.bin").exists()
    metadata = run("a.txt", "--val_fraction", "0")
    assert "no val.bin is written" in capsys.readouterr().out
    assert set(metadata["splits"]) == {"train"}
    assert sorted(os.listdir("data")) == ["metadata.json", "tokenizer.json", "train.bin", "train.idx"]


def test_the_tokenizer_is_trained_on_the_training_part_alone():
    content = words(9000)
    write("a.txt", content + "zqzqzqzq" * 125)
    run("a.txt", "--val_fraction", "0.1", "--vocab_size", "400")
    write("b.txt", content)
    with_tail = Path("data/tokenizer.json").read_bytes()
    run("b.txt", "--val_fraction", "0", "--vocab_size", "400")
    assert Path("data/tokenizer.json").read_bytes() == with_tail
    texts = [words(300, number) for number in range(50)]
    write("a.jsonl", lines([content if hash_share(content) >= 0.2 else content + "zqzqzqzq" * 9 for content in texts]))
    run("a.jsonl", "--val_fraction", "0.2", "--vocab_size", "400")
    ids = [content for content in documents("train") if "zqzq" in content]
    assert ("zqzq" in Path("data/tokenizer.json").read_text()) == bool(ids)


# ---------------------------------------------------------------- what is left out


def test_of_equal_documents_the_first_stays(monkeypatch, tokenizer_file):
    rng = random.Random(3)
    different = [f"{number} {words(100, number)}" for number in range(30)]
    texts = [*different, *rng.choices(different, k=60)]
    rng.shuffle(texts)
    write("a.jsonl", lines(texts[:45]))
    write("b.jsonl", lines(texts[45:]))
    once = list(dict.fromkeys(texts))
    argv = ("a.jsonl", "b.jsonl", "--dedup", "--val_fraction", "0.2")
    for block_bytes, part_bytes in ((2**22, 2**20), (64, 2**20), (64, 64)):
        monkeypatch.setattr(text, "BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(text, "PART_BYTES", part_bytes)
        monkeypatch.setattr(text, "LONG_LINE_BYTES", part_bytes)
        for how in (("--tokenizer_file", str(tokenizer_file)), ("--vocab_size", "300")):
            run(*argv, *how)
            assert documents("train") == [content for content in once if hash_share(content) >= 0.2]
            assert documents("val") == [content for content in once if hash_share(content) < 0.2]


def test_short_documents_are_left_out(monkeypatch, capsys, tokenizer_file):
    texts = ["\u00e9" * 9, "\u00e9" * 10, " " * 20, "long enough " * 20, "", "\u00e9" * 150]
    write("a.jsonl", lines(texts))
    write("a.txt", "<->".join(texts))
    for part_bytes in (2**20, 12):
        for name in ("BLOCK_BYTES", "PART_BYTES", "LONG_LINE_BYTES"):
            monkeypatch.setattr(text, name, part_bytes)
        for name in ("a.jsonl", "a.txt"):
            argv = (name, "--document_separator", "<->", "--val_fraction", "0", "--tokenizer_file", str(tokenizer_file))
            run(*argv, "--min_document_chars", "10")
            assert documents("train") == [texts[1], texts[3], texts[5]]
            assert "skipped: 3 documents of fewer than 10 characters" in capsys.readouterr().out
            run(*argv)
            assert documents("train") == [texts[0], texts[1], texts[3], texts[5]]
            assert "skipped: 2 blank documents" in capsys.readouterr().out


# ---------------------------------------------------------------- the vocabulary


def test_the_automatic_vocabulary_grows_with_the_text():
    sizes = [auto_vocab_size(num_bytes) for num_bytes in (0, 10**5, 10**6, 11 * 10**6, 10**8, 10**11)]
    assert sizes == [512, 512, 1024, 6144, 32_000, 32_000]


def test_a_text_too_small_for_the_vocabulary_gives_the_true_size(capsys):
    write("a.txt", words(2000))
    metadata = run("a.txt", "--vocab_size", "2,000,000,000")
    assert 257 < metadata["vocab_size"] < 2000
    assert metadata["largest_id"] == metadata["vocab_size"] - 1
    assert f"supports {metadata['vocab_size']:,} ids" in capsys.readouterr().out


def test_min_frequency_and_the_sample_bound_what_is_merged():
    write("a.txt", words(20_000))
    sizes = [
        run("a.txt", "--vocab_size", "5000", *more)["vocab_size"]
        for more in ((), ("--min_frequency", "20"), ("--train_sample_bytes", "1000"))
    ]
    assert sizes[0] > max(sizes[1:])


def test_the_sample_is_bounded_and_spread(monkeypatch):
    monkeypatch.setattr(text, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(text, "PART_BYTES", 2000)
    seen: list[str] = []
    inner = in_child

    def watched(signals: Signals, work, path: Path, *rest) -> str:
        seen[:] = [piece.decode() for piece in sampled(path)]
        return inner(signals, work, path, *rest)

    monkeypatch.setattr(pretokenize, "in_child", watched)
    many = [f"{number:05d} " for number in range(10_000)]
    for name, content in (
        ("a.jsonl", lines(many)),
        ("a.txt", "".join(many)),
        ("b.jsonl", lines(["".join(many[:9999])])),
    ):
        write(name, content)
        run(
            name,
            "--train_sample_bytes",
            "3000",
            "--vocab_size",
            "300",
            "--val_fraction",
            "0.01",
            "--engine",
            "tokenizers",
        )
        taken = "".join(seen)
        assert 1500 <= len(taken) <= 3300
        numbers = sorted({int(number) for number in taken.split()})
        assert numbers[0] < 1000
        assert numbers[-1] >= 9000
    run("a.txt", "--val_fraction", "0", "--vocab_size", "300", "--engine", "tokenizers")
    assert "".join(seen) == "".join(many)


def test_endless_runs_do_not_stall_the_training():
    content = "".join(random.Random(0).choices("abcdefgh", k=100_000)) + " " * 100_000 + "x"
    slices = short_runs(content.encode()).split(SEPARATOR)
    assert b"".join(slices) == content.encode()
    assert max(map(len, slices)) == LONGEST_RUN


def big_tokenizer(num_ids: int) -> str:
    """A tokenizer.json of so many ids, the last of which stands for 'zz'."""
    fields = json.loads(trained(["no merges"], 257))
    vocab = fields["model"]["vocab"]
    vocab |= {f"<unused {number}>": number for number in range(257, num_ids - 1)} | {"zz": num_ids - 1}
    fields["model"]["merges"] = [["z", "z"]]
    fields["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    return write("big.json", json.dumps(fields))


@pytest.mark.parametrize(
    ("num_ids", "dtype"), [(32_768, "int16"), (32_769, "uint16"), (50_257, "uint16"), (65_537, "int32")]
)
def test_the_type_holds_every_id(num_ids, dtype):
    write("a.txt", "zz end zz")
    metadata = run("a.txt", "--tokenizer_file", big_tokenizer(num_ids), "--val_fraction", "0")
    assert (metadata["dtype"], metadata["vocab_size"], metadata["largest_id"]) == (dtype, num_ids, num_ids - 1)
    assert not metadata["tokenizer"]["trained_here"]
    assert np.fromfile("data/train.bin", DTYPES[dtype])[0] == num_ids - 1
    assert documents("train") == ["zz end zz"]  # and the tokenizer's truncation is ignored


def test_a_tokenizer_made_here_gives_the_same_ids_again():
    write("a.txt", words(5000))
    run("a.txt")
    first = written()
    run("a.txt", "--tokenizer_file", "data/tokenizer.json")
    assert written() == first


def test_a_tokenizer_may_be_made_alone():
    write("a.jsonl", lines(corpus()))
    run("a.jsonl", "--val_fraction", "0.2", "--vocab_size", "400")
    expected = written()
    argv = ["a.jsonl", "--val_fraction", "0.2", "--vocab_size", "400", "--tokenizer_only", "--output_dir", "t"]
    assert pretokenize.main([*argv, "--num_workers", "1"]) == 0
    assert os.listdir("t") == ["tokenizer.json"]
    run("a.jsonl", "--val_fraction", "0.2", "--tokenizer_file", "t/tokenizer.json")
    assert written() == expected


def test_gpt2s_pair_of_files_is_read_though_model_is_one_of_its_tokens():
    fields = json.loads(Path(big_tokenizer(400)).read_text())["model"]
    vocab = {"model" if token == "<unused 300>" else token: number for token, number in fields["vocab"].items()}
    write("encoder.json", json.dumps(vocab))
    write("vocab.bpe", "#version: 0.2\nz z\n")
    write("a.txt", "zz top")
    assert run("a.txt", "--tokenizer_file", "encoder.json", "--val_fraction", "0")["vocab_size"] == 400
    assert documents("train") == ["zz top"]


# ---------------------------------------------------------------- what is said of the text


def test_sources_are_named_in_the_order_they_are_read(capsys, tokenizer_file):
    for name in ("in/b.txt", "in/a.md", "in/sub/c.text", "in/.hidden/x.txt", "in/picture.png", "z.txt"):
        write(name, f"this is {name}")
    metadata = run("z.txt", "in", "--val_fraction", "0", "in/*.txt", "--tokenizer_file", str(tokenizer_file))
    assert (metadata["sources"], metadata["num_sources"]) == (["z.txt", "a.md", "b.txt", "c.text"], 4)
    assert documents("train") == [f"this is {name}" for name in ("z.txt", "in/a.md", "in/b.txt", "in/sub/c.text")]
    said = capsys.readouterr().out
    assert "left out: in/picture.png" in said
    assert "read once although named again: 1 file" in said


def test_separators_understand_escapes_and_a_wish_without_effect_is_said(capsys, tokenizer_file):
    write("a.txt", "one\n\n\ttwo\n\n\t\n\n\tthree\n\n\t")
    argv = ("a.txt", "--val_fraction", "0", "--tokenizer_file", str(tokenizer_file), "--document_separator")
    run(*argv, r"\n\n\t")
    assert documents("train") == ["one", "two", "three"]
    assert "skipped: 1 blank document\n" in capsys.readouterr().out
    run(*argv, "nowhere", "--text_field", "body")
    said = capsys.readouterr().err
    assert "'nowhere' does not occur" in said
    assert "--text_field body has no effect" in said


def test_lines_without_a_document_are_said(capsys, tokenizer_file):
    write("a.jsonl", '{"body": "first"}\n{broken\n{"body": 5}\n{"body": "lone \\ud800"}\n')
    run("a.jsonl", "--text_field", "body", "--val_fraction", "0", "--tokenizer_file", str(tokenizer_file))
    assert documents("train") == ["first", "lone \ufffd"]
    said = capsys.readouterr().err
    assert "skipped: 2 lines of JSON, the first: line 2 of a.jsonl is not JSON" in said
    assert "1 place, the first: " in said
    assert "line 4 of a.jsonl" in said


@pytest.mark.parametrize("num_workers", ["1", "2"])
def test_bytes_that_are_not_utf8_are_replaced_and_said_or_stop_the_run(num_workers, capsys, tokenizer_file):
    write("a.txt", "\u00e9t\u00e9 \ufffd\nab".encode() + b"\xff\xfe c \xe2\x82" + "\u00e9\u00e9".encode())
    argv = ("a.txt", "--val_fraction", "0", "--num_workers", num_workers, "--tokenizer_file", str(tokenizer_file))
    run(*argv)
    assert documents("train") == ["\u00e9t\u00e9 \ufffd\nab\ufffd\ufffd c \ufffd\u00e9\u00e9"]
    assert "3 places, the first: byte 12, line 2 of a.txt" in capsys.readouterr().err
    refused(*argv, "--strict_utf8", "--overwrite", match=r"byte 12, line 2 of a\.txt")
    assert documents("train")  # the old set is there


def test_latin_1_is_recognised(capsys):
    write("a.txt", ("caf\u00e9 " * 50).encode("latin-1"))
    run("a.txt")
    assert "iconv -f LATIN1 -t UTF-8 a.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.txt", None, "No such file"),
        ("empty.txt", b"", "nothing to train on"),
        ("blank.txt", b" \n\t\n", "nothing to train on"),
        ("one.txt", b"x", "nothing to train on"),
        ("utf16.txt", "text".encode("utf-16"), "iconv -f UTF-16"),
        ("a.txt.gz", b"\x1f\x8b\x08", r"a\.txt\.gz is damaged"),
        ("a.txt.bz2", bz2.compress(words(9000).encode())[:-500], r"a\.txt\.bz2 is damaged"),
        ("*.none", None, "matches no file"),
        ("a.jsonl", b'{"body": "x"}', "--text_field"),
        ("a.jsonl", b"[1, 2", "is not JSON"),
        ("folder/a.png", b"x", "folder holds no"),
        ("nul\x1b[31m.txt", b"", r"nul\\x1b"),
    ],
)
@pytest.mark.parametrize("is_trained", [False, True])
def test_what_is_no_text_is_refused_by_name_and_leaves_nothing(name, content, reason, is_trained, tokenizer_file):
    if content is not None:
        write(name, content)
    refused(name.split("/")[0], *(() if is_trained else ("--tokenizer_file", str(tokenizer_file))), match=reason)
    assert not Path("data").exists()


@pytest.mark.parametrize(
    ("argv", "reasons"),
    [
        ([], ["none given"]),
        (["a.txt", "--demo"], ["takes no FILE"]),
        ([""], ["not empty"]),
        (["a.txt", "--vocab_size", "256"], ["at least 257"]),
        (["a.txt", "--vocab_size", "2147483648"], ["at least 257"]),
        (
            ["a.txt", "--val_fraction", "nan", "--min_frequency", "0", "--num_workers", "x"],
            ["--val_fraction 'nan'", "--min_frequency '0'", "--num_workers 'x'"],
        ),
        (["a.txt", "--vocab_sise", "300"], ["Did you mean --vocab_size"]),
        (["a.txt", "--val_fraction", "1"], ["below 1"]),
        (
            ["a.txt", "--tokenizer_file", "t.json", "--vocab_size", "300", "--min_frequency", "3"],
            ["--vocab_size: impossible", "--min_frequency: impossible"],
        ),
        (["a.txt", "--shard", "3/3"], ["i/N"]),
        (["a.txt", "--shard", "0/3"], ["needs --tokenizer_file"]),
        (["-", "--tokenizer_file", "t", "--shard", "0/3", "--dedup"], ["stdin", "--dedup belong"]),
        (["a.txt", "--finalize"], ["takes no FILE"]),
        (["a.txt", "--verify", "data"], ["takes no FILE"]),
        (["--finalize", "--shard", "0/2", "--tokenizer_file", "t"], ["impossible with --finalize"]),
    ],
)
def test_wrong_flags_are_reported_together_before_anything_is_read(argv, reasons):
    with pytest.raises(UserError) as caught:
        pretokenize.main(argv)
    assert caught.value.code == Exit.FLAGS
    assert all(reason in str(caught.value) for reason in reasons)


def test_files_may_stand_before_and_after_flags():
    assert pretokenize.read_flags(["a.txt", "--vocab_size", "300", "b.txt"]).files == ["a.txt", "b.txt"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "BPE"}}'])
def test_a_tokenizer_that_is_none_is_refused(content):
    write("a.txt", "text")
    write("t.json", content)
    refused("a.txt", "--tokenizer_file", "t.json", match=r"t\.json")


# ---------------------------------------------------------------- the output folder


def test_metadata_tells_what_was_written():
    write("deep/folder/a.txt", words(5000))
    metadata = run("deep/folder/a.txt")
    assert (metadata["format"], metadata["version"]) == (METADATA_FORMAT, METADATA_VERSION)
    assert (metadata["end_of_text_id"], metadata["end_of_text"], metadata["sources"]) == (0, "<|endoftext|>", ["a.txt"])
    for part, split in metadata["splits"].items():
        path = Path(f"data/{part}.bin")
        assert (split["file_bytes"], split["modified_ns"]) == (path.stat().st_size, path.stat().st_mtime_ns)
        assert split["sha256"] == sha256_of(path)
    assert metadata["tokenizer"] == {"trained_here": True, "sha256": sha256_of(Path("data/tokenizer.json"))}


def test_outputs_are_refused_without_overwrite_before_anything_is_read():
    write("a.txt", "some text")
    run("a.txt")
    refused("missing.txt", match="--overwrite")


@pytest.mark.parametrize("broken", ["write_whole", "sync", "sha256_of"])
def test_a_disk_that_is_full_at_the_end_leaves_the_old_set_or_none(monkeypatch, broken):
    write("a.txt", words(3000))
    run("a.txt")
    old = written()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cli, broken, fail)
        refused("a.txt", "--vocab_size", "300", "--overwrite", code=Exit.MACHINE, match="No space left")
    assert not [name for name in os.listdir("data") if name.endswith(".tmp")]
    assert written() == old
    assert run("a.txt", "--vocab_size", "300")["vocab_size"] == 300
    assert not [name for name in os.listdir("data") if name.startswith(".")]


def test_leftovers_of_dead_runs_are_swept_and_strangers_stay():
    for name in (
        ".pretokenize/stdin",
        ".pretokenize/new/train.bin",
        ".pretokenize/journal.json",
        ".mine.1.tmp",
        "notes.txt",
    ):
        write(f"data/{name}", "left")
    write("a.txt", "some text")
    run("a.txt")
    assert set(os.listdir("data")) - set(TOKEN_FILES) == {"metadata.json", ".mine.1.tmp", "notes.txt"}


def test_a_folder_in_use_and_one_that_cannot_be_written_are_told_apart():
    write("a.txt", "some text")
    with Folder(Path("data")):
        refused("a.txt", code=Exit.BUSY)
    refused("a.txt", "--output_dir", "a.txt", code=Exit.MACHINE)


def test_a_disk_too_small_is_found_before_reading(monkeypatch):
    write("a.txt", "some text")
    monkeypatch.setattr(pretokenize.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    refused("a.txt", code=Exit.MACHINE, match=r"1000 bytes are free, about 64\.0 MiB are needed")


# ---------------------------------------------------------------- many machines


def separated_corpus() -> tuple[str, ...]:
    """Plain and packed files that can and cannot be cut, with doubles and one document that is long."""
    texts = corpus()
    write("in/a.txt", "<->".join(texts))
    write("in/b.jsonl", lines(corpus(40, seed=1)))
    write("in/c.jsonl.gz", gzip.compress(lines(texts[:9]).encode()))
    return "in", "--document_separator", "<->", "--val_fraction", "0.2"


@pytest.fixture
def small_spans(monkeypatch):
    for name, value in (("SPAN_BYTES", 1000), ("BLOCK_BYTES", 700), ("PART_BYTES", 300)):
        monkeypatch.setattr(text, name, value)


def run_shards(number: int, *argv: str) -> None:
    for shard in range(number):
        assert pretokenize.main([*argv, "--shard", f"{shard}/{number}", "--num_workers", "1"]) == 0


@pytest.mark.parametrize("number", [1, 3, 7])
def test_shards_put_together_are_the_run_of_one_machine(number, small_spans, tokenizer_file, capsys):
    argv = (*separated_corpus(), "--tokenizer_file", str(tokenizer_file))
    for more in ((), ("--dedup",), ("--format", "megatron")):
        metadata = run(*argv, *more, output_dir="whole")
        if more == ():
            run_shards(number, *argv)
            assert "--finalize --output_dir data" in capsys.readouterr().out
        assert pretokenize.main(["--finalize", *more, "--overwrite"]) == 0
        assert written() == written("whole")
        changed = {key: value for key, value in metadata_of().items() if value != metadata[key]}
        assert set(changed) <= {"splits", "created", "sources", "num_sources"}
        for split, told in changed["splits"].items():
            assert told | {"modified_ns": 0} == metadata["splits"][split] | {"modified_ns": 0}
    refused("--finalize", match="--overwrite")
    assert "shard-* folders are no longer needed" in capsys.readouterr().out


@pytest.mark.parametrize("fraction", ["1e-12", "0.999999999999"])
def test_the_split_of_shards_is_mended_as_that_of_one_machine(fraction, small_spans, tokenizer_file):
    argv = (*separated_corpus(), "--tokenizer_file", str(tokenizer_file), "--val_fraction", fraction)
    run(*argv, output_dir="whole")
    run_shards(3, *argv)
    assert pretokenize.main(["--finalize"]) == 0
    assert written() == written("whole")
    assert min(split["documents"] for split in metadata_of()["splits"].values()) == 1


def test_shards_that_lack_or_differ_or_changed_are_named(small_spans, tokenizer_file):
    argv = (*separated_corpus(), "--tokenizer_file", str(tokenizer_file))
    refused("--finalize", match="holds no shard")
    run_shards(3, *argv)
    refused(*argv, "--shard", "1/3", match=r"shard-00001-of-00003 holds .* already\. Give --overwrite")
    assert pretokenize.main([*argv, "--shard", "1/3", "--overwrite", "--num_workers", "1"]) == 0
    shutil.move("data/shard-00001-of-00003", "aside")
    refused("--finalize", match=r"lacks 1 of 3 shards: 1\. Run --shard 1/3")
    write("in/d.txt", "more")
    assert pretokenize.main([*argv, "--shard", "1/3", "--num_workers", "1"]) == 0
    refused("--finalize", match="shards of 2 different commands or texts")
    shutil.rmtree("data/shard-00001-of-00003")
    for name in ("train.bin", "val.idx", "train.docs", "tokenizer.json"):
        shutil.copytree("aside", "data/shard-00001-of-00003")
        path = Path("data/shard-00001-of-00003", name)
        content = bytearray(path.read_bytes())
        for damaged in (content[:-1], b"\x55" + content[1:], None):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            refused("--finalize", match=rf"shard-00001-of-00003/{name} is not what was written")
        shutil.rmtree("data/shard-00001-of-00003")
    assert not Path("data/train.bin").exists()
    shutil.move("aside", "data/shard-00001-of-00003")
    assert pretokenize.main(["--finalize"]) == 0


def test_a_slurm_array_does_a_share_each(small_spans, tokenizer_file, monkeypatch):
    argv = (*separated_corpus(), "--tokenizer_file", str(tokenizer_file))
    run(*argv, output_dir="whole")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "5")
    for task in ("5", "6", "7"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        assert pretokenize.main([*argv, "--num_workers", "1"]) == 0
    refused("in", code=Exit.FLAGS, match="Slurm array")
    assert pretokenize.main(["--finalize"]) == 0
    assert written() == written("whole")


def test_schedulers_may_call_for_a_shard(small_spans, tokenizer_file):
    argv = separated_corpus()
    run(*argv, "--tokenizer_file", str(tokenizer_file), output_dir="whole")
    for shard in range(2):
        told = pretokenize.tokenize_shard(
            ["in"], str(tokenizer_file), "data", shard, 2, document_separator="<->", val_fraction=0.2
        )
        assert (told["shard"], told["num_shards"]) == (shard, 2)
    assert pretokenize.main(["--finalize"]) == 0
    assert written() == written("whole")
    with pytest.raises(UserError, match="No such file") as caught:
        pretokenize.tokenize_shard(["missing.txt"], str(tokenizer_file), "data", 0, 2)
    assert caught.value.code == Exit.DATA


def test_a_single_document_is_not_shared(tokenizer_file):
    write("a.txt", words(300))
    refused("a.txt", "--shard", "0/2", "--tokenizer_file", str(tokenizer_file), match="single document")
    write("a.jsonl", lines([words(300)]))
    run_shards(2, "a.jsonl", "--tokenizer_file", str(tokenizer_file))
    refused("--finalize", match="single document")


# ---------------------------------------------------------------- the layouts of others


def tokens_of(layout: str, split: str, dtype: str) -> tuple[list[int], list[int]]:
    """The ids of a split as a naive reader of the layout sees them, and how many each file holds."""
    names = sorted(Path("data").glob(f"tokens_{split}_*.bin" if layout == "llmc" else f"{split}*.bin"))
    ids, lengths = [], []
    for path in names:
        content = path.read_bytes()
        if layout == "llmc":
            header = struct.unpack("<256i", content[:1024])
            assert header[:3] == (20240520, 1, (len(content) - 1024) // 2)
            assert not any(header[3:])
            content = content[1024:]
        mine = np.frombuffer(content, dtype).tolist()
        ids += mine
        lengths.append(len(mine))
    return ids, lengths


@pytest.mark.parametrize("shard_tokens", [None, 1000, 777])
@pytest.mark.parametrize("layout", ["native", "nanogpt", "llmc"])
def test_each_layout_holds_the_same_ids(layout, shard_tokens, tokenizer_file):
    write("a.jsonl", lines(corpus()))
    argv = ("a.jsonl", "--val_fraction", "0.2", "--tokenizer_file", str(tokenizer_file))
    run(*argv, output_dir="native")
    metadata = run(*argv, "--format", layout, *(("--shard_tokens", str(shard_tokens)) if shard_tokens else ()))
    native = metadata_of("native")
    assert metadata["layout"] == layout
    for split in ("train", "val"):
        expected = np.fromfile(f"native/{split}.bin", "<i2").tolist()
        ids, lengths = tokens_of(layout, split, "<i2" if layout == "native" else "<u2")
        assert ids == expected
        full = shard_tokens or len(ids)
        assert lengths == [full] * (len(ids) // full) + [len(ids) % full] * bool(len(ids) % full)
        told = metadata["splits"][split]
        same = ("tokens", "documents", "bytes", "largest_id")
        assert [told[key] for key in same] == [native["splits"][split][key] for key in same]
        for file in told.get("files", []):
            path = Path("data", file["name"])
            assert (file["file_bytes"], file["sha256"]) == (path.stat().st_size, sha256_of(path))
        assert sum(file["tokens"] for file in told.get("files", [told])) == len(ids)
    assert len(written()) == 1 + sum(len(told.get("files", [0])) for told in metadata["splits"].values()) + 2 * (
        layout == "native"
    )
    first = 1 if layout == "llmc" else 0
    if shard_tokens or layout == "llmc":
        assert f"{'tokens_' * (layout == 'llmc')}train_{first:06}.bin" in written()


def test_megatrons_index_says_where_each_document_lies(tokenizer_file):
    write("a.jsonl", lines(corpus()))
    argv = ("a.jsonl", "--val_fraction", "0.2", "--tokenizer_file", str(tokenizer_file))
    run(*argv, output_dir="native")
    run(*argv, "--format", "megatron")
    for split in ("train", "val"):
        ends = np.fromfile(f"native/{split}.idx", "<u8")
        content = Path(f"data/{split}.idx").read_bytes()
        magic, version, code, sequences, entries = struct.unpack("<9sQBQQ", content[:34])
        assert (magic, version, code, sequences, entries) == (b"MMIDIDX\0\0", 1, 8, len(ends), len(ends) + 1)
        lengths = np.frombuffer(content, "<i4", len(ends), 34)
        starts = np.frombuffer(content, "<i8", len(ends), 34 + 4 * len(ends))
        assert np.cumsum(lengths).tolist() == ends.tolist()
        assert starts.tolist() == [0, *(2 * ends[:-1]).tolist()]
        assert np.frombuffer(content, "<i8", -1, 34 + 12 * len(ends)).tolist() == list(range(len(ends) + 1))
        assert np.fromfile(f"data/{split}.bin", "<u2").tolist() == np.fromfile(f"native/{split}.bin", "<i2").tolist()


def test_a_set_of_another_layout_is_replaced_as_a_whole(tokenizer_file):
    write("a.jsonl", lines(corpus()))
    argv = ("a.jsonl", "--val_fraction", "0.2", "--tokenizer_file", str(tokenizer_file))
    for more in (("--format", "llmc"), ("--format", "nanogpt", "--shard_tokens", "500"), ("--format", "megatron"), ()):
        run(*argv, *more)
        run(*argv, *more, output_dir="fresh")
        assert set(os.listdir("data")) == set(os.listdir("fresh"))
        shutil.rmtree("fresh")


# ---------------------------------------------------------------- looking inside


LAYOUTS = [
    ("native",),
    ("native", "--shard_tokens", "900"),
    ("nanogpt",),
    ("llmc", "--shard_tokens", "900"),
    ("megatron",),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_finished_folder_is_verified_and_what_changed_is_named(layout, tokenizer_file, capsys):
    write("a.jsonl", lines(corpus()))
    run("a.jsonl", "--val_fraction", "0.2", "--tokenizer_file", str(tokenizer_file), "--format", *layout)
    assert pretokenize.main(["--verify", "data"]) == 0
    said = capsys.readouterr().out
    for split, told in metadata_of()["splits"].items():
        assert f"{split}: {told['tokens']:,} tokens, {told['documents']:,} documents" in said
    for name, content in written().items():
        path = Path("data", name)
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        for place in (0, len(content) // 2, len(content) - 1):
            changed = bytearray(content)
            changed[place] ^= 1
            path.write_bytes(changed)
            os.utime(path, ns=times)  # as a disk changes it: size and time tell nothing
            assert name in refused("--verify", "data"), (name, place)
        for changed in (content[:-2], content[:-1], content[: len(content) // 2], b"", content + b"\0\0", None):
            path.unlink() if changed is None else path.write_bytes(changed)
            refused("--verify", "data", match="tokenizer" if name == "tokenizer.json" else "")
        path.write_bytes(content)
        os.utime(path, ns=times)
    assert pretokenize.main(["--verify", "data"]) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_metadata_with_other_numbers_is_found(layout, tokenizer_file):
    write("a.jsonl", lines(corpus()))
    run("a.jsonl", "--val_fraction", "0.2", "--tokenizer_file", str(tokenizer_file), "--format", *layout)
    whole = metadata_of()

    def changed(*keys: str | int, value: object) -> None:
        fields = json.loads(json.dumps(whole))
        inner: Any = fields
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        write("data/metadata.json", json.dumps(fields))
        refused("--verify", "data")

    for split in ("train", "val"):
        changed("splits", split, "tokens", value=whole["splits"][split]["tokens"] + 1)
        changed("splits", split, value=5)
        if layout[0] in ("native", "megatron"):
            changed("splits", split, "documents", value=whole["splits"][split]["documents"] - 1)
        if "files" in whole["splits"][split]:
            changed("splits", split, "files", 0, "sha256", value="0" * 64)
            changed("splits", split, "files", value=[])
            changed("splits", split, "files", value=[5])
        else:
            changed("splits", split, "sha256", value="0" * 64)
    changed("tokenizer", "sha256", value="0" * 64)
    changed("tokenizer", value=None)
    changed("vocab_size", value=whole["vocab_size"] + 1)
    if layout[0] in ("native", "nanogpt"):  # the others' files say it themselves
        changed("dtype", value="int32")
    changed("layout", value="other")
    write("data/metadata.json", json.dumps(whole))
    assert pretokenize.main(["--verify", "data"]) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_documents_are_shown_whatever_the_layout(layout, tokenizer_file, capsys):
    texts = [f"document {number}" for number in range(30)] + ["ends\x1b[31m here"]
    write("a.jsonl", lines(texts[::-1]))
    run(
        "a.jsonl",
        "--val_fraction",
        "0.1",
        "--tokenizer_file",
        str(tokenizer_file),
        "--format",
        layout[0],
        *(("--shard_tokens", "200") if layout[1:] else ()),
    )
    kept = [content for content in texts[::-1] if hash_share(content) >= 0.1]
    capsys.readouterr()
    for argv in (["--peek", "5"], ["--verify", "data", "--peek", "5"]):
        assert pretokenize.main(argv) == 0
        shown = [
            line.partition(": ")[2] for line in capsys.readouterr().out.splitlines() if line.startswith("document ")
        ]
        assert shown == [content.replace("\x1b", "\\x1b") for content in kept[:5]]


# ---------------------------------------------------------------- dying and going on


class Killed(BaseException):
    """As kill -9 would, as far as a test can."""


class Mortal:
    """Counts what workers answer, and dies at the n-th of them."""

    def __init__(self, monkeypatch):
        self.left, self.encoded = -1, 0
        inner = Reader.answer

        def answer(reader, block):
            self.left -= 1
            if self.left == 0:
                raise Killed
            self.encoded += reader.setup.task == "encode"
            return inner(reader, block)

        monkeypatch.setattr(Reader, "answer", answer)

    def run(self, *argv: str, after: int) -> bool:
        """Runs the command until it is killed; True if it was not."""
        self.left = after
        try:
            return pretokenize.main([*argv, "--num_workers", "1"]) == 0
        except Killed:
            return False


JOBS = {
    "many": ("many.jsonl",),
    "trained": ("many.jsonl", "--vocab_size", "400"),
    "packed": ("many.jsonl.gz", "--dedup"),
    "separated": ("many.txt", "--document_separator", "<->", "--format", "llmc", "--shard_tokens", "900"),
    "one": ("one.txt",),
    "one trained": ("one.txt.gz", "--vocab_size", "400"),
    "one line": ("one.jsonl",),
    "one line trained": ("one.jsonl", "--vocab_size", "400"),
    "one short line": ("short.jsonl",),
}


@pytest.fixture
def jobs(monkeypatch, tokenizer_file):
    for name, value in (("BLOCK_BYTES", 900), ("PART_BYTES", 500), ("LONG_LINE_BYTES", 2500), ("WINDOW_BYTES", 100)):
        monkeypatch.setattr(text, name, value)
    monkeypatch.setattr(passes, "JOURNAL_SECONDS", -1)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    texts = corpus(20)
    texts = [*texts[:5], " " * 3000, *texts[5:9], words(3000, 5), words(4000, 6), *texts[9:], texts[3]]
    write("many.jsonl", lines(texts))
    write("many.jsonl.gz", gzip.compress(lines(texts).encode()))
    write("many.txt", "<->".join(texts))
    write("one.txt", words(5000))
    write("one.txt.gz", gzip.compress(words(5000).encode()))
    write("one.jsonl", lines([words(5000)]))
    write("short.jsonl", lines(["short " * 20]))

    def argv(name: str) -> tuple[str, ...]:
        how = () if "trained" in name else ("--tokenizer_file", str(tokenizer_file))
        return *JOBS[name], "--val_fraction", "0.3", *how

    return argv


@pytest.mark.parametrize("name", ["many", "trained", "packed", "separated"])  # one document is written in one go
@pytest.mark.parametrize("after", [12, 17])
def test_a_run_killed_again_and_again_goes_on_and_writes_the_same_bytes(name, after, jobs, monkeypatch):
    mortal = Mortal(monkeypatch)
    run(*jobs(name), output_dir="whole")
    num_blocks, mortal.encoded, attempts = mortal.encoded, 0, 0
    before = 0  # answers before the first id is written, of the passes that train the tokenizer
    if "trained" in name:
        while not mortal.run(*jobs(name), after=before + 1) and mortal.encoded == 0:
            before += 4
        shutil.rmtree("data")
        mortal.encoded = 0
        assert not mortal.run(*jobs(name), after=before + after)
    while not mortal.run(*jobs(name), after=after):
        attempts += 1
        assert attempts < num_blocks
        assert not Path("data/metadata.json").exists()
    assert attempts > 1
    assert written() == written("whole")
    assert metadata_of()["split_rule"] == metadata_of("whole")["split_rule"]
    assert num_blocks <= mortal.encoded <= num_blocks + (attempts + 1) * 11  # a document may be begun anew
    assert not [entry for entry in os.listdir("data") if entry.startswith(".")]


@pytest.mark.parametrize("name", JOBS)
def test_a_run_killed_at_any_block_goes_on_and_writes_the_same_bytes(name, jobs, monkeypatch):
    mortal = Mortal(monkeypatch)
    run(*jobs(name), output_dir="whole")
    expected = written("whole")
    for after in range(1, 300, 19 if "trained" in name else 5):
        shutil.rmtree("data", ignore_errors=True)
        if mortal.run(*jobs(name), after=after):
            break
        assert not Path("data/metadata.json").exists()
        assert mortal.run(*jobs(name), after=-1)
        assert written() == expected
        assert metadata_of()["split_rule"] == metadata_of("whole")["split_rule"]
    else:
        raise AssertionError


@pytest.mark.parametrize(
    ("name", "overwrite", "step"),
    [("many", False, 1), ("many", True, 1), ("separated", False, 5), ("one line trained", True, 9)],
)
def test_a_run_killed_at_any_write_goes_on_and_writes_the_same_bytes(name, overwrite, step, jobs, monkeypatch):
    monkeypatch.setattr(passes, "JOURNAL_SECONDS", 99)
    argv = (*jobs(name), "--num_workers", "1")
    run(*jobs(name), output_dir="whole")
    expected = written("whole")
    for last in itertools.count(1, step):
        shutil.rmtree("data", ignore_errors=True)
        if overwrite:
            for old in ("train.bin", "val.bin", "val_000007.bin", "tokenizer.json", "metadata.json"):
                write(f"data/{old}", "old")
        calls = 0

        def counted(inner, last=last):
            def call(*args, **named):
                nonlocal calls
                calls += 1
                if calls >= last:
                    raise Killed
                return inner(*args, **named)

            return call

        more = ("--overwrite",) * overwrite
        finished = False
        with monkeypatch.context() as patch:
            patch.setattr(Folder, "__exit__", lambda folder, *_: folder.lock.close())
            for owner, step_name in ((cli, "write_whole"), (cli, "sync"), (Path, "replace"), (Path, "unlink")):
                patch.setattr(owner, step_name, counted(getattr(owner, step_name)))
            with contextlib.suppress(Killed):
                finished = pretokenize.main([*argv, *more]) == 0
        there = set(os.listdir("data"))
        if overwrite and "metadata.json" in there and Path("data/metadata.json").read_text() == "old":
            assert all(Path("data", old).read_text() == "old" for old in ("train.bin", "val.bin", "tokenizer.json"))
        elif "metadata.json" in there:
            assert written() == expected
        if finished:
            assert last > 15
            break
        assert pretokenize.main([*argv, *more]) == 0
        assert written() == expected
        assert metadata_of()["splits"].keys() == metadata_of("whole")["splits"].keys()


def test_a_run_with_other_flags_starts_anew(jobs, monkeypatch):
    mortal = Mortal(monkeypatch)
    argv = jobs("many")
    run(*argv, "--min_document_chars", "50", output_dir="whole")
    assert not mortal.run(*argv, after=9)
    assert mortal.run(*argv, "--min_document_chars", "50", after=-1)
    assert written() == written("whole")
    shutil.rmtree("data")
    assert not mortal.run(*argv, after=9)
    mortal.encoded = 0
    write("many.jsonl", Path("many.jsonl").read_text().replace("\\n", " "))
    assert mortal.run(*argv, after=-1)
    run(*argv, output_dir="whole")
    assert written() == written("whole")


def test_what_was_piped_is_not_kept(jobs, monkeypatch):
    mortal = Mortal(monkeypatch)
    for _ in range(2):
        with monkeypatch.context() as patch, open("many.jsonl", "rb") as stdin:
            patch.setattr(sys, "stdin", stdin)
            assert not mortal.run("-", *jobs("many")[1:], after=9)
        assert not Path("data").exists()


@pytest.mark.parametrize("name", ["trained", "packed", "one trained"])
@pytest.mark.parametrize("num_workers", ["1", "2"])
@pytest.mark.parametrize(
    "stage", ["measuring", "reading", "sampling", "training the tokenizer", "encoding", "writing to the disk"]
)
def test_a_signal_in_any_stage_leaves_no_token_file_and_no_process(name, num_workers, stage, jobs, monkeypatch, capsys):
    inner, seen = Job.stage, []

    def interrupted(job, stage_name):
        seen.append(stage_name)
        if stage_name == stage:
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(job, stage_name)

    monkeypatch.setattr(Job, "stage", interrupted)
    code = pretokenize.main([*jobs(name), "--num_workers", num_workers])
    if stage not in seen:
        assert code == 0
        return
    assert code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in capsys.readouterr().err
    assert not Path("data").exists() or os.listdir("data") == [".pretokenize"]
    monkeypatch.undo()


def test_a_worker_that_dies_is_named_and_what_was_done_is_kept(jobs, monkeypatch):
    inner, here = Reader.answer, os.getpid()

    def answer(reader, block):
        if os.getpid() != here and block.offset > 6000:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(reader, block)

    run(*jobs("many"), output_dir="whole")
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "answer", answer)
        refused(*jobs("many"), "--num_workers", "2", code=Exit.MACHINE, match=r"worker process died \(exit -9\)")
    mortal = Mortal(monkeypatch)
    assert mortal.run(*jobs("many"), after=-1)
    assert written() == written("whole")
    assert 0 < mortal.encoded < 40


def test_a_terminated_command_takes_its_processes_with_it(tokenizer_file):
    write("a.jsonl", lines([words(2000, number) for number in range(40)]) * 80)
    argv = [sys.executable, str(ROOT / "pretokenize.py"), "a.jsonl", "--num_workers", "3", "--engine", "tokenizers"]
    started = subprocess.Popen(
        [*argv, "--tokenizer_file", str(tokenizer_file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert started.stdout is not None
    for line in started.stdout:
        if line.startswith(b"encoding with"):
            break
    time.sleep(0.2)
    os.kill(started.pid, signal.SIGTERM)
    error = started.communicate(timeout=30)[1].decode()
    assert started.returncode == 143, error
    assert "stopped by SIGTERM" in error
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)
    assert not Path("data/metadata.json").exists()


# ---------------------------------------------------------------- what is said


def test_the_closing_block_says_what_was_made(capsys):
    write("a.txt", words(5000))
    metadata = run("a.txt")
    block = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line)
    tokens = [metadata["splits"][part]["tokens"] for part in ("train", "val")]
    assert block["tokens"] == f"{sum(tokens):,} (train {tokens[0]:,}, val {tokens[1]:,})"
    assert float(block["bytes per token"]) == pytest.approx(5000 / sum(tokens), abs=1e-3)
    assert block["next"] == "python train.py"


def test_help_wrong_flags_and_bugs_answer_without_the_slow_imports():
    done = command("--help", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert b"--val_fraction" in done.stdout
    assert b"numpy" not in done.stderr
    done = command("--vocab_size", "1")
    assert done.returncode == Exit.FLAGS
    assert done.stderr.decode().startswith("error: --vocab_size '1': must be auto or a whole number of at least 257")


# ---------------------------------------------------------------- killed in earnest

KILLED = """
import sys
sys.path.insert(0, {root!r})
import cli, engine, passes, pretokenize, text
passes.JOURNAL_SECONDS, engine.SMALLEST_SAMPLE, text.BLOCK_BYTES, text.SPAN_BYTES = 0.05, 0, 2**19, 2**19
cli.guard(pretokenize.main)
"""


def start(*argv: str) -> subprocess.Popen:
    """The command in a session of its own; it notes what it has done all the time."""
    line = [sys.executable, "-c", KILLED.format(root=str(ROOT)), *argv]
    with open("shown", "ab") as shown:
        return subprocess.Popen(line, stdout=shown, stderr=shown, start_new_session=True)


def living(group: int) -> list[str]:
    """The processes of a group that still do something."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = place.read_text(errors="replace").rpartition(")")
            state, _, its_group, *_ = rest.split()
            found += [name] if int(its_group) == group and state not in "ZX" else []
    return found


def hashes(folder: str) -> dict[str, str]:
    """The sha256 of each file of a finished folder."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in written(folder).items()}


def is_whole(folder: str, expected: dict[str, str]) -> bool:
    """False if a reader refuses the folder; what it accepts must be the whole set."""
    path = Path(folder)
    try:
        open_corpus(path, None, path / "metadata.json", path / "tokenizer.json")
    except UserError:
        return False
    assert hashes(folder) == expected
    return True


def killed_after(seconds: float, takes_all: bool, *argv: str) -> bool:
    """Runs the command for so long; True if it was killed, with its workers or before them."""
    process = start(*argv)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        assert process.returncode == 0, Path("shown").read_text()
        return False
    (os.killpg if takes_all else os.kill)(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 5
    while living(process.pid):
        assert time.monotonic() < deadline, living(process.pid)
        time.sleep(0.01)
    return True


def large_corpus() -> None:
    """Some 10 MB: lines, packed lines, a packed text, small texts; and a single text."""
    texts = [words(500 + 97 * (number % 90), number) + STRINGS[number % len(STRINGS)] for number in range(900)]
    write("mixed/a.jsonl", lines(texts * 2))
    write("mixed/b.jsonl.gz", gzip.compress(lines([words(3000, number) for number in range(900, 1200)]).encode(), 1))
    write("mixed/c.txt.gz", gzip.compress((words(1_500_000, 1200) + "\u00e9\0\n").encode(), 1))
    for number in range(20):
        write(f"mixed/d{number}.txt", words(9000, 1300 + number) + "\U0001f600")
    write("one.txt", "".join(texts) + words(2_000_000, 1400))


ENGINES = ["tokenizers"] + ["gigatoken"] * (importlib.util.find_spec("gigatoken") is not None)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="looks for processes in /proc")
@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("what", ["mixed", "mixed trained", "one.txt", "one.txt trained"])
def test_a_command_killed_at_any_instant_goes_on_and_writes_the_same_bytes(what, engine_name, tokenizer_file):
    large_corpus()
    how = ("--vocab_size", "1500") if "trained" in what else ("--tokenizer_file", str(tokenizer_file))
    argv = (what.split()[0], *how, "--val_fraction", "0.1", "--num_workers", "2", "--engine", engine_name)
    began = time.monotonic()
    assert start(*argv, "--output_dir", "whole").wait() == 0, Path("shown").read_text()
    seconds, expected = time.monotonic() - began, hashes("whole")
    assert sum(path.stat().st_size for path in Path("whole").glob("train.bin")) > 10**6
    rng, kills, rounds, gone_on = random.Random(f"{what} {engine_name}"), 0, 0, 0
    while kills < 7:
        Path("shown").unlink()
        rounds += 1
        for _ in range(rng.choice([1, 1, 2, 3])):
            if not killed_after(rng.uniform(0, seconds), kills % 2 == 0, *argv):
                break
            kills += 1
            if is_whole("data", expected):
                break
        if not Path("data/metadata.json").exists() or Path("data/.pretokenize/journal.json").exists():
            assert start(*argv).wait() == 0, Path("shown").read_text()
        assert is_whole("data", expected)
        assert start(*argv).wait() == Exit.DATA  # it is there already
        assert [entry for entry in os.listdir("data") if entry.startswith(".")] == []
        gone_on += "an earlier run" in Path("shown").read_text()
        shutil.rmtree("data")
    print(f"{kills} kills, {gone_on} of {rounds} rounds went on, {seconds:.1f} s undisturbed")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="looks for processes in /proc")
@pytest.mark.parametrize("engine_name", ENGINES)
def test_shards_killed_at_any_instant_give_the_same_set(engine_name, tokenizer_file):
    large_corpus()
    argv = ("mixed", "--tokenizer_file", str(tokenizer_file), "--val_fraction", "0.1", "--engine", engine_name)
    assert start(*argv, "--output_dir", "whole").wait() == 0, Path("shown").read_text()
    expected, rng, kills = hashes("whole"), random.Random(engine_name), 0
    for shard in range(3):
        share = (*argv, "--shard", f"{shard}/3", "--num_workers", "2")
        began = time.monotonic()
        assert start(*share, "--output_dir", "timed").wait() == 0, Path("shown").read_text()
        seconds = time.monotonic() - began
        for number in range(3):
            kills += killed_after(rng.uniform(0, seconds), number % 2 == 0, *share, "--overwrite")
            assert not is_whole("data", expected)
        assert start(*share, "--overwrite").wait() == 0, Path("shown").read_text()
    finalize = ("--finalize", "--output_dir", "data")
    for number in range(3):
        kills += killed_after(rng.uniform(0, 1), number % 2 == 0, *finalize, "--overwrite")
        is_whole("data", expected)
    assert start(*finalize, "--overwrite").wait() == 0, Path("shown").read_text()
    assert is_whole("data", expected)
    print(f"{kills} kills")
    assert kills >= 5


# ---------------------------------------------------------------- others' tokens


@pytest.mark.slow
def test_what_datatrove_writes_by_the_recipe_of_the_documents_is_what_train_reads(tokenizer_file):
    pytest.importorskip("datatrove")
    page = (ROOT / "docs/data.md").read_text()
    recipe = re.search(r"```python\n(from datatrove.*?)```.*?\n    python (train\.py .*?)\n", page, re.DOTALL)
    assert recipe is not None
    texts = [words(300 + number, number) + STRINGS[number % 11] for number in range(30)]
    for number in range(3):  # fewer than tasks: the others write empty files
        write(f"corpus/{number}.jsonl", lines(texts[10 * number : 10 * number + 10]))
    write("tokenizer/tokenizer.json", tokenizer_file.read_bytes())
    write("recipe.py", recipe[1])
    done = subprocess.run([sys.executable, "recipe.py"], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    parts = sorted(Path("tokens").glob("*.ds"))
    ids = np.concatenate([np.fromfile(part, "<u2") for part in parts]).tolist()
    tokenizer = load_tokenizer(tokenizer_file)
    end = tokenizer.token_to_id("<|endoftext|>")
    order = [number for task in range(8) for number in range(30) if number // 10 % 8 == task]
    texts = [texts[number] for number in order]  # a task reads every eighth file
    assert ids == [i for content in texts for i in [*tokenizer.encode(content).ids, end]]
    decoded = tokenizer.decode(ids, skip_special_tokens=False)
    assert decoded == "".join(content + "<|endoftext|>" for content in texts)
    argv = [sys.executable, str(ROOT / "train.py"), *shlex.split(recipe[2])[1:], "--no-use_gpu", "--max_steps", "3"]
    tiny = "--n_layer 1 --n_head 2 --n_embd 16 --seq_length 16 --batch_size 2 --sample_interval 0"
    done = subprocess.run([*argv, *tiny.split()], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    corpus = open_corpus(Path("tokens"), None, None, Path("tokenizer/tokenizer.json"))
    assert corpus.val is not None
    assert corpus.train.length + corpus.val.length == len(ids)
    numbers = count(corpus.train.length), count(corpus.val.length)
    assert "tokens      {} for training, {} for validation".format(*numbers) in done.stdout.decode()
