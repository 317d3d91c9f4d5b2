"""The commands as a user starts them: a process of its own for each."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMANDS = ("pretokenize", "train", "generate", "evaluate", "export", "plot", "bench")


def run(command: str, *argv: str | Path, cwd: Path | None = None, stdin: str | None = None, timeout: float = 300,
        **env: str) -> subprocess.CompletedProcess[str]:
    """Starts "train" or another command by its name with these words and waits for its end, whatever its exit code.

    cwd is the folder it runs in, stdin the text it reads (nothing when None), env the variables it gets in addition.
    """
    if command == "bench":
        words, env = ["-m", "gpt.benchmarks.bench"], {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", **env}
    else:
        words = [str(ROOT / f"{command}.py")]
    return subprocess.run([sys.executable, *words, *map(str, argv)], cwd=cwd, input=stdin or "", capture_output=True,
                          text=True, timeout=timeout, check=False, env={**os.environ, **env})


def run_python(code: str, *argv: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a piece of Python in a process of its own, in which the program's modules can be imported."""
    return subprocess.run([sys.executable, "-c", code, *map(str, argv)], cwd=cwd, capture_output=True, text=True,
                          check=False, env={**os.environ, "PYTHONPATH": str(ROOT), **env})
