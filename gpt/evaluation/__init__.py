"""Measures how well a model predicts; evaluate.py is the command.

It has a folder of its own because it reads gpt/pretokenization/'s documents, which gpt/training/ does without.

scoring    perplexity and bits per byte of documents, window by window: begin here
documents  documents from text files, and from token files in any layout
"""
