"""A checkpoint on disk: a Hugging Face folder plus what resuming needs.

contents     what the folder holds: every file and where its content comes from
save         writing it: after a crash the folder is there whole, or not at all
verify       is a folder whole, and is its training state plausible; find: which folder is meant
tensors      safetensors files written and read; nanogpt: nanoGPT's shape of a folder
load         what a run starts from: weights alone, or all of its state
recorded     the checkpoints of a folder and the flags of its run, before torch is imported
folder       the output folder: its lock, and which checkpoints are deleted
"""
