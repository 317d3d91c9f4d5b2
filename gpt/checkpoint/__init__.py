"""A checkpoint on disk: a Hugging Face folder with the training state beside it.

contents  the files of a checkpoint and their content: begin here
save      writes a checkpoint, which a crash leaves whole or not at all
verify    compares a folder with its manifest; find: finds the checkpoint that a path means
stored    the training state in trainer_state.json, parsed once; state: its counters
load      loads weights alone, or weights and training state
tensors   writes and reads safetensors files
folder    the output folder: its lock, and the checkpoints that are pruned
mirror    copies checkpoints to another disk
recorded  the checkpoints of a folder and the flags of its run, before torch is imported
nanogpt   converts checkpoints of nanoGPT
"""
