"""Kernels: unfinished files in the compiler's cache are deleted; whole files, and files being written, stay."""

import shutil
import sys
from pathlib import Path

import pytest

from gpt.machine.device import is_whole_library, remove_unfinished_kernels
from tests.helpers.commands import run
from tests.helpers.training import TINY

fcntl = pytest.importorskip("fcntl")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libraries in ELF")


@pytest.fixture
def whole() -> bytes:
    """A library of the system: the C library, as its linker wrote it; wheels hold some that were patched afterwards."""
    maps = Path("/proc/self/maps").read_text().split()
    return next(path for path in map(Path, maps) if path.name.startswith("libc.") and path.is_file()).read_bytes()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The compiler's cache, with its locks."""
    (tmp_path / "locks").mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def write(name: str, content: bytes) -> Path:
        path = tmp_path / name[:2] / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        (tmp_path / "locks" / f"{name.split('.')[0]}.lock").touch()
        return path

    return write


def test_a_library_is_whole_up_to_its_last_byte_alone(whole, tmp_path):
    path = tmp_path / "a.so"
    for content, is_whole in ((whole, True), (whole[:-1], False), (whole[:len(whole) // 2], False), (whole[:64], False),
                              (whole[:63], False), (b"", False), (bytes(len(whole)), False)):
        path.write_bytes(content)
        assert is_whole_library(path) == is_whole


def test_unfinished_libraries_are_deleted_and_others_stay(whole, cache):
    stays = [cache("aa1.main.so", whole), cache("aa1.main.cpp", b""), cache("ab2.so", whole)]
    unfinished = [cache("ac3.main.so", b""), cache("ad4.so", whole[:-4096])]
    being_written, said = cache("ae5.main.so", b""), []
    with (being_written.parents[1] / "locks/ae5.lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_unfinished_kernels(said.append)
    assert [str(path) in line for path, line in zip(unfinished, said, strict=True)] == [True, True]
    assert [path.exists() for path in (*stays, being_written, *unfinished)] == [True] * 4 + [False] * 2
    remove_unfinished_kernels(said.append)  # the process of the last one has ended
    assert len(said) == 3


def test_without_a_cache_nothing_is_deleted(monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    remove_unfinished_kernels(pytest.fail)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_run_compiles_again_what_a_killed_compiler_left_unfinished(corpus, tmp_path, monkeypatch):
    """An empty kernel would make the compile fail, and a truncated one would kill the process."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it in this process
    words = ["--data_dir", corpus, "--output_dir", tmp_path / "out", "--overwrite", "--no-use_gpu", *TINY, "--compile",
             "--max_steps", "2", "--sample_interval", "0"]
    assert run("train", *words, XDG_CACHE_HOME=str(tmp_path)).returncode == 0
    first, second, *_ = sorted((tmp_path / "text-to-gpt2/compiled").glob("*/*.main.so"))
    first.write_bytes(b"")
    with second.open("rb+") as file:
        file.truncate(4096)
    done = run("train", *words, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0
    assert all(f"deleted {path}, which a killed compiler" in done.stdout for path in (first, second))
    assert "compiled    in" in done.stdout
    assert is_whole_library(first)
    assert is_whole_library(second)
