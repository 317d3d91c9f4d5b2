"""The tables of tests/gpu.sh, from the files that its commands left in a folder.

    python -m benchmarks.gpu_figures peers-A gpu-figures          a part's table, in Markdown
    python -m benchmarks.gpu_figures machine gpu-figures --use_gpu  what the figures are about, kept in machine.json

Of each command there are NAME.txt, what it printed, and NAME.status: its exit code, its seconds, the date and the
command, a line each. What has not been run, was stopped or failed has a row that says so.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import guard
from common.words import percent

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
STOPPED = 124  # the exit code of a command that ran out of its time
MOST_ROWS = 25  # of a curve
Row = Sequence[object]


# ---------------------------------------------------------------- what a command left


@dataclass(frozen=True)
class Item:
    """One command of a part: how it ended, what it printed, and the figures in its JSON file, {} without one."""

    name: str
    code: int | None  # None: it was not run
    seconds: float
    date: str
    text: str
    figures: dict[str, Any]

    @property
    def ending(self) -> str:
        """'' if it is done, else what came of it."""
        if self.code is None:
            return "not run"
        if self.code in (0, STOPPED):
            return "stopped" * bool(self.code)
        return f"exit code {self.code}: {(self.text.strip().splitlines() or ['nothing was printed'])[-1][:100]}"

    def found(self, pattern: str) -> str:
        """The group of the pattern in the last line that has it; '' if none has."""
        found = re.findall(pattern, self.text, re.MULTILINE)
        return found[-1].strip() if found else ""


def item(folder: Path, name: str) -> Item:
    """What the command of this name left."""
    code, seconds, date, *_ = [*_text(folder / f"{name}.status").splitlines(), "", "", ""]
    figures = _text(folder / f"{name}.json")
    return Item(name, int(code) if code else None, float(seconds or 0), date, _text(folder / f"{name}.txt"),
                json.loads(figures) if figures else {})


def items(folder: Path, prefix: str) -> list[Item]:
    """Those whose names begin so, in the order in which they were run."""
    paths = sorted(folder.glob(f"{prefix}*.status"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    return [item(folder, path.stem) for path in paths]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def logged(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl; a last one that was cut off is left out."""
    rows = []
    for line in _text(folder / "metrics.jsonl").splitlines():
        if line.endswith("}"):
            rows.append(json.loads(line))
    return rows


# ---------------------------------------------------------------- cells


def gib(number: float | None) -> str:
    """Bytes as '7.09'."""
    return "" if number is None else f"{number / 2**30:.2f}"


def num_bytes(text: str) -> float | None:
    """'544.5 MiB' in bytes; None for other text."""
    found = re.fullmatch(r"([\d.,]+) (\w+)", text)
    return float(found[1].replace(",", "")) * UNITS[found[2]] if found and found[2] in UNITS else None


def markdown(head: str, rows: Sequence[Row]) -> list[str]:
    """A table; head is its columns, with | between."""
    columns = [column.strip() for column in head.split("|")]
    padded = [[*map(str, row), *[""] * (len(columns) - len(row))] for row in rows]
    lines = [columns, ["---"] * len(columns), *padded]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]


# ---------------------------------------------------------------- the parts


def of_tests(folder: Path, part: str) -> list[str]:
    """How many tests passed; which did not."""
    ran = item(folder, part)
    counts = [ran.found(rf"(\d+) {what}") or "0" for what in ("passed", "failed", "skipped")]
    failed = [f"- {name}" for name in re.findall(r"^FAILED (\S+)", ran.text, re.MULTILINE)]
    head = "passed | failed | skipped | seconds |"
    return [*markdown(head, [[*counts, f"{ran.seconds:.0f}", ran.ending]]), *failed]


def of_peers(folder: Path, part: str) -> list[str]:
    """Ours beside each peer, in turns."""
    rows: list[Row] = []
    for who in ("nanogpt", "transformers"):
        ran = item(folder, f"{who}-{part.partition('-')[2]}")
        medians = ran.figures.get("medians")
        if medians is None:
            rows.append([who, ran.ending or "no figures"])
            continue
        ours, theirs = medians["ours"], medians[who]
        rows.append([who, f"{ours['ms_median']:.1f}", f"{theirs['ms_median']:.1f}",
                     f"{ours['ms_median'] / theirs['ms_median']:.2f}x", gib(ours["peak_memory_bytes"]),
                     gib(theirs["peak_memory_bytes"]), f"{ran.figures['loss_difference']:.0e}"])
    return markdown("beside | ours, ms | theirs, ms | ours / theirs | ours, GiB | theirs, GiB | losses differ by", rows)


