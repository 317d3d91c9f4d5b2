"""json_lines.py: a line is read as json.loads reads it, wherever blocks are cut."""

import gzip
import json
import lzma
import random
import re

import pytest

from gpt.common.errors import Exit, UserError
from gpt.pretokenization import report as report_module
from gpt.pretokenization.blocks import Limits, Reading
from tests.helpers.texts import BYTE_ORDER_MARK, random_texts, read, spelt_lines, words_of_first, write


@pytest.mark.parametrize("named", [
    {}, {"block_bytes": 64, "part_bytes": 64, "window_bytes": 64},
    {"block_bytes": 97, "part_bytes": 90, "window_bytes": 1}])
def test_lines_of_json_are_the_same_in_blocks_of_any_size(named):
    limits = Limits(**named)
    rng = random.Random(5)
    for trial in range(15):
        texts = random_texts(rng, rng.randint(1, 12), rng.choice([3, 30, 300]))
        content = spelt_lines(texts).replace("\n", rng.choice(["\n", "\r\n", "\n\n \n"]))
        content += rng.choice(["", "\n", "\r\n"])
        encoded = (b"" if trial % 2 else BYTE_ORDER_MARK) + content.encode()
        write("a.jsonl", encoded)
        write("a.jsonl.xz", lzma.compress(encoded))
        for name in ("a.jsonl", "a.jsonl.xz"):
            found, report = read(name, limits=limits)
            assert found == texts
            assert report.total.bad_records == report.total.replaced == 0
            assert report.in_source.newlines - content.count("\n") in (0, 1)  # a last line may not end


@pytest.mark.parametrize("before", ["", "\n", " \r\n\n", "\ufeff\n"])
def test_piped_lines_of_json_may_begin_with_blank_lines(before):
    assert read(write("stdin", before + '{"text": "a"}\n{"text": "b"}\n'))[0] == ["a", "b"]


def reference(line: bytes, field: str) -> str | None:
    """What one line holds as json.loads sees it; None if it holds no document."""
    try:
        fields = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    found = fields.get(field) if isinstance(fields, dict) else None
    return re.sub("[\ud800-\udfff]", "\ufffd", found) if isinstance(found, str) else None


LINES = [
    b'{"text": ""}', b'{"text": "a", "text": "b"}', b'{"text": 5, "text": "b"}',
    b'{"a": {"text": "no", "b": ["]", "}", "\\"", {}]}, "text": "yes", "c": [[], {"text": 1}]}', b"{}", b"[]",
    b'"text"', b'{"text": null}', b'{"text": "a"', b'{"text": "a"} {"text": "b"}', b'{"text": "a",}', b'{"text" "a"}',
    b'{"text": "a" "b": 1}', b'{"text": "a", "b": tru}', b'{"text": "a", "b": [}',
    b'{"b": -1.5e3, "c": NaN, "d": false, "text": "a"}', b'{"b": "\\x", "text": "a"}', b'{"b": "\x01", "text": "a"}',
    b'{"text": "\x01"}', b'{"text": "\\u12g4"}',
    b'{"text": "\\ud83d\\ude00 \\ud83d \\ude00 \\\\ud83d \\ud83d\\ud83d\\ude00"}', b'{"text": "\\\\\\ud83d\\\\ude00"}',
    b'{"text": "\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\u0000"}', b'{"te\\u0078t": "a"}',
    b'{"text": "\xff\xfe \xe2\x82 \xc3\\u00e9 \xed\xa0\x80"}', b'{"text": "\xe2\x82\\ud83d\\udc80\\udc80"}',
    b'{"te\xffxt": 1, "text": "a"}', b'{"text": "\xff\x01"}', b'{"b": "\xff", "text": "a"}', b'{"text": "\\',
    b'{"text": "\xef\xbb\xbfa"}', b'  {  "text"\t:\r"a"  }  ', b'{"text": "a"}\r', b'\xc2\xa0{"text": "a"}',
    b"nonsense", b'{"b": ' + b"[" * 2000 + b"]" * 2000 + b', "text": "a"}',
    b'{"b": ' + b"1" * 3000 + b', "text": "a"}', b'{"text": "\xf0\x9f\x98\x80\xf0\x9f\x98"}']


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_a_line_is_read_as_json_reads_it(ending, monkeypatch):
    monkeypatch.setattr(report_module, "FEW_FAULTS", 10**9)
    for field in ("text", "b"):
        for line in LINES:
            write("a.jsonl", b'{"text": "before", "b": "before"}\n' + line + ending)
            expected = [t for t in ("before", reference(line, field)) if t is not None]
            assert read("a.jsonl", reading=Reading(text_field=field))[0] == expected, line


@pytest.mark.parametrize(("name", "content", "separator"), [
    ("a.jsonl", '{"text": "' + "x" * 900 + '"}\n', None), ("a.txt", "short<->" + "x" * 900, "<->"),
    ("a.txt.gz", gzip.compress(b"x" * 900), None), ("b.txt", "x" * 900, None)])
def test_a_document_longer_than_memory_is_one_clear_error(name, content, separator):
    write(name, content)
    small = {"block_bytes": 50, "part_bytes": 50, "window_bytes": 20}
    assert "x" * 900 in read(name, reading=Reading(separator=separator), limits=Limits(**small))[0]
    with pytest.raises(UserError, match="500 bytes") as caught:
        read(name, reading=Reading(separator=separator), limits=Limits(**small, document_bytes=500))
    assert caught.value.code == Exit.DATA


def test_lines_without_a_document_are_counted_and_the_first_is_named():
    content = ['{"body": "first"}', "", "{broken", '{"body": 5}', '["body"]', '{"other": "x"}',
               '{"body": "lone \\ud800"}']
    for named in ({}, {"block_bytes": 8}):
        limits = Limits(**named)
        write("a.jsonl", "\ufeff" + "\r\n".join(content))
        found, report = read("a.jsonl", reading=Reading(text_field="body"), limits=limits)
        assert found == ["first", "lone \ufffd"]
        assert report.total.bad_records == 4
        assert words_of_first(report.total.first_bad_record).startswith("line 3 of a.jsonl ")
        assert report.total.replaced == 1
        assert "line 7 of a.jsonl" in words_of_first(report.total.first_replaced)
    write("a.jsonl", '{"other": 1, "more": 2}')
    assert re.match("line 1 of a.jsonl .*'text'.* other, more$",
                    words_of_first(read("a.jsonl")[1].total.first_bad_record))
