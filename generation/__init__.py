"""From a model to text.

weights    a weight matrix laid out for decoding
decoder    the model, one token at a time, with its keys and values
sampling   the distribution that is drawn from, and the schedule of several texts
streaming  ids as text, whole characters only; the speed
"""
