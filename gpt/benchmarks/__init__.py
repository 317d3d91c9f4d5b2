"""The benchmarks of bench.py, and the demo; no training run imports them.

ladder     the rungs, their runs and their table
naive      naive parts of train.py for the lowest rungs
peers      nanoGPT's step beside ours
forecast   makes the table that the forecast of a run is fitted to
demo       the demo of demo.sh, in two minutes
"""
