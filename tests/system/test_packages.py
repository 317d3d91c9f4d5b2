"""The lists of packages agree: what is required, what the commands check, what uv reads and has locked."""

import ast
import re
import sys

import pytest

from common.errors import PACKAGES
from tests.helpers.commands import ROOT
from tests.helpers.house import sources
from trackers.names import OLDEST

# Packages of the program by the name under which they are imported, where that is another.
IMPORTED_AS = {"nvidia-ml-py": "pynvml", "charset-normalizer": "charset_normalizer"}
REQUIRED = {*PACKAGES, "triton", "filelock", "transformers"}  # the second comes with torch, the third with the hub's
# library, and with the last bench.py compares.


def lines_of(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def listed(name: str) -> list[str]:
    """The strings of a list in pyproject.toml; Python 3.10 has no reader for it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return ast.literal_eval(re.search(rf"^{name} = (\[.*?\n?\])", re.sub(r"  # .*", "", text), re.M | re.S)[1])  # type: ignore[index]


def extras() -> dict[str, str]:
    """The oldest release of each optional package that uv is told."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    return dict(re.findall(r'= \["([\w-]+)>=([\d.]+)"\]', section))


def locked() -> dict[str, set[str]]:
    """The versions of each package in uv.lock; some have one for each release of Python."""
    found: dict[str, set[str]] = {}
    text = (ROOT / "uv.lock").read_text(encoding="utf-8")
    for name, version in re.findall(r'^name = "([^"]+)"\nversion = "([^"]+)"', text, re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.split("+")[0])))


def test_the_requirements_are_what_the_commands_check_and_what_uv_reads():
    required = lines_of("requirements.txt")
    assert required == [f"{name}>={versions.oldest}" for name, versions in PACKAGES.items()]
    assert listed("dependencies") == required
    assert listed("constraint-dependencies") == lines_of("constraints.txt")


def test_the_lock_has_the_torch_that_was_tested_and_nothing_older_than_required():
    versions = locked()
    assert [f"torch=={version}" for version in versions["torch"]] == lines_of("constraints.txt")
    floors = {**{name: found.oldest for name, found in PACKAGES.items()}, **extras()}
    for name, oldest in floors.items():
        assert all(number(version) >= number(oldest) for version in versions[name.replace("_", "-")]), name
    text = (ROOT / "uv.lock").read_text(encoding="utf-8")
    for name, oldest in extras().items():
        assert f'name = "{name.replace("_", "-")}", marker' in text
        assert f'specifier = ">={oldest}"' in text


def test_the_page_and_the_check_of_the_trackers_name_the_same_oldest_releases():
    page = (ROOT / "docs/platforms.md").read_text(encoding="utf-8")
    table = page.split("| package | oldest | for |\n| --- | --- | --- |\n")[1].split("\n\n")[0]
    rows = {name: oldest for _, name, oldest, *_ in (re.split(r" *\| *", line) for line in table.splitlines())}
    assert rows == {**OLDEST, **extras()}
    assert OLDEST["tensorboard"] == extras()["tensorboard"]


def test_each_optional_package_that_is_imported_has_an_oldest_release():
    ours = {name.split("/")[0] for name in sources()}
    imports = [node for tree in sources().values() for node in ast.walk(tree)
               if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {node.names[0].name if isinstance(node, ast.Import) else node.module or "" for node in imports}
    roots = {name.split(".")[0] for name in imported} - ours - set(sys.stdlib_module_names) - REQUIRED
    assert roots <= {IMPORTED_AS.get(name, name) for name in extras()}


@pytest.mark.parametrize("line", lines_of("tests/requirements.txt"))
def test_what_the_tests_need_is_named_once(line):
    assert lines_of("tests/requirements.txt").count(line) == 1
