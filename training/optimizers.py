"""Optimizers and their groups of parameters. To add one, write how it is built and by which rule it updates what, and
enter it in OPTIMIZERS; a new rule says in RULES what it keeps.

Every optimizer here takes what the step decides on the device, so that the host waits for nothing: found_inf, fp32 [],
1 where the step must change nothing; grad_scale, fp32 [], by which it divides the gradients. PyTorch's fused optimizers
read both as attributes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from architectures.fields import shown
from architectures.table import ModelConfig, architecture_of
from checkpoint.contents import StateTensor
from common.errors import Exit, UserError
from machine.backends import backend_of
from machine.device import Machine
from ops.options import Options
from training.adamw8bit import AdamW8bit, kept_in_8_bits
from training.muon import Muon

MakesAdamW: TypeAlias = Callable[..., torch.optim.Optimizer]


@dataclass(frozen=True)
class OptimizerKind:
    """What the program must know of an optimizer.

    hidden_rule and other_rule are the names in RULES of what updates the matrices inside blocks, and all else. make
    takes what build does, but of AdamW what makes it for some groups.
    """

    name: str
    words: str  # for the plan
    hidden_rule: str
    other_rule: str
    make: Callable[..., torch.optim.Optimizer]

    def build(self, groups: list[dict[str, Any]], learning_rate: float, betas: tuple[float, float],
              adamw: MakesAdamW = torch.optim.AdamW, dtype: torch.dtype = torch.float32,
              ) -> torch.optim.Optimizer:
        """The optimizer of these groups. AdamW (Loshchilov and Hutter 2019) is fused; dtype is of Muon's products."""
        fused = partial(adamw, lr=learning_rate, betas=betas, fused=True)
        return self.make(groups, learning_rate, betas, fused, dtype)

    def memory_bytes(self, config: ModelConfig) -> float:
        """Bytes of state per parameter of a model, by the shapes of its parameters."""
        with torch.device("meta"):
            parameters = dict(architecture_of(config).build(config, Options()).named_parameters())
        hidden = architecture_of(config).hidden_matrices(config)
        kept = (tensor for name, parameter in parameters.items()
                for tensor in RULES[self.hidden_rule if name in hidden else self.other_rule](parameter).values())
        return sum(tensor.num_bytes for tensor in kept if tensor.shape) / config.num_parameters


# ---------------------------------------------------------------- groups of parameters


def parameter_groups(model: Any, kind: OptimizerKind, weight_decay: float, lr_scale: float = 1.0,
                     ) -> list[dict[str, Any]]:
    """Every parameter in exactly one group: matrices inside blocks, then embeddings and output layer, then vectors.

    Vectors, which are norms and biases, do not decay.
    lr_scale is the rate of the last two groups as a multiple of that of hidden matrices.
    """
    hidden = architecture_of(model.config).hidden_matrices(model.config)
    parameters = dict(model.named_parameters())
    others = [parameter for name, parameter in parameters.items() if name not in hidden]
    other = {"rule": kind.other_rule, "lr_scale": lr_scale}
    return [
        {"params": [parameters[name] for name in hidden], "rows": list(hidden.values()), "rule": kind.hidden_rule,
         "weight_decay": weight_decay, "lr_scale": 1.0},
        {"params": [p for p in others if p.dim() >= 2], "weight_decay": weight_decay, **other},
        {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0, **other}]


# ---------------------------------------------------------------- what is kept


def kept_by_adamw(parameter: torch.Tensor) -> dict[str, StateTensor]:
    """Shapes and types of what AdamW keeps for a parameter."""
    moment = StateTensor(tuple(parameter.shape), torch.float32)
    return {"step": StateTensor((), torch.float32), "exp_avg": moment, "exp_avg_sq": moment}


# By which rule a parameter is updated, and the tensors that are kept for it: what a checkpoint stores.
RULES: Mapping[str, Callable[[torch.Tensor], dict[str, StateTensor]]] = {
    "adamw": kept_by_adamw, "adamw8bit": kept_in_8_bits,
    "muon": lambda parameter: {"momentum_buffer": StateTensor(tuple(parameter.shape), torch.float32)}}


def expected_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, StateTensor]:
    """The tensors that the optimizer keeps for one of its parameters."""
    rule = next(group["rule"] for group in optimizer.param_groups if any(p is parameter for p in group["params"]))
    return RULES[rule](parameter)


# ---------------------------------------------------------------- compiling


def compile_optimizer(optimizer: Any) -> None:
    """Compiles the optimizer's step where it is no fused kernel, by a step on the gradients that changes nothing."""
    if hasattr(optimizer, "compile_step"):
        optimizer.compile_step()
        optimizer.found_inf = torch.ones((), device=optimizer.param_groups[0]["params"][0].device)
        optimizer.step()
        optimizer.found_inf = None


