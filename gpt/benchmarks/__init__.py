"""What bench.py runs; no user's run imports it.

ladder     the rungs, how each is run and compared, and the table; quality: recipes beside each other
naive      parts of train.py as first written, for the lowest rungs; batches that profile
kernels    the products of a step, alone; peers: a step of nanoGPT's beside ours
prepare    the machine, and the tokens
"""
