"""What Muon and AdamW with moments in 8 bits share: each updates some groups of parameters, AdamW all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from machine.backends import backend_of


class BesideAdamW(torch.optim.Optimizer):
    """An optimizer of the groups whose rule is its own, and adamw for the others, in one.

    found_inf and grad_scale are honoured as tensors, as by PyTorch's fused optimizers; a step with found_inf = 1
    changes no bit. update(), new_state() and the function that is compiled are those of the classes below it.
    """

    found_inf: torch.Tensor | None = None
    grad_scale: torch.Tensor | None = None
    rule: str

    def __init__(self, groups: list[dict[str, Any]], learning_rate: float,
                 adamw: Callable[[list[dict[str, Any]]], torch.optim.Optimizer], function: Callable[..., None]):
        super().__init__(groups, {"lr": learning_rate})
        self._own = [group for group in self.param_groups if group["rule"] == self.rule]
        others = [group for group in self.param_groups if group["rule"] != self.rule]
        self._adamw: Any = adamw(others) if others else None
        if self._adamw is not None:
            self._adamw.state = self.state  # one place for all that a checkpoint holds
        device = self.param_groups[0]["params"][0].device
        self._rates = [torch.zeros((), device=device) for _ in self._own]  # filled at each step, without a wait
        self._finite, self._unscaled = torch.zeros((), device=device), torch.ones((), device=device)
        self._function = self._update = function

    def compile_step(self) -> None:
        """Makes every later step of its own groups one compiled graph; on a CPU it stays eager, as fast or faster."""
        if backend_of(self._finite).runs_ahead:
            self._update = torch.compile(self._function, dynamic=False, fullgraph=True)

    def run_eagerly(self) -> None:
        """Undoes compile_step."""
        self._update = self._function

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of all groups."""
        if self._adamw is not None:
            self._adamw.found_inf, self._adamw.grad_scale = self.found_inf, self.grad_scale
            self._adamw.step()
        for group, rate in zip(self._own, self._rates, strict=True):
            rate.fill_(group["lr"])
            for parameter in group["params"]:
                if not self.state[parameter]:
                    self.state[parameter] = self.new_state(parameter)
        self.update(self.found_inf, self._unscaled if self.grad_scale is None else self.grad_scale)

    def new_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """What is kept for a parameter before its first step."""
        raise NotImplementedError

    def update(self, found_inf: torch.Tensor | None, grad_scale: torch.Tensor) -> None:
        """One step of its own groups."""
        raise NotImplementedError
