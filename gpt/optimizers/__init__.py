"""The optimizers: their state for each parameter, and their updates on the device.

table         the optimizers by name, for --optimizer, --help and the plan: begin here
build         an optimizer for a model: its parameter groups, its state in bytes, AdamW for Apple's GPU
muon          Muon for the matrices inside blocks
adamw8bit     AdamW with moments in 8 bits
beside_adamw  the base class of both: one rule for some parameters, AdamW for the others
"""
