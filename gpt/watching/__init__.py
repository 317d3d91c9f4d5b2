"""Prints and records a run while it trains; gpt/checkpoint/history.py reads the records back.

output            takes over the output folder before the first step, and records in starts.jsonl how the run ended
monitor           the log line, warnings and the closing block, by the files of the next line
curve, improvement  spikes of the loss, a validation loss that rises; what leads to a better model
recorder          metrics.jsonl and its trackers: starts tracker_process, which calls a tracker's library
"""
