"""Where lines appear: on a terminal of some width, in a notebook's cell, or in a pipe."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Sequence
from typing import Any

STDERR_LOCK = threading.RLock()  # held while file descriptor 2 leads nowhere: whoever prints in another thread waits

USUAL_COLUMNS = 80  # where a terminal does not tell
LABEL_COLUMNS = 12  # of a line such as "device      cpu: ..."

# Set by Jupyter for each kernel, by Colab and by Kaggle for all that runs on their machines.
NOTEBOOK_VARIABLES = ("JPY_PARENT_PID", "COLAB_RELEASE_TAG", "COLAB_GPU", "KAGGLE_KERNEL_RUN_TYPE")


def in_notebook() -> bool:
    """True for the command of a notebook's cell. It sees a terminal of 80 columns, but its lines cannot be redrawn."""
    by_kernel = "inline" in os.environ.get("MPLBACKEND", "")  # of ipykernel, which VS Code starts without Jupyter
    return by_kernel or any(os.environ.get(name) for name in NOTEBOOK_VARIABLES)


def columns_of(stream: Any) -> int | None:
    """The width of the terminal that the stream writes to; None for a pipe, a file, or no stream at all.

    The environment variable COLUMNS comes before what the terminal says of itself, as everywhere.
    """
    if stream is None or stream.closed or not stream.isatty():
        return None
    with contextlib.suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", ""))) > 0:
            return columns
    with contextlib.suppress(OSError, ValueError):  # a stream of a test has no file descriptor
        return os.get_terminal_size(stream.fileno()).columns or USUAL_COLUMNS
    return USUAL_COLUMNS


def fit(fields: Sequence[str], columns: int | None) -> str:
    """The fields as one line: the first ones, each whole, as many as the columns hold; all if columns is None.

    The very first is always there, cut if it must be.
    """
    if columns is None or not fields:
        return " | ".join(fields)
    line, *others = fields
    if len(line) > columns:
        return line[:max(1, columns - 3)] + "..."
    for field in others:
        if len(line) + len(" | ") + len(field) > columns:
            break
        line += " | " + field
    return line


def wrap(line: str, columns: int | None) -> str:
    """The line broken between its words, where it is wider than the columns.

    The text after a label, "device      cpu: ...", stays in one column. A line with a command to copy is never broken.
    """
    if "\n" in line:
        return "\n".join(wrap(part, columns) for part in line.split("\n"))
    is_shown_as_is = line.startswith(("  | ", "tracker "))  # text of a model; a command
    if columns is None or len(line) <= columns or columns < 3 * LABEL_COLUMNS or "python " in line or is_shown_as_is:
        return line

    import textwrap  # here, as it would cost every --help a millisecond

    is_labelled = re.fullmatch("[a-z_]+ +", line[:LABEL_COLUMNS]) and line[LABEL_COLUMNS:LABEL_COLUMNS + 1].strip()
    indent = " " * (LABEL_COLUMNS if is_labelled else 2)
    return textwrap.fill(line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
