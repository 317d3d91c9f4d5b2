"""encodings.py: what is no text is told from text in another encoding, whose name is then the advice."""

import random
from pathlib import Path

import numpy as np
import pytest

from common.errors import Exit, UserError
from pretokenization.encodings import has_controls, refuse_encoding, refuse_undecodable
from pretokenization.files import Source
from tests.helpers.texts import ALPHABET, LANGUAGES, in_language, words


@pytest.mark.parametrize("language", LANGUAGES)
def test_utf8_and_tokens_are_never_taken_for_utf16(language):
    for encoding in ("utf-8", *LANGUAGES[language]):
        refuse_encoding("a.txt", in_language(language, 3000).encode(encoding, "ignore")[:4096], "")
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
    ("\ufeffa text".encode("utf-16-le"), "", "a.txt is UTF-16, not UTF-8, .* Give --encoding utf-16"),
    ("\ufeffa text".encode("utf-16-le"), "cp1251", "is UTF-16, not CP1251"),
    (("a text " * 9).encode("utf-16-be"), "", "Give --encoding utf-16-be"),
    (("a text " * 9).encode("utf-16-le"), "", "Give --encoding utf-16-le"),
    ("caf\u00e9 na\u00efve \u00fcber \u00df".encode(), "cp1252", "is UTF-8, and --encoding cp1252 would garble it"),
    ("\ufeffplain".encode(), "cp1251", "is UTF-8, and"),
])
def test_a_flag_that_would_garble_the_text_is_refused(content, encoding, says):
    with pytest.raises(UserError, match=says):
        refuse_encoding("a.txt", content, encoding)


@pytest.mark.parametrize(("content", "encoding"), [
    ("\ufeffa text".encode("utf-16-le"), "utf-16"), ("\ufeffa text".encode("utf-32-be"), "utf-32"),
    (("a text " * 9).encode("utf-16-le"), "utf-16"), (b"plain ASCII", "cp1251"), (b"", "utf-16"),
    ("caf\u00e9 ".encode("cp1252") * 99, "cp1252"), ("\u043f\u0440\u0438 ".encode("koi8-r") * 99, "koi8-r"),
])
def test_a_flag_that_may_be_right_is_followed(content, encoding):
    refuse_encoding("a.txt", content, encoding)


@pytest.mark.parametrize("language", ["Russian", "Japanese", "Chinese"])
@pytest.mark.parametrize("has_package", [True, False])
def test_a_text_in_another_encoding_is_refused_with_the_likely_one_where_that_is_known(language, has_package,
                                                                                     monkeypatch):
    if has_package:
        pytest.importorskip("charset_normalizer")
    else:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    text = in_language(language, 3000)
    for encoding in LANGUAGES[language]:
        Path("a.txt").write_bytes(text.encode(encoding))
        source = Source(Path("a.txt"), "a.txt", Path("a.txt").stat().st_size)
        with pytest.raises(UserError, match=r"a.txt is not UTF-8: 999 places .* from byte 0 on") as caught:
            refuse_undecodable(source, 999, 0)
        assert caught.value.code == Exit.DATA
        assert (text[:10] in str(caught.value)) == has_package
        assert "give --encoding " in str(caught.value) or not has_package