def of_ladder(folder: Path, part: str) -> list[str]:
    """All rungs that were run, whichever command ran them; speed-up is over the lowest of them."""
    kind, _, shape = part.partition("-")
    names = ("ladder-tuned",) if kind == "tuned" else ("ladder-low", "ladder-high")
    ran = [item(folder, f"{name}-{shape}") for name in names]
    rungs = {rung["number"] if "number" in rung else rung["rung"]: rung
             for each in ran for rung in each.figures.get("rungs", []) if rung.get("status") != "skipped"}
    slowest = next((rungs[number] for number in sorted(rungs) if "ms_median" in rungs[number]), None)
    rows: list[Row] = []
    for number, rung in sorted(rungs.items()):
        if "ms_median" not in rung:
            rows.append([number, rung["name"], f"failed: {rung.get('reason', '')[:80]}"])
            continue
        assert slowest is not None
        compiled = rung.get("compile_seconds")
        rows.append([number, rung["name"], f"{rung['ms_median']:.1f}", f"{rung['ms_p90']:.1f}",
                     f"{rung['tokens_per_second']:,.0f}", percent(rung["mfu"]), gib(rung["peak_memory_bytes"]),
                     "" if compiled is None else f"{compiled:.0f}", f"{slowest['ms_median'] / rung['ms_median']:.2f}x",
                     "yes" if rung.get("loss_ok", True) else "NO"])
    rows += [["", each.name, each.ending] for each in ran if each.ending]
    return markdown("rung | what it adds | ms | p90 | tok/s | MFU | GiB | compile, s | speed-up | same losses", rows)


def planned(ran: Item) -> Row:
    """What a dry run predicted and measured."""
    predicted = num_bytes(ran.found(r"^memory +([\d.,]+ \w+) predicted"))
    held = num_bytes(ran.found(r"^peak_memory: (.+)$"))
    seconds = ran.found(r"^step_seconds: ([\d.]+)")
    share = f"{held / predicted:.2f}" if held and predicted else ""
    return [gib(predicted), gib(held), share, f"{1000 * float(seconds):.1f}" if seconds else "",
            ran.found(r"^tokens_per_second: (\S+)"), ran.found(r"^mfu: (\S+)"), ran.ending]


PLANNED = "predicted, GiB | held, GiB | held / predicted | ms a step | tok/s | MFU |"


def of_memory(folder: Path, part: str) -> list[str]:
    """Memory predicted and measured, by the flags."""
    rows = [[" ".join(_flags_after(folder, ran, "--dry_run")), *planned(ran)] for ran in items(folder, part)]
    return markdown(f"flags | {PLANNED}", rows)


def _flags_after(folder: Path, ran: Item, word: str) -> list[str]:
    """The words of a command after this one."""
    words = (_text(folder / f"{ran.name}.status").splitlines() or [""])[-1].split()
    return words[words.index(word) + 1:] if word in words else words


