"""The page: page.html with its style, its programs and its data inside, so that it needs no other file and no network.

The data are JSON in which no < stands, so that no text of a run can end the element they are in; the page's programs
show every text as text. The page's own policy forbids the browser any other program and every connection.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.curves import curves_of_page, most_points, places_of
from reports.facts import facts_of
from reports.sources import RunFiles
from watching.axes import Curves

HERE = Path(__file__).resolve().parent
PROGRAMS = ("chart.js", "page.js")


def page_bytes(title: str, curves: Sequence[Curves], files: Sequence[RunFiles], drawn: Mapping[str, Any],
               panels: Sequence[str], now: float | None = None) -> bytes:
    """The page of some runs as UTF-8; drawn holds how its curves are drawn at first."""
    made = time.time() if now is None else now
    most = most_points(len(curves))
    runs = []
    for run, found in zip(curves, files, strict=True):
        best = None if run.best is None else {"step": round(run.best[0]), "y": run.best[1]}
        runs.append({"name": run.run.name, "last": run.run.last_step, "best": best,
                     "curves": curves_of_page(run, most, panels), "places": places_of(run.run),
                     **facts_of(run.run, found, made)})
    data = {"title": title, "made": made, "panels": list(panels), **drawn, "runs": runs}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return filled(_paired(title), _paired(text)).encode()


def _paired(text: str) -> str:
    """The text with halves of characters, which JSON may hold and no file can, replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def filled(title: str, data: str) -> str:
    """page.html with the title, the data, the style and the programs in their places."""
    style = _read("page.css")
    program = "\n".join(map(_read, PROGRAMS))
    policy = (f"default-src 'none'; script-src '{_digest(program)}'; style-src '{_digest(style)}'; img-src data:; "
              "base-uri 'none'; form-action 'none'")
    parts = {"title": html.escape(title), "policy": html.escape(policy), "style": style, "program": program,
             "data": data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")}
    # One pass: what is filled in may hold such marks itself.
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], _read("page.html"))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
