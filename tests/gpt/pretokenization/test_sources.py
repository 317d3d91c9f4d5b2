"""sources.py: files are found and recognised, and cut into blocks."""

import bz2
import gzip
import lzma
import os
import re
from pathlib import Path

import pytest

from gpt.common.errors import Exit, UserError
from gpt.hub.download import InputFile
from gpt.pretokenization import sources
from gpt.pretokenization.blocks import Findings, Kind, Reading, TextBlock
from gpt.pretokenization.sources import (
    DEMO_BYTES,
    KINDS,
    blocks_of,
    demo_sources,
    documents_of,
    examine,
    files_in_folder,
    find_sources,
)
from tests.helpers.refusals import refused
from tests.helpers.texts import read, sources_of, spelt_lines, write, zstandard


def test_folders_globs_and_files_are_found_in_order_and_once():
    for name in ("in/b.txt", "in/a.md", "in/sub/c.text", "in/.hidden/x.txt", "in/.y.txt", "in/picture.png",
                 "in/settings.json", "z.txt"):
        write(name, "x")
    for name in ("in/e.JSON.GZ", "in/archive.gz"):
        write(name, gzip.compress(b""))
    write("in/d.jsonl.zst", zstandard(b""))
    Path("in/gone.md").symlink_to("nowhere")
    write("elsewhere/f.txt", "x")
    Path("in/a-link").symlink_to("../elsewhere")
    said = []
    found = find_sources(["z.txt", "in", "in/*.txt", "./z.txt"], said.append, {})
    assert [source.shown for source in found] == [
        "z.txt", "in/a.md", "in/b.txt", "in/d.jsonl.zst", "in/e.JSON.GZ", "in/sub/c.text"]
    assert len(said) == 1
    assert re.fullmatch("in: 5 .* 5 .*in/a-link", said[0])
    nested = find_sources(["in/**/*.text"], said.append, {})
    assert [source.shown for source in nested] == ["in/sub/c.text"]


@pytest.mark.parametrize(("name", "content", "packing", "kind"), [
    ("a.txt", b"x", "", "text"), ("a", b"x", "", "text"), ("a.jsonl", b"{}", "", "lines"),
    ("a.ndjson", b"", "", "lines"), ("a.json", b'{"a": 1}\n{"a": 2}', "", "lines"),
    ("a.txt.gz", gzip.compress(b"x"), "gzip", "text"), ("a.jsonl.bz2", bz2.compress(b"x"), "bzip2", "lines"),
    ("a.JSON.XZ", lzma.compress(b"x"), "xz", "lines"), ("a.txt", gzip.compress(b"x"), "gzip", "text"),
    ("a.jsonl", gzip.compress(b"x"), "gzip", "lines"), ("a.txt.gz", b"no gzip at all", "", "text"),
    ("a.jsonl.gz", b"{}", "", "lines"), ("a.txt.bz2", bz2.compress(b""), "bzip2", "text"),
    ("a.parquet", b"PAR1", "", "parquet"), ("a", b"PAR1", "", "parquet")])
def test_a_file_is_known_by_its_first_bytes_and_then_by_its_name(name, content, packing, kind):
    source = examine(Path(write(name, content)), name)
    assert (source.packing, source.kind, source.text_bytes) == (packing, kind, len(content))


@pytest.mark.parametrize(("name", "content", "reason"), [
    ("folder/a.png", b"x", "folder .*.txt"), ("nul\x1b[31m.txt", None, r"nul\\x1b\[31m"),
    ("a.txt", "text".encode("utf-32"), "--encoding utf-32"), ("a.txt", "text".encode("utf-16-be"), None),
    ("a.txt", ("text " * 20).encode("utf-16-le"), "NUL.*--encoding"),
    ("a.txt", b"\x0304hi\x03 \x02you " * 9, "0x03.*--encoding utf-8"),
    ("a.txt.gz", gzip.compress("text".encode("utf-16")), r"--encoding utf-16\."),
    ("two words.pdf", b"%PDF-1.4", r"pdftotext 'two words\.pdf'"),
    ("a.docx", b"PK\3\4" + bytes(99), r"\.txt"),
    ("a.tar", bytes(257) + b"ustar", "an archive"), ("a.doc", b"\xd0\xcf\x11\xe0" + bytes(99), r"\.txt"),
    ("a.safetensors", (2000).to_bytes(8, "little") + b'{"wte": ' + b" " * 2000, "weights"),
    ("a.rtf", b"{\\rtf1\\ansi text}", r"\.txt"),
    ("a.gz", gzip.compress(bytes(99)), "a.gz .*--bin_file")])
