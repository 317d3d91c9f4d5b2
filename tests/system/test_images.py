"""The images: all of the program goes into them and nothing else, and the two differ in PyTorch's build alone."""

import fnmatch
import re
import subprocess

import pytest

from tests.helpers.commands import ROOT
from tests.helpers.house import sources

IMAGES = ("Dockerfile", "Dockerfile.cpu")


def instructions(name: str) -> list[str]:
    """The instructions of a Dockerfile, each in one line, without comments."""
    text = re.sub(r"^#.*\n", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [re.sub(r"\s+", " ", line) for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def goes_in(path: str) -> bool:
    """Whether a path is part of the context, by .dockerignore: the last line that matches it, or a folder above it."""
    is_in = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").removeprefix("**/")
        parts = path.split("/")
        above = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
        if line.startswith("**/"):
            above = parts
        if any(fnmatch.fnmatchcase(name, pattern) and (name.count("/") == pattern.count("/")) for name in above):
            is_in = line.startswith("!")
    return is_in


def test_all_of_the_program_goes_in_and_nothing_else():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    rooms = {file.split("/")[0] for file in sources()}
    for path in done.stdout.splitlines():
        room = path.split("/")[0].removesuffix(".py")
        if room in rooms:  # a page's template is part of its room
            assert goes_in(path), path
        elif not path.endswith(".py"):
            assert goes_in(path) == (path in ("requirements.txt", "constraints.txt", "LICENSE")), path
    for path in (".env", "secrets.json", "id_rsa", "corpus.txt", "data/train.bin", "out/checkpoint-1/model.safetensors",
                 ".git/config", ".venv/bin/python", "common/__pycache__/files.cpython-313.pyc", "tests/test_train.py"):
        assert not goes_in(path), path


def test_the_two_differ_in_pytorchs_build_and_in_what_is_for_a_gpu():
    cuda, cpu = map(instructions, IMAGES)
    differ = [line for line in (*cuda, *cpu) if (line in cuda) != (line in cpu)]
    assert all(re.match(r"(ARG TORCH_INDEX|ARG EXTRAS|RUN pip install .*(torch|requirements\.txt)|ENV XDG)", line)
               for line in differ), differ


@pytest.mark.parametrize("name", IMAGES)
def test_a_run_is_no_root_process_hears_docker_stop_and_keeps_its_cache(name):
    lines = instructions(name)
    assert [line for line in lines if line.startswith("USER")] == ["USER 1000"]
    assert not any(line.startswith(("RUN", "COPY")) for line in lines[lines.index("USER 1000"):])
    assert 'VOLUME ["/cache"]' in lines
    assert any("XDG_CACHE_HOME=/cache" in line for line in lines)
    entry = next(line for line in lines if line.startswith("ENTRYPOINT"))
    assert "exec python" in entry
