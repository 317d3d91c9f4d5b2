"""What is decided before a run, and what of it is printed.

inputs: tokens, shape, checkpoint, all checked. setup: the decisions in their order. Recipe: every default with its
reason (recipe, defaults, schedules, sizing). What fits: the formula (memory) and the trial (micro_batch). Time:
measured steps and the horizon of --max_minutes (pace). The loss at the end (forecast). The lines before the first step
(plan); --check (check).
"""
