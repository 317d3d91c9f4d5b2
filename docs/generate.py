"""Writes the parts of the documents that follow from the code.

    python docs/generate.py             rewrites docs/flags.md and the drawing in docs/architecture.md
    python docs/generate.py --check     writes nothing; exit code 1 and the names of the files that are out of date

docs/flags.md holds every command's --help, docs/architecture.md which folder imports which. Nothing
of the program is imported: sources are parsed, --help is run.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCH = "gpt.benchmarks.bench"
COMMANDS = ("pretokenize", "train", "generate", "evaluate", "export", "plot", BENCH)
FLAGS_INTRODUCTION = """# Flags

Generated from every command's `--help` by `python docs/generate.py`. Every flag that is on or off has a `--no-` form.
Abbreviations are refused; a misspelt flag gets "did you mean", and for many flags of nanoGPT, litgpt, nanochat and
Hugging Face's Trainer the error names the flag used here. Numbers may be written with commas or underscores.
[exit_codes.md](exit_codes.md) lists the exit codes of all commands.

Every command has `--debug`, which shows the traceback of an error, and train.py `--config FILE`: flags from a TOML file
([training.md](training.md#flags-in-a-file)). Twelve flags of train.py that few runs need are
[in a table of their own](training.md#flags-that---help-leaves-out).
"""


def modules() -> dict[str, ast.Module]:
    """The program's files by name without .py (`planning/recipe`), parsed."""
    paths = (*ROOT.glob("*.py"), *ROOT.glob("gpt/*/*.py"))
    return {path.relative_to(ROOT).with_suffix("").as_posix(): ast.parse(path.read_text(encoding="utf-8"))
            for path in paths}


def room_of(name: str) -> str:
    """The room of gpt/ that a file lies in, or the top-level file itself."""
    return name.removeprefix("gpt/").split("/")[0]


def room_graph(files: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Maps each room of gpt/ and each top-level file to its imports among them; the highest comes first.

    files is what modules() returns. Raises graphlib.CycleError if the imports have a cycle.
    """
    graph: dict[str, set[str]] = {room_of(name): set() for name in files}
    for name, tree in files.items():
        room = room_of(name)
        for node in ast.walk(tree):
            imported = []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported = [f"{node.module}.{alias.name}" for alias in node.names]
            graph[room] |= {room_of(module.replace(".", "/")) for module in imported} & graph.keys() - {room}

    from_below = TopologicalSorter({room: sorted(graph[room]) for room in sorted(graph)}).static_order()
    return {room: graph[room] for room in reversed([*from_below])}


def architecture() -> str:
    """docs/architecture.md with the import graph as the code has it now.

    The drawing replaces what follows the introduction of the last heading, a paragraph.
    """
    graph = room_graph(modules())
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    drawing = "\n".join(f"    {room} -> {', '.join(sorted(graph[room])) or 'nothing'}" for room in graph)
    heading = "\n## The import graph\n"
    before, rest = page.split(heading, 1)
    introduction = rest.lstrip("\n").split("\n\n", 1)[0]
    return f"{before}{heading}\n{introduction}\n\n{drawing}\n"


def flag_rows(section: str) -> Iterator[tuple[str, str]]:
    """Each flag of one group of --help, with its help text in one line."""
    entries: list[list[str]] = []
    for line in section.splitlines():
        entry = re.match(r"  (\S.*?)(?:  +(.*))?$", line)
        if entry:
            entries.append([entry[1], *filter(None, [entry[2]])])
        elif line.strip() and entries:
            entries[-1].append(line.strip())
    for name, *words in entries:
        text = " ".join(words)
        yield name, re.sub(r"(?<=\w-) (?=\w)", "", text) if any(part.endswith("-") for part in words) else text


def command_section(command: str) -> str:
    """Runs a command's --help; returns its section of flags.md, with a list of flags for each group."""
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    words = ["-m", BENCH] if command == BENCH else [f"{command}.py"]
    done = subprocess.run([sys.executable, *words, "--help"], env=environment, cwd=ROOT,
                          capture_output=True, text=True, check=True)
    description, *groups = re.split(r"\n\n(?=\S)", done.stdout.strip())[1:]  # without the usage
    lines = [f"## {command}.py" if command != BENCH else f"## python -m {BENCH}", "",
             " ".join(description.split())]
    for group in groups:
        title, section = group.split("\n", 1)
        if title == "options:":  # --help alone
            continue
        lines += ["", f"### {title.removesuffix(':')}", ""]
        for name, help_text in flag_rows(section):
            if name != "--debug":  # which the introduction names
                lines.append(f"- `{name}` {help_text}".replace("\\", "\\\\").replace("<", "&lt;"))
    return "\n".join([*lines, ""])


def main(argv: list[str]) -> int:
    """Writes the generated parts, or with --check (any argument) only compares them.

    Returns the exit code, 1 if --check finds a file out of date.
    """
    outdated = []
    flags = "\n".join([FLAGS_INTRODUCTION, *(command_section(command) for command in COMMANDS)])
    for name, content in (("docs/flags.md", flags), ("docs/architecture.md", architecture())):
        path = ROOT / name
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            outdated.append(name)
            if not argv:
                path.write_text(content, encoding="utf-8")
                print(f"{name} rewritten")
    if argv and outdated:
        print(f"out of date: {', '.join(outdated)}. Run: python docs/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
