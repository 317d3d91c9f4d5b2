"""What a command runs on.

device     the GPU or the CPU, its precision, whether to compile, each with the reason
cards      data sheets of GPUs: the peak that MFU is a share of
memory     bytes there are, bytes that were held, and the error that says there are none left
timing     seconds of training alone, and how busy the device is
processes  rank and world size: one process today
"""
