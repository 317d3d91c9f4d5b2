"""Checks of values in JSON files of other programs; each error names the field and shows the value."""

import sys
from collections.abc import Mapping
from typing import Any, TypeGuard

from gpt.common.errors import InvalidCheckpoint
from gpt.common.names import CONFIG
from gpt.common.words import printable


def shown(value: Any) -> str:
    """A value from a file for a message: printable, at most 60 characters."""
    return printable(f"{value:,}" if type(value) is int else repr(value))[:60]


def is_number(value: Any) -> TypeGuard[int | float]:
    """True for an int or float that is finite as a float; JSON's true and false are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_field(is_valid: bool, key: str, value: Any, expected: str, file: str = CONFIG) -> None:
    """Raises InvalidCheckpoint ("FILE: KEY is VALUE, not EXPECTED") unless is_valid."""
    if not is_valid:
        raise InvalidCheckpoint(f"{file}: {key} is {shown(value)}, not {expected}")


def check_whole(file: str, key: str, value: Any, low: int, high: int) -> None:
    """Raises InvalidCheckpoint unless the value is a whole number from low to high."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    check_field(is_whole and low <= value <= high, key, value, f"a whole number from {low:,} to {high:,}", file)


def check_values(fields: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises InvalidCheckpoint for a field of a config.json whose value is not allowed.

    An absent field counts as the first allowed value.
    """
    for key, values in allowed.items():
        check_field(fields.get(key, values[0]) in values, key, fields.get(key),
                    f"{values[0]!r}, the only supported value")


def fraction_of(fields: Mapping[str, Any], key: str, default: float) -> float:
    """A number of at least 0 and below 1 from a config.json; default if absent. Raises InvalidCheckpoint."""
    value = fields.get(key, default)
    check_field(is_number(value) and 0 <= value < 1, key, value, "a number of at least 0 and below 1")
    return float(value)


def truth_of(fields: Mapping[str, Any], key: str, default: bool) -> bool:
    """True or False from a config.json; default if absent. Raises InvalidCheckpoint for other values."""
    value = fields.get(key, default)
    check_field(isinstance(value, bool), key, value, "true or false")
    return value
