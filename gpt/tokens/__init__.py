"""Token files and their tokenizer. Read in this order:

layouts    recognises and reads each layout of token files, ours and other programs'
files      finds the token files of a folder or a pattern, for training and for validation
stream     several files as one stream of tokens; the check that reads every token once
tokenizer  opens a tokenizer safely; its end of text, its vocabulary size
metadata   reads metadata.json and checks it field by field
corpus     opens all of these together: everything that train.py trains on
mixture    several corpora as one, by the weights that data_dirs reads from --data_dir
"""
