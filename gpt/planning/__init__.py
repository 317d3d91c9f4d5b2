"""The decisions before a run, and the lines that describe them.

inputs: tokens, shape and checkpoint, all checked. setup: the decisions in their order; decided: their
dataclass, Setup; recorded: what a run records of them. recipe: every default with its reason (defaults,
schedules, sizing). Memory: the formula, the micro-batch, a copy for saves (memory).
Time: the length that fits into --max_minutes (deadline). The loss at the end (forecast). The lines before
the first step (plan), and --check (check). Before torch: flags (relations, contradictions), texts (early).
"""
