"""The rooms of which the commands are made; a name says when a room is used. README.md has the map.

planning, training, watching      before, during and beside the steps of a run
optimizers                        what updates the weights
checkpoint, architectures, ops    what a model is made of, and how it lies on disk
pretokenization, tokens           from text to token files
generation, evaluation            from a checkpoint to text, and to a figure
machine, hub, common              what every command stands on
benchmarks                        what no run of a user imports
"""

import sys

# Every command imports this file first, and an older Python can read it.
if sys.version_info < (3, 10):
    sys.stderr.write("error: this is Python " + ".".join(map(str, sys.version_info[:2])) + ", and the program needs "
                     "3.10 or newer. Install one, such as with uv (docs.astral.sh/uv), and type: uv run train.py\n")
    sys.exit(5)
