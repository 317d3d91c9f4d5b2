"""The operations a model is made of: fast ones, each beside the plain form it is tested against.

attention  causal attention
linear     matrix products with a weight, and the layers that hold the weights
orthogonal the nearest orthogonal matrix, for Muon
loss       cross-entropy, whole and in chunks
norm       RMSNorm
rotary     rotary position embedding
fp8        products in 8 bits
products   products with weights laid out for decoding: as they are, packed for the CPU, in 8 bits
"""
