"""What a command runs on.

device     the GPU or the CPU, its precision, whether to compile, each with the reason
cards      data sheets of GPUs: peaks, of which MFU is a share
kernels    compiled files that a killed compiler left unfinished
memory     bytes there are, and bytes that were held; the error that says there are none left is in common/errors
timing     seconds of training alone, and how busy the device is
pinned     memory of the host that a GPU copies to directly
processes  rank and world size, and how processes agree
"""
