"""What train.py's step is made of; the story, main, the step and the loop, is train.py itself.

Model, optimizer and counters (state), optimizers, several processes (parallel, decisions), steps that fail (recovery),
checkpointing, validation, what a run starts from (starting, cooldown), --overfit (overfit_test). parts is what a
benchmark may replace.
"""
