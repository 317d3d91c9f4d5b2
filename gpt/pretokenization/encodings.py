"""Refuses text that is not UTF-8: no encoding is guessed, the user gives --encoding."""

from gpt.common.errors import Exit, UserError
from gpt.pretokenization.files import MARK

BYTE_ORDER_MARKS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
ESCAPES = {b"\x1b$B": "iso2022_jp", b"\x1b$@": "iso2022_jp", b"\x1b$)C": "iso2022_kr"}
CONTROLS = bytes({*range(32), 127} - {*b"\b\t\n\v\f\r\x1b"})
MAX_CONTROLS = 0.05  # of a text's first bytes; one in nine random bytes is a control character


def refuse_other_encoding(shown: str, head: bytes, encoding: str) -> None:
    """Raises UserError (exit 3) if a text's first bytes, head, show another encoding than this one ('': UTF-8).

    A UTF-16 or UTF-32 mark, or an escape sequence of ISO-2022, shows another encoding. If an encoding was
    given, four UTF-8 characters beyond ASCII show that the text is UTF-8.
    """
    seen = next((name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark)), "")
    if not encoding:
        seen = next((name for escape, name in ESCAPES.items() if escape in head), seen)
    if seen and not encoding.startswith(("utf-16", "utf-32")):
        raise UserError(Exit.DATA, f"{shown} is {seen.upper()}, not {(encoding or 'UTF-8').upper()}, as "
                                   f"its marks show. Give --encoding {seen}.")
    text = head.decode(errors="ignore")
    is_utf8 = len(head) - len(text.encode()) < 4 and len(text) - len(text.encode("ascii", "ignore")) >= 4
    if encoding and not seen and (is_utf8 or head.startswith(MARK)):
        raise UserError(Exit.DATA, f"{shown} is UTF-8, and --encoding {encoding} would garble it. Leave "
                                   f"the flag out. Convert the files that are not UTF-8: iconv -f {encoding} -t "
                                   "utf-8 FILE > NEW")


def has_controls(content: bytes) -> bool:
    """True if control characters are too many for text, as in token files, weights, archives and random bytes."""
    num_controls = len(content) - len(content.translate(None, CONTROLS))
    return num_controls >= 16 and num_controls > MAX_CONTROLS * len(content)
