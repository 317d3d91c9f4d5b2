"""Shares a step among processes (Strategy), and takes their common decisions (Votes).

Every process has its own micro-batches of the step. With DataParallel each process holds the whole model, with
FullySharded some rows of every weight. A single process has the whole step: Strategy itself.
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

from gpt.architectures.table import ModelConfig, architecture_of, create
from gpt.machine.device import Machine
from gpt.machine.processes import Processes
from gpt.ops.shards import local
from model import LanguageModel, Options

DELAY = 2  # calls after which a vote of several processes is read: it has arrived by then, and no process waits


class Strategy:
    """Shares a step among the processes of a run: the forward pass, and the sums over the processes.

    This one is for one process. forward is the model as the step calls it. keeps_gradients: the gradients stay
    in place from step to step, and are set to zero. After passes_to_compile passes nothing is left to compile.
    """

    keeps_gradients = False
    passes_to_compile = 1

    def __init__(self, model: LanguageModel):
        self._model = model
        self.forward: Any = model

    def parts_to_compile(self, blocks: bool) -> list[torch.nn.Module]:
        """The modules to compile: the whole model, or its blocks and its output layer.

        Blocks are alike, and one is traced for all.
        """
        return [*self._model.blocks, self._model.output] if blocks else [self._model]

    def begin_pass(self) -> None:
        """Prepares a forward pass, in a step or in a validation: the results of the last one are used up."""

    def accumulating(self, is_last: bool) -> AbstractContextManager[Any]:
        """The context of a forward and backward pass; in the last one of a step gradients are averaged."""
        return nullcontext()

    def loss_and_norm(self, loss: torch.Tensor, gradients: Sequence[torch.Tensor],
                      ) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean loss and the norm of the gradient over all processes, fp32 [] each, on the device.

        loss is the mean of this process's micro-batches; gradients has the gradient of every parameter.
        """
        return loss, torch.nn.utils.get_total_norm(gradients)


class CudaGraphs(Strategy):
    """One process whose forward and backward passes are CUDA graphs (--compile_mode reduce-overhead).

    A graph writes its outputs, the gradients among them, to the same memory each time. A step of one
    micro-batch uses its gradients up before the next one; several micro-batches add theirs up in separate
    memory. The loss that a step keeps is divided outside the graphs, hence in memory of its own. Source:
    PyTorch, CUDAGraph Trees.
    """

    passes_to_compile = 3  # to warm up, to record, to replay

    def begin_pass(self) -> None:
        torch.compiler.cudagraph_mark_step_begin()

    def accumulating(self, is_last: bool) -> AbstractContextManager[Any]:
        self.begin_pass()
        is_empty = next(self.forward.parameters()).grad is None  # all have a gradient, or none has
        if is_empty and not is_last:
            for parameter in self.forward.parameters():
                parameter.grad = torch.zeros_like(parameter)
        self.keeps_gradients = not (is_empty and is_last)
        return super().accumulating(is_last)


class _Distributed(Strategy):
    """Several processes: one all-reduce a step sums loss and norm.

    Gradients are averaged while the backward pass goes on. copies is the number of processes
    that hold the same gradients.
    """

    def __init__(self, model: LanguageModel, processes: Processes, copies: int):
        super().__init__(model)
        self._processes, self._copies = processes, copies

    def loss_and_norm(self, loss: torch.Tensor, gradients: Sequence[torch.Tensor],
                      ) -> tuple[torch.Tensor, torch.Tensor]:
        norm = torch.nn.utils.get_total_norm([local(gradient) for gradient in gradients])
        sums = torch.stack([loss, norm * norm])
        dist.all_reduce(sums)
        return sums[0] / self._processes.world_size, (sums[1] / self._copies).sqrt()


