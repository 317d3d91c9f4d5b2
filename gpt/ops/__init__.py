"""The operations of a model: fast forms, each beside the plain form that tests compare it with.

attention   causal attention in blocks of rows, for a CPU
layers      matrix products, activations, norms, dropout, and the layers that hold the weights
orthogonal  the nearest orthogonal matrix, for Muon
loss        cross-entropy, whole and in chunks
rotary      rotary position embedding
products    products for decoding, with weights as they are, packed for the CPU, or in 8 bits
shards      the same functions for whole tensors and for shards
"""
