"""The machine: its device, memory, clocks, and the processes of one run.

device       chooses GPU or CPU, precision and compiling, with reasons; deletes what a killed compiler left
backends     the kinds of devices (CPU, Apple's GPUs, NVIDIA's GPUs), their abilities, copies in pinned memory
cards        data sheets of GPUs: the peak FLOP/s of which MFU is a fraction
environment  the RAM and the cores that this process may use, and variables that torch reads when it is loaded
processes    rank and world size, and decisions that all processes share
runtime      all of it together, as a run has it; the seconds of training alone, and the load of the device
"""
