"""The decisions before a run, and the lines that describe them.

Before torch is imported:
relations       a table: how flags relate to each other
early           the rules that no table holds; checks packages before torch is imported; makes tokens of texts

The decisions, in their order:
inputs          tokens, shape and checkpoint, all checked
sizing          the size by text and time; the network that follows
first_model     trains another model before, in the minutes that a small text leaves
kernels         on an NVIDIA GPU: attention's kernel by timing, the output layer's chunk by memory
recipe          every default with its reason, from defaults and schedules
memory          the formula, the micro-batch, a copy for saves
deadline        the length that fits into --max_minutes
setup           makes all of them
decided         Setup, which holds them, and what a run records of them

In words:
plan            the lines before the first step
forecast        the loss at the end, from the evidence of a text
check           --check
"""
