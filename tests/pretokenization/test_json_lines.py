"""json_lines.py: a line is read as json.loads reads it, however long it is and wherever it is cut."""

import json
import lzma
import random
import re

import pytest

from common.errors import UserError
from pretokenization import report as report_module
from pretokenization.blocks import Limits, Reading
from tests.helpers.texts import ALPHABET, MARK, random_texts, read, spelt_lines, write


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"block_bytes": 64, "part_bytes": 64, "window_bytes": 64},
        {"block_bytes": 97, "part_bytes": 90, "window_bytes": 1},
        {"long_line_bytes": 200, "block_bytes": 90, "part_bytes": 70},
        {"long_line_bytes": 1, "block_bytes": 64, "part_bytes": 64, "window_bytes": 32},
    ],
)
def test_lines_of_json_are_the_same_in_blocks_of_any_size(named):
    limits = Limits(**named)
    rng = random.Random(5)
    for trial in range(15):
        texts = random_texts(rng, rng.randint(1, 12), rng.choice([3, 30, 300]))
        content = spelt_lines(texts).replace("\n", rng.choice(["\n", "\r\n", "\n\n \n"]))
        content += rng.choice(["", "\n", "\r\n"])
        encoded = (b"" if trial % 2 else MARK) + content.encode()
        write("a.jsonl", encoded)
        write("a.jsonl.xz", lzma.compress(encoded))
        for name in ("a.jsonl", "a.jsonl.xz"):
            found, report = read(name, limits=limits)
            assert found == texts
            assert report.bad_lines == report.replaced == 0
            assert report.now_lines - content.count("\n") in (0, 1)  # a last line may not end


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


@pytest.mark.parametrize("part_bytes", [12, 13, 64, 2**20])
@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_a_line_too_long_to_hold_is_read_as_json_reads_it(part_bytes, ending, monkeypatch):
    monkeypatch.setattr(report_module, "refuse_undecodable", lambda *_: None)  # as if they were few among many
    for field in ("text", "b"):
        for line in LINES:
            write("a.jsonl", b'{"text": "before", "b": "before"}\n' + line + ending)
            expected = [t for t in ("before", reference(line, field)) if t is not None]
            short = read("a.jsonl", reading=Reading(text_field=field))
            assert short[0] == expected, line
            limits = Limits(long_line_bytes=1, block_bytes=1, window_bytes=1, part_bytes=part_bytes)
            found, report = read("a.jsonl", reading=Reading(text_field=field), limits=limits)
            assert found == expected, line
            assert report.bad_lines == short[1].bad_lines, line
            assert report.now_lines == (2 if ending else report.now_lines), line


def test_random_lines_too_long_to_hold_are_read_as_json_reads_them():
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

    for _ in range(400):
        part_bytes, window_bytes = rng.randint(12, 80), rng.randint(1, 80)
        limits = Limits(long_line_bytes=1, block_bytes=1, part_bytes=part_bytes, window_bytes=window_bytes)
        document = "".join(spelt(rng.choice(ALPHABET)) for _ in range(rng.randint(0, 60)))
        members = [f'"text":"{document}"', *(f'"{rng.choice("ab")}" : {json.dumps(value(3))}' for _ in range(3))]
        rng.shuffle(members)
        raw = ("{" + " , ".join(members) + "}").encode()
        if rng.random() < 0.5:  # damage
            place = rng.randrange(len(raw))
            raw = raw[:place] + rng.choice([b"", b"\xff", b"\\", b'"', b"}", b"\xe2\x82", b"\0"]) + raw[place + 1 :]
        expected = reference(raw, "text")
        write("a.jsonl", raw)
        found, report = read("a.jsonl", limits=limits)
        assert found == ([] if expected is None else [expected]), raw
        assert report.bad_lines == (expected is None)


def test_text_that_is_not_utf8_is_found_in_a_long_line_too():
    limits = Limits(long_line_bytes=1, block_bytes=1)
    for damage in (b"\xff", b"\\udc80"):
        write("a.jsonl", b'{"text": "fine \xef\xbf\xbd"}\n{"text": "bad ' + damage + b'"}\n')
        found, report = read("a.jsonl", limits=limits)
        assert found == ["fine \ufffd", "bad \ufffd"]
        assert report.replaced == 1
        assert "line 2 of a.jsonl" in report.first_replaced
        with pytest.raises(UserError, match=r"not UTF-8: .* line 2 of a\.jsonl"):
            read("a.jsonl", reading=Reading(strict=True), limits=limits)


def test_a_long_lines_document_keeps_what_looks_like_a_mark_or_a_separator():
    limits = Limits(long_line_bytes=1, block_bytes=1, part_bytes=16)
    write("a.jsonl", '{"text": "\ufeffone<->"}')
    found, report = read("a.jsonl", reading=Reading(separator="<->"), limits=limits)
    assert found == ["\ufeffone<->"]
    assert not report.separators


def test_lines_without_a_document_are_counted_and_the_first_is_named():
    content = [
        '{"body": "first"}',
        "",
        "{broken",
        '{"body": 5}',
        '["body"]',
        '{"other": "x"}',
        '{"body": "lone \\ud800"}',
    ]
    for named in ({}, {"block_bytes": 8}, {"long_line_bytes": 1, "block_bytes": 1}):
        limits = Limits(**named)
        write("a.jsonl", "\ufeff" + "\r\n".join(content))
        found, report = read("a.jsonl", reading=Reading(text_field="body"), limits=limits)
        assert found == ["first", "lone \ufffd"]
        assert (report.bad_lines, report.first_bad_line) == (4, "line 3 of a.jsonl is not JSON")
        assert report.replaced == 1
        assert "line 7 of a.jsonl" in report.first_replaced
    write("a.jsonl", '{"other": 1, "more": 2}')
    expected = "line 1 of a.jsonl has no text in field 'text': its fields are other, more"
    assert read("a.jsonl")[1].first_bad_line == expected
