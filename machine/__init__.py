"""What a command runs on.

device     the GPU or the processor, its precision, whether to compile, each with the reason
cards      data sheets of GPUs
memory     bytes there are and bytes that were held; timing: seconds of training alone, and how busy the device is
processes  rank and world size: one process today
"""
