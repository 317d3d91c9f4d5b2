"""pretokenize.py: what comes out is what went in, split as promised, committed as a whole, refused with a reason."""

import codecs
import gzip
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pretokenize
from gpt.common.errors import Exit
from gpt.common.files import sha256_of
from gpt.common.signals import Signals
from gpt.pretokenization import commit, store, vocabulary
from gpt.pretokenization.block_task import PART_SEPARATOR
from gpt.pretokenization.blocks import SAFE_CUT, Limits, Reading, parts_of
from gpt.tokens.metadata import METADATA_FORMAT, METADATA_VERSION
from gpt.tokens.stream import DTYPES
from gpt.tokens.tokenizer import load_tokenizer, opening_ids, parse, vocabulary_of
from tests.helpers.commands import run as run_command
from tests.helpers.pretokenize import (
    TOKEN_FILES,
    corpus,
    documents,
    hash_share,
    in_an_empty_folder,
    refused,
    run,
    trained,
    with_opening_ids,
    written,
)
from tests.helpers.texts import ALPHABET, PACK, STRINGS, in_language, lines, spelt_lines, words, write
from tests.helpers.training_texts import tokenizer_json


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    yield from in_an_empty_folder(tmp_path, monkeypatch)


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


def test_the_ids_are_gpt2s_wherever_the_parts_are_cut():
    rng = random.Random(1)
    tokenizer = parse(trained([words(20_000) + "".join(rng.choices(ALPHABET, k=4000))]))
    num_cuts = 0
    for _ in range(60):
        content = "x" + "".join(rng.choices(ALPHABET, k=rng.randint(1, 400)))
        whole = tokenizer.encode(content, add_special_tokens=False).ids
        for part_bytes in (20, 33, 64, 200):
            reading = Reading(limits=Limits(part_bytes=part_bytes))
            parts = [part.decode() for part in parts_of(content.encode(), reading)]
            assert "".join(parts) == content
            ends = np.cumsum([len(part) for part in parts])[:-1].tolist()
            if all(SAFE_CUT.match(content, end - 1) for end in ends):  # no cut was a hard one
                assert [i for part in parts for i in tokenizer.encode(part, add_special_tokens=False).ids] == whole
                num_cuts += len(ends)
    assert num_cuts > 500


@pytest.mark.parametrize("change", ["normalizer", "prefix", "pattern", "word"])
def test_a_tokenizer_that_splits_otherwise_is_known(change):
    from tokenizers import normalizers, pre_tokenizers

    content = tokenizer_json(("t", "h"), ("th", "e"))
    assert vocabulary_of(parse(content), 0).splits_as_gpt2
    tokenizer = parse(content)
    if change == "normalizer":
        tokenizer.normalizer = normalizers.NFC()  # type: ignore[assignment]
    elif change == "prefix":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)  # type: ignore[assignment]
    elif change == "pattern":
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    else:
        tokenizer.add_tokens(["two words"])
    assert not vocabulary_of(tokenizer, 0).splits_as_gpt2


# ---------------------------------------------------------------- one text, many forms


def in_forms(texts: list[str]) -> dict[str, list[str]]:
    """The same documents written in every form; how each is read."""
    separated, of_json = "<->".join(texts), lines(texts)
    for number, content in enumerate(texts):
        write(f"folder/{number:04}.txt", content)
    for ending, pack in PACK.items():
        write(f"a.jsonl.{ending}", pack(of_json.encode()))
        write(f"a.txt.{ending}", pack(separated.encode()))
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": texts}), "a.parquet", row_group_size=9)
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
        "two": [write("1.jsonl", lines(texts[:9])), write("2.txt", "<->".join(texts[9:])), "--document_separator",
                "<->"],
        "piped": ["-", "stdin:" + write("p.txt", separated), "--document_separator", "<->"],
        "piped lines": ["-", "stdin:a.jsonl"],
        "piped gzip": ["-", "stdin:a.json.gz"],
        "table": ["a.parquet"],
        "piped table": ["-", "stdin:a.parquet"],
    }
    for ending in PACK:
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
    forms = in_forms(texts)
    if is_trained:  # training takes a process each time
        forms = {form: forms[form] for form in ("lines", "separated gz", "piped", "two")}
    made = {form: run_form(monkeypatch, argv, *more) for form, argv in forms.items()}
    expected = made["lines"]
    assert set(expected) == set(TOKEN_FILES)
    assert [form for form, files in made.items() if files != expected] == []
    assert documents("train") == [content for content in texts if hash_share(content) >= 0.2]
    assert documents("val") == [content for content in texts if hash_share(content) < 0.2]


