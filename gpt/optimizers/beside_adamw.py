"""The base class of all optimizers but AdamW: each updates its own groups, and AdamW the others."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from gpt.checkpoint.contents import StateTensor
from gpt.machine.backends import backend_of

Rows: TypeAlias = tuple[int, ...]  # of each matrix that a parameter stacks


def adamw_schema(parameter: torch.Tensor) -> dict[str, StateTensor]:
    """Shapes and types of AdamW's state for a parameter."""
    moment = StateTensor(tuple(parameter.shape), torch.float32)
    return {"step": StateTensor((), torch.float32), "exp_avg": moment, "exp_avg_sq": moment}


def zeros_of(kept: Mapping[str, StateTensor], parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """The state of a parameter before its first step; tensors of its shape are sharded like it."""
    return {name: torch.zeros_like(parameter, dtype=its.dtype) if its.shape == parameter.shape
            else torch.zeros(its.shape, dtype=its.dtype, device=parameter.device) for name, its in kept.items()}


class BesideAdamW(torch.optim.Optimizer):
    """One optimizer with two rules: a subclass's own for its groups, and AdamW for the others.

    found_inf and grad_scale are tensors, as for PyTorch's fused optimizers; a step with found_inf = 1 changes
    no bit. A subclass has update(), schema_of(), its rule, and the function to compile. dtype is for products
    of matrices. parameter_groups names the rule of each group.
    """

    found_inf: torch.Tensor | None = None
    grad_scale: torch.Tensor | None = None
    rule: str
    function: Callable[..., None]

    def __init__(self, groups: list[dict[str, Any]], learning_rate: float, betas: tuple[float, float],
                 adamw: Callable[[list[dict[str, Any]]], torch.optim.Optimizer], dtype: torch.dtype = torch.float32):
        super().__init__(groups, {"lr": learning_rate})
        self._betas, self._dtype = betas, dtype
        self._update = self.function
        self._own = [group for group in self.param_groups if group["rule"] == self.rule]
        others = [group for group in self.param_groups if group["rule"] != self.rule]
        self._adamw: Any = adamw(others)
        self._adamw.state = self.state  # one dict for the whole state of a checkpoint
        self._device = self.param_groups[0]["params"][0].device
        self._rates = [torch.zeros((), device=self._device) for _ in self._own]  # filled at each step, without a wait
        self._decays = [torch.zeros((), device=self._device) for _ in self._own]
        self._found_nothing = torch.zeros((), device=self._device)  # found_inf without a gradient scaler
        self._scale_of_one = torch.ones((), device=self._device)  # grad_scale without one

    def compile_step(self) -> None:
        """Makes every later step of the own groups one compiled graph, on CUDA; elsewhere does nothing.

        The next step compiles. On a CPU eager is as fast or faster.
        """
        if backend_of(self._device).runs_ahead:
            self._update = torch.compile(self.function, dynamic=False, fullgraph=True)

    def run_eagerly(self) -> None:
        """Undoes compile_step."""
        self._update = self.function

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of all groups; the first one allocates the state. Every parameter needs a gradient.

        Each group has the "lr" and "weight_decay" of the step. closure is not used.
        """
        self._adamw.found_inf, self._adamw.grad_scale = self.found_inf, self.grad_scale
        self._adamw.step()
        for group, rate, decay in zip(self._own, self._rates, self._decays, strict=True):
            rate.fill_(group["lr"])
            decay.fill_(group["weight_decay"])
            for parameter, rows in zip(group["params"], group["rows"], strict=True):
                if not self.state[parameter]:
                    self.state[parameter] = zeros_of(self.schema_of(parameter, rows), parameter)
        self.update(self._found_nothing if self.found_inf is None else self.found_inf,
                    self._scale_of_one if self.grad_scale is None else self.grad_scale)

    @staticmethod
    def schema_of(parameter: torch.Tensor, rows: Rows) -> dict[str, StateTensor]:
        """Shapes and types of the state of a parameter, which is zero before the first step."""
        raise NotImplementedError

    def update(self, found_inf: torch.Tensor, grad_scale: torch.Tensor) -> None:
        """One step of the own groups."""