def stepped(folder: Path, ran: Item) -> Row:
    """Median of the last half of the logged steps, memory, last loss and skipped steps of a run."""
    rows = [row for row in logged(folder / ran.name) if "loss" in row]
    if not rows:
        return ["", "", "", "", "", ran.ending or "nothing was logged"]
    seconds = statistics.median(row["seconds"] for row in rows[len(rows) // 2:])
    tokens = statistics.median(row["tokens_per_second"] for row in rows[len(rows) // 2:])
    return [f"{1000 * seconds:.2f}", f"{tokens:,.0f}", gib(rows[-1]["memory_bytes"]), f"{rows[-1]['loss']:.4f}",
            ran.found(r"^skipped_steps: (\d+)"), ran.ending]


STEPPED = "ms a step | tok/s | GiB | last loss | skipped steps |"


def of_fp16(folder: Path, part: str) -> list[str]:
    """fp16 beside bf16 on this card, and what train.py chooses and takes on smaller ones."""
    rows = [[name, *stepped(folder, item(folder, f"{part}-{name}"))] for name in ("bf16", "fp16")]
    cards = [[ran.name.partition("-as")[2], ran.found(r"^precision +(\S+)"), ran.found(r"^step +(.*?);"),
              *planned(ran)] for ran in items(folder, f"{part}-as")]
    return [*markdown(f"precision | {STEPPED}", rows), "", "With the memory and the kernels of a smaller card, at this "
            "card's speed:", "", *markdown(f"card | precision | step | {PLANNED}", cards)]


def of_decode(folder: Path, part: str) -> list[str]:
    """New tokens a second, by the sampler."""
    ran = item(folder, part)
    rows = re.findall(r"^(.+?) {2,}([\d.]+) tok/s, median of (\d+)$", ran.text, re.MULTILINE)
    return markdown("sampler, prompts at once | tok/s | turns", [*rows, *[[ran.ending]] * bool(ran.ending)])


def of_saving(folder: Path, part: str) -> list[str]:
    """The parts of a checkpoint; and a run that was killed beside one that was not."""
    stall = item(folder, f"{part}-stall")
    found = stall.figures.get("saving", {"seconds": {}, "bytes": 0})
    rows: list[Row] = [[name, f"{seconds:.3f}", f"{found['bytes'] / seconds / 1e9:.2f}"]
                       for name, seconds in found["seconds"].items()]
    whole, resumed = ({row["step"]: row["loss"] for row in logged(folder / f"{part}-{name}") if "loss" in row}
                      for name in ("whole", "killed"))
    both = whole.keys() & resumed.keys()
    same = sum(whole[step] == resumed[step] for step in both)
    last = item(folder, f"{part}-resumed")
    begun = last.found(r"^resume +from (\S+)")
    said = last.ending or f"{same} of {len(whole)} losses are equal bit for bit, resumed from {begun or 'nothing'}"
    return [*markdown("a checkpoint | s | GB/s", [*rows, *[[stall.ending]] * bool(stall.ending)]), "",
            f"kill -9 and resume, deterministic: {said}"]


def of_run(folder: Path, part: str) -> list[str]:
    """The curve of a real run, thinned out, and its speed."""
    ran, rows = item(folder, part), logged(folder / part)
    steps = [row for row in rows if "loss" in row]
    points = [row for row in rows if "val_loss" in row]
    kept = points[:: -(-len(points) // MOST_ROWS) or 1]
    if points and kept[-1] is not points[-1]:
        kept.append(points[-1])
    seen = {row["step"]: row["tokens"] for row in steps}
    began = rows[0]["time"] if rows else 0
    table = [[row["step"], f"{_last_before(seen, row['step']) / 1e6:.1f}", f"{(row['time'] - began) / 60:.1f}",
              f"{row['val_loss']:.4f}", "" if row["bits_per_byte"] is None else f"{row['bits_per_byte']:.4f}"]
             for row in kept]
    lines = markdown("step | M tokens | minutes | validation loss | bits per byte", table)
    if steps:
        middle = steps[len(steps) // 2]
        lines += ["", f"{middle['tokens_per_second']:,.0f} tok/s, MFU {percent(middle['mfu'])}, "
                      f"{gib(middle['memory_bytes'])} GiB at step {middle['step']:,}. {ran.ending}".rstrip()]
    text = item(folder, f"{part}-text").text.strip()
    return [*lines, *(["", "```", text, "```"] if text else [])] if rows else [ran.ending]


def _last_before(by_step: dict[int, int], step: int) -> int:
    """The value of the last step that is not after this one, 0 without one."""
    return max((value for at, value in by_step.items() if at <= step), default=0)


def of_graphs(folder: Path, part: str) -> list[str]:
    """Steps with CUDA graphs and without, where launches take most of the time."""
    rows = [[*ran.name.split("-", 2)[1:], *stepped(folder, ran)] for ran in items(folder, f"{part}-")]
    return markdown(f"size | --compile_mode | {STEPPED}", rows)


def of_steps(folder: Path, part: str) -> list[str]:
    """Every network with every optimizer: a dry run, and whether it learns a batch by heart."""
    rows: list[Row] = []
    for ran in items(folder, f"{part}-"):
        network, optimizer = ran.name.split("-")[1:3]
        learned = item(folder, f"overfit-{network}-{optimizer}")
        *figures, ending = planned(ran)
        rows.append([network, optimizer, *figures, learned.ending or "yes", ending])
    return markdown(f"network | optimizer | {PLANNED.rstrip(' |')} | learns a batch |", rows)


PARTS: dict[str, Callable[[Path, str], list[str]]] = {
    "tests": of_tests, "peers": of_peers, "ladder": of_ladder, "tuned": of_ladder, "memory": of_memory, "fp16": of_fp16,
    "decode": of_decode, "saving": of_saving, "run": of_run, "graphs": of_graphs, "steps": of_steps}


# ---------------------------------------------------------------- the script


def section(folder: Path, part: str) -> str:
    """The part as it can stand in README.md or LOG.md: heading, card, versions, command, table."""
    about = json.loads(_text(folder / "machine.json") or "{}")
    lines = PARTS[part.partition("-")[0]](folder, part)
    facts = "; ".join(f"{name} {value}".strip() for name, value in about.items())
    return "\n".join([f"### {part}", "", f"{facts}. `bash tests/gpu.sh {part}`", "", *lines, ""])


def keep_machine(folder: Path, use_gpu: bool) -> int:
    """Writes machine.json: date, card, driver and versions. Raises UserError (exit 5) where there is no GPU."""
    import platform
    import time

    import torch

    from common.errors import Exit, UserError
    from machine import device
    from machine.facts import driver_version

    if use_gpu and (reason := device.why_no_cuda()):
        raise UserError(Exit.MACHINE, f"tests/gpu.sh: {reason}, or give SMALL=1.")
    found = torch.device("cuda" if use_gpu else "cpu")
    about = {"": time.strftime("%Y-%m-%d", time.gmtime()), "on": device.device_name(found),
             "driver": driver_version() or "none", "torch": torch.__version__, "Python": platform.python_version()}
    (folder / "machine.json").write_text(json.dumps(about))
    return 0


def main(argv: Sequence[str]) -> int:
    """The script."""
    part, folder, *flags = argv
    if part == "machine":
        return keep_machine(Path(folder), "--use_gpu" in flags)
    print(section(Path(folder), part))
    return 0


if __name__ == "__main__":
    guard(main)
