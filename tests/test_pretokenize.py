"""pretokenize.py: what comes out is what went in, split as promised, committed as a whole, refused with a reason."""

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cli
import data
import pretokenize
from cli import Exit, UserError

ROOT = Path(pretokenize.__file__).parent
STRINGS = ["plain words", "  runs   of \n\n\n spaces\t\t\n",
           "caf\u00e9 na\u00efve", "\u6f22\u5b57\u3002\u304b\u306a\uff0c\u30ab",
           "\u0645\u0631\u062d\u0628\u0627", "\u0939\u093f\u0928\u094d\u0926\u0940",
           "\U0001f468\u200d\U0001f469\u200d\U0001f467",
           "nul\0and\x1fmore\x7f", "crlf\r\nline\r", "a\u0301\u200f\u202e", "it's we'll I'm they've", "<|endoftext|>",
           "\ufeffinside"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")  # main sets it; this restores it


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


def run(*argv: str) -> dict:
    """Runs the command; returns its metadata."""
    assert pretokenize.main([*argv, "--overwrite"]) == 0
    return json.loads(Path("data/metadata.json").read_text())


def meter() -> pretokenize.Meter:
    return pretokenize.Meter(cli.Progress(), cli.Signals(), "", 1)


def documents(part: str) -> list[str]:
    """What a split holds, decoded, document by document."""
    metadata = json.loads(Path("data/metadata.json").read_text())
    ids = np.fromfile(f"data/{part}.bin", data.DTYPES[metadata["dtype"]]).tolist()
    ends = np.fromfile(f"data/{part}.idx", "<u8").tolist()
    assert ends[-1] == len(ids) == metadata["splits"][part]["tokens"]
    tokenizer = data.load_tokenizer("data/tokenizer.json")
    found = []
    for start, end in zip([0, *ends], ends, strict=False):
        assert ids[end - 1] == metadata["end_of_text_id"]
        assert metadata["end_of_text_id"] not in ids[start:end - 1]
        found.append(tokenizer.decode(ids[start:end - 1], skip_special_tokens=False))
    return found


def command(*argv: str, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(ROOT / "pretokenize.py"), *argv], input=stdin, capture_output=True,
                          timeout=60, env={**os.environ, **more})


# ---------------------------------------------------------------- nothing is lost


def test_every_string_comes_back_and_the_end_of_text_stays_text():
    everything = STRINGS + ["".join(map(chr, range(1, 0x500)))] + [chr(c) + "x" for c in range(256)]
    write("all.jsonl", "\n".join(json.dumps({"text": text}) for text in everything))
    run("all.jsonl", "--vocab_size", "300")
    kept = [text for text in everything if text.strip()]
    assert sorted(documents("train") + documents("val")) == sorted(kept)
    tokenizer = data.load_tokenizer("data/tokenizer.json")
    for text in everything:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_a_text_file_keeps_nul_crlf_and_newlines_and_loses_its_byte_order_mark():
    text = "one\r\ntwo\0three\n\n\nfour \u00e9\n"
    write("a.txt", b"\xef\xbb\xbf" + text.encode())
    run("a.txt", "--val_fraction", "0")
    assert documents("train") == [text]


def test_the_ids_are_gpt2s_wherever_the_pieces_are_cut(monkeypatch):
    rng = random.Random(1)
    alphabet = [*" \n\n  \t\r", "\u00a0", "\u3000", "\x1c", *"abzAZ019.,;:!?'\"-_", "'s", "'ll", "'re", "\u00e9",
                "\u00b2", "\u0660", "\u4e00", "\u3042", "\u30a2", "\u3002", "\uff0c", "\u0939\u093f", "\u0301",
                "\u200d", "\U0001f600", "\u0130"]
    sample = words(20_000) + "".join(rng.choices(alphabet, k=4000))
    tokenizer = pretokenize.train_tokenizer([sample], 600, 2)
    for _ in range(60):
        text = "x" + "".join(rng.choices(alphabet, k=rng.randint(1, 400)))
        write("a.txt", text)
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        for piece_chars in (1, 2, 3, 7, 31):
            monkeypatch.setattr(pretokenize, "PIECE_CHARS", piece_chars)
            source = pretokenize.Text((pretokenize.Source(Path("a.txt"), "a.txt"),), "text", None)
            pieces = [piece for piece, _ in source.pieces(pretokenize.Findings())]
            assert "".join(pieces) == text
            assert [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False).ids] == whole


