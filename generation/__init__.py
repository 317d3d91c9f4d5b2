"""From a model and a prompt to text; generate.py is the command.

weights       a model's weights laid out for decoding, by its architecture
decoder       the model one token at a time, with a cache of keys and values
continuation  the sampling settings with their defaults, and one text in the making (needs no torch)
distribution  the distribution that a token is drawn from
sampling      the loop that makes several texts at once
graphs        the decoder whose step is a CUDA graph
ahead         the loop that runs such a decoder ahead of the host
prompts       prompts from the command line, a file or standard input
streaming     ids as text while they come, samples in their order, the speed
conversation  generate.py --interactive
"""
