"""The machine: its device, memory, clocks, and the processes of one run.

device     chooses the GPU or the CPU, its precision, and whether to compile; gives the reasons
backends   the kinds of devices (CPU, Apple's GPUs, NVIDIA's GPUs) and their abilities
cards      data sheets of GPUs: the peak FLOP/s of which MFU is a fraction
kernels    removes compiled files that a killed compiler left unfinished
environment  the cores that this process may use, and variables that torch reads when it is loaded
memory     available and peak memory; common/errors recognizes the error "out of memory"
timing     seconds of training alone, and the load of the device
pinned     pinned host memory, and asynchronous copies
processes  rank and world size, and decisions that all processes share
runtime    all of it together, as a run has it
"""
