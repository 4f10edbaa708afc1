"""Qwen3, dense. Reads like the block diagram; knows nothing of requests, pages or sampling.

embed ─▶ L × [ norm ▶ qkv ▶ per-head norm of q, k ▶ rotary ▶ attention ▶ o_proj ▶ +
               norm ▶ gate·up ▶ silu ▶ down ▶ + ] ─▶ norm ─▶ head
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from qwen3lab.attention.base import AttentionBackend, Batch, LayerCache
from qwen3lab.model.layers import rms_norm
from qwen3lab.model.linear import Linear
from qwen3lab.model.qk import QueryKey
from qwen3lab.model_config import ModelConfig


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Projections are [out, in], packed (see linear.Linear.pack); those that share an input are joined."""

    input_norm: torch.Tensor  # [H]
    qkv: torch.Tensor  # [(Hq + 2·Hkv)·D, H]
    qk_norm: torch.Tensor  # [Hq + Hkv, D]: the q weight for each q head, then the k weight for each k head
    o: torch.Tensor  # [H, Hq·D]
    post_attention_norm: torch.Tensor  # [H]
    gate_up: torch.Tensor  # [2·intermediate, H]
    down: torch.Tensor  # [H, intermediate]


@dataclass(frozen=True)
class Weights:
    """The whole checkpoint. A tied `head` is `embedding` itself where packing leaves a weight as it is."""

    embedding: torch.Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor  # [H]
    head: torch.Tensor  # [V, H], packed


class Qwen3:
    """The forward pass over one packed batch."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        query_key: QueryKey,
        attention: AttentionBackend,
        linear: Linear,
    ) -> None:
        self.config = config
        self.weights = weights
        self.query_key = query_key
        self.attention = attention
        self.linear = linear

    def forward(self, batch: Batch, kv: list[LayerCache]) -> torch.Tensor:
        """Logits of each row's last token, [B, V] in the model's dtype; K and V of all T tokens go to their pages."""
        x = F.embedding(batch.token_ids, self.weights.embedding)
        self.query_key.prepare(batch)
        self.attention.prepare(batch)
        for layer, cache in zip(self.weights.layers, kv, strict=True):
            x = x + self._attention(rms_norm(x, layer.input_norm, self.config.rms_norm_eps), layer, cache, batch)
            x = x + self._mlp(rms_norm(x, layer.post_attention_norm, self.config.rms_norm_eps), layer)
        last = x if batch.num_rows == batch.num_tokens else x.index_select(0, batch.logits_rows)
        return self.linear(rms_norm(last, self.weights.norm, self.config.rms_norm_eps), self.weights.head)

    def _attention(self, x: torch.Tensor, layer: LayerWeights, cache: LayerCache, batch: Batch) -> torch.Tensor:
        q = self.query_key.apply(self.linear(x, layer.qkv), layer, cache, batch)
        return self.linear(self.attention.attend(q, cache, batch).flatten(1), layer.o)

    def _mlp(self, x: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        gate, up = self.linear(x, layer.gate_up).chunk(2, dim=-1)
        return self.linear(F.silu(gate) * up, layer.down)
