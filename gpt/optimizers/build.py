"""Builds an optimizer: its groups of parameters, and the state that it keeps for each.

Every optimizer here reads two tensors on the device, so that the host never waits: found_inf, fp32 [], 1 if the
step must change nothing; grad_scale, fp32 [], the divisor of the gradients. PyTorch's fused optimizers read
both as attributes.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeAlias

import torch

from gpt.architectures.table import ModelConfig, architecture_of
from gpt.checkpoint.contents import StateTensor
from gpt.machine.backends import backend_of
from gpt.machine.device import Machine
from gpt.optimizers.beside_adamw import Rows, adamw_schema, zeros_of
from gpt.optimizers.table import OPTIMIZERS
from model import Options

MakesAdamW: TypeAlias = Callable[..., torch.optim.Optimizer]


def build_optimizer(name: str, groups: list[dict[str, Any]], learning_rate: float, betas: tuple[float, float],
                    adamw: MakesAdamW = torch.optim.AdamW, dtype: torch.dtype = torch.float32) -> torch.optim.Optimizer:
    """Builds the optimizer with this name in OPTIMIZERS, on the groups of parameter_groups.

    adamw is AdamW's class (Loshchilov and Hutter 2019), used fused; dtype is of the
    products of matrices in Muon.
    """
    fused = partial(adamw, lr=learning_rate, betas=betas, fused=True)
    load = OPTIMIZERS[name].load
    return load()(groups, learning_rate, betas, fused, dtype) if load else fused(groups)


# ---------------------------------------------------------------- groups of parameters


def parameter_groups(model: Any, name: str, weight_decay: float, lr_scale: float = 1.0,
                     ) -> list[dict[str, Any]]:
    """Every parameter in exactly one group: matrices inside blocks, embeddings and output layer, or vectors.

    name is the optimizer's; a group's "rule" is that name, or "adamw" where the optimizer leaves the group to
    AdamW. Vectors, which are norms and biases, do not decay. "rows" has for each parameter the rows of its
    stacked matrices, () outside of blocks. lr_scale multiplies the learning rate of the last two groups.
    """
    hidden = architecture_of(model.config).hidden_matrices(model.config)
    parameters = dict(model.named_parameters())
    others = [key for key in parameters if key not in hidden]
    tables = [key for key in others if parameters[key].dim() >= 2]
    vectors = [key for key in others if parameters[key].dim() < 2]
    groups = [{"params": [parameters[key] for key in keys], "rows": [hidden.get(key, ()) for key in keys],
               "rule": name if keys is hidden or OPTIMIZERS[name].updates_all else "adamw", "kind": kind}
              for keys, kind in ((hidden, "hidden"), (tables, "table"), (vectors, "vector"))]
    set_groups(groups, weight_decay, lr_scale)
    return groups


def set_groups(groups: list[dict[str, Any]], weight_decay: float, lr_scale: float) -> None:
    """Sets weight_decay (0 for vectors) and lr_scale (1 for matrices inside blocks) in the groups, in place."""
    for group in groups:
        group["weight_decay"] = 0.0 if group["kind"] == "vector" else weight_decay
        group["lr_scale"] = 1.0 if group["kind"] == "hidden" else lr_scale


# ---------------------------------------------------------------- state


def schema_by_rule(rule: str, parameter: torch.Tensor, rows: Rows = ()) -> dict[str, StateTensor]:
    """The state that a group's rule keeps for one parameter, which stacks matrices of these rows."""
    load = OPTIMIZERS[rule].load
    return load().schema_of(parameter, rows) if load else adamw_schema(parameter)


def state_schema(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, StateTensor]:
    """The tensors that the optimizer keeps, and a checkpoint stores, for one of its parameters."""
    return next(schema_by_rule(group["rule"], parameter, rows) for group in optimizer.param_groups
                for p, rows in zip(group["params"], group["rows"], strict=True) if p is parameter)


@cache  # a check of the machine asks dozens of times, and a network is built each time
def state_bytes(name: str, config: ModelConfig) -> float:
    """Bytes of an optimizer's state for each number in the weights, on average; counts of steps are left out."""
    with torch.device("meta"):
        groups = parameter_groups(architecture_of(config).build(config, Options()), name, 0.0)
    kept = (tensor for group in groups for parameter, rows in zip(group["params"], group["rows"], strict=True)
            for tensor in schema_by_rule(group["rule"], parameter, rows).values())
    return sum(tensor.num_bytes for tensor in kept if tensor.shape) / config.num_parameters


# ---------------------------------------------------------------- compiling


def compile_optimizer(optimizer: Any) -> None:
    """Compiles the step of an optimizer without a fused kernel, by one step that changes no weight.

    Every parameter needs a gradient. The step allocates the state. PyTorch's AdamW has a
    fused kernel: nothing happens.
    """
    if hasattr(optimizer, "compile_step"):
        optimizer.compile_step()
        optimizer.found_inf = torch.ones((), device=optimizer.param_groups[0]["params"][0].device)
        optimizer.step()
        optimizer.found_inf = None


# ---------------------------------------------------------------- AdamW for Apple's GPU


class AdamWForMPS(torch.optim.AdamW):
    """Fused AdamW for kernels that ignore found_inf and grad_scale: the host applies them first.

    The host waits for the device once a step, to read found_inf; with 1 nothing changes, not even a moment.
    """

    found_inf: torch.Tensor | None = None
    grad_scale: torch.Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step; closure is not used."""
        found_inf, grad_scale = self.found_inf, self.grad_scale
        self.found_inf = self.grad_scale = None  # otherwise PyTorch takes back a count
        parameters: list[Any] = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if found_inf is not None and found_inf.item():
            for parameter in parameters:  # a checkpoint holds the state even if no step has been applied
                if not self.state[parameter]:
                    self.state[parameter] = zeros_of(adamw_schema(parameter), parameter)
        else:
            for parameter in parameters if grad_scale is not None else ():
                parameter.grad.div_(grad_scale)
            super().step()
        self.found_inf, self.grad_scale = found_inf, grad_scale


def adamw_for(device: torch.device) -> MakesAdamW:
    """The fused AdamW for the device. Apple's kernel ignored both tensors before PyTorch's pull request 186360."""
    return torch.optim.AdamW if backend_of(device).fused_adamw_takes_scaler else AdamWForMPS


def dtype_of_products(machine: Machine) -> torch.dtype:
    """The dtype of Muon's products: bf16 if the hardware has it, else fp32.

    A run in fp16 has fp16 on a GPU, and fp32 on a CPU.
    """
    if machine.dtype == torch.float16:
        return torch.float16 if machine.on_gpu else torch.float32
    return torch.bfloat16 if machine.backend.has_bf16() else torch.float32