class DataParallel(_Distributed):
    """Several processes, each with the whole model (Li et al. 2020, PyTorch Distributed)."""

    keeps_gradients = True  # otherwise several micro-batches add up outside the buckets: twice the memory

    def __init__(self, model: LanguageModel, processes: Processes):
        super().__init__(model, processes, copies=processes.world_size)
        self.forward = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.forward.broadcast_buffers = False  # each process renews its 16-bit copies, others never change
        torch._dynamo.config.optimize_ddp = False  # otherwise DDP's buckets cut each compiled block in two

    def accumulating(self, is_last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if is_last else self.forward.no_sync()


class FullySharded(_Distributed):
    """Several processes, each with some rows of every weight, gradient and moment (Zhao et al. 2023, PyTorch FSDP).

    A block's weights are gathered when the block is computed. Each group of processes, a machine for example,
    holds all rows. No process ever holds the whole model: the model is built on the meta device and sharded
    before its weights are drawn.
    """

    def __init__(self, model: LanguageModel, processes: Processes, machine: Machine, std: float, groups: int = 1):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        super().__init__(model, processes, copies=groups)
        # The residual stream is returned by a block as it came, and nothing changes it in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
        num_shards = processes.world_size // groups
        shape, names = (num_shards,), ("shard",)
        if groups > 1:
            shape, names = (groups, num_shards), ("replicate", "shard")
        mesh = init_device_mesh(machine.device.type, shape, mesh_dim_names=names)
        gathered = model.options.residual_dtype or torch.float32  # embeddings begin the residual stream
        # Numbers of targets and rotary tables stay in fp32.
        policy = MixedPrecisionPolicy(gathered, torch.float32, cast_forward_inputs=False)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self.forward = fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        model.to_empty(device=machine.device).init_weights(std)

    def accumulating(self, is_last: bool) -> AbstractContextManager[Any]:
        self.forward.set_requires_gradient_sync(is_last)
        self.forward.set_is_last_backward(is_last)
        return nullcontext()


def build_model(config: ModelConfig, options: Options, strategy: str, processes: Processes, machine: Machine,
                std: float, in_graphs: bool = False) -> tuple[LanguageModel, Strategy]:
    """The model with its initial weights, the same for any number of processes, and the strategy that trains it.

    strategy is 'ddp', 'fsdp' or 'hsdp' where there are several processes. std is the deviation of the initial matrices.
    in_graphs: the passes of a single process are compiled to CUDA graphs.
    """
    if processes.world_size > 1 and strategy != "ddp":
        with torch.device("meta"):
            # Without rounded copies, as the shards are gathered in the residual stream's dtype.
            model = architecture_of(config).build(config, replace(options, rounded_to=None)).train()
        return model, FullySharded(model, processes, machine, std, processes.num_machines if strategy == "hsdp" else 1)
    model = create(config, machine.device, options, std).train()
    if processes.world_size > 1:
        return model, DataParallel(model, processes)
    return model, CudaGraphs(model) if in_graphs else Strategy(model)


# ---------------------------------------------------------------- common decisions


class Votes:
    """Votes that all processes of a run take in the same order. A single process decides for itself, at once."""

    def __init__(self, processes: Processes):
        self._processes = processes
        self._decided: set[str] = set()  # by any_yes_now, for good
        self._pending: defaultdict[str, deque[tuple[torch.Tensor, dist.Work]]] = defaultdict(deque)  # oldest first

    def any_yes(self, what: str, here: bool) -> bool:
        """Logical OR of the votes (here) of all processes on a question (what), DELAY calls late.

        A single process has its own vote, at once. The all-reduce overlaps with compute. Keep voting yes until
        it returns True: a vote is for one call.
        """
        if self._processes.world_size == 1 or what in self._decided:
            return here or what in self._decided
        vote = torch.tensor(float(here))
        pending = self._pending[what]
        work = dist.all_reduce(vote, async_op=True)
        assert work
        pending.append((vote, work))
        if len(pending) <= DELAY:
            return False
        vote, work = pending.popleft()
        work.wait()
        is_decided = vote.item() > 0
        if is_decided:
            pending.clear()  # the later votes are the same vote, which is decided now
        return is_decided

    def any_yes_now(self, what: str, here: bool) -> bool:
        """Logical OR of the votes of all processes, waited for; for use between training steps.

        Once it is True for a question, it stays True, and any_yes is then True for it at once.
        """
        if self._processes.total([here])[0] > 0:
            self._decided.add(what)
        return what in self._decided
