"""How well a model predicts; evaluate.py is the command.

A folder of its own: it stands above gpt/pretokenization/, whose documents it reads, and gpt/training/ does without it.

scoring      the log-probability that a model gives to documents, window by window: begin here
texts        perplexity and bits per byte of files of text
token_files  the same of files of tokens, in any layout
pruning      the smallest weights set to zero
"""
