"""What is decided before a run, and what of it is printed.

Recipe: every default with its reason (recipe, defaults, schedules, sizing). Memory and micro-batch: what fits (memory,
micro_batch, trial). Time: measured steps and the horizon of --max_minutes (pace). Plan: the lines before the first step
(plan), --check (check).
"""