def test_a_run_without_a_safe_place_is_cut_at_the_same_places_whatever_the_piece_size(monkeypatch):
    monkeypatch.setattr(pretokenize, "MAX_RUN_CHARS", 50)
    write("a.txt", "begin " + "a" * 130 + " middle" + " " * 57 + "end" + "b" * 51)
    cuts = []
    for piece_chars in (1, 5, 17, 50):
        monkeypatch.setattr(pretokenize, "PIECE_CHARS", piece_chars)
        source = pretokenize.Text((pretokenize.Source(Path("a.txt"), "a.txt"),), "text", None)
        pieces = [piece for piece, _ in source.pieces(pretokenize.Findings())]
        assert max(map(len, pieces)) <= 50 + piece_chars
        ends = np.cumsum([len(piece) for piece in pieces])
        cuts.append([end for end in ends[:-1].tolist() if not pretokenize.SAFE_PLACE.match("".join(pieces), end - 1)])
    assert cuts[0]
    assert all(hard == cuts[0] for hard in cuts)


def test_a_tokenizer_that_splits_otherwise_sees_whole_documents():
    from tokenizers import normalizers, pre_tokenizers

    tokenizer = pretokenize.train_tokenizer([words(5000)], 300, 2)
    assert pretokenize.cuts_are_safe(tokenizer)
    tokenizer.add_tokens(["two words"])
    assert not pretokenize.cuts_are_safe(tokenizer)
    for change in ({"normalizer": normalizers.NFC()},
                   {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
                   {"pre_tokenizer": pre_tokenizers.Whitespace()}):
        tokenizer = pretokenize.train_tokenizer([words(5000)], 300, 2)
        for name, value in change.items():
            setattr(tokenizer, name, value)
        assert not pretokenize.cuts_are_safe(tokenizer)


def test_blocks_may_cut_characters_and_separators(monkeypatch):
    parts = ["\u00e9\u6f22\U0001f600" * 3, "second", "third \u00e9"]
    write("a.txt", "<->".join(parts))
    for block_bytes in (1, 2, 3, 5, 1000):
        monkeypatch.setattr(pretokenize, "BLOCK_BYTES", block_bytes)
        run("a.txt", "--document_separator", "<->")
        assert sorted(documents("train") + documents("val")) == sorted(parts)


# ---------------------------------------------------------------- the split


@pytest.mark.parametrize(("text", "fraction", "val"), [
    (words(11_153), "0.1", words(11_153)[int(11_153 * 0.9):]), ("x" * 10 + "\u00e9" * 45, "0.1", "\u00e9" * 5),
    ("ab", "0.005", "b"), ("a" * 99 + "\u00e9" * 2, "0.02", "\u00e9")])
def test_a_single_document_gives_its_tail_cut_at_a_character(text, fraction, val):
    write("a.txt", text)
    metadata = run("a.txt", "--val_fraction", fraction)
    assert documents("val") == [val]
    assert documents("train") == [text.removesuffix(val)]
    assert metadata["splits"]["val"]["bytes"] == len(val.encode())


def test_tinyshakespeares_last_tenth_is_its_last_111540_bytes():
    split = pretokenize.survey([("x" * 1_115_394, True)], 0.1, meter())
    assert (split.cut_byte, split.val_bytes) == (1_003_854, 111_540)


def test_many_documents_are_split_by_the_hash_of_each():
    texts = [f"document {number} {words(50, number)}" for number in range(300)]
    write("a.jsonl", "\n".join(json.dumps({"text": text}) for text in texts))
    run("a.jsonl", "--val_fraction", "0.1")
    small = [text for text in texts
             if int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64 < 0.1]
    assert 10 < len(small) < 60
    assert documents("val") == small
    assert documents("train") == [text for text in texts if text not in small]


@pytest.mark.parametrize("fraction", ["1e-9", "0.999999999"])
def test_neither_part_is_ever_empty(fraction):
    for name in "abc":
        write(f"in/{name}.txt", words(200, ord(name)))
    metadata = run("in", "--val_fraction", fraction)
    assert min(split["documents"] for split in metadata["splits"].values()) == 1


def test_without_validation_no_val_bin_is_written_and_an_old_one_goes(capsys):
    write("a.txt", words(3000))
    run("a.txt")
    assert Path("data/val.bin").exists()
    metadata = run("a.txt", "--val_fraction", "0")
    assert "no val.bin is written" in capsys.readouterr().out
    assert set(metadata["splits"]) == {"train"}
    assert sorted(os.listdir("data")) == ["metadata.json", "tokenizer.json", "train.bin", "train.idx"]
    corpus = data.open_corpus(Path("data/train.bin"), None, Path("data/metadata.json"), Path("data/tokenizer.json"))
    assert corpus.vocab_size == metadata["vocab_size"]


def test_the_tokenizer_is_trained_on_the_training_part_alone():
    text = words(9000)
    write("a.txt", text + "zqzqzqzq" * 125)
    run("a.txt", "--val_fraction", "0.1", "--vocab_size", "400")
    write("b.txt", text)
    with_tail = Path("data/tokenizer.json").read_bytes()
    run("b.txt", "--val_fraction", "0", "--vocab_size", "400")
    assert Path("data/tokenizer.json").read_bytes() == with_tail


# ---------------------------------------------------------------- the vocabulary


def test_the_automatic_vocabulary_grows_with_the_text():
    sizes = [pretokenize.auto_vocab_size(num_bytes) for num_bytes in (0, 10**5, 10**6, 11 * 10**6, 10**8, 10**11)]
    assert sizes == [512, 512, 1024, 6144, 32_000, 32_000]


def test_a_text_too_small_for_the_vocabulary_gives_the_true_size(capsys):
    write("a.txt", words(2000))
    metadata = run("a.txt", "--vocab_size", "2,000,000,000")
    assert 257 < metadata["vocab_size"] < 2000
    assert metadata["largest_id"] == metadata["vocab_size"] - 1
    assert f"supports {metadata['vocab_size']:,} ids" in capsys.readouterr().out


def test_min_frequency_and_the_sample_bound_what_is_merged():
    write("a.txt", words(20_000))
    sizes = [run("a.txt", "--vocab_size", "5000", *more)["vocab_size"] for more in ((), ("--min_frequency", "20"),
                                                                                  ("--train_sample_bytes", "1000"))]
    assert sizes[0] > max(sizes[1:])


def test_the_sample_is_bounded_and_spread(monkeypatch):
    for texts in ([f"{number:05d} " for number in range(10_000)], [f"{number:02d} " * 2000 for number in range(10)]):
        total = sum(map(len, texts))
        taken = " ".join(pretokenize.spread_sample(texts, total, total // 20, meter()))
        assert 0.8 * total / 20 <= len(taken) <= 1.2 * total / 20
        numbers = sorted({int(number) for number in taken.split()})
        assert numbers[0] < len(texts) / 5
        assert numbers[-1] >= len(texts) * 0.8
    assert list(pretokenize.spread_sample(["a", "b"], 2, 100, meter())) == ["a", "b"]


def test_endless_runs_do_not_stall_the_training():
    text = "".join(random.Random(0).choices("abcdefgh", k=100_000)) + " " * 100_000 + "x"
    slices = list(pretokenize.spread_sample([text], len(text), len(text), meter()))
    assert "".join(slices) == text
    assert max(map(len, slices)) == pretokenize.MAX_TRAINED_RUN_CHARS


def big_tokenizer(num_ids: int) -> str:
    """A tokenizer.json of so many ids, the last of which stands for 'zz'."""
    fields = json.loads(pretokenize.train_tokenizer(["no merges"], 257, 2).to_str())
    vocab = fields["model"]["vocab"]
    vocab |= {f"<unused {number}>": number for number in range(257, num_ids - 1)} | {"zz": num_ids - 1}
    fields["model"]["merges"] = [["z", "z"]]
    fields["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    return write("big.json", json.dumps(fields))


@pytest.mark.parametrize(("num_ids", "dtype"), [(32_768, "int16"), (32_769, "uint16"), (50_257, "uint16"),
                                                (65_537, "int32")])
def test_the_type_holds_every_id(num_ids, dtype):
    write("a.txt", "zz end zz")
    metadata = run("a.txt", "--tokenizer_file", big_tokenizer(num_ids), "--val_fraction", "0")
    assert (metadata["dtype"], metadata["vocab_size"], metadata["largest_id"]) == (dtype, num_ids, num_ids - 1)
    assert not metadata["tokenizer"]["trained_here"]
    assert np.fromfile("data/train.bin", data.DTYPES[dtype])[0] == num_ids - 1
    assert documents("train") == ["zz end zz"]  # and the tokenizer's truncation is ignored


def test_a_tokenizer_made_here_gives_the_same_ids_again():
    write("a.txt", words(5000))
    run("a.txt")
    first = Path("data/train.bin").read_bytes()
    run("a.txt", "--tokenizer_file", "data/tokenizer.json")
    assert Path("data/train.bin").read_bytes() == first


def test_gpt2s_pair_of_files_is_read_though_model_is_one_of_its_tokens():
    fields = json.loads(Path(big_tokenizer(400)).read_text())["model"]
    vocab = {"model" if token == "<unused 300>" else token: number for token, number in fields["vocab"].items()}
    write("encoder.json", json.dumps(vocab))
    write("vocab.bpe", "#version: 0.2\nz z\n")
    write("a.txt", "zz top")
    assert run("a.txt", "--tokenizer_file", "encoder.json", "--val_fraction", "0")["vocab_size"] == 400
    assert documents("train") == ["zz top"]


# ---------------------------------------------------------------- where the text comes from


def test_folders_globs_and_files_are_read_in_order_and_once(capsys):
    for name in ("in/b.txt", "in/a.md", "in/sub/c.text", "in/.hidden/x.txt", "in/picture.png", "z.txt"):
        write(name, f"this is {name}")
    metadata = run("z.txt", "in", "--val_fraction", "0", "in/*.txt")
    assert metadata["sources"] == ["z.txt", "a.md", "b.txt", "c.text"]
    assert documents("train") == [f"this is {name}" for name in ("z.txt", "in/a.md", "in/b.txt", "in/sub/c.text")]
    said = capsys.readouterr().out
    assert "left out: in/picture.png" in said
    assert "read once although named again: 1 file" in said


def test_separators_understand_escapes_and_blank_documents_are_skipped(capsys):
    write("a.txt", "one\n\n\ttwo\n\n\t\n\n\tthree\n\n\t")
    run("a.txt", "--document_separator", r"\n\n\t", "--val_fraction", "0")
    assert documents("train") == ["one", "two", "three"]
    assert "skipped: 2 blank documents" in capsys.readouterr().out
    run("a.txt", "--document_separator", "nowhere")
    assert "does not occur" in capsys.readouterr().err


def test_jsonl_lines_without_a_document_are_counted(capsys):
    lines = ['{"body": "first"}', "", "{broken", '{"body": 5}', '["body"]', '{"other": "x"}',
             '{"body": "lone \\ud800"}']
    write("a.jsonl", "\ufeff" + "\r\n".join(lines))
    run("a.jsonl", "--text_field", "body", "--val_fraction", "0")
    assert documents("train") == ["first", "lone \ufffd"]
    said = capsys.readouterr().err
    assert "skipped: 4 lines of JSON, the first: line 3 of a.jsonl is not JSON" in said
    assert "lone surrogate in line 7" in said


def test_stdin_gives_what_the_file_gives_and_torch_is_never_imported():
    text = words(3000)
    write("stdin", text)
    run("stdin")
    expected = Path("data/train.bin").read_bytes()
    code = (f"import runpy, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            "sys.argv = ['pretokenize.py', '-', '--output_dir', 'piped']\n"
            f"runpy.run_path({str(ROOT / 'pretokenize.py')!r}, run_name='__main__')\n"
            "assert 'torch' not in sys.modules")
    done = subprocess.run([sys.executable, "-c", code], input=text.encode(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert Path("piped/train.bin").read_bytes() == expected
    assert sorted(os.listdir("piped")) == sorted(os.listdir("data"))
    assert done.stdout.decode().splitlines()[-1] == "next: python train.py --data_dir piped"


def test_any_number_of_workers_writes_the_same_bytes():
    write("a.txt", words(300_000))
    made = []
    for workers in ("1", "3"):
        done = command("a.txt", "--num_workers", workers, "--output_dir", workers, "--vocab_size", "700")
        assert done.returncode == 0, done.stderr.decode()
        made.append([Path(workers, name).read_bytes() for name in pretokenize.OUTPUTS])
    assert made[0] == made[1]


def test_the_demo_takes_python_sources_without_tests():
    sources = pretokenize.demo_sources()
    assert sum(source.path.stat().st_size for source in sources) <= pretokenize.DEMO_BYTES
    assert "argparse.py" in [source.shown for source in sources]
    assert not [source.shown for source in sources if "test" in Path(source.shown).parts]


# ---------------------------------------------------------------- damaged text


def test_bytes_that_are_not_utf8_are_replaced_counted_and_placed(monkeypatch, capsys):
    for block_bytes in (1, 4, 1000):
        monkeypatch.setattr(pretokenize, "BLOCK_BYTES", block_bytes)
        write("a.txt", "\u00e9t\u00e9 \ufffd\nab".encode() + b"\xff\xfe c \xe2\x82" + "\u00e9\u00e9".encode())
        run("a.txt", "--val_fraction", "0")
        assert documents("train") == ["\u00e9t\u00e9 \ufffd\nab\ufffd\ufffd c \ufffd\u00e9\u00e9"]
        assert "3 places, the first: byte 12, line 2 of a.txt" in capsys.readouterr().err
        with pytest.raises(UserError, match=r"byte 12, line 2 of a\.txt") as caught:
            run("a.txt", "--strict_utf8")
        assert caught.value.code == Exit.DATA


def test_latin_1_is_recognised(capsys):
    write("a.txt", ("caf\u00e9 " * 50).encode("latin-1"))
    run("a.txt")
    assert "iconv -f LATIN1 -t UTF-8 a.txt" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "content", "reason"), [
    ("missing.txt", None, "No such file"), ("empty.txt", b"", "nothing to train on"),
    ("blank.txt", b" \n\t\n", "nothing to train on"), ("one.txt", b"x", "nothing to train on"),
    ("utf16.txt", "text".encode("utf-16"), "iconv -f UTF-16"),
    ("utf16le.txt", ("text " * 20).encode("utf-16-le"), "iconv -f UTF-16LE"), ("a.txt.gz", b"\x1f\x8b\x08", "gzip -dk"),
    ("a.txt.zst", b"\x28\xb5\x2f\xfd", "zstd -d"), ("a.parquet", b"PAR1", "read_parquet"),
    ("*.nothing", None, "matches no file"),
    ("a.jsonl", b'{"body": "x"}', "--text_field"), ("a.jsonl", b"[1, 2", "is not JSON"),
    ("folder/a.png", b"x", "folder holds no"), ("nul\x1b[31m.txt", b"", r"nul\\x1b")])
def test_what_is_no_text_is_refused_by_name(name, content, reason):
    if content is not None:
        write(name, content)
    with pytest.raises(UserError, match=reason) as caught:
        pretokenize.main([name.split("/")[0]])
    assert caught.value.code == Exit.DATA
    assert not Path("data").exists()


def test_a_fifo_is_refused_and_never_waited_for():
    os.mkfifo("pipe")
    with pytest.raises(UserError, match=r"cat pipe \| python pretokenize.py -"):
        pretokenize.main(["pipe"])


@pytest.mark.parametrize(("argv", "reasons"), [
    ([], ["none given"]), (["a.txt", "--demo"], ["takes no FILE"]), ([""], ["not empty"]),
    (["a.txt", "--vocab_size", "256"], ["at least 257"]), (["a.txt", "--vocab_size", "2147483648"], ["at least 257"]),
    (["a.txt", "--val_fraction", "nan", "--min_frequency", "0", "--num_workers", "x"],
     ["--val_fraction 'nan'", "--min_frequency '0'", "--num_workers 'x'"]),
    (["a.txt", "--vocab_sise", "300"], ["Did you mean --vocab_size"]), (["a.txt", "--val_fraction", "1"], ["below 1"]),
    (["a.txt", "--tokenizer_file", "t.json", "--vocab_size", "300", "--min_frequency", "3"],
     ["--vocab_size: impossible", "--min_frequency: impossible"])])
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
    with pytest.raises(UserError, match=r"t\.json") as caught:
        pretokenize.main(["a.txt", "--tokenizer_file", "t.json"])
    assert caught.value.code == Exit.DATA


# ---------------------------------------------------------------- the output folder


def test_metadata_tells_what_was_written_and_is_trusted():
    write("deep/folder/a.txt", words(5000))
    metadata = run("deep/folder/a.txt")
    assert (metadata["format"], metadata["version"]) == (data.METADATA_FORMAT, data.METADATA_VERSION)
    assert (metadata["end_of_text_id"], metadata["end_of_text"], metadata["sources"]) == (0, "<|endoftext|>", ["a.txt"])
    for part, split in metadata["splits"].items():
        path = Path(f"data/{part}.bin")
        assert (split["file_bytes"], split["modified_ns"]) == (path.stat().st_size, path.stat().st_mtime_ns)
        assert split["sha256"] == cli.sha256_of(path)
    assert metadata["tokenizer"] == {"trained_here": True, "sha256": cli.sha256_of(Path("data/tokenizer.json"))}
    folder = Path("data")
    corpus = data.open_corpus(folder / "train.bin", folder / "val.bin", folder / "metadata.json",
                              folder / "tokenizer.json")
    assert corpus.identity == metadata["splits"]["train"]["sha256"]
    assert (corpus.vocab_size, corpus.end_of_text_id) == (metadata["vocab_size"], 0)
    assert not corpus.notes


def test_outputs_are_refused_without_overwrite_before_anything_is_read():
    write("a.txt", "some text")
    run("a.txt")
    with pytest.raises(UserError, match="--overwrite") as caught:
        pretokenize.main(["missing.txt"])
    assert caught.value.code == Exit.DATA


@pytest.mark.parametrize("broken", ["write_whole", "sync", "sha256_of"])
def test_a_run_that_fails_at_the_end_leaves_no_set_and_no_temporaries(monkeypatch, broken):
    write("a.txt", words(3000))
    run("a.txt")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cli, broken, fail)
        with pytest.raises(UserError, match="No space left") as caught:
            run("a.txt", "--vocab_size", "300")
    assert caught.value.code == Exit.MACHINE
    assert not [name for name in os.listdir("data") if name.startswith(".")]
    if broken == "sync":  # before the first rename: the old set is whole
        assert json.loads(Path("data/metadata.json").read_text())["vocab_size"] != 300
    else:
        with pytest.raises(UserError, match="metadata"):
            data.open_corpus(Path("data/train.bin"), None, Path("data/metadata.json"), None)
    run("a.txt")


def test_leftovers_of_dead_runs_are_swept_and_strangers_stay():
    for name in (".train.bin.999999.tmp", ".stdin.999999.tmp", ".metadata.json.1.tmp", ".mine.1.tmp", "notes.txt"):
        write(f"data/{name}", "left")
    write("a.txt", "some text")
    run("a.txt")
    assert set(os.listdir("data")) - set(pretokenize.OUTPUTS) == {"metadata.json", ".mine.1.tmp", "notes.txt"}


def test_a_folder_in_use_and_one_that_cannot_be_written_are_told_apart():
    write("a.txt", "some text")
    with pretokenize.Folder(Path("data"), False), pytest.raises(UserError) as caught:
        pretokenize.main(["a.txt"])
    assert caught.value.code == Exit.BUSY
    with pytest.raises(UserError) as caught:
        pretokenize.main(["a.txt", "--output_dir", "a.txt"])
    assert caught.value.code == Exit.MACHINE


def test_a_disk_too_small_is_found_before_reading(monkeypatch):
    write("a.txt", "some text")
    monkeypatch.setattr(pretokenize.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UserError, match=r"1000 bytes are free, about 64\.0 MiB are needed") as caught:
        pretokenize.main(["a.txt"])
    assert caught.value.code == Exit.MACHINE


@pytest.mark.parametrize("stage", ["survey", "train_tokenizer", "encode"])
def test_a_signal_at_any_stage_leaves_nothing(monkeypatch, stage):
    write("a.txt", words(3000))
    inner = getattr(pretokenize, stage)

    def interrupted(*args: object) -> object:
        os.kill(os.getpid(), 15)
        return inner(*args)

    monkeypatch.setattr(pretokenize, stage, interrupted)
    assert pretokenize.main(["a.txt"]) == 128 + 15
    assert not Path("data").exists()


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
