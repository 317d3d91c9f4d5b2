"""What the program must know about a network besides the network itself, one file for each architecture.

architecture  the functions that every architecture offers: begin here
table         the architectures by config.json's model_type
gpt2          GPT-2 (its network is model.py): config.json, tensors on disk, bytes of a block, decoding, GGUF
llama         Llama, and Qwen3 by its differences, whose network is rotary.py
fields        checks of values that somebody else's file holds
A new architecture is a network, one file here, one entry in the table, and its name at --arch in train.py.
"""
