"""Text to token files, in the order that the text takes. Start with pretokenize.py, which calls the stages.

files         holds one input file and its text, unpacked and decoded.
blocks        is the base of all kinds of input: text_files, json_lines, conversations and parquet.
sources       finds the input files and recognises their kind, by its table KINDS; refuses other encodings.
engines       encodes text into ids.
store         holds the output folder while it is filled.
workers       runs tasks in several processes.
block_task    is such a task: it reads a block, and samples or encodes it.
passes        makes the passes over the text, and settles the validation split.
split         decides which documents, or which end of each file, are kept for validation.
report        adds up the findings of the blocks, and warns at the end.
vocabulary    opens or trains the tokenizer.
look          finds what in the text would spoil a model.
commit        gives the token files their final names.
verify        checks a finished folder, and shows its first documents.
"""
