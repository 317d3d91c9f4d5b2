"""What the program must know about a network besides the network itself, one file for each architecture.

table   the functions that every architecture offers, and the table by config.json's model_type: begin here
gpt2    GPT-2 (its network is model.py): config.json, tensors on disk, bytes of a block, decoding, GGUF
qwen3   Qwen3, and llama   Llama: the same for these two, whose network is rotary.py
shared  what those two have in common; rotary_decoding: their blocks for decoding
decoding  what decoding asks of an architecture
fields  checks of values that somebody else's file holds
A new architecture is a network, one file here, and one entry in the table.
"""
