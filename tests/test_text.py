"""text.py: the same documents come out however a text is packed, cut into blocks, shared out or damaged."""

import bz2
import gzip
import importlib
import json
import lzma
import os
import random
import re
from pathlib import Path

import pytest

from common.errors import Exit, UserError
from pretokenization import blocks
from pretokenization.blocks import SAFE_PLACE, SPACE, Block, Reading, begun_character, last_place, parts_of, spans_of
from pretokenization.documents import Findings, Report, content_of, documents_in, texts_in
from pretokenization.long_json import PART_BYTES
from pretokenization.sources import DEMO_BYTES, Feed, Source, demo_sources, examine, find_sources

MARK = b"\xef\xbb\xbf"
ALPHABET = [
    *" \n\n  \t\r",
    "\u00a0",
    "\u3000",
    "\x1c",
    *"abzAZ019.,;:!?'\"-_",
    "'s",
    "'ll",
    "\u00e9",
    "\u00b2",
    "\u0660",
    "\u4e00",
    "\u3042",
    "\u30a2",
    "\u3002",
    "\uff0c",
    "\u0939\u093f",
    "\u0301",
    "\u200d",
    "\U0001f600",
    "\u0130",
]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def zstandard(content: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(content)


PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard}


def write(name: str, content: str | bytes) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def sizes(monkeypatch, **named: int) -> None:
    for name, value in named.items():
        monkeypatch.setattr(text, name, value)


def sources_of(*names: str) -> list[Source]:
    return [examine(Path(name), name) for name in names]


def read(
    *names: str, reading: Reading | None = None, shards: int = 1, strict: bool = False
) -> tuple[list[str], Report]:
    """All documents of some files, parts put together, and what was found."""
    sources, reading = sources_of(*names), reading or Reading()
    report, documents, parts = Report(sources, strict), [], []
    for shard in range(shards):
        for span in spans_of(sources, reading, shard, shards):
            for block in blocks.blocks(span.source, sources[span.source], reading, span.start, span.stop):
                found = Findings()
                texts, contents = documents_in(block, content_of(block, sources), reading, found)
                assert [content.decode() for content in contents] == texts
                report.add(block, found)
                if block.kind != "part":
                    assert not parts
                    documents += texts
                    continue
                assert bool(parts) != block.first
                assert block.length <= PART_BYTES + len(reading.separator or "") * 4
                parts += texts
                if block.last:
                    documents.append("".join(parts))
                    parts = []
        assert not parts
    report.end_source()
    return documents, report


def lines(texts: list[str]) -> str:
    return "\n".join(json.dumps({"text": t}, ensure_ascii=number % 2 == 0) for number, t in enumerate(texts))


def random_texts(rng: random.Random, number: int, longest: int = 60) -> list[str]:
    return ["".join(rng.choices(ALPHABET, k=rng.randint(0, longest))) for _ in range(number)]


# ---------------------------------------------------------------- which files


def test_folders_globs_and_files_are_found_in_order_and_once():
    for name in (
        "in/b.txt",
        "in/a.md",
        "in/sub/c.text",
        "in/d.jsonl.zst",
        "in/e.JSON.GZ",
        "in/.hidden/x.txt",
        "in/.y.txt",
        "in/picture.png",
        "in/settings.json",
        "in/archive.gz",
        "z.txt",
    ):
        write(
            name, zstandard(b"") if name.endswith("zst") else gzip.compress(b"") if name.lower().endswith("gz") else "x"
        )
    said = []
    found = find_sources(["z.txt", "in", "in/*.txt", "./z.txt"], said.append, None)
    assert [source.shown for source in found] == [
        "z.txt",
        "in/a.md",
        "in/b.txt",
        "in/d.jsonl.zst",
        "in/e.JSON.GZ",
        "in/sub/c.text",
    ]
    assert said == ["in: 5 text files; left out: in/archive.gz and 2 more", "read once although named again: 2 files"]
    nested = find_sources(["in/**/*.text"], said.append, None)
    assert [source.shown for source in nested] == ["in/sub/c.text"]


