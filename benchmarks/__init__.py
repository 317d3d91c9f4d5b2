"""What bench.py runs; no user's run imports it.

ladder     the rungs, how each is run and compared, and the table; quality: recipes beside each other
prepare    what the machine is, and tokens; naive: parts of train.py as first written
peers      our step, decoding, tokenizing, batches and saving beside another's
"""
