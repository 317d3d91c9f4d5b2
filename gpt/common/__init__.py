"""What every command shares, with the standard library alone, so that --help and a wrong flag are answered at once.

words      durations, sizes and counts that are easy to read, and text that is safe to print
errors     errors a user can fix, exit codes, the packages required, and how every command ends
flags      the parser: kinds of values, groups, all problems of a command line reported together
signals    the first Ctrl-C is answered and remembered, the second leaves at once
progress   a bar, or whole lines and a heartbeat; terminal: how wide it is, whether it is a notebook
files      hashes, writes that survive a power cut, reads that cannot hang
"""
