"""Machines that tests choose by name, whatever they run on."""

import torch

from gpt.machine.device import Machine

CPU = Machine(torch.device("cpu"), "a CPU", "", torch.float32, "", False, "", ())
