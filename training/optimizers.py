"""Optimizers and their groups of parameters. To add one, write how it is built and by which rule it updates what, and
enter it in OPTIMIZERS; a new rule says in RULES what it keeps.

Every optimizer here takes what the step decides on the device, so that the host waits for nothing: found_inf, fp32 [],
1 where the step must change nothing; grad_scale, fp32 [], by which it divides the gradients. PyTorch's fused optimizers
read both as attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from architectures.table import architecture_of
from checkpoint.contents import StateTensor
from machine import device
from machine.device import Machine
from training.muon import Muon

AdamW = Callable[..., torch.optim.Optimizer]


@dataclass(frozen=True)
class Rule:
    """How a parameter is updated, as the program must know it: the tensors that are kept for it, and their bytes."""

    state: Callable[[torch.Tensor], dict[str, StateTensor]]
    bytes_per_element: float


@dataclass(frozen=True)
class OptimizerKind:
    """What the program must know of an optimizer.

    build takes the groups of parameters, the learning rate, the betas, AdamW's class, and the dtype of Muon's products.
    hidden_rule and other_rule are the names in RULES of what updates the matrices inside blocks, and all else.
    """

    name: str
    build: Callable[..., torch.optim.Optimizer]
    hidden_rule: str
    other_rule: str

    def memory_bytes(self, config: Any) -> float:
        """Bytes of state per parameter of a model; more of its parameters are hidden the larger it is."""
        hidden, others = config.num_block_weights, config.num_parameters - config.num_block_weights
        total = (hidden * RULES[self.hidden_rule].bytes_per_element + others * RULES[self.other_rule].bytes_per_element)
        return total / config.num_parameters


# ---------------------------------------------------------------- groups of parameters


def parameter_groups(model: Any, kind: OptimizerKind, weight_decay: float, embedding_weight_decay: float | None = None,
                     lr_scale: float = 1.0) -> list[dict[str, Any]]:
    """Every parameter in exactly one group: matrices inside blocks, then embeddings and output layer, then vectors.

    Vectors, which are norms and biases, do not decay; embeddings do as hidden matrices unless their own decay is given.
    lr_scale is the rate of the last two groups as a multiple of that of hidden matrices.
    """
    hidden = architecture_of(model.config).hidden_matrices(model.config)
    parameters = dict(model.named_parameters())
    others = {name: parameter for name, parameter in parameters.items() if name not in hidden}
    embedding_decay = weight_decay if embedding_weight_decay is None else embedding_weight_decay
    groups = [
        {"params": [parameters[name] for name in hidden], "rows": list(hidden.values()), "rule": kind.hidden_rule,
         "weight_decay": weight_decay, "lr_scale": 1.0},
        {"params": [p for p in others.values() if p.dim() >= 2], "rule": kind.other_rule,
         "weight_decay": embedding_decay, "lr_scale": lr_scale},
        {"params": [p for p in others.values() if p.dim() < 2], "rule": kind.other_rule,
         "weight_decay": 0.0, "lr_scale": lr_scale}]
    grouped = [id(p) for group in groups for p in group["params"]]
    assert len(grouped) == len(set(grouped)) == len(parameters), "each parameter is in exactly one group"
    assert all(sum(rows) == len(parameters[name]) for name, rows in hidden.items()), "rows of the stacked matrices"
    return groups


# ---------------------------------------------------------------- what is kept


def expected_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, StateTensor]:
    """The tensors that the optimizer keeps for one of its parameters: what a checkpoint stores."""
    rule = next(group["rule"] for group in optimizer.param_groups if any(p is parameter for p in group["params"]))
    return RULES[rule].state(parameter)


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all that the optimizer keeps, which it makes during its first step."""
    return sum(kept.num_bytes for group in optimizer.param_groups for parameter in group["params"]
               for kept in RULES[group["rule"]].state(parameter).values())


def is_complete(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> bool:
    """True if the optimizer has made all that it keeps for the parameter."""
    return all(name in optimizer.state[parameter] for name in expected_state(optimizer, parameter))


def _state_of_adamw(parameter: torch.Tensor) -> dict[str, StateTensor]:
    moment = StateTensor(tuple(parameter.shape), torch.float32)
    return {"step": StateTensor((), torch.float32), "exp_avg": moment, "exp_avg_sq": moment}


def _state_of_muon(parameter: torch.Tensor) -> dict[str, StateTensor]:
    return {"momentum_buffer": StateTensor(tuple(parameter.shape), torch.float32)}


RULES: Mapping[str, Rule] = {
    "adamw": Rule(_state_of_adamw, bytes_per_element=8),  # two moments in fp32
    "muon": Rule(_state_of_muon, bytes_per_element=4),
}


# ---------------------------------------------------------------- the optimizers


def dtype_of_products(machine: Machine) -> torch.dtype:
    """In what Muon multiplies: bf16 where the hardware has it, but fp32 where weights train in fp16."""
    has_bf16 = machine.dtype != torch.float16 and device.has_bf16(machine.device)
    return torch.bfloat16 if has_bf16 else torch.float32


def build_adamw(groups: list[dict[str, Any]], learning_rate: float, betas: tuple[float, float],
                adamw: AdamW = torch.optim.AdamW, dtype: torch.dtype = torch.float32) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019) by PyTorch's fused kernel."""
    return adamw(groups, learning_rate, betas, fused=True)


def build_muon(groups: list[dict[str, Any]], learning_rate: float, betas: tuple[float, float],
               adamw: AdamW = torch.optim.AdamW, dtype: torch.dtype = torch.float32) -> torch.optim.Optimizer:
    """Muon for hidden matrices, whose products are in dtype; the fused AdamW for the rest."""
    return Muon(groups, learning_rate, partial(build_adamw, learning_rate=learning_rate, betas=betas, adamw=adamw),
                dtype)


OPTIMIZERS = {
    "adamw": OptimizerKind("adamw", build_adamw, hidden_rule="adamw", other_rule="adamw"),
    "muon": OptimizerKind("muon", build_muon, hidden_rule="muon", other_rule="adamw"),
}
