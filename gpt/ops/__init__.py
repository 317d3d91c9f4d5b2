"""The operations a model is made of: fast ones, each beside the plain form it is tested against.

options    what every layer of a network sees: how it is computed
attention  causal attention
linear     matrix products with a weight, activations, and the layers that hold the weights
orthogonal the nearest orthogonal matrix, for Muon
loss       cross-entropy, whole and in chunks
norm       RMSNorm
rotary     rotary position embedding
products   products with weights laid out for decoding: as they are, packed for the CPU, in 8 bits
"""
