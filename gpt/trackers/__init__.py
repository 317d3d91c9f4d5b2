"""Trackers: what metrics.jsonl records of a run goes to TensorBoard or Weights & Biases too.

A tracker's library runs in a child process of its own, which reads metrics.jsonl as it grows: its imports, its network
and its errors cannot hurt the training, and it can be as slow as it likes. tracker has the trainer's end, follow the
child with the calls of each library.
"""
