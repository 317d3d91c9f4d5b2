"""What the plan says of several processes, and to one process on a machine with several GPUs."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections import Counter
from collections.abc import Sequence

import torch

from common.ranks import is_one_of_several
from common.words import several, size
from machine.cards import find_card
from machine.device import Machine
from machine.links import measured_bandwidth
from machine.processes import Processes
from planning.memory import predicted_peak
from planning.on_paper import speed_up
from planning.plan import Pace, Plan
from planning.traffic import Links, Message, exposed_share, messages_of_step
from training.optimizers import dtype_of_products
from training.state import Runtime


def say_processes(args: argparse.Namespace, plan: Plan, pace: Pace, runtime: Runtime) -> None:
    """Prints what there is to say of several processes, with --verbose what is sent, too; or of GPUs without one."""
    for line in (*describe_processes(plan, pace, runtime, args.verbose or args.dry_run),
                 *describe_idle_gpus(plan, runtime.machine, runtime.processes)):
        runtime.out.say(line)


def describe_processes(plan: Plan, pace: Pace, runtime: Runtime, verbose: bool) -> list[str]:
    """How several processes share the model, what each holds and sends, and how long it waits; all measure together.

    One process has nothing to say.
    """
    processes, machine = runtime.processes, runtime.machine
    if processes.world_size == 1:
        return []
    recipe, sharing = plan.recipe, plan.memory.sharing
    micro_batches = recipe.samples_per_step // (processes.world_size * plan.at_a_time)
    muons_dtype = dtype_of_products(machine) if plan.kind.name == "muon" else None
    messages = messages_of_step(plan.config, sharing, micro_batches, machine.dtype, muons_dtype)
    with runtime.out.phase("measuring how fast processes send"):
        speed = measured_bandwidth(machine, processes)
    share = exposed_share(messages, Links(speed), micro_batches, pace.step)

    held = predicted_peak(plan.config, plan.at_a_time, plan.memory)
    where = f" on {several(processes.num_machines, 'machine')}" if processes.num_machines > 1 else ""
    lines = [f"processes   {processes.world_size}{where}, {sharing.way}: {plan.why_way}",
             f"each        takes {size(held)}, sends {size(int(sum(m.sent for m in messages)))} a step at "
             f"{size(int(speed))}/s: waits {share:.0%} of it"]
    return [*lines, f"traffic     {sent_in_words(messages)}; the speed is that of an all_reduce"] if verbose else lines


def sent_in_words(messages: Sequence[Message]) -> str:
    """What each process sends in a step, by what it is."""
    sent: Counter[str] = Counter()
    for message in messages:
        sent[message.what] += int(message.sent)
    return ", ".join(f"{what} {size(num_bytes)}" for what, num_bytes in sent.items())


def describe_idle_gpus(plan: Plan, machine: Machine, processes: Processes) -> list[str]:
    """The command that would use all GPUs of this machine, where one process uses one of several."""
    if machine.device.type != "cuda" or processes.world_size > 1 or is_one_of_several():
        return []
    num_gpus = torch.cuda.device_count()
    if num_gpus < 2:
        return []
    card, times = find_card(machine.name), ""
    if card:
        recipe = plan.recipe
        found = speed_up(plan.config, card, num_gpus, recipe.samples_per_step * plan.config.seq_length,
                         recipe.accumulation)
        times = f"{found:.1f} times as fast (computed), "
    script, *flags = sys.argv
    command = shlex.join(["torchrun", "--nproc_per_node", str(num_gpus), os.path.relpath(script), *flags])
    return [f"GPUs        1 of {num_gpus} is used. All, {times}by: {command}"]
