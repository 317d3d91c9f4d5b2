"""How several processes train one model: what they share in a step.

Every process has its own micro-batches of the step. With DataParallel each holds the whole model, with FullySharded
some rows of every weight. Alone shares nothing: a step of one process goes through the same lines.
"""

import warnings
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpt.architectures.table import ModelConfig, Network, architecture_of, create
from gpt.machine.device import Machine
from gpt.machine.processes import Processes
from gpt.ops.shards import local
from model import Options

DELAY = 2  # asks after which an answer of several processes is read: it has arrived by then, and nobody waits for it
BUCKET_MIB = 25  # of gradients that are averaged at a time


class Alone:
    """One process, which shares nothing in a step; what several share is said by the classes below."""

    keeps_gradients = False  # from step to step, in the buckets that are averaged; they are set to zero
    is_compiled_in_parts = False  # whatever is asked for

    def __init__(self, model: Network):
        self._model = model
        self.forward: Any = model  # called to train

    def compile(self, in_parts: bool, **options: Any) -> None:
        """Compiles the model in place, or its blocks and its output layer: blocks are alike, and one is traced for all.
        """
        model, in_parts = self._model, in_parts or self.is_compiled_in_parts
        torch._dynamo.config.optimize_ddp = False  # else DDP's buckets cut each block in two
        for part in [*model.blocks, model.output] if in_parts else [model]:
            part.compile(dynamic=False, **options)

    def adding_gradients(self, is_last: bool) -> AbstractContextManager[Any]:
        """The context of a forward and backward pass; in the last one of a step gradients are averaged."""
        return nullcontext()

    def loss_and_norm(self, loss: torch.Tensor, gradients: Sequence[torch.Tensor],
                      ) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean loss and the norm of the gradient of all processes, fp32 [] each."""
        return loss, torch.nn.utils.get_total_norm(gradients, foreach=True)


class InGraphs(Alone):
    """One process whose forward and backward passes are CUDA graphs: each is launched at once (--compile_mode).

    A graph writes its outputs, the gradients among them, to the same memory each time. The gradients of a step of one
    micro-batch are used up before the next one; those of several are added up in memory of their own. The loss that a
    step keeps is a quotient, which no graph computes. Source: PyTorch, CUDAGraph Trees.
    """

    def adding_gradients(self, is_last: bool) -> AbstractContextManager[Any]:
        torch.compiler.cudagraph_mark_step_begin()
        missing = [parameter for parameter in self.forward.parameters() if parameter.grad is None]
        if missing and not is_last:
            for parameter in missing:
                parameter.grad = torch.zeros_like(parameter)
        self.keeps_gradients = not (missing and is_last)
        return super().adding_gradients(is_last)


class _Shared(Alone):
    """Several processes: blocks are compiled one by one, and one all-reduce a step takes loss and norm.

    Gradients are averaged while the backward pass goes on: with one graph for the whole model all of them would come at
    its end. copies: so many processes hold the same gradients.
    """

    is_compiled_in_parts = True

    def __init__(self, model: Network, processes: Processes, copies: int):
        super().__init__(model)
        self._processes, self._copies = processes, copies

    def loss_and_norm(self, loss: torch.Tensor, gradients: Sequence[torch.Tensor],
                      ) -> tuple[torch.Tensor, torch.Tensor]:
        norm = torch.nn.utils.get_total_norm([local(gradient) for gradient in gradients], foreach=True)
        numbers = torch.stack([loss, norm * norm])
        dist.all_reduce(numbers)
        return numbers[0] / self._processes.world_size, (numbers[1] / self._copies).sqrt()


class DataParallel(_Shared):
    """Several processes, each with the whole model (Li et al. 2020, PyTorch Distributed)."""

    keeps_gradients = True  # else those of several micro-batches are added up outside of the buckets: twice the memory

    def __init__(self, model: Network, processes: Processes):
        super().__init__(model, processes, copies=processes.world_size)
        self.forward = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=BUCKET_MIB)
        self.forward.broadcast_buffers = False  # they are tables that never change

    def adding_gradients(self, is_last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if is_last else self.forward.no_sync()


class FullySharded(_Shared):
    """Several processes, each with some rows of every weight, gradient and moment (Zhao et al. 2023, PyTorch FSDP).

    A block's weights are gathered when it is computed. Each of the groups, such as machines, has all rows. No process
    ever holds the whole model: it is built on the meta device, and sharded before it gets its weights.
    """

    def __init__(self, model: Network, processes: Processes, machine: Machine, std: float, groups: int = 1):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        super().__init__(model, processes, copies=groups)
        # The residual stream is returned by a block as it came, and nothing changes it in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
        shape = (groups, processes.world_size // groups)[groups == 1:]
        mesh = init_device_mesh(machine.device.type, shape, mesh_dim_names=("replicate", "shard")[groups == 1:])
        is_mixed = machine.dtype != torch.float32
        policy = MixedPrecisionPolicy(machine.dtype, torch.float32) if is_mixed else MixedPrecisionPolicy()
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self.forward = fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        model.to_empty(device=machine.device).init_weights(std)

    def adding_gradients(self, is_last: bool) -> AbstractContextManager[Any]:
        self.forward.set_requires_gradient_sync(is_last)
        self.forward.set_is_last_backward(is_last)
        return nullcontext()


def build(config: ModelConfig, options: Options, strategy: str, processes: Processes, machine: Machine,
          std: float, in_graphs: bool = False) -> tuple[Network, Alone]:
    """The model with its initial weights, the same for any number of processes, and how they train it.

    strategy is 'ddp', 'fsdp' or 'hsdp', where there are several. std is the deviation of initial matrices. in_graphs:
    the passes of one are compiled to CUDA graphs.
    """
    if processes.world_size == 1 or strategy == "ddp":
        model = create(config, machine.device, options, std).train()
        alone = InGraphs if in_graphs else Alone
        return model, alone(model) if processes.world_size == 1 else DataParallel(model, processes)
    with torch.device("meta"):
        gathered = replace(options, rounded_to=None)  # in 16 bits, from the shards
        model = architecture_of(config).build(config, gathered).train()
    return model, FullySharded(model, processes, machine, std, processes.num_machines if strategy == "hsdp" else 1)


# ---------------------------------------------------------------- what they decide together


class Decisions:
    """Questions that all processes ask in the same order. One process decides for itself, at once."""

    def __init__(self, processes: Processes):
        self._processes = processes
        self.num_asked = 0  # grows while the run goes on
        self._decided: set[str] = set()  # by agree_now, for good
        self._sent: defaultdict[str, deque[tuple[torch.Tensor, dist.Work]]] = defaultdict(deque)  # oldest first

    def agree(self, what: str, here: bool) -> bool:
        """True in all processes if one of them said so, DELAY asks ago.

        The votes travel between the hosts while the devices compute. Who votes yes does so until it is decided.
        """
        self.num_asked += 1
        if self._processes.world_size == 1 or what in self._decided:
            return here or what in self._decided
        vote, sent = torch.tensor(float(here)), self._sent[what]
        work = dist.all_reduce(vote, async_op=True)
        assert work
        sent.append((vote, work))
        if len(sent) <= DELAY:
            return False
        vote, work = sent.popleft()
        work.wait()
        if decided := vote.item() > 0:
            sent.clear()  # those asked since then are the same vote, which is decided now
        return decided

    def agree_now(self, what: str, here: bool) -> bool:
        """The same at once and for good, for what may take long between steps: all processes wait for each other."""
        self.num_asked += 1
        if self._processes.any(here):
            self._decided.add(what)
        return what in self._decided
