"""What several tests share as plain functions; fixtures are in tests/conftest.py.

commands.py starts a command as a user does; machines.py has a Machine that is a CPU everywhere; decoding.py has decoders
of tiny models. Import by full name:
`from tests.helpers.commands import ROOT, run`.
"""
