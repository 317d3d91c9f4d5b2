"""sources.py: what is no text is told from text in another encoding, whose name is then the advice."""

import random

import numpy as np
import pytest

from gpt.common.errors import UserError
from gpt.pretokenization.sources import has_controls, refuse_other_encoding
from tests.helpers.texts import ALPHABET, LANGUAGES, in_language, words


@pytest.mark.parametrize("language", LANGUAGES)
def test_utf8_and_tokens_are_never_taken_for_utf16(language):
    for encoding in ("utf-8", *LANGUAGES[language]):
        refuse_other_encoding("a.txt", in_language(language, 3000).encode(encoding, "ignore")[:4096], "")
    rng = np.random.default_rng(0)
    for dtype in ("<u2", "<i4"):
        assert has_controls(rng.integers(0, 3000, 2048).astype(dtype).tobytes())


def test_control_characters_of_texts_are_no_sign_of_a_binary_file():
    rng = random.Random(0)
    for content in ("".join(rng.choices(ALPHABET, k=4000)), words(4000), "\x1b[31mred\x1b[0m\b\f\v\r\n" * 300,
                    "nul\0" + words(500), "\0" * 10):
        assert not has_controls(content.encode())
    assert has_controls(bytes(99))
    assert has_controls(rng.randbytes(4096))


@pytest.mark.parametrize(("content", "encoding", "says"), [
    ("\ufeffa text".encode("utf-16-le"), "", "a.txt .*--encoding utf-16"),
    ("\ufeffa text".encode("utf-16-le"), "cp1251", "a.txt .*CP1251.*--encoding utf-16"),
    ("caf\u00e9 na\u00efve \u00fcber \u00df".encode(), "cp1252", "a.txt .*UTF-8.*--encoding cp1252"),
    ("\ufeffplain".encode(), "cp1251", "a.txt .*UTF-8.*--encoding cp1251"),
    ("From: a\n\n\u65e5\u672c\u8a9e".encode("iso2022_jp"), "", "a.txt .*--encoding iso2022_jp"),
    ("\ud55c\uad6d\uc5b4".encode("iso2022_kr"), "", "a.txt .*--encoding iso2022_kr"),
])
def test_a_flag_that_would_garble_the_text_is_refused(content, encoding, says):
    with pytest.raises(UserError, match=says):
        refuse_other_encoding("a.txt", content, encoding)


@pytest.mark.parametrize(("content", "encoding"), [
    ("\ufeffa text".encode("utf-16-le"), "utf-16"), ("\ufeffa text".encode("utf-32-be"), "utf-32"),
    (("a text " * 9).encode("utf-16-le"), "utf-16"), (b"plain ASCII", "cp1251"), (b"", "utf-16"),
    ("caf\u00e9 ".encode("cp1252") * 99, "cp1252"), ("\u043f\u0440\u0438 ".encode("koi8-r") * 99, "koi8-r"),
])
def test_a_flag_that_may_be_right_is_followed(content, encoding):
    refuse_other_encoding("a.txt", content, encoding)
