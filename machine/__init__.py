"""What a command runs on.

device     the GPU or the CPU, its precision, whether to compile, each with the reason
cards      data sheets of GPUs: peaks, of which MFU is a share, memory, bandwidth
kernels    compiled files that a killed compiler left unfinished
facts      the driver, RAM, the speed of the disk and of matrix products
memory     bytes there are, bytes that were held, and the error that says there are none left
timing     seconds of training alone, and how busy the device is
processes  rank and world size: one process today
"""
