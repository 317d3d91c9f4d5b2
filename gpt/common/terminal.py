"""Where lines are printed: on a terminal of some width, in a notebook's cell, or to a pipe."""

import contextlib
import os
import re
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

STDERR_LOCK = threading.RLock()  # held while a line is printed, so that lines of two threads do not mix
LISTENERS: list[Callable[[str], None]] = []  # each is called with every line that print_line prints

USUAL_COLUMNS = 80  # of a terminal that does not report its width

# Jupyter sets the first one for each kernel; Colab and Kaggle set theirs for every process of their machines.
NOTEBOOK_VARIABLES = ("JPY_PARENT_PID", "COLAB_RELEASE_TAG", "COLAB_GPU", "KAGGLE_KERNEL_RUN_TYPE")


def in_notebook() -> bool:
    """True for a command in a notebook's cell: it sees a terminal of 80 columns, but cannot redraw a line."""
    # ipykernel sets MPLBACKEND for plots inside a notebook; VS Code's notebooks have no Jupyter.
    return "inline" in os.environ.get("MPLBACKEND", "") or any(map(os.environ.get, NOTEBOOK_VARIABLES))


def columns_of(stream: Any) -> int | None:
    """The width of the terminal that a stream writes to; None for a pipe, a file, or no stream."""
    if stream is None or stream.closed or not stream.isatty():
        return None
    with contextlib.suppress(OSError, ValueError):  # Windows calls its null device a terminal
        return os.get_terminal_size(stream.fileno()).columns or USUAL_COLUMNS
    return USUAL_COLUMNS


# The beginning of a command in a message, up to the end of its last line.
COMMAND = (r"(?<!\S)(python|torchrun|(cp|lm_eval|pdftotext|curl|hf download)(?= )|(cat|\w+ -dc)(?= \S+ \|))"
           r"(.*\\\n)*.*")


def folded(text: str, stream: Any) -> str:
    """Returns a text folded to the width of a stream's terminal; the text itself for a pipe or a notebook.

    Lines break between words and align beside their label. A command (python ..., cp ...) keeps its lines, so
    that it can be copied.
    """
    columns = columns_of(stream)
    if columns is None or in_notebook():
        return text
    # A command's spaces become another character, at which textwrap does not break.
    text = re.sub(COMMAND, lambda command: command[0].replace(" ", "\0"), text)
    folded_lines = []
    for line in text.split("\n"):
        indent = ""
        if line.startswith("  | "):
            indent = "  | "
        elif line[10:12] == "  ":
            indent = " " * 12
        elif " | " in line and max(map(len, line.split(" | "))) < columns - 1:  # a name stays beside its figure
            line = re.sub(r"(?<!\|) ", "\0", line)
        folded_lines.append(textwrap.fill(line, columns, subsequent_indent=indent, break_long_words=False,
                                          break_on_hyphens=False))
    return "\n".join(folded_lines).replace("\0", " ")


def print_line(message: str) -> None:
    """Prints a message to stderr and passes it to the listeners, in every process of a run.

    A closed stderr does not stop the command.
    """
    with STDERR_LOCK, contextlib.suppress(OSError, ValueError):
        print(folded(message, sys.stderr), file=sys.stderr, flush=True)
    for listener in tuple(LISTENERS):
        listener(message)
