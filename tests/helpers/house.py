"""The program's own sources as syntax trees: its files, what each imports, and every node of them."""

import ast
from collections.abc import Iterator
from functools import cache

from tests.helpers.commands import ROOT


@cache
def sources() -> dict[str, ast.Module]:
    """Every file of the program, parsed, by its path without .py: "train", "gpt/planning/recipe"."""
    paths = [*ROOT.glob("*.py"), *ROOT.glob("gpt/**/*.py")]
    names = {path.relative_to(ROOT).with_suffix("").as_posix(): path for path in paths}
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in sorted(names.items())}


def room_of(name: str) -> str:
    """The room of gpt/ that a file or module lies in, or the top-level file itself."""
    return name.replace(".", "/").removeprefix("gpt/").split("/")[0]


def imported_names(tree: ast.AST, when_running: bool = True) -> set[str]:
    """The full names of all modules a file imports, functions included; "from a import b" gives a and a.b.

    when_running leaves out what stands under `if TYPE_CHECKING`, which is never executed.
    """
    names = set()
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if when_running and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            names |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
        nodes.extend(ast.iter_child_nodes(node))
    return names


@cache
def import_graph() -> dict[str, set[str]]:
    """The files of the program that each file imports; a folder's __init__ counts when it holds more than words."""
    files = {name for name, tree in sources().items() if not name.endswith("/__init__") or len(tree.body) > 1}
    graph = {}
    for name in files:
        asked = {module.replace(".", "/") for module in imported_names(sources()[name])}
        graph[name] = (asked | {f"{module}/__init__" for module in asked}) & files - {name}
    return graph


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Every node of one of these kinds in the whole program, and where it stands: "gpt/planning/recipe.py:12"."""
    for name, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                yield f"{name}.py:{getattr(node, 'lineno', 0)}", node
