"""How well a model predicts; evaluate.py is the command.

A folder of its own: it stands above pretokenization/, whose documents it reads, and training/ does without it.

scoring      windows of ids, and the log-probabilities that a model gives them: begin here
texts        perplexity and bits per byte of files of text
token_files  the same of files of tokens, in any layout
tasks        HellaSwag and LAMBADA; a new benchmark of this kind is one function and one entry in TASKS
"""
