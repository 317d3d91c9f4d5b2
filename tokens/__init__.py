"""Token files and the tokenizer they were made with.

tokenizer  opening one safely; its vocabulary
layouts    the layouts of token files, ours and others': recognise, read, write
corpus     a folder of token files with its metadata, checked, as train.py takes it
"""
