"""blocks.py: documents are cut where no id changes."""

import random

from gpt.pretokenization.blocks import SAFE_CUT, SPACE_CUT, Limits, Reading, incomplete_bytes, last_cut, parts_of
from tests.helpers.texts import ALPHABET


def test_incomplete_characters_are_measured_at_every_place():
    content = "a\u00e9\u6f22\U0001f600z".encode()
    for end in range(len(content) + 1):
        whole = content[:end].decode(errors="ignore").encode()
        assert incomplete_bytes(content[:end]) == end - len(whole)
    assert incomplete_bytes(b"\x80\x80\x80\x80") == incomplete_bytes(b"a\x80") == incomplete_bytes(b"") == 0


def test_the_last_cut_is_found_wherever_it_is():
    rng = random.Random(2)
    for _ in range(300):
        whole = "".join(rng.choices(ALPHABET, k=rng.randint(0, 30)))
        whole += rng.choice("ab\u00e9\u0301 ") * rng.randint(0, 700)
        for pattern in (SAFE_CUT, SPACE_CUT):
            ends = [match.end() for match in pattern.finditer(whole)]
            assert last_cut(whole.encode(), pattern) == (len(whole[: ends[-1]].encode()) if ends else 0)


def test_parts_end_at_safe_cuts_and_a_run_without_any_at_its_own_multiples():
    reading = Reading(limits=Limits(part_bytes=50))
    for before in range(1, 60):
        begin = "w" * before + " "
        run = "\u00e9" * 71  # 142 bytes, a character never cut
        content = (begin + run + " end").encode()
        parts = parts_of(content, reading)
        assert b"".join(parts) == content
        assert max(map(len, parts)) <= 50
        assert all(part.decode() for part in parts)
        at = next(number for number, part in enumerate(parts) if part.startswith(b" \xc3"))
        assert [len(part) for part in parts[at:]] == [49, 50, 48]  # the space and 24 characters, then 25, then the rest
    short = b"x" * 50
    assert parts_of(short, reading) == [short]
    assert parts_of(b"", reading) == [b""]
