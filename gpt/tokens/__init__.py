"""Token files and the tokenizer that they were made with. Read in this order:

layouts    how each layout of token files, ours and other programs', is recognised and read
files      which files a folder or a pattern means, and which of them are for validation
stream     several files as one stream of tokens; the check that reads every token once
tokenizer  opening a tokenizer safely; the end of a text, the size of a vocabulary
metadata   what a metadata.json records, checked field by field
ngrams     how well a text predicts itself, without a network
corpus     all of it together: what train.py trains on
"""
