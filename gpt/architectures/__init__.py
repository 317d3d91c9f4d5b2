"""The architectures: files of Hugging Face, memory, decoding and GGUF for each network, one file for each.

architecture  the functions that every architecture offers: begin here
table         the architectures by config.json's model_type
gpt2          GPT-2, whose network is model.py
llama         Llama, and Qwen3 by its differences; their network is rotary.py
fields        checks of the values in a config.json

A new architecture is a network, one file here, one entry in the table, and its name at --arch in train.py.
"""
