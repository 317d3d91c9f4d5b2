"""A checkpoint on disk: a Hugging Face folder with the training state beside it.

contents  the files of a checkpoint and their content: begin here
save      writes a checkpoint, which a crash leaves whole or not at all
stored    compares a folder with its manifest, and parses its training state
find      finds the checkpoint that a path means
load      loads weights alone, or weights and training state
folder    locks the output folder and prunes its checkpoints
mirror    copies checkpoints to another disk
steps     the checkpoints of a folder, by their steps
recorded  reads the flags of a folder's run, before torch is imported
history   reads its metrics.jsonl
commands  the commands that messages print about a run
nanogpt   converts checkpoints of nanoGPT
"""
