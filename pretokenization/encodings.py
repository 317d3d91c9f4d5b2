"""Text that is not UTF-8: refused with its likely encoding. Nothing is decoded by a guess: the user gives --encoding.

UTF-16 is known by its mark or its zeros; other encodings are guessed by charset-normalizer where it is installed.
"""

from __future__ import annotations

import codecs
import importlib.util

from common.errors import Exit, UserError
from common.words import printable, several
from pretokenization.files import MARK, Source

MOST_UNDECODABLE = 0.01  # of a file's bytes; below, such bytes are replaced and counted
ALWAYS_REPLACED = 3  # places, whatever their share: a stray byte in a short file is no other encoding
MARKS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
CONTROLS = bytes({*range(32), 127} - {*b"\b\t\n\v\f\r\x1b"})
MOST_CONTROLS = 0.05  # of a text's first bytes; of random bytes one in nine is a control character
SAMPLE_BYTES = 2**14
SHOWN_CHARACTERS = 24


def refuse_encoding(shown: str, raw: bytes, encoding: str) -> None:
    """Raises UserError (exit 3) if a text's first bytes are clearly in another encoding than this one ('': UTF-8)."""
    seen = next((name for mark, name in MARKS.items() if raw.startswith(mark)), "") or _utf16_without_mark(raw)
    if seen and not encoding.startswith(("utf-16", "utf-32")):
        raise UserError(Exit.DATA, f"{shown} is {seen.upper()}, not {(encoding or 'UTF-8').upper()}, as its mark or "
                                   f"the zeros between its bytes show. Give --encoding {seen}.")
    if encoding and not seen and _is_clearly_utf8(raw):
        raise UserError(Exit.DATA, f"{shown} is UTF-8, and --encoding {encoding} would garble it. Leave the flag out, "
                                   "or give it files of one encoding.")


def _utf16_without_mark(raw: bytes) -> str:
    """UTF-16 by its order of bytes, if every other byte is mostly zero, as in Latin script; '' if not."""
    zeros = [half.count(0) / max(1, len(half)) for half in (raw[::2], raw[1::2])]
    is_text = len(raw) >= 16 and max(zeros) > 0.5 > 0.1 > min(zeros)
    return ("utf-16-be" if zeros[0] > zeros[1] else "utf-16-le") if is_text else ""


def _is_clearly_utf8(raw: bytes) -> bool:
    """True for UTF-8 with a mark or several characters beyond ASCII."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(raw)  # its last character may be cut
    except UnicodeDecodeError:
        return False
    return raw.startswith(MARK) or len(text) - len(text.encode("ascii", "ignore")) >= 4


def has_controls(content: bytes) -> bool:
    """True if there are far more control characters than in any text: token files, weights, packed or random bytes."""
    num_controls = len(content) - len(content.translate(None, CONTROLS))
    return num_controls >= 16 and num_controls > MOST_CONTROLS * len(content)


def refuse_undecodable(source: Source, num_places: int, first_byte: int) -> None:
    """Raises UserError (exit 3) if so many places, the first at first_byte, are more than 1% of a file's bytes."""
    if num_places > max(ALWAYS_REPLACED, MOST_UNDECODABLE * source.text_bytes):
        with source.text_path.open("rb") as file:
            file.seek(max(0, first_byte - 64))
            sample = file.read(SAMPLE_BYTES)
        name = guessed(sample[:sample.rfind(b"\n") + 1] or sample)
        advice = "Give its --encoding, such as cp1251 or shift_jis."
        if name:
            text = " ".join(sample.decode(name, "replace").split())
            first = next((at for at, char in enumerate(text) if char > "\x7f"), 0)
            shown = printable(text[max(0, first - 4):][:SHOWN_CHARACTERS])
            advice = f"It is probably {name}: '{shown}'. If that reads right, give --encoding {name}."
        raise UserError(Exit.DATA, f"{source.shown} is not UTF-8: {several(num_places, 'place')} cannot be decoded, "
                                   f"from byte {first_byte:,} on. {advice}")


def guessed(sample: bytes) -> str:
    """Python's name of the encoding that charset-normalizer finds likely; '' if there is none, or no such package."""
    if importlib.util.find_spec("charset_normalizer") is None:
        return ""
    from charset_normalizer import from_bytes  # type: ignore[import-not-found]

    # Its last character may be cut; and a text full of code or names is unusual in any encoding.
    tries = (from_bytes(sample[:len(sample) - cut], threshold=most).best() for most in (0.2, 0.6) for cut in range(4))
    best = next(filter(None, tries), None)
    name = codecs.lookup(best.encoding).name if best is not None else ""
    return name if name not in ("utf-8", "ascii") else ""
