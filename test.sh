#!/usr/bin/env bash
# Installs what the tests need, in .venv unless a virtual environment is active, and runs them, one process per core.
set -euo pipefail
cd "$(dirname "$0")"
if [ -z "${VIRTUAL_ENV:-}" ]; then
    [ -d .venv ] || python3 -m venv .venv
    . .venv/bin/activate
fi
# An environment of uv has no pip. A bare pip may be that of another Python.
python -c 'import pip' 2> /dev/null || python -m ensurepip > /dev/null
# An installed torch is kept; where there is none, pip takes the release that the tests ran on last.
python -m pip show -q torch 2> /dev/null || export PIP_CONSTRAINT=constraints.txt
python -m pip install -q -r requirements.txt -r tests/requirements.txt
python -m pytest -n auto --maxprocesses 4 --dist worksteal "$@"
