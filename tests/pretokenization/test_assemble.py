"""assemble.py: shards put together are the run of one machine; each layout holds the same ids."""

import gzip
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

import pretokenize
from common.errors import Exit, UserError
from common.files import sha256_of
from pretokenization.blocks import Limits
from tests.helpers.pretokenize import corpus, metadata_of, refused, run, written
from tests.helpers.texts import lines, words, write

SMALL = Limits(span_bytes=1000, block_bytes=700, part_bytes=300)


def separated_corpus() -> tuple[str, ...]:
    """Plain and packed files that can and cannot be cut, with duplicates and one document that is long."""
    texts = corpus()
    write("in/a.txt", "<->".join(texts))
    write("in/b.jsonl", lines(corpus(40, seed=1)))
    write("in/c.jsonl.gz", gzip.compress(lines(texts[:9]).encode()))
    return "in", "--document_separator", "<->", "--val_fraction", "0.2"


def run_shard(shard: int, number: int, *argv: str) -> None:
    assert pretokenize.main([*argv, "--shard", f"{shard}/{number}", "--num_workers", "1"], SMALL) == 0


def run_shards(number: int, *argv: str) -> None:
    for shard in range(number):
        run_shard(shard, number, *argv)


@pytest.mark.parametrize("number", [1, 3, 7])
def test_shards_put_together_are_the_run_of_one_machine(number, tokenizer_file, capsys):
    argv = (*separated_corpus(), "--tokenizer_file", str(tokenizer_file))
    for more in ((), ("--dedup",), ("--format", "megatron")):
        metadata = run(*argv, *more, output_dir="whole", limits=SMALL)
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
def test_the_split_of_shards_is_adjusted_as_that_of_one_machine(fraction, tokenizer_file):
    argv = (*separated_corpus(), "--tokenizer_file", str(tokenizer_file), "--val_fraction", fraction)
    run(*argv, output_dir="whole", limits=SMALL)
    run_shards(3, *argv)
    assert pretokenize.main(["--finalize"]) == 0
    assert written() == written("whole")
    assert min(split["documents"] for split in metadata_of()["splits"].values()) == 1


def test_without_a_share_that_of_shards_follows_from_all_of_their_text(tokenizer_file):
    write("a.jsonl", lines([words(100, number) for number in range(120)]))
    argv = ("a.jsonl", "--tokenizer_file", str(tokenizer_file))
    run(*argv, output_dir="whole", limits=SMALL)
    run_shards(3, *argv)
    assert pretokenize.main(["--finalize"]) == 0
    assert written() == written("whole")
    assert metadata_of()["split_rule"] == "the documents whose sha256 is among the lowest 10% of all values"


def test_shards_that_lack_or_differ_or_changed_are_named(tokenizer_file):
    argv = (*separated_corpus(), "--tokenizer_file", str(tokenizer_file))
    refused("--finalize", match="holds no shard")
    run_shards(3, *argv)
    refused(*argv, "--shard", "1/3", match=r"shard-00001-of-00003 already holds .*\. Give --overwrite")
    run_shard(1, 3, *argv, "--overwrite")
    shutil.move("data/shard-00001-of-00003", "aside")
    refused("--finalize", match=r"lacks 1 of 3 shards: 1\. Run --shard 1/3")
    write("in/d.txt", "more")
    run_shard(1, 3, *argv)
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


def test_a_slurm_array_does_a_share_each(tokenizer_file, monkeypatch):
    argv = (*separated_corpus(), "--tokenizer_file", str(tokenizer_file))
    run(*argv, output_dir="whole", limits=SMALL)
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "5")
    for task in ("5", "6", "7"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        assert pretokenize.main([*argv, "--num_workers", "1"], SMALL) == 0
    refused("in", code=Exit.FLAGS, match="Slurm array")
    assert pretokenize.main(["--finalize"]) == 0
    assert written() == written("whole")


def test_schedulers_may_call_for_a_shard(tokenizer_file):
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
