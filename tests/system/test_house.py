"""The house itself: who imports whom, what importing does, what is nowhere, which flags and packages there are."""

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter

import pytest

from gpt.architectures.architecture import Architecture
from tests.helpers.commands import COMMANDS, ROOT
from tests.helpers.house import import_graph, imported_names, nodes, room_of, sources

# From the cellar to the roof: a file imports its own folder and what stands on a floor below.
FLOORS = (
    ("common",),
    ("hub",),
    ("machine", "ops"),
    ("model",),
    ("architectures",),
    ("tokens",),
    ("data",),
    ("checkpoint", "generation", "pretokenization"),
    ("optimizers", "evaluation"),
    ("planning",),
    ("training",),
    ("watching",),
    ("train", "pretokenize", "generate", "evaluate", "export", "plot"),
    ("benchmarks",),
)
LONGEST_FUNCTION = 70  # lines; read_flags, a line for each flag, may be longer
COMMAND_NAMES = {"main", "read_flags", "check", "answer_early"}  # what every command has


def floor_of(file: str) -> int:
    """The number of the floor on which a file stands."""
    return next(number for number, rooms in enumerate(FLOORS) if room_of(file) in rooms)


# ---------------------------------------------------------------- imports


def test_each_file_imports_its_own_folder_and_the_floors_below():
    for file, targets in import_graph().items():
        for target in targets:
            rooms = {room_of(file), room_of(target)}
            assert len(rooms) == 1 or floor_of(target) < floor_of(file), f"{file} imports {target}"


def test_no_file_imports_itself_over_others():
    graph = {file: set(targets) for file, targets in import_graph().items()}
    while free := [file for file, targets in graph.items() if not targets & set(graph)]:
        for file in free:
            del graph[file]
    assert not graph, f"a cycle among {sorted(graph)}"


def test_no_import_is_hidden_in_a_string():
    hidden = re.compile(r"\bimport gpt\b|\bfrom gpt(?:\.\w+)* import\b")
    named = re.compile(r"gpt(?:\.\w+)*")
    for place, node in nodes(ast.Constant, ast.Call):
        if place.startswith("gpt/benchmarks/demo.py"):  # it asks another interpreter for the packages
            continue
        if isinstance(node, ast.Constant):
            assert not (isinstance(node.value, str) and hidden.search(node.value)), place
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            asked = node.args[0]
            assert not (isinstance(asked, ast.Constant) and named.fullmatch(str(asked.value))), place


def test_common_needs_the_standard_library_alone_except_for_the_bar():
    for file, tree in sources().items():
        if file.startswith("gpt/common/"):
            packages = {name.split(".")[0] for name in imported_names(tree)} - set(sys.stdlib_module_names) - {"gpt"}
            assert packages <= ({"tqdm"} if file == "gpt/common/progress" else set()), file


SILENT = """
import importlib, pathlib, sys
for file in sys.argv[1:]:
    importlib.import_module(file.removesuffix("/__init__").replace("/", "."))
"""


def test_importing_any_file_prints_and_writes_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-B", "-c", SILENT, *sources()], cwd=tmp_path, capture_output=True,
                          text=True, check=False, env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())


def test_files_hold_definitions_and_nothing_that_acts():
    allowed = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Try)
    for file, tree in sources().items():
        for node in tree.body:
            guarded = isinstance(node, ast.If) and ast.unparse(node.test) in (
                "__name__ == '__main__'", "TYPE_CHECKING", "sys.version_info < (3, 10)")
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            assert guarded or docstring or isinstance(node, allowed), f"{file}.py:{node.lineno}"


def test_train_has_at_most_38_import_statements():
    assert sum(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(sources()["train"])) <= 38


def test_each_folder_says_what_lies_there():
    folders = {file.rpartition("/")[0] for file in sources() if "/" in file}
    for folder in folders:
        words = ast.get_docstring(sources()[f"{folder}/__init__"]) or ""
        assert len(words.splitlines()) <= 26, folder
        names = {file.rpartition("/")[2] for file in sources() if room_of(file) == room_of(f"{folder}/")} - {"__init__"}
        assert names <= {*re.findall(r"\w+", words)}, folder


# ---------------------------------------------------------------- what is nowhere