# ---------------------------------------------------------------- which one

# Of the blocks' FLOPs, that Muon may add: as it needs at most 0.6 of AdamW's tokens, it still ends sooner with a half
# more (LOG.md, 2026-11-22, The default recipe).
MOST_EXTRA = 0.5
ADAMWS_OWN = ("learning_rate", "beta1", "beta2")  # figures that were found for AdamW, if somebody gives them


def choose_optimizer(args: argparse.Namespace, config: ModelConfig, samples_per_step: int, stored: Mapping[str, Any],
                     ) -> tuple[OptimizerKind, str]:
    """The optimizer, and why where --optimizer auto decides; stored is the checkpoint to resume from, or empty.

    Raises UserError (exit 4) for another one than the checkpoint's, whose moments it could not use.
    """
    if stored:
        name = str((stored.get("settings") or {}).get("optimizer", "adamw"))  # an older program named none
        if args.optimizer not in ("auto", name) or name not in OPTIMIZERS:
            raise UserError(Exit.CHECKPOINT, f"--optimizer {args.optimizer}: the checkpoint has the moments of "
                                             f"{shown(name)}, which it cannot use. Drop the flag, or give --init_from "
                                             "to start from its weights alone.")
        return OPTIMIZERS[name], ""
    if args.optimizer != "auto":
        return OPTIMIZERS[args.optimizer], ""
    if args.init_from:
        return OPTIMIZERS["adamw"], "trained weights go on with AdamW, which most were trained with"
    if given := [f"--{flag}" for flag in ADAMWS_OWN if flag in args.config.given]:
        return OPTIMIZERS["adamw"], f"{', '.join(given)} given, as one does for AdamW"
    # Muon takes about 300 C^3 FLOP a layer and step: 4.2 C / tokens of the blocks' own.
    extra = 4.2 * config.n_embd / (samples_per_step * config.seq_length)
    return OPTIMIZERS["muon" if extra <= MOST_EXTRA else "adamw"], (
        f"Muon adds {extra:.1%} to the FLOPs of the blocks, and up to {MOST_EXTRA:.0%} pays")


# ---------------------------------------------------------------- the optimizers


class HostDecides(torch.optim.AdamW):
    """AdamW by the fused kernel, of which the host makes what found_inf and grad_scale ask for.

    It waits for the device once a step, to read found_inf: with 1 nothing changes, not even a moment.
    """

    found_inf: torch.Tensor | None = None
    grad_scale: torch.Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step."""
        found_inf, grad_scale = self.found_inf, self.grad_scale
        self.found_inf = self.grad_scale = None  # else PyTorch would count a skipped step back, that was not counted
        parameters: list[Any] = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if found_inf is not None and found_inf.item():
            for parameter in parameters:  # a checkpoint holds the state even if no step has been applied
                if not self.state[parameter]:
                    self.state[parameter] = {name: torch.zeros(kept.shape, device=parameter.device)
                                             for name, kept in kept_by_adamw(parameter).items()}
        else:
            for parameter in parameters if grad_scale is not None else ():
                parameter.grad.div_(grad_scale)
            super().step()
        self.found_inf, self.grad_scale = found_inf, grad_scale


def adamw_for(adamw: MakesAdamW, device: torch.device) -> MakesAdamW:
    """The fused AdamW for the device. Apple's kernel read neither tensor before PyTorch's pull request 186360 (2026).
    """
    return adamw if backend_of(device).fused_adamw_obeys or adamw is not torch.optim.AdamW else HostDecides


def dtype_of_products(machine: Machine) -> torch.dtype:
    """In what Muon multiplies: bf16 where the hardware has it, but fp32 where weights train in fp16."""
    has_bf16 = machine.dtype != torch.float16 and machine.backend.has_bf16()
    return torch.bfloat16 if has_bf16 else torch.float32


OPTIMIZERS = {
    "adamw": OptimizerKind("adamw", "AdamW", "adamw", "adamw", lambda groups, rate, betas, adamw, dtype: adamw(groups)),
    "muon": OptimizerKind("muon", "Muon for matrices inside blocks, AdamW for all else", "muon", "adamw",
                          lambda groups, rate, betas, adamw, dtype: Muon(groups, rate, adamw, dtype)),
    "adamw8bit": OptimizerKind("adamw8bit", "AdamW, moments in 8 bits", "adamw8bit", "adamw8bit",
                               lambda groups, rate, betas, adamw, dtype: AdamW8bit(groups, rate, betas, adamw)),
}
