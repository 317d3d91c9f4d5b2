"""Writes the parts of the documents that follow from the code.

    python docs/generate.py             rewrites docs/flags.md and the generated parts of docs/architecture.md, the
                                        repository's address in the notebook, and docs/distributed.md and
                                        docs/performance.md where torch is installed
    python docs/generate.py --check     writes nothing; exit code 1 and the names of the files that are out of date

docs/flags.md holds every command's --help as tables. docs/architecture.md holds the first sentence of every file and
the import graph: one line per file, `folder/file -> what it imports`, from the highest floor to the lowest. Only the
standard library is used, and nothing of the program is imported: sources are parsed, --help is run.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The repository's place on GitHub, for the badges and the notebook: to publish it elsewhere, change this line alone.
REPOSITORY = "OWNER/text-to-gpt2"
WITH_ITS_ADDRESS = ("notebooks/train.ipynb", "docs/notebook.md")
COMMANDS = ("pretokenize", "train", "generate", "evaluate", "export", "plot", "bench")

# From the roof to the cellar. A name is a folder, or a file at the top level; each floor imports only floors below it.
FLOORS = (
    ("bench",),
    ("benchmarks",),
    ("train", "pretokenize", "generate", "evaluate", "export", "plot"),
    ("reports",),
    ("planning", "training", "watching", "evaluation"),
    ("checkpoint", "generation", "pretokenization", "trackers"),
    ("data",),
    ("tokens",),
    ("architectures",),
    ("model",),
    ("machine", "ops"),
    ("hub",),
    ("common",),
)
NOT_THE_PROGRAM = ("tests", "docs", "notebooks", "demo")


# ---------------------------------------------------------------- the house, by file


def modules(root: Path = ROOT) -> dict[str, ast.Module]:
    """The program's files by name without .py (`planning/recipe`), parsed, from the highest floor to the lowest.

    Raises ValueError for a folder or a top-level file that has no floor.
    """
    floor_of = {name: number for number, names in enumerate(FLOORS) for name in names}
    found = {}
    for path in [*root.glob("*.py"), *root.glob("*/*.py")]:
        name = path.relative_to(root).with_suffix("").as_posix()
        room = name.split("/")[0]
        if room in NOT_THE_PROGRAM or room.startswith("."):
            continue
        if room not in floor_of:
            raise ValueError(f"{name}.py stands on no floor. Add it to FLOORS in docs/generate.py.")
        found[name] = (floor_of[room], ast.parse(path.read_text(encoding="utf-8")))
    return {name: found[name][1] for name in sorted(found, key=lambda name: (found[name][0], name))}


def imported(tree: ast.Module) -> Iterator[str]:
    """The full names of all modules that a file imports; `from a import b` yields a and a.b.

    Imports inside functions count. Those under `if TYPE_CHECKING` do not: they are never executed.
    """
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            nodes.extend(ast.iter_child_nodes(node))


def import_graph(files: dict[str, ast.Module]) -> dict[str, list[str]]:
    """The files of the program that each file imports; an __init__ that is only a docstring takes no part."""
    drawn = {name for name, tree in files.items() if not name.endswith("/__init__") or len(tree.body) > 1}
    graph = {}
    for name in files:
        if name in drawn:
            paths = {module.replace(".", "/") for module in imported(files[name])}
            targets = paths | {f"{path}/__init__" for path in paths}
            graph[name] = sorted(targets & drawn - {name})
    return graph


def first_sentence(tree: ast.Module) -> str:
    """The first sentence of a file's docstring as one line."""
    paragraph = " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())
    return re.split(r"(?<![ (]al)(?<=\.) (?=[A-Z])|(?<=\?) ", paragraph)[0]


def graph_lines(files: dict[str, ast.Module]) -> str:
    """The import graph as an indented block, one line per file."""
    graph = import_graph(files)
    return "\n".join(f"    {name} -> {', '.join(targets) or 'nothing'}" for name, targets in graph.items())


def file_lines(files: dict[str, ast.Module]) -> str:
    """Every file with the first sentence of its docstring, as a list in the order of the floors."""
    lines = []
    for name, tree in files.items():
        if name.endswith("/__init__"):
            lines.append(f"- **{name.removesuffix('__init__')}** {first_sentence(tree)}")
        else:
            indent = "  " if "/" in name else ""
            lines.append(f"{indent}- `{name}.py` {first_sentence(tree)}")
    return "\n".join(lines)


