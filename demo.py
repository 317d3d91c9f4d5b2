"""Text to a model that talks, on any machine with Python: Linux, macOS, Windows.

    python demo.py

Installs what is needed in .venv, unless it runs in a virtual environment, then runs the three commands below. The text
is Python's own standard library; nothing else is downloaded.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent

THREE_COMMANDS = """
python pretokenize.py --demo --output_dir demo/data --vocab_size 2048 --val_fraction 0.03 --overwrite
python train.py --data_dir demo/data --output_dir demo/out --overwrite --model_size tiny --seq_length 128 \
    --batch_size 8 --max_steps 1300 --learning_rate 3e-3 --eval_batches 30
python generate.py --ckpt demo/out --prompt "def read_" --max_new_tokens 200
"""


def main() -> int:
    """Everything in order; returns the exit code of the first command that fails."""
    if sys.version_info < (3, 10):
        print(f"error: Python {sys.version.split()[0]} is too old. Start this with Python 3.10 to 3.14, such as: "
              "python3.13 demo.py")
        return 5
    try:
        python = python_with_packages()
        for line in THREE_COMMANDS.strip().splitlines():
            start([python, *shlex.split(line)[1:]])
    except subprocess.CalledProcessError as error:
        return error.returncode
    except KeyboardInterrupt:  # the command that was running has said what it did
        return 130
    return 0


def python_with_packages() -> str:
    """The interpreter of the active virtual environment, or of .venv, with the packages installed."""
    python = sys.executable
    if sys.prefix == sys.base_prefix:
        folder = HERE / ".venv"
        python = str(interpreter_in(folder))
        if not interpreter_in(folder).exists():
            start([sys.executable, "-m", "venv", str(folder)])
    if succeeds([python, "-c", "import pip"]):  # an environment of uv has none, and the packages already
        # An installed torch is kept; where there is none, pip takes the release that the tests ran on last.
        has_torch = succeeds([python, "-m", "pip", "show", "-q", "torch"])
        constraint = [] if has_torch else ["-c", "constraints.txt"]
        start([python, "-m", "pip", "install", "-q", "-r", "requirements.txt", *constraint])
    return python


def interpreter_in(folder: Path, system: str = os.name) -> Path:
    """Where a virtual environment has its Python."""
    return folder / ("Scripts/python.exe" if system == "nt" else "bin/python")


def start(words: Sequence[str]) -> None:
    """Runs a command in this folder. Raises CalledProcessError if it fails."""
    subprocess.run(words, cwd=HERE, check=True)


def succeeds(words: Sequence[str]) -> bool:
    """True if the command ends with 0; it prints nothing."""
    return subprocess.run(words, cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
