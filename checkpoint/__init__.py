"""A checkpoint on disk: a Hugging Face folder plus what resuming needs.

contents     what the folder holds: every file and where its content comes from
save         writing it: after a crash the folder is there whole, or not at all
verify       is a folder whole, and is its training state plausible; find: which folder is meant
stored       the tensors of a folder's weights, in one file or several
huggingface  config and weights of a folder; load: what a run starts from, weights alone or all of its state
folder       the output folder: its lock, and which checkpoints are deleted
"""
