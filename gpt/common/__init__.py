"""Shared by every command; imports the standard library alone, and tqdm for a bar, so that --help appears at once.

words       durations, sizes and counts that are easy to read, and text that is safe to print
errors      errors a user can fix, exit codes, and the packages that must be there
ending      how every command ends, and a wait that a signal may end
flags       the parser: kinds of values, groups, all problems of a command line reported together
config      flags in TOML files, and how flags of several sources merge
names       the names of files that several folders write or read
files       hashes, writes that survive a power cut, reads that cannot hang
outputs     files of flags such as --json, checked before any work
progress    a bar, or whole lines and a heartbeat, and log.txt
terminal    the terminal's width, notebooks
signals     the first Ctrl-C is recorded, the second one ends the process at once
children    child processes
ranks       this process's rank under torchrun
"""
