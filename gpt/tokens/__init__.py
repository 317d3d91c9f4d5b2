"""Token files and their tokenizer. Read in this order:

layouts    recognises and reads each layout of token files, ours and other programs'.
files      reads the folders of --data_dir, and finds the token files of a folder or a pattern.
stream     joins several files into one stream of tokens, checks each once, and says which count in the loss.
tokenizer  opens a tokenizer safely, and knows its end of text and vocabulary size.
faithful   checks that a tokenizer decodes every text to itself.
chat       conversations: turns, their one template, and which tokens are answers.
metadata   reads metadata.json and checks it field by field.
corpus     opens all of these together: everything that train.py trains on.
mixture    mixes several corpora by the weights of --data_dir.
ngrams     predicts a text by its n-grams, without a network.
llama_cpp  converts a tokenizer to the fields of a GGUF file.
"""
