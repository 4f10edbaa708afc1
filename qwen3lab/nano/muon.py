"""Muon: momentum whose update is made orthogonal, for the hidden matrices; all matrices of one shape in one batch.

Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). The update of a matrix is
its Nesterov momentum pushed towards the nearest orthogonal matrix by five Newton–Schulz steps of the quintic below,
scaled by √max(1, rows/columns). torch.optim.Muon does one matrix at a time; a small model has many small ones, so they
are stacked here and the launches are few.
"""

from __future__ import annotations

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """g [N, rows, columns] → the same with singular values near 1; bf16 inside, which is enough for a direction."""
    a, b, c = _QUINTIC
    x = g.bfloat16()
    wide = x if g.shape[-2] <= g.shape[-1] else x.mT
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide if g.shape[-2] <= g.shape[-1] else wide.mT


class Muon(torch.optim.Optimizer):
    """One parameter group per shape, so that a step is a handful of batched products."""

    def __init__(
        self, params: list[torch.nn.Parameter], lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        shapes = sorted({tuple(p.shape) for p in params})
        groups = [{"params": [p for p in params if tuple(p.shape) == shape]} for shape in shapes]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            params: list[Tensor] = group["params"]
            grads = torch.stack([p.grad for p in params if p.grad is not None])
            state = self.state[params[0]]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(grads)
            momentum = state["momentum"]
            momentum.lerp_(grads, 1 - group["momentum"])
            update = orthogonalise(grads.lerp(momentum, group["momentum"])).float()
            rows, columns = grads.shape[-2:]
            scale = group["lr"] * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, list(update.unbind()), alpha=-scale)
