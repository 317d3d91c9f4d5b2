"""What train.py's step is made of; the story, main, the step and the loop, is train.py itself.

Model, optimizer and counters (state), optimizers (table: one row each), several processes and what they decide
(parallel), steps that fail (recovery), checkpointing, validation, what a run starts from (starting, cooldown),
--overfit (overfit_test). The Parts of state are what a benchmark may replace.
"""
