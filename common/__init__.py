"""What every command shares, with the standard library alone, so that --help and a wrong flag answer at once.

words      text that is safe and easy to read: durations, sizes, counts
errors     what a user can cure, exit codes, missing packages, the end of every command
flags      the parser: kinds of values, groups, all problems of a command line together
signals    the first Ctrl-C is remembered, the second leaves; progress shows a bar or whole lines
files      hashes, and writes that survive a power cut
"""
