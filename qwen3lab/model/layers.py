"""The small pieces of the model that hold no state of their own. Reductions are fp32 whatever the dtype."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / √(mean(x²) + eps) · weight over the last dimension; the mean is taken in fp32."""
    return F.rms_norm(x, weight.shape, weight, eps)
