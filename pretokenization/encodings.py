"""Text that is not UTF-8: told from files that are no text at all, and its encoding guessed for the message.

Nothing is ever decoded by a guess: the user gives --encoding. The guess is made by byte order marks and by the
statistics of UTF-16 and UTF-32, and for the others by the package charset-normalizer where it is installed.
"""

from __future__ import annotations

import codecs
import importlib.util
import unicodedata

from common.errors import Exit, UserError
from common.words import printable, several
from pretokenization.files import MARK, Feed, Source

MOST_UNDECODABLE = 0.01  # of a file's bytes; below, such bytes are replaced and counted
ALWAYS_REPLACED = 3  # places, whatever their share: a stray byte in a short file is no other encoding
MARKS = {  # longer marks first
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
WIDE = {"utf-16-le": 2, "utf-16-be": 2, "utf-32-le": 4, "utf-32-be": 4}  # bytes of a character
BLANKS_AND_STOPS = " \n\t\u3000\u3001\u3002\uff0c"  # at least one in a hundred characters of any text
CONTROLS = bytes({*range(32), 127} - {*b"\b\t\n\v\f\r\x1b"})
MOST_CONTROLS = 0.05  # of a text's first bytes; of random bytes one in nine is a control character
SAMPLE_BYTES = 2**14
LINE_BYTES = 2**12  # before a place, in which the beginning of its line is looked for
SHOWN_CHARACTERS = 24


# ---------------------------------------------------------------- by a file's first bytes


def refuse_encoding(shown: str, raw: bytes, encoding: str) -> None:
    """Raises UserError (exit 3) if a text's first bytes are clearly in another encoding than this one ('': UTF-8)."""
    mark = next((mark for mark in MARKS if raw.startswith(mark)), b"")
    seen = MARKS.get(mark, "") or wide_encoding(raw)
    if seen and not _may_be(seen, raw, encoding):
        why = f"it begins with the mark {mark.hex(' ')}" if mark else "as the zeros between its bytes show"
        raise UserError(Exit.DATA, f"{shown} is {seen.upper()}, not {(encoding or 'UTF-8').upper()} ({why}). Give "
                                   f"--encoding {seen}.")
    if encoding and not seen and _is_clearly_utf8(raw, encoding):
        raise UserError(Exit.DATA, f"{shown} is UTF-8, and --encoding {encoding} would garble it. Leave the flag out, "
                                   "or give it files of one encoding.")


def _may_be(seen: str, raw: bytes, encoding: str) -> bool:
    """True if text that looks like one of the wide encodings is decoded right by the encoding given."""
    if encoding in ("utf-16", "utf-32"):
        return seen.startswith(encoding) and not seen.endswith("be")  # without a mark these are little-endian
    if seen in ("utf-16", "utf-32"):
        is_little = raw.startswith(b"\xff\xfe")
        return encoding == f"{seen}-{'le' if is_little else 'be'}"
    return encoding == seen


def _is_clearly_utf8(raw: bytes, encoding: str) -> bool:
    """True for UTF-8 with characters beyond ASCII, and for a wide encoding also for ASCII."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(raw)  # its last character may be cut
    except UnicodeDecodeError:
        return False
    num_beyond = len(text) - len(text.encode("ascii", "ignore"))
    is_wide = encoding.startswith(("utf-16", "utf-32"))
    return raw.startswith(MARK) or num_beyond >= 4 or (is_wide and len(raw) >= 16 and not has_controls(raw))


def wide_encoding(raw: bytes) -> str:
    """The UTF-16 or UTF-32 that bytes without a mark are in; '' if they are not."""
    if not len(raw) - len(raw.translate(None, CONTROLS)):
        return ""  # the second byte of a blank or a full stop is a control character
    likely = {}
    for name, width in WIDE.items():
        try:
            text = codecs.getincrementaldecoder(name)().decode(raw[:len(raw) // width * width])
        except UnicodeDecodeError:
            continue
        if _reads_as_text(text):
            likely[name] = len(text.encode("ascii", "ignore"))
    return max(likely, key=lambda name: likely[name], default="")


def _reads_as_text(text: str) -> bool:
    """True if there are blanks or full stops, and hardly any character that no text has."""
    num_blanks = sum(map(text.count, BLANKS_AND_STOPS))
    num_strange = sum(unicodedata.category(char) in ("Cc", "Cn", "Co", "Cs") for char in text)
    num_strange -= sum(map(text.count, "\n\t\r\f"))
    return len(text) >= 8 and num_blanks > len(text) / 100 >= num_strange


def has_controls(content: bytes) -> bool:
    """True if there are far more control characters than in any text: token files, weights, packed or random bytes."""
    num_controls = len(content) - len(content.translate(None, CONTROLS))
    return num_controls >= 16 and num_controls > MOST_CONTROLS * len(content)


# ---------------------------------------------------------------- by the bytes that cannot be decoded


def refuse_undecodable(source: Source, num_places: int, num_read: int, first_byte: int, has_ended: bool) -> None:
    """Raises UserError (exit 3) once more than 1% of a text's bytes cannot be UTF-8: it is in another encoding.

    num_places were replaced in the bytes read so far, the first of them at first_byte.
    """
    if source.packing and not has_ended:
        return  # its size is not known yet
    num_bytes = num_read if has_ended else max(num_read, source.num_bytes)
    if num_places > max(ALWAYS_REPLACED, MOST_UNDECODABLE * num_bytes):
        raise UserError(Exit.DATA, f"{source.shown} is not UTF-8: {several(num_places, 'place')} in its first "
                                   f"{several(num_read, 'byte')} cannot be decoded, from byte {first_byte:,} on. "
                                   f"{advice(sample_of_text(source, first_byte))}")


def sample_of_text(source: Source, first_byte: int) -> bytes:
    """Some of the text, unpacked, from shortly before the first byte that is not UTF-8: whole lines where possible."""
    start = max(0, first_byte - LINE_BYTES) // 4 * 4
    with Feed(source) as feed:
        for place in range(0, start, 2**20):  # what is unpacked on the way is not kept
            feed.window(place, 1)
            feed.forget(place)
        sample = feed.window(start, LINE_BYTES + SAMPLE_BYTES)
    if start:  # no byte of a character of more than one is a newline, except in UTF-16 and UTF-32
        begin = sample.rfind(b"\n", 0, first_byte - start) + 1
        sample = sample[begin - begin % 4 if wide_encoding(sample) else begin:]
    sample = sample[:SAMPLE_BYTES]
    return sample[:sample.rfind(b"\n") + 1] or sample


def advice(sample: bytes) -> str:
    """The likely encoding in words, how the text begins in it, and what to give."""
    name = wide_encoding(sample) or guessed(sample)
    if name:
        text = " ".join(sample.decode(name, "replace").split())
        first = next((at for at, char in enumerate(text) if char > "\x7f"), 0)
        shown = text[max(0, first - 4):][:SHOWN_CHARACTERS]
        return f"It is probably {name}: '{printable(shown)}'. If that reads right, give --encoding {name}."
    if importlib.util.find_spec("charset_normalizer") is None:
        return ("Give its --encoding, such as cp1251 or shift_jis; to have it guessed: python -m pip install "
                "charset-normalizer")
    return "Give its --encoding, such as cp1251 or shift_jis."


def guessed(sample: bytes) -> str:
    """Python's name of the encoding that charset-normalizer finds likely; '' if there is none, or no such package."""
    if importlib.util.find_spec("charset_normalizer") is None:
        return ""
    from charset_normalizer import from_bytes  # type: ignore[import-not-found]

    # Its last character may be cut; and a text full of code or names is unusual in any encoding.
    tries = (from_bytes(sample[:len(sample) - cut], threshold=most) for most in (0.2, 0.6) for cut in range(4))
    best = next((found.best() for found in tries if found.best() is not None), None)
    name = codecs.lookup(best.encoding).name if best is not None else ""
    return name if name not in ("", "utf-8", "ascii") else ""