def test_nothing_unpickles_evaluates_or_starts_a_shell():
    forbidden = {"pickle", "yaml", "marshal", "shelve", "dill", "socket", "urllib", "requests"}
    for file, tree in sources().items():
        assert not {name.split(".")[0] for name in imported_names(tree, when_running=False)} & forbidden, file
    for place, node in nodes(ast.Call):
        assert isinstance(node, ast.Call)
        called = ast.unparse(node.func)
        may_load = place.startswith("gpt/checkpoint/nanogpt.py") and "weights_only=True" in ast.unparse(node)
        assert called not in ("eval", "exec", "torch.save", "os.system"), place
        assert called != "torch.load" or may_load, place
        assert not called.endswith((".extractall", "allow_pickle")), place
        assert not {keyword.arg for keyword in node.keywords} & {"shell", "allow_pickle"}, place


def test_sources_are_ascii_without_todos():
    kinds = ("*.py", "gpt/**/*.py", "tests/**/*.py", "**/*.sh", "*.toml")
    for path in [path for kind in kinds for path in ROOT.glob(kind)]:
        if not path.relative_to(ROOT).parts[0].startswith("."):
            content = path.read_text(encoding="utf-8")
            assert content.isascii(), path
            assert "TO" + "DO" not in content, path


def test_no_module_sets_a_global_of_another():
    for file, tree in sources().items():
        modules = {alias.asname or alias.name.split(".")[-1] for node in ast.walk(tree)
                   if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
                   if {alias.name, f"{getattr(node, 'module', '')}.{alias.name}"}
                   & {name.replace("/", ".") for name in sources()}}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                assert ast.unparse(node.value) not in modules, f"{file}.py:{node.lineno}"


def test_no_function_is_longer_than_a_screen():
    for place, node in nodes(ast.FunctionDef):
        assert isinstance(node, ast.FunctionDef)
        assert node.end_lineno
        lines = node.end_lineno - node.lineno + 1
        assert lines <= LONGEST_FUNCTION or node.name == "read_flags", f"{place} {node.name} has {lines} lines"


def test_each_public_name_is_defined_in_one_file():
    names = Counter(node.name for tree in sources().values() for node in tree.body
                    if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"))
    assert {name for name, number in names.items() if number > 1} <= COMMAND_NAMES | {
        name for name, _ in inspect.getmembers(Architecture, inspect.isfunction)}


# ---------------------------------------------------------------- flags and packages


def declared_flags(tree: ast.Module) -> list[str]:
    """The names of the flags that a command declares."""
    return [str(node.args[0].value).lstrip("-") for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            and node.func.attr == "add_argument" and isinstance(node.args[0], ast.Constant)]


def used_flags(tree: ast.Module) -> tuple[set[str], set[str]]:
    """The fields of every `args` that a file reads, and those that it sets or deletes."""
    read, assigned = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1].lstrip("_") == "args":
            (read if isinstance(node.ctx, ast.Load) else assigned).add(node.attr)
    return read, assigned


def file_of(command: str) -> str:
    """The file of a command by its name."""
    return "gpt/benchmarks/bench" if command == "bench" else command


def rooms_of(command: str) -> set[str]:
    """The files that a command imports, directly or through others, itself included."""
    found, new = set(), {file_of(command)}
    while new:
        found |= new
        new = set().union(*(import_graph()[file] for file in new)) - found
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_each_flag_is_declared_once_and_read(command):
    declared = declared_flags(sources()[file_of(command)])
    assert len(declared) == len(set(declared))
    read = {node.attr for file in rooms_of(command) for node in ast.walk(sources()[file])
            if isinstance(node, ast.Attribute)}
    assert set(declared) - read <= {"use_lr_scheduler"}  # a shorthand


def test_flags_are_never_assigned_and_none_is_read_that_is_not_declared():
    of_all = {*declared_flags(sources()["gpt/common/flags"]), "origin"}  # args.origin is where the flags come from
    declared = of_all.union(*(declared_flags(sources()[file_of(command)]) for command in COMMANDS))
    for file, tree in sources().items():
        read, assigned = used_flags(tree)
        assert not assigned, file
        assert read <= (of_all | set(declared_flags(tree)) if file in map(file_of, COMMANDS) else declared), file
