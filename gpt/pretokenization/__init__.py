"""Text to token files, in the order that the text takes; start with pretokenize.py, which calls the stages.

files > blocks > text_files, json_lines, parquet > sources: one file's text; what all kinds of input share; one file for
    each kind of input; which files are read (the table KINDS is in sources.py)
engines > store > workers > passes > vocabulary: text becomes ids; the output folder with its journal; processes that
    read blocks; the passes over the text; the tokenizer, given or trained
commit, verify: the token files committed; looking inside a finished folder
"""
