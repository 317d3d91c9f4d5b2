"""What bench.py runs; no user's run imports it.

ladder     the rungs, their runs and figures, and how they are compared; report: the table, the picture, the JSON
processes  starting a child and waiting for it; answers: what children answer with. None of these four imports torch
naive      parts of train.py as first written; peers: other projects' models, trained on our batches
parts      the machine's matmul speed, the loader and saving, timed alone; synthetic: a corpus made up for timing
generation_peers  other samplers and ours; a script of its own, run by hand
"""
