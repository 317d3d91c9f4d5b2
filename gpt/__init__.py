"""What the commands stand on, in rooms whose names say when they are used; docs/architecture.md draws the floors.

planning, training, watching      a run before, during and beside its steps; optimizers  what updates the weights
checkpoint, architectures, ops    what a model is made of, and how it lies on disk
pretokenization, tokens           from text to token files
generation, evaluation            from a checkpoint to text, and to a figure
machine, hub, common              what every command stands on; benchmarks  what no user's run imports
"""
