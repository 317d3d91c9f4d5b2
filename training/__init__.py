"""What train.py is made of; the story, main and the loop, is train.py itself.

Before the first step, in this order: contradictions (of flags, before torch is imported), recipe (every default with
its reason; schedules, optimizers), memory, micro_batch and trial (what fits, predicted and tried),
checkpointing.plan_saving, plan (all of it in words), starting (weights, a checkpoint), pace (how long a step takes).
While it trains: recovery (steps that fail), validation, checkpointing, monitor (log line, advice; curve, trackers). In
place of a run: check, memorizing (--overfit). state holds what these share; parts is what a benchmark may replace.
"""
