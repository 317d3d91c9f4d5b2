"""PyTorch's fused AdamW where its kernel does not read what the step decides on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from machine.backends import backend_of

AdamW: TypeAlias = Callable[..., torch.optim.Optimizer]


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
                    self.state[parameter] = {"step": torch.zeros((), device=parameter.device),
                                             "exp_avg": torch.zeros_like(parameter),
                                             "exp_avg_sq": torch.zeros_like(parameter)}
        else:
            for parameter in parameters if grad_scale is not None else ():
                parameter.grad.div_(grad_scale)
            super().step()
        self.found_inf, self.grad_scale = found_inf, grad_scale


def adamw_for(adamw: AdamW, device: torch.device) -> AdamW:
    """The fused AdamW for the device. Apple's kernel read neither tensor before PyTorch's pull request 186360 (2026).
    """
    return adamw if backend_of(device).fused_adamw_obeys or adamw is not torch.optim.AdamW else HostDecides
