"""From a text to a model that talks, on any machine with Python: Linux, macOS, Windows.

    python gpt/benchmarks/demo.py

Installs the packages, in .venv unless a virtual environment is active, and runs the three commands below.
They take two minutes on any machine, because the training has a budget of time. They write to demo/
beside train.py, or in the current folder if that one is read-only. The text is Python's own standard
library: nothing else is downloaded.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
HAS_PIP = "import pip"
HAS_PACKAGES = "from gpt.common.errors import PACKAGES, require; require(*PACKAGES)"

THREE_COMMANDS = """
python pretokenize.py --demo --output_dir demo/data --vocab_size 2048 --val_fraction 0.03 --overwrite
python train.py --data_dir demo/data --output_dir demo/out --overwrite --no-use_gpu --max_minutes 1.75
python generate.py --ckpt demo/out --prompt "def read_" --max_new_tokens 200
"""


def main() -> int:
    """Installs the packages and runs the commands; returns the exit code of the first one that fails.

    Returns 5 if this Python is too old, and 130 after Ctrl-C.
    """
    if sys.version_info < (3, 10):
        print(f"error: Python {sys.version.split()[0]} is too old. Start this with Python 3.10 to 3.14, "
              "such as: python3.13 gpt/benchmarks/demo.py")
        return 5
    try:
        python = python_with_packages()
        for line in THREE_COMMANDS.strip().splitlines():
            script, *flags = shlex.split(line)[1:]
            run_command([python, str(HERE / script), *flags])
    except subprocess.CalledProcessError as error:
        return error.returncode
    except KeyboardInterrupt:  # the command has printed its own message
        return 130
    return 0


def python_with_packages() -> str:
    """The path of a Python with the packages: this one, or the one in .venv; installs them if necessary.

    Raises CalledProcessError if the installation fails.
    """
    python = sys.executable
    if succeeds([python, "-c", HAS_PACKAGES]):
        return python
    if sys.prefix == sys.base_prefix:
        folder = work_folder() / ".venv"
        python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
        # An environment of uv has the packages and no pip; one whose making was interrupted has neither.
        is_whole = os.path.exists(python) and any(succeeds([python, "-c", code]) for code in (HAS_PIP, HAS_PACKAGES))
        if not is_whole:
            run_command([sys.executable, "-m", "venv", "--clear", str(folder)])
    if succeeds([python, "-c", HAS_PIP]):
        # An installed torch stays. Otherwise pip installs the release of the last tests.
        has_torch = succeeds([python, "-m", "pip", "show", "-q", "torch"])
        constraint = [] if has_torch else ["-c", str(HERE / "constraints.txt")]
        run_command([python, "-m", "pip", "install", "-q", "-r", str(HERE / "requirements.txt"), *constraint])
    return python


def work_folder() -> Path:
    """The folder of .venv and demo/: the program's own, or the current one if that is read-only."""
    return HERE if os.access(HERE, os.W_OK) else Path.cwd()


def run_command(words: Sequence[str]) -> None:
    """Runs a command in the work folder, to its end even after Ctrl-C. Raises CalledProcessError if it fails."""
    child = subprocess.Popen(words, cwd=work_folder())
    try:
        child.wait()
    finally:  # Ctrl-C goes to the child too, which may save
        code = child.wait()
    if code:
        raise subprocess.CalledProcessError(code, words)


def succeeds(words: Sequence[str]) -> bool:
    """Runs a command in the program's folder, without its output; returns True if its exit code is 0."""
    return subprocess.run(words, cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
