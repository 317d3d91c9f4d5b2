"""Token files and their tokenizer. Read in this order:

layouts    recognises and reads each layout of token files, ours and other programs'.
files      finds the token files of a folder or a pattern, for training and for validation.
stream     joins several files into one stream of tokens, and checks every token once.
masks      says which tokens of conversations count in the loss.
watch      notices when memory-mapped files change.
tokenizer  opens a tokenizer safely, and knows its end of text and vocabulary size.
faithful   checks that a tokenizer decodes every text to itself.
chat       conversations: turns, their one template, and which tokens are answers.
metadata   reads metadata.json and checks it field by field.
corpus     opens all of these together: everything that train.py trains on.
mixture    mixes several corpora by the weights that data_dirs reads from --data_dir.
ngrams     predicts a text by its n-grams, without a network.
llama_cpp  converts a tokenizer to the fields of a GGUF file.
"""