def test_a_file_that_is_not_text_is_refused_with_the_cure(name, content, reason):
    if content is not None:
        write(name, content)
    if reason is None:  # too short to tell
        find_sources([name], print, {})
        return
    with refused(reason, Exit.DATA):
        find_sources([name.split("/")[0]], print, {})


def test_a_fifo_is_refused_and_never_waited_for():
    os.mkfifo("pipe")
    with pytest.raises(UserError, match=r"cat pipe \| python pretokenize\.py -"):
        find_sources(["pipe"], print, {})


@pytest.mark.parametrize(("name", "cure"), [
    ("/dev/fd/63", r"COMMAND \| python pretokenize\.py -"), ("https://x/a.txt?b=true", "curl -LO 'https://x/a.txt")])
def test_the_cure_for_what_is_no_file_can_be_typed(name, cure, monkeypatch):
    monkeypatch.setattr(Path, "stat", lambda path: os.stat("/dev/null" if "fd" in path.parts else "missing"))
    with refused(cure, Exit.DATA):
        find_sources([name], print, {})


def test_the_output_folder_of_a_run_inside_the_texts_is_no_text(tmp_path):
    for name in ("a.txt", "out/log.txt", "out/starts.jsonl", "out/checkpoint-3/README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert files_in_folder(str(tmp_path), print) == [str(tmp_path / "a.txt")]


@pytest.mark.parametrize(("names", "cure"), [
    (["out/starts.jsonl", "out/log.txt"], "train.py --resume_from out"),
    (["out/manifest.json", "out/config.json", "out/model.safetensors", "out/README.md"],
     "train.py --resume_from out"),
    (["out/config.json", "out/model.safetensors.index.json", "out/README.md"],
     "train.py TEXT --init_from out")])
def test_a_run_and_a_model_are_no_text(names, cure):
    for name in (*names, "texts/a.txt"):
        write(name, "x")
    with refused(cure, Exit.DATA):
        find_sources(["out"], print, {})
    Path("out").rename("texts/out")
    assert files_in_folder("texts", print) == ["texts/a.txt"]


def test_the_card_of_a_dataset_is_no_text():
    for name in ("in/README.md", "in/a.jsonl.gz", "notes/README.md", "notes/a.txt"):
        write(name, "x")
    assert files_in_folder("in", print) == ["in/a.jsonl.gz"]
    assert files_in_folder("notes", print) == ["notes/README.md", "notes/a.txt"]


def test_the_demo_takes_python_sources_without_tests():
    found = demo_sources()
    assert sum(source.path.stat().st_size for source in found) <= DEMO_BYTES
    assert "argparse.py" in [source.shown for source in found]
    assert not [source.shown for source in found if "test" in Path(source.shown).parts]


def test_a_file_that_becomes_shorter_while_it_is_read_is_named():
    write("a.jsonl", spelt_lines(["one", "two"]))
    files = sources_of("a.jsonl")
    [block] = blocks_of(files[0], Reading())
    write("a.jsonl", "{}")
    with refused(r"a\.jsonl ", Exit.DATA):
        documents_of(block, files, Reading(), Findings())


CSV = Kind(lambda source, name, head: name.endswith(".csv"),
           lambda source, reading: iter([TextBlock(0, source.text_bytes)]),
           lambda block, content, found: content.decode().splitlines(),
           lambda records, reading, found: [line.strip('"') for line in records], (".csv",))


def test_a_new_kind_of_input_is_one_entry_of_the_table(monkeypatch):
    monkeypatch.setattr(sources, "KINDS", {"csv": CSV, **KINDS})
    write("in/a.csv", '"one"\n"two"\n')
    write("in/b.txt", "three")
    found = find_sources(["in"], print, {})
    assert [source.kind for source in found] == ["csv", "text"]
    assert read("in/a.csv", "in/b.txt")[0] == ["one", "two", "three"]


# ---------------------------------------------------------------- datasets of the hub


def test_a_file_of_the_hub_keeps_its_name_there_and_is_read_once():
    write("a.txt", b"text")
    fetched = {"hf://datasets/someone/tales": [InputFile(Path("a.txt"), "data/a.txt", "hf://datasets/someone/tales@0")]}
    source, = sources.find_sources(["hf://datasets/someone/tales", "a.txt"], print, fetched)
    assert (source.shown, source.origin, source.path) == ("data/a.txt", "hf://datasets/someone/tales@0", Path("a.txt"))


def test_line_ends_of_windows_are_noticed_in_the_first_lines():
    for name, content, expected in (("w.txt", b"one\r\ntwo\r\n", True), ("u.txt", b"one\ntwo\n", False)):
        Path(name).write_bytes(content)
        assert examine(Path(name), name).has_returns == expected
