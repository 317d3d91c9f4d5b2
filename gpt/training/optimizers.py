"""How an optimizer is built, its groups of parameters, what it keeps; gpt/training/table.py has the optimizers by name.

Every optimizer here takes what the step decides on the device, so that the host waits for nothing: found_inf, fp32 [],
1 where the step must change nothing; grad_scale, fp32 [], by which it divides the gradients. PyTorch's fused optimizers
read both as attributes.
"""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch

from gpt.architectures.fields import shown
from gpt.architectures.table import ModelConfig, architecture_of
from gpt.checkpoint.contents import StateTensor
from gpt.common.errors import Exit, UserError
from gpt.machine.backends import backend_of
from gpt.machine.device import Machine
from gpt.ops.options import Options
from gpt.training.beside_adamw import Rows, zeros_of
from gpt.training.table import MUON_PAYS, OPTIMIZERS

MakesAdamW: TypeAlias = Callable[..., torch.optim.Optimizer]


def build_optimizer(name: str, groups: list[dict[str, Any]], learning_rate: float, betas: tuple[float, float],
                    adamw: MakesAdamW = torch.optim.AdamW, dtype: torch.dtype = torch.float32) -> torch.optim.Optimizer:
    """The optimizer of these groups. AdamW (Loshchilov and Hutter 2019) is fused; dtype is of products of matrices."""
    fused, load = partial(adamw, lr=learning_rate, betas=betas, fused=True), OPTIMIZERS[name].load
    return load()(groups, learning_rate, betas, fused, dtype) if load else fused(groups)


# ---------------------------------------------------------------- groups of parameters


def parameter_groups(model: Any, name: str, weight_decay: float, lr_scale: float = 1.0,
                     ) -> list[dict[str, Any]]:
    """Every parameter in exactly one group: matrices inside blocks, then embeddings and output layer, then vectors.

    Vectors, which are norms and biases, do not decay. rows are, for each parameter, those of the matrices that are
    stacked in it; () outside of blocks. lr_scale is the rate of the last two groups as a multiple of that of hidden
    matrices.
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
    """Sets the decay and the rates' multiples of the groups that parameter_groups has made."""
    for group in groups:
        group["weight_decay"] = 0.0 if group["kind"] == "vector" else weight_decay
        group["lr_scale"] = 1.0 if group["kind"] == "hidden" else lr_scale


# ---------------------------------------------------------------- what is kept


def kept_by_adamw(parameter: torch.Tensor) -> dict[str, StateTensor]:
    """Shapes and types of what AdamW keeps for a parameter."""
    moment = StateTensor(tuple(parameter.shape), torch.float32)
    return {"step": StateTensor((), torch.float32), "exp_avg": moment, "exp_avg_sq": moment}


def kept_by(rule: str, parameter: torch.Tensor, rows: Rows = ()) -> dict[str, StateTensor]:
    """What the rule, the name of an optimizer, keeps for a parameter in which matrices of these rows are stacked."""
    load = OPTIMIZERS[rule].load
    return load().kept(parameter, rows) if load else kept_by_adamw(parameter)


def expected_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, StateTensor]:
    """The tensors that the optimizer keeps for one of its parameters: what a checkpoint stores."""
    return next(kept_by(group["rule"], parameter, rows) for group in optimizer.param_groups
                for p, rows in zip(group["params"], group["rows"], strict=True) if p is parameter)


def state_bytes(name: str, config: ModelConfig) -> float:
    """Bytes of state per parameter of a model, by the shapes of its parameters."""
    with torch.device("meta"):
        groups = parameter_groups(architecture_of(config).build(config, Options()), name, 0.0)
    kept = (tensor for group in groups for parameter, rows in zip(group["params"], group["rows"], strict=True)
            for tensor in kept_by(group["rule"], parameter, rows).values())
    return sum(tensor.num_bytes for tensor in kept if tensor.shape) / config.num_parameters


# ---------------------------------------------------------------- compiling


def compile_optimizer(optimizer: Any) -> None:
    """Compiles the optimizer's step where it is no fused kernel, by a step on the gradients that changes nothing."""
    if hasattr(optimizer, "compile_step"):
        optimizer.compile_step()
        optimizer.found_inf = torch.ones((), device=optimizer.param_groups[0]["params"][0].device)
        optimizer.step()
        optimizer.found_inf = None


# ---------------------------------------------------------------- which one

ADAMWS_OWN = ("learning_rate", "beta1", "beta2")  # figures that were found for AdamW, if somebody gives them


def choose_optimizer(args: argparse.Namespace, config: ModelConfig, samples_per_step: int, stored: Mapping[str, Any],
                     ) -> tuple[str, str]:
    """The optimizer's name, and why where --optimizer auto decides; stored is the checkpoint to resume from, or empty.

    Raises UserError (exit 4) for another one than the checkpoint's, whose moments it could not use.
    """
    if stored:
        name = str((stored.get("settings") or {}).get("optimizer", "adamw"))  # an older program named none
        if args.optimizer not in ("auto", name) or name not in OPTIMIZERS:
            raise UserError(Exit.CHECKPOINT, f"--optimizer {args.optimizer}: the checkpoint has the moments of "
                                             f"{shown(name)}, which it cannot use. Drop the flag, or give --init_from "
                                             "to start from its weights alone.")
        return name, ""
    if args.optimizer != "auto":
        return args.optimizer, ""
    if args.init_from:
        return "adamw", "trained weights go on with AdamW, which most were trained with"
    if given := [f"--{flag}" for flag in ADAMWS_OWN if flag in args.config.given]:
        return "adamw", f"{', '.join(given)} given, as one does for AdamW"
    tokens = samples_per_step * config.seq_length
    # Muon takes about 200 C^3 FLOP a layer and step: 2.8 C / tokens of the blocks' own.
    return "muon" if tokens >= MUON_PAYS * config.n_embd else "adamw", (
        f"Muon adds {2.8 * config.n_embd / tokens:.1%} to the blocks' FLOPs, and up to {2.8 / MUON_PAYS:.0%} pays")


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
                    self.state[parameter] = zeros_of(kept_by_adamw(parameter), parameter)
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
    """In what Muon multiplies: bf16 where the hardware has it, else fp16 on a GPU that trains in it, else fp32."""
    if machine.dtype == torch.float16:
        return torch.float16 if machine.on_gpu else torch.float32
    return torch.bfloat16 if machine.backend.has_bf16() else torch.float32
