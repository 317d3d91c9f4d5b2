"""metrics.jsonl."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import warn
from common.files import write_whole


class Metrics:
    """metrics.jsonl: one object a line, values that are not finite null. A full disk costs the line, not the run."""

    def __init__(self, path: Path, step: int, validated_step: int,
                 also: Callable[[int, dict[str, float]], None] | None = None):
        """Opens the file, first cutting it back to the step resumed from, so that it never holds a step twice.

        also is told each line too: the step, and what of its fields is finite.
        """
        kept = []
        self.kept: list[dict[str, Any]] = []  # the lines that stay
        if path.exists() and step:
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):  # a killed run's last line may be torn
                    fields = json.loads(line)
                    if fields["step"] <= (validated_step if "val_loss" in fields else step):
                        kept.append(line)
                        self.kept.append(fields)
        write_whole(path, "".join(line + "\n" for line in kept))
        self._path, self._also = path, also

    def write(self, **fields: Any) -> None:
        """Adds one line; the folder may have been deleted meanwhile."""
        finite = {key: None if isinstance(value, float) and not math.isfinite(value) else value
                  for key, value in fields.items()}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps(finite).encode() + b"\n"
            with self._path.open("ab", buffering=0) as file:
                end = file.tell()
                try:
                    if file.write(line) < len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                except OSError:
                    file.truncate(end)  # the next line shall not continue a part of this one
                    raise
        except OSError as error:
            warn(f"metrics.jsonl: {error.strerror}; the line of step {fields.get('step')} is lost")
        if self._also:
            with contextlib.suppress(OSError):  # a full disk costs these lines too
                self._also(fields["step"], {key: value for key, value in finite.items()
                                            if key != "step" and value is not None})
