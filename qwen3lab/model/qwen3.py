"""Qwen3, dense. Reads like the block diagram; knows nothing of requests, pages or sampling.

embed ─▶ L × [ norm ▶ qkv ▶ per-head norm of q, k ▶ rotary ▶ attention ▶ o_proj ▶ +
               norm ▶ gate·up ▶ silu ▶ down ▶ + ] ─▶ norm ─▶ head
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from qwen3lab.attention.base import AttentionBackend, Batch, LayerCache
from qwen3lab.config import ModelConfig
from qwen3lab.model.layers import rms_norm
from qwen3lab.model.rope import RotaryEmbedding, rotate


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Projections are [out, in], as torch's linear wants them; those that share an input are joined."""

    input_norm: torch.Tensor  # [H]
    qkv: torch.Tensor  # [(Hq + 2·Hkv)·D, H]
    q_norm: torch.Tensor  # [D]
    k_norm: torch.Tensor  # [D]
    o: torch.Tensor  # [H, Hq·D]
    post_attention_norm: torch.Tensor  # [H]
    gate_up: torch.Tensor  # [2·intermediate, H]
    down: torch.Tensor  # [H, intermediate]


@dataclass(frozen=True)
class Weights:
    """The whole checkpoint; `head` is `embedding` itself where the two are tied."""

    embedding: torch.Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor  # [H]
    head: torch.Tensor  # [V, H]


class Qwen3:
    """The forward pass over one packed batch."""

    def __init__(
        self, config: ModelConfig, weights: Weights, rotary: RotaryEmbedding, attention: AttentionBackend
    ) -> None:
        self.config = config
        self.weights = weights
        self.rotary = rotary
        self.attention = attention

    def forward(self, batch: Batch, kv: list[LayerCache]) -> torch.Tensor:
        """Logits of each row's last token, [B, V] in the model's dtype; K and V of all T tokens go to their pages."""
        x = F.embedding(batch.token_ids, self.weights.embedding)
        cos, sin = self.rotary.at(batch.positions)
        for layer, cache in zip(self.weights.layers, kv, strict=True):
            x = x + self._attention(
                rms_norm(x, layer.input_norm, self.config.rms_norm_eps), layer, cos, sin, cache, batch
            )
            x = x + self._mlp(rms_norm(x, layer.post_attention_norm, self.config.rms_norm_eps), layer)
        last = x if batch.num_rows == batch.num_tokens else x.index_select(0, batch.logits_rows)
        return F.linear(rms_norm(last, self.weights.norm, self.config.rms_norm_eps), self.weights.head)

    def _attention(
        self,
        x: torch.Tensor,
        layer: LayerWeights,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: LayerCache,
        batch: Batch,
    ) -> torch.Tensor:
        c = self.config
        q, k, v = F.linear(x, layer.qkv).split((c.q_size, c.kv_size, c.kv_size), dim=-1)
        q = rotate(rms_norm(q.unflatten(-1, (c.num_heads, c.head_dim)), layer.q_norm, c.rms_norm_eps), cos, sin)
        k = rotate(rms_norm(k.unflatten(-1, (c.num_kv_heads, c.head_dim)), layer.k_norm, c.rms_norm_eps), cos, sin)
        self.attention.store(k, v.unflatten(-1, (c.num_kv_heads, c.head_dim)), cache, batch)
        return F.linear(self.attention.attend(q, cache, batch).flatten(1), layer.o)

    def _mlp(self, x: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        gate, up = F.linear(x, layer.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, layer.down)
