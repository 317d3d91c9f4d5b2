"""What bench.py runs; no user's run imports it.

ladder     the rungs, how each is run and compared, and the table; quality: recipes beside each other
peers      one part of ours beside another program's. None of these three imports torch
parts      what children do: look at machine and tokens, time a part; naive: parts of train.py as first written
"""
