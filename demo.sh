#!/usr/bin/env bash
# Text to a model that talks, on any machine with Python: gpt/benchmarks/demo.py installs what is needed in .venv unless a virtual
# environment is active, then runs three commands. The text is Python's own standard library; nothing else is downloaded.
set -euo pipefail
exec python3 "$(dirname "$0")/gpt/benchmarks/demo.py"
