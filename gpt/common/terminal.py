"""Where lines appear: on a terminal of some width, in a notebook's cell, or in a pipe."""

import contextlib
import os
import re
import threading
from typing import Any

STDERR_LOCK = threading.RLock()  # held while a line is printed: those of two threads do not mix

USUAL_COLUMNS = 80  # where a terminal does not tell

# Set by Jupyter for each kernel, by Colab and by Kaggle for all that runs on their machines.
NOTEBOOK_VARIABLES = ("JPY_PARENT_PID", "COLAB_RELEASE_TAG", "COLAB_GPU", "KAGGLE_KERNEL_RUN_TYPE")


def in_notebook() -> bool:
    """True for the command of a notebook's cell. It sees a terminal of 80 columns, but its lines cannot be redrawn."""
    by_kernel = "inline" in os.environ.get("MPLBACKEND", "")  # of ipykernel, which VS Code starts without Jupyter
    return by_kernel or any(os.environ.get(name) for name in NOTEBOOK_VARIABLES)


def columns_of(stream: Any) -> int | None:
    """The width of the terminal that the stream writes to; None for a pipe, a file, or no stream at all."""
    if stream is None or stream.closed or not stream.isatty():
        return None
    with contextlib.suppress(OSError, ValueError):  # a stream of a test has no file descriptor
        return os.get_terminal_size(stream.fileno()).columns or USUAL_COLUMNS
    return USUAL_COLUMNS


def folded(text: str, stream: Any) -> str:
    """The text as it is printed to the stream: on a terminal its lines break between words, beside a label.

    A command (python ..., torchrun ...) keeps its lines, to be copied. A notebook breaks lines itself.
    """
    columns = columns_of(stream)
    if columns is None or in_notebook():
        return text
    import textwrap  # some milliseconds of --help

    lines = re.sub(r"(?<!\S)(python|torchrun)(.*\\\n)*.*", lambda found: found[0].replace(" ", "\0"), text).split("\n")
    indents = ("  | " if line.startswith("  | ") else " " * 12 * (line[10:12] == "  ") for line in lines)
    return "\n".join(textwrap.fill(line, columns, subsequent_indent=indent, break_long_words=False,
                                   break_on_hyphens=False) for line, indent in zip(
                                       lines, indents, strict=True)).replace("\0", " ")
