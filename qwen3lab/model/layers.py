"""The small pieces of the model: RMSNorm and rotary embedding. Reductions and angles are fp32 whatever the dtype."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from qwen3lab.config import RopeConfig


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / √(mean(x²) + eps) · weight over the last dimension; the mean is taken in fp32."""
    return F.rms_norm(x, weight.shape, weight, eps)


class RotaryEmbedding:
    """Angles of every position up to `max_positions`: cos and sin, fp32 [max_positions, D/2].

    Pair i of a head (dimensions i and i + D/2) turns by position · theta^(−2i/D), as Qwen3 and Hugging Face have it.
    """

    def __init__(self, config: RopeConfig, head_dim: int, max_positions: int, device: torch.device) -> None:
        exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        inverse_frequency = 1.0 / (config.theta**exponent)
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * inverse_frequency
        self.cos = angles.cos().to(device)
        self.sin = angles.sin().to(device)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin fp32 [T, 1, D/2] of positions [T], ready to broadcast over heads."""
        return self.cos.index_select(0, positions)[:, None], self.sin.index_select(0, positions)[:, None]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair of x [T, heads, D] by its angle; computed in fp32, returned in x's dtype."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
