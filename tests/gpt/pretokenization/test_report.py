"""report.py: what was found in a text is counted, placed and said; too much that is not UTF-8 ends the run."""

import pytest

from gpt.common.errors import Exit, UserError
from gpt.pretokenization.blocks import Reading
from tests.helpers.texts import PACK, in_language, lines, read, words, write


@pytest.mark.parametrize("form", ["plain", "lines", "separated", *PACK])
def test_a_text_of_which_more_than_a_hundredth_is_not_utf8_is_refused(form):
    content = in_language("Russian", 3000).encode("cp1251")
    few = words(100 * len(content)).encode()
    reading = Reading(separator="\n\n" if form == "separated" else None)
    names = {"plain": "a.txt", "separated": "a.txt", "lines": "a.jsonl"}
    name = names.get(form, f"a.txt.{form}")
    for is_too_much, text in ((True, content), (True, few[:20 * len(content)] + content), (False, few + content)):
        if form == "lines":
            text = b"".join(b'{"text": "' + line + b'"}\n' for line in text.split(b"\n"))
        write(name, PACK[form](text) if form in PACK else text)
        if not is_too_much:
            assert read(name, reading=reading)[1].replaced > 1000
            continue
        with pytest.raises(UserError, match=rf"{name} .*\d,\d+ places.*--encoding") as caught:
            read(name, reading=reading)
        assert caught.value.code == Exit.DATA


def test_a_stray_byte_in_a_short_text_and_lone_surrogates_in_json_stop_nothing():
    write("a.txt", b"short \xff text \xff\xff")
    assert read("a.txt")[1].replaced == 3
    write("b.jsonl", lines(["\ud83d" * 9] * 9))
    assert read("b.jsonl")[1].replaced == 81
