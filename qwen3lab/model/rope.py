"""Rotary position embedding: the table of angles, plain or YaRN, and the rotation. Always fp32."""

from __future__ import annotations

import math

import torch

from qwen3lab.model_config import RopeConfig


class RotaryEmbedding:
    """Angles of every position up to `max_positions`: cos and sin, fp32 [max_positions, D/2].

    Pair i of a head (dimensions i and i + D/2) turns by position · frequency i, as Qwen3 and Hugging Face have it.
    """

    def __init__(self, config: RopeConfig, head_dim: int, max_positions: int, device: torch.device) -> None:
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies(config, head_dim)
        magnitude = attention_factor(config)
        self.cos = (angles.cos() * magnitude).to(device)
        self.sin = (angles.sin() * magnitude).to(device)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin fp32 [T, 1, D/2] of positions [T], ready to broadcast over heads."""
        return self.cos.index_select(0, positions)[:, None], self.sin.index_select(0, positions)[:, None]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair of x, fp32 [T, heads, D], by its angle: (a, b) becomes (a·cos − b·sin, b·cos + a·sin)."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.empty_like(x)
    a, b = turned.chunk(2, dim=-1)
    torch.mul(first, cos, out=a).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=b).addcmul_(first, sin)
    return turned


def frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position of each pair, fp32 [D/2]: theta^(−2i/D); YaRN slows the pairs that turn less than once.

    YaRN (Peng et al. 2023, §3.2): pairs with more than beta_fast turns in the original context keep their frequency,
    those with fewer than beta_slow are interpolated (divided by `factor`), and a linear ramp joins the two.
    """
    plain = 1.0 / config.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if config.rope_type == "default":
        return plain

    def pair_with(turns: float) -> float:
        """The (fractional) pair that turns this often within the original context."""
        length = config.original_max_position_embeddings
        return head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = pair_with(config.beta_fast), pair_with(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    interpolated = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / config.factor * interpolated + plain * (1 - interpolated)


def attention_factor(config: RopeConfig) -> float:
    """What cos and sin are multiplied by: 1 for plain rotary, YaRN's temperature otherwise (§3.3)."""
    if config.rope_type == "default":
        return 1.0
    if config.attention_factor is not None:
        return config.attention_factor

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(config.factor) + 1.0 if config.factor > 1 else 1.0

    if config.mscale and config.mscale_all_dim:
        return magnitude(config.mscale) / magnitude(config.mscale_all_dim)
    return magnitude(1.0)
