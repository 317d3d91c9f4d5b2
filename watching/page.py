"""The report of runs as one static page: curves, samples, warnings, flags, starts and checkpoints; it loads nothing.

Whatever a model or a text wrote is shown as text. Every file but metrics.jsonl may be missing or hold anything.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common.files import read_text
from common.names import STARTS
from common.words import size
from watching.history import LoggedRun, metrics_of, read_lines

MOST_SAMPLES, MOST_CHARACTERS = 50, 6000
HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
svg {{ width: 100%; height: auto; }} table {{ border-collapse: collapse; }}
td, th {{ text-align: left; vertical-align: top; padding: .15rem .9rem .15rem 0; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; background: #f5f5f5; padding: .6rem; }}
</style></head><body><h1>{title}</h1>
"""


def page_of(title: str, runs: Sequence[tuple[str, LoggedRun]], svg: str, text: str) -> bytes:
    """The page of some runs, each with the word that names its folder, as UTF-8.

    svg is their picture, "" without matplotlib; text has their table, and their curves as characters.
    """
    table, _, chart = text.partition("\n\n")
    parts = [HEAD.format(title=html.escape(title)), svg[svg.find("<svg"):] if svg else _pre(chart), _pre(table)]
    for word, run in runs:
        if len(runs) > 1:
            parts.append(f"<h1>{html.escape(run.name)}</h1>")
        parts += _sections(metrics_of(word))
    parts.append("</body></html>\n")
    # JSON may hold halves of characters, which no file can.
    return "\n".join(parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _sections(metrics: Path) -> Iterable[str]:
    """What else is known of one run."""
    lines, folder = read_lines(metrics), metrics.parent
    starts = [fields for fields in map(_object, _text(folder / STARTS).splitlines()) if fields]
    said = [str(words) for start in starts if isinstance(start.get("warnings"), list) for words in start["warnings"]]
    said += [f"step {line['step']:,}: {line['advice']}" for line in lines if isinstance(line.get("advice"), str)]
    if said:
        yield f"<h2>Warnings and advice</h2>{_pre(chr(10).join(dict.fromkeys(said)))}"

    samples = [line for line in lines if isinstance(line.get("sample"), str)]
    if samples:
        yield "<h2>Samples</h2>"
    for line in samples[::-1][::-(-len(samples) // MOST_SAMPLES)]:
        yield f"<h3>step {line['step']:,}</h3>{_pre(line['sample'])}"

    if rows := [_start(fields) for fields in starts]:
        yield f"<h2>Starts and ends</h2>{_table(rows)}"
    if rows := list(_checkpoints(folder)):
        yield f"<h2>Checkpoints</h2>{_table(rows)}"
    if flags := _text(folder / "config.toml"):  # of absolute paths, which tell about a machine's user, the names alone
        flags = re.sub(r'"(?:[/~\\]|\w:[/\\])[^"\n]*?([^"/\\\n]*)"', r'"\1"', flags)
        yield f"<h2>Flags</h2>{_pre(flags)}"


def _start(fields: dict[str, Any]) -> list[str]:
    at = fields.get("time")
    is_time = isinstance(at, int | float) and 0 <= at < 2**40
    return [time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at)) if is_time else "", str(fields.get("event", "")),
            f"step {fields.get('step', '')}", str(fields.get("how", ""))]


def _checkpoints(folder: Path) -> Iterable[list[str]]:
    for path in sorted(folder.glob("checkpoint-*/manifest.json"), key=lambda path: (len(path.parent.name), path)):
        with contextlib.suppress(OSError):  # training deletes one meanwhile
            yield [path.parent.name, size(sum(file.stat().st_size for file in path.parent.iterdir()))]


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return read_text(path)
    return ""


def _object(line: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(line)
        return found if isinstance(found, dict) else {}
    return {}


def _pre(text: str) -> str:
    return f"<pre>{html.escape(text[:MOST_CHARACTERS])}</pre>"


def _table(rows: Iterable[Sequence[str]]) -> str:
    body = "\n".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{body}</table>"