@pytest.mark.parametrize("has_opening", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_any_workers_and_block_sizes_give_the_ids_of_tokenizers(has_opening, tokenizer_file):
    texts, tokenizer = corpus(), load_tokenizer(tokenizer_file)
    opening = []
    if has_opening:
        tokenizer_file = with_opening_ids(tokenizer_file, "<bos>", "<mask>")
        opening = opening_ids(load_tokenizer(tokenizer_file))
        assert len(opening) == 2
    write("a.jsonl", lines(texts))
    write("a.txt", "<->".join(texts))
    write("a.jsonl.gz", gzip.compress(lines(texts).encode()))
    ids = [[*opening, *tokenizer.encode(content, add_special_tokens=False).ids, 0] for content in texts]
    expected: dict[str, list[int]] = {"train": [], "val": []}
    for mine, content in zip(ids, texts, strict=True):
        expected["val" if hash_share(content) < 0.2 else "train"] += mine
    sizes = [(2**22, 2**20, 2**16), (500, 64, 64), (64, 64, 64), (3000, 100, 7)]
    argv = ("--document_separator", "<->", "--val_fraction", "0.2", "--tokenizer_file", str(tokenizer_file))
    for number, (block, part, window) in enumerate(sizes):
        limits = Limits(block_bytes=block, part_bytes=part, window_bytes=window)
        for num_workers in ("1", "2", "3") if number == 3 else ("1",):
            for name in ("a.jsonl", "a.txt", "a.jsonl.gz"):
                run(name, *argv, "--num_workers", num_workers, limits=limits)
                for split in ("train", "val"):
                    assert np.fromfile(f"data/{split}.bin", "<i2").tolist() == expected[split]
                    assert np.fromfile(f"data/{split}.idx", "<u8").tolist() == [
                        index + 1 for index, id in enumerate(expected[split]) if id == 0]


# ---------------------------------------------------------------- other encodings


@pytest.mark.parametrize(("language", "encoding"), [
    ("French", "cp1252"), ("Russian", "cp1251"), ("Russian", "koi8-r"), ("Japanese", "shift_jis"),
    ("Japanese", "iso2022_jp"), ("Chinese", "gb18030"), ("Chinese", "utf-16"), ("Russian", "utf-16-be"),
    ("English", "utf-32-le"), ("Japanese", "utf-7")])
def test_text_in_another_encoding_gives_the_ids_of_its_utf8(language, encoding, tokenizer_file):
    texts = [in_language(language, 300, number) for number in range(6)]
    write("a.txt", "<->".join(texts))
    write("a.jsonl", spelt_lines(texts))
    how = ("--document_separator", "<->", "--val_fraction", "0.3", "--tokenizer_file", str(tokenizer_file))
    small = Limits(block_bytes=97, part_bytes=64, window_bytes=7)
    for name, pack in (("a.txt", bytes), ("a.jsonl", gzip.compress)):
        metadata = run(name, *how, limits=small)
        assert "encoding" not in metadata
        expected = written()
        write("b." + name, pack(Path(name).read_text(encoding="utf-8").encode(encoding)))
        num_workers = "3" if encoding == "shift_jis" else "1"
        metadata = run("b." + name, *how, "--encoding", encoding, "--num_workers", num_workers, limits=small)
        assert metadata["encoding"] == codecs.lookup(encoding).name
        assert written() == expected


def test_a_byte_that_the_encoding_does_not_have_is_placed(tokenizer_file):
    content = in_language("Japanese", 3000)
    for encoding, wrong in (("shift_jis", b"\xfd"), ("utf-16-le", b"\x00\xd8")):
        place = len(content[:2000].encode(encoding))
        write("a.txt", content[:2000].encode(encoding) + wrong + content[2000:].encode(encoding))
        refused("a.txt", "--encoding", encoding, "--tokenizer_file", str(tokenizer_file),
                match=rf"a\.txt is not {encoding}: '.*' codec can't decode .* position {place}.*--encoding")


# ---------------------------------------------------------------- the split


def test_a_small_text_keeps_64_kib_for_validation_but_at_most_a_tenth(capsys, tokenizer_file):
    given = ("--tokenizer_file", str(tokenizer_file))
    write("a.txt", words(1000) * 1000)
    assert run("a.txt", *given)["splits"]["val"]["bytes"] == 65_536
    said = capsys.readouterr().out
    assert "validation: 6.6% of the text: the end of the text, from byte 934,464 on" in said
    texts = [words(100, number) for number in range(200)]
    write("c.jsonl", lines(texts))
    for how in (given, ("--vocab_size", "300")):
        metadata = run("c.jsonl", *how)
        assert documents("val") == [content for content in texts if hash_share(content) < 0.1]
        assert metadata["split_rule"] == "the documents whose sha256 is among the lowest 10% of all values"
    write("d.jsonl", lines([*texts, words(50_000)]))
    run("d.jsonl", *given)
    assert documents("val") == [content for content in texts if hash_share(content) < 0.1]  # never the long one


@pytest.mark.parametrize("is_trained", [False, True])
def test_of_a_few_files_each_gives_its_end_and_nothing_is_lost(is_trained, tokenizer_file):
    texts = [words(size, size) + "\u00e9" for size in (3000, 9000, 20, 8000, 25_000)]
    for number, content in enumerate(texts):
        write(f"in/{number}.txt", content)
    write("in/3.txt", b"\xef\xbb\xbf" + texts[3].encode())
    write("in/4.txt.gz", gzip.compress(texts[4].encode()))
    Path("in/4.txt").unlink()
    how = ("--vocab_size", "300") if is_trained else ("--tokenizer_file", str(tokenizer_file))
    metadata = run("in", *how, limits=Limits(part_bytes=5000))
    val = documents("val")
    assert metadata["split_rule"] == "the last 10% of each file"
    assert documents("train") == [texts[0][:-len(val[0])], texts[1][:-len(val[1])], texts[2], texts[3][:-len(val[2])],
                                  texts[4][:-len(val[3])]]
    assert all(content.endswith(tail) for content, tail in zip([*texts[:2], *texts[3:]], val, strict=True))
    assert 0.08 < metadata["splits"]["val"]["bytes"] / sum(map(len, texts)) < 0.11
    if not is_trained:  # whole documents
        run("in", *how, "--val_fraction", "0.1")
        assert sorted(documents("train") + documents("val")) == sorted(texts)


def test_blank_files_among_a_few_leave_no_blank_document(tokenizer_file):
    write("in/a.txt", words(9000))
    write("in/b.txt", " \n" * 900)
    write("in/c.txt", "")
    run("in", "--tokenizer_file", str(tokenizer_file))
    assert [len(documents(part)) for part in ("train", "val")] == [1, 1]


@pytest.mark.parametrize(("content", "fraction", "val"), [
    (words(11_153), "0.1", words(11_153)[int(11_153 * 0.9) :]), ("x" * 10 + "\u00e9" * 45, "0.1", "\u00e9" * 5),
    ("ab", "0.005", "b"), ("a" * 99 + "\u00e9" * 2, "0.02", "\u00e9")])
@pytest.mark.parametrize("form", ["plain", "gzip", "separator not found", "small parts"])
def test_a_single_document_gives_its_tail_cut_at_a_character(content, fraction, val, form, tokenizer_file):
    packed = gzip.compress(b"\xef\xbb\xbf" + content.encode())
    name = write(*(("a.txt.gz", packed) if form == "gzip" else ("a.txt", content)))
    limits = Limits(block_bytes=50, part_bytes=50) if form == "small parts" else Limits()
    more = ("--document_separator", "<->") * (form == "separator not found")
    is_trained_too = content.startswith("xx")  # training takes a process each time
    for how in [("--tokenizer_file", str(tokenizer_file)), ("--vocab_size", "300")][:1 + is_trained_too]:
        metadata = run(name, "--val_fraction", fraction, *more, *how, limits=limits)
        assert documents("val") == [val]
        assert documents("train") == [content.removesuffix(val)]
        assert metadata["splits"]["val"]["bytes"] == len(val.encode())


def test_a_text_of_one_character_of_two_bytes_is_too_short_for_validation(capsys, tokenizer_file):
    metadata = run(write("a.txt", "\u00e9"), "--tokenizer_file", str(tokenizer_file))
    assert metadata["split_rule"] == "none, the text is too short"
    assert "validation: none" in capsys.readouterr().out


def test_without_validation_no_val_bin_is_written_and_an_old_one_is_removed(capsys, tokenizer_file):
    write("a.txt", words(3000))
    how = ("--tokenizer_file", str(tokenizer_file))
    run("a.txt", *how)
    assert Path("data/val.bin").exists()
    metadata = run("a.txt", "--val_fraction", "0", *how)
    assert "validation: none, as requested" in capsys.readouterr().out
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


# ---------------------------------------------------------------- the vocabulary


def test_an_old_tokenizer_is_replaced_with_a_warning_and_kept_when_named(capsys):
    write("a.txt", words(9000))
    write("more.txt", words(9000, 5))
    run("a.txt", "--vocab_size", "400")
    before = written()["tokenizer.json"]
    run("more.txt", "--tokenizer_file", "data/tokenizer.json")
    assert written()["tokenizer.json"] == before
    assert "tokenizer replaces" not in capsys.readouterr().err
    run("more.txt", "--vocab_size", "400")
    assert written()["tokenizer.json"] != before
    assert "--tokenizer_file data/tokenizer.json" in capsys.readouterr().err


def test_the_sample_is_bounded_and_spread(monkeypatch):
    seen: list[str] = []
    inner = vocabulary.in_child

    def watched(signals: Signals, work, path: Path, *rest) -> str:
        seen[:] = [piece.decode() for piece in path.read_bytes().split(PART_SEPARATOR)]
        return inner(signals, work, path, *rest)

    monkeypatch.setattr(vocabulary, "in_child", watched)
    limits = Limits(block_bytes=2000, part_bytes=2000)
    how = ("--vocab_size", "300", "--engine", "tokenizers")
    many = [f"{number:05d} " for number in range(10_000)]
    for name, content in (("a.jsonl", lines(many)), ("a.txt", "".join(many)),
                          ("b.jsonl", lines(["".join(many[:9999])]))):
        write(name, content)
        run(name, "--train_sample_bytes", "3000", "--val_fraction", "0.01", *how, limits=limits)
        taken = "".join(seen)
        assert 1500 <= len(taken) <= 3300
        numbers = sorted({int(number) for number in taken.split()})
        assert numbers[0] < 1000
        assert numbers[-1] >= 9000
    run("a.txt", "--val_fraction", "0", *how, limits=limits)
    assert "".join(seen) == "".join(many)


def big_tokenizer(num_ids: int) -> str:
    """A tokenizer.json of so many ids, the last of which stands for 'zz'."""
    fields = json.loads(tokenizer_json())
    vocab = fields["model"]["vocab"]
    vocab |= {f"<unused {number}>": number for number in range(259, num_ids - 1)} | {"zz": num_ids - 1}
    fields["model"]["merges"] = [["z", "z"]]
    fields["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    return write("big.json", json.dumps(fields))


@pytest.mark.parametrize(("num_ids", "dtype"), [
    (32_768, "int16"), (32_769, "uint16"), (65_536, "uint16"), (65_537, "int32")])
def test_the_type_holds_every_id(num_ids, dtype):
    write("a.txt", "zz end zz")
    metadata = run("a.txt", "--tokenizer_file", big_tokenizer(num_ids), "--val_fraction", "0")
    assert (metadata["dtype"], metadata["vocab_size"]) == (dtype, num_ids)
    assert np.fromfile("data/train.bin", DTYPES[dtype])[0] == num_ids - 1
    assert documents("train") == ["zz end zz"]  # and the tokenizer's truncation is ignored


# ---------------------------------------------------------------- what is said of the text


@pytest.mark.parametrize("num_workers", ["1", "2"])
def test_bytes_that_are_not_utf8_are_replaced_and_said_or_stop_the_run(num_workers, capsys, tokenizer_file):
    write("a.txt", "\u00e9t\u00e9 \ufffd\nab".encode() + b"\xff\xfe c \xe2\x82" + "\u00e9\u00e9".encode())
    argv = ("a.txt", "--val_fraction", "0", "--num_workers", num_workers, "--tokenizer_file", str(tokenizer_file))
    run(*argv)
    assert documents("train") == ["\u00e9t\u00e9 \ufffd\nab\ufffd\ufffd c \ufffd\u00e9\u00e9"]
    assert "3 places, the first: byte 12, line 2 of a.txt" in capsys.readouterr().err
    for flag in ("--strict_utf8", "--encoding"):
        values = ["utf-8"] if flag == "--encoding" else []
        refused(*argv, flag, *values, "--overwrite", match=rf"byte 12, line 2 of a\.txt.*leave out {flag}")
    assert documents("train")  # the old set is there


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_the_command_that_drops_windows_line_ends_works_as_it_is_typed(ending, capsys, tokenizer_file):
    content = (words(300) + "\n").encode().replace(b"\n", b"\r\n")
    name = write(f"a.txt{ending}", gzip.compress(content) if ending else content)
    run(name, "--tokenizer_file", str(tokenizer_file))
    command = capsys.readouterr().err.partition("To drop them: ")[2].splitlines()[0]
    subprocess.run(command, shell=True, check=True)
    assert Path("unix.txt").read_bytes() == content.replace(b"\r", b"")


def test_windows_line_ends_in_another_encoding_are_said_without_a_command(capsys, tokenizer_file):
    write("a.txt", "a text\r\n".encode("utf-16"))
    run("a.txt", "--encoding", "utf-16", "--val_fraction", "0", "--tokenizer_file", str(tokenizer_file))
    assert "Save it with line ends of Unix." in capsys.readouterr().err


# ---------------------------------------------------------------- the output folder


def test_a_signal_that_comes_too_late_to_stop_the_run_still_is_its_exit_code(monkeypatch, tokenizer_file):
    write("a.txt", words(3000))
    summarise = pretokenize.summarise

    def summarise_after_a_signal(*given):
        os.kill(os.getpid(), signal.SIGTERM)
        summarise(*given)

    with monkeypatch.context() as patch:
        patch.setattr(pretokenize, "summarise", summarise_after_a_signal)
        argv = ["a.txt", "--num_workers", "1", "--tokenizer_file", str(tokenizer_file)]
        assert pretokenize.main(argv) == 128 + signal.SIGTERM
    assert pretokenize.main(["--verify", "data"]) == 0


def test_metadata_records_the_written_files():
    write("deep/folder/a.txt", words(5000))
    metadata = run("deep/folder/a.txt")
    assert (metadata["format"], metadata["version"]) == (METADATA_FORMAT, METADATA_VERSION)
    assert (metadata["end_of_text_id"], metadata["end_of_text"], metadata["sources"]) == (0, "<|endoftext|>", ["a.txt"])
    for part, split in metadata["splits"].items():
        path = Path(f"data/{part}.bin")
        assert split["modified_ns"] == path.stat().st_mtime_ns
        assert split["sha256"] == sha256_of(path)
    assert metadata["tokenizer"] == {"sha256": sha256_of(Path("data/tokenizer.json"))}


@pytest.mark.parametrize(("module", "broken"), [(store, "write_whole"), (store, "sync"), (commit, "sync"),
                                              (commit, "sha256_of")])
def test_a_disk_that_is_full_at_the_end_leaves_the_old_set_or_none(monkeypatch, module, broken, tokenizer_file):
    write("a.txt", words(3000))
    given = ("--tokenizer_file", str(tokenizer_file))
    other = ("--vocab_size", "300") if broken == "write_whole" else (*given, "--val_fraction", "0.3")
    run("a.txt", *given)
    old = written()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, broken, fail)
        refused("a.txt", *other, "--overwrite", code=Exit.MACHINE, match="No space left")
    assert not [name for name in os.listdir("data") if name.endswith(".tmp")]
    assert written() == old
    run("a.txt", *other)
    assert written() != old
    assert not [name for name in os.listdir("data") if name.startswith(".")]


def test_the_same_command_works_again_after_a_commit_failed_over_its_own_tokenizer(monkeypatch, tokenizer_file):
    write("a.txt", words(3000))
    run("a.txt", "--tokenizer_file", str(tokenizer_file))
    again = ("a.txt", "--tokenizer_file", "data/tokenizer.json", "--val_fraction", "0.3")
    rename = store.rename

    def full(source: Path, target: Path) -> None:
        if target == Path("data/train.bin"):
            raise OSError(28, "No space left on device")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(store, "rename", full)
        refused(*again, "--overwrite", code=Exit.MACHINE, match="No space left")
    assert os.listdir("data") == ["tokenizer.json"]
    run(*again)


# ---------------------------------------------------------------- what is printed


def test_help_and_wrong_flags_need_no_slow_import_and_a_run_needs_no_torch():
    done = run_command("pretokenize", "--help", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert "--val_fraction" in done.stdout
    assert "numpy" not in done.stderr
    done = run_command("pretokenize", "-", stdin=words(3000), PYTHONPROFILEIMPORTTIME="1")
    assert done.stdout.splitlines()[-1] == "next: python train.py"
    assert " torch\n" not in done.stderr
    done = run_command("pretokenize", "--vocab_size", "1", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == Exit.FLAGS
    assert "error: --vocab_size '1': must be auto or a whole number of at least 259" in done.stderr
    assert "numpy" not in done.stderr
