"""Text to token files, in the order the text takes.

sources    files, folders, archives, pipes; blocks: a few megabytes each; documents: what a block holds
vocabulary, encode       a tokenizer is trained; text becomes ids
workers, reader, passes  processes read blocks and answer; the passes put the answers together
store, assemble, shards  token files on their way to the disk, put together, committed
"""
