"""What the page says of a run: its state, figures, samples, warnings, settings, machine, plan, starts, checkpoints."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from common.words import count, duration, shell_line, size
from reports.sources import Fields, RunFiles, number_of, object_of, words_of
from watching.history import LoggedRun

GOING_ON = 900.0  # seconds since the last line in which a run without an end may still be running
MOST_SAMPLES, MOST_CHARACTERS = 200, 6000
MOST_WARNINGS = 200
NOT_AVAILABLE = "n/a"

Table = list[list[str]]


def facts_of(run: LoggedRun, files: RunFiles, now: float) -> dict[str, Any]:
    """All that is said of a run besides its curves, as JSON values; now is the time of the page."""
    return {"state": _state(run, files, now), "figures": _figures(run, files), "samples": _samples(files),
            "warnings": _warnings(files), "command": _command(files.given), "settings": _settings(files),
            "machine": _machine(files), "lines": words_of(_last_start(files), "lines"), "plan": _plan(run, files),
            "starts": _starts(run, files, now), "checkpoints": _checkpoints(run, files),
            "validations": _validations(run), "evaluations": _evaluations(files)}


# ---------------------------------------------------------------- how far it is


def _of_kind(files: RunFiles, event: str) -> list[Fields]:
    return [fields for fields in files.starts if fields.get("event") == event]


def _last_start(files: RunFiles) -> Fields:
    starts = _of_kind(files, "start")
    return starts[-1] if starts else {}


def _total_steps(files: RunFiles) -> int | None:
    total = number_of(_last_start(files), "total_steps")
    states = [object_of(checkpoint.state, "settings") for checkpoint in files.checkpoints]
    recorded = [number for settings in states if (number := number_of(settings, "total_steps"))]
    return int(total) if total else int(recorded[-1]) if recorded else None


def _state(run: LoggedRun, files: RunFiles, now: float) -> dict[str, Any]:
    """The step, the steps of the whole run, and whether it is finished, going on, or stopped."""
    total = _total_steps(files)
    last = files.starts[-1] if files.starts else {}
    how = str(last.get("how", "")) if last.get("event") == "end" else ""
    is_recent = files.last_time is not None and now - files.last_time < GOING_ON
    if how == "finished" or (total is not None and run.last_step >= total):
        word, kind = "finished", "good"
    elif how:
        word, kind = how if how.startswith(("stopped", "--")) else f"ended by an error: {how}", "bad"
        word, kind = (f"ended by {how}", "good") if how.startswith("--") else (word, kind)
    elif is_recent:
        word, kind = "running", "live"
    else:
        word, kind = "not finished", "bad"
    return {"step": run.last_step, "total": total, "word": word, "kind": kind}


def _figures(run: LoggedRun, files: RunFiles) -> Table:
    """The large figures at the top: name, value, and what stands small below it."""
    found = []
    if run.best is not None:
        step, best = run.best
        bits = "" if run.bits_per_nat is None else f", {best * run.bits_per_nat:.4f} bits per byte"
        found.append(["best validation loss", f"{best:.4f}", f"at step {step:,}: perplexity {_perplexity(best)}{bits}"])
    if run.loss.values:
        found.append(["training loss", f"{run.loss.values[-1]:.4f}", f"at step {run.loss.last_step:,}"])
    if speeds := run.tokens_per_second.values:
        found.append(["tokens per second", f"{statistics.median(speeds):,.0f}", f"up to {max(speeds):,.0f}"])
    if run.seconds.values:
        found.append(["time in steps", duration(run.seconds.values[-1]), "without validation, saving, compiling"])
    if run.tokens.values:
        passes = number_of(object_of(_last_start(files), "plan"), "passes")
        found.append(["tokens seen", count(run.tokens.values[-1]),
                      "" if passes is None else f"{passes:.3g} epochs in the whole run"])
    if parameters := number_of(object_of(_last_start(files), "plan"), "parameters"):
        found.append(["parameters", count(parameters), _shape(files)])
    return found


def _perplexity(nats: float) -> str:
    return f"{math.exp(nats):,.2f}" if nats < 30 else "above 1e13"


def _shape(files: RunFiles) -> str:
    flags = {**files.decided, **files.given}
    names = {"n_layer": "layers", "n_head": "heads", "n_embd": "width", "seq_length": "T"}
    return ", ".join(f"{word} {flags[name]}" for name, word in names.items() if isinstance(flags.get(name), int))


# ---------------------------------------------------------------- texts


def _samples(files: RunFiles) -> dict[str, Any]:
    """The samples by step, some of them where there are very many; n is how many there are."""
    there = [line for line in files.texts if isinstance(line.get("sample"), str)]
    kept = [there[round(index)] for index in _spread(len(there), MOST_SAMPLES)]
    return {"n": len(there), "shown": [{"step": line["step"], "text": line["sample"][:MOST_CHARACTERS]}
                                       for line in kept]}


def _spread(number: int, most: int) -> Sequence[float]:
    if number <= most:
        return range(number)
    return [index * (number - 1) / (most - 1) for index in range(most)]


def _warnings(files: RunFiles) -> list[dict[str, Any]]:
    """What was advised or warned of: before the first step of each start, then at steps; each sentence once."""
    said: dict[str, int | None] = {}
    for start in _of_kind(files, "start"):
        for words in words_of(start, "warnings"):
            said.setdefault(words, None)
    for line in files.texts:
        if isinstance(line.get("advice"), str):
            said.setdefault(line["advice"], line["step"])
    return [{"step": step, "text": words[:MOST_CHARACTERS]} for words, step in [*said.items()][:MOST_WARNINGS]]


# ---------------------------------------------------------------- settings


def _command(given: Fields) -> str:
    """The command by the flags that somebody gave. Of paths outside the current folder the name alone is told."""
    words = ["python", "train.py"]
    for name, value in given.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", *_words_of_value(value)]
    return shell_line(words) if given else ""


def _words_of_value(value: Any) -> list[str]:
    return [_without_folders(str(word)) for word in (value if isinstance(value, list) else [value])]


def _without_folders(text: str) -> str:
    """Absolute paths tell about a machine's user: their names alone stay."""
    is_absolute = text.startswith(("/", "~", "\\")) or text[1:3] in (":\\", ":/")
    return text.replace("\\", "/").rstrip("/").rpartition("/")[2] if is_absolute else text


