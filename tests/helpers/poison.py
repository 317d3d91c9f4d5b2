"""A folder in which files have the names of modules; each leaves a mark when a process imports it."""

from collections.abc import Iterable
from pathlib import Path

# Of a nanoGPT folder, of ours and of packages.
OTHERS = ("model", "cli", "torch", "numpy", "tokenizers", "tqdm", "safetensors", "data", "gpt",
          "common", "sitecustomize")
# What Python itself imports in a child process, multiprocessing and torch's compiler from Python.
PYTHONS = ("signal", "struct", "ctypes", "pickle", "socket", "selectors", "tempfile", "subprocess", "random")


def poison(folder: Path, names: Iterable[str] = (*OTHERS, *PYTHONS)) -> Path:
    """Fills the folder with such files."""
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(folder / (name + '.mark'))!r}, 'w').close()\n")
    return folder


def marks(folder: Path) -> list[str]:
    """The names of those that were imported."""
    return sorted(path.stem for path in folder.glob("*.mark"))
