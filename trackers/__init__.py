"""Trackers: what is recorded of a run, step by step, goes to TensorBoard, Weights & Biases, trackio or MLflow too.

A tracker's library runs in a child process of its own, so that its imports, its network and its errors are nothing to
the training. feed is the trainer's end: a queue, a thread, a pipe. child is the other end, which gives each record to
one recorder. start is what a recorder is told when a run begins. Each library has one file: tensorboard_events,
wandb_run, trackio_run, mlflow_run.
"""
