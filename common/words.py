"""Text that is safe to print and easy to read: durations, sizes, counts."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with control characters (except newline and tab) as escapes, so that it cannot drive a terminal."""
    return "".join(c if _is_harmless(c) else repr(c)[1:-1] for c in text)


def _is_harmless(character: str) -> bool:
    """True for what any terminal shows. Spaces such as U+00A0 are not printable to Python, but they are harmless."""
    is_surrogate = 0xD800 <= ord(character) < 0xE000  # cannot be encoded
    return character in "\n\t" or character.isprintable() or (ord(character) > 159 and not is_surrogate)


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
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes / 1024:.0f} KiB" if abs(num_bytes) >= 10_000 else f"{num_bytes:.0f} bytes"


def count(number: float) -> str:
    """A count as '124.4M', '1.07M', '32.0K' or '512'."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(number) >= scale:
            return f"{number / scale:.2f}{unit}" if number < 10 * scale else f"{number / scale:.1f}{unit}"
    return f"{number:.0f}"


def several(number: int, noun: str) -> str:
    """A number with its noun: '1 file', '2,000 files', '3 micro-batches'."""
    plural = "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{number:,} {noun}{plural * (number != 1)}"
