"""What several tests share as plain functions; fixtures are in tests/conftest.py.

commands    starts a command as a user does        forks        commands as forks of one process
machines    a Machine that is a CPU everywhere     decoding     decoders of tiny models
bench       children that are never started        checkpoints  damage to checkpoints
house       the program's own sources, parsed   models       tiny models and their folders
refusals    errors of the user, as expected

Import by full name: `from tests.helpers.commands import ROOT, run`.
"""