def _settings(files: RunFiles) -> list[dict[str, str]]:
    """Each flag with its value, who decided it, and why."""
    reasons: dict[str, Any] = {}
    for start in _of_kind(files, "start"):
        reasons |= object_of(start, "reasons")
    found = []
    for how, flags in (("given", files.given), ("derived", files.decided)):
        for name, value in flags.items():
            shown = str(value).lower() if isinstance(value, bool) else " ".join(_words_of_value(value))
            found.append({"name": str(name), "value": shown, "how": how, "why": str(reasons.get(name, ""))})
    return found


MACHINE = {"device": "device", "device_memory_bytes": "its memory", "processes": "processes", "threads": "threads",
           "cpus": "processors", "ram_bytes": "RAM", "precision": "precision", "compile": "compiled",
           "residual": "residual stream", "torch": "torch", "cuda": "CUDA", "python": "Python", "system": "system"}


def _machine(files: RunFiles) -> Table:
    """What the last start ran on; of older runs what their checkpoints recorded."""
    facts = object_of(_last_start(files), "machine")
    if not facts and files.checkpoints:
        facts = object_of(files.checkpoints[-1].state, "environment")
    if not facts and files.gpu:
        facts = {"device": files.gpu}
    found = []
    for name, words in MACHINE.items():
        value = facts.get(name)
        if value is not None and isinstance(value, int | float | str):
            text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
            found.append([words, size(value) if name.endswith("_bytes") and not isinstance(value, str) else text])
    return found


# ---------------------------------------------------------------- the plan beside what was measured


def _plan(run: LoggedRun, files: RunFiles) -> list[dict[str, Any]]:
    """What the first start planned beside what was measured, as text and as numbers to draw: planned, measured."""
    starts = _of_kind(files, "start")
    if not starts:
        return []
    plan = object_of(starts[0], "plan")
    step, tokens = number_of(plan, "step_seconds"), number_of(plan, "tokens_per_step")
    speed = statistics.median(run.tokens_per_second.values) if run.tokens_per_second.values else None
    peaks = [peak for end in _of_kind(files, "end") if (peak := number_of(end, "peak_memory_bytes"))]
    sizes = [checkpoint.num_bytes for checkpoint in files.checkpoints]
    elapsed = sum(seconds for _, _, seconds, _, _ in _spans(run, files))
    measured_step = tokens / speed if tokens and speed else None
    rows = (
        ("a step", step, measured_step, _milliseconds, "measured before the first step; then the median"),
        ("tokens per second", tokens / step if tokens and step else None, speed, lambda x: f"{x:,.0f}", "the median"),
        ("the whole run", number_of(plan, "seconds"), elapsed or None, duration,
         "validation and saving included; pauses between starts are not"),
        ("memory", number_of(plan, "memory_bytes"), max([*peaks, files.memory_bytes or 0]) or None, size,
         "the most that was held"),
        ("a checkpoint", number_of(plan, "checkpoint_bytes"), sizes[-1] if sizes else None, size, "the newest"),
        ("disk", number_of(plan, "disk_bytes"), sum(sizes) or None, size, "planned: at most; measured: now"))
    return [{"name": name, "planned": NOT_AVAILABLE if planned is None else words(planned),
             "measured": NOT_AVAILABLE if measured is None else words(measured),
             "values": [planned or 0, measured or 0], "note": note}
            for name, planned, measured, words, note in rows if planned is not None or measured is not None]


