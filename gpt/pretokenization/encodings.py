"""Text that is not UTF-8 is refused: nothing is decoded by a guess, the user gives --encoding."""

from gpt.common.errors import Exit, UserError
from gpt.common.words import several
from gpt.pretokenization.blocks import Findings
from gpt.pretokenization.files import MARK, Source

MOST_UNDECODABLE = 0.01  # of a file's bytes; below, such bytes are replaced and counted
ALWAYS_REPLACED = 3  # places, whatever their share: a stray byte in a short file is no other encoding
MARKS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
CONTROLS = bytes({*range(32), 127} - {*b"\b\t\n\v\f\r\x1b"})
MOST_CONTROLS = 0.05  # of a text's first bytes; of random bytes one in nine is a control character


def refuse_encoding(shown: str, head: bytes, encoding: str) -> None:
    """Raises UserError (exit 3) if a text's first bytes are clearly in another encoding than this one ('': UTF-8)."""
    seen = next((name for mark, name in MARKS.items() if head.startswith(mark)), "")
    if seen and not encoding.startswith(("utf-16", "utf-32")):
        raise UserError(Exit.DATA, f"{shown} is {seen.upper()}, not {(encoding or 'UTF-8').upper()}, as its mark "
                                   f"shows. Give --encoding {seen}.")
    text = head.decode(errors="ignore")
    is_utf8 = len(head) - len(text.encode()) < 4 and len(text) - len(text.encode("ascii", "ignore")) >= 4
    if encoding and not seen and (is_utf8 or head.startswith(MARK)):
        raise UserError(Exit.DATA, f"{shown} is UTF-8, and --encoding {encoding} would garble it. Leave the flag out.")


def has_controls(content: bytes) -> bool:
    """True if there are far more control characters than in any text: token files, weights, packed or random bytes."""
    num_controls = len(content) - len(content.translate(None, CONTROLS))
    return num_controls >= 16 and num_controls > MOST_CONTROLS * len(content)


def refuse_undecodable(source: Source, found: Findings) -> None:
    """Raises UserError (exit 3) if more places than 1% of a file's bytes are not UTF-8."""
    num_places = found.undecodable
    if found.first_replaced and num_places > max(ALWAYS_REPLACED, MOST_UNDECODABLE * source.text_bytes):
        raise source.error(f"is not UTF-8: {several(num_places, 'place')} cannot be decoded, from byte "
                           f"{found.first_replaced[0]:,} on. Give its --encoding, such as cp1251 or shift_jis.")
