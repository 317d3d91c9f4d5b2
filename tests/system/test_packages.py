"""The lists of packages agree: what is required, what the commands check, what uv reads and has locked; the images."""

import ast
import re
import subprocess
import sys

from gpt.common.errors import PACKAGES
from tests.helpers.commands import ROOT
from tests.helpers.house import sources

REQUIRED = {*PACKAGES, "triton", "filelock", "transformers"}  # the second comes with torch, the third with the hub's
# library, and with the last bench.py compares.
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
LOCK = (ROOT / "uv.lock").read_text(encoding="utf-8")


def lines_of(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def listed(name: str) -> list[str]:
    """The strings of a list in pyproject.toml; Python 3.10 has no reader for it."""
    found = re.search(rf"^{name} = (\[.*?\n?\])", re.sub(r"  # .*", "", PYPROJECT), re.MULTILINE | re.DOTALL)
    return ast.literal_eval(found[1])  # type: ignore[index]


def extras() -> dict[str, str]:
    """The oldest release of each optional package that uv is told."""
    section = PYPROJECT.split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    return dict(re.findall(r'= \["([\w-]+)>=([\d.]+)"\]', section))


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.split("+")[0])))


def test_the_requirements_are_what_the_commands_check_and_what_uv_reads():
    required = lines_of("requirements.txt")
    assert required == [f"{name}>={oldest}" for name, oldest in PACKAGES.items()]
    assert listed("dependencies") == required
    assert listed("constraint-dependencies") == lines_of("constraints.txt")


def test_the_lock_has_the_torch_that_was_tested_and_nothing_older_than_required():
    locked = re.findall(r'^name = "([^"]+)"\nversion = "([^"]+)"', LOCK, re.MULTILINE)
    assert [f"torch=={version}" for name, version in locked if name == "torch"] == [
        line.partition(" ;")[0] for line in lines_of("constraints.txt")]
    for name, oldest in {**PACKAGES, **extras()}.items():
        versions = [version for held, version in locked if held == name.replace("_", "-")]
        assert versions, name
        assert all(number(version) >= number(oldest) for version in versions), name
    assert all(f'specifier = ">={oldest}"' in LOCK for oldest in extras().values())


def test_each_optional_package_that_is_imported_has_an_oldest_release():
    ours = {name.split("/")[0] for name in sources()}
    imports = [node for tree in sources().values() for node in ast.walk(tree)
               if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {node.names[0].name if isinstance(node, ast.Import) else node.module or "" for node in imports}
    roots = {name.split(".")[0] for name in imported} - ours - set(sys.stdlib_module_names) - REQUIRED
    assert roots <= set(extras())


# ---------------------------------------------------------------- images


def test_all_of_the_program_goes_into_an_image_and_nothing_else():
    """A folder that .dockerignore does not name again stays out: the first line leaves out everything."""
    lines = lines_of("docs/docker/Dockerfile.dockerignore")
    assert lines == lines_of("docs/docker/Dockerfile.cpu.dockerignore")
    assert lines[0] == "*"
    named = {line[1:] for line in lines if line.startswith("!")}
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    rooms = {"gpt"}
    assert {name for name in named if (ROOT / name).is_dir()} == rooms
    tops = {path for path in files if "/" not in path}
    assert {"*.py", "requirements.txt", "constraints.txt", "LICENSE"} == named - rooms <= tops | {"*.py"}
    assert {"**/__pycache__", "**/*.pyc"} <= set(lines)


def test_the_two_images_differ_in_pytorchs_build_alone_and_run_as_a_user_who_hears_docker_stop():
    texts = ((ROOT / "docs/docker" / name).read_text(encoding="utf-8") for name in ("Dockerfile", "Dockerfile.cpu"))
    cuda, cpu = ({re.sub(r"\s+", " ", line) for line in re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace(
        "\\\n", " ").splitlines()} for text in texts)
    for line in cuda ^ cpu:
        assert re.match(r"ARG TORCH_INDEX|ARG EXTRAS|RUN pip install .*(torch|requirements\.txt)|ENV XDG", line), line
    assert {"USER 1000", 'VOLUME ["/cache"]'} <= cuda
    assert any(line.startswith("ENTRYPOINT") and "exec python" in line for line in cuda)