def _milliseconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _spans(run: LoggedRun, files: RunFiles) -> list[tuple[Fields, Fields | None, float, int, bool]]:
    """Each start, its end if one was recorded, its seconds, the step it came to, and whether it is the last.

    Of a start that was killed, what the next one goes on from counts: up to that step, and the line logged last.
    """
    found = []
    rows = [fields for fields in files.starts if fields.get("event") in ("start", "end")]
    for index, fields in enumerate(rows):
        if fields["event"] == "end":
            continue
        after = rows[index + 1] if index + 1 < len(rows) else None
        end = after if after is not None and after["event"] == "end" else None
        began = number_of(fields, "time") or 0.0
        stopped = number_of(end, "time") if end else _last_before(files.times, after)
        step = number_of(after, "step") if after else run.last_step
        found.append((fields, end, max(0.0, (stopped or began) - began), int(step or 0), after in (None, rows[-1])))
    return found


def _last_before(times: Sequence[float], start: Fields | None) -> float | None:
    """The last time before a start, of all if there is none."""
    until = number_of(start, "time") if start else None
    number = len(times) if until is None else bisect_left(times, until)
    return times[number - 1] if number else None


def _starts(run: LoggedRun, files: RunFiles, now: float) -> list[dict[str, Any]]:
    """Each start: when, from which step to which, how long, and how it ended."""
    found = []
    for start, end, seconds, step, is_last in _spans(run, files):
        if end is not None:
            how = str(end.get("how", ""))
        elif is_last:
            is_recent = files.last_time is not None and now - files.last_time < GOING_ON
            how = "running" if is_recent else "ended without a word: killed, or the machine stopped"
        else:
            how = f"ended without a word; the next start went on from step {step:,}"
        found.append({"time": number_of(start, "time"), "from": number_of(start, "step") or 0, "to": step,
                      "took": duration(seconds) if seconds else NOT_AVAILABLE, "how": how[:300]})
    return found


# ---------------------------------------------------------------- tables


def _checkpoints(run: LoggedRun, files: RunFiles) -> list[dict[str, Any]]:
    """The checkpoints on the disk, with the validation of their step and what they are."""
    losses = dict(zip(run.val_loss.steps, run.val_loss.values, strict=True))
    there = files.checkpoints
    best = number_of(there[-1].state, "best_step") if there else None
    found = []
    for checkpoint in there:
        loss = losses.get(checkpoint.step)
        is_last = checkpoint is there[-1]
        marks = ["best"] * (checkpoint.step == best) + ["last"] * is_last
        marks += ["stays"] * (checkpoint.state.get("stays") is True and not is_last)
        found.append({"name": checkpoint.name, "size": size(checkpoint.num_bytes), "time": checkpoint.time,
                      "loss": NOT_AVAILABLE if loss is None else f"{loss:.4f}", "marks": marks})
    return found


def _validations(run: LoggedRun) -> Table:
    """The first, some, the best and the last validations: step, loss, perplexity, bits per byte."""
    steps, values = run.val_loss.steps, run.val_loss.values
    best = run.best[0] if run.best else None
    chosen = sorted({round(index) for index in _spread(len(steps), 12)} | ({steps.index(best)} if best else set()))
    return [[f"{steps[index]:,}", f"{values[index]:.4f}", _perplexity(values[index]),
             NOT_AVAILABLE if run.bits_per_nat is None else f"{values[index] * run.bits_per_nat:.4f}",
             "best" if steps[index] == best else ""] for index in chosen]


def _evaluations(files: RunFiles) -> list[dict[str, Any]]:
    """What evaluate.py measured: a table of each file, its columns those that any of its results has."""
    found = []
    for name, fields in files.evaluations:
        results = [result for result in fields["results"] if isinstance(result, dict)]
        columns = list(dict.fromkeys(key for result in results for key in result))
        rows = [[_cell(result.get(column)) for column in columns] for result in results]
        if rows:
            model = _without_folders(str(fields.get("ckpt", "")))
            found.append({"file": name, "model": model, "columns": [column.replace("_", " ") for column in columns],
                          "rows": rows})
    return found


def _cell(value: Any) -> str:
    if value is None:
        return NOT_AVAILABLE
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _without_folders(str(value))[:200]
    return f"{value:,}" if isinstance(value, int) else f"{value:,.5g}" if abs(value) >= 1e-3 or not value else (
        f"{value:.3g}")
