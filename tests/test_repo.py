"""The house itself: who imports whom, what importing does, what is nowhere, and that README.md is true."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import PACKAGES

ROOT = Path(__file__).parent.parent
ROOMS = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("*.py"))}
README = (ROOT / "README.md").read_text(encoding="utf-8")
IMPORTS = {
    "cli": set(),
    "model": set(),
    "device": set(),
    "curve": set(),
    "formats": {"cli"},
    "data": {"formats", "cli"},
    "plan": {"model", "cli"},
    "checkpoint": {"model", "cli"},
    "text": {"cli"},
    "workers": {"cli"},
    "engine": {"data", "cli"},
    "store": {"formats", "cli"},
    "passes": {"engine", "formats", "store", "text", "workers", "cli"},
    "pretokenize": {"passes", "data", "engine", "formats", "store", "text", "workers", "cli"},
    "decode": {"model", "cli"},
    "generate": {"decode", "data", "device", "checkpoint", "cli"},
    "train": {"model", "data", "device", "checkpoint", "curve", "plan", "decode", "cli"},
    "bench": {"train", "model", "data", "device", "checkpoint", "cli"},
    "evaluate": {"model", "data", "device", "checkpoint", "engine", "text", "cli"},
    "export": {"model", "data", "checkpoint", "engine", "text", "cli"},
    "plot": {"cli"},
}
COMMANDS = ("pretokenize", "train", "generate", "bench", "evaluate", "export", "plot")


def imported_by(tree: ast.AST) -> set[str]:
    """The names of all modules imported anywhere in a file, functions included."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


def test_each_room_imports_only_what_the_drawing_allows():
    assert set(ROOMS) == set(IMPORTS)
    for room, tree in ROOMS.items():
        assert imported_by(tree) & set(ROOMS) == IMPORTS[room], room


def test_the_drawing_in_the_readme_is_the_import_graph():
    drawn = {}
    for line in re.findall(r"^    (\w+) +-> (.+)$", README, re.MULTILINE):
        drawn[line[0]] = {name.strip() for name in line[1].split(",")} - {"nothing"}
    assert drawn == IMPORTS


def test_cli_needs_the_standard_library_alone_but_for_the_bar():
    assert imported_by(ROOMS["cli"]) - set(sys.stdlib_module_names) == {"tqdm"}


def test_importing_a_room_does_nothing():
    for room, tree in ROOMS.items():
        for node in tree.body:
            guarded = isinstance(node, ast.If) and ast.unparse(node.test) in ("__name__ == '__main__'", "TYPE_CHECKING")
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            assert (
                guarded
                or docstring
                or isinstance(
                    node,
                    ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.Try,
                )
            ), f"{room}:{node.lineno}"


def test_nothing_unpickles_evaluates_or_starts_a_shell():
    for room, tree in ROOMS.items():
        assert not imported_by(tree) & {
            "pickle",
            "yaml",
            "marshal",
            "shelve",
            "dill",
            "socket",
            "urllib",
            "requests",
        }, room
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "torch.load", "torch.save", "os.system"), f"{room}:{node.lineno}"
                assert not called.endswith((".extractall", "allow_pickle")), f"{room}:{node.lineno}"
                for keyword in node.keywords:
                    assert keyword.arg not in ("shell", "allow_pickle"), f"{room}:{node.lineno}"


def test_sources_are_ascii_without_todos():
    for path in (*ROOT.glob("*.py"), *ROOT.glob("tests/*.py"), *ROOT.glob("*.sh"), *ROOT.glob("*.toml")):
        content = path.read_text(encoding="utf-8")
        if path.parent == ROOT:
            assert content.isascii(), path.name
        assert "TO" + "DO" not in content, path.name


@pytest.mark.parametrize("command", COMMANDS)
def test_each_flag_is_declared_once_read_and_never_assigned(command):
    tree = ROOMS[command]
    declared = [
        str(node.args[0].value).lstrip("-")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("flag", "switch", "add_argument")
        and isinstance(node.args[0], ast.Constant)
    ]
    assert len(declared) == len(set(declared))
    read, assigned = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner == "args" or owner.endswith(".args"):
                (assigned if isinstance(node.ctx, ast.Store | ast.Del) else read).add(node.attr)
    assert set(declared) - read == {"debug"}  # cli.guard reads that one
    assert read <= set(declared)
    assert not assigned


def test_requirements_are_those_the_program_checks():
    lines = (ROOT / "requirements.txt").read_text().split()
    for line in lines:
        name, bounds = re.findall(r"^([a-z]+)(.*)$", line)[0]
        assert bounds == f">={PACKAGES[name].oldest}"  # no upper bound: pip must never downgrade a machine's torch
    assert len(lines) == len(PACKAGES)


# ---------------------------------------------------------------- README.md


def commands_in(text: str) -> list[list[str]]:
    """Every command line that starts one of our commands, continued lines joined."""
    lines = re.findall(r"^ *(python \w+\.py[^#|\n]*)", text.replace("\\\n", " "), re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines]


def test_every_command_of_the_readme_and_the_scripts_is_understood():
    import bench
    import evaluate
    import export
    import generate
    import plot
    import pretokenize
    import train

    parsers = {
        "bench.py": bench.read_flags,
        "evaluate.py": evaluate.read_flags,
        "export.py": export.read_flags,
        "generate.py": generate.read_flags,
        "plot.py": plot.read_flags,
        "pretokenize.py": pretokenize.read_flags,
        "train.py": train.read_flags,
    }
    found = commands_in(README) + commands_in((ROOT / "demo.sh").read_text())
    assert {words[0] for words in found} == set(parsers)
    for words in found:
        if "--help" not in words:
            parsers[words[0]](words[1:])


def test_the_demo_does_what_it_says_on_a_smaller_scale(tmp_path):
    """demo.sh's own three commands, with a corpus and a horizon of seconds, in an empty folder."""
    (tmp_path / "corpus.txt").write_text("def read_line(file):\n    return file.readline()\n\n\n" * 300)
    outputs = []
    for words in commands_in((ROOT / "demo.sh").read_text()):
        words = [str(ROOT / words[0]), *words[1:]]
        if "--demo" in words:
            words[words.index("--demo")] = "corpus.txt"
        if "--max_steps" in words:
            words[words.index("--max_steps") + 1] = "40"
            words += ["--eval_interval", "20"]
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done)
    assert "next: python train.py" in outputs[0].stdout
    assert "next: python generate.py" in outputs[1].stdout
    assert outputs[2].stdout.startswith("def read_")
    assert "tok/s" in outputs[2].stderr


def test_the_readme_lists_the_flags_there_are():
    for command in COMMANDS:
        shown = subprocess.run(
            [sys.executable, ROOT / f"{command}.py", "--help"], capture_output=True, text=True, check=True
        )
        there = set(re.findall(r"^  (--[\w-]+)", shown.stdout, re.MULTILINE))
        section = README.split(f"### {command}.py", 1)[1].split("\n#", 1)[0]
        assert set(re.findall(r"^\s+(--[a-z]\w+)", section, re.MULTILINE)) == there, command


def test_the_readme_names_every_file_at_the_top():
    for path in (*ROOT.glob("*.py"), *ROOT.glob("*.sh")):
        assert path.name in README, path.name
