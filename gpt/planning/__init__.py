"""The decisions before a run, and the lines that describe them.

inputs: tokens, shape and checkpoint, all checked. setup: the decisions in their order (decided). recipe:
every default with its reason (defaults, schedules, sizing). Memory: the formula (memory), and the
micro-batch with halving (micro_batch). Time: the length that fits into --max_minutes (deadline). The loss
at the end (forecast). The lines before the first step (plan), and --check (check).
"""