@pytest.mark.parametrize(
    ("name", "content", "packing", "kind"),
    [
        ("a.txt", b"x", "", "text"),
        ("a", b"x", "", "text"),
        ("a.jsonl", b"{}", "", "lines"),
        ("a.ndjson", b"", "", "lines"),
        ("a.json", b'{"a": 1}\n{"a": 2}', "", "lines"),
        ("a.txt.gz", gzip.compress(b"x"), "gzip", "text"),
        ("a.jsonl.bz2", bz2.compress(b"x"), "bzip2", "lines"),
        ("a.JSON.XZ", lzma.compress(b"x"), "xz", "lines"),
        ("a.txt", gzip.compress(b"x"), "gzip", "text"),
        ("a.jsonl", gzip.compress(b"x"), "gzip", "lines"),
        ("a.txt.gz", b"no gzip at all", "", "text"),
        ("a.parquet", b"PAR1", "", "parquet"),
        ("a", b"PAR1", "", "parquet"),
    ],
)
def test_a_file_is_known_by_its_first_bytes_and_then_by_its_name(name, content, packing, kind):
    source = examine(Path(write(name, content)), name)
    assert (source.packing, source.kind, source.num_bytes) == (packing, kind, len(content))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'{"text": "x"}\n', "lines"),
        (MARK + b'{"text": "x"}\n', "lines"),
        (b"{}\n", "lines"),
        (b'{"text": "' + b"x" * 9000, "lines"),
        (b"{\\bf tex}\n", "text"),
        (b"{" + b"x" * 9000, "text"),
        (b'{"text": broken}\n', "text"),
        (b'["x"]\n', "text"),
        (b"", "text"),
    ],
)
def test_what_came_through_a_pipe_is_known_by_its_first_line(content, kind):
    write("stdin", content)
    assert examine(Path("stdin"), "stdin", is_stdin=True).kind == kind
    write("stdin", gzip.compress(content))
    assert examine(Path("stdin"), "stdin", is_stdin=True).kind == kind


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.txt", None, "No such file"),
        ("*.nothing", None, "matches no file"),
        ("folder/a.png", b"x", "folder holds no"),
        ("nul\x1b[31m.txt", None, r"nul\\x1b\[31m"),
        ("a.txt", "text".encode("utf-16"), r"a\.txt is UTF-16, .*iconv -f UTF-16 -t UTF-8 a\.txt"),
        ("a.txt", "text".encode("utf-32"), "iconv -f UTF-32"),
        ("a.txt", "text".encode("utf-16-be"), None),
        ("a.txt", ("text " * 20).encode("utf-16-le"), "iconv -f UTF-16LE"),
        ("a.txt", ("text " * 20).encode("utf-16-be"), "iconv -f UTF-16BE"),
        ("a.txt.gz", gzip.compress("text".encode("utf-16")), "iconv -f UTF-16 "),
        ("a.jsonl.xz", lzma.compress(("text " * 20).encode("utf-16-le")), "iconv -f UTF-16LE"),
        ("a.json", b' [{"text": "x"}]', r"one JSON array; .*jq -c '\.\[\]' a\.json"),
        ("a.json.gz", gzip.compress(b'[\n{"text": "x"}]'), "one JSON array"),
        ("a.zip", b"PK\x03\x04", r"unzip a\.zip"),
        ("two words.pdf", b"%PDF-1.4", r"pdftotext 'two words\.pdf'"),
        ("a.gz", gzip.compress(b"PK\x03\x04"), "a zip archive"),
        ("a.parquet", b"text", r"a\.parquet is no Parquet file"),
    ],
)
def test_what_is_no_text_is_refused_with_the_cure(name, content, reason):
    if content is not None:
        write(name, content)
    if reason is None:  # too short to tell
        find_sources([name], print, None)
        return
    with pytest.raises(UserError, match=reason) as caught:
        find_sources([name.split("/")[0]], print, None)
    assert caught.value.code == Exit.DATA


def test_a_fifo_is_refused_and_never_waited_for():
    os.mkfifo("pipe")
    with pytest.raises(UserError, match=r"cat pipe \| python pretokenize\.py -"):
        find_sources(["pipe"], print, None)


def test_the_demo_takes_python_sources_without_tests():
    sources = demo_sources()
    assert sum(source.path.stat().st_size for source in sources) <= DEMO_BYTES
    assert "argparse.py" in [source.shown for source in sources]
    assert not [source.shown for source in sources if "test" in Path(source.shown).parts]


