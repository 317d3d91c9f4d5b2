"""Text that is safe to print and easy to read: durations, sizes, counts."""

import shlex
from collections.abc import Iterable, Sequence

NEARLY = 0.9995  # of a unit: 1023.6 MiB are 1.0 GiB
# Line separators beyond ASCII, and marks that change the direction of writing.
ONE_LINE_ONLY = "\u2028\u2029\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def printable(text: object) -> str:
    """A text or a path on one line that cannot control a terminal.

    For names, and for the content of foreign files. Control characters, line separators and marks that
    change the direction of writing become escapes.
    """
    return "".join(c if _is_harmless(c) and c not in ONE_LINE_ONLY else repr(c)[1:-1] for c in str(text))


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most about 200 characters; its type if it has no message."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return printable(line if len(line) <= 200 else f"{line[:200].rpartition(' ')[0] or line[:200]} ...")


def printable_text(text: str) -> str:
    """printable() for text of several lines: newlines, tabs and marks of direction stay."""
    return "".join(c if c in "\n\t" or _is_harmless(c) else repr(c)[1:-1] for c in text)


def _is_harmless(character: str) -> bool:
    """True for a character that cannot control a terminal; U+00A0 is one, though it is not isprintable()."""
    return character.isprintable() or (ord(character) > 159 and is_utf8(character))


def is_utf8(text: str) -> bool:
    """False for a file name with bytes that are not UTF-8, which libraries written in Rust cannot open."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def shell_word(text: object) -> str:
    """A path quoted as one word of a command and safe to print; a path -d becomes ./-d."""
    return _quoted(f"./{text}" if str(text).startswith("-") else str(text))


def shell_line(words: Iterable[str]) -> str:
    """The words of a command as one line for a shell, each quoted; flags stay as they are."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """A word in a shell's quotes; with control characters it is written $'...' with escapes, which bash reads."""
    if printable(word) == word:
        return shlex.quote(word)
    return "$'" + "".join(c if printable(c) == c and c not in "\\'" else _escaped(c) for c in word) + "'"


def _escaped(character: str) -> str:
    is_byte = "\udc80" <= character <= "\udcff"  # Python's sign for a byte that is not UTF-8
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape" if is_byte else
                                                                  "surrogatepass"))


def duration(seconds: float) -> str:
    """Seconds as people say them: '8 s', '12 min 30 s', '10 h 50 min', '3 d 4 h'."""
    seconds = max(0, round(seconds))
    units = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
    for length, unit, lower_length, lower_unit in units:
        if seconds >= length:
            return f"{seconds // length} {unit} {seconds % length // lower_length} {lower_unit}"
    return f"{seconds} s"


def size(num_bytes: float) -> str:
    """Bytes as '15.2 GiB', '3.1 MiB', '12 KiB' or '512 bytes'."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if abs(num_bytes) >= NEARLY * scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes / 1024:.0f} KiB" if abs(num_bytes) >= 10_000 else f"{num_bytes:.0f} bytes"


def count(number: float) -> str:
    """A count as '124.4M', '1.07M', '32.0K' or '512'."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(number) >= NEARLY * scale:
            return f"{number / scale:.2f}{unit}" if number < 10 * scale else f"{number / scale:.1f}{unit}"
    return f"{number:.0f}"


def short(value: object) -> str:
    """A value in one line of at most 60 characters; a fraction with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else printable(value)[:60]


def several(number: int, noun: str) -> str:
    """A number with its noun: '1 file', '2,000 files', '3 micro-batches'."""
    if number != 1:
        noun += "es" if noun.endswith(("tch", "sh", "s", "x")) else "s"
    return f"{number:,} {noun}"


def percent(fraction: float | None) -> str:
    """A fraction as '48.2%', or 'n/a' for None."""
    return "n/a" if fraction is None else f"{fraction:.1%}"


def plain_number(number: float) -> str:
    """A number in words, with three digits or more and never in powers of ten: '0.185', '9.99', '15,400'."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.6f}" if 0 < number < 1e-4 else f"{number:.3g}"


def in_epochs(number: float) -> str:
    """Epochs in words: '1 epoch', '0.185 epochs'."""
    shown = plain_number(number)
    return f"{shown} epoch" if shown == "1" else f"{shown} epochs"


def first_of(names: Sequence[str]) -> str:
    """The first three names, then dots if there are more."""
    return ", ".join([*names[:3], "..."] if len(names) > 3 else names)
