#!/usr/bin/env bash
# Text to a model that talks, on any machine with Python: installs what is needed in .venv unless a virtual environment is
# active, then runs the three commands. The text is Python's own standard library; nothing else is downloaded.
set -euo pipefail
cd "$(dirname "$0")"
if [ -z "${VIRTUAL_ENV:-}" ]; then
    [ -d .venv ] || python3 -m venv .venv
    . .venv/bin/activate
fi
# An installed torch is kept; where there is none, pip takes the release that the tests ran on last.
pip show -q torch 2> /dev/null || export PIP_CONSTRAINT=constraints.txt
pip install -q -r requirements.txt
python pretokenize.py --demo --output_dir demo/data --vocab_size 2048 --val_fraction 0.03 --overwrite
python train.py --data_dir demo/data --output_dir demo/out --overwrite --model_size tiny --seq_length 128 --batch_size 8 \
    --max_steps 1300 --learning_rate 3e-3 --eval_batches 30
python generate.py --ckpt demo/out --prompt "def read_" --max_new_tokens 200