def test_a_missing_optional_package_is_named_with_the_command(monkeypatch):
    write("a.txt.zst", b"\x28\xb5\x2f\xfd")
    monkeypatch.setattr(importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(UserError, match=r"a\.txt\.zst needs the package zstandard.*pip install zstandard") as caught:
        sources_of("a.txt.zst")
    assert caught.value.code == Exit.MACHINE


# ---------------------------------------------------------------- packed files


@pytest.mark.parametrize("ending", PACK)
def test_a_packed_file_holds_what_the_plain_one_does_in_one_stream_or_many(ending, monkeypatch):
    content = "".join(random_texts(random.Random(0), 300)).encode()
    write("a.txt", MARK + content)
    expected = read("a.txt")[0]
    assert expected == [content.decode()]
    cut = len(content) // 3
    whole, many = PACK[ending](content), b"".join(map(PACK[ending], (content[:cut], b"", content[cut:])))
    for part_bytes in (2**20, 300):
        sizes(monkeypatch, PART_BYTES=part_bytes)
        for packed in (whole, many, PACK[ending](MARK + content)):
            write(f"a.txt.{ending}", packed)
            assert read(f"a.txt.{ending}")[0] == expected
    if ending in ("gz", "xz"):
        write(f"a.txt.{ending}", many + b"\0" * 8)
        assert read(f"a.txt.{ending}")[0] == expected


@pytest.mark.parametrize("ending", PACK)
def test_a_packed_file_that_was_cut_or_changed_is_named(ending):
    rng = random.Random(1)
    content = "".join(rng.choices(ALPHABET, k=5000)).encode()
    if ending == "zst":
        compressor = pytest.importorskip("zstandard").ZstdCompressor(write_checksum=True)
        packed = compressor.compress(content)
    else:
        packed = PACK[ending](content)
    name = f"a.txt.{ending}"
    broken = [packed[:length] for length in (6, 20, len(packed) // 2, len(packed) - 9, len(packed) - 1)]
    broken += [packed + packed[:length] for length in (15, len(packed) - 1)]
    for place in (len(packed) // 3, len(packed) // 2, len(packed) - 30):
        broken.append(packed[:place] + bytes([packed[place] ^ 0x55]) + packed[place + 1 :])
    if ending != "zst":
        broken.append(packed + packed[:1] + bytes([packed[1] ^ 1]) + packed[2:])  # the second stream's first bytes
    for damaged in broken:
        write(name, damaged)
        with pytest.raises(UserError, match=rf"^{re.escape(name)} is damaged: \w+ cannot unpack") as caught:
            read(name)
        assert caught.value.code == Exit.DATA


@pytest.mark.parametrize("ending", PACK)
def test_a_bomb_is_refused_long_before_it_fills_the_memory(ending, monkeypatch):
    sizes(monkeypatch, BOMB_BYTES=2**22)
    write(f"bomb.txt.{ending}", PACK[ending](b"\n" * 2**24))
    with pytest.raises(UserError, match=rf"bomb\.txt\.{ending} unpacks to more than 250 times") as caught:
        read(f"bomb.txt.{ending}")
    assert caught.value.code == Exit.DATA
    monkeypatch.setattr(text, "BOMB_RATIO", 2**30)
    assert len(read(f"bomb.txt.{ending}")[0][0]) == 2**24


def test_a_packed_text_never_lies_in_memory_as_a_whole(monkeypatch):
    sizes(monkeypatch, PART_BYTES=1000, BLOCK_BYTES=1000)
    monkeypatch.setattr(Feed, "window", largest := Largest(Feed.window))
    content = "".join(random_texts(random.Random(0), 6000)) * 30
    write("a.txt.gz", gzip.compress(content.encode()))
    [source] = sources_of("a.txt.gz")
    length = len(content.encode())
    for reading, cut in ((Reading(), None), (Reading(), length - 100), (Reading(separator="\n"), None)):
        assert sum(block.length for block in blocks.blocks(0, source, reading, cut=cut)) == length
    assert largest.held < 2**20 + 10_000 < length


class Largest:
    """Wraps Feed.window and remembers the most that a feed has held."""

    def __init__(self, inner):
        self.inner, self.held = inner, 0

    def __get__(self, feed, _=None):
        def window(start: int, length: int) -> bytes:
            result = self.inner(feed, start, length)
            self.held = max(self.held, len(feed._held))
            return result

        return window


# ---------------------------------------------------------------- places to cut


def test_begun_characters_are_measured_at_every_place():
    content = "a\u00e9\u6f22\U0001f600z".encode()
    for end in range(len(content) + 1):
        whole = content[:end].decode(errors="ignore").encode()
        assert begun_character(content[:end]) == end - len(whole)
    assert begun_character(b"\x80\x80\x80\x80") == begun_character(b"a\x80") == begun_character(b"") == 0


def test_the_last_place_is_the_last_one_wherever_it_stands():
    rng = random.Random(2)
    for _ in range(300):
        whole = "".join(rng.choices(ALPHABET, k=rng.randint(0, 30))) + rng.choice("ab\u00e9\u0301 ") * rng.randint(
            0, 700
        )
        for places in (SAFE_PLACE, SPACE):
            ends = [found.end() for found in places.finditer(whole)]
            assert last_place(whole.encode(), places) == (len(whole[: ends[-1]].encode()) if ends else 0)


def test_parts_end_at_safe_places_and_a_run_without_one_is_cut_at_its_own_multiples(monkeypatch):
    sizes(monkeypatch, PART_BYTES=50)
    for before in range(1, 60):
        begin = "w" * before + " "
        run = "\u00e9" * 71  # 142 bytes, a character never cut
        content = (begin + run + " end").encode()
        parts = parts_of(content, SAFE_PLACE)
        assert b"".join(parts) == content
        assert max(map(len, parts)) <= 50
        assert all(part.decode() for part in parts)
        at = next(number for number, part in enumerate(parts) if part.startswith(b" \xc3"))
        assert [len(part) for part in parts[at:]] == [49, 50, 48]  # the space and 24 characters, then 25, then the rest
    short = b"x" * 50
    assert parts_of(short, SAFE_PLACE) == [short]
    assert parts_of(b"", SAFE_PLACE) == [b""]


# ---------------------------------------------------------------- blocks and spans


SIZES = [
    {},
    {"BLOCK_BYTES": 64, "PART_BYTES": 64, "WINDOW_BYTES": 64},
    {"BLOCK_BYTES": 333, "PART_BYTES": 80},
    {"BLOCK_BYTES": 100, "PART_BYTES": 500, "WINDOW_BYTES": 7},
    {"BLOCK_BYTES": 97, "PART_BYTES": 90, "WINDOW_BYTES": 1},
]


@pytest.mark.parametrize("named", SIZES)
@pytest.mark.parametrize("separator", ["\n", "<->", "\n\n\t", "\u00e9\u6f22", "aa"])
def test_separated_documents_are_the_same_in_blocks_of_any_size(named, separator, monkeypatch):
    sizes(monkeypatch, **named)
    rng = random.Random(3)
    for trial in range(25):
        pieces = [*random_texts(rng, rng.randint(1, 12), rng.choice([3, 30, 300])), *[""] * rng.randint(0, 1)]
        content = separator.join(pieces)
        expected = content.split(separator)
        expected = expected if expected[-1] else expected[:-1]
        encoded = content.encode()
        write("a.txt", encoded if trial % 2 else MARK + encoded)
        write("a.txt.gz", gzip.compress(encoded))
        for name in ("a.txt", "a.txt.gz"):
            found, report = read(name, reading=Reading(separator=separator))
            assert found == expected
            assert report.separators == content.count(separator)


@pytest.mark.parametrize("named", SIZES)
def test_a_text_file_is_the_same_in_parts_of_any_size_and_may_be_cut_once(named, monkeypatch):
    sizes(monkeypatch, **named)
    rng = random.Random(4)
    for trial in range(30):
        content = "".join(rng.choices(ALPHABET, k=rng.randint(0, 900)))
        encoded = content.encode()
        write("a.txt", encoded if trial % 2 else MARK + encoded)
        assert read("a.txt")[0] == [content]
        sources, length = sources_of("a.txt"), len(encoded)
        if not length:
            continue
        for cut in {1, length, rng.randint(1, length), min(length, PART_BYTES), min(length, PART_BYTES + 1)}:
            halves = {False: "", True: ""}
            blocks = list(blocks.blocks(0, sources[0], Reading(), cut=cut))
            for number, block in enumerate(blocks):
                halves[bool(block.in_val)] += content_of(block, sources).decode()
                assert block.first == (number == 0 or block.in_val != blocks[number - 1].in_val)
                assert block.last == (number == len(blocks) - 1 or block.in_val != blocks[number + 1].in_val)
            assert halves[False] + halves[True] == content
            at = len(halves[False].encode())
            assert cut <= at < cut + 4
            assert len(encoded[:cut].decode(errors="ignore").encode()) in (cut, at - len(halves[False][-1].encode()))


@pytest.mark.parametrize(
    "named",
    [
        *SIZES,
        {"LONG_LINE_BYTES": 200, "BLOCK_BYTES": 90, "PART_BYTES": 70},
        {"LONG_LINE_BYTES": 1, "BLOCK_BYTES": 64, "PART_BYTES": 64, "WINDOW_BYTES": 32},
    ],
)
def test_lines_of_json_are_the_same_in_blocks_of_any_size(named, monkeypatch):
    sizes(monkeypatch, **named)
    rng = random.Random(5)
    for trial in range(15):
        texts = random_texts(rng, rng.randint(1, 12), rng.choice([3, 30, 300]))
        content = lines(texts).replace("\n", rng.choice(["\n", "\r\n", "\n\n \n"])) + rng.choice(["", "\n", "\r\n"])
        encoded = (b"" if trial % 2 else MARK) + content.encode()
        write("a.jsonl", encoded)
        write("a.jsonl.xz", lzma.compress(encoded))
        for name in ("a.jsonl", "a.jsonl.xz"):
            found, report = read(name)
            assert found == texts
            assert report.bad_lines == report.replaced == 0
            assert report.now_lines - content.count("\n") in (0, 1)  # a last line may not end


def test_plain_files_are_read_by_those_who_need_the_bytes():
    write("a.jsonl", lines(["x"] * 100))
    write("a.txt", "x" * 1000)
    for name in ("a.jsonl", "a.txt"):
        [source] = sources_of(name)
        assert [block.content for block in blocks.blocks(0, source, Reading())] == [None]


@pytest.mark.parametrize("shards", range(1, 10))
def test_shards_hold_each_document_once_and_in_order(shards, monkeypatch):
    rng = random.Random(6)
    for trial in range(12):
        sizes(
            monkeypatch,
            SPAN_BYTES=rng.choice([5, 17, 64, 300]),
            BLOCK_BYTES=rng.choice([64, 200]),
            PART_BYTES=100,
            WINDOW_BYTES=rng.choice([1, 50]),
            LONG_LINE_BYTES=rng.choice([150, 2**25]),
        )
        texts = random_texts(rng, rng.randint(1, 30), rng.choice([3, 30, 300]))
        ending = rng.choice(["", "\n", "\r\n", "\n\n\n"])
        write("a.jsonl", lines(texts).replace("\n", rng.choice(["\n", "\r\n", "\n\n"])) + ending)
        write("b.jsonl.gz", gzip.compress(lines(["packed 1", "packed 2"]).encode()))
        separator = rng.choice(["\n", "<->", "\u00e9\u6f22 ", "ab"])
        write("c.txt", separator.join(texts) + rng.choice(["", separator]))
        write("d.txt", "")
        reading, names = Reading(separator=separator), ("a.jsonl", "b.jsonl.gz", "c.txt", "d.txt", "a.jsonl")
        names = names[trial % 3 :]
        expected = read(*names, reading=reading)[0]
        assert expected
        assert read(*names, reading=reading, shards=shards)[0] == expected
        spans = [span for shard in range(shards) for span in spans_of(sources_of(*names), reading, shard, shards)]
        assert spans == sorted(set(spans), key=lambda span: (span.source, span.start))


def test_shards_are_of_even_size_and_what_cannot_be_cut_stays_whole(monkeypatch):
    sizes(monkeypatch, SPAN_BYTES=100)
    plain, packed = (
        Source(Path("a"), "a", 10_050, kind="lines"),
        Source(Path("b"), "b", 10_050, packing="gzip", kind="lines"),
    )
    shares = [
        sum((span.stop or 10_050) - span.start for span in spans_of([plain], Reading(), shard, 7))
        for shard in range(7)
    ]
    assert sum(shares) == 10_050
    assert max(shares) - min(shares) <= 100
    assert [len(spans_of([packed], Reading(), shard, 2)) for shard in range(2)] == [0, 1]
    whole = Source(Path("c"), "c", 10_050)
    for separator, can_cut in ((None, False), ("ab", True), ("aa", False), ("aba", False), ("\n\n\t", True)):
        spans = spans_of([whole], Reading(separator=separator), 0, 2)
        assert (len(spans) > 1) == can_cut


def test_a_file_that_becomes_shorter_while_it_is_read_is_named():
    write("a.jsonl", lines(["one", "two"]))
    sources = sources_of("a.jsonl")
    [block] = blocks.blocks(0, sources[0], Reading())
    write("a.jsonl", "{}")
    with pytest.raises(UserError, match=r"a\.jsonl became shorter") as caught:
        content_of(block, sources)
    assert caught.value.code == Exit.DATA


# ---------------------------------------------------------------- lines of JSON


def reference(line: bytes, field: str) -> str | None:
    """What one line holds as json.loads sees it; None if it holds no document."""
    try:
        fields = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    found = fields.get(field) if isinstance(fields, dict) else None
    return re.sub("[\ud800-\udfff]", "\ufffd", found) if isinstance(found, str) else None


LINES = [
    b'{"text": ""}',
    b'{"text": "a"}',
    b'{"text": "a", "text": "b"}',
    b'{"text": "a", "text": 5}',
    b'{"text": 5, "text": "b"}',
    b'{"a": {"text": "no", "b": ["]", "}", "\\"", {}]}, "text": "yes", "c": [[], {"text": 1}]}',
    b'{"a": "x"}',
    b"{}",
    b"[]",
    b'"text"',
    b"5",
    b'{"text": null}',
    b'{"text": ["a"]}',
    b'{"text": "a"',
    b'{"text": "a"}}',
    b'{"text": "a"} {"text": "b"}',
    b'{"text": "a",}',
    b'{,"text": "a"}',
    b'{"text" "a"}',
    b'{"text": "a" "b": 1}',
    b'{"text": }',
    b'{"text": "a", "b": tru}',
    b'{"text": "a", "b": [1,,2]}',
    b'{"text": "a", "b": [}',
    b'{"b": {"c" 1}, "text": "a"}',
    b'{"b": [1], "text": "a"}',
    b'{"b": -1.5e3, "c": NaN, "d": false, "text": "a"}',
    b'{"b": 01, "text": "a"}',
    b'{"b": "\\x", "text": "a"}',
    b'{"b": "\x01", "text": "a"}',
    b'{"text": "\x01"}',
    b'{"text": "\0\0"}',
    b'{"text": "\\x"}',
    b'{"text": "\\u12"}',
    b'{"text": "\\u12g4"}',
    b'{"text": "\\ud83d\\ude00 \\ud83d \\ude00 \\\\ud83d \\ud83d\\ud83d\\ude00"}',
    b'{"text": "\\\\\\ud83d\\\\ude00"}',
    b'{"text": "\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\u0000"}',
    b'{"te\\u0078t": "a"}',
    b'{"text": "\xff\xfe \xe2\x82 \xc3\\u00e9 \xed\xa0\x80"}',
    b'{"text": "\xe2\x82\\ud83d\\udc80\\udc80"}',
    b'{"te\xffxt": 1, "text": "a"}',
    b'{"text": "\xff\x01"}',
    b'{"b": "\xff", "text": "a"}',
    b'{"text": "\\',
    b'{"text": "',
    b'{"text": "\xef\xbb\xbfa"}',
    b'  {  "text"\t:\r"a"  }  ',
    b'{"text": "a"}\r',
    b'\xc2\xa0{"text": "a"}',
    b"nonsense",
    b'{"b": ' + b"[" * 2000 + b"]" * 2000 + b', "text": "a"}',
    b'{"b": ' + b"1" * 3000 + b', "text": "a"}',
    b'{"text": "\xf0\x9f\x98\x80\xf0\x9f\x98"}',
]


@pytest.mark.parametrize("part_bytes", [12, 13, 16, 64, 2**20])
@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_a_line_too_long_to_hold_is_read_as_json_reads_it(part_bytes, ending, monkeypatch):
    for field in ("text", "b"):
        for line in LINES:
            write("a.jsonl", b'{"text": "before", "b": "before"}\n' + line + ending)
            expected = [t for t in ("before", reference(line, field)) if t is not None]
            sizes(monkeypatch, LONG_LINE_BYTES=2**25, BLOCK_BYTES=2**22, WINDOW_BYTES=2**16, PART_BYTES=2**20)
            short = read("a.jsonl", reading=Reading(text_field=field))
            assert short[0] == expected, line
            sizes(monkeypatch, LONG_LINE_BYTES=1, BLOCK_BYTES=1, WINDOW_BYTES=1, PART_BYTES=part_bytes)
            found, report = read("a.jsonl", reading=Reading(text_field=field))
            assert found == expected, line
            assert report.bad_lines == short[1].bad_lines, line
            assert report.now_lines == (2 if ending else report.now_lines), line


def test_random_lines_too_long_to_hold_are_read_as_json_reads_them(monkeypatch):
    rng = random.Random(7)

    def value(depth: int):
        if depth == 0 or rng.random() < 0.5:
            return rng.choice([None, True, -3.5e-7, 12, *random_texts(rng, 3)])
        if rng.random() < 0.5:
            return [value(depth - 1) for _ in range(rng.randint(0, 3))]
        return {rng.choice(["text", "a", '"', "\\"]): value(depth - 1) for _ in range(rng.randint(0, 3))}

    def spelt(piece: str) -> str:
        """A character as JSON may spell it."""
        whole = json.dumps(piece, ensure_ascii=rng.random() < 0.5)[1:-1]
        return rng.choice(
            [
                whole,
                whole,
                "".join(f"\\u{ord(c):04X}" for c in piece if ord(c) < 0x10000),
                f"\\u{rng.randint(0xD800, 0xDFFF):04x}",
                "\\\\",
                '\\"',
            ]
        )

    sizes(monkeypatch, LONG_LINE_BYTES=1, BLOCK_BYTES=1)
    for _ in range(400):
        sizes(monkeypatch, PART_BYTES=rng.randint(12, 80), WINDOW_BYTES=rng.randint(1, 80))
        document = "".join(spelt(rng.choice(ALPHABET)) for _ in range(rng.randint(0, 60)))
        members = [f'"text":"{document}"', *(f'"{rng.choice("ab")}" : {json.dumps(value(3))}' for _ in range(3))]
        rng.shuffle(members)
        raw = ("{" + " , ".join(members) + "}").encode()
        if rng.random() < 0.5:  # damage
            place = rng.randrange(len(raw))
            raw = raw[:place] + rng.choice([b"", b"\xff", b"\\", b'"', b"}", b"\xe2\x82", b"\0"]) + raw[place + 1 :]
        expected = reference(raw, "text")
        write("a.jsonl", raw)
        found, report = read("a.jsonl")
        assert found == ([] if expected is None else [expected]), raw
        assert report.bad_lines == (expected is None)


def test_text_that_is_not_utf8_is_found_in_a_long_line_too(monkeypatch):
    sizes(monkeypatch, LONG_LINE_BYTES=1, BLOCK_BYTES=1)
    for damage in (b"\xff", b"\\udc80"):
        write("a.jsonl", b'{"text": "fine \xef\xbf\xbd"}\n{"text": "bad ' + damage + b'"}\n')
        found, report = read("a.jsonl")
        assert found == ["fine \ufffd", "bad \ufffd"]
        assert report.replaced == 1
        assert "line 2 of a.jsonl" in report.first_replaced
        with pytest.raises(UserError, match=r"not UTF-8: .* line 2 of a\.jsonl"):
            read("a.jsonl", strict=True)


def test_a_long_lines_document_keeps_what_looks_like_a_mark_or_a_separator(monkeypatch):
    sizes(monkeypatch, LONG_LINE_BYTES=1, BLOCK_BYTES=1, PART_BYTES=16)
    write("a.jsonl", '{"text": "\ufeffone<->"}')
    found, report = read("a.jsonl", reading=Reading(separator="<->"))
    assert found == ["\ufeffone<->"]
    assert not report.separators


def test_lines_without_a_document_are_counted_and_the_first_is_named(monkeypatch):
    content = [
        '{"body": "first"}',
        "",
        "{broken",
        '{"body": 5}',
        '["body"]',
        '{"other": "x"}',
        '{"body": "lone \\ud800"}',
    ]
    for named in ({}, {"BLOCK_BYTES": 8}, {"LONG_LINE_BYTES": 1, "BLOCK_BYTES": 1}):
        sizes(monkeypatch, **named)
        write("a.jsonl", "\ufeff" + "\r\n".join(content))
        found, report = read("a.jsonl", reading=Reading(text_field="body"))
        assert found == ["first", "lone \ufffd"]
        assert (report.bad_lines, report.first_bad_line) == (4, "line 3 of a.jsonl is not JSON")
        assert report.replaced == 1
        assert "line 7 of a.jsonl" in report.first_replaced
    sizes(monkeypatch, LONG_LINE_BYTES=2**25, BLOCK_BYTES=2**22)
    write("a.jsonl", '{"other": 1, "more": 2}')
    assert read("a.jsonl")[1].first_bad_line == "line 1 of a.jsonl holds no text as 'text': it has other, more"


# ---------------------------------------------------------------- tables


def table(name: str, values: list, column: str = "text") -> str:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table({"number": range(len(values)), column: values}), name, row_group_size=70)
    return name


@pytest.mark.parametrize("block_bytes", [1, 100, 2**22])
def test_a_tables_rows_are_its_documents(block_bytes, monkeypatch):
    sizes(monkeypatch, BLOCK_BYTES=block_bytes)
    texts: list = random_texts(random.Random(8), 300)
    texts[100] = None
    table("a.parquet", texts)
    found, report = read("a.parquet")
    assert found == texts[:100] + texts[101:]
    assert report.first_bad_line == "row 101 of a.parquet holds no text as 'text': it is null"
    table("b.parquet", [b"fine", b"bad \xff"], "body")
    found, report = read("b.parquet", reading=Reading(text_field="body"))
    assert found == ["fine", "bad \ufffd"]
    assert "row 2 of b.parquet" in report.first_replaced


def test_a_table_without_the_column_or_damaged_is_named():
    table("a.parquet", ["x"] * 1000)
    with pytest.raises(UserError, match=r"no column 'body', it has number, text\. Give --text_field") as caught:
        read("a.parquet", reading=Reading(text_field="body"))
    assert caught.value.code == Exit.DATA
    content = Path("a.parquet").read_bytes()
    for damaged in (
        content[:4],
        content[:100],
        content[:-1],
        content[:-200],
        content[:300] + b"\0" * 300 + content[600:],
    ):
        write("a.parquet", damaged)
        with pytest.raises(UserError, match=r"a\.parquet is damaged") as caught:
            read("a.parquet")
        assert caught.value.code == Exit.DATA


# ---------------------------------------------------------------- damaged text


@pytest.mark.parametrize("named", [{}, {"BLOCK_BYTES": 12, "PART_BYTES": 12}, {"BLOCK_BYTES": 40, "PART_BYTES": 15}])
def test_bytes_that_are_not_utf8_are_replaced_counted_and_placed(named, monkeypatch):
    sizes(monkeypatch, **named)
    content = "\u00e9t\u00e9 \ufffd\nab".encode() + b"\xff\xfe c \xe2\x82" + "\u00e9\u00e9".encode()
    for mark, reading in ((b"", Reading()), (MARK, Reading()), (MARK, Reading(separator="<->"))):
        write("a.txt", mark + content)
        found, report = read("a.txt", reading=reading)
        assert found == [content.decode(errors="replace")]
        assert report.replaced == 3
        assert f"byte {12 + len(mark)}, line 2 of a.txt" in report.first_replaced
        assert not report.latin_1
        with pytest.raises(UserError, match=rf"0xff .* at byte {12 + len(mark)}, line 2 of a\.txt") as caught:
            read("a.txt", reading=reading, strict=True)
        assert caught.value.code == Exit.DATA
    write("a.jsonl", MARK + b'{"text": "x"}\n{"text": "\xff"}')
    assert "byte 27, line 2 of a.jsonl" in read("a.jsonl")[1].first_replaced


def test_any_bytes_at_all_are_read_as_one_decoding_of_them(monkeypatch):
    rng = random.Random(9)
    bytes_of = [
        b"a",
        b" ",
        b".",
        b"\n",
        b"\xff",
        b"\x80",
        b"\xe2",
        b"\x82",
        b"\xf0",
        b"\x9f",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xef",
    ]
    for _ in range(200):
        sizes(
            monkeypatch,
            BLOCK_BYTES=rng.randint(12, 80),
            PART_BYTES=rng.randint(12, 80),
            WINDOW_BYTES=rng.randint(1, 80),
        )
        content = b"x" + b"".join(rng.choices(bytes_of, k=200))
        write("a.txt", content)
        expected = content.decode(errors="replace")
        assert "".join(read("a.txt")[0]) == expected
        found, report = read("a.txt", reading=Reading(separator="."))
        assert found == (expected.removesuffix(".")).split(".")
        assert report.replaced == expected.count("\ufffd")


def test_latin_1_is_told_from_damaged_utf8():
    write("a.txt", ("caf\u00e9 " * 50).encode("latin-1"))
    write("b.txt", ("caf\u00e9 " * 50).encode() + b"\xe9")
    write("c.txt", "plain")
    assert read("a.txt", "b.txt", "c.txt", "a.txt")[1].latin_1 == ["a.txt", "a.txt"]


def test_a_report_goes_on_from_its_state():
    content = b"\xffcaf\xe9 \xe9\xe9\n" * 3
    block, found = Block(0, "documents", 0, len(content)), Findings()
    texts_in(block, content, Reading(separator="<->"), found)
    source = Source(Path("a.txt"), "a.txt")
    whole, first = Report([source], False), Report([source], False)
    whole.add(block, found)
    whole.add(block, found)
    first.add(block, found)
    second = Report([source], False, **json.loads(json.dumps(first.state())))
    second.add(block, found)
    assert second == whole
