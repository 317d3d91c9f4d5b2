"""What bench.py runs; no user's run imports it.

ladder     the rungs, how each is run and compared, and the table; quality: recipes beside each other
naive      parts of train.py as first written, for the lowest rungs
prepare    the machine, and the tokens; peers: one part of ours beside another program's
"""
