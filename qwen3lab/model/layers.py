"""The small pieces of the model that hold no state of their own. Reductions are fp32 whatever the dtype."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from qwen3lab.model.rope import rotate


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / √(mean(x²) + eps) · weight over the last dimension; the mean is taken in fp32."""
    return F.rms_norm(x, weight.shape, weight, eps)


def rms_norm_rope(
    heads: torch.Tensor, weight: torch.Tensor, eps: float, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Per-head RMSNorm, then the rotation: fp32 throughout, rounded once to the dtype of `heads`.

    heads    [T, Hq + Hkv, D]  the q heads and, after them, the k heads
    weight   [Hq + Hkv, D]     one row a head
    cos, sin fp32 [T, 1, D/2]  see RotaryEmbedding.at
    """
    normed = F.rms_norm(heads.float(), heads.shape[-1:], None, eps).mul_(weight)
    return rotate(normed, cos, sin).to(heads.dtype)
