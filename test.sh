#!/usr/bin/env bash
# Installs what the tests need, in .venv unless a virtual environment is active, and runs them.
set -euo pipefail
cd "$(dirname "$0")"
if [ -z "${VIRTUAL_ENV:-}" ]; then
    [ -d .venv ] || python3 -m venv .venv
    . .venv/bin/activate
fi
pip install -q -r requirements.txt pytest transformers gigatoken pyarrow zstandard gguf matplotlib accelerate tensorboard
python -m pytest "$@"
