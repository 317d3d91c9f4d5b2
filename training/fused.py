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
        try:
            if found_inf is not None and found_inf.item():
                self._make_state()
                return
            for parameter in self._parameters() if grad_scale is not None else ():
                parameter.grad.div_(grad_scale)
            super().step()
        finally:
            self.found_inf, self.grad_scale = found_inf, grad_scale

    def _make_state(self) -> None:
        """Makes what the first step makes: a checkpoint holds it even if no step has been applied."""
        for parameter in self._parameters():
            if not self.state[parameter]:
                self.state[parameter] = {"step": torch.zeros((), device=parameter.device),
                                         "exp_avg": torch.zeros_like(parameter),
                                         "exp_avg_sq": torch.zeros_like(parameter)}

    def _parameters(self) -> list[Any]:
        return [parameter for group in self.param_groups for parameter in group["params"] if parameter.grad is not None]


def reads_what_is_decided(adamw: AdamW, device: torch.device) -> bool:
    """True if the fused kernel of this device divides by grad_scale, and changes nothing where found_inf is 1."""
    weight = torch.nn.Parameter(torch.ones(1, device=device))
    weight.grad = torch.full_like(weight, 2.0)
    optimizer: Any = adamw([weight], 0.5, (0.5, 0.5), fused=True)
    optimizer.grad_scale = torch.full((), 4.0, device=device)
    optimizer.found_inf = torch.zeros((), device=device)
    optimizer.step()
    divides = optimizer.state[weight]["exp_avg"].item() == 0.25
    before = weight.item()
    optimizer.found_inf = torch.ones((), device=device)
    optimizer.step()
    return divides and weight.item() == before


def adamw_for(adamw: AdamW, device: torch.device) -> AdamW:
    """The fused AdamW for the device: on Apple's GPU releases of PyTorch differ in what the kernel reads.

    Before PyTorch's pull request 186360 of June 2026 it ignored both tensors.
    """
    if backend_of(device).fused_adamw_obeys or adamw is not torch.optim.AdamW or reads_what_is_decided(adamw, device):
        return adamw
    return HostDecides
