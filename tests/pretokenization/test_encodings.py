"""encodings.py: what is no text is told from text in another encoding, whose name is then the advice."""

import gzip
import importlib.util
import random

import numpy as np
import pytest

from common.errors import Exit, UserError
from pretokenization import encodings
from pretokenization.encodings import advice, has_controls, refuse_encoding, wide_encoding
from pretokenization.sources import examine
from tests.helpers.texts import ALPHABET, LANGUAGES, in_language, words, write

WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("encoding", WIDE)
def test_utf16_and_utf32_are_known_without_a_mark_in_every_script(language, encoding):
    content = in_language(language, 3000).encode(encoding)
    for length in (4096, 1000, 240):
        assert wide_encoding(content[:length]) == encoding
    with pytest.raises(UserError, match=f"is {encoding.upper()}, not UTF-8 .*Give --encoding {encoding}") as caught:
        refuse_encoding("a.txt", content[:4096], "")
    assert caught.value.code == Exit.DATA
    refuse_encoding("a.txt", content[:4096], encoding)


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_other_text_and_no_tokens_look_like_utf16(language):
    for encoding in ("utf-8", *LANGUAGES[language]):
        assert wide_encoding(in_language(language, 3000).encode(encoding, "ignore")[:4096]) == ""
    rng = np.random.default_rng(0)
    common = (1000 / np.arange(1, 3000) ** 1.2).astype(int)  # ids as common as words are
    for vocabulary in (65, 512, 3000, 50_000):
        ids = np.repeat(rng.integers(0, vocabulary, len(common)), common)
        for dtype in ("<u2", "<i4"):
            content = rng.permutation(ids).astype(dtype).tobytes()[:4096]
            assert wide_encoding(content) == ""
            assert has_controls(content)


def test_control_characters_of_texts_are_no_sign_of_a_binary_file():
    rng = random.Random(0)
    for content in ("".join(rng.choices(ALPHABET, k=4000)), words(4000), "\x1b[31mred\x1b[0m\b\f\v\r\n" * 300,
                    "nul\0" + words(500), "\0" * 10):
        assert not has_controls(content.encode())
    assert has_controls(bytes(99))
    assert has_controls(rng.randbytes(4096))


@pytest.mark.parametrize(("content", "encoding", "says"), [
    ("\ufeffa text".encode("utf-16-le"), "", "a.txt is UTF-16, not UTF-8 .*ff fe.* Give --encoding utf-16"),
    ("\ufeffa text".encode("utf-16-be"), "utf-16-le", "is UTF-16, not UTF-16-LE"),
    ("\ufeffa text".encode("utf-32-le"), "utf-16", "is UTF-32, not UTF-16"),
    ("\ufeffa text".encode("utf-16-le"), "cp1251", "is UTF-16, not CP1251"),
    (("a text " * 9).encode("utf-16-be"), "utf-16", "Give --encoding utf-16-be"),
    ("caf\u00e9 na\u00efve \u00fcber \u00df".encode(), "cp1252", "is UTF-8, and --encoding cp1252 would garble it"),
    (b"plain ASCII, twenty bytes", "utf-16", "is UTF-8, and --encoding utf-16 would garble it"),
    ("\ufeffplain".encode(), "cp1251", "is UTF-8, and"),
])
def test_a_flag_that_would_garble_the_text_is_refused(content, encoding, says):
    with pytest.raises(UserError, match=says):
        refuse_encoding("a.txt", content, encoding)


@pytest.mark.parametrize(("content", "encoding"), [
    ("\ufeffa text".encode("utf-16-le"), "utf-16"), ("\ufeffa text".encode("utf-16-be"), "utf-16"),
    ("\ufeffa text".encode("utf-16-be"), "utf-16-be"), ("\ufeffa text".encode("utf-32-be"), "utf-32"),
    (("a text " * 9).encode("utf-16-le"), "utf-16"), (b"plain ASCII", "cp1251"), (b"", "utf-16"),
    ("caf\u00e9 ".encode("cp1252") * 99, "cp1252"), ("\u043f\u0440\u0438 ".encode("koi8-r") * 99, "koi8-r"),
])
def test_a_flag_that_may_be_right_is_followed(content, encoding):
    refuse_encoding("a.txt", content, encoding)


@pytest.mark.parametrize("language", ["Russian", "Japanese", "Chinese"])
def test_the_likely_encoding_is_named_with_the_text_as_it_reads_in_it(language):
    pytest.importorskip("charset_normalizer")
    for encoding in LANGUAGES[language]:
        text = in_language(language, 3000)
        found = advice(text.encode(encoding))
        assert text[:10] in found
        assert "If that reads right, give --encoding " in found


def test_without_the_package_the_advice_is_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    content = in_language("Russian", 900)
    assert advice(content.encode("cp1251")).endswith("python -m pip install charset-normalizer")
    assert "give --encoding utf-16-le." in advice(content.encode("utf-16-le"))


def test_the_sample_of_a_packed_text_is_taken_near_its_first_wrong_byte():
    content = b"plain " * 2**19 + "\u041f\u0440\u0438\u0432\u0435\u0442".encode("cp1251") * 99
    source = examine(write_path("a.txt.gz", gzip.compress(content, 1)), "a.txt.gz")
    sample = encodings.sample_of_text(source, 6 * 2**19)
    assert content[6 * 2**19:] in sample
    assert len(sample) <= encodings.SAMPLE_BYTES


def write_path(name, content):
    from pathlib import Path

    return Path(write(name, content))