def with_section(page: str, heading: str, body: str) -> str:
    """The page with what follows a heading's introduction (its first paragraph) replaced, up to the next heading."""
    before, rest = page.split(f"\n{heading}\n", 1)
    introduction = rest.lstrip("\n").split("\n\n", 1)[0]
    following = re.search(r"\n## .*", rest, re.DOTALL)
    return f"{before}\n{heading}\n\n{introduction}\n\n{body}\n" + (following[0] if following else "")


def architecture(root: Path = ROOT) -> str:
    """docs/architecture.md with its two generated sections as the code has them now."""
    files = modules(root)
    page = (root / "docs/architecture.md").read_text(encoding="utf-8")
    page = with_section(page, "## The files", file_lines(files))
    return with_section(page, "## The import graph", graph_lines(files))


# ---------------------------------------------------------------- the flags, from --help

FLAGS_INTRODUCTION = """# Flags

Generated from every command's `--help` by `python docs/generate.py`. Every flag that is on or off has a `--no-` form.
Abbreviations are refused; a misspelt flag gets "did you mean", and one of nanoGPT, litgpt, nanochat or Hugging Face's
Trainer the name that it has here. Numbers may be written with commas or underscores. [exit_codes.md](exit_codes.md)
lists the exit codes of all commands.

Every command has `--config FILE` too: flags from a TOML file ([training.md](training.md#flags-in-a-file)).
"""


def help_of(command: str, root: Path = ROOT) -> str:
    """What `python COMMAND.py --help` prints, in lines of 120 characters."""
    env = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    done = subprocess.run([sys.executable, str(root / f"{command}.py"), "--help"], env=env, capture_output=True,
                          text=True, check=True)
    return done.stdout


def joined(parts: list[str]) -> str:
    """Wrapped lines as one; a line that was broken at a hyphen inside a word is put together again."""
    text = " ".join(parts)
    return re.sub(r"(?<=\w-) (?=\w)", "", text) if any(part.endswith("-") for part in parts) else text


def flag_rows(section: str) -> Iterator[tuple[str, str]]:
    """Each flag of one group of --help, with its help text unwrapped."""
    entries: list[tuple[str, list[str]]] = []
    for line in section.splitlines():
        entry = re.match(r"  (\S.*?)(?:  +(.*))?$", line)
        if entry:
            entries.append((entry[1], [entry[2]] if entry[2] else []))
        elif line.strip() and entries:
            entries[-1][1].append(line.strip())
    for name, words in entries:
        yield name, joined(words)


def command_section(command: str, shown: str) -> str:
    """One command's flags: its description, then a table for each group."""
    _, description, *groups = re.split(r"\n\n(?=\S)", shown.strip())
    lines = [f"## {command}.py", "", " ".join(description.split())]
    for group in groups:
        title, _, section = group.partition("\n")
        if title == "options:":  # --help alone
            continue
        lines += ["", f"| {title.removesuffix(':')} | |", "| --- | --- |"]
        for name, words in flag_rows(section):
            words = words.replace("\\", "\\\\").replace("<", "&lt;")
            shown, meaning = (text.replace("|", "\\|") for text in (name, words))
            lines.append(f"| `{shown}` | {meaning} |")
    return "\n".join(lines)


def flags(root: Path = ROOT) -> str:
    """docs/flags.md as the commands' --help has it now."""
    return "\n".join([FLAGS_INTRODUCTION, *(command_section(command, help_of(command, root)) + "\n"
                                            for command in COMMANDS)])


def addressed(name: str, root: Path = ROOT) -> str:
    """A file with the repository's address where one of GitHub's stands."""
    address = r"(\bgithub(?:\.com)?/)[\w.-]+/[\w.-]+?(?=/blob/|[\\\")`\s])"
    return re.sub(address, lambda found: found[1] + REPOSITORY, (root / name).read_text(encoding="utf-8"))


def main(argv: list[str]) -> int:
    """Writes the generated parts, or with --check only compares them. Returns the exit code."""
    if argv not in ([], ["--check"]):
        print("usage: python docs/generate.py [--check]", file=sys.stderr)
        return 2
    outdated = []
    pages = [("docs/flags.md", flags()), ("docs/architecture.md", architecture())]
    pages += [(name, addressed(name)) for name in WITH_ITS_ADDRESS]
    for name, content in pages:
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
